//! Several mutexes at once: all or nothing.
//!
//! The server acquires keys of one slot in one step. Otherwise the client acquires one group of
//! keys after the other, ordered by the names of the servers and by slot. All clients use the same
//! order, so they cannot deadlock.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::select_all;

use crate::Error;
use crate::acquire::{Wait, Wanted};
use crate::client::Client;
use crate::held::Held;
use crate::lock::run;
use crate::options::{Options, option_methods};
use crate::wire::Family;

/// Several keys that are locked together. The same key locked with [`Client::lock`] is the same
/// lock.
///
/// If the [`owner`](Self::owner) already holds exactly these keys, acquiring them is a re-entry. If
/// it holds only some of them, the request is refused.
#[derive(Clone, Debug)]
pub struct MultiLock {
    places: Vec<(Client, Vec<Vec<u8>>)>,
    options: Options,
}

/// The configured name of a server, the name made from its addresses, and the slot.
type Order = ((String, String), Option<u16>);

/// Keys that one command can acquire.
struct Group {
    client: Client,
    keys: Vec<Vec<u8>>,
}

impl Client {
    /// Several mutexes that are held together or not at all.
    pub fn multi_lock<K: AsRef<[u8]>>(&self, keys: impl IntoIterator<Item = K>) -> MultiLock {
        MultiLock { places: Vec::new(), options: Options::default() }.and(self, keys)
    }
}

impl MultiLock {
    /// Adds keys on another server or cluster. All processes must use the same names for them, see
    /// [`Builder::name`](crate::Builder::name).
    #[must_use]
    pub fn and<K: AsRef<[u8]>>(mut self, client: &Client, keys: impl IntoIterator<Item = K>) -> Self {
        let keys = keys.into_iter().map(|key| key.as_ref().to_vec()).collect();
        self.places.push((client.clone(), keys));
        self
    }

    fn options_mut(&mut self) -> &mut Options {
        &mut self.options
    }

    option_methods!();

    /// Acquires all keys if all are free; otherwise returns `None` and holds none.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, locks granted meanwhile are released in the background.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire); [`Error::Argument`] also if there is no
    /// key, or a key appears twice.
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>, Error> {
        self.take(Wait::Not).await
    }

    /// Acquires all keys, waiting as long as it takes.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the client leaves all queues and releases all holds, in the
    /// background.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire); [`Error::Argument`] also if there is no key, or
    /// a key appears twice.
    pub async fn acquire(&self) -> Result<MultiGuard, Error> {
        self.take(Wait::Until(None)).await?.ok_or(Error::Timeout)
    }

    /// Acquires all keys, waiting no longer than `timeout` in total.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire_timeout`](crate::Lock::acquire_timeout) if not all keys were granted in
    /// that time; then none is held. Otherwise as [`acquire`](Self::acquire).
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<MultiGuard, Error> {
        self.take(Wait::within(timeout)).await?.ok_or(Error::Timeout)
    }

    /// Acquires all keys, runs `work`, and releases all, as [`Lock::run`](crate::Lock::run).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops `work` and releases all in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Lost`] as of [`Lock::run`](crate::Lock::run) if
    /// one of the locks was lost.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        // Acquiring succeeds only with at least one client.
        let Some((client, _)) = self.places.first() else { return Err(Error::Closed) };
        run(guard, work, MultiGuard::lost, |guard| async move { guard.release().await }, client).await
    }

    async fn take(&self, wait: Wait) -> Result<Option<MultiGuard>, Error> {
        let groups = self.groups()?;
        let closings: Vec<_> = groups.iter().map(|group| Box::pin(group.client.core.closing.cancelled())).collect();
        let taken = tokio::select! {
            biased;
            // Stop also if a client closes whose keys are already held while another group waits.
            _ = select_all(closings) => Err(Error::Closed),
            taken = self.take_all(&groups, wait) => taken,
        }?;
        groups.iter().try_for_each(|group| group.client.core.enter().map(drop))?;
        Ok(taken)
    }

    async fn take_all(&self, groups: &[Group], wait: Wait) -> Result<Option<MultiGuard>, Error> {
        let mut guard = MultiGuard { holds: Vec::with_capacity(groups.len()) };
        // All groups use the same owner.
        let mut owner = self.options.owner.clone();
        for group in groups {
            let core = &group.client.core;
            let owner = owner.get_or_insert_with(|| core.common.id.next_owner().into()).clone();
            let is_named = self.options.owner.is_some();
            let wanted = Wanted {
                family: Family::Mutex,
                keys: group.keys.clone().into(),
                permits: 1,
                options: self.options.clone(),
            };
            wanted.check()?;
            match core.acquire_by(wanted.by(owner), &self.options, is_named, wait).await {
                Ok(Some(held)) => guard.holds.push(held),
                outcome => {
                    // Report the failure only when the other keys are free again, or the time is
                    // up.
                    let limit = wait.limit(core.common.command_timeout);
                    let releasing = guard.release();
                    match limit {
                        Some(limit) => drop(tokio::time::timeout_at(limit, releasing).await),
                        None => drop(releasing.await),
                    }
                    return outcome.map(|_| None);
                }
            }
        }
        // The first group may have been lost while the last one waited.
        if guard.is_held() { Ok(Some(guard)) } else { Err(Error::Lost) }
    }

    /// The groups, in the order that all clients use.
    fn groups(&self) -> Result<Vec<Group>, Error> {
        let mut groups: Vec<(Order, Group)> = Vec::new();
        let mut seen = BTreeSet::new();
        for (client, keys) in &self.places {
            for key in keys {
                let order = (client.core.place(), client.core.slot_of(std::slice::from_ref(key)));
                if !seen.insert((order.0.clone(), key.clone())) {
                    let key = String::from_utf8_lossy(key);
                    return Err(Error::Argument(format!("keys has {key:?} twice; expected each key once")));
                }
                match groups.iter_mut().find(|(other, _)| *other == order) {
                    Some((_, group)) => group.keys.push(key.clone()),
                    None => groups.push((order, Group { client: client.clone(), keys: vec![key.clone()] })),
                }
            }
        }
        if groups.is_empty() {
            return Err(Error::Argument("keys is empty; expected at least one key".to_owned()));
        }
        groups.sort_by(|(one, _), (other, _)| one.cmp(other));
        let mut groups: Vec<_> = groups.into_iter().map(|(_, group)| group).collect();
        // Sort the keys, so that the same set of keys is the same request in whatever order it was
        // named.
        groups.iter_mut().for_each(|group| group.keys.sort());
        Ok(groups)
    }
}

/// All keys of a [`MultiLock`], held together. Dropping it releases all in the background.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the locks"]
pub struct MultiGuard {
    holds: Vec<Held>,
}

impl MultiGuard {
    /// The fencing token of a key; `None` if this guard does not have the key. If the key is held
    /// on several servers, this is the token of the server whose name comes first: each server
    /// counts its own tokens, and [`tokens`](Self::tokens) returns them all.
    pub fn token(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        self.tokens().find(|(held, _)| *held == key.as_ref()).map(|(_, token)| token)
    }

    /// All keys with their fencing tokens, ordered by the names of their servers.
    pub fn tokens(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.holds.iter().flat_map(|held| {
            let keys = held.hold.request.subject.keys.iter().map(Vec::as_slice);
            keys.zip(held.hold.tokens.iter().copied())
        })
    }

    /// Whether all holds are valid now.
    pub fn is_held(&self) -> bool {
        self.holds.iter().all(|held| held.hold.is_held())
    }

    /// How long all holds stay valid without another renewal; zero if one is lost.
    pub fn valid_for(&self) -> Duration {
        self.holds.iter().map(|held| held.hold.valid_for()).min().unwrap_or_default()
    }

    /// Resolves as soon as one of the holds is no longer valid, see
    /// [`Guard::lost`](crate::Guard::lost).
    ///
    /// # Cancel safety
    ///
    /// This future is cancel safe. The method may be called again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let lost: Vec<_> = self.holds.iter().map(|held| Box::pin(held.hold.clone().lost())).collect();
        async move { drop(select_all(lost).await) }
    }

    /// Resolves when all keys have been released, by a call or a drop.
    #[cfg(feature = "blocking")]
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let holds: Vec<_> = self.holds.iter().map(|held| held.hold.clone()).collect();
        async move {
            for hold in holds {
                hold.released().await;
            }
        }
    }

    /// Renews all keys now, one group after the other.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, renewals may or may not happen.
    ///
    /// # Errors
    ///
    /// As [`Guard::renew`](crate::Guard::renew). It stops at the first key that cannot be renewed.
    pub async fn renew(&self) -> Result<(), Error> {
        for held in &self.holds {
            held.hold.renew(None).await?;
        }
        Ok(())
    }

    /// Releases all keys and waits for the answers.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if one of the holds had ended before, otherwise the first error, as of
    /// [`Guard::release`](crate::Guard::release). All other keys are released nevertheless.
    pub async fn release(mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        while let Some(held) = self.holds.pop() {
            outcome = match held.release(None).await {
                Err(Error::Lost) => Err(Error::Lost),
                released => outcome.and(released),
            };
        }
        outcome
    }
}
