//! Locks that stay closed for a while after their release.

use std::time::Duration;

use rlock_client::kinds::Keepable;
use rlock_client::{Client, Error, Lock};

use crate::support::{Reply, Server};
use crate::{connect, eventually};

const LONG: Duration = Duration::from_secs(600);

/// Whether a lock is kept closed.
pub fn is_kept(server: &Server, key: &str) -> bool {
    let info = server.client().call(format!("RLOCK.INFO {key}"));
    info != Reply::Nil && info.field_names().contains(&"kept".to_owned())
}

async fn is_closed_until_it_is_forced<K: Keepable>(server: &Server, client: &Client, lock: Lock<K>) {
    lock.acquire().await.expect("free").release_and_keep(LONG).await.expect("it was held");
    assert!(is_kept(server, "k"));
    assert!(lock.try_acquire().await.expect("an answer").is_none());
    let observer = client.observe("k");
    assert!(observer.is_locked().await.expect("an answer"));
    assert_eq!(observer.holders().await.expect("an answer"), []);
    let left = observer.lease_left().await.expect("an answer").expect("it is closed");
    assert!(left <= LONG && left > LONG / 2, "{left:?}");
    assert!(observer.force_release().await.expect("an answer"));
    lock.acquire().await.expect("free").release_and_keep(Duration::ZERO).await.expect("it was held");
    assert_eq!(server.client().call("EXISTS k"), 0, "that is a plain release");
}

#[tokio::test]
async fn kept_lock_is_closed_to_its_former_owner_too() {
    let server = Server::start();
    let client = connect(&server).await;
    is_closed_until_it_is_forced(&server, &client, client.lock("k").owner("me")).await;
    is_closed_until_it_is_forced(&server, &client, client.fair_lock("k").owner("me")).await;
}

#[tokio::test]
async fn waiter_gets_a_kept_lock_when_it_opens() {
    let server = Server::start();
    let client = connect(&server).await;
    let guard = client.lock("k").fixed_lease(LONG).acquire().await.expect("free");
    let lock = client.lock("k");
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually(|| server.client().waiting_owners("k").len() == 1).await;
    guard.release_and_keep(Duration::from_nanos(1)).await.expect("it was held");
    waiter.await.expect("no panic").expect("a grant").release().await.expect("it was held");
}

#[tokio::test]
async fn release_and_keep_of_a_reentered_hold_is_a_plain_release() {
    let server = Server::start();
    let client = connect(&server).await;
    let outer = client.lock("k").acquire().await.expect("free");
    let inner = outer.reenter().expect("a re-entry");
    let refused = inner.release_and_keep(LONG).await;
    assert!(matches!(&refused, Err(Error::Argument(_))), "{refused:?}");
    assert_eq!(server.client().holder("k").map(|holder| holder.holds), Some(1));
    outer.release_and_keep(LONG).await.expect("it was held");
    assert!(is_kept(&server, "k"));
}

#[tokio::test]
async fn lost_lock_or_time_out_of_range_is_not_kept() {
    let server = Server::start();
    let client = connect(&server).await;
    let guard = client.lock("k").acquire().await.expect("free");
    assert_eq!(server.client().call("RLOCK.FORCERELEASE k"), 1);
    server.client().acquire("k other");
    assert!(matches!(guard.release_and_keep(LONG).await, Err(Error::Lost)));
    assert_eq!(server.client().call("RLOCK.RELEASE k other"), 0);

    let guard = client.lock("k").acquire().await.expect("free");
    let year = Duration::from_secs(366 * 24 * 60 * 60);
    assert!(matches!(guard.release_and_keep(year).await, Err(Error::Argument(text)) if text.starts_with("keep is ")));
    eventually(|| server.client().call("EXISTS k") == 0).await;
}
