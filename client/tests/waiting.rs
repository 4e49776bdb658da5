//! Waiting: order, time, and connections.

use std::time::Duration;

use rlock_client::{Client, Error};

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::{Server, Stopwatch};
use crate::{PATIENCE, claimed, command_stat, connect, connections, eventually};

#[tokio::test]
async fn waiter_gets_a_released_lock() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let guard = one.lock("k").acquire().await.expect("a free lock");
    let waiter = tokio::spawn(async move { other.lock("k").acquire().await });
    eventually(|| server.client().waiting_owners("k").len() == 1).await;
    let token = guard.token();
    guard.release().await.expect("it was held");
    let next = waiter.await.expect("no panic").expect("a grant");
    assert!(next.token() > token);
    assert!(next.is_held());
}

#[tokio::test]
async fn timed_wait_ends_in_time_and_leaves_the_queue() {
    let server = Server::start();
    let client = connect(&server).await;
    let _guard = client.lock("k").acquire().await.expect("a free lock");
    let watch = Stopwatch::start();
    let timeout = Duration::from_millis(300);
    assert!(matches!(client.lock("k").acquire_timeout(timeout).await, Err(Error::Timeout)));
    watch.assert_took_ms(300..700, "a wait that the server ends");
    eventually(|| server.client().waiting_owners("k").is_empty()).await;
}

#[tokio::test]
async fn timed_wait_on_a_silent_server_ends_in_time() {
    let server = Server::start();
    let client = connect(&server).await;
    let holder = connect(&server).await;
    let guard = holder.lock("held").acquire().await.expect("a free lock");
    claimed(&guard).await;
    let watch = Stopwatch::start();
    let (free, held) = (client.lock("free"), client.lock("held"));
    let waiter = tokio::spawn(async move { held.acquire_timeout(Duration::from_millis(300)).await });
    eventually(|| server.client().waiting_owners("held").len() == 1).await;
    let (stop, has_stopped) = tokio::sync::oneshot::channel();
    let stopped = tokio::task::spawn_blocking(move || {
        server.while_stopped(|| {
            stop.send(()).expect("the test waits");
            std::thread::sleep(Duration::from_secs(3));
        });
        server
    });
    has_stopped.await.expect("no panic");
    let attempt = free.acquire_timeout(Duration::from_millis(300)).await;
    assert!(matches!(attempt, Err(Error::Unavailable { .. })), "{attempt:?}");
    let waited = waiter.await.expect("no panic");
    assert!(matches!(waited, Err(Error::Unavailable { .. })), "the server did not say that it is held: {waited:?}");
    watch.assert_took_ms(300..2000, "a wait that the server does not end");
    // The request that was sent meanwhile is cancelled when the server resumes.
    let server = stopped.await.expect("no panic");
    guard.release().await.expect("it was held");
    eventually(|| server.client().call("DBSIZE") == 0).await;
}

/// A waiter's lease starts at the grant.
#[tokio::test]
async fn hold_counts_from_its_grant_not_from_the_start_of_the_wait() {
    let server = Server::start();
    let client = connect(&server).await;
    // Half of the lease is slack for a slow machine.
    let lease = Duration::from_secs(2);
    let guard = client.lock("k").acquire().await.expect("a free lock");
    let waiter = tokio::spawn({
        let lock = client.lock("k").fixed_lease(lease);
        async move { lock.acquire().await }
    });
    // Time itself: what passes here must not count.
    tokio::time::sleep(lease + lease / 4).await;
    guard.release().await.expect("it was held");
    let next = waiter.await.expect("no panic").expect("a grant");
    assert!(next.valid_for() > lease / 2, "{:?}", next.valid_for());
}

/// The session would have ended during the wait.
#[tokio::test]
async fn session_counts_from_its_grant_not_from_the_start_of_the_wait() {
    let server = Server::start();
    let client = connect(&server).await;
    let grace = Duration::from_secs(2);
    let guard = client.lock("k").acquire().await.expect("a free lock");
    let waiter = tokio::spawn({
        let lock = client.lock("k").session_grace(grace);
        async move { lock.acquire().await }
    });
    // Time itself: what passes here must not count, and is far less than the lease.
    tokio::time::sleep(grace * 2).await;
    guard.release().await.expect("it was held");
    let next = waiter.await.expect("no panic").expect("a grant");
    // Time itself: the session is renewed several times within it.
    tokio::time::sleep(grace * 2).await;
    assert!(next.is_held());
}

#[tokio::test]
async fn tasks_of_one_client_are_served_in_order_over_one_connection() {
    let server = Server::start();
    let client = connect(&server).await;
    let guard = client.lock("k").acquire().await.expect("a free lock");
    let (told, mut heard) = tokio::sync::mpsc::unbounded_channel();
    for number in 0..20 {
        let (lock, told) = (client.lock("k"), told.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await.expect("a grant");
            told.send(number).expect("the test listens");
            guard.release().await.expect("it was held");
        });
        eventually(|| server.client().waiting_owners("k").len() == number + 1).await;
    }
    assert_eq!(connections(&server), 2);
    assert_eq!(server.client().call("PUBSUB CHANNELS rlock:*").array().len(), 1, "one channel serves all waits");
    guard.release().await.expect("it was held");
    for number in 0..20 {
        assert_eq!(heard.recv().await, Some(number));
    }
}

/// Each waits in the server's queue over the single connection, and sends one request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_waits_use_one_connection_and_no_polling() {
    const LOCKS: usize = 10_000;
    let server = Server::start();
    let client = connect(&server).await;
    let mut other = server.client();
    let each = |verb: &str| (0..LOCKS).map(|key| format!("RLOCK.{verb} k{key} other").into()).collect::<Vec<_>>();
    other.call_in_one_step(&each("ACQUIRE"));
    let waiters: Vec<_> = (0..LOCKS)
        .map(|key| {
            let lock = client.lock(format!("k{key}"));
            tokio::spawn(async move { lock.acquire().await?.release().await })
        })
        .collect();
    eventually(|| server.client().info_number("rlock_waiting") == LOCKS as i64).await;
    assert_eq!(connections(&server), 3, "the client's two, and the holder's");
    let asked = || command_stat(&server, "RLOCK.ACQUIRE", "calls");
    assert_eq!(asked(), 2 * LOCKS as i64);
    // Time itself: polling would show within it.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(asked(), 2 * LOCKS as i64);
    // A hold that is released later than its claim would be lost, and a busy machine is slow.
    let mut waiters = waiters.into_iter();
    for some in each("RELEASE").chunks(LOCKS / 20) {
        other.call_in_one_step(some);
        for waiter in waiters.by_ref().take(some.len()) {
            waiter.await.expect("no panic").expect("a grant, and its release");
        }
    }
    assert_eq!(asked(), 2 * LOCKS as i64);
    assert_eq!(server.client().call("DBSIZE"), 0);
}

#[tokio::test]
async fn readers_of_one_client_enter_together() {
    let server = Server::start();
    let client = connect(&server).await;
    let writer = client.rw_lock("k").write().acquire().await.expect("a free lock");
    let readers: Vec<_> = (0..50)
        .map(|_| {
            let lock = client.rw_lock("k").read();
            tokio::spawn(async move { lock.acquire().await })
        })
        .collect();
    eventually(|| server.client().info_number("rlock_waiting") == 50).await;
    writer.release().await.expect("it was held");
    let mut guards = Vec::new();
    for reader in readers {
        guards.push(reader.await.expect("no panic").expect("a grant"));
    }
    assert!(guards.iter().all(rlock_client::Guard::is_held));
}

/// The network swallows whatever is sent over the connection, and the client has no other request
/// to send.
#[tokio::test]
async fn silently_dead_connection_of_a_waiter_is_replaced() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let options = Client::builder().ping_after(Duration::from_millis(100)).connect_timeout(Duration::from_millis(500));
    let client = options.connect(&proxy.url()).await.expect("a server");
    for kind in ["mutex", "fair"] {
        proxy.clear();
        server.client().call(format!("{}.ACQUIRE {kind} other", family(kind)));
        let waiter = tokio::spawn({
            let (lock, fair) = (client.lock(kind), client.fair_lock(kind));
            async move { if kind == "fair" { fair.acquire().await.map(drop) } else { lock.acquire().await.map(drop) } }
        });
        eventually(|| server.client().info_number("rlock_waiting") == 1).await;
        let mut is_first = true;
        proxy.set(move |direction, _| match direction == Direction::ToServer && std::mem::take(&mut is_first) {
            true => Fate::Swallow,
            false => Fate::Pass,
        });
        eventually(|| waits_anew(&server, kind)).await;
        server.client().call(format!("{}.RELEASE {kind} other", family(kind)));
        tokio::time::timeout(PATIENCE, waiter)
            .await
            .expect("the waiter is served")
            .expect("no panic")
            .expect("a grant");
        eventually(|| server.client().call(format!("EXISTS {kind}")) == 0).await;
    }
}

/// So many requests are in progress that the answer to the PING is late, but answers keep arriving.
#[tokio::test]
async fn timed_connection_that_still_answers_is_kept() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let patience = Duration::from_millis(1500);
    let options = Client::builder().ping_after(Duration::from_millis(100)).connect_timeout(patience);
    let client = options.connect(&proxy.url()).await.expect("a server");
    server.client().call("RLOCK.ACQUIRE k other");
    let waiter = tokio::spawn({
        let lock = client.lock("k");
        async move { lock.acquire().await }
    });
    eventually(|| server.client().waiting_owners("k").len() == 1).await;
    // A piece that arrives during another one's delay waits for its own delay after that, so an
    // answer takes up to twice as long.
    proxy.set(|direction, _| match direction {
        Direction::ToClient => Fate::Delay(Duration::from_secs(1)),
        Direction::ToServer => Fate::Pass,
    });
    let asking = tokio::spawn(async move {
        let look = client.observe("other");
        let mut questions = tokio::task::JoinSet::new();
        for _ in 0..160 {
            let look = look.clone();
            questions.spawn(async move { look.is_locked().await });
            // Time itself: a request is always in progress.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        questions.join_all().await
    });
    let answers = asking.await.expect("no panic");
    assert!(answers.iter().all(|answer| matches!(answer, Ok(false))), "{answers:?}");
    proxy.clear();
    server.client().call("RLOCK.RELEASE k other");
    waiter.await.expect("no panic").expect("a grant").release().await.expect("it was held");
    assert_eq!(command_stat(&server, "RLOCK.ACQUIRE", "calls"), 2, "no request was repeated");
}

/// Whether the waiter's request was repeated: the third ACQUIRE, after the holder's.
fn waits_anew(server: &Server, kind: &str) -> bool {
    command_stat(server, &format!("{}.ACQUIRE", family(kind)), "calls") == 3
}

fn family(kind: &str) -> &'static str {
    if kind == "fair" { "RFAIRLOCK" } else { "RLOCK" }
}

#[tokio::test]
async fn fair_lock_is_handed_over_between_clients() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let guard = one.fair_lock("k").acquire().await.expect("a free lock");
    let waiter = tokio::spawn(async move { other.fair_lock("k").acquire().await });
    eventually(|| server.client().places("k").len() == 1).await;
    guard.release().await.expect("it was held");
    let next = waiter.await.expect("no panic").expect("a grant");
    next.release().await.expect("it was held");
    assert_eq!(server.client().call("EXISTS k"), 0);
}

#[tokio::test]
async fn two_handles_of_one_owner_wait_together_and_both_hold() {
    let server = Server::start();
    let client = connect(&server).await;
    let guard = client.lock("k").acquire().await.expect("a free lock");
    let wait = || {
        let lock = client.lock("k").owner("me");
        tokio::spawn(async move { lock.acquire().await })
    };
    let (first, second) = (wait(), wait());
    eventually(|| server.client().waiting_owners("k") == ["me"]).await;
    guard.release().await.expect("it was held");
    let (first, second) = (first.await.expect("no panic"), second.await.expect("no panic"));
    let (first, second) = (first.expect("a grant"), second.expect("a grant"));
    assert_eq!(first.token(), second.token());
    assert_eq!(server.client().holder("k").map(|holder| holder.holds), Some(1));
}
