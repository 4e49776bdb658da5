//! Lost connections, and servers that restart.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rlock_client::{Client, Error};
use tokio::runtime::Handle;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use crate::proxy::{Fate, Proxy, cuts_all};
use crate::support::{Reply, Server, Stopwatch, free_port};
use crate::{PATIENCE, command_stat, connect, connections, eventually, kill_connections, url};

#[tokio::test]
async fn waiter_with_a_killed_connection_gets_the_lock() {
    let server = Server::start();
    let client = connect(&server).await;
    for kind in ["mutex", "fair"] {
        server.client().call(format!("{}.ACQUIRE {kind} other", if kind == "fair" { "RFAIRLOCK" } else { "RLOCK" }));
        let waiter = tokio::spawn({
            let client = client.clone();
            async move {
                match kind {
                    "fair" => client.fair_lock(kind).acquire().await.expect("a grant").release().await,
                    _ => client.lock(kind).acquire().await.expect("a grant").release().await,
                }
            }
        });
        for _ in 0..3 {
            eventually(|| server.client().info_number("rlock_waiting") == 1).await;
            kill_connections(&server);
        }
        eventually(|| server.client().info_number("rlock_waiting") == 1).await;
        server.client().call(format!("{}.RELEASE {kind} other", if kind == "fair" { "RFAIRLOCK" } else { "RLOCK" }));
        waiter.await.expect("no panic").expect("it was held");
        assert_eq!(server.client().call(format!("EXISTS {kind}")), 0);
    }
}

/// The pause also delays the request that checks whether the server is alive, so the client
/// replaces the connection meanwhile.
#[tokio::test]
async fn waiter_outlasts_a_write_pause() {
    let server = Server::start();
    let mut operator = server.client();
    let options = Client::builder().ping_after(Duration::from_millis(20)).connect_timeout(Duration::from_millis(300));
    let client = options.connect(&url(&server)).await.expect("a server");
    operator.acquire("k other PX 600000");
    let waiter = tokio::spawn(async move { client.lock("k").acquire().await });
    eventually(|| operator.waiting_owners("k").len() == 1).await;
    let connected = operator.info_number("total_connections_received");
    operator.call("CLIENT PAUSE 60000 WRITE");
    eventually(|| operator.info_number("total_connections_received") > connected).await;
    operator.call("CLIENT UNPAUSE");
    assert_eq!(operator.call("RLOCK.RELEASE k other"), 0);
    let guard = tokio::time::timeout(PATIENCE, waiter).await.expect("in time").expect("no panic").expect("a grant");
    guard.release().await.expect("it was held");
    eventually(|| operator.is_free("k")).await;
}

#[tokio::test]
async fn wait_over_a_new_connection_requests_the_remaining_time() {
    let server = Server::start();
    // The slow log now records each command with its arguments.
    server.client().call("CONFIG SET slowlog-log-slower-than 0");
    server.client().call("CONFIG SET slowlog-max-len 1000");
    let client = connect(&server).await;
    server.client().call("RLOCK.ACQUIRE k other");
    let watch = Stopwatch::start();
    let waiter = tokio::spawn(async move { client.lock("k").acquire_timeout(Duration::from_secs(3)).await });
    eventually(|| server.client().info_number("rlock_waiting") == 1).await;
    // Time itself: a third of the wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    kill_connections(&server);
    let outcome = waiter.await.expect("no panic");
    assert!(watch.elapsed() >= Duration::from_secs(3), "the wait lasts its full time: {:?}", watch.elapsed());
    assert!(matches!(outcome, Err(Error::Timeout)), "{outcome:?}");
    let asked_ms = waits_asked_for_ms(&server);
    assert!(asked_ms.len() >= 2, "the request was sent again: {asked_ms:?}");
    assert!(asked_ms.is_sorted_by(|one, next| one >= next), "the remaining time never grows: {asked_ms:?}");
    assert!(asked_ms[0] <= 3000 && *asked_ms.last().expect("some") <= 2000, "1 s of 3 s had passed: {asked_ms:?}");
}

/// The values of BLOCK in the commands that the server has recorded, oldest first.
fn waits_asked_for_ms(server: &Server) -> Vec<u64> {
    let records = server.client().call("SLOWLOG GET 1000");
    let asked = |record: &Reply| {
        let words = record.array()[3].array();
        let option = words.iter().position(|word| word.bytes() == b"BLOCK")?;
        words[option + 1].text().parse().ok()
    };
    records.array().iter().rev().filter_map(asked).collect()
}

/// This happens after a failover, until a Sentinel names the new master.
#[tokio::test]
async fn request_is_retried_while_the_server_is_a_replica() {
    let server = Server::start();
    let client = connect(&server).await;
    server.client().call(format!("REPLICAOF 127.0.0.1 {}", free_port()));
    let acquiring = tokio::spawn(async move { client.lock("k").acquire().await });
    eventually(|| command_stat(&server, "RLOCK.ACQUIRE", "rejected_calls") > 0).await;
    server.client().call("REPLICAOF NO ONE");
    let outcome = tokio::time::timeout(PATIENCE, acquiring).await.expect("it ends").expect("no panic");
    outcome.expect("a grant").release().await.expect("it was held");
}

/// 50 waiting and 50 holding tasks, while every connection is killed repeatedly. No hold is counted
/// twice, and none is left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn killed_connections_neither_duplicate_nor_leave_holds() {
    let server = Server::start();
    let client = connect(&server).await;
    let tasks: Vec<_> = (0..50)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let guard = client.lock(format!("k{}", number % 10)).acquire().await.expect("a grant");
                    tokio::task::yield_now().await;
                    guard.release().await.expect("it was held, and released once");
                }
            })
        })
        .collect();
    let deadline = std::time::Instant::now() + PATIENCE * 10;
    while !tasks.iter().all(tokio::task::JoinHandle::is_finished) {
        assert!(std::time::Instant::now() < deadline, "a task hangs");
        if let Ok(mut killer) = server.try_client() {
            killer.call("CLIENT KILL TYPE normal SKIPME yes");
            killer.call("CLIENT KILL TYPE pubsub SKIPME yes");
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for task in tasks {
        task.await.expect("no panic");
    }
    eventually(|| server.client().call("DBSIZE") == 0).await;
    eventually(|| server.client().info_number("rlock_waiting") == 0).await;
    assert!(connections(&server) <= 2);
}

/// A new server on the same port, without any data. Waiters continue, and the holder learns of its
/// loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_task_hangs_over_a_restart() {
    let mut server = Server::start();
    let client = connect(&server).await;
    let lock = client.lock("k").lease(Duration::from_secs(3));
    let guard = lock.acquire().await.expect("a free lock");
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let lock = client.lock("k");
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    eventually(|| server.client().waiting_owners("k").len() == 20).await;
    server.kill_and_restart_on_its_port();
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the holder hears of it");
    for waiter in waiters {
        let outcome = tokio::time::timeout(PATIENCE, waiter).await.expect("no task hangs").expect("no panic");
        outcome.expect("a grant, and its release");
    }
}

#[tokio::test]
async fn request_without_a_server_fails_after_retry_for() {
    let mut server = Server::start();
    let client =
        Client::builder().command_timeout(Duration::from_millis(300)).connect(&url(&server)).await.expect("a server");
    let lock = client.lock("k");
    server.kill();
    assert!(matches!(lock.try_acquire().await, Err(Error::Unavailable { .. })));
    server.restart();
}

/// Requests that need a connection wait for the same attempt, rather than for one attempt after the
/// other.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_requests_to_a_hung_server_end_together() {
    let server = Server::start();
    let short = Duration::from_millis(300);
    let options = Client::builder().connect_timeout(short).command_timeout(short);
    let client = options.connect_later(&url(&server)).expect("an address");
    tokio::task::block_in_place(|| {
        server.while_stopped(|| {
            let watch = Stopwatch::start();
            let attempts: Vec<_> = (0..20)
                .map(|number| {
                    let lock = client.lock(format!("k{number}"));
                    tokio::spawn(async move { lock.try_acquire().await })
                })
                .collect();
            for attempt in attempts {
                let outcome = Handle::current().block_on(attempt).expect("no panic");
                assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
            }
            watch.assert_took_ms(300..2000, "twenty requests");
        });
    });
}

/// A request waits for a connection no longer than its own timeout. The attempt continues, and the
/// next request uses its connection.
#[tokio::test]
async fn timed_request_does_not_wait_for_a_slower_connection() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client =
        Client::builder().command_timeout(Duration::from_millis(700)).connect(&proxy.url()).await.expect("a server");
    // From now on connecting takes 2 s.
    proxy.set(|_, _| Fate::Delay(Duration::from_millis(500)));
    kill_connections(&server);
    let watch = Stopwatch::start();
    let outcome = client.lock("k").try_acquire().await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    watch.assert_took_ms(0..1500, "a request that is sent again for 700 ms");
    // Time itself: the attempt completes within it.
    tokio::time::sleep(Duration::from_secs(2)).await;
    proxy.clear();
    client.lock("k").acquire().await.expect("a free lock").release().await.expect("it was held");
    assert_eq!(connections(&server), 2);
}

/// One of the places has been acquired when the time for the other one runs out, and its server no
/// longer answers.
#[tokio::test]
async fn timed_request_for_unavailable_places_ends_in_time() {
    let servers = [Server::start(), Server::start()];
    let proxy = Proxy::before(&servers[0]).await;
    let builder = || Client::builder();
    let first = builder().name("1").connect(&proxy.url()).await.expect("a server");
    let second = builder().name("2").connect(&crate::url(&servers[1])).await.expect("a server");
    servers[1].client().call("RLOCK.ACQUIRE b stranger PX 600000");
    let all = first.multi_lock(["k"]).and(&second, ["b"]);
    let watch = Stopwatch::start();
    let waiting = tokio::spawn(async move { all.acquire_timeout(Duration::from_millis(500)).await });
    eventually(|| servers[1].client().waiting_owners("b").len() == 1).await;
    proxy.set(|_, _| Fate::Swallow);
    let outcome = waiting.await.expect("no panic");
    assert!(matches!(outcome, Err(Error::Timeout)), "{outcome:?}");
    watch.assert_took_ms(500..2_000, "the requested time, plus the slack for a late answer");
    proxy.clear();
    eventually(|| servers[0].client().holder("k").is_none()).await;
}

/// Where the server is when the time of a wait ends.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Outage {
    Killed,
    NeverReached,
    /// A replica, without its master.
    Demoted,
    /// It has accepted the wait, and is silent afterwards.
    SilentMeanwhile,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_that_ends_in_an_outage_carries_its_cause() {
    for outage in [Outage::Killed, Outage::NeverReached, Outage::Demoted, Outage::SilentMeanwhile] {
        let mut server = Server::start();
        let proxy = Proxy::before(&server).await;
        let client = Client::builder().connect_later(&proxy.url()).expect("an address");
        if outage != Outage::NeverReached {
            let guard = client.lock("k").acquire_timeout(PATIENCE).await.expect("free");
            guard.release().await.expect("it was held");
        }
        server.client().call("RLOCK.ACQUIRE k other PX 600000");
        server.client().call("RFAIRLOCK.ACQUIRE f other PX 600000");
        match outage {
            Outage::Killed => server.kill(),
            Outage::NeverReached => proxy.set(cuts_all),
            Outage::Demoted => drop(server.client().call(format!("REPLICAOF 127.0.0.1 {}", free_port()))),
            Outage::SilentMeanwhile => {}
        }
        let timeout = Duration::from_millis(700);
        let (lock, fair, all) = (client.lock("k"), client.fair_lock("f"), client.multi_lock(["k", "l"]));
        let silence = async {
            if outage == Outage::SilentMeanwhile {
                eventually(|| server.client().info_number("rlock_waiting") == 3).await;
                proxy.set(|_, _| Fate::Swallow);
            }
        };
        let waits = async {
            tokio::join!(lock.acquire_timeout(timeout), fair.acquire_timeout(timeout), all.acquire_timeout(timeout))
        };
        let ((one, fair, all), ()) = tokio::join!(waits, silence);
        for error in [one.map(drop), fair.map(drop), all.map(drop)] {
            let Err(error @ Error::Unavailable { .. }) = error else { panic!("{outage:?}: {error:?}") };
            assert_eq!(error.code(), if outage == Outage::Demoted { "READONLY" } else { "" }, "{error:?}");
        }
        if outage == Outage::Killed {
            server.restart();
        }
    }
}

/// Counts the warnings about acquisitions.
#[derive(Clone, Default)]
struct Warnings(Arc<AtomicUsize>);

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::WARN && metadata.target() == "rlock_client::acquire"
    }

    fn event(&self, _: &Event<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

#[tokio::test]
async fn first_failure_of_a_wait_is_a_warning() {
    let warnings = Warnings::default();
    let _default = tracing::subscriber::set_default(warnings.clone());
    let unreachable = format!("redis://127.0.0.1:{}/", free_port());
    let client = Client::builder().connect_later(&unreachable).expect("an address");
    // Long enough for some attempts.
    let outcome = client.lock("k").acquire_timeout(Duration::from_millis(700)).await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    assert_eq!(warnings.0.load(Ordering::Relaxed), 1);
}

/// The server is back before the time ends, and another owner holds the lock.
#[tokio::test]
async fn wait_after_an_outage_is_contention() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    server.client().call("RLOCK.ACQUIRE k other PX 600000");
    proxy.set(cuts_all);
    kill_connections(&server);
    let waiting = tokio::spawn(async move { client.lock("k").acquire_timeout(Duration::from_secs(3)).await });
    // Time itself: the first attempts fail.
    tokio::time::sleep(Duration::from_millis(300)).await;
    proxy.clear();
    let outcome = waiting.await.expect("no panic");
    assert!(matches!(outcome, Err(Error::Timeout)), "{outcome:?}");
}

/// The client adds the time limit to the current time, which must not overflow.
#[tokio::test]
async fn longest_command_timeout_is_accepted() {
    let server = Server::start();
    let client = Client::builder().command_timeout(Duration::MAX).connect(&url(&server)).await.expect("a client");
    let guard = client.lock("k").try_acquire().await.expect("an answer").expect("a grant");
    guard.release().await.expect("it was held");
    let guard = client.lock("k").acquire_timeout(Duration::MAX).await.expect("a grant");
    guard.release().await.expect("it was held");
}

/// The client adds the timeout to the current time, and a little more to that.
#[tokio::test]
async fn longest_wait_is_granted_like_any_other() {
    let server = Server::start();
    let client = connect(&server).await;
    let mut longest = Duration::ZERO;
    let spans = (0..63)
        .rev()
        .map(|bit| Duration::from_secs(1 << bit))
        .chain((0..10).rev().map(|bit| Duration::from_millis(1 << bit)));
    for span in spans {
        if std::time::Instant::now().checked_add(longest + span).is_some() {
            longest += span;
        }
    }
    let almost = longest - Duration::from_millis(150);
    for timeout in [Duration::from_secs(366 * 24 * 60 * 60), almost, Duration::MAX] {
        let guard = client.lock("k").acquire().await.expect("a free lock");
        let lock = client.lock("k");
        let waiting = tokio::spawn(async move { lock.acquire_timeout(timeout).await });
        eventually(|| server.client().waiting_owners("k").len() == 1).await;
        guard.release().await.expect("it was held");
        let guard = waiting.await.expect("no panic").expect("a grant");
        for timeout in [Duration::ZERO, Duration::from_nanos(1)] {
            assert!(matches!(client.lock("k").acquire_timeout(timeout).await, Err(Error::Timeout)));
        }
        guard.release().await.expect("it was held");
    }
}
