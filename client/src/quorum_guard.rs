//! What a majority of servers has granted.
//!
//! The whole can be relied upon while a majority of the parts can. A server that grants late joins, so that the guard outlives the loss of one
//! of those which decided; but not once the guard is lost: somebody else may have held since, so it is not held again. Not more than a majority is waited for; the others are told in the background.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;

use tokio::task::{AbortHandle, JoinSet};
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::Error;
use crate::hold::{Held, Hold};
use crate::servers::Line;
use crate::shared::Shared;
use crate::signal::Signal;

/// An attempt on one server: nothing if the server did not answer in time. The client is not left behind while the token lives.
pub(crate) type Attempt = (Option<Result<Option<Held>, Error>>, TaskTrackerToken);

/// The holds of a guard, or `None` when it is being released.
type Holds = Mutex<Option<Vec<Held>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One server that was asked for a guard, and the attempt.
pub(crate) struct Asked {
    pub(crate) client: Arc<Shared>,
    pub(crate) attempt: AbortHandle,
}

/// What has come of a guard, to be waited for at its end. It keeps nothing held.
struct Course {
    /// Nothing any more when it is complete.
    asked: Mutex<Vec<Asked>>,
    granted: Mutex<Vec<Arc<Hold>>>,
    /// Set when each server has granted, or does so no more.
    is_complete: Signal,
}

impl std::fmt::Debug for Course {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Course").finish_non_exhaustive()
    }
}

/// A lock that a majority of servers has granted. Dropping it releases everywhere, in the background.
#[derive(Debug)]
#[must_use = "a guard that is dropped releases the lock"]
pub struct QuorumGuard {
    holds: Arc<Holds>,
    course: Arc<Course>,
    token: u64,
    majority: usize,
}

impl QuorumGuard {
    pub(crate) fn of(holds: Vec<Held>, asked: Vec<Asked>, majority: usize) -> Self {
        let token = holds.iter().flat_map(|held| held.hold.tokens.iter().copied()).max().unwrap_or_default();
        let granted = Mutex::new(holds.iter().map(|held| held.hold.clone()).collect());
        let course = Arc::new(Course { asked: Mutex::new(asked), granted, is_complete: Signal::default() });
        Self { holds: Arc::new(Mutex::new(Some(holds))), course, token, majority }
    }

    /// Adds what is granted late. What comes when there is no guard any more, or when it is lost, is dropped, and so released.
    pub(crate) fn gather(&self, mut attempts: JoinSet<Attempt>) {
        let Some(runtime) = lock(&self.holds).iter().flatten().next().map(runtime_of) else { return };
        let (holds, course, majority) = (Arc::downgrade(&self.holds), self.course.clone(), self.majority);
        runtime.spawn(async move {
            while let Some(attempt) = attempts.join_next().await {
                let Ok((Some(Ok(Some(held))), under_way)) = attempt else { continue };
                lock(&course.granted).push(held.hold.clone());
                join(&holds, held, majority);
                // Not before the release of what nobody wants is under way itself.
                drop(under_way);
            }
            lock(&course.asked).clear();
            course.is_complete.set();
        });
    }

    /// The highest fencing token of the servers that decided. It rises from holder to holder as long as the servers' clocks differ by less
    /// than passes between two holders.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Whether a majority can be relied upon at this moment.
    pub fn is_held(&self) -> bool {
        let holds = lock(&self.holds);
        holds.as_deref().is_some_and(|holds| can_be_relied_upon(holds, self.majority))
    }

    /// Resolves as soon as fewer than a majority of the servers can be relied upon.
    ///
    /// # Cancel safety
    ///
    /// It may be dropped and asked for again.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        let (holds, majority) = (Arc::downgrade(&self.holds), self.majority);
        let (mut pending, mut seen) = (Vec::new(), 0);
        std::future::poll_fn(move |context| {
            // Those that have joined since are as good as the first.
            if let Some(holds) = holds.upgrade() {
                let holds = lock(&holds);
                let holds = holds.as_deref().unwrap_or_default();
                pending.extend(holds.iter().skip(seen).map(|held| Box::pin(held.hold.clone().lost())));
                seen = holds.len();
            }
            pending.retain_mut(|lost| Pin::new(lost).poll(context).is_pending());
            if pending.len() < majority { Poll::Ready(()) } else { Poll::Pending }
        })
    }

    /// Resolves when all that was granted has been released, whether by hand or because it was dropped: also what is granted from now on.
    ///
    /// Of a server that did not answer an attempt in time nothing is known, and it is not waited for.
    pub(crate) fn released(&self) -> impl Future<Output = ()> + Send + use<> {
        let course = self.course.clone();
        async move {
            course.expect_no_more_without_a_connection();
            course.is_complete.wait().await;
            let granted = lock(&course.granted).clone();
            for hold in granted {
                hold.ended().await;
            }
        }
    }

    /// Renews everywhere now, all servers at once.
    ///
    /// # Cancel safety
    ///
    /// When dropped, renewals may or may not take place.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if no majority holds it any more, [`Error::Connection`] if not enough servers answered to tell.
    pub async fn renew(&self) -> Result<(), Error> {
        let mut renewals = JoinSet::new();
        for held in lock(&self.holds).iter().flatten() {
            let hold = held.hold.clone();
            renewals.spawn_on(async move { hold.renew_by_hand(None).await }, &runtime_of(held));
        }
        self.majority_of(renewals).await
    }

    /// Releases everywhere, all servers at once.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background.
    ///
    /// # Errors
    ///
    /// [`Error::NotHeld`] if no majority held it to the end, [`Error::Connection`] if not enough servers answered to tell.
    pub async fn release(self) -> Result<(), Error> {
        let mut releases = JoinSet::new();
        let holds = lock(&self.holds).take();
        for held in holds.into_iter().flatten() {
            let (runtime, under_way) = (runtime_of(&held), held.hold.request.client.home.under_way());
            let release = async move {
                let outcome = held.release().await;
                drop(under_way);
                outcome
            };
            releases.spawn_on(release, &runtime);
        }
        self.majority_of(releases).await
    }

    /// Waits until a majority has done something, or cannot any more. The others go on in the background.
    async fn majority_of(&self, mut tasks: JoinSet<Result<(), Error>>) -> Result<(), Error> {
        let (mut done, mut unknown) = (0, None);
        while let Some(outcome) = tasks.join_next().await {
            match outcome {
                Ok(Ok(())) => done += 1,
                Ok(Err(Error::NotHeld)) => {}
                Ok(Err(error)) => unknown = Some(error),
                Err(_) => unknown = Some(Error::RuntimeEnded),
            }
            if done >= self.majority {
                tasks.detach_all();
                return Ok(());
            }
        }
        Err(unknown.unwrap_or(Error::NotHeld))
    }
}

fn can_be_relied_upon(holds: &[Held], majority: usize) -> bool {
    holds.iter().filter(|held| held.hold.is_held()).count() >= majority
}

/// Adds a hold to those of a guard, if there is one, and it is not lost. A hold that is lost is never held again, so neither is the guard.
fn join(holds: &Weak<Holds>, held: Held, majority: usize) {
    if let Some(holds) = holds.upgrade()
        && let Some(holds) = &mut *lock(&holds)
        && can_be_relied_upon(holds, majority)
    {
        holds.push(held);
    }
}

impl Course {
    /// A server that there is no connection to has not been asked yet: it may be down, and whoever releases does not wait for it.
    fn expect_no_more_without_a_connection(&self) {
        let Some(keys) = lock(&self.granted).first().map(|hold| hold.request.subject.keys.clone()) else { return };
        for Asked { client, attempt } in &*lock(&self.asked) {
            if client.servers.present(client.slot_of(&keys), Line::Shared).is_none() {
                attempt.abort();
            }
        }
    }
}

/// Where a hold is kept.
fn runtime_of(held: &Held) -> tokio::runtime::Handle {
    held.hold.request.client.home.runtime().clone()
}
