//! Waits in a cluster that are dropped while their slot moves to another node. The old node, where
//! they wait, redirects all requests for the key to the new node, where they do not wait. This
//! includes the request that ends the waits.

use std::time::Duration;

use rlock_client::Client;

use crate::cluster::{ON_FIRST, begin_to_move_slot_of_first, cluster};
use crate::support::Server;
use crate::{PATIENCE, command_stat, eventually, url};

/// Longer than any test lasts.
const LEASE: Duration = Duration::from_secs(600);

/// The command timeout of the client.
const SHORT: Duration = Duration::from_millis(500);

async fn connect_impatiently(seed: &Server) -> Client {
    Client::builder().command_timeout(SHORT).connect_cluster(&[&url(seed)]).await.expect("a cluster")
}

async fn wait_for_calls(node: &Server, command: &str, times: i64) {
    eventually(|| command_stat(node, command, "calls") >= times).await;
}

/// Neither node has both keys, and each answers TRYAGAIN.
#[tokio::test]
async fn request_cancelled_in_a_migrating_slot_does_not_block_its_owner() {
    let nodes = cluster().await;
    let client = connect_impatiently(&nodes[0]).await;
    let keys = [1, 2].map(|number| format!("{ON_FIRST}{number}"));
    for key in &keys {
        nodes[0].client().acquire(&format!("{key} stranger PX 600000"));
    }
    let all = client.multi_lock(&keys).owner("me").fixed_lease(LEASE);
    let waiting = tokio::spawn(async move { all.acquire().await.map(drop) });
    eventually(|| nodes[0].client().waiting_owners(&keys[0]).len() == 1).await;
    begin_to_move_slot_of_first(&nodes, &keys[0]);
    waiting.abort();
    wait_for_calls(&nodes[1], "RLOCK.MCANCEL", 1).await;
    let one = client.lock(&keys[1]).owner("me");
    let asking = tokio::spawn(async move { one.try_acquire().await });
    let outcome = tokio::time::timeout(PATIENCE, asking).await.expect("the request ends in time").expect("no panic");
    assert!(outcome.expect("an answer").is_none(), "a stranger holds it");
}
