//! Who waits for an answer over a connection, until when, and the end of the connection for all of them.
//!
//! Each command comes by here, so it costs little: no timer for each, but one for all, which goes off when the first of them may be due.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};

use tokio_util::sync::CancellationToken;

use crate::clock::Moment;
use crate::timer::wake_at;

/// Those who wait for answers over one connection.
pub(crate) struct Answers {
    /// The same as in `closed`, and cheaper to look at.
    is_closed: AtomicBool,
    closed: CancellationToken,
    waiting: Mutex<Waiting>,
}

struct Waiting {
    places: Vec<Option<(Moment, Waker)>>,
    free: Vec<usize>,
    /// When it is looked next who has waited for too long.
    looks_at: Moment,
}

/// Why there will be no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoAnswer {
    Closed,
    Late,
}

impl Answers {
    pub(crate) fn new() -> Arc<Self> {
        let waiting = Waiting { places: Vec::new(), free: Vec::new(), looks_at: Moment::NEVER };
        let (is_closed, closed) = (AtomicBool::new(false), CancellationToken::new());
        Arc::new(Self { is_closed, closed, waiting: Mutex::new(waiting) })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Is cancelled when the connection is closed.
    pub(crate) fn closed(&self) -> &CancellationToken {
        &self.closed
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Acquire)
    }

    /// Whoever waits hears that the connection is closed.
    pub(crate) fn close(&self) {
        if self.is_closed.swap(true, Ordering::AcqRel) {
            return;
        }
        self.closed.cancel();
        let wakers: Vec<_> = self.waiting().places.iter().flatten().map(|(_, waker)| waker.clone()).collect();
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Waits for an answer until a moment, or until the connection is closed. An answer that is there counts in any case.
    pub(crate) async fn until<T>(
        self: &Arc<Self>,
        mut answer: Pin<&mut impl Future<Output = T>>,
        late_at: Moment,
    ) -> Result<T, NoAnswer> {
        let mut place = Place { answers: self, index: None };
        std::future::poll_fn(|context| {
            if let Poll::Ready(answer) = answer.as_mut().poll(context) {
                return Poll::Ready(Ok(answer));
            }
            place.wait(context, late_at).map(Err)
        })
        .await
    }

    /// Wakes those who have waited for too long, and comes back when others may have.
    fn look(self: &Arc<Self>) {
        let now = Moment::now();
        let mut late = Vec::new();
        let mut waiting = self.waiting();
        let mut first = Moment::NEVER;
        for (late_at, waker) in waiting.places.iter().flatten() {
            if *late_at <= now {
                late.push(waker.clone());
            } else {
                first = first.min(*late_at);
            }
        }
        waiting.looks_at = first;
        drop(waiting);
        if first < Moment::NEVER {
            wake_at(first, Waker::from(self.clone()));
        }
        late.into_iter().for_each(Waker::wake);
    }
}

/// The thread of the timers comes by.
impl Wake for Answers {
    fn wake(self: Arc<Self>) {
        self.look();
    }
}

/// The place of one who waits. Dropping it leaves it.
struct Place<'a> {
    answers: &'a Arc<Answers>,
    index: Option<usize>,
}

impl Place<'_> {
    fn wait(&mut self, context: &Context<'_>, late_at: Moment) -> Poll<NoAnswer> {
        let mut waiting = self.answers.waiting();
        // Under the lock: whoever closes wakes those who are there after that.
        if self.answers.is_closed() {
            return Poll::Ready(NoAnswer::Closed);
        }
        if Moment::now() >= late_at {
            return Poll::Ready(NoAnswer::Late);
        }
        match self.index {
            Some(index) => match &mut waiting.places[index] {
                Some((_, waker)) => waker.clone_from(context.waker()),
                empty => *empty = Some((late_at, context.waker().clone())),
            },
            None => {
                let entry = Some((late_at, context.waker().clone()));
                self.index = Some(match waiting.free.pop() {
                    Some(index) => {
                        waiting.places[index] = entry;
                        index
                    }
                    None => {
                        waiting.places.push(entry);
                        waiting.places.len() - 1
                    }
                });
            }
        }
        if late_at < waiting.looks_at {
            waiting.looks_at = late_at;
            drop(waiting);
            wake_at(late_at, Waker::from(self.answers.clone()));
        }
        Poll::Pending
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            let mut waiting = self.answers.waiting();
            waiting.places[index] = None;
            waiting.free.push(index);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn after(ms: u64) -> Moment {
        Moment::now().after(Duration::from_millis(ms))
    }

    #[tokio::test]
    async fn an_answer_counts_and_one_that_is_late_does_not() {
        let answers = Answers::new();
        assert_eq!(answers.until(std::pin::pin!(async { 7 }), Moment::now()).await, Ok(7), "it is there");
        for _ in 0..3 {
            let late_at = after(30);
            assert_eq!(answers.until(std::pin::pin!(std::future::pending::<()>()), late_at).await, Err(NoAnswer::Late));
            assert!(Moment::now() >= late_at);
        }
        // An earlier end than that which is waited for already.
        let later = tokio::spawn({
            let answers = answers.clone();
            async move { answers.until(std::pin::pin!(std::future::pending::<()>()), after(600_000)).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(answers.until(std::pin::pin!(std::future::pending::<()>()), after(30)).await, Err(NoAnswer::Late));
        answers.close();
        assert_eq!(later.await.expect("no panic"), Err(NoAnswer::Closed));
        assert_eq!(answers.waiting().places.iter().flatten().count(), 0, "all have left");
        assert_eq!(answers.until(std::pin::pin!(std::future::pending::<()>()), after(30)).await, Err(NoAnswer::Closed));
    }
}
