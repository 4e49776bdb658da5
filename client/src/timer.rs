//! Waking at a moment, without a runtime: one thread of the process sleeps until the next moment for which somebody waits.
//!
//! A hold has to end by the clock also when the runtime that renewed it has ended, and for whoever waits outside of any runtime. So nothing
//! in this crate sleeps by tokio's clock, which ends with its runtime, may be paused, and stands still while the machine is suspended.

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use crate::clock::Moment;

/// The thread's own sleep stands still during a suspend of the machine, so it looks at the clock this often.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// Who is to be woken in one process.
struct Alarms {
    process: u32,
    present: Mutex<Present>,
    earlier: Condvar,
    /// Those of a process that fork(2) has made of this one. It has copies of what waits here and none of the threads: nobody can be woken, nor be told
    /// that nobody waits, and whoever had locked `present` will never unlock it there.
    child: OnceLock<Box<Self>>,
}

struct Present {
    /// Who is to be woken, by the moment; the number tells those of one moment apart.
    wakers: BTreeMap<(Moment, u64), Waker>,
    /// When the thread looks again by itself; for ever away while nobody waits.
    looks_again_at: Moment,
    has_thread: bool,
}

static ALARMS: OnceLock<Alarms> = OnceLock::new();

/// Goes on in a child: copies of sleepers may be dropped there, and are not to remove the wakers of others.
static NEXT_NUMBER: AtomicU64 = AtomicU64::new(0);

fn next_number() -> u64 {
    NEXT_NUMBER.fetch_add(1, Ordering::Relaxed)
}

/// Those of this process.
fn alarms() -> &'static Alarms {
    let process = std::process::id();
    let mut alarms = ALARMS.get_or_init(|| Alarms::of(process));
    while alarms.process != process {
        alarms = alarms.child.get_or_init(|| Box::new(Alarms::of(process)));
    }
    alarms
}

impl Alarms {
    fn of(process: u32) -> Self {
        let present = Present { wakers: BTreeMap::new(), looks_again_at: Moment::NEVER, has_thread: false };
        Self { process, present: Mutex::new(present), earlier: Condvar::new(), child: OnceLock::new() }
    }

    fn present(&self) -> MutexGuard<'_, Present> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&'static self, at: (Moment, u64), waker: Waker) {
        let mut present = self.present();
        if !present.has_thread {
            match std::thread::Builder::new().name("rlock-timer".to_owned()).spawn(|| self.wake_in_time()) {
                Ok(_) => present.has_thread = true,
                Err(error) => {
                    tracing::error!(%error, "no thread for timers: nothing is renewed in time, and no loss is told of");
                }
            }
        }
        let before = present.wakers.insert(at, waker);
        if at.0 < present.looks_again_at {
            self.earlier.notify_one();
        }
        drop(present);
        // A waker may be the last that a task is known by, and there may be sleepers in that.
        drop(before);
    }

    /// The thread.
    fn wake_in_time(&self) {
        let mut present = self.present();
        loop {
            let due = present.take_due(Moment::now());
            if !due.is_empty() {
                drop(present);
                due.into_iter().for_each(Waker::wake);
                present = self.present();
                continue;
            }
            let now = Moment::now();
            present = match present.wakers.first_key_value().map(|((first, _), _)| *first) {
                Some(first) => {
                    present.looks_again_at = first.min(now.after(LONGEST_NAP));
                    let nap = now.until(present.looks_again_at);
                    self.earlier.wait_timeout(present, nap).unwrap_or_else(PoisonError::into_inner).0
                }
                None => {
                    present.looks_again_at = Moment::NEVER;
                    self.earlier.wait(present).unwrap_or_else(PoisonError::into_inner)
                }
            };
        }
    }
}

impl Present {
    fn take_due(&mut self, now: Moment) -> Vec<Waker> {
        let later = self.wakers.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.wakers, later).into_values().collect()
    }
}

/// Wakes at a moment, once. The thread of the timers does, so it must not take long.
pub(crate) fn wake_at(at: Moment, waker: Waker) {
    alarms().set((at, next_number()), waker);
}

/// Resolves at a moment. Each look at it reads the clock.
pub(crate) struct Sleep {
    until: Moment,
    number: Option<u64>,
}

impl Future for Sleep {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Most waits have no end, and pass here again and again.
        if self.until == Moment::NEVER {
            return Poll::Pending;
        }
        if Moment::now() >= self.until {
            return Poll::Ready(());
        }
        let until = self.until;
        let number = *self.number.get_or_insert_with(next_number);
        alarms().set((until, number), context.waker().clone());
        Poll::Pending
    }
}

impl Drop for Sleep {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            let waker = alarms().present().wakers.remove(&(self.until, number));
            // As in `set`: not while it is locked.
            drop(waker);
        }
    }
}

/// Sleeps until a moment.
pub(crate) fn sleep_until(until: Moment) -> Sleep {
    Sleep { until, number: None }
}

/// Sleeps until a moment if there is one, else for ever.
pub(crate) fn sleep_until_some(until: Option<Moment>) -> Sleep {
    sleep_until(until.unwrap_or(Moment::NEVER))
}

/// Sleeps for a while.
pub(crate) fn sleep(span: Duration) -> Sleep {
    sleep_until(Moment::now().after(span))
}

/// What comes of some work within a span; `None` if it takes longer. The work is on the heap, so that futures in futures stay small.
pub(crate) fn within<T, F: Future<Output = T>>(span: Duration, work: F) -> impl Future<Output = Option<T>> + use<T, F> {
    let (mut work, mut over) = (Box::pin(work), sleep(span));
    std::future::poll_fn(move |context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => Pin::new(&mut over).poll(context).map(|()| None),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;

    #[tokio::test]
    async fn sleepers_wake_in_the_order_of_their_moments_and_not_before() {
        let start = Moment::now();
        let (ended, mut ends) = tokio::sync::mpsc::unbounded_channel();
        for ms in [90, 30, 60] {
            let ended = ended.clone();
            tokio::spawn(async move {
                sleep(Duration::from_millis(ms)).await;
                ended.send((ms, start.until(Moment::now()))).expect("somebody listens");
            });
        }
        for ms in [30, 60, 90] {
            let (which, after) = ends.recv().await.expect("all come");
            assert_eq!(which, ms);
            assert!(after >= Duration::from_millis(ms));
        }
    }

    #[tokio::test]
    async fn work_that_takes_too_long_is_given_up_and_forgotten() {
        let given_up = within(Duration::from_millis(20), std::future::pending::<()>()).await;
        assert_eq!(given_up, None);
        let later = async {
            tokio::task::yield_now().await;
            7
        };
        assert_eq!(within(Duration::from_hours(1), later).await, Some(7));
        let far = Moment::now().after(Duration::from_mins(30));
        assert!(alarms().present().wakers.keys().all(|(moment, _)| *moment < far), "it waits for nothing any more");
    }

    #[tokio::test]
    async fn all_wake_who_sleep_until_the_same_moment() {
        let at = Moment::now().after(Duration::from_millis(50));
        let sleepers: Vec<_> = (0..3).map(|_| tokio::spawn(sleep_until(at))).collect();
        for sleeper in sleepers {
            let woken = within(Duration::from_secs(10), sleeper).await;
            woken.expect("nobody was forgotten").expect("no panic");
        }
    }

    #[test]
    fn all_are_woken_who_are_to_be_woken_at_the_same_moment() {
        #[derive(Default)]
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let count = Arc::<Count>::default();
        let at = Moment::now().after(Duration::from_millis(50));
        for _ in 0..3 {
            wake_at(at, Waker::from(count.clone()));
        }
        let patience = Moment::now().after(Duration::from_secs(10));
        while count.0.load(Ordering::Relaxed) < 3 {
            assert!(Moment::now() < patience, "somebody was forgotten");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}
