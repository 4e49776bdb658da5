//! Memory and CPU use of an idle server: released locks leave no memory behind, and a server
//! without work stays asleep.

use std::fs;
use std::thread;
use std::time::Duration;

use crate::support::{Client, Command, Server, eventually, free_port, module_path};

const SOON: Duration = Duration::from_secs(10);

/// Starts a cluster node that serves all slots.
#[track_caller]
fn lone_node() -> Server {
    // The default is the server's port plus 10,000, which may be above 65,535.
    let node = Server::with(&["cluster-enabled yes", &format!("cluster-port {}", free_port()), "slowlog-max-len 0"]);
    let mut client = node.client();
    assert_eq!(client.call("CLUSTER ADDSLOTSRANGE 0 16383"), "OK");
    eventually(SOON, || client.call("CLUSTER INFO").text().contains("cluster_state:ok"));
    node
}

/// Locks that one round creates and releases.
const LOCKS: usize = 500;

/// Creates and releases locks with new names. For each lock a waiter uses NOTIFY with a new channel
/// that has no listener. All keys share one slot.
#[track_caller]
fn create_and_release(client: &mut Client, round: usize) {
    for first in (0..LOCKS).step_by(100) {
        let mut step: Vec<Command> = Vec::new();
        for number in first..first + 100 {
            let name = round * LOCKS + number;
            // Each lease expires before all earlier ones, so the timer is set again for each.
            let lease_ms = 36_000_000 - name;
            let wait = format!("BLOCK 0 NOTIFY {{x}}no-listener-{name} REQ 1");
            step.push(format!("RLOCK.ACQUIRE {{x}}lock-{name} a PX {lease_ms}").into());
            step.push(format!("RLOCK.ACQUIRE {{x}}lock-{name} b PX {lease_ms} {wait}").into());
            step.push(format!("RLOCK.RELEASE {{x}}lock-{name} a").into());
        }
        client.call_in_one_step(&step);
        // No client received the message, so the module undoes the grant of `b`.
        eventually(SOON, || client.info_number("rlock_held") == 0 && client.info_number("rlock_notices_queued") == 0);
    }
    assert_eq!(client.info_number("rlock_waiting"), 0);
}

#[test]
fn released_locks_waits_and_channels_leave_no_memory() {
    const ROUNDS: usize = 10;
    /// Less than the smallest allocation for each lock, but enough for a buffer of the server.
    const SLACK: i64 = (ROUNDS * LOCKS) as i64 * 10;
    for server in [Server::with(&["slowlog-max-len 0"]), lone_node()] {
        let mut client = server.client();
        // Warm up, so that buffers have their final size.
        (0..4).for_each(|round| create_and_release(&mut client, round));
        let before = client.info_number("used_memory");
        (4..4 + ROUNDS).for_each(|round| create_and_release(&mut client, round));
        let grown = client.info_number("used_memory") - before;
        assert!(grown < SLACK, "{grown} bytes are left after {} locks", ROUNDS * LOCKS);
    }
}

/// One step clears at most its budget of holders, so a large lock is cleared in parts, on the
/// replica too.
#[test]
fn clearing_a_lock_with_many_holders_frees_memory_on_a_replica() {
    const HOLDERS: usize = 20_000;
    let primary = Server::start();
    let replica = Server::replica_of(&primary, &[]);
    let (mut client, mut on_replica) = (primary.client(), replica.client());
    client.call(format!("RSEMAPHORE.INIT permits {HOLDERS}"));
    let before = on_replica.info_number("used_memory");
    let take = |number: usize| format!("RSEMAPHORE.ACQUIRE permits owner-{number} PX 600000").into();
    for first in (0..HOLDERS).step_by(100) {
        client.call_in_one_step(&(first..first + 100).map(take).collect::<Vec<Command>>());
    }
    replica.catch_up_with(&primary);
    let grown = on_replica.info_number("used_memory") - before;
    assert_eq!(client.call("RSEMAPHORE.FORCERELEASE permits"), 1);
    replica.catch_up_with(&primary);
    eventually(SOON, || on_replica.info_number("used_memory") - before < grown / 2);
}

#[test]
fn failed_module_load_leaves_no_memory() {
    let server = Server::without_module(&["enable-module-command local", "slowlog-max-len 0"]);
    let mut client = server.client();
    let mut try_to_load = |times: usize| {
        for _ in 0..times {
            let load = format!("MODULE LOAD {} max-waiters none", module_path().display());
            client.call(load).expect_error("ERR");
        }
        client.info_number("used_memory")
    };
    let before = try_to_load(10);
    let grown = try_to_load(50) - before;
    assert!(grown < 50 * 100, "{grown} bytes are left after 50 attempts");
}

/// How often the server process has gone to sleep so far.
#[track_caller]
fn sleeps(client: &mut Client) -> i64 {
    let path = format!("/proc/{}/status", client.info("process_id"));
    let status = fs::read_to_string(path).expect("the state of a process");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.expect("a count").trim().parse().expect("a number")
}

#[track_caller]
fn used_seconds(client: &mut Client) -> f64 {
    ["used_cpu_user", "used_cpu_sys"].map(|field| client.info(field).parse::<f64>().expect("seconds")).iter().sum()
}

/// Asserts that the server sleeps. It checks the time 10 times per second (`hz 10`) and does little
/// else. Other load on the machine does not count.
#[track_caller]
pub fn assert_sleeps(server: &Server) {
    const A_WHILE: Duration = Duration::from_millis(500);
    let mut client = server.client();
    let (slept, used) = (sleeps(&mut client), used_seconds(&mut client));
    // The test measures time, so it has to sleep.
    thread::sleep(A_WHILE);
    let (slept, used) = (sleeps(&mut client) - slept, used_seconds(&mut client) - used);
    assert!(slept < 60, "the server was woken {slept} times");
    assert!(used < A_WHILE.as_secs_f64() / 4.0, "the server used {used} s of CPU time");
}

#[test]
fn server_sleeps_after_sending_messages_and_while_requests_wait() {
    for server in [Server::start(), lone_node()] {
        let mut client = server.client();
        let mut messages = server.client();
        let is_cluster = client.info("cluster_enabled") == "1";
        messages.call(if is_cluster { "SSUBSCRIBE {x}answers" } else { "SUBSCRIBE {x}answers" });
        client.acquire("{x}job a PX 600000");
        for (owner, channel) in [("b", "answers"), ("c", "answers"), ("d", "no-listener")] {
            let ask = format!("RLOCK.ACQUIRE {{x}}job {owner} PX 600000 BLOCK 0 NOTIFY {{x}}{channel} REQ 1");
            assert_eq!(client.call(ask), "WAITING");
        }
        client.call("RLOCK.RELEASE {x}job a");
        assert!(messages.reply().array()[2].text().starts_with("granted 1 "));
        assert_sleeps(&server);
    }
}

/// Most servers compute the delay of a timer that was started from a timer in an `int`; Redis 7.0
/// does so in microseconds.
#[test]
fn server_sleeps_while_the_next_lease_expires_in_an_hour_or_a_year() {
    for far_ms in [3_600_000u64, 30 * 86_400_000, 365 * 86_400_000] {
        let server = Server::start();
        let mut client = server.client();
        client.acquire(&format!("long a PX {far_ms}"));
        client.acquire("short a PX 50");
        eventually(SOON, || client.call("EXISTS short") == 0);
        assert_sleeps(&server);
        client.acquire("prolonged a PX 50");
        client.call(format!("RLOCK.RENEW prolonged a PX {far_ms}"));
        // The timer has fired once by then.
        thread::sleep(Duration::from_millis(100));
        assert_sleeps(&server);
    }
}

/// Only its primary may expire these leases, and the primary does not come back.
#[test]
fn replica_without_primary_sleeps_after_leases_expire() {
    let primary = Server::start();
    let mut client = primary.client();
    client.acquire("in-the-snapshot a PX 4000");
    let replica = Server::replica_of(&primary, &[]);
    client.acquire("in-the-stream a PX 600");
    client.acquire("long a PX 600000");
    replica.catch_up_with(&primary);
    drop(primary);
    let mut on_replica = replica.client();
    for key in ["in-the-stream", "in-the-snapshot"] {
        eventually(SOON, || on_replica.call(format!("RLOCK.PTTL {key}")) == -2);
    }
    assert_eq!(on_replica.call("EXISTS in-the-snapshot"), 1);
    assert_sleeps(&replica);
}
