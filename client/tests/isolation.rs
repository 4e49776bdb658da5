//! A fault of one hold, application callback or slot does not affect the others.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use rlock_client::kinds::Mutex;
use rlock_client::{Client, Error, Guard, Metrics, blocking};

use crate::cluster::{ON_FIRST, begin_to_move_slot_of_first, cluster};
use crate::support::{Server, Stopwatch};
use crate::{PATIENCE, claimed, connect, eventually, url};

/// The ids of the connections that carry commands.
fn command_connections(server: &Server) -> Vec<String> {
    let list = server.client().call("CLIENT LIST TYPE normal").text();
    let of_client = list.lines().filter(|line| line.contains("cmd=RLOCK."));
    let ids: Vec<_> = of_client.filter_map(|line| line.split(' ').next().map(str::to_owned)).collect();
    assert!(!ids.is_empty(), "{list}");
    ids
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn run_reports_a_loss_at_once_while_the_server_is_stopped() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.lock("k").fixed_lease(Duration::from_millis(500));
    tokio::task::block_in_place(|| {
        let runtime = tokio::runtime::Handle::current();
        let (started, starts) = std::sync::mpsc::channel();
        let running = runtime.spawn(async move {
            lock.run(async |_| {
                started.send(()).expect("the test is waiting");
                std::future::pending::<()>().await;
            })
            .await
        });
        starts.recv().expect("it is granted");
        server.while_stopped(|| {
            let watch = Stopwatch::start();
            let outcome = runtime.block_on(tokio::time::timeout(PATIENCE, running));
            assert!(matches!(outcome, Ok(Ok(Err(Error::Lost)))), "{outcome:?}");
            watch.assert_took_ms(0..1500, "the lease, without waiting for a release");
        });
    });
}

#[tokio::test]
async fn run_returns_the_result_even_if_the_release_fails() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.lock("k");
    let result = lock.run(async |_| {
        assert_eq!(server.client().call("ACL SETUSER default resetkeys ~other"), "OK");
        42
    });
    assert_eq!(result.await.expect("run returns the result"), 42);
}

/// A hold with a short lease soon tries another connection. Holds with a session on the present
/// connection keep it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn short_lease_does_not_end_the_sessions_of_other_holds() {
    let server = Server::start();
    let client = connect(&server).await;
    let bound = client.lock("bound").session_grace(Duration::from_secs(60)).acquire().await.expect("a free lock");
    claimed(&bound).await;
    let before = command_connections(&server);
    let short = client.lock("short").lease(Duration::from_millis(600)).acquire().await.expect("a free lock");
    tokio::task::block_in_place(|| server.while_stopped(|| std::thread::sleep(Duration::from_millis(1200))));
    short.lost().await;
    // Time itself: the server handles closed connections within it.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert!(bound.is_held());
    let after = command_connections(&server);
    assert!(before.iter().all(|id| after.contains(id)), "{before:?} became {after:?}");
    bound.release().await.expect("it was held");
}

struct Panics;

impl Metrics for Panics {
    fn lost(&self, _: &[u8]) {
        panic!("the application's own fault");
    }
}

#[tokio::test]
async fn panic_in_metrics_does_not_stop_renewals() {
    let server = Server::start();
    let client = Client::builder().metrics(Arc::new(Panics)).connect(&url(&server)).await.expect("a server");
    let kept = client.lock("kept").lease(Duration::from_millis(900)).acquire().await.expect("a free lock");
    let lost = client.lock("lost").fixed_lease(Duration::from_millis(300)).acquire().await.expect("a free lock");
    lost.lost().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(kept.is_held());
    kept.release().await.expect("it was held");
}

/// Logs how long the hold of a failed renewal is still valid.
#[derive(Default)]
struct Asks {
    guard: OnceLock<Guard<Mutex>>,
    answer: OnceLock<Duration>,
}

impl Metrics for Asks {
    fn renewal_failed(&self, _: &[u8], _: &Error) {
        let _ = self.answer.set(self.guard.get().expect("it is held").valid_for());
    }
}

#[test]
fn metrics_may_ask_the_guard() {
    let server = Server::start();
    let metrics = Arc::<Asks>::default();
    let home = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let guard = home.block_on(async {
        let client = Client::builder().metrics(metrics.clone()).connect(&url(&server)).await.expect("a server");
        client.lock("k").lease(Duration::from_secs(3)).acquire().await.expect("a free lock")
    });
    metrics.guard.set(guard).expect("it is set once");
    server.client().call("CONFIG SET min-replicas-to-write 1");
    let watch = Stopwatch::start();
    while metrics.answer.get().is_none() && watch.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(2));
    }
    // Even if a thread hangs.
    home.shutdown_background();
    assert!(metrics.answer.get().is_some());
}

/// A request that waits in a slot that moves loses its channel, but no hold loses the connection to
/// which its session is bound.
#[tokio::test]
async fn moving_slot_does_not_close_the_connection_of_other_slots() {
    let nodes = cluster().await;
    let client = crate::cluster::connect(&nodes[0]).await;
    let bound = client.lock("{b}other").session_grace(Duration::from_secs(60));
    // A key in another slot of the same node: CRC16 of "c" is 7365.
    let bound = match bound.acquire().await {
        Ok(guard) => guard,
        Err(error) => panic!("{error}"),
    };
    let elsewhere = client.lock("{c}").session_grace(Duration::from_secs(60)).acquire().await.expect("free");
    let held = client.lock(ON_FIRST).acquire().await.expect("free");
    let waiting = tokio::spawn({
        let lock = client.lock(ON_FIRST);
        async move { lock.acquire().await.map(drop) }
    });
    eventually(|| nodes[0].client().waiting_owners(ON_FIRST).len() == 1).await;
    let before = command_connections(&nodes[0]);
    bound.release().await.expect("it was held");
    let (slot, to) = begin_to_move_slot_of_first(&nodes, ON_FIRST);
    for node in [&nodes[1], &nodes[0]] {
        assert_eq!(node.client().call(format!("CLUSTER SETSLOT {slot} NODE {to}")), "OK");
    }
    eventually(|| nodes[1].client().waiting_owners(ON_FIRST).len() == 1).await;
    assert!(elsewhere.is_held());
    assert_eq!(command_connections(&nodes[0]), before);
    drop(held);
    waiting.await.expect("no panic").expect("a grant");
}

#[test]
fn blocking_guards_dropped_together_wait_together() {
    fn is_sync<T: Sync>(_: &T) {}
    let server = Server::start();
    let client = blocking::Client::connect(&url(&server)).expect("a server");
    let guards: Vec<_> = (0..10).map(|number| client.lock(format!("k{number}")).acquire().expect("free")).collect();
    is_sync(&guards);
    server.while_stopped(|| {
        let watch = Stopwatch::start();
        drop(guards);
        watch.assert_took_ms(4000..9000, "the drop of ten guards");
    });
    // The releases go on after the drop.
    let watch = Stopwatch::start();
    while server.client().call("DBSIZE") != 0 {
        watch.assert_took_ms(0..20_000, "the releases after the server resumed");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// An acquisition that was given up while the server was stopped is settled once the server
/// resumes. At most 1,000 of these are pending.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_most_a_thousand_acquisitions_are_settled_at_a_time() {
    let server = Server::start();
    let client = connect(&server).await;
    client.lock("k").acquire().await.expect("free").release().await.expect("it was held");
    tokio::task::block_in_place(|| {
        server.while_stopped(|| {
            tokio::runtime::Handle::current().block_on(async {
                for number in 0..1500 {
                    let lock = client.lock(format!("k{number}")).lease(Duration::from_secs(3));
                    drop(tokio::time::timeout(Duration::from_micros(500), lock.try_acquire()).await);
                }
            });
            let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
            assert!(tasks <= 1020, "{tasks} tasks");
        });
    });
    eventually(|| server.client().call("DBSIZE") == 0).await;
}
