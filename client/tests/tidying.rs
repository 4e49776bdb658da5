//! Clean-up does not delay other callers, and renewals do not overload a server that refuses them.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use rlock_client::{Client, Error, Quorum};

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::{Reply, Server, Stopwatch};
use crate::{PATIENCE, claimed, command_stat, connect, eventually, is_granted, url};

/// The answer that ends the wait never arrives, because its connection is dead.
#[tokio::test]
async fn timed_dropped_wait_on_a_dead_connection_does_not_hold_the_freed_lock() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    server.client().call("RLOCK.ACQUIRE k other");
    let waiter = tokio::spawn({
        let lock = client.lock("k");
        async move { lock.acquire().await.map(drop) }
    });
    eventually(|| server.client().waiting_owners("k").len() == 1).await;
    // The reply is an error text rather than a nil.
    let is_error = |direction, length| direction == Direction::ToClient && length > 20;
    proxy.set(move |direction, length| if is_error(direction, length) { Fate::Swallow } else { Fate::Pass });
    waiter.abort();
    eventually(|| server.client().waiting_owners("k").is_empty()).await;
    server.client().call("RLOCK.RELEASE k other");
    // Time itself: a clean-up that continues would take the lock within it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let watch = Stopwatch::start();
    eventually(|| is_granted(&server.client().call("RLOCK.ACQUIRE k third"))).await;
    watch.assert_took_ms(0..1000, "the time to acquire a lock without a holder");
}

/// The connection swallows what is sent, and reports no error.
#[tokio::test]
async fn short_lease_survives_a_silent_connection() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let lease = Duration::from_secs(3);
    let guard = client.lock("k").lease(lease).acquire().await.expect("a free lock");
    let mut is_first = true;
    proxy.set(move |direction, _| match direction == Direction::ToServer && std::mem::take(&mut is_first) {
        true => Fate::Swallow,
        false => Fate::Pass,
    });
    tokio::time::sleep(lease * 2).await;
    assert!(guard.is_held());
    guard.release().await.expect("it was held");
}

/// A server refuses writes like this while it loads its data.
#[tokio::test]
async fn request_outlasts_a_server_that_refuses_writes() {
    let server = Server::start();
    let client = connect(&server).await;
    server.client().call("CONFIG SET min-replicas-to-write 1");
    let acquiring = tokio::spawn({
        let lock = client.lock("k");
        async move { lock.acquire().await }
    });
    eventually(|| command_stat(&server, "RLOCK.ACQUIRE", "rejected_calls") > 0).await;
    server.client().call("CONFIG SET min-replicas-to-write 0");
    let outcome = tokio::time::timeout(PATIENCE, acquiring).await.expect("it ends").expect("no panic");
    outcome.expect("a grant").release().await.expect("it was held");
}

/// Another client runs a long script.
#[tokio::test]
async fn request_outlasts_a_long_script() {
    let server = Server::with(&["lua-time-limit 20"]);
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let (mut script, mut operator) = (server.client(), server.client());
    script.send([b"EVAL".as_slice(), b"while true do end", b"0"]);
    eventually(|| matches!(operator.call("PING"), Reply::Error(text) if text.starts_with("BUSY"))).await;
    let answers = Arc::new(AtomicUsize::new(0));
    let count = answers.clone();
    proxy.set(move |direction, _| {
        count.fetch_add(usize::from(direction == Direction::ToClient), Ordering::Relaxed);
        Fate::Pass
    });
    let acquiring = tokio::spawn({
        let lock = client.lock("k");
        async move { lock.acquire().await }
    });
    eventually(|| answers.load(Ordering::Relaxed) > 0).await;
    operator.call("SCRIPT KILL");
    let outcome = tokio::time::timeout(PATIENCE, acquiring).await.expect("it ends").expect("no panic");
    outcome.expect("a grant").release().await.expect("it was held");
}

#[tokio::test]
async fn timed_refused_renewals_become_rare() {
    const GUARDS: i64 = 100;
    let server = Server::start();
    let client = connect(&server).await;
    let mut guards = Vec::new();
    for number in 0..GUARDS {
        let lock = client.lock(format!("k{number}")).lease(Duration::from_secs(9));
        guards.push(lock.acquire().await.expect("a free lock"));
    }
    for guard in &guards {
        claimed(guard).await;
    }
    server.client().call("CONFIG SET min-replicas-to-write 1");
    // The next renewals are due after 3 s.
    tokio::time::sleep(Duration::from_secs(6)).await;
    let refused = command_stat(&server, "RLOCK.RENEW", "rejected_calls");
    server.client().call("CONFIG SET min-replicas-to-write 0");
    assert!(refused >= GUARDS, "each guard sent a renewal: {refused}");
    assert!(refused <= GUARDS * 9, "{refused} refusals of {GUARDS} renewals in three seconds");
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(guards.iter().all(rlock_client::Guard::is_held));
}

fn quorum_of(servers: &[Server]) -> Quorum {
    let urls: Vec<_> = servers.iter().map(url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    Quorum::connect(&Client::builder(), &urls).expect("addresses")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_majority_decides_without_a_hung_server() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let lock = quorum_of(&servers).lock("k").server_timeout(Duration::from_secs(3));
    lock.acquire().await.expect("free").release().await.expect("it was held");
    // This includes the server that granted last.
    eventually(|| servers.iter().all(|server| command_stat(server, "RLOCK.RELEASE", "calls") == 1)).await;
    let watch = Stopwatch::start();
    tokio::task::block_in_place(|| {
        servers[1].while_stopped(|| {
            let guard = tokio::runtime::Handle::current().block_on(lock.acquire()).expect("two of three are free");
            watch.assert_took_ms(0..1000, "a grant by the two that answer");
            assert!(guard.is_held());
            tokio::runtime::Handle::current().block_on(guard.release()).expect("it was held");
        });
    });
    // The hold that the third server granted later is released.
    eventually(|| servers.iter().all(|server| server.client().holder("k").is_none())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quorum_waits_for_a_temporarily_silent_majority() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let lock = quorum_of(&servers).lock("k");
    lock.acquire().await.expect("free").release().await.expect("it was held");
    let acquiring = tokio::task::block_in_place(|| {
        let mut acquiring = None;
        servers[1].while_stopped(|| {
            servers[2].while_stopped(|| {
                acquiring = Some(tokio::spawn(async move { lock.acquire_timeout(PATIENCE).await }));
                std::thread::sleep(Duration::from_secs(1));
            });
        });
        acquiring.expect("it was begun")
    });
    let guard = acquiring.await.expect("no panic").expect("a majority is back");
    guard.release().await.expect("it was held");
}

#[tokio::test]
async fn errors_do_not_contain_the_password() {
    for url in ["redis://user:hush-hush@[bad/0", "redis://user:hush-hush@host:port/0", "rediss:/user:hush-hush@"] {
        let refused = Client::connect(url).await.expect_err("no address");
        assert!(matches!(refused, Error::Argument(_)));
        let text = format!("{refused} {refused:?}");
        assert!(!text.contains("hush"), "{text}");
    }
}

/// A round trip takes longer than 2 s.
#[tokio::test]
async fn client_connects_to_a_distant_server() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    proxy.set(|_, _| Fate::Delay(Duration::from_millis(1050)));
    let client = Client::connect(&proxy.url()).await.expect("the server answers late");
    client.lock("k").acquire().await.expect("a free lock").release().await.expect("it was held");
}
