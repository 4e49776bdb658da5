//! Guards: what a holder has in its hands.

use std::marker::PhantomData;
use std::time::Duration;

use crate::Error;
use crate::acquisition::Acquisition;
use crate::clock::Moment;
use crate::hold::Held;
use crate::kind::{Keepable, Kind, Read, Reentrant, Write};
use crate::options::{SHORTEST, check_span};
use crate::wire::Family;

/// A hold. Dropping it releases in the background; [`release`](Self::release) tells whether that worked.
///
/// A guard is a promise by this side's clock. It ends before the server's own count of the lease does, but nothing can keep a
/// process from being stopped between looking at it and acting. Where that matters, send the [`token`](Self::token) along, and have
/// the resource refuse a token that is lower than one it has seen.
///
/// ```no_run
/// # async fn work() {}
/// # async fn example(guard: rlock_client::Guard<rlock_client::Mutex>) -> Result<(), rlock_client::Error> {
/// tokio::select! {
///     biased;
///     () = guard.lost() => return Err(rlock_client::Error::NotHeld),
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

    /// The owner in whose name this is held, for a second handle by [`Lock::owner`](crate::Lock::owner).
    pub fn owner(&self) -> &[u8] {
        let request = &self.held.hold.request;
        request.share_gate();
        &request.subject.owner
    }

    /// Whether the hold can be relied upon at this moment. Reads the clock, and asks nobody.
    pub fn is_held(&self) -> bool {
        self.held.hold.is_held()
    }

    /// How long the hold can be relied upon if it is not renewed again; zero if it is lost.
    pub fn valid_for(&self) -> Duration {
        if self.is_held() { Moment::now().until(self.held.hold.ends()) } else { Duration::ZERO }
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
        let session_grace = self.held.hold.request.gate.session_grace;
        let detached = Detached { owner: self.owner().to_vec(), token: self.token(), session_grace };
        self.held.leave();
        Ok(detached)
    }

    /// Resolves when it has been released, whether by hand or because it was dropped.
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + use<K> {
        self.held.hold.clone().ended()
    }

    /// Renews now, by the lease with which it was acquired.
    ///
    /// # Cancel safety
    ///
    /// When dropped, the renewal may or may not take place.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the hold is gone, [`Error::Connection`] if no answer came while it was valid.
    pub async fn renew(&self) -> Result<(), Error> {
        self.held.hold.renew_by_hand(None).await
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
        self.held.hold.renew_by_hand(Some(lease)).await
    }

    /// Releases, and waits for the server to say so. If another request of a named owner for this lock is under way, be it a wait, this one comes after
    /// it: see [`Lock::owner`](crate::Lock::owner). After [`retry_for`](crate::Builder::retry_for) that is [`Error::Connection`], and goes on in the background.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the hold was gone already: somebody else may have held meanwhile. [`Error::Connection`] if no server
    /// could be told; then the lease ends it. [`Error::Superseded`] if the request was sent again and another one in the name of this owner came in
    /// between, so that nobody can tell whether it was done; if not, the lease ends it.
    ///
    /// When the connection was lost and the request was sent again, a hold that is gone within its lease counts as released, by the first
    /// copy: nobody can tell that from an operator who took it away in that moment. A hold with a `session_grace` of 0 does not: it may have ended
    /// with its connection before.
    pub async fn release(self) -> Result<(), Error> {
        self.held.release().await
    }
}

impl<K: Keepable> Guard<K> {
    /// Releases, and keeps the lock closed for `keep` from the release on: for jobs that must run at most once per period. Until the lock opens the
    /// server grants it to no owner, not even this one, and waiters go on waiting. `keep` is 0 to 365 days, rounded up to whole milliseconds; 0 is a
    /// plain [`release`](Self::release). [`Observer::force_release`](crate::Observer::force_release) opens the lock earlier.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background. One that was never polled releases, and keeps nothing closed.
    ///
    /// # Errors
    ///
    /// As [`release`](Self::release). After [`Error::NotHeld`] the lock is not kept closed; after [`Error::Connection`] and [`Error::Superseded`] it may
    /// be. [`Error::Argument`] if `keep` is not in its range, and [`Error::Server`] with `ERR` if the owner holds it several times: then this guard's
    /// hold is released, and nothing is kept closed.
    pub async fn release_and_keep(self, keep: Duration) -> Result<(), Error> {
        check_span("keep", keep, Duration::ZERO)?;
        self.held.keep(keep);
        self.held.release().await
    }
}

impl<K: Reentrant> Guard<K> {
    /// Holds once more, in the name of the same owner: granted at once, past any queue, with the same token. The lock is free when all guards
    /// are released.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives back what was granted meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if the hold is gone.
    pub async fn reenter(&self) -> Result<Self, Error> {
        if !self.is_held() {
            return Err(Error::NotHeld);
        }
        let again = Acquisition::by_owner_of(&self.held.hold, self.held.hold.request.subject.family)?;
        let inner = again.try_acquire().await?.map(Self::new);
        // An owner that holds is never refused. If the hold ended and was granted anew, it is another one, and not a re-entry.
        inner.filter(|inner| inner.token() == self.token()).ok_or_else(|| {
            self.held.hold.lose();
            Error::NotHeld
        })
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
    /// [`Error::NotHeld`] if the hold is gone. On any error the lock is released.
    pub async fn downgrade(self) -> Result<Guard<Read>, Error> {
        let reader = Acquisition::by_owner_of(&self.held.hold, Family::Read)?.try_acquire().await?;
        let reader = reader.map(Guard::new).ok_or(Error::NotHeld)?;
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
    /// [`Error::Deadlock`] if another reader is waiting for the same: one of the two has to release. [`Error::NotHeld`] if the reader's hold
    /// is gone: another writer may have come in between, so this one is given back.
    pub async fn upgrade(&self) -> Result<Guard<Write>, Error> {
        self.upgrade_until(None).await
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
        self.upgrade_until(Some(Moment::now().after(timeout))).await
    }

    async fn upgrade_until(&self, deadline: Option<Moment>) -> Result<Guard<Write>, Error> {
        if !self.is_held() {
            return Err(Error::NotHeld);
        }
        let writer = Acquisition::by_owner_of(&self.held.hold, Family::Write)?.acquire(deadline).await?;
        // Only if this hold has lived to see the other one, nobody has written since.
        self.renew().await?;
        Ok(Guard::new(writer))
    }
}
