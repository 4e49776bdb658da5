//! Waits in a cluster that are dropped while their slot is on its way to another node. The node where they wait has all that is said of the key done
//! by the other one, where nobody waits: also that the waits are to end.

use std::time::Duration;

use rlock_client::{Client, Kind, Lock};
use tokio::task::JoinHandle;

use crate::cluster::{ON_FIRST, begin_to_move_slot_of_first, cluster, connect};
use crate::support::Server;
use crate::{PATIENCE, command_stat, eventually, url};

/// Longer than any test lasts.
const LEASE: Duration = Duration::from_secs(600);

/// A client that waits for answers no longer than that.
const SHORT: Duration = Duration::from_millis(500);

async fn connect_impatiently(seed: &Server) -> Client {
    Client::builder().response_timeout(SHORT).connect_cluster(&[&url(seed)]).await.expect("a cluster")
}

/// Somebody who waits on the first node, as the last of so many.
async fn waiting<K: Kind>(nodes: &[Server; 2], lock: &Lock<K>, count: usize) -> JoinHandle<()> {
    let lock = lock.clone();
    let waiting = tokio::spawn(async move { drop(lock.acquire().await) });
    eventually(|| nodes[0].client().waiting_owners(ON_FIRST).len() == count).await;
    waiting
}

async fn cancelled(node: &Server, command: &str, times: i64) {
    eventually(|| command_stat(node, command, "calls") >= times).await;
}

/// The slot stays where it is, and in the end nobody waits there or holds.
async fn nothing_is_kept_when_it_stays(nodes: &[Server; 2], slot: i64) {
    for node in nodes {
        assert_eq!(node.client().call(format!("CLUSTER SETSLOT {slot} STABLE")), "OK");
    }
    eventually(|| {
        let mut first = nodes[0].client();
        first.waiting_owners(ON_FIRST).is_empty() && first.holder(ON_FIRST).is_none()
    })
    .await;
}

#[tokio::test]
async fn waits_that_are_dropped_while_their_slot_is_on_its_way_keep_nothing_when_it_stays() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let lock = client.lock(ON_FIRST).lease(LEASE);
    let guard = lock.acquire().await.expect("free");
    let waits = [waiting(&nodes, &lock, 1).await, waiting(&nodes, &lock, 2).await];
    let (slot, _) = begin_to_move_slot_of_first(&nodes, ON_FIRST);
    waits.iter().for_each(JoinHandle::abort);
    cancelled(&nodes[1], "RLOCK.CANCEL", 2).await;
    guard.release().await.expect("it was held, at the other node");
    nothing_is_kept_when_it_stays(&nodes, slot).await;
    assert!(lock.try_acquire().await.expect("an answer").is_some());
}

/// The place of a fair lock moves with it. The wait does not: it stays at the node where it began.
#[tokio::test]
async fn a_wait_for_a_fair_lock_that_is_dropped_while_its_slot_is_on_its_way_keeps_nothing_when_it_stays() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let lock = client.fair_lock(ON_FIRST).lease(LEASE);
    let guard = lock.acquire().await.expect("free");
    let wait = waiting(&nodes, &lock, 1).await;
    let (slot, _) = begin_to_move_slot_of_first(&nodes, ON_FIRST);
    wait.abort();
    cancelled(&nodes[1], "RFAIRLOCK.CANCEL", 1).await;
    guard.release().await.expect("it was held, at the other node");
    nothing_is_kept_when_it_stays(&nodes, slot).await;
    assert!(lock.try_acquire().await.expect("an answer").is_some());
}

/// Of an owner that may have other requests. It is tried for as long as the lease.
#[tokio::test]
async fn a_named_wait_that_is_dropped_while_its_slot_is_on_its_way_keeps_nothing_when_it_stays() {
    let nodes = cluster().await;
    let client = connect_impatiently(&nodes[0]).await;
    let lock = client.lock(ON_FIRST).lease(LEASE);
    let guard = lock.acquire().await.expect("free");
    let wait = waiting(&nodes, &lock.clone().owner("me"), 1).await;
    let (slot, _) = begin_to_move_slot_of_first(&nodes, ON_FIRST);
    wait.abort();
    // Time itself: longer than the owner's other requests are kept waiting.
    tokio::time::sleep(SHORT * 6).await;
    guard.release().await.expect("it was held, at the other node");
    nothing_is_kept_when_it_stays(&nodes, slot).await;
}

/// Neither node has both keys, and each says that it is asked too early.
#[tokio::test]
async fn what_is_taken_back_while_its_slot_is_on_its_way_does_not_hold_up_its_owner() {
    let nodes = cluster().await;
    let client = connect_impatiently(&nodes[0]).await;
    let keys = [1, 2].map(|number| format!("{ON_FIRST}{number}"));
    for key in &keys {
        nodes[0].client().acquire(&format!("{key} stranger PX 600000"));
    }
    let all = client.multi_lock(&keys).owner("me").lease(LEASE);
    let waiting = tokio::spawn(async move { all.acquire().await.map(drop) });
    eventually(|| nodes[0].client().waiting_owners(&keys[0]).len() == 1).await;
    begin_to_move_slot_of_first(&nodes, &keys[0]);
    waiting.abort();
    cancelled(&nodes[1], "RLOCK.CANCEL", 1).await;
    let one = client.lock(&keys[1]).owner("me");
    let asking = tokio::spawn(async move { one.try_acquire().await });
    let outcome = tokio::time::timeout(PATIENCE, asking).await.expect("it has its turn").expect("no panic");
    assert!(outcome.expect("an answer").is_none(), "a stranger holds it");
}

/// Whoever is asked whether it is free says so, and nobody holds it.
#[tokio::test]
async fn what_is_taken_back_from_a_slot_on_its_way_is_not_taken_again_and_again() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let lock = client.lock(ON_FIRST).lease(LEASE);
    let guard = lock.acquire().await.expect("free");
    let wait = waiting(&nodes, &lock, 1).await;
    begin_to_move_slot_of_first(&nodes, ON_FIRST);
    guard.release().await.expect("it was held, at the other node");
    wait.abort();
    cancelled(&nodes[1], "RLOCK.CANCEL", 5).await;
    let granted = command_stat(&nodes[1], "RLOCK.RELEASE", "calls") - 1;
    assert!(granted <= 1, "{granted} times");
}
