//! BLOCK … NOTIFY in a cluster: a channel moves with its slot, and waits with that channel end.

use std::time::Duration;

use crate::at_rest::assert_sleeps;
use crate::support::{Client, Cluster, Command, Reply, Server, Stopwatch, eventually, message, two_nodes};

const SOON: Duration = Duration::from_secs(20);

/// Waits whose channel is gone end within this time.
const NO_LONGER_THAN_MS: u64 = 2000;

/// A slot with a lock, on the first of two nodes, and the commands that move it.
struct Slot {
    nodes: [Server; 2],
    ids: [String; 2],
    number: i64,
}

const KEY: &str = "{x}lock";

impl Slot {
    #[track_caller]
    fn new() -> Slot {
        let nodes = two_nodes();
        let ids = nodes.each_ref().map(|node| node.client().call("CLUSTER MYID").text());
        let number = nodes[0].client().call(format!("CLUSTER KEYSLOT {KEY}")).int();
        let mut slot = Slot { nodes, ids, number: number - 1 };
        // A node that loses its last slot becomes a replica. So the second node gets the slot
        // before this one, and keeps it.
        slot.hand_over(0, 1);
        slot.number = number;
        slot
    }

    /// Moves the key. The slot still belongs to `from`.
    #[track_caller]
    fn send(&self, from: usize, to: usize) {
        let (mut source, mut target) = (self.nodes[from].client(), self.nodes[to].client());
        let slot = self.number;
        assert_eq!(target.call(format!("CLUSTER SETSLOT {slot} IMPORTING {}", self.ids[from])), "OK");
        assert_eq!(source.call(format!("CLUSTER SETSLOT {slot} MIGRATING {}", self.ids[to])), "OK");
        assert_eq!(source.call(format!("MIGRATE 127.0.0.1 {} {KEY} 0 5000", self.nodes[to].port())), "OK");
    }

    #[track_caller]
    fn hand_over(&self, from: usize, to: usize) {
        for node in [to, from] {
            let mut client = self.nodes[node].client();
            assert_eq!(client.call(format!("CLUSTER SETSLOT {} NODE {}", self.number, self.ids[to])), "OK");
        }
    }

    #[track_caller]
    fn migrate(&self, from: usize, to: usize) {
        self.send(from, to);
        self.hand_over(from, to);
    }
}

/// Subscribes to this many channels of the slot.
#[track_caller]
fn shard_subscriber(node: &Server, channels: usize) -> Client {
    let mut client = node.client();
    for first in (0..channels).step_by(100) {
        let names = (first..channels.min(first + 100)).map(|channel| format!(" {{x}}answers:{channel}"));
        let count = names.len();
        client
            .try_send(&[Command::from(format!("SSUBSCRIBE{}", names.collect::<String>()))])
            .expect("the node accepts the command");
        for _ in 0..count {
            assert_eq!(client.reply().array()[0], "ssubscribe");
        }
    }
    client
}

/// Sends this many waiting requests, each with its own channel.
#[track_caller]
fn wait(client: &mut Client, channels: usize) {
    for first in (0..channels).step_by(100) {
        let ask = |channel: usize| {
            let id = channel + 1;
            format!("RLOCK.ACQUIRE {KEY} owner-{channel} PX 60000 BLOCK 0 NOTIFY {{x}}answers:{channel} REQ {id}")
                .into()
        };
        let asked: Vec<Command> = (first..channels.min(first + 100)).map(ask).collect();
        assert!(client.call_in_one_step(&asked).iter().all(|reply| *reply == "WAITING"), "all requests wait");
    }
}

#[track_caller]
fn assert_unsubscribed(messages: &mut Client, channels: usize) {
    for _ in 0..channels {
        assert_eq!(messages.reply().array()[0], "sunsubscribe");
    }
}

#[test]
fn cluster_channel_belongs_to_the_keys_shard_and_moves_with_it() {
    let cluster = Cluster::start();
    let (source, target) = (cluster.primary_of("{x}lock"), cluster.other_primary("{x}lock"));
    let (mut client, mut messages) = (source.client(), source.client());
    messages.call("SSUBSCRIBE {x}answers");
    client.acquire("{x}lock a PX 60000");
    // Redis 8.6 counts the channel among the command's keys, and returns its own error.
    let refused = client.call("RLOCK.ACQUIRE {x}lock b BLOCK 0 NOTIFY answers REQ 1");
    let is_refused =
        ["CROSSSLOT", "MOVED"].iter().any(|code| matches!(&refused, Reply::Error(line) if line.starts_with(code)));
    assert!(is_refused, "{refused:?}");
    assert_eq!(client.call("RLOCK.ACQUIRE {x}lock b PX 60000 BLOCK 0 NOTIFY {x}answers REQ 1"), "WAITING");
    client.call("RLOCK.RELEASE {x}lock a");
    assert!(message(&mut messages).starts_with("granted 1 "));
    assert_eq!(client.call("RLOCK.ACQUIRE {x}lock c PX 60000 BLOCK 0 NOTIFY {x}answers REQ 2"), "WAITING");
    let slot = client.call("CLUSTER KEYSLOT {x}lock").int();
    let id = target.client().call("CLUSTER MYID").text();
    let mut migrate = Command::from(format!("MIGRATE 127.0.0.1 {} _ 0 5000 KEYS {{x}}lock", target.port()));
    migrate.0[3] = Vec::new();
    let source_id = client.call("CLUSTER MYID").text();
    target.client().call(format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
    client.call(format!("CLUSTER SETSLOT {slot} MIGRATING {id}"));
    assert_eq!(client.call(migrate), "OK");
    // The channel is still here, so none of the server's checks during this time may end the wait.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!(client.info_number("rlock_waiting"), 1);
    for node in [target, source] {
        assert_eq!(node.client().call(format!("CLUSTER SETSLOT {slot} NODE {id}")), "OK");
    }
    assert_eq!(messages.reply().array()[0], "sunsubscribe");
    eventually(SOON, || client.info_number("rlock_waiting") == 0);
}

#[test]
fn timed_waits_on_15_000_channels_end_soon_after_their_slot_moved() {
    const CHANNELS: usize = 15_000;
    let slot = Slot::new();
    let mut client = slot.nodes[0].client();
    client.acquire(&format!("{KEY} a PX 60000"));
    let mut messages = shard_subscriber(&slot.nodes[0], CHANNELS);
    wait(&mut client, CHANNELS);
    slot.send(0, 1);
    let watch = Stopwatch::start();
    slot.hand_over(0, 1);
    eventually(SOON, || client.info_number("rlock_waiting") == 0);
    watch.assert_took_ms(0..NO_LONGER_THAN_MS, "the end of the waits");
    assert_unsubscribed(&mut messages, CHANNELS);
}

/// The server cannot check the channels in between, because both commands run in one step.
#[test]
fn timed_waits_end_even_if_their_slot_returns_at_once() {
    const CHANNELS: usize = 200;
    let slot = Slot::new();
    let mut client = slot.nodes[0].client();
    client.acquire(&format!("{KEY} a PX 60000"));
    let mut messages = shard_subscriber(&slot.nodes[0], CHANNELS);
    wait(&mut client, CHANNELS);
    let away_and_back = ["DELSLOTS", "ADDSLOTS"].map(|what| Command::from(format!("CLUSTER {what} {}", slot.number)));
    let watch = Stopwatch::start();
    assert!(client.call_in_one_step(&away_and_back).iter().all(|reply| *reply == "OK"));
    eventually(SOON, || client.info_number("rlock_waiting") == 0);
    watch.assert_took_ms(0..NO_LONGER_THAN_MS, "the end of the waits");
    assert_unsubscribed(&mut messages, CHANNELS);
    assert_eq!(client.call(format!("RLOCK.RELEASE {KEY} a")), 0);
    assert!(client.is_free(KEY), "no request waits any longer");
}

#[test]
fn returned_slot_serves_only_requests_that_were_repeated() {
    let slot = Slot::new();
    let (mut client, mut on_target) = (slot.nodes[0].client(), slot.nodes[1].client());
    client.acquire(&format!("{KEY} a PX 60000"));
    let mut messages = shard_subscriber(&slot.nodes[0], 2);
    wait(&mut client, 2);
    slot.migrate(0, 1);
    assert_unsubscribed(&mut messages, 2);
    on_target.acquire(&format!("{KEY} a PX 60000"));
    slot.migrate(1, 0);
    // One of the two waiters subscribes and asks again.
    eventually(SOON, || !matches!(client.call(format!("EXISTS {KEY}")), Reply::Error(_)));
    assert_eq!(messages.call("SSUBSCRIBE {x}answers:1").array()[0], "ssubscribe");
    let ask = format!("RLOCK.ACQUIRE {KEY} owner-1 PX 60000 BLOCK 0 NOTIFY {{x}}answers:1 REQ 3");
    assert_eq!(client.call(ask), "WAITING");
    eventually(SOON, || client.waiting_owners(KEY) == ["owner-1"]);
    assert_eq!(client.call(format!("RLOCK.RELEASE {KEY} a")), 1);
    assert_eq!(client.call(format!("RLOCK.RELEASE {KEY} a")), 0);
    let token = client.holder(KEY).expect("a holder").token;
    let mut received = message(&mut messages);
    if received.starts_with("error 2 SUPERSEDED ") {
        // The waiter subscribed before the server's check, so its first wait continued until it
        // asked again.
        received = message(&mut messages);
    }
    assert!(received.starts_with(&format!("granted 3 {token} for ")), "{received}");
}

/// A wait times out at the node where it began, even while its key is already elsewhere.
#[test]
fn timed_wait_times_out_while_its_slot_moves() {
    let slot = Slot::new();
    let mut client = slot.nodes[0].client();
    client.acquire(&format!("{KEY} a PX 60000"));
    let mut messages = shard_subscriber(&slot.nodes[0], 1);
    let watch = Stopwatch::start();
    assert_eq!(client.call(format!("RLOCK.ACQUIRE {KEY} b BLOCK 1500 NOTIFY {{x}}answers:0 REQ 1")), "WAITING");
    slot.send(0, 1);
    assert_eq!(message(&mut messages), "nil 1");
    watch.assert_took_ms(1500..1500 + NO_LONGER_THAN_MS, "the wait");
}

/// A waiter that asks before it subscribes must not be treated as one that lost its subscription.
#[test]
fn wait_continues_before_its_channel_has_a_subscriber() {
    let slot = Slot::new();
    let mut client = slot.nodes[0].client();
    client.acquire(&format!("{KEY} a PX 60000"));
    wait(&mut client, 2);
    // A server that ends the wait by mistake has 500 ms to do so.
    std::thread::sleep(Duration::from_millis(500));
    let mut messages = shard_subscriber(&slot.nodes[0], 1);
    client.call(format!("RLOCK.RELEASE {KEY} a"));
    assert!(message(&mut messages).starts_with("granted 1 "));
    assert_eq!(client.waiting_owners(KEY), ["owner-1"]);
}

#[test]
fn node_sleeps_after_a_slot_with_waiters_moved() {
    let slot = Slot::new();
    let mut client = slot.nodes[0].client();
    client.acquire(&format!("{KEY} a PX 600000"));
    wait(&mut client, 1);
    let mut blocked = slot.nodes[0].blocked_waiter(format!("RLOCK.ACQUIRE {KEY} b BLOCK 0"));
    slot.migrate(0, 1);
    blocked.reply_within(SOON).expect("the waiter is redirected").expect_error("MOVED");
    eventually(SOON, || client.info_number("rlock_waiting") == 0);
    assert_sleeps(&slot.nodes[0]);
}

/// In each tick the server checks a few channels of a slot, however many exist and whether or not
/// they have subscribers.
#[test]
fn node_sleeps_while_requests_wait_on_15_000_channels() {
    const CHANNELS: usize = 15_000;
    for is_heard in [true, false] {
        let slot = Slot::new();
        let mut client = slot.nodes[0].client();
        client.acquire(&format!("{KEY} a PX 600000"));
        let _messages = shard_subscriber(&slot.nodes[0], if is_heard { CHANNELS } else { 0 });
        wait(&mut client, CHANNELS);
        assert_sleeps(&slot.nodes[0]);
        assert_eq!(client.info_number("rlock_waiting"), CHANNELS as i64);
    }
}
