//! A slot moves to another node while its locks are held and waited for.

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Command, Reply, Server, eventually, free_port, two_nodes};

const SOON: Duration = Duration::from_secs(20);

#[track_caller]
pub fn assert_still_waiting(waiter: &mut Client) {
    // A module that grants by mistake has 50 ms to do so.
    let answer = waiter.reply_within(Duration::from_millis(50));
    assert_eq!(answer.unwrap_err().kind(), ErrorKind::TimedOut);
}

#[test]
fn lock_moves_with_its_slot_and_waiters_get_moved_once() {
    let [source, target] = two_nodes();
    let (mut on_source, mut on_target) = (source.client(), target.client());
    let ids = [&mut on_source, &mut on_target].map(|client| client.call("CLUSTER MYID").text());
    let slot = on_source.call("CLUSTER KEYSLOT job").int();
    let token = on_source.acquire("job a PX 60000");
    on_source.acquire("job a PX 60000");
    let mut waiter = source.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");

    on_target.call(format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    on_source.call(format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    let migrate = format!("MIGRATE 127.0.0.1 {} job 0 5000", target.port());
    assert_eq!(on_source.call(migrate), "OK");
    // The key looks free here now. If a waiter were granted the lock here, it would hold it beside
    // the owner on the other node.
    assert_still_waiting(&mut waiter);
    on_source.call("RLOCK.ACQUIRE job c").expect_error("ASK");

    for client in [&mut on_target, &mut on_source] {
        assert_eq!(client.call(format!("CLUSTER SETSLOT {slot} NODE {}", ids[1])), "OK");
    }
    waiter.reply().expect_error("MOVED");
    assert_eq!(on_source.info_number("rlock_waiting"), 0);
    assert_eq!(on_source.info_number("rlock_held"), 0);

    let holder = on_target.holder("job").expect("a holder");
    assert_eq!(holder.identity(), ("a", 2, token));
    assert!(holder.lease_ms > 50_000, "{holder:?}");
    let mut waiter = target.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    assert_eq!(on_target.call("RLOCK.FORCERELEASE job"), 1);
    assert!(waiter.reply().int() > token);
}

/// On the source a missing key may already have moved; on the target the slot has not arrived yet.
#[test]
fn waiter_for_a_key_deleted_during_a_slot_move_is_granted_after_the_move() {
    let nodes = two_nodes();
    let mut clients = nodes.each_ref().map(|node| node.client());
    let [source_id, target_id] = clients.each_mut().map(|client| client.call("CLUSTER MYID").text());
    let [on_source, on_target] = &mut clients;
    let slot = on_source.call("CLUSTER KEYSLOT {job}").int();
    on_source.acquire("{job}:1 a PX 60000");
    let mut at_source = nodes[0].blocked_waiter("RLOCK.ACQUIRE {job}:1 b PX 60000 BLOCK 0");
    on_target.call(format!("CLUSTER SETSLOT {slot} IMPORTING {source_id}"));
    on_source.call(format!("CLUSTER SETSLOT {slot} MIGRATING {target_id}"));
    assert_eq!(on_source.call("DEL {job}:1"), 1);

    let mut waiter = nodes[1].client();
    let mut ask = |command: &str| {
        assert_eq!(on_target.call("ASKING"), "OK");
        on_target.call(command)
    };
    assert!(ask("RLOCK.ACQUIRE {job}:2 a PX 60000").int() > 0);
    assert_eq!(waiter.call("ASKING"), "OK");
    waiter.send("RLOCK.ACQUIRE {job}:2 b PX 60000 BLOCK 0");
    eventually(SOON, || nodes[1].client().info_number("rlock_waiting") == 1);
    assert_eq!(ask("DEL {job}:2"), 1);

    assert_still_waiting(&mut at_source);
    assert_still_waiting(&mut waiter);
    assert_eq!(on_target.call(format!("CLUSTER SETSLOT {slot} NODE {target_id}")), "OK");
    assert!(waiter.reply().int() > 0);
    assert_eq!(on_source.call(format!("CLUSTER SETSLOT {slot} NODE {target_id}")), "OK");
    at_source.reply().expect_error("MOVED");
}

/// While a command runs, the server files every key it touches under that command's slot. A lock
/// granted in another slot at that moment would be stored where no lookup finds it, and the next
/// client would be granted it again.
#[test]
fn command_leaves_grants_in_another_slot_to_the_timer() {
    const SETS: usize = 200;
    let [node, _other] = two_nodes();
    let mut client = node.client();
    let mut listener = node.client();
    listener.call("SSUBSCRIBE {there}answers");
    let count = |client: &mut Client, tag: &str| {
        let slot = client.call(format!("CLUSTER KEYSLOT {tag}")).int();
        client.call(format!("CLUSTER COUNTKEYSINSLOT {slot}")).int()
    };
    let slot = client.call("CLUSTER KEYSLOT here").int();
    for set in 1..=SETS {
        client.acquire(&format!("{{there}}{set} holder PX 60000"));
        let keys = format!("{{there}}{set} {{there}}{set}b {{there}}{set}c");
        let asks = format!("RLOCK.MACQUIRE 3 {keys} w{set} PX 60000 BLOCK 0 NOTIFY {{there}}answers REQ {set}");
        assert_eq!(client.call(asks), "WAITING");
    }
    // Together these releases use up the budget of one step, so some waiters are left. The MACQUIRE
    // that follows may do a little more work.
    let mut step: Vec<Command> = (1..=SETS).map(|set| format!("RLOCK.RELEASE {{there}}{set} holder").into()).collect();
    step.push("INFO rlock".into());
    step.push("RLOCK.MACQUIRE 2 {here}1 {here}2 a PX 60000".into());
    step.push(format!("CLUSTER COUNTKEYSINSLOT {slot}").into());
    let replies = client.call_in_one_step(&step);
    assert!(!replies[SETS].text().contains("rlock_waiting:0\r"), "some waiters are left for the next command");
    assert_eq!(replies[SETS + 2], 2, "other keys in the command's slot");
    eventually(SOON, || client.info_number("rlock_waiting") == 0);
    assert_eq!((count(&mut client, "here"), count(&mut client, "there")), (2, 3 * SETS as i64));
    for set in 1..=SETS {
        assert_eq!(client.call(format!("RLOCK.ACQUIRE {{there}}{set} intruder")), Reply::Nil, "set {set}");
    }
}

#[test]
fn node_grants_nothing_while_its_cluster_is_down() {
    let bus = format!("cluster-port {}", free_port());
    let node = Server::with(&["cluster-enabled yes", &bus]);
    let mut client = node.client();
    // The node serves the key's slot, but no node serves the slots above 10,000.
    assert_eq!(client.call("CLUSTER ADDSLOTSRANGE 0 10000"), "OK");
    let slot = client.call("CLUSTER KEYSLOT job").int();
    assert!(slot < 10000, "{slot}");
    for command in [
        "RLOCK.ACQUIRE job a",
        "RLOCK.ACQUIRE job a BLOCK 0 NOTIFY {job} REQ 1",
        "RLOCK.MACQUIRE 1 job a",
        "RFAIRLOCK.ACQUIRE job a QUEUE 1000",
    ] {
        client.call(command).expect_error("CLUSTERDOWN");
    }
}

/// The server itself refuses new requests. The module has to handle leases that expire meanwhile,
/// and waiters without a blocked connection.
#[test]
fn lock_freed_while_the_cluster_is_down_is_granted_when_it_is_up() {
    granted_when_the_cluster_is_up_again("no");
}

/// `cluster-allow-reads-when-down` must not make the module grant locks.
#[test]
fn lock_freed_while_a_down_cluster_allows_reads_is_granted_when_it_is_up() {
    granted_when_the_cluster_is_up_again("yes");
}

fn granted_when_the_cluster_is_up_again(allow_reads_when_down: &str) {
    let [node, _other] = two_nodes();
    let setting = format!("CONFIG SET cluster-allow-reads-when-down {allow_reads_when_down}");
    assert_eq!(node.client().call(setting), "OK");
    let (mut client, mut holder) = (node.client(), node.client());
    let keys = ["{job}expires", "{job}closes"];
    client.acquire("{job}expires a PX 1000");
    let expires_at = Instant::now() + Duration::from_millis(1000);
    holder.acquire("{job}closes a PX 60000 SESSION 0");
    let mut blocked = keys.map(|key| node.blocked_waiter(format!("RLOCK.ACQUIRE {key} b PX 60000 BLOCK 0")));
    let mut notified = keys.map(|key| node.notified_waiter(format!("RLOCK.ACQUIRE {key} c PX 60000 BLOCK 0")));
    let mut wait_for_state = |change: &str, state: &str| {
        assert_eq!(client.call(change), "OK");
        eventually(SOON, || client.call("CLUSTER INFO").text().contains(&format!("cluster_state:{state}")));
    };
    // One unserved slot is enough to take the cluster down.
    wait_for_state("CLUSTER DELSLOTS 0", "fail");
    drop(holder);
    for waiter in &mut blocked {
        waiter.reply().expect_error("CLUSTERDOWN");
    }
    // By then the lease has expired and the session has ended.
    thread::sleep(expires_at.saturating_duration_since(Instant::now()));
    notified.iter_mut().for_each(assert_still_waiting);
    assert_eq!(node.client().info_number("rlock_waiting"), 2);
    wait_for_state("CLUSTER ADDSLOTS 0", "ok");
    for waiter in &mut notified {
        waiter.reply().int();
    }
}

#[test]
fn node_without_the_slot_replies_moved() {
    let [source, target] = two_nodes();
    let mut client = target.client();
    for command in ["RLOCK.ACQUIRE job a BLOCK 0", "RLOCK.RELEASE job a", "RLOCK.HOLDS job a", "RLOCK.MACQUIRE 1 job a"]
    {
        client.call(command).expect_error("MOVED");
    }
    assert_eq!(source.client().call("RLOCK.HOLDS job a"), 0);
}

#[test]
fn macquire_keys_must_be_in_one_slot() {
    let [source, _target] = two_nodes();
    let mut client = source.client();
    for command in ["RLOCK.MACQUIRE 2 x y a", "RLOCK.MRELEASE 2 x y a", "RLOCK.MRENEW 2 x y a"] {
        client.call(command).expect_error("CROSSSLOT");
    }
    assert_eq!(client.call("DBSIZE"), 0);
    client.acquire("{job}:1 a PX 60000");
    let mut waiter = source.waiter("RLOCK.MACQUIRE 2 {job}:1 {job}:2 b PX 60000 BLOCK 0");
    client.call("RLOCK.RELEASE {job}:1 a");
    assert_eq!(waiter.reply().array().len(), 2);
    assert_eq!(client.call("RLOCK.MRELEASE 2 {job}:2 {job}:1 b").array().len(), 2);
}

/// The server picks the node by the first key. Only some of the other keys may be there.
#[test]
fn macquire_during_a_slot_move_works_after_the_move() {
    let [source, target] = two_nodes();
    let (mut on_source, mut on_target) = (source.client(), target.client());
    let ids = [&mut on_source, &mut on_target].map(|client| client.call("CLUSTER MYID").text());
    let slot = on_source.call("CLUSTER KEYSLOT {job}").int();
    assert_eq!(on_source.call("RLOCK.MACQUIRE 2 {job}:1 {job}:2 a PX 60000").array().len(), 2);
    on_target.call(format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    on_source.call(format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    assert_eq!(on_source.call(format!("MIGRATE 127.0.0.1 {} {{job}}:1 0 5000", target.port())), "OK");
    for command in
        ["RLOCK.MRELEASE 2 {job}:2 {job}:1 a", "RLOCK.MRENEW 2 {job}:2 {job}:1 a", "RLOCK.MACQUIRE 2 {job}:2 {job}:3 a"]
    {
        on_source.call(command).expect_error("TRYAGAIN");
    }
    for command in ["RLOCK.MRELEASE 2 {job}:1 {job}:2 a", "RLOCK.MACQUIRE 2 {job}:1 {job}:2 b"] {
        // Some servers check the first key only.
        let refused = on_source.call(command);
        let is_sent_on =
            ["ASK ", "TRYAGAIN "].iter().any(|code| matches!(&refused, Reply::Error(line) if line.starts_with(code)));
        assert!(is_sent_on, "{refused:?}");
        assert_eq!(on_target.call("ASKING"), "OK");
        on_target.call(command).expect_error("TRYAGAIN");
    }
    assert_eq!(on_source.call(format!("MIGRATE 127.0.0.1 {} {{job}}:2 0 5000", target.port())), "OK");
    for client in [&mut on_target, &mut on_source] {
        assert_eq!(client.call(format!("CLUSTER SETSLOT {slot} NODE {}", ids[1])), "OK");
    }
    on_source.call("RLOCK.MRELEASE 2 {job}:2 {job}:1 a").expect_error("MOVED");
    assert_eq!(on_target.call("RLOCK.MRELEASE 2 {job}:2 {job}:1 a").array().len(), 2);
    assert_eq!(on_target.call("DBSIZE"), 0);
}

/// I/O threads look for the keys of requests that they have read, before the main thread has
/// checked the requests.
#[test]
fn io_threads_can_read_malformed_macquire_requests() {
    const CLIENTS: usize = 16;
    const ROUNDS: usize = 200;
    let bus = format!("cluster-port {}", free_port());
    let server = Server::with_aof(&["cluster-enabled yes", &bus, "appendfsync no", "io-threads 4"]);
    let mut client = server.client();
    assert_eq!(client.call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    eventually(SOON, || client.call("CLUSTER INFO").text().contains("cluster_state:ok"));
    thread::scope(|scope| {
        for number in 0..CLIENTS {
            let (mut asks, mut sets) = (server.client(), server.client());
            scope.spawn(move || {
                let keys = format!("2 {{{number}}}:1 {{{number}}}:2 a");
                let step: Vec<Command> = [format!("RLOCK.MACQUIRE {keys}"), format!("RLOCK.MRELEASE {keys}")]
                    .map(Command::from)
                    .into_iter()
                    .chain(["RLOCK.MACQUIRE 0 a b".into(), "RLOCK.MRELEASE 9 a b".into()])
                    .collect();
                for _ in 0..ROUNDS {
                    let replies = asks.call_in_one_step(&step);
                    assert_eq!([replies[0].array().len(), replies[1].array().len()], [2, 2]);
                    replies[2..].iter().for_each(|reply| assert!(matches!(reply, Reply::Error(_)), "{reply:?}"));
                }
            });
            scope.spawn(move || {
                let step = [format!("SET {number} 1"), format!("INCR {number}")].map(Command::from);
                for _ in 0..2 * ROUNDS {
                    assert_eq!(sets.call_in_one_step(&step)[1], 2);
                }
            });
        }
    });
    // The server still writes its append-only file.
    let before = client.info_number("aof_current_size");
    client.acquire("job a PX 60000");
    eventually(SOON, || client.info_number("aof_current_size") > before);
}

#[test]
fn macquire_waiter_is_redirected_after_a_slot_move() {
    let [source, target] = two_nodes();
    let (mut on_source, mut on_target) = (source.client(), target.client());
    let ids = [&mut on_source, &mut on_target].map(|client| client.call("CLUSTER MYID").text());
    let slot = on_source.call("CLUSTER KEYSLOT {job}").int();
    on_source.acquire("{job}:1 a PX 60000");
    let mut waiter = source.blocked_waiter("RLOCK.MACQUIRE 2 {job}:2 {job}:1 b PX 60000 BLOCK 0");
    on_target.call(format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
    on_source.call(format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
    assert_eq!(on_source.call(format!("MIGRATE 127.0.0.1 {} {{job}}:1 0 5000", target.port())), "OK");
    // Both keys look free here now.
    assert_still_waiting(&mut waiter);
    for client in [&mut on_target, &mut on_source] {
        assert_eq!(client.call(format!("CLUSTER SETSLOT {slot} NODE {}", ids[1])), "OK");
    }
    waiter.reply().expect_error("MOVED");
    assert_eq!(on_source.info_number("rlock_waiting"), 0);
}

#[test]
fn waiter_is_redirected_after_a_slot_move_whatever_braces_its_key_has() {
    let [source, target] = two_nodes();
    let (mut on_source, mut on_target) = (source.client(), target.client());
    let ids = [&mut on_source, &mut on_target].map(|client| client.call("CLUSTER MYID").text());
    on_source.acquire("job a PX 60000");
    let mut of_another_slot = source.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    for key in ["a}b", "{}a", "{a", "}{", "{{c}}b"] {
        let slot = on_source.call(format!("CLUSTER KEYSLOT {key}")).int();
        on_source.acquire(&format!("{key} a PX 60000"));
        let mut waiter = source.blocked_waiter(format!("RLOCK.ACQUIRE {key} b PX 60000 BLOCK 0"));
        on_target.call(format!("CLUSTER SETSLOT {slot} IMPORTING {}", ids[0]));
        on_source.call(format!("CLUSTER SETSLOT {slot} MIGRATING {}", ids[1]));
        assert_eq!(on_source.call(format!("MIGRATE 127.0.0.1 {} {key} 0 5000", target.port())), "OK");
        for client in [&mut on_target, &mut on_source] {
            assert_eq!(client.call(format!("CLUSTER SETSLOT {slot} NODE {}", ids[1])), "OK");
        }
        let reply = waiter.reply();
        let line = reply.expect_error("MOVED");
        assert!(line.starts_with(&format!("MOVED {slot} ")), "{key}: {line}");
    }
    assert_still_waiting(&mut of_another_slot);
}
