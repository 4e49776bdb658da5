//! Waiting: order, time, connections, and what happens when these are used up.

use std::time::Duration;

use rlock_client::{Client, Error};

use crate::support::{Server, Stopwatch};
use crate::{connect, connections, eventually, url};

#[tokio::test]
async fn a_waiter_gets_the_lock_when_it_is_released() {
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
async fn timed_a_wait_ends_in_time_and_leaves_no_place() {
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
async fn timed_a_wait_ends_in_time_also_behind_a_server_that_does_not_answer() {
    let server = Server::start();
    let client = connect(&server).await;
    let holder = connect(&server).await;
    let guard = holder.lock("held").acquire().await.expect("a free lock");
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
    assert!(matches!(attempt, Err(Error::Timeout | Error::Connection { .. })), "{attempt:?}");
    assert!(matches!(waiter.await.expect("no panic"), Err(Error::Timeout)));
    watch.assert_took_ms(300..2000, "a wait that the server does not end");
    // What was asked meanwhile is taken back when the server goes on.
    let server = stopped.await.expect("no panic");
    guard.release().await.expect("it was held");
    eventually(|| server.client().call("DBSIZE") == 0).await;
}

/// The lease of a waiter starts when it is granted, and the grant may be heard of late. What counts is the confirmation.
#[tokio::test]
async fn a_hold_counts_from_its_confirmation_and_not_from_the_beginning_of_the_wait() {
    let server = Server::start();
    let client = connect(&server).await;
    // Half of it is enough for a machine that is late.
    let lease = Duration::from_secs(2);
    let guard = client.lock("k").acquire().await.expect("a free lock");
    let waiter = tokio::spawn({
        let lock = client.lock("k").lease(lease);
        async move { lock.acquire().await }
    });
    // Time itself: what passes here must not count.
    tokio::time::sleep(lease + lease / 4).await;
    guard.release().await.expect("it was held");
    let next = waiter.await.expect("no panic").expect("a grant");
    assert!(next.valid_for() > lease / 2, "{:?}", next.valid_for());
}

#[tokio::test]
async fn tasks_of_one_client_are_served_in_their_order_over_one_connection() {
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
        // The line forms behind the first one that waits at the server. From then on a few turns of the runtime lead into it.
        eventually(|| server.client().waiting_owners("k").len() == 1).await;
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert_eq!(connections(&server), 2, "the shared connection and a waiting one");
    guard.release().await.expect("it was held");
    for number in 0..20 {
        assert_eq!(heard.recv().await, Some(number));
    }
}

/// With two waiting connections and four locks that are waited for, two waiters have none. They must get their lock all the
/// same, because those that have one may be waiting for them.
#[tokio::test]
async fn who_has_no_connection_to_wait_on_is_served_all_the_same() {
    let server = Server::start();
    let client = Client::builder().waiting_connections(2).connect(&url(&server)).await.expect("a server");
    for kind in ["mutex", "fair"] {
        let mut guards = Vec::new();
        for key in 0..4 {
            let guard = server.client().call(format!("{}.ACQUIRE {kind}{key} other", family(kind))).int();
            guards.push(guard);
        }
        let waiters: Vec<_> = (0..4)
            .map(|key| {
                let (client, kind) = (client.clone(), kind.to_owned());
                tokio::spawn(async move {
                    let key = format!("{kind}{key}");
                    match kind.as_str() {
                        "fair" => client.fair_lock(key).acquire().await.expect("a grant").release().await,
                        _ => client.lock(key).acquire().await.expect("a grant").release().await,
                    }
                })
            })
            .collect();
        eventually(|| server.client().info_number("rlock_waiting") == 2).await;
        assert_eq!(connections(&server), 3);
        // Those that wait on no connection first: they came last.
        for key in [3, 2, 1, 0] {
            server.client().call(format!("{}.RELEASE {kind}{key} other", family(kind)));
            if key == 2 {
                eventually(|| waiters[2..].iter().all(tokio::task::JoinHandle::is_finished)).await;
            }
        }
        for waiter in waiters {
            waiter.await.expect("no panic").expect("it was held");
        }
        eventually(|| server.client().info_number("rlock_waiting") == 0).await;
        assert_eq!(server.client().call("DBSIZE"), 0);
    }
}

fn family(kind: &str) -> &'static str {
    if kind == "fair" { "RFAIRLOCK" } else { "RLOCK" }
}

/// A connection on which somebody waits may die without a word. So a long wait moves to a fresh one, and keeps its place.
#[tokio::test]
async fn a_long_wait_moves_to_a_fresh_connection_and_keeps_its_place() {
    let server = Server::start();
    let refresh = Duration::from_millis(200);
    let client = Client::builder().refresh_waits_after(refresh).connect(&url(&server)).await.expect("a server");
    let other = connect(&server).await;
    for kind in ["mutex", "fair"] {
        server.client().call(format!("{}.ACQUIRE {kind} holder", family(kind)));
        let first = tokio::spawn({
            let (lock, fair) = (client.lock(kind).owner("first"), client.fair_lock(kind).owner("first"));
            async move {
                if kind == "fair" {
                    fair.acquire().await?.release().await
                } else {
                    lock.acquire().await?.release().await
                }
            }
        });
        eventually(|| server.client().info_number("rlock_waiting") == 1).await;
        let second = tokio::spawn({
            let (lock, fair) = (other.lock(kind).owner("second"), other.fair_lock(kind).owner("second"));
            async move {
                if kind == "fair" {
                    fair.acquire().await?.release().await
                } else {
                    lock.acquire().await?.release().await
                }
            }
        });
        eventually(|| server.client().info_number("rlock_waiting") == 2).await;
        // One connection for all looks, for each connection counts.
        let mut observer = server.client();
        let connected = observer.info_number("total_connections_received");
        eventually(|| observer.info_number("total_connections_received") >= connected + 3).await;
        let waiters = observer.call(format!("{}.WAITERS {kind}", family(kind)));
        let order: Vec<_> = waiters.array().iter().map(|waiter| waiter.field("owner").text()).collect();
        assert_eq!(order, ["first", "second"]);
        drop(observer);
        eventually(|| connections(&server) <= 4).await;
        server.client().call(format!("{}.RELEASE {kind} holder", family(kind)));
        first.await.expect("no panic").expect("a grant, and its release");
        second.await.expect("no panic").expect("a grant, and its release");
        assert_eq!(server.client().call("DBSIZE"), 0);
    }
}

#[tokio::test]
async fn a_fair_lock_hands_over_between_clients() {
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
async fn two_handles_of_one_owner_wait_for_each_other_and_both_hold() {
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
    assert_eq!(server.client().holder("k").map(|holder| holder.holds), Some(2));
}
