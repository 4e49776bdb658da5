//! A cluster of two masters: the client finds keys, waits at the right node, and follows a slot
//! that moves.

use std::time::Duration;

use rlock_client::{Client, Error, Event};
use tokio::runtime::Handle;
use tokio::task::block_in_place;

use crate::support::{Server, Stopwatch, free_port};
use crate::{PATIENCE, command_stat, connections, eventually, kill_connections, url};

/// The slots of the first node. The second node has the rest.
const FIRST_HALF: &str = "0 8191";
const SECOND_HALF: &str = "8192 16383";

/// One hash tag in each half: CRC16 of "b" is 3300, of "a" 15495.
pub(crate) const ON_FIRST: &str = "{b}";
const ON_SECOND: &str = "{a}";

fn node() -> Server {
    // The default is the server's port plus 10000, which may exceed 65535.
    Server::with(&["cluster-enabled yes", &format!("cluster-port {}", free_port())])
}

pub(crate) async fn cluster() -> [Server; 2] {
    cluster_of([FIRST_HALF, SECOND_HALF]).await
}

/// One master for each range of slots.
async fn cluster_of<const N: usize>(ranges: [&str; N]) -> [Server; N] {
    let nodes = ranges.map(|_| node());
    for (node, slots) in nodes.iter().zip(ranges) {
        assert_eq!(node.client().call(format!("CLUSTER ADDSLOTSRANGE {slots}")), "OK");
        let bus = node.client().call("CONFIG GET cluster-port").field("cluster-port").text();
        assert_eq!(nodes[0].client().call(format!("CLUSTER MEET 127.0.0.1 {} {bus}", node.port())), "OK");
    }
    for node in &nodes {
        eventually(|| {
            let info = node.client().call("CLUSTER INFO").text();
            info.contains("cluster_state:ok") && info.contains(&format!("cluster_size:{N}"))
        })
        .await;
    }
    nodes
}

pub(crate) async fn connect(seed: &Server) -> Client {
    Client::builder().connect_cluster(&[&url(seed)]).await.expect("a cluster")
}

#[tokio::test]
async fn requests_find_and_wait_at_the_node_of_their_lock() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    for (key, node) in [(ON_FIRST, &nodes[0]), (ON_SECOND, &nodes[1])] {
        let guard = client.lock(key).acquire().await.expect("free");
        assert_eq!(node.client().holder(key).map(|holder| holder.owner.into_bytes()), Some(guard.owner().to_vec()));
        let waiter = tokio::spawn({
            let lock = client.lock(key);
            async move { lock.acquire().await }
        });
        eventually(|| node.client().waiting_owners(key).len() == 1).await;
        guard.release().await.expect("it was held");
        waiter.await.expect("no panic").expect("a grant").release().await.expect("it was held");
    }
}

/// A node that does not serve a key would redirect the request, and the client would ask it first
/// each time.
#[tokio::test]
async fn each_request_goes_straight_to_the_node_of_its_key() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    for _ in 0..5 {
        for key in [ON_FIRST, ON_SECOND] {
            client.lock(key).acquire().await.expect("free").release().await.expect("it was held");
        }
    }
    for node in &nodes {
        let errors = node.client().call("INFO errorstats").text();
        assert!(!errors.contains("errorstat_MOVED"), "{errors}");
    }
}

/// No reachable node serves slot 0.
#[tokio::test]
async fn client_connects_to_a_cluster_with_an_unserved_slot() {
    let node = Server::with(&[
        "cluster-enabled yes",
        "cluster-require-full-coverage no",
        &format!("cluster-port {}", free_port()),
    ]);
    assert_eq!(node.client().call("CLUSTER ADDSLOTSRANGE 1 16383"), "OK");
    eventually(|| node.client().call("CLUSTER INFO").text().contains("cluster_state:ok")).await;
    let client = connect(&node).await;
    client.lock(ON_FIRST).acquire().await.expect("free").release().await.expect("it was held");
}

#[tokio::test]
async fn keys_of_several_slots_are_held_together() {
    let nodes = cluster().await;
    let client = connect(&nodes[1]).await;
    let keys = ["{a}1", "{b}1", "{a}2", "{b}2", "c"];
    let all = client.multi_lock(keys);
    let guard = all.acquire().await.expect("free");
    assert_eq!(guard.tokens().count(), keys.len());
    assert!(client.multi_lock(["c", "{b}2"]).try_acquire().await.expect("an answer").is_none());
    guard.release().await.expect("it was held");
    for node in &nodes {
        assert_eq!(node.client().call("DBSIZE"), 0);
    }
}

/// Moves a lock from the first node to the second, and leaves its slot in migration: the first node
/// answers ASK for keys that it no longer has. Returns the number of the slot, and the name of the
/// second node.
pub(crate) fn begin_to_move_slot_of_first(nodes: &[Server; 2], key: &str) -> (i64, String) {
    let slot = nodes[0].client().call(format!("CLUSTER KEYSLOT {ON_FIRST}")).int();
    let [from, to] = nodes.each_ref().map(|node| node.client().call("CLUSTER MYID").text());
    assert_eq!(nodes[1].client().call(format!("CLUSTER SETSLOT {slot} IMPORTING {from}")), "OK");
    assert_eq!(nodes[0].client().call(format!("CLUSTER SETSLOT {slot} MIGRATING {to}")), "OK");
    move_key_of_first(nodes, key);
    (slot, to)
}

fn move_key_of_first(nodes: &[Server; 2], key: &str) {
    let migrate = format!("MIGRATE 127.0.0.1 {} {key} 0 5000", nodes[1].port());
    assert_eq!(nodes[0].client().call(migrate), "OK");
}

/// Moves the lock on the first node, and its slot, to the second.
fn move_slot_of_first(nodes: &[Server; 2]) {
    let (slot, to) = begin_to_move_slot_of_first(nodes, ON_FIRST);
    finish_move(nodes, slot, &to);
}

fn finish_move(nodes: &[Server; 2], slot: i64, to: &str) {
    for node in [&nodes[1], &nodes[0]] {
        assert_eq!(node.client().call(format!("CLUSTER SETSLOT {slot} NODE {to}")), "OK");
    }
}

/// One of the keys has moved and the other has not. Neither node has both, so both refuse the
/// request.
#[tokio::test]
async fn several_locks_in_a_migrating_slot_are_released_once_all_have_moved() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let keys = [1, 2].map(|number| format!("{ON_FIRST}{number}"));
    let all = client.multi_lock(&keys).fixed_lease(Duration::from_secs(600));
    let guard = all.try_acquire().await.expect("an answer").expect("free");
    let (slot, to) = begin_to_move_slot_of_first(&nodes, &keys[0]);
    let releasing = tokio::spawn(guard.release());
    let refused = || -> i64 { nodes.iter().map(|node| command_stat(node, "RLOCK.MRELEASE", "rejected_calls")).sum() };
    // The client asks one node or both, repeatedly.
    eventually(|| releasing.is_finished() || refused() >= 4).await;
    move_key_of_first(&nodes, &keys[1]);
    finish_move(&nodes, slot, &to);
    let outcome = tokio::time::timeout(PATIENCE, releasing).await.expect("it ends").expect("no panic");
    outcome.expect("they were held");
    assert!(nodes.iter().all(|node| node.client().call("DBSIZE") == 0));
}

/// The old node refused the first copy of the release, so that copy cannot have ended the hold.
#[tokio::test]
async fn redirected_release_reports_a_loss() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let guard = client.lock(ON_FIRST).try_acquire().await.expect("an answer").expect("a free lock");
    move_slot_of_first(&nodes);
    assert_eq!(nodes[1].client().call(format!("RLOCK.FORCERELEASE {ON_FIRST}")), 1);
    assert!(nodes[1].client().acquire(&format!("{ON_FIRST} other")) > 0);
    let outcome = guard.release().await;
    assert!(matches!(outcome, Err(Error::Lost)), "{outcome:?}");
}

/// Clients can reach this node, and it believes that it owns the slots. Here it never had all of
/// them, which looks the same from outside.
#[tokio::test]
async fn client_leaves_a_node_that_is_cut_off_from_its_cluster() {
    let (cut_off, whole) = (node(), node());
    assert_eq!(cut_off.client().call("CLUSTER ADDSLOTSRANGE 0 16382"), "OK");
    assert_eq!(whole.client().call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    eventually(|| whole.client().call("CLUSTER INFO").text().contains("cluster_state:ok")).await;
    let client = Client::builder().connect_cluster(&[&url(&cut_off), &url(&whole)]).await.expect("a cluster");
    let guard = client.lock(ON_FIRST).acquire().await.expect("a free lock");
    assert_eq!(whole.client().holder(ON_FIRST).map(|holder| holder.token as u64), Some(guard.token()));
    assert!(command_stat(&cut_off, "cluster|slots", "calls") > 0, "the client asked this node for the slots first");
}

/// The client sends no other request. The node is alive, and answers liveness checks.
#[tokio::test]
async fn waiter_leaves_a_node_that_is_cut_off_from_its_cluster() {
    let (cut_off, whole) = (node(), node());
    for node in [&cut_off, &whole] {
        assert_eq!(node.client().call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
        eventually(|| node.client().call("CLUSTER INFO").text().contains("cluster_state:ok")).await;
    }
    let options = Client::builder().ping_after(Duration::from_millis(20));
    let client = options.connect_cluster(&[&url(&cut_off), &url(&whole)]).await.expect("a cluster");
    cut_off.client().acquire(&format!("{ON_FIRST} stranger PX 600000"));
    let lock = client.lock(ON_FIRST);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    eventually(|| cut_off.client().waiting_owners(ON_FIRST).len() == 1).await;
    assert_eq!(cut_off.client().call("CLUSTER DELSLOTS 16383"), "OK");
    let guard = tokio::time::timeout(PATIENCE, waiting).await.expect("in time").expect("no panic").expect("a grant");
    assert_eq!(whole.client().holder(ON_FIRST).map(|holder| holder.token as u64), Some(guard.token()));
    guard.release().await.expect("it was held");
}

/// The old node still answers, so the connection looks healthy. At the new node the session counts
/// as closed.
#[tokio::test]
async fn session_follows_its_slot() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let grace = Duration::from_secs(2);
    let guard = client.lock(ON_FIRST).session_grace(grace).acquire().await.expect("free");
    move_slot_of_first(&nodes);
    tokio::time::sleep(grace * 2).await;
    assert!(guard.is_held());
    let holder = nodes[1].client().holder(ON_FIRST).expect("it is held there, too");
    assert_eq!((holder.owner.as_bytes(), holder.session), (guard.owner(), 1));
    guard.release().await.expect("it was held");
}

#[tokio::test]
async fn request_for_a_migrated_key_goes_to_the_importing_node() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let guard = client.lock(ON_FIRST).fixed_lease(Duration::from_secs(60)).acquire().await.expect("free");
    let token = guard.token();
    begin_to_move_slot_of_first(&nodes, ON_FIRST);
    // The holder at the second node, in a slot that it does not own yet.
    let holder = || {
        let mut second = nodes[1].client();
        assert_eq!(second.call("ASKING"), "OK");
        second.holder(ON_FIRST)
    };

    let other = client.lock(ON_FIRST).owner("other");
    assert!(other.try_acquire().await.expect("an answer").is_none(), "it is held at the second node");
    guard.renew().await.expect("it is held");
    assert_eq!(holder().expect("it is held").token as u64, token);
    guard.release().await.expect("it was held");
    assert!(holder().is_none());

    // A new hold is also created at the second node.
    let guard = other.try_acquire().await.expect("an answer").expect("free");
    assert!(guard.token() > token);
    assert_eq!(holder().expect("it is held").owner, "other");
    assert_eq!(nodes[0].client().call("DBSIZE"), 0);
    guard.release().await.expect("it was held");
}

#[tokio::test]
async fn holders_and_waiters_follow_a_moved_slot() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let lease = Duration::from_secs(3);
    let guard = client.lock(ON_FIRST).lease(lease).acquire().await.expect("free");
    let token = guard.token();
    let waiter = tokio::spawn({
        let lock = client.lock(ON_FIRST);
        async move { lock.acquire().await }
    });
    eventually(|| nodes[0].client().waiting_owners(ON_FIRST).len() == 1).await;

    move_slot_of_first(&nodes);

    tokio::time::sleep(lease * 2).await;
    assert!(guard.is_held(), "the hold is renewed at the new node");
    assert_eq!(guard.token(), token);
    guard.release().await.expect("it was held");
    let next = tokio::time::timeout(PATIENCE, waiter)
        .await
        .expect("the waiter is served")
        .expect("no panic")
        .expect("a grant");
    assert!(next.token() > token);
    assert_eq!(nodes[1].client().holder(ON_FIRST).map(|holder| holder.owner.into_bytes()), Some(next.owner().to_vec()));
}

/// A subscriber sends no requests, so no redirection tells it that the slot has moved.
#[tokio::test]
async fn subscribers_follow_a_moved_slot() {
    let nodes = cluster().await;
    for node in &nodes {
        node.client().call("CONFIG SET notify-keyspace-events KA");
    }
    let (holder, follower) = (connect(&nodes[0]).await, connect(&nodes[0]).await);
    let guard = holder.lock(ON_FIRST).acquire().await.expect("free");
    let mut events = follower.observe(ON_FIRST).events().await.expect("the server sends events");
    move_slot_of_first(&nodes);
    let missed = async { while events.next().await.expect("an event") != Event::Missed {} };
    tokio::time::timeout(PATIENCE, missed).await.expect("the subscriber learns that the slot has moved");
    guard.release().await.expect("it was held");
    let next = tokio::time::timeout(PATIENCE, events.next()).await.expect("in time").expect("an event");
    assert_eq!(next, Event::Released);
}

/// A redirection is not a server failure, so the client follows it even if it does not retry. If
/// the redirection names no host, it means the host of the node that answered.
#[tokio::test]
async fn single_attempt_follows_redirections() {
    for endpoint in ["ip", "unknown-endpoint"] {
        let nodes = cluster().await;
        for node in &nodes {
            let set = format!("CONFIG SET cluster-preferred-endpoint-type {endpoint}");
            assert_eq!(node.client().call(set), "OK");
        }
        let options = Client::builder();
        let client = options.connect_cluster(&[&url(&nodes[0])]).await.expect("a cluster");
        let lock = client.lock(ON_FIRST).fixed_lease(Duration::from_secs(60));
        // Not with `acquire`: the channel for waits in this slot would end with the slot, and the
        // connection with it.
        let guard = lock.try_acquire().await.expect("an answer").expect("free");
        let (slot, to) = begin_to_move_slot_of_first(&nodes, ON_FIRST);
        guard.renew().await.expect("the hold exists at that node");
        finish_move(&nodes, slot, &to);
        guard.renew().await.expect("it is held there");
        guard.release().await.expect("it was held");
    }
}

/// The client watches each connection, not just the first.
#[tokio::test]
async fn session_on_each_node_is_bound_to_its_next_connection_at_once() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let mut guards = Vec::new();
    for key in [ON_FIRST, ON_SECOND] {
        guards.push(client.lock(key).session_grace(Duration::from_secs(60)).acquire().await.expect("free"));
    }
    for (node, key) in nodes.iter().zip([ON_FIRST, ON_SECOND]) {
        kill_connections(node);
        // The next renewal is due after 10 s.
        let watch = Stopwatch::start();
        eventually(|| node.client().holder(key).is_some_and(|holder| holder.session == 1)).await;
        watch.assert_took_ms(0..5000, "a RENEW over the next connection");
    }
    assert!(guards.iter().all(|guard| guard.is_held()));
}

/// A client cannot wait at a node that is still importing the slot, so it polls there.
#[tokio::test]
async fn waiter_for_a_migrated_key_gets_the_lock() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    let guard = client.lock(ON_FIRST).fixed_lease(Duration::from_secs(60)).acquire().await.expect("free");
    begin_to_move_slot_of_first(&nodes, ON_FIRST);
    let short = client.lock(ON_FIRST).acquire_timeout(Duration::from_millis(300)).await;
    assert!(matches!(short, Err(Error::Timeout)), "{short:?}");
    let wait = |timeout: Option<Duration>| {
        let lock = client.lock(ON_FIRST);
        tokio::spawn(async move {
            let guard = match timeout {
                Some(timeout) => lock.acquire_timeout(timeout).await?,
                None => lock.acquire().await?,
            };
            guard.release().await
        })
    };
    let waiters = [wait(None), wait(Some(PATIENCE))];
    // Time itself: a waiter that gives up does so within it.
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(!waiters.iter().any(tokio::task::JoinHandle::is_finished), "it is held");
    guard.release().await.expect("it was held");
    for waiter in waiters {
        let outcome = tokio::time::timeout(PATIENCE, waiter).await.expect("the waiter is served").expect("no panic");
        outcome.expect("a grant, and its release");
    }
}

/// The client keeps trying to connect to the hanging node, for a second each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_hung_nodes_do_not_delay_requests_to_others() {
    let nodes = cluster_of([FIRST_HALF, "8192 15000", "15001 16383"]).await;
    for node in &nodes {
        assert_eq!(node.client().call("CONFIG SET cluster-node-timeout 600000"), "OK");
    }
    let seeds = nodes.each_ref().map(url);
    let second = Duration::from_secs(1);
    let options = Client::builder().connect_timeout(second).command_timeout(second);
    let client = options.connect_cluster(&seeds.each_ref().map(String::as_str)).await.expect("a cluster");
    // CRC16 of "d" is 11298.
    for key in [ON_FIRST, ON_SECOND, "d"] {
        client.lock(key).try_acquire().await.expect("an answer").expect("free").release().await.expect("it was held");
    }
    let all_hang = |work: &dyn Fn()| nodes[1].while_stopped(|| nodes[2].while_stopped(work));
    block_in_place(|| {
        all_hang(&|| {
            let lock = client.lock(ON_SECOND);
            let hanging = tokio::spawn(async move { lock.acquire().await.map(drop) });
            for _ in 0..120 {
                let watch = Stopwatch::start();
                let guard = Handle::current().block_on(client.lock(ON_FIRST).try_acquire()).expect("an answer");
                Handle::current().block_on(guard.expect("free").release()).expect("it was held");
                watch.assert_took_ms(0..700, "a lock of the other node");
                // Time itself: several attempts to connect fail within it.
                std::thread::sleep(Duration::from_millis(50));
            }
            assert!(!hanging.is_finished());
            hanging.abort();
        });
    });
}

#[tokio::test]
async fn client_leaves_a_node_without_slots() {
    let nodes = cluster().await;
    let client = connect(&nodes[0]).await;
    for key in [ON_FIRST, ON_SECOND] {
        client.lock(key).try_acquire().await.expect("an answer").expect("free").release().await.expect("it was held");
    }
    let to = nodes[1].client().call("CLUSTER MYID").text();
    let moves: Vec<_> = (0..8192).map(|slot| format!("CLUSTER SETSLOT {slot} NODE {to}").into()).collect();
    for node in [&nodes[1], &nodes[0]] {
        assert!(node.client().call_in_one_step(&moves).iter().all(|answer| *answer == "OK"));
    }
    assert_eq!(connections(&nodes[0]), 1, "the client has not noticed that the node has no slots");
    // When a request is lost with its connection, the client asks for the slot map.
    nodes[1].client().call("CLIENT PAUSE 60000 WRITE");
    let asking = tokio::spawn({
        let lock = client.lock(ON_SECOND);
        async move { lock.try_acquire().await }
    });
    eventually(|| nodes[1].client().call("CLIENT LIST TYPE normal").text().contains("flags=b")).await;
    kill_connections(&nodes[1]);
    nodes[1].client().call("CLIENT UNPAUSE");
    assert!(asking.await.expect("no panic").expect("an answer").is_some());
    eventually(|| connections(&nodes[0]) == 0).await;
}
