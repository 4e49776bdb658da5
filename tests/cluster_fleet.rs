//! Three primaries with one replica each: locks through a cluster client, slot moves, planned and
//! unplanned failovers.

use std::io::ErrorKind;
use std::time::Duration;

use crate::support::{
    Client, Cluster, Command, Reply, Server, Stopwatch, eventually, skipped_here, two_nodes, waits_by_notify,
};

const SOON: Duration = Duration::from_secs(20);

/// A blocked client learns within this time that another node serves its lock.
const NO_LONGER_THAN_MS: u64 = 2000;

/// The keys of a slot that moves: a held lock with waiters, a fair lock with connected and detached
/// places, and one key for each option that is stored.
struct Loaded {
    slot: i64,
    token: i64,
    fair_token: i64,
    blocked: Vec<Client>,
    /// Digests of the keys in [`WITH_OPTIONS`].
    digests: Reply,
}

/// A hold with a note, a kept lock, a semaphore with an idle time, and a place with its own grace.
const WITH_OPTIONS: &str = "{x}noted {x}kept {x}idle {x}grace";

const KEEP_MS: i64 = 90_000;

#[track_caller]
fn digests(client: &mut Client) -> Reply {
    client.call(format!("DEBUG DIGEST-VALUE {WITH_OPTIONS}"))
}

const FAIR_QUEUE: [&str; 4] = ["p1", "p2", "p3", "p4"];

#[track_caller]
fn load_slot(source: &Server) -> Loaded {
    let mut client = source.client();
    let slot = client.call("CLUSTER KEYSLOT {x}lock").int();
    let token = client.acquire("{x}lock a PX 120000");
    client.acquire("{x}lock a PX 120000");
    let fair_token = client.acquire_fair("{x}fair a PX 120000");
    let mut blocked: Vec<_> =
        ["b", "c"].map(|owner| source.waiter(format!("RLOCK.ACQUIRE {{x}}lock {owner} PX 60000 BLOCK 0"))).into();
    for owner in FAIR_QUEUE {
        let ask = |how| format!("RFAIRLOCK.ACQUIRE {{x}}fair {owner} PX 60000 {how}");
        match owner {
            "p2" => assert_eq!(client.call(ask("QUEUE 120000")), Reply::Nil),
            _ => blocked.push(source.waiter(ask("BLOCK 0"))),
        }
    }
    client.acquire("{x}noted a PX 120000 NOTE host-1");
    client.acquire("{x}kept a PX 120000");
    assert_eq!(client.call(format!("RLOCK.RELEASE {{x}}kept a KEEP {KEEP_MS}")), 1);
    assert_eq!(client.call("RSEMAPHORE.INIT {x}idle 2 IDLE 600000"), 1);
    client.acquire_fair("{x}grace a PX 120000");
    blocked.push(source.waiter("RFAIRLOCK.ACQUIRE {x}grace b PX 60000 BLOCK 0 GRACE 90000"));
    let digests = digests(&mut client);
    Loaded { slot, token, fair_token, blocked, digests }
}

impl Loaded {
    /// Each blocked client is redirected to the new node, or told that its wait has ended.
    #[track_caller]
    fn assert_sent_on(&mut self, watch: &Stopwatch, code: &str) {
        for waiter in &mut self.blocked {
            // A waiter with NOTIFY learns of the move when its subscription ends.
            waiter.reply().expect_error(if waits_by_notify() { "UNBLOCKED" } else { code });
        }
        watch.assert_took_ms(0..NO_LONGER_THAN_MS, code);
    }

    /// The new node has the same locks, and serves the waiters that ask again in their old order.
    #[track_caller]
    fn assert_served_by(&self, target: &Server) {
        let mut client = target.client();
        assert_eq!(client.holder("{x}lock").expect("a holder").identity(), ("a", 2, self.token));
        assert_eq!(client.holder("{x}fair").expect("a holder").identity(), ("a", 1, self.fair_token));
        assert_eq!(digests(&mut client), self.digests, "note, KEEP, IDLE and GRACE moved");
        assert!((1..=KEEP_MS).contains(&client.call("RLOCK.PTTL {x}kept").int()));
        // A node reconciles imported keys a moment after it owns the slot.
        eventually(SOON, || client.places("{x}fair") == FAIR_QUEUE.map(|owner| format!("{owner} detached")));

        let mut b = target.waiter("RLOCK.ACQUIRE {x}lock b PX 60000 BLOCK 0");
        assert_eq!(client.call("RLOCK.RELEASE {x}lock a"), 1);
        assert_eq!(client.call("RLOCK.RELEASE {x}lock a"), 0);
        let mut last = b.reply().int();
        assert!(last > self.token);

        // The owners reconnect in another order than their places have.
        let mut newcomer = target.waiter("RFAIRLOCK.ACQUIRE {x}fair newcomer PX 60000 BLOCK 0");
        let ask = |owner| target.waiter(format!("RFAIRLOCK.ACQUIRE {{x}}fair {owner} PX 60000 BLOCK 0"));
        let mut returning = [ask("p4"), ask("p2"), ask("p1"), ask("p3")];
        assert_eq!(client.call("RFAIRLOCK.RELEASE {x}fair a"), 0);
        for (owner, at) in [("p1", 2), ("p2", 1), ("p3", 3), ("p4", 0)] {
            let token = returning[at].reply().int();
            assert!(token > last.max(self.fair_token), "{owner}: {token} after {last}");
            last = token;
            assert_eq!(client.call(format!("RFAIRLOCK.RELEASE {{x}}fair {owner}")), 0);
        }
        assert!(newcomer.reply().int() > last);
    }
}

/// The replica of the current primary has the locks, too.
#[track_caller]
fn assert_replicated(cluster: &Cluster, loaded: &Loaded) {
    let (primary, replica) = (cluster.primary_of("{x}lock"), cluster.replica_of("{x}lock"));
    replica.catch_up_with(primary);
    let mut client = replica.client();
    assert_eq!(client.call("READONLY"), "OK");
    assert_eq!(client.holder("{x}lock").expect("a holder").identity(), ("a", 2, loaded.token));
    assert_eq!(client.places("{x}fair").len(), FAIR_QUEUE.len());
}

/// Sets a grace that is longer than a busy machine needs to move a slot.
fn lengthen_grace(cluster: &Cluster) {
    for node in cluster.nodes() {
        assert_eq!(node.client().call("CONFIG SET rlock.fair-grace-ms 60000"), "OK");
    }
}

/// No node grants the lock to another owner, not even after a retry.
#[track_caller]
fn assert_held_once(nodes: [&Server; 2], blocked: &mut [Client]) {
    for node in nodes {
        for command in ["RLOCK.ACQUIRE {x}lock intruder", "RFAIRLOCK.ACQUIRE {x}fair intruder"] {
            let mut client = node.client();
            for _ in 0..2 {
                let answer = client.call(command);
                assert!(!matches!(answer, Reply::Int(_)), "{command} was granted: {answer:?}");
            }
        }
    }
    for waiter in blocked {
        // A node that grants by mistake has 20 ms to do so.
        let answer = waiter.reply_within(Duration::from_millis(20));
        assert_eq!(answer.unwrap_err().kind(), ErrorKind::TimedOut);
    }
}

#[test]
fn locks_work_through_a_cluster_client() {
    let cluster = Cluster::start();
    let mut client = cluster.client();
    let mut last_token = 0;
    let mut ports = Vec::new();
    for number in 0..12 {
        let key = format!("job-{number}");
        let token = client.call(format!("RLOCK.ACQUIRE {key} a PX 60000")).int();
        assert!(token > last_token, "tokens rise across nodes, which share one clock");
        let primary = cluster.primary_of(&key);
        ports.push(primary.port());
        let mut b = primary.waiter(format!("RLOCK.ACQUIRE {key} b PX 60000 BLOCK 0"));
        assert_eq!(client.call(format!("RLOCK.RELEASE {key} a")), 0);
        last_token = b.reply().int();
        assert!(last_token > token);
        assert_eq!(client.call(format!("RLOCK.HOLDS {key} b")), 1);
    }
    ports.sort_unstable();
    ports.dedup();
    assert_eq!(ports.len(), 3, "the keys are spread over all primaries");
}

#[test]
fn slot_moves_with_its_locks_and_fair_queue() {
    let cluster = Cluster::start();
    lengthen_grace(&cluster);
    let (source, target) = (cluster.primary_of("{x}lock"), cluster.other_primary("{x}lock"));
    let (mut on_source, mut on_target) = (source.client(), target.client());
    let ids = [&mut on_source, &mut on_target].map(|client| client.call("CLUSTER MYID").text());
    let mut loaded = load_slot(source);
    let slot = loaded.slot;

    assert_eq!(on_target.call(format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0])), "OK");
    assert_eq!(on_source.call(format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1])), "OK");
    assert_held_once([source, target], &mut loaded.blocked);
    let keys = format!("{{x}}lock {{x}}fair {WITH_OPTIONS}");
    let mut migrate = Command::from(format!("MIGRATE 127.0.0.1 {} _ 0 5000 KEYS {keys}", target.port()));
    migrate.0[3] = Vec::new();
    assert_eq!(on_source.call(migrate), "OK");
    assert_held_once([source, target], &mut loaded.blocked);
    // A client that follows ASK reaches the lock during the move.
    on_source.call("RLOCK.RELEASE {x}lock a").expect_error("ASK");
    let mut roaming = cluster.client();
    assert_eq!(roaming.call("RLOCK.HOLDS {x}lock a"), 2);

    let watch = Stopwatch::start();
    for client in [&mut on_target, &mut on_source] {
        assert_eq!(client.call(format!("CLUSTER SETSLOT {slot} NODE {}", ids[1])), "OK");
    }
    loaded.assert_sent_on(&watch, "MOVED");
    assert_replicated(&cluster, &loaded);
    eventually(SOON, || on_source.info_number("rlock_waiting") == 0);
    assert_eq!(on_source.info_number("rlock_held"), 0);
    loaded.assert_served_by(target);
}

/// Newer servers can move a slot atomically. Valkey 9 takes the command at the source, Redis 8.4 at
/// the target.
#[track_caller]
fn move_slot_atomically(slot: i64, source: &mut Client, target: &mut Client) -> Option<()> {
    let id = target.call("CLUSTER MYID").text();
    let commands = [
        (source, format!("CLUSTER MIGRATESLOTS SLOTSRANGE {slot} {slot} NODE {id}")),
        (target, format!("CLUSTER MIGRATION IMPORT {slot} {slot}")),
    ];
    for (client, command) in commands {
        match client.call(command) {
            Reply::Error(line) if line.to_lowercase().contains("unknown subcommand") => {}
            Reply::Error(line) => panic!("{line}"),
            _ => return Some(()),
        }
    }
    None
}

#[test]
fn atomic_slot_move_takes_its_locks_along() {
    let cluster = Cluster::start();
    lengthen_grace(&cluster);
    let (source, target) = (cluster.primary_of("{x}lock"), cluster.other_primary("{x}lock"));
    let (mut on_source, mut on_target) = (source.client(), target.client());
    let mut loaded = load_slot(source);
    if move_slot_atomically(loaded.slot, &mut on_source, &mut on_target).is_none() {
        skipped_here("the server moves no slot by itself");
        return;
    }
    eventually(SOON, || !matches!(on_target.call("EXISTS {x}lock"), Reply::Error(_)));
    loaded.assert_sent_on(&Stopwatch::start(), "MOVED");
    assert_replicated(&cluster, &loaded);
    loaded.assert_served_by(target);
    eventually(SOON, || on_source.info_number("rlock_waiting") == 0);
    eventually(SOON, || on_source.info_number("rlock_held") == 0);
}

/// A server checks each blocked client about once per second, and redirects it then. If the slot is
/// back before the check, the client's request is served here.
#[test]
fn waiters_are_served_or_redirected_when_a_slot_moves_away_and_back() {
    const LOCKS: usize = 8;
    let nodes = two_nodes();
    let [mut here, mut there] = nodes.each_ref().map(Server::client);
    let slot = here.call("CLUSTER KEYSLOT {x}").int();
    let mut crowd = Vec::new();
    let mut waiters: Vec<_> = (0..LOCKS)
        .map(|lock| {
            crowd.extend((0..LOCKS).map(|_| nodes[0].client()));
            here.acquire(&format!("{{x}}{lock} a PX 600000"));
            nodes[0].blocked_waiter(format!("RLOCK.ACQUIRE {{x}}{lock} b PX 600000 BLOCK 0"))
        })
        .collect();
    if move_slot_atomically(slot, &mut here, &mut there).is_none() {
        skipped_here("the server moves no slot by itself");
        return;
    }
    for lock in 0..LOCKS {
        eventually(SOON, || there.call(format!("RLOCK.RELEASE {{x}}{lock} a")) == 0);
    }
    move_slot_atomically(slot, &mut there, &mut here);
    eventually(SOON, || !matches!(here.call("EXISTS {x}"), Reply::Error(_)));
    for waiter in &mut waiters {
        let answer = waiter.reply_within(SOON).expect("the waiter is redirected or served");
        assert!(matches!(answer, Reply::Int(_) | Reply::Error(_)), "{answer:?}");
    }
}

#[test]
fn planned_failover_keeps_holds_and_ends_waits() {
    let cluster = Cluster::start();
    lengthen_grace(&cluster);
    let (old, new) = (cluster.primary_of("{x}lock"), cluster.replica_of("{x}lock"));
    let mut loaded = load_slot(old);
    new.catch_up_with(old);
    assert_eq!(new.client().call("CLUSTER FAILOVER"), "OK");
    eventually(SOON, || old.client().info("role") == "slave");
    let watch = Stopwatch::start();
    for waiter in &mut loaded.blocked {
        let answer = waiter.reply();
        assert!(matches!(answer, Reply::Error(_)), "{answer:?}");
    }
    watch.assert_took_ms(0..NO_LONGER_THAN_MS, "an error");
    // The other nodes learn of it over time.
    let mut client = new.client();
    eventually(SOON, || client.info("role") == "master" && client.call("EXISTS {x}lock") == 1);
    loaded.assert_served_by(new);
}

#[test]
fn replica_takes_over_from_a_killed_primary() {
    let mut cluster = Cluster::start();
    lengthen_grace(&cluster);
    let old = cluster.primary_of("{x}lock").port();
    let new = cluster.replica_of("{x}lock").port();
    let mut loaded = load_slot(cluster.primary_of("{x}lock"));
    let mut client = cluster.node_mut(old).client();
    client.acquire("{x}expiring a PX 500");
    assert_eq!(client.call("WAIT 1 10000"), 1);

    cluster.node_mut(old).kill();
    for waiter in &mut loaded.blocked {
        assert_eq!(waiter.reply_within(SOON).unwrap_err().kind(), ErrorKind::UnexpectedEof);
    }
    let mut on_new = cluster.node_mut(new).client();
    eventually(SOON, || on_new.info("role") == "master");
    // A cluster client finds the new primary, which grants the lock whose lease expired meanwhile.
    let mut roaming = cluster.client_of(new);
    assert!(roaming.call("RLOCK.ACQUIRE {x}expiring b PX 60000 BLOCK 0").int() > loaded.token);
    loaded.assert_served_by(cluster.node_mut(new));

    cluster.node_mut(old).restart_in_place(&[]);
    cluster.wait_until_whole();
    let mut on_old = cluster.node_mut(old).client();
    assert_eq!(on_old.info("role"), "slave");
    let token = |client: &mut Client| {
        client.call("READONLY");
        client.holder("{x}lock").map(|holder| holder.token)
    };
    assert_eq!(token(&mut on_old), token(&mut on_new));
}
