//! Guards: held locks.

use std::marker::PhantomData;
use std::time::Duration;

use crate::Error;
use crate::acquire::{Wait, no_answer};
use crate::held::Held;
use crate::kinds::{Keepable, Kind, Permits, Read, Reentrant, Write};
use crate::options::{Options, SHORTEST, check_span};
use crate::wire::{Family, Subject};

/// A held lock. Dropping it releases the lock in the background; [`release`](Self::release) waits
/// for the server and reports errors.
///
/// The client judges validity by its own clock, and stops trusting the hold before the lease
/// expires on the server. But a process may be paused between a check and the work that follows.
/// Where that matters, send the [`token`](Self::token) with each write, and let the resource refuse
/// a token lower than one it has seen.
///
/// ```no_run
/// # async fn work() {}
/// # async fn example(guard: rlock_client::Guard<rlock_client::kinds::Mutex>) -> Result<(), rlock_client::Error> {
/// tokio::select! {
///     biased;
///     () = guard.lost() => return Err(rlock_client::Error::Lost),
///     () = work() => {}
/// }
/// guard.release().await
/// # }
/// ```
#[must_use = "a guard that is dropped releases the lock"]
pub struct Guard<K> {
    pub(crate) held: Held,
    kind: PhantomData<fn() -> K>,
}

impl<K> std::fmt::Debug for Guard<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Guard").field(&self.held).finish()
    }
}

/// A hold without a guard: all that [`Lock::attach`](crate::Lock::attach) needs to take it over,
/// also in another process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Detached {
    /// The owner of the hold.
    pub owner: Vec<u8>,
    /// The fencing token of the hold.
    pub token: u64,
    /// How long the hold outlives the connection of its last client, if it has a
    /// [`session_grace`](crate::Lock::session_grace).
    pub session_grace: Option<Duration>,
}

impl<K: Kind> Guard<K> {
    pub(crate) fn new(held: Held) -> Self {
        Self { held, kind: PhantomData }
    }

    /// The fencing token: higher than that of every earlier hold. It stays the same while the hold
    /// lives.
    pub fn token(&self) -> u64 {
        self.held.hold.tokens.first().copied().unwrap_or_default()
    }

    /// The key of the lock.
    pub fn key(&self) -> &[u8] {
        self.held.hold.request.subject.first_key()
    }

    /// The owner of the hold, for another handle with [`Lock::owner`](crate::Lock::owner).
    pub fn owner(&self) -> &[u8] {
        self.held.hold.desks();
        &self.held.hold.request.subject.owner
    }

    /// Whether the hold is valid now. Reads the clock and sends nothing.
    pub fn is_held(&self) -> bool {
        self.held.hold.is_held()
    }

    /// How long the hold stays valid without another renewal; zero if it is lost.
    pub fn valid_for(&self) -> Duration {
        self.held.hold.valid_for()
    }

    /// The lease in force: for how long the latest answer of the server made the hold valid, counted
    /// from the sending of its request. It is at most the
    /// [`session_grace`](crate::Lock::session_grace), and shorter than the lease of the lock if the
    /// server allows only a shorter one (`rlock.max-lease-ms`). A new hold lasts for up to 2 s, until
    /// the client renews it for the first time, 50 ms after the grant.
    pub fn lease(&self) -> Duration {
        self.held.hold.lease()
    }

    /// Resolves as soon as the hold is no longer valid: shortly before its lease expires on the
    /// server, when a renewal finds it gone, and when it is released. Each poll reads the clock, so
    /// after a pause of the process the first poll resolves.
    ///
    /// # Cancel safety
    ///
    /// This future is cancel safe. The method may be called again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<K> {
        self.held.hold.clone().lost()
    }

    /// Whether the hold may soon be lost: its last connection has closed, or its last renewal
    /// failed. The lease still runs, and the next renewal may succeed. A hold that is
    /// [lost](Self::lost) is not suspected.
    pub fn is_suspected(&self) -> bool {
        self.held.hold.is_suspected()
    }

    /// Renews the lease once more and gives up the guard: the hold is no longer renewed, and not
    /// released. [`Lock::attach`](crate::Lock::attach) takes it over with the returned value before
    /// the lease expires. A hold with a [`session_grace`](crate::Lock::session_grace) stays bound
    /// to the connection of this client: when that closes, attach before the grace is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases the lock in the background.
    ///
    /// # Errors
    ///
    /// As [`renew`](Self::renew). On any error the lock is released.
    pub async fn detach(self) -> Result<Detached, Error> {
        self.renew().await?;
        let session_grace = self.held.hold.request.options.session_grace;
        let detached = Detached { owner: self.owner().to_vec(), token: self.token(), session_grace };
        self.held.detach();
        Ok(detached)
    }

    /// Resolves when the hold has been released, by a call or a drop; at once if other guards share
    /// it.
    #[cfg(feature = "blocking")]
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + Sync + use<K> {
        self.held.hold.clone().released()
    }

    /// Renews now, with the lease of the lock.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the renewal may or may not happen.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold is gone, or becomes invalid before a server answers.
    /// [`Error::Closed`] if the client was closed. [`Error::Refused`] if the server refused.
    pub async fn renew(&self) -> Result<(), Error> {
        self.held.hold.renew(None).await
    }

    /// Renews now, so that the lease lasts at least `lease` from now, 10 ms to 365 days. A lease
    /// that already lasts longer is not shortened.
    ///
    /// # Cancel safety
    ///
    /// As [`renew`](Self::renew).
    ///
    /// # Errors
    ///
    /// As [`renew`](Self::renew), and [`Error::Argument`] if `lease` is out of range.
    pub async fn renew_for(&self, lease: Duration) -> Result<(), Error> {
        check_span("lease", lease, SHORTEST)?;
        self.held.hold.renew(Some(lease)).await
    }

    /// Releases the lock and waits for the server's answer. The guard is invalid at once, whatever
    /// the server answers. Without an answer the client retries until the lease would have expired.
    /// If an owner has several guards of one hold, the last one releases the lock.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold had ended before: another owner may have held the lock
    /// meanwhile. [`Error::Unavailable`] if no server answered; then the lease ends the hold.
    ///
    /// After a lost reply and a retry, a hold that is gone within its lease counts as released by
    /// the first copy.
    pub async fn release(self) -> Result<(), Error> {
        self.held.release(None).await
    }
}

impl<K: Keepable> Guard<K> {
    /// Releases the lock and keeps it closed for `keep`, counted from the release: for jobs that
    /// must run at most once per period. While it is closed the server grants it to no owner, not
    /// even this one, and waiters keep waiting. `keep` is 0 to 365 days, rounded up to whole
    /// milliseconds; 0 is a plain [`release`](Self::release).
    /// [`Observer::force_release`](crate::Observer::force_release) opens the lock earlier.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the release goes on in the background. A future that was never
    /// polled releases the lock and does not keep it closed.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). After [`Error::Lost`] the lock is not kept closed; after
    /// [`Error::Unavailable`] it may be.
    ///
    /// [`Error::Argument`] if other guards share the hold; [`Error::Refused`] with `ERR` if another
    /// client holds the lock for the same [shared owner](crate::Lock::shared_owner). Both release
    /// only this guard's share, and do not keep the lock closed.
    ///
    /// [`Error::Argument`] if `keep` is out of range; the lock is then released in the background.
    pub async fn release_and_keep(self, keep: Duration) -> Result<(), Error> {
        check_span("keep", keep, Duration::ZERO)?;
        self.held.release(Some(keep)).await
    }
}

impl<K: Reentrant> Guard<K> {
    /// Another guard of the same hold. The last guard releases the lock.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold has ended.
    pub fn reenter(&self) -> Result<Self, Error> {
        Held::again(&self.held.hold).map(Self::new)
    }
}

impl<K> Guard<K> {
    /// Acquires for the owner of this guard, with the options of its lock.
    async fn acquire<L: Kind>(&self, family: Family, wait: Wait) -> Result<Option<Guard<L>>, Error> {
        let request = &self.held.hold.request;
        self.held.hold.desks();
        let subject = Subject { family, ..request.subject.clone() };
        let options = Options { ends_by: self.held.hold.ends_by(), ..request.options.clone() };
        Ok(request.core.acquire_by(subject, &options, true, wait).await?.map(Guard::new))
    }
}

impl Guard<Permits> {
    /// The number of permits held.
    pub fn permits(&self) -> u32 {
        self.held.hold.request.subject.permits
    }
}

impl Guard<Write> {
    /// Turns the write lock into a read lock without letting another writer in between. Waiting
    /// readers may enter.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases both.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold is gone. On any error the lock is released.
    pub async fn downgrade(self) -> Result<Guard<Read>, Error> {
        if !self.is_held() {
            return Err(Error::Lost);
        }
        let reader = self.acquire(Family::Read, Wait::Not).await?.ok_or(Error::Lost)?;
        self.release().await?;
        Ok(reader)
    }
}

impl Guard<Read> {
    /// Acquires the write lock in addition, once the other readers have released theirs. The
    /// upgrade waits ahead of the queue. The read lock stays held until its guard is released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future keeps the read lock and cleans up the rest.
    ///
    /// # Errors
    ///
    /// [`Error::Deadlock`] if another reader is also waiting to upgrade: one of the two has to
    /// release. [`Error::Lost`] if the read lock is gone: another writer may have held the lock
    /// meanwhile, so the write lock is released.
    pub async fn upgrade(&self) -> Result<Guard<Write>, Error> {
        self.upgrade_within(Wait::Until(None)).await
    }

    /// As [`upgrade`](Self::upgrade), but waits no longer than `timeout`.
    ///
    /// # Cancel safety
    ///
    /// As [`upgrade`](Self::upgrade).
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if other readers still hold the lock after that time;
    /// [`Error::Unavailable`] as of [`Lock::acquire_timeout`](crate::Lock::acquire_timeout);
    /// otherwise as [`upgrade`](Self::upgrade).
    pub async fn upgrade_timeout(&self, timeout: Duration) -> Result<Guard<Write>, Error> {
        self.upgrade_within(Wait::within(timeout)).await
    }

    async fn upgrade_within(&self, wait: Wait) -> Result<Guard<Write>, Error> {
        if !self.is_held() {
            return Err(Error::Lost);
        }
        let limit = wait.limit(self.held.hold.request.core.common.command_timeout);
        let writer = self.acquire(Family::Write, wait).await?.ok_or(Error::Timeout)?;
        // If the read lock is still held now, no other writer held the lock before the grant.
        match limit {
            Some(limit) => tokio::time::timeout_at(limit, self.renew()).await.unwrap_or_else(|_| Err(no_answer()))?,
            None => self.renew().await?,
        }
        Ok(writer)
    }
}
