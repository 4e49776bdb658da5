//! Guards: what a holder has in its hands.

use std::marker::PhantomData;
use std::time::Duration;

use crate::Error;
use crate::acquire::Wait;
use crate::hold::Held;
use crate::kinds::{Keepable, Kind, Permits, Read, Reentrant, Write};
use crate::options::{Options, SHORTEST, check_span};
use crate::wire::{Family, Subject};

/// A hold. Dropping it releases in the background; [`release`](Self::release) tells whether that worked.
///
/// A guard is a promise by this side's clock. It ends before the server's own count of the lease does, but nothing can keep a
/// process from being stopped between looking at it and acting. Where that matters, send the [`token`](Self::token) along, and have
/// the resource refuse a token that is lower than one it has seen.
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

/// A hold that no guard keeps: enough to take it over with [`Lock::attach`](crate::Lock::attach), also in another process.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct Detached {
    /// The owner in whose name it is held.
    pub owner: Vec<u8>,
    /// Its fencing token.
    pub token: u64,
    /// How long it outlives the connection of who kept it last, if it has a [`session_grace`](crate::Lock::session_grace).
    pub session_grace: Option<Duration>,
}

impl<K: Kind> Guard<K> {
    pub(crate) fn new(held: Held) -> Self {
        Self { held, kind: PhantomData }
    }

    /// The fencing token: higher than that of every hold before this one. It stays the same as long as the hold lives.
    pub fn token(&self) -> u64 {
        self.held.hold.tokens.first().copied().unwrap_or_default()
    }

    /// The key of the lock.
    pub fn key(&self) -> &[u8] {
        self.held.hold.request.subject.first_key()
    }

    /// The owner in whose name this is held, for a second handle by [`Lock::owner`](crate::Lock::owner).
    pub fn owner(&self) -> &[u8] {
        self.held.hold.desks();
        &self.held.hold.request.subject.owner
    }

    /// Whether the hold can be relied upon at this moment. Reads the clock, and asks nobody.
    pub fn is_held(&self) -> bool {
        self.held.hold.is_held()
    }

    /// How long the hold can be relied upon if it is not renewed again; zero if it is lost.
    pub fn valid_for(&self) -> Duration {
        self.held.hold.valid_for()
    }

    /// Resolves as soon as the hold can no longer be relied upon: before its lease ends at the server, when a renewal finds it
    /// gone, and when it is released. Each look at it reads the clock, so after a stop of the process it is ready at the first one.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped and asked for again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<K> {
        self.held.hold.clone().lost()
    }

    /// Whether something is wrong that may end in a loss: the connection over which it was last heard of is gone, or the last renewal failed.
    /// The lease runs on, and the next renewal may mend it. A hold that is [lost](Self::lost) is not suspected any more.
    pub fn is_suspected(&self) -> bool {
        self.held.hold.is_suspected()
    }

    /// Renews once more and leaves the hold alone: it is neither renewed nor released from here on. Whoever gets to know what this returns can
    /// take it over with [`Lock::attach`](crate::Lock::attach) before its lease ends. A hold with a
    /// [`session_grace`](crate::Lock::session_grace) stays bound to the connection of this client: when that closes, it has to be taken over before
    /// the grace is over.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future releases in the background.
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

    /// Resolves when the hold has been released, whether by hand or because it was dropped; at once if other guards have it still.
    #[cfg(feature = "blocking")]
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + Sync + use<K> {
        self.held.hold.clone().released()
    }

    /// Renews now, by the lease with which it was acquired.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the renewal may or may not take place.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold is gone, [`Error::Unavailable`] if no answer came while it was valid.
    pub async fn renew(&self) -> Result<(), Error> {
        self.held.hold.renew(None).await
    }

    /// Renews now, so that the hold lives for at least `lease` from now, 1 ms to 365 days. An end that is later already stays.
    ///
    /// # Cancel safety
    ///
    /// As [`renew`](Self::renew).
    ///
    /// # Errors
    ///
    /// As [`renew`](Self::renew), and [`Error::Argument`] if `lease` is not in its range.
    pub async fn renew_for(&self, lease: Duration) -> Result<(), Error> {
        check_span("lease", lease, SHORTEST)?;
        self.held.hold.renew(Some(lease)).await
    }

    /// Releases, and waits for the server to say so. The belief ends at once, whatever the server answers. While it does not answer, the
    /// command is sent again until the lease would have ended. Of several guards of one owner the last one gives the lock back.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold had ended before: another owner may have held meanwhile. [`Error::Unavailable`] if no server answered;
    /// then the lease ends the hold.
    ///
    /// If the reply was lost and the request was sent again, a hold that is gone within its lease counts as released by the first copy.
    pub async fn release(self) -> Result<(), Error> {
        self.held.release(None).await
    }
}

impl<K: Keepable> Guard<K> {
    /// Releases, and keeps the lock closed for `keep` from the release on: for jobs that must run at most once per period. Until the lock
    /// opens the server grants it to no owner, not even this one, and waiters go on waiting. `keep` is 0 to 365 days, rounded up to whole
    /// milliseconds; 0 is a plain [`release`](Self::release). [`Observer::force_release`](crate::Observer::force_release) opens the lock
    /// earlier.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background. One that was never polled releases, and keeps nothing closed.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). After [`Error::Lost`] the lock is not kept closed; after [`Error::Unavailable`] it may be.
    /// [`Error::Argument`] if `keep` is not in its range, or if this is not the only guard of its hold, and [`Error::Refused`] with `ERR` if
    /// another client holds in the name of its owner too: then it is released, and nothing is kept closed.
    pub async fn release_and_keep(self, keep: Duration) -> Result<(), Error> {
        check_span("keep", keep, Duration::ZERO)?;
        self.held.release(Some(keep)).await
    }
}

impl<K: Reentrant> Guard<K> {
    /// One more guard of the same hold. The lock is released with the last of them.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold has ended.
    pub fn reenter(&self) -> Result<Self, Error> {
        Held::again(&self.held.hold).map(Self::new)
    }
}

impl<K> Guard<K> {
    /// Acquires in the name of this guard's owner, by the options of its lock.
    async fn acquire<L: Kind>(&self, family: Family, wait: Wait) -> Result<Option<Guard<L>>, Error> {
        let request = &self.held.hold.request;
        self.held.hold.desks();
        let subject = Subject { family, ..request.subject.clone() };
        let options = Options { ends_by: self.held.hold.ends_by(), ..request.options.clone() };
        Ok(request.core.acquire_by(subject, &options, true, wait).await?.map(Guard::new))
    }
}

impl Guard<Permits> {
    /// How many permits are held.
    pub fn permits(&self) -> u32 {
        self.held.hold.permits()
    }

    /// Gives back some of the permits, fewer than are held, and keeps the others on the same lease and token.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if that were none or all of them, [`Error::Lost`] if the hold has ended or ends before a server answers.
    pub async fn release_some(&self, permits: u32) -> Result<(), Error> {
        tokio::select! {
            biased;
            outcome = self.held.release_some(permits) => outcome,
            () = self.lost() => Err(Error::Lost),
        }
    }
}

impl Guard<Write> {
    /// Becomes a reader without letting another writer in between. Readers that wait come in.
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
    /// Becomes the writer as well, when the other readers have left; it waits ahead of the queue. The reader's hold stays until its
    /// guard is released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the reader's hold alone and takes the rest back.
    ///
    /// # Errors
    ///
    /// [`Error::Deadlock`] if another reader is waiting for the same: one of the two has to release. [`Error::Lost`] if the reader's hold
    /// is gone: another writer may have come in between, so this one is given back.
    pub async fn upgrade(&self) -> Result<Guard<Write>, Error> {
        self.upgrade_within(Wait::Until(None)).await
    }

    /// The same, for no longer than `timeout`.
    ///
    /// # Cancel safety
    ///
    /// As [`upgrade`](Self::upgrade).
    ///
    /// # Errors
    ///
    /// [`Error::Timeout`] if the other readers have not left in that time; else as [`upgrade`](Self::upgrade).
    pub async fn upgrade_timeout(&self, timeout: Duration) -> Result<Guard<Write>, Error> {
        self.upgrade_within(Wait::within(timeout)).await
    }

    async fn upgrade_within(&self, wait: Wait) -> Result<Guard<Write>, Error> {
        if !self.is_held() {
            return Err(Error::Lost);
        }
        let writer = self.acquire(Family::Write, wait).await?.ok_or(Error::Timeout)?;
        // Only if this hold has lived to see the other one, nobody has written since.
        self.renew().await?;
        Ok(writer)
    }
}
