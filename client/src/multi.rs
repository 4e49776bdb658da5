//! Several mutexes at once: all or nothing.
//!
//! Keys in one slot of one server are taken in one step by the server. Otherwise the groups are taken one after the other, in
//! the order of the places' names and of the slots, which is the same for everybody: so nobody waits in a circle.

use std::collections::BTreeSet;
use std::time::Duration;

use futures_util::future::select_all;

use crate::Error;
use crate::acquire::{Wait, Wanted};
use crate::client::Client;
use crate::hold::Held;
use crate::lock::run;
use crate::options::{Options, option_methods};
use crate::wire::Family;

/// Several keys that are locked together. A key that is locked by [`Client::lock`] elsewhere is the same lock.
///
/// An [`owner`](Self::owner) that holds just these keys already enters again. One that holds only some of them is refused.
#[derive(Clone, Debug)]
pub struct MultiLock {
    places: Vec<(Client, Vec<Vec<u8>>)>,
    options: Options,
}

/// By the place, first by the name that the user has given it, and the slot there.
type Order = ((String, String), Option<u16>);

/// Keys that one command can take.
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
    /// Adds keys in another place. All processes must use the same names for the places, see
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

    /// Acquires all if all are free. `None` if one is not; then none is held.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background what was granted meanwhile.
    ///
    /// # Errors
    ///
    /// As [`Lock::try_acquire`](crate::Lock::try_acquire); [`Error::Argument`] also if there is no key, or one twice.
    pub async fn try_acquire(&self) -> Result<Option<MultiGuard>, Error> {
        self.take(Wait::Not).await
    }

    /// Acquires all, and waits for as long as it takes.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves neither places in queues nor holds.
    ///
    /// # Errors
    ///
    /// As [`Lock::acquire`](crate::Lock::acquire); [`Error::Argument`] also if there is no key, or one twice.
    pub async fn acquire(&self) -> Result<MultiGuard, Error> {
        self.take(Wait::Until(None)).await?.ok_or(Error::Timeout)
    }

    /// Acquires all, and waits no longer than `timeout` altogether.
    ///
    /// # Cancel safety
    ///
    /// As [`acquire`](Self::acquire).
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if not all were granted in that time; then none is held.
    pub async fn acquire_timeout(&self, timeout: Duration) -> Result<MultiGuard, Error> {
        self.take(Wait::within(timeout)).await?.ok_or(Error::Timeout)
    }

    /// Acquires all, does some work, and releases all, as [`Lock::run`](crate::Lock::run).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future drops the work, and releases in the background.
    ///
    /// # Errors
    ///
    /// As [`acquire`](Self::acquire), and [`Error::Lost`] if one of the locks was lost before the work was done.
    pub async fn run<T>(&self, work: impl AsyncFnOnce(&MultiGuard) -> T) -> Result<T, Error> {
        let guard = self.acquire().await?;
        // There is a place, or nothing would have been acquired.
        let Some((client, _)) = self.places.first() else { return Err(Error::Closed) };
        run(guard, work, MultiGuard::lost, |guard| async move { guard.release().await }, client).await
    }

    async fn take(&self, wait: Wait) -> Result<Option<MultiGuard>, Error> {
        let groups = self.groups()?;
        let closings: Vec<_> = groups.iter().map(|group| Box::pin(group.client.core.closing.cancelled())).collect();
        let taken = tokio::select! {
            biased;
            // Also of a place whose lock is held already while another one is waited for.
            _ = select_all(closings) => Err(Error::Closed),
            taken = self.take_all(&groups, wait) => taken,
        }?;
        groups.iter().try_for_each(|group| group.client.core.enter().map(drop))?;
        Ok(taken)
    }

    async fn take_all(&self, groups: &[Group], wait: Wait) -> Result<Option<MultiGuard>, Error> {
        let mut guard = MultiGuard { holds: Vec::with_capacity(groups.len()) };
        // In all places it is one owner.
        let mut owner = self.options.owner.clone();
        for group in groups {
            let core = &group.client.core;
            let owner = owner.get_or_insert_with(|| core.id.next_owner().into()).clone();
            let is_named = self.options.owner.is_some();
            let family = if group.keys.len() == 1 { Family::Mutex } else { Family::Many };
            let wanted = Wanted { family, keys: group.keys.clone().into(), permits: 1, options: self.options.clone() };
            wanted.check()?;
            match core.acquire_by(wanted.by(owner), &self.options, is_named, wait).await {
                Ok(Some(held)) => guard.holds.push(held),
                outcome => {
                    // The caller hears of it when the others are free again, or its time has passed.
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
        // The first may have been lost while the last was waited for.
        if guard.is_held() { Ok(Some(guard)) } else { Err(Error::Lost) }
    }

    /// The groups in the order in which everybody takes them.
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
        // The same set of keys is one thing to wait for, in whichever order it was named.
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
    /// The fencing token of a key; `None` if it is not one of this guard's. Of a key that is held in several places it is the one of the place
    /// whose name comes first: each place counts its own tokens, and [`tokens`](Self::tokens) has all.
    pub fn token(&self, key: impl AsRef<[u8]>) -> Option<u64> {
        self.tokens().find(|(held, _)| *held == key.as_ref()).map(|(_, token)| token)
    }

    /// All keys with their fencing tokens, by the names of their places.
    pub fn tokens(&self) -> impl Iterator<Item = (&[u8], u64)> {
        self.holds.iter().flat_map(|held| {
            let keys = held.hold.request.subject.keys.iter().map(Vec::as_slice);
            keys.zip(held.hold.tokens.iter().copied())
        })
    }

    /// Whether all can be relied upon at this moment.
    pub fn is_held(&self) -> bool {
        self.holds.iter().all(|held| held.hold.is_held())
    }

    /// How long all can be relied upon if none is renewed again; zero if one is lost.
    pub fn valid_for(&self) -> Duration {
        self.holds.iter().map(|held| held.hold.valid_for()).min().unwrap_or_default()
    }

    /// Resolves as soon as one of them can no longer be relied upon, see [`Guard::lost`](crate::Guard::lost).
    ///
    /// # Cancel safety
    ///
    /// It may be dropped and asked for again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let lost: Vec<_> = self.holds.iter().map(|held| Box::pin(held.hold.clone().lost())).collect();
        async move { drop(select_all(lost).await) }
    }

    /// Resolves when all have been released, whether by hand or because it was dropped.
    #[cfg(feature = "blocking")]
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + Sync + use<> {
        let holds: Vec<_> = self.holds.iter().map(|held| held.hold.clone()).collect();
        async move {
            for hold in holds {
                hold.released().await;
            }
        }
    }

    /// Renews all now.
    ///
    /// # Cancel safety
    ///
    /// When dropped, renewals may or may not take place.
    ///
    /// # Errors
    ///
    /// As [`Guard::renew`](crate::Guard::renew), for the first that could not be renewed.
    pub async fn renew(&self) -> Result<(), Error> {
        for held in &self.holds {
            held.hold.renew(None).await?;
        }
        Ok(())
    }

    /// Releases all, and waits for the servers to say so.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background.
    ///
    /// # Errors
    ///
    /// As [`Guard::release`](crate::Guard::release), for the first that could not be released; the others are.
    pub async fn release(mut self) -> Result<(), Error> {
        let mut outcome = Ok(());
        while let Some(held) = self.holds.pop() {
            outcome = outcome.and(held.release(None).await);
        }
        outcome
    }
}
