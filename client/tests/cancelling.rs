//! An acquisition that is dropped at any moment leaves nothing behind.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rlock_client::{Client, Error, Kind, Lock};

use crate::keeping::is_kept;
use crate::memory::live_bytes;
use crate::support::{Server, seed};
use crate::{command_stat, connect, connections, eventually, url};

/// The number of acquisitions per storm. `make client-cancel` runs the long form.
fn rounds() -> usize {
    std::env::var("RLOCK_CANCEL_ROUNDS").ok().map_or(600, |rounds| rounds.parse().expect("a number"))
}

/// The number of acquisitions in progress at once.
const AT_ONCE: usize = 20;

/// When a future is dropped. Timers have a resolution of 1 ms, and an acquisition takes many steps
/// within that; counting scheduler turns reaches the moments in between.
#[derive(Clone, Copy)]
enum Patience {
    Time(Duration),
    /// This many turns of the runtime.
    Turns(u32),
}

impl Patience {
    fn random(random: &mut StdRng) -> Patience {
        match random.random() {
            true => Patience::Turns(random.random_range(0..300)),
            false => Patience::Time(Duration::from_micros(random.random_range(0..8000))),
        }
    }

    /// Drops the work when the time is up.
    async fn with<T>(self, work: impl Future<Output = T>) -> Option<T> {
        let over = async {
            match self {
                Patience::Time(time) => tokio::time::sleep(time).await,
                Patience::Turns(turns) => {
                    for _ in 0..turns {
                        tokio::task::yield_now().await;
                    }
                }
            }
        };
        tokio::select! {
            biased;
            done = work => Some(done),
            () = over => None,
        }
    }
}

/// Acquires and is dropped at a random moment: before, during or after the wait, or while it holds.
async fn acquire_for<K: Kind>(lock: Lock<K>, patience: Patience, hold: Duration) {
    let hold = async {
        let guard = lock.acquire().await?;
        tokio::time::sleep(hold).await;
        guard.release().await
    };
    if let Some(outcome) = patience.with(hold).await {
        outcome.expect("a grant, and its release");
    }
}

/// Runs this many acquisitions. Afterwards nothing may be left on the server.
async fn storm(server: &Server, client: &Client, random: &mut StdRng, rounds: usize) {
    for _ in 0..rounds / AT_ONCE {
        let tasks: Vec<_> = (0..AT_ONCE)
            .map(|_| {
                let patience = Patience::random(random);
                let hold = Duration::from_micros(random.random_range(0..300));
                let key = format!("k{}", random.random_range(0..3));
                match random.random_range(0..3) {
                    0 => tokio::spawn(acquire_for(client.fair_lock(format!("fair-{key}")), patience, hold)),
                    1 => tokio::spawn(acquire_for(
                        client.lock(key).session_grace(Duration::from_secs(5)),
                        patience,
                        hold,
                    )),
                    _ => tokio::spawn(acquire_for(client.lock(key), patience, hold)),
                }
            })
            .collect();
        for task in tasks {
            task.await.expect("no panic");
        }
    }
    eventually(|| server.client().info_number("rlock_waiting") == 0).await;
    // This takes far less time than the lease, so every grant was released.
    eventually(|| server.client().call("DBSIZE") == 0).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_an_acquisition_leaves_no_waiter_hold_or_connection() {
    let server = Server::start();
    let client = connect(&server).await;
    storm(&server, &client, &mut StdRng::seed_from_u64(seed()), rounds()).await;
    assert!(connections(&server) <= 2);
    // All of the locks can still be acquired.
    for key in 0..3 {
        let lock = client.lock(format!("k{key}"));
        lock.acquire_timeout(Duration::from_secs(5)).await.expect("a free lock").release().await.expect("it was held");
        let fair = client.fair_lock(format!("fair-k{key}"));
        fair.acquire_timeout(Duration::from_secs(5)).await.expect("a free lock").release().await.expect("it was held");
    }
}

/// Buffers and maps grow now and then, and keep their size. A leak grows with every storm: even a
/// few bytes per acquisition exceed this.
const SLACK_BYTES_PER_STORM: isize = 256;

/// The total that may grow now and then: less than the buffers of a handful of connections.
const SLACK_BYTES: isize = 256 * 1024;

/// Everything runs on one thread, so the thread's allocations are those of the client, and a few of
/// the test.
#[tokio::test]
async fn dropping_acquisitions_leaks_no_memory_or_tasks() {
    let server = Server::start();
    let client = connect(&server).await;
    let mut random = StdRng::seed_from_u64(seed());
    let mut live = Vec::new();
    for _ in 0..8 {
        storm(&server, &client, &mut random, rounds()).await;
        // One task each runs the connection, checks that it lives, watches for its close, renews
        // holds, and watches for the end of the runtime. No other task is left.
        eventually(|| alive_tasks() <= 5).await;
        live.push(live_bytes());
    }
    eprintln!("live bytes after each storm: {live:?}");
    let mut growths: Vec<_> = live.windows(2).map(|pair| pair[1] - pair[0]).collect();
    growths.sort_unstable();
    assert!(growths[growths.len() / 2] <= SLACK_BYTES_PER_STORM, "memory grows with each storm: {live:?}");
    assert!(growths.iter().sum::<isize>() <= SLACK_BYTES, "{live:?}");
}

fn alive_tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

/// The release would be repeated until the lease ends.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_client_repeats_no_release_at_a_stopped_server() {
    let server = Server::start();
    let before = alive_tasks();
    let client = Client::builder().command_timeout(Duration::from_millis(300)).connect(&url(&server)).await;
    let client = client.expect("a server");
    let guard = client.lock("k").fixed_lease(Duration::from_secs(600)).acquire().await.expect("a free lock");
    tokio::task::block_in_place(|| {
        server.while_stopped(|| {
            tokio::runtime::Handle::current().block_on(async {
                drop(guard);
                let closed = client.close().await;
                assert!(matches!(closed, Err(Error::LeftBehind { requests: 1 })), "{closed:?}");
                eventually(|| alive_tasks() <= before).await;
            });
        });
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closing_client_returns_no_guard_for_an_attached_hold() {
    let server = Server::start();
    let client = connect(&server).await;
    let hold = client.lock("k").acquire().await.expect("a free lock").detach().await.expect("it is held");
    let asked = command_stat(&server, "RLOCK.RENEW", "calls");
    let lock = client.lock("k");
    let (attaching, closing) = tokio::task::block_in_place(|| {
        let mut begun = None;
        server.while_stopped(|| {
            let runtime = tokio::runtime::Handle::current();
            let attaching = runtime.spawn(async move { lock.attach(&hold).await.map(drop) });
            // Time itself: the request is sent within it. If it is not, it is refused at once.
            std::thread::sleep(Duration::from_millis(200));
            let closing = runtime.spawn(async move { client.close().await });
            std::thread::sleep(Duration::from_millis(200));
            begun = Some((attaching, closing));
        });
        begun.expect("both have begun")
    });
    let attached = attaching.await.expect("no panic");
    assert!(matches!(attached, Err(Error::Closed)), "{attached:?}");
    closing.await.expect("no panic").expect("the server has answered");
    assert!(command_stat(&server, "RLOCK.RENEW", "calls") > asked, "the request was sent before the client closed");
    eventually(|| server.client().call("EXISTS k") == 0).await;
}

#[tokio::test]
async fn dropped_wait_leaves_the_queue_and_keeps_its_connection() {
    let server = Server::start();
    let client = connect(&server).await;
    let guard = client.lock("k").acquire().await.expect("a free lock");
    for _ in 0..3 {
        let waiter = tokio::spawn({
            let lock = client.lock("k");
            async move { lock.acquire().await }
        });
        eventually(|| server.client().waiting_owners("k").len() == 1).await;
        waiter.abort();
        eventually(|| server.client().waiting_owners("k").is_empty()).await;
    }
    assert!(connections(&server) <= 2);
    guard.release().await.expect("it was held");
    client.close().await.expect("nothing is left to be done");
    assert_eq!(server.client().call("EXISTS k"), 0);
    assert_eq!(command_stat(&server, "RLOCK.ACQUIRE", "calls"), 4, "no request is repeated after its wait has ended");
}

#[tokio::test]
async fn dropped_clients_leave_no_tasks() {
    let server = Server::start();
    let before = alive_tasks();
    for _ in 0..10 {
        let client = connect(&server).await;
        let lock = client.lock("k").session_grace(Duration::from_secs(60));
        lock.acquire().await.expect("a free lock").release().await.expect("it was held");
    }
    eventually(|| alive_tasks() <= before).await;
}

/// Otherwise the server would keep the place of the dropped waiter for its grace.
#[tokio::test]
async fn dropped_wait_for_a_fair_lock_leaves_the_queue_at_once() {
    let server = Server::with(&["rlock.fair-grace-ms 60000"]);
    let client = connect(&server).await;
    let guard = client.fair_lock("k").acquire().await.expect("a free lock");
    for _ in 0..3 {
        let waiter = tokio::spawn({
            let lock = client.fair_lock("k");
            async move { lock.acquire().await }
        });
        eventually(|| server.client().places("k").len() == 1).await;
        waiter.abort();
        eventually(|| server.client().places("k").is_empty()).await;
    }
    assert!(connections(&server) <= 2);
    guard.release().await.expect("it was held");
    assert_eq!(server.client().call("EXISTS k"), 0);
}

#[tokio::test]
async fn dropped_release_finishes_in_the_background() {
    let server = Server::start();
    let client = connect(&server).await;
    for turns in 0..300 {
        let guard = client.lock("k").acquire_timeout(Duration::from_secs(5)).await.expect("a free lock");
        if let Some(outcome) = Patience::Turns(turns).with(guard.release()).await {
            outcome.expect("it was held");
        }
    }
    eventually(|| server.client().call("EXISTS k") == 0).await;
}

#[tokio::test]
async fn dropped_release_and_keep_finishes_in_the_background() {
    let server = Server::start();
    let client = connect(&server).await;
    for turns in 0..100 {
        let guard = client.lock("k").acquire_timeout(Duration::from_secs(5)).await.expect("a free lock");
        if let Some(outcome) = Patience::Turns(turns).with(guard.release_and_keep(Duration::from_secs(600))).await {
            outcome.expect("it was held");
        }
        eventually(|| is_kept(&server, "k")).await;
        assert_eq!(server.client().call("RLOCK.FORCERELEASE k"), 1);
    }
}

#[test]
fn hold_outlives_its_runtime_by_at_most_the_lease() {
    let server = Server::start();
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let guard = runtime.block_on(async {
        let client = connect(&server).await;
        client.lock("k").fixed_lease(Duration::from_secs(1)).acquire().await.expect("a free lock")
    });
    drop(runtime);
    drop(guard);
    crate::support::eventually(Duration::from_secs(5), || server.client().holder("k").is_none());
}
