//! `run` and `lead` in every form. Work whose lock is lost takes no further step, and its result is
//! no success.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rlock_client::{Builder, Client, Error, Kind, Lock, Quorum, blocking};
use tokio::sync::Notify;

use crate::support::Server;
use crate::{PATIENCE, connect, eventually, url};

/// A clock that jumps ahead.
#[derive(Clone, Default)]
pub struct Ahead(Arc<AtomicU64>);

impl Ahead {
    pub fn builder(&self) -> Builder {
        let (began, ahead) = (Instant::now(), self.0.clone());
        Client::builder().clock(move || began.elapsed() + Duration::from_secs(ahead.load(Ordering::SeqCst)))
    }

    /// Every lease of these tests ends.
    pub fn jump(&self) {
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

/// Ends the hold of a key in the ways that its owner cannot notice before the release.
const DEEDS: [&str; 3] = ["SET k text", "DEL k", "RLOCK.FORCERELEASE k"];

#[tokio::test]
async fn release_of_an_overwritten_key_reports_the_loss() {
    async fn check<K: Kind>(server: &Server, lock: Lock<K>, kind: &str) {
        for deed in DEEDS {
            let guard = lock.acquire().await.expect("a free lock");
            server.client().call(deed);
            assert_eq!(guard.release().await, Err(Error::Lost), "{kind}, {deed}");
            server.client().call("DEL k");
            let done = lock.run(async |_| drop(server.client().call(deed))).await;
            assert_eq!(done, Err(Error::Lost), "{kind}, {deed}: `run`");
            server.client().call("DEL k");
        }
    }
    let server = Server::start();
    let client = connect(&server).await;
    check(&server, client.lock("k"), "mutex").await;
    check(&server, client.fair_lock("k"), "fair").await;
    check(&server, client.rw_lock("k").read(), "read").await;
    check(&server, client.rw_lock("k").write(), "write").await;
    for deed in &DEEDS[..2] {
        client.semaphore("k").init(2).await.expect("an answer");
        let guard = client.semaphore("k").permits(1).acquire().await.expect("free");
        server.client().call(*deed);
        assert_eq!(guard.release().await, Err(Error::Lost), "semaphore, {deed}");
        server.client().call("DEL k");
    }
    for deed in DEEDS {
        let guard = client.multi_lock(["j", "k", "l"]).acquire().await.expect("free");
        server.client().call(deed);
        assert_eq!(guard.release().await, Err(Error::Lost), "several, {deed}");
        eventually(|| server.client().info_number("rlock_held") == 0).await;
        server.client().call("DEL k");
    }
}

/// One of the holds is lost, and the server of the other refuses the release.
#[tokio::test]
async fn loss_of_one_of_several_holds_comes_before_other_failures() {
    for lost in [0, 1] {
        let servers = [Server::start(), Server::start()];
        let (one, other) = (connect(&servers[0]).await, connect(&servers[1]).await);
        let guard = one.multi_lock(["k"]).and(&other, ["k"]).acquire().await.expect("free");
        servers[lost].client().call("DEL k");
        servers[1 - lost].client().call("ACL SETUSER default resetkeys ~other");
        assert_eq!(guard.release().await, Err(Error::Lost));
    }
}

#[test]
fn threads_learn_of_an_overwritten_key() {
    let server = Server::start();
    let client = blocking::Client::connect(&url(&server)).expect("a server");
    for deed in DEEDS {
        let done = client.lock("k").run(|_| drop(server.client().call(deed)));
        assert_eq!(done, Err(Error::Lost), "{deed}");
        server.client().call("DEL k");
    }
}
