//! Settings of the module, INFO counters and COMMAND GETKEYS.

use std::time::Duration;

use crate::support::{Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(5);

/// Name, default, another valid value, and invalid values.
const OPTIONS: [(&str, &str, &str, &[&str]); 8] = [
    ("default-lease-ms", "30000", "5000", &["0", "-1", "31536000001"]),
    ("max-waiters", "1000000", "10", &["-1"]),
    ("max-places", "10000", "10", &["-1", "10001"]),
    ("fair-grace-ms", "5000", "100", &["-1"]),
    ("max-lease-ms", "31536000000", "9000", &["0", "31536000001"]),
    ("exclusion", "off", "restart", &["never", "1", "failover"]),
    ("replicas", "0", "2", &["-1", "1001"]),
    ("max-replica-lag-ms", "3000", "4000", &["2999"]),
];

#[test]
fn each_option_has_its_default_and_can_be_changed() {
    let server = Server::start();
    let mut client = server.client();
    for (name, default, other, wrong) in OPTIONS {
        let get = format!("CONFIG GET rlock.{name}");
        let value = |reply: Reply| reply.field(&format!("rlock.{name}")).text();
        assert_eq!(value(client.call(get.as_str())), default);
        assert_eq!(client.call(format!("CONFIG SET rlock.{name} {other}")), "OK");
        assert_eq!(value(client.call(get.as_str())), other);
        for wrong in wrong.iter().chain(&["x", "1.5", "99999999999999999999"]) {
            client.call(format!("CONFIG SET rlock.{name} {wrong}")).expect_error("ERR");
            assert_eq!(value(client.call(get.as_str())), other, "{name} {wrong}");
        }
    }
    assert_eq!(client.call("CONFIG GET rlock.*").pairs().len(), OPTIONS.len());
}

#[test]
fn options_can_be_arguments_of_loadmodule() {
    for (name, _, other, _) in OPTIONS {
        // Other values of `exclusion` need a longest lease.
        let server = Server::with_module_arguments(&format!("max-lease-ms 9000 {name} {other}"), &[]);
        let reply = server.client().call(format!("CONFIG GET rlock.{name}"));
        assert_eq!(reply.field(&format!("rlock.{name}")), other);
    }
    let server = Server::with_module_arguments("default-lease-ms 5000 max-waiters 7", &[]);
    let mut client = server.client();
    client.acquire("job a");
    let left = client.call("RLOCK.PTTL job").int();
    assert!((1..=5000).contains(&left), "{left}");
    assert_eq!(client.call("CONFIG GET rlock.max-waiters").field("rlock.max-waiters"), "7");
}

#[test]
fn options_can_be_lines_of_the_configuration_file() {
    let server = Server::with(&["rlock.default-lease-ms 7000"]);
    let mut client = server.client();
    client.acquire("job a");
    let left = client.call("RLOCK.PTTL job").int();
    assert!((2000..=7000).contains(&left), "{left}");
}

#[test]
fn invalid_loadmodule_argument_stops_the_load_and_is_logged() {
    for (arguments, culprit) in [
        (
            "no-such-option 1",
            "unknown argument 'no-such-option'; expected default-lease-ms, max-lease-ms, max-waiters, max-places, fair-grace-ms, exclusion, replicas, max-replica-lag-ms",
        ),
        ("default-lease-ms", "the argument default-lease-ms needs a value"),
        ("default-lease-ms soon", "default-lease-ms must be an integer from 1 to 31536000000, not 'soon'"),
        ("exclusion never", "exclusion must be one of off, restart, failover, not 'never'"),
        ("exclusion restart", "rlock.exclusion restart and failover need rlock.max-lease-ms"),
        ("exclusion failover max-lease-ms 5000", "rlock.exclusion failover needs rlock.replicas"),
        ("default-lease-ms 0", "default-lease-ms must be an integer from 1 to 31536000000, not '0'"),
        ("max-waiters 10 default-lease-ms 31536000001", "default-lease-ms"),
    ] {
        let Err(log) = Server::try_start(arguments, &[]) else {
            panic!("the server started with {arguments:?}");
        };
        let mut own_lines = log.lines().filter(|line| line.contains("rlock: "));
        assert!(own_lines.any(|line| line.contains(culprit)), "{arguments}:\n{log}");
        assert!(!log.contains("BUG REPORT"), "{log}");
    }
}

#[test]
fn log_shows_the_loaded_version() {
    let server = Server::start();
    assert!(server.log().contains(concat!("rlock: version ", env!("CARGO_PKG_VERSION"), ", commit ")));
}

#[test]
fn default_lease_may_change_while_locks_are_held() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("before a");
    client.call("CONFIG SET rlock.default-lease-ms 90000");
    client.acquire("after a");
    assert!(client.call("RLOCK.PTTL before").int() <= 30_000);
    assert!(client.call("RLOCK.PTTL after").int() > 80_000);
    // RENEW uses the lease that the hold was granted with, not the current default.
    assert!(client.call("RLOCK.RENEW before a").int() <= 30_000);
}

#[test]
fn info_counts_grants_waits_and_releases() {
    let server = Server::start();
    let mut client = server.client();
    let mut observer = server.client();
    let mut expect = |what: &str, counts: [i64; 9]| {
        let fields = [
            "rlock_held",
            "rlock_waiting",
            "rlock_granted_at_once",
            "rlock_granted_after_waiting",
            "rlock_timed_out",
            "rlock_expired",
            "rlock_forced",
            "rlock_handed_over",
            "rlock_disconnected",
        ];
        let mut seen = [0; 9];
        eventually(SOON, || {
            seen = fields.map(|field| observer.info_number(field));
            // Work of the timer may show a moment later. A wrong count stays wrong.
            seen == counts || seen[1] == counts[1] && seen[0] == counts[0]
        });
        assert_eq!(seen, counts, "{what}: {fields:?}");
    };
    expect("at the start", [0; 9]);
    client.acquire("job a PX 60000");
    expect("a grant", [1, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(client.call("RLOCK.ACQUIRE job b"), Reply::Nil);
    expect("a denied attempt", [1, 0, 1, 0, 0, 0, 0, 0, 0]);
    assert_eq!(client.call("RLOCK.ACQUIRE job b BLOCK 1"), Reply::Nil);
    expect("a timeout", [1, 0, 1, 0, 1, 0, 0, 0, 0]);
    let mut b = server.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    let c = server.waiter("RLOCK.ACQUIRE job c PX 60000 BLOCK 0");
    expect("two waiters", [1, 2, 1, 0, 1, 0, 0, 0, 0]);
    drop(c);
    expect("a waiter disconnected", [1, 1, 1, 0, 1, 0, 0, 0, 1]);
    client.call("RLOCK.RELEASE job a");
    b.reply().int();
    expect("a hand-over", [1, 0, 1, 1, 1, 0, 0, 1, 1]);
    client.call("RLOCK.FORCERELEASE job");
    expect("a forced release", [0, 0, 1, 1, 1, 0, 1, 1, 1]);
    client.acquire("job d PX 1500");
    expect("a grant with a short lease", [1, 0, 2, 1, 1, 0, 1, 1, 1]);
    eventually(SOON, || client.call("EXISTS job") == 0);
    expect("an expiry", [0, 0, 2, 1, 1, 1, 1, 1, 1]);
    client.acquire("job e");
    client.call("RLOCK.RELEASE job e");
    expect("a plain release", [0, 0, 3, 1, 1, 1, 1, 1, 1]);
}

#[test]
fn held_count_is_right_however_locks_are_removed() {
    let server = Server::start();
    let mut client = server.client();
    for removal in ["FLUSHALL", "FLUSHALL ASYNC", "DEL one two", "UNLINK one two", "DEBUG RELOAD"] {
        client.acquire("one a PX 60000");
        client.acquire("two a PX 60000");
        assert_eq!(client.info_number("rlock_held"), 2);
        client.call(removal);
        let left = client.call("EXISTS one two").int();
        eventually(SOON, || client.info_number("rlock_held") == left);
        client.call("FLUSHALL");
        eventually(SOON, || client.info_number("rlock_held") == 0);
    }
}

#[test]
fn command_getkeys_finds_the_key_of_each_command() {
    let server = Server::start();
    let mut client = server.client();
    for command in [
        "RLOCK.ACQUIRE job a PX 1000 BLOCK 0",
        "RLOCK.RELEASE job a",
        "RLOCK.RENEW job a",
        "RLOCK.FORCERELEASE job",
        "RLOCK.HOLDS job a",
        "RLOCK.PTTL job",
        "RLOCK.INFO job",
        "RLOCK.WAITERS job",
    ] {
        let keys = client.call(format!("COMMAND GETKEYS {command}"));
        assert_eq!(keys, Reply::Array(vec![Reply::Text(b"job".to_vec())]), "{command}");
    }
}
