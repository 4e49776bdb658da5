//! The client sends no needless requests. It does not ask again for what the server has already
//! answered, and does not cancel a request that it never sent. Otherwise a repeated request could
//! be granted for a moment to a caller that no longer wants the lock.

use std::time::Duration;

use rlock_client::{Client, Error};

use crate::support::{Server, free_port};
use crate::thief::{Thief, use_once};
use crate::{command_stat, connect, connections_to, eventually};

fn calls(server: &Server, command: &str) -> i64 {
    command_stat(server, command, "calls")
}

#[tokio::test]
async fn several_locks_with_one_taken_are_requested_once() {
    let server = Server::start();
    let client = connect(&server).await;
    server.client().call("RLOCK.ACQUIRE l stranger PX 600000");
    assert!(client.multi_lock(["k", "l"]).try_acquire().await.expect("an answer").is_none());
    client.close().await.expect("nothing is left to be done");
    assert_eq!(calls(&server, "RLOCK.MACQUIRE"), 1);
}

/// The server has answered that the request was still waiting, so it granted nothing.
#[tokio::test]
async fn abandoned_wait_for_several_locks_is_not_cancelled_one_by_one() {
    let server = Server::start();
    let client = connect(&server).await;
    server.client().call("RLOCK.ACQUIRE l stranger PX 600000");
    let all = client.multi_lock(["k", "l"]);
    let waiting = tokio::spawn(async move { all.acquire().await.map(drop) });
    eventually(|| server.client().waiting_owners("l").len() == 1).await;
    waiting.abort();
    client.close().await.expect("every request is settled");
    assert!(server.client().waiting_owners("l").is_empty());
    assert_eq!((calls(&server, "RLOCK.MCANCEL"), calls(&server, "RLOCK.CANCEL")), (1, 0));
    assert_eq!(
        (calls(&server, "RLOCK.MACQUIRE"), calls(&server, "RLOCK.ACQUIRE")),
        (1, 1),
        "one MACQUIRE, and the stranger's ACQUIRE"
    );
}

/// The answer to the first copy was lost. The timeout that the server reports applies to both
/// copies.
#[tokio::test]
async fn finished_wait_is_not_cancelled_even_if_it_was_sent_twice() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    use_once(&client).await;
    server.client().call("RLOCK.ACQUIRE k stranger PX 600000");
    let before = calls(&server, "RLOCK.ACQUIRE");
    thief.steal_next();
    let outcome = client.lock("k").acquire_timeout(Duration::from_secs(2)).await;
    assert!(matches!(outcome, Err(Error::Timeout)), "{outcome:?}");
    assert!(thief.has_stolen());
    client.close().await.expect("nothing is left to be done");
    assert_eq!((calls(&server, "RLOCK.ACQUIRE") - before, calls(&server, "RLOCK.CANCEL")), (2, 0));
}

#[tokio::test]
async fn unsent_request_is_not_cancelled() {
    let unreachable = format!("redis://127.0.0.1:{}/", free_port());
    let short = Duration::from_millis(300);
    let client = Client::builder().command_timeout(short).connect_later(&unreachable).expect("an address");
    let outcome = client.lock("k").try_acquire().await.map(drop);
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    let outcome = client.lock("k").acquire_timeout(short).await.map(drop);
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    client.close().await.expect("nothing is left to be done");
}

#[tokio::test]
async fn forbidden_release_is_not_retried() {
    let server = Server::start();
    let client = connect(&server).await;
    let guard = client.lock("k").acquire().await.expect("free");
    assert_eq!(server.client().call("ACL SETUSER default resetkeys ~other"), "OK");
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(Error::Refused { .. })), "{outcome:?}");
    assert_eq!(command_stat(&server, "RLOCK.RELEASE", "rejected_calls"), 1);
}

/// Nagle's algorithm holds a small request back while an earlier one is unconfirmed: up to one round
/// trip, or 40 ms, for each hand-over.
#[tokio::test]
async fn requests_are_not_held_back_for_earlier_ones() {
    let server = Server::start();
    let client = connect(&server).await;
    server.client().call("RLOCK.ACQUIRE k stranger PX 600000");
    // The first wait opens the second connection.
    assert!(matches!(client.lock("k").acquire_timeout(Duration::from_millis(50)).await, Err(Error::Timeout)));
    let ours = connections_to(server.port());
    assert_eq!(ours.len(), 2);
    assert!(ours.iter().all(|connection| connection.nodelay().expect("a socket option")));
}
