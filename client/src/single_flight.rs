//! What many want at the same time is done once for all of them: who comes while an attempt is under way waits for that one, and hears how it
//! ended. So those who wait for a silent server are told together, and not one after the other.
//!
//! An attempt goes on to its end at the home of its client, also if nobody waits for it any more. Whoever asks next finds what it has done.

use std::sync::{Mutex, PoisonError};

use redis::{ErrorKind, RedisError};
use tokio::sync::watch;

use crate::home::Home;

/// How an attempt has ended; `None` while it is under way.
type Outcome = Option<Result<(), RedisError>>;

/// Attempts at one thing, of which one is under way at most.
#[derive(Default)]
pub(crate) struct SingleFlight {
    last: Mutex<Option<watch::Receiver<Outcome>>>,
}

impl SingleFlight {
    /// Waits for the attempt that is under way, or else begins one. It may find that there is nothing left to be done.
    ///
    /// Cancel safety: when dropped, the attempt goes on.
    pub(crate) async fn join<F: Future<Output = Result<(), RedisError>> + Send + 'static>(
        &self,
        home: &Home,
        attempt: impl FnOnce() -> F,
    ) -> Result<(), RedisError> {
        let mut outcome = self.under_way(home, attempt);
        match outcome.wait_for(Option::is_some).await {
            Ok(outcome) => outcome.clone().unwrap_or(Ok(())),
            Err(_) => Err(RedisError::from((ErrorKind::Io, "the runtime of the client has ended"))),
        }
    }

    fn under_way<F: Future<Output = Result<(), RedisError>> + Send + 'static>(
        &self,
        home: &Home,
        attempt: impl FnOnce() -> F,
    ) -> watch::Receiver<Outcome> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // One that has ended with its runtime tells nothing any more.
        let is_under_way =
            |outcome: &&watch::Receiver<Outcome>| outcome.borrow().is_none() && outcome.has_changed().is_ok();
        if let Some(outcome) = last.as_ref().filter(is_under_way) {
            return outcome.clone();
        }
        let (teller, outcome) = watch::channel(None);
        let attempt = attempt();
        drop(home.start(async move { teller.send_replace(Some(attempt.await)) }));
        *last = Some(outcome.clone());
        outcome
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use crate::timer::within;

    fn refused() -> RedisError {
        RedisError::from((ErrorKind::Io, "refused"))
    }

    #[tokio::test]
    async fn those_who_wait_hear_of_one_attempt_and_who_comes_later_makes_another() {
        let (flight, home) = (Arc::<SingleFlight>::default(), Arc::new(Home::here()));
        let (begun, ends) = (Arc::<AtomicUsize>::default(), Arc::new(tokio::sync::Notify::new()));
        for round in 1..=2 {
            let waiting: Vec<_> = (0..10)
                .map(|_| {
                    let (flight, home, begun, ends) = (flight.clone(), home.clone(), begun.clone(), ends.clone());
                    let attempt = move || async move {
                        begun.fetch_add(1, Ordering::Relaxed);
                        ends.notified().await;
                        Err(refused())
                    };
                    tokio::spawn(async move { flight.join(&home, attempt).await })
                })
                .collect();
            while begun.load(Ordering::Relaxed) < round {
                tokio::task::yield_now().await;
            }
            ends.notify_one();
            for waiting in waiting {
                let heard = within(Duration::from_secs(20), waiting).await.expect("one attempt ends all of them");
                assert_eq!(heard.expect("no panic"), Err(refused()));
            }
            assert_eq!(begun.load(Ordering::Relaxed), round);
        }
    }

    #[tokio::test]
    async fn an_attempt_that_nobody_waits_for_any_more_goes_on() {
        let (flight, home) = (SingleFlight::default(), Home::here());
        let (ends, has_ended) = (Arc::new(tokio::sync::Notify::new()), Arc::<AtomicUsize>::default());
        let attempt = || {
            let (ends, has_ended) = (ends.clone(), has_ended.clone());
            async move {
                ends.notified().await;
                has_ended.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }
        };
        assert!(within(Duration::from_millis(10), flight.join(&home, attempt)).await.is_none());
        ends.notify_one();
        while has_ended.load(Ordering::Relaxed) == 0 {
            tokio::task::yield_now().await;
        }
    }

    #[test]
    fn without_its_home_an_attempt_fails() {
        let runtime = || tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let (gone, other) = (runtime(), runtime());
        let (flight, home) = (SingleFlight::default(), gone.block_on(async { Home::here() }));
        drop(gone);
        for _ in 0..2 {
            assert!(other.block_on(flight.join(&home, std::future::pending)).is_err());
        }
    }
}
