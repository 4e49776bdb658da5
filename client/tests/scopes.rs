//! `run` and `lead` in every form. Work whose lock is lost takes no further step, and its result is
//! no success.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rlock_client::{Builder, Client, Error, Quorum, blocking};
use tokio::sync::Notify;

use crate::support::Server;
use crate::{PATIENCE, url};

/// A clock that jumps ahead.
#[derive(Clone, Default)]
struct Ahead(Arc<AtomicU64>);

impl Ahead {
    fn builder(&self) -> Builder {
        let (began, ahead) = (Instant::now(), self.0.clone());
        Client::builder().clock(move || began.elapsed() + Duration::from_secs(ahead.load(Ordering::SeqCst)))
    }

    /// Every lease of these tests ends.
    fn jump(&self) {
        self.0.fetch_add(3600, Ordering::SeqCst);
    }
}

/// When the process goes on after a stall, its work and its loss are ready at the same time.
#[tokio::test]
async fn stalled_work_takes_no_further_step() {
    let (server, clock) = (Server::start(), Ahead::default());
    let client = clock.builder().connect(&url(&server)).await.expect("a server");
    for form in ["one", "several", "quorum"] {
        let (begins, wakes, has_stepped) = (Notify::new(), Notify::new(), AtomicBool::new(false));
        let work = async || {
            begins.notify_one();
            wakes.notified().await;
            has_stepped.store(true, Ordering::SeqCst);
        };
        let quorum = Quorum::new([client.clone()]).expect("a client");
        let running = async {
            match form {
                "one" => client.lock(form).run(async |_| work().await).await,
                "several" => client.multi_lock([form, "other"]).run(async |_| work().await).await,
                _ => quorum.lock(form).run(async |_| work().await).await,
            }
        };
        let stall = async {
            begins.notified().await;
            clock.jump();
            wakes.notify_one();
        };
        let (outcome, ()) = tokio::join!(running, stall);
        assert_eq!(outcome, Err(Error::Lost), "{form}");
        assert!(!has_stepped.load(Ordering::SeqCst), "{form}: the work went on under a lost lock");
    }
}

#[tokio::test]
async fn result_of_work_that_outlasts_its_lock_is_no_success() {
    let (server, clock) = (Server::start(), Ahead::default());
    let client = clock.builder().connect(&url(&server)).await.expect("a server");
    let quorum = Quorum::new([client.clone()]).expect("a client");
    assert_eq!(client.lock("one").run(async |_| clock.jump()).await, Err(Error::Lost));
    assert_eq!(client.multi_lock(["a", "b"]).run(async |_| clock.jump()).await, Err(Error::Lost));
    assert_eq!(quorum.lock("most").run(async |_| clock.jump()).await, Err(Error::Lost));
}

#[tokio::test]
async fn leader_that_stalls_is_elected_again() {
    let (server, clock) = (Server::start(), Ahead::default());
    let client = clock.builder().connect(&url(&server)).await.expect("a server");
    let (begins, wakes, lock) = (Notify::new(), Notify::new(), client.lock("leader"));
    let mut terms = 0;
    let leading = lock.lead(|guard| {
        terms += 1;
        let (term, begins, wakes, clock) = (terms, &begins, &wakes, &clock);
        async move {
            begins.notify_one();
            match term {
                1 => wakes.notified().await,
                2 => clock.jump(),
                _ => assert!(guard.is_held()),
            }
            term
        }
    });
    let stall = async {
        begins.notified().await;
        clock.jump();
        wakes.notify_one();
    };
    let (outcome, ()) = tokio::join!(tokio::time::timeout(PATIENCE, leading), stall);
    assert_eq!(outcome.expect("it is elected again"), Ok(3), "the terms in which the lock was lost have no result");
}

#[test]
fn result_of_a_thread_that_outlasts_its_lock_is_no_success() {
    let (server, clock) = (Server::start(), Ahead::default());
    let url = url(&server);
    let client = blocking::Client::connect_by(|_| clock.builder().connect(&url)).expect("a server");
    let quorum = blocking::Quorum::connect(&clock.builder(), &[&url]).expect("an address");
    assert_eq!(client.lock("one").run(|_| clock.jump()), Err(Error::Lost));
    assert_eq!(client.multi_lock(["a", "b"]).run(|_| clock.jump()), Err(Error::Lost));
    assert_eq!(quorum.lock("most").run(|_| clock.jump()), Err(Error::Lost));
}
