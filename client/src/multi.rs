//! Several mutexes at once: all or nothing.
//!
//! Keys in one slot of one server are taken in one step by the server. Otherwise the groups are taken one after the other, in
//! the order of the places' names and of the slots, which is the same for everybody: so nobody waits in a circle.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::acquisition::Acquisition;
use crate::client::Client;
use crate::clock::Moment;
use crate::hold::{Held, fewer_pending_than, fewer_than, fewer_unreleased_than};
use crate::identity::unique_owner;
use crate::options::{Options, option_methods};
use crate::timer::sleep_until_some;
use crate::waiter::LATE;
use crate::wire::Family;

/// Several keys that are locked together. A key that is locked by [`Client::lock`] elsewhere is the same lock.
///
/// Whoever acquires in the name of an [`owner`](Self::owner) has one request at a time for a key. While it waits for several, all else that is asked
/// in that name for one of them waits too, also a release, [`Guard::reenter`](crate::Guard::reenter) and `try_acquire`.
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
        self.take(Wait::Until(Some(Moment::now().after(timeout)))).await?.ok_or(Error::Timeout)
    }

    async fn take(&self, wait: Wait) -> Result<Option<MultiGuard>, Error> {
        let homes = || self.places.iter().map(|(client, _)| &client.shared.home);
        // Whoever closes one of the clients waits until nothing is left, also of what was taken in the places of the others.
        let _under_way: Vec<_> = homes().map(|home| home.under_way()).collect();
        let closings: Vec<_> = homes().map(|home| Box::pin(home.closing())).collect();
        let none_is_closed = closings.len();
        let taken = tokio::select! {
            biased;
            outcome = Box::pin(self.take_all(wait)) => outcome?,
            () = fewer_pending_than(none_is_closed, closings) => return Err(Error::Closed),
        };
        // One may have been closed before the last grant was looked at: all are given back.
        homes().try_for_each(|home| home.check())?;
        Ok(taken)
    }

    async fn take_all(&self, wait: Wait) -> Result<Option<MultiGuard>, Error> {
        let groups = self.groups()?;
        // In all places it is one owner.
        let unique: Arc<[u8]> = unique_owner().into();
        let mut guard = MultiGuard { holds: Vec::with_capacity(groups.len()) };
        for group in groups {
            match self.take_group(group, &unique, wait).await {
                Ok(Some(held)) => guard.holds.push(held),
                outcome => {
                    guard.give_back(wait).await;
                    return outcome.map(|_| None);
                }
            }
        }
        // The first may have been lost while the last was waited for.
        if guard.is_held() {
            return Ok(Some(guard));
        }
        guard.give_back(wait).await;
        Err(Error::NotHeld)
    }

    async fn take_group(&self, group: Group, unique: &Arc<[u8]>, wait: Wait) -> Result<Option<Held>, Error> {
        let (Group { client: Client { shared }, mut keys }, options) = (group, &self.options);
        // The same set of keys is one thing to wait for, in whichever order it was named.
        keys.sort();
        let (family, keys) = (if keys.len() == 1 { Family::Mutex } else { Family::Many }, Arc::from(keys));
        let acquisition = match options.owner {
            Some(_) => Acquisition::new(&shared, family, keys, 1, options)?,
            None => Acquisition::by_unique_owner(&shared, family, keys, unique.clone(), options)?,
        };
        match wait {
            Wait::Not => acquisition.try_acquire().await,
            Wait::Until(deadline) => acquisition.acquire(deadline).await.map(Some),
        }
    }

    /// The groups in the order in which everybody takes them.
    fn groups(&self) -> Result<Vec<Group>, Error> {
        let mut groups: Vec<(Order, Group)> = Vec::new();
        let mut seen = BTreeSet::new();
        for (client, keys) in &self.places {
            for key in keys {
                let order = (client.shared.place(), client.shared.slot_of(std::slice::from_ref(key)));
                if !seen.insert((order.0.clone(), key.clone())) {
                    let key = String::from_utf8_lossy(key);
                    return Err(Error::Argument(format!("keys has {key:?} twice")));
                }
                match groups.iter_mut().find(|(other, _)| *other == order) {
                    Some((_, group)) => group.keys.push(key.clone()),
                    None => groups.push((order, Group { client: client.clone(), keys: vec![key.clone()] })),
                }
            }
        }
        if groups.is_empty() {
            return Err(Error::Argument("keys has no key".to_owned()));
        }
        groups.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(groups.into_iter().map(|(_, group)| group).collect())
    }
}

#[derive(Clone, Copy)]
enum Wait {
    Not,
    Until(Option<Moment>),
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

    /// Resolves as soon as one of them can no longer be relied upon, see [`Guard::lost`](crate::Guard::lost).
    ///
    /// # Cancel safety
    ///
    /// It may be dropped and asked for again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        fewer_than(self.holds.len(), &self.holds)
    }

    /// Resolves when all have been released, whether by hand or because it was dropped.
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + use<> {
        fewer_unreleased_than(1, &self.holds)
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
            held.hold.renew_by_hand(None).await?;
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
            outcome = outcome.and(held.release().await);
        }
        outcome
    }

    /// Releases what was acquired before something failed. That is what the caller hears of, in time: what takes longer is left to the background.
    async fn give_back(self, wait: Wait) {
        let deadline = if let Wait::Until(deadline) = wait { deadline } else { None };
        tokio::select! {
            biased;
            outcome = self.release() => {
                if let Err(error) = outcome {
                    tracing::debug!(%error, "not all of several locks could be given back");
                }
            }
            () = sleep_until_some(deadline.map(|deadline| deadline.after(LATE))) => {}
        }
    }
}
