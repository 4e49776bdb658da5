//! Who waits for an answer over a connection, for how long, and the end of the connection for all of them.
//!
//! Answers come in the order of their questions. So one that does not come is late only when no other one has come for as long either: while
//! there are answers, it is on its way, however many questions were asked before it. Messages do not count, they follow no question.
//!
//! Each message, and each command that is asked alone, comes by here, so it costs little: no timer for each, but one for all, which goes off
//! when the first of them may be due.

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::clock::Moment;
use crate::timer::wake_at;

/// Those who wait for answers over one connection.
pub(crate) struct Answers {
    /// The same as in `closed`, and cheaper to look at.
    is_closed: AtomicBool,
    closed: CancellationToken,
    /// When the last answer came, in microseconds since the beginning.
    last_answer_us: AtomicU64,
    beginning: Moment,
    waiting: Mutex<Waiting>,
}

struct Waiting {
    places: Vec<Option<(Patience, Waker)>>,
    free: Vec<usize>,
    /// When it is looked next who has waited for too long.
    looks_at: Moment,
}

/// How long somebody waits.
#[derive(Clone, Copy)]
pub(crate) struct Patience {
    pub(crate) since: Moment,
    pub(crate) span: Duration,
}

impl Patience {
    /// When it is over if no answer comes until then.
    fn ends(self, last_answer: Moment) -> Moment {
        self.since.max(last_answer).after(self.span)
    }
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
        let (last_answer_us, beginning) = (AtomicU64::new(0), Moment::now());
        Arc::new(Self { is_closed, closed, last_answer_us, beginning, waiting: Mutex::new(waiting) })
    }

    /// An answer has come, or several.
    pub(crate) fn note(&self) {
        let since = self.beginning.until(Moment::now());
        self.last_answer_us.store(u64::try_from(since.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    fn last_answer(&self) -> Moment {
        self.beginning.after(Duration::from_micros(self.last_answer_us.load(Ordering::Relaxed)))
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

    /// Waits for an answer until it is late, or until the connection is closed. An answer that is there counts in any case. Whoever gets it
    /// [notes](Self::note) it.
    pub(crate) async fn until<T>(
        self: &Arc<Self>,
        mut answer: Pin<&mut impl Future<Output = T>>,
        patience: Patience,
    ) -> Result<T, NoAnswer> {
        let mut place = Place { answers: self.clone(), index: None };
        std::future::poll_fn(|context| match answer.as_mut().poll(context) {
            Poll::Ready(answer) => Poll::Ready(Ok(answer)),
            Poll::Pending => place.wait(context, patience).map(Err),
        })
        .await
    }

    /// Has somebody woken who waits: when its answer is late, or the connection is closed. `None` if it is closed already.
    pub(crate) fn watch(self: &Arc<Self>, patience: Patience, waker: Waker) -> Option<Place> {
        let mut waiting = self.waiting();
        if self.is_closed() {
            return None;
        }
        let index = Some(waiting.add(patience, waker));
        self.look_not_later_than(patience.ends(self.last_answer()), waiting);
        Some(Place { answers: self.clone(), index })
    }

    fn look_not_later_than(self: &Arc<Self>, late_at: Moment, mut waiting: MutexGuard<'_, Waiting>) {
        if late_at < waiting.looks_at {
            waiting.looks_at = late_at;
            drop(waiting);
            wake_at(late_at, Waker::from(self.clone()));
        }
    }

    /// Wakes those who have waited for too long, and comes back when others may have.
    fn look(self: &Arc<Self>) {
        let (now, last_answer) = (Moment::now(), self.last_answer());
        let mut late = Vec::new();
        let mut waiting = self.waiting();
        // There is another alarm for that, which was set later.
        if now < waiting.looks_at {
            return;
        }
        let mut first = Moment::NEVER;
        for (patience, waker) in waiting.places.iter().flatten() {
            let late_at = patience.ends(last_answer);
            if late_at <= now {
                late.push(waker.clone());
            } else {
                first = first.min(late_at);
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
pub(crate) struct Place {
    answers: Arc<Answers>,
    index: Option<usize>,
}

impl Place {
    fn wait(&mut self, context: &Context<'_>, patience: Patience) -> Poll<NoAnswer> {
        let mut waiting = self.answers.waiting();
        // Under the lock: whoever closes wakes those who are there after that.
        if self.answers.is_closed() {
            return Poll::Ready(NoAnswer::Closed);
        }
        let late_at = patience.ends(self.answers.last_answer());
        // At first it has just been asked.
        if self.index.is_some() && Moment::now() >= late_at {
            return Poll::Ready(NoAnswer::Late);
        }
        match self.index {
            Some(index) => match &mut waiting.places[index] {
                Some((_, waker)) => waker.clone_from(context.waker()),
                empty => *empty = Some((patience, context.waker().clone())),
            },
            None => self.index = Some(waiting.add(patience, context.waker().clone())),
        }
        self.answers.look_not_later_than(late_at, waiting);
        Poll::Pending
    }
}

impl Waiting {
    fn add(&mut self, patience: Patience, waker: Waker) -> usize {
        let entry = Some((patience, waker));
        match self.free.pop() {
            Some(index) => {
                self.places[index] = entry;
                index
            }
            None => {
                self.places.push(entry);
                self.places.len() - 1
            }
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(index) = self.index {
            let mut waiting = self.answers.waiting();
            let left = waiting.places[index].take();
            waiting.free.push(index);
            drop(waiting);
            // Not under the lock: who was to be woken may go with it.
            drop(left);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(30);
    const LONG: Duration = Duration::from_mins(10);

    async fn nothing(answers: &Arc<Answers>, patience: Duration) -> NoAnswer {
        let patience = Patience { since: Moment::now(), span: patience };
        answers.until(std::pin::pin!(std::future::pending::<()>()), patience).await.expect_err("there is none")
    }

    async fn something(answers: &Arc<Answers>) {
        let answer = async {
            answers.note();
            7
        };
        let patience = Patience { since: Moment::now(), span: Duration::ZERO };
        assert_eq!(answers.until(std::pin::pin!(answer), patience).await, Ok(7), "it is there");
    }

    #[tokio::test]
    async fn an_answer_counts_and_one_that_is_late_does_not() {
        let answers = Answers::new();
        something(&answers).await;
        for _ in 0..3 {
            let late_at = Moment::now().after(SHORT);
            assert_eq!(nothing(&answers, SHORT).await, NoAnswer::Late);
            assert!(Moment::now() >= late_at);
        }
        // An earlier end than that which is waited for already.
        let later = tokio::spawn({
            let answers = answers.clone();
            async move { nothing(&answers, LONG).await }
        });
        tokio::task::yield_now().await;
        assert_eq!(nothing(&answers, SHORT).await, NoAnswer::Late);
        answers.close();
        assert_eq!(later.await.expect("no panic"), NoAnswer::Closed);
        assert_eq!(answers.waiting().places.iter().flatten().count(), 0, "all have left");
        assert_eq!(nothing(&answers, SHORT).await, NoAnswer::Closed);
    }

    #[tokio::test]
    async fn nothing_is_late_while_other_answers_come() {
        let answers = Answers::new();
        let patience = Duration::from_millis(500);
        let waiting = tokio::spawn({
            let answers = answers.clone();
            async move { nothing(&answers, patience).await }
        });
        let began = Moment::now();
        while began.until(Moment::now()) < patience * 2 {
            crate::timer::sleep(SHORT).await;
            something(&answers).await;
        }
        assert!(!waiting.is_finished());
        let last = answers.last_answer();
        assert_eq!(waiting.await.expect("no panic"), NoAnswer::Late);
        assert!(Moment::now() >= last.after(patience));
    }

    #[test]
    fn an_alarm_looks_when_its_moment_has_come_and_another_one_is_set_only_for_somebody() {
        let answers = Answers::new();
        // Often enough for the clock to read the same twice.
        for _ in 0..1000 {
            answers.waiting().looks_at = Moment::now();
            answers.look();
            assert_eq!(answers.waiting().looks_at, Moment::NEVER, "nobody waits");
        }
        let endless = Patience { since: Moment::now(), span: Duration::MAX };
        let place = answers.watch(endless, Waker::noop().clone());
        assert_eq!(Arc::strong_count(&answers), 2, "this one and the place: there is no alarm");
        drop(place);
        let later = Moment::now().after(LONG);
        answers.waiting().looks_at = later;
        answers.look();
        assert_eq!(answers.waiting().looks_at, later, "that is another alarm's");
    }
}
