//! A server without free memory: volatile policies never evict a held lock, and the module warns of
//! allkeys policies.

use std::fs;
use std::time::Duration;

use crate::support::{Client, Command, Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(5);
const WARNING: &str = "held locks may be evicted";

/// Takes locks of every shape that must not be evicted, among them one whose key had an EXPIRE
/// before a hand-over and one with a queue.
#[track_caller]
fn take_locks(server: &Server, client: &mut Client) -> (Vec<String>, Vec<Client>) {
    let mut keys = Vec::new();
    for number in 0..50 {
        client.acquire(&format!("lock-{number} a PX 600000"));
        client.acquire_fair(&format!("fair-{number} a PX 600000"));
        client.call(format!("RFAIRLOCK.ACQUIRE fair-{number} b QUEUE 600000"));
        keys.extend([format!("lock-{number}"), format!("fair-{number}")]);
    }
    client.acquire("expiring a PX 600000");
    client.call("EXPIRE expiring 600");
    let waiter = server.waiter("RLOCK.ACQUIRE expiring b PX 600000 BLOCK 0");
    client.call("RLOCK.RELEASE expiring a");
    keys.push("expiring".to_owned());
    (keys, vec![waiter])
}

fn fill(number: usize) -> Command {
    let key = format!("filling-{number}");
    [b"SET".as_slice(), key.as_bytes(), &[b'x'; 4000], b"EX", b"600"].into()
}

/// Sets `maxmemory` 2 MB above the current use, and writes five times as much.
#[track_caller]
fn fill_up(client: &mut Client, policy: &str) {
    assert_eq!(client.call(format!("CONFIG SET maxmemory-policy {policy}")), "OK");
    let limit = client.info_number("used_memory") + (2 << 20);
    assert_eq!(client.call(format!("CONFIG SET maxmemory {limit}")), "OK");
    for number in 0..2500 {
        client.call(fill(number));
    }
    assert!(client.info_number("evicted_keys") > 1000, "{policy} evicted too little");
}

#[test]
fn volatile_policies_never_evict_a_held_lock() {
    for policy in ["volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl"] {
        let server = Server::start();
        let mut client = server.client();
        let (keys, _waiters) = take_locks(&server, &mut client);
        fill_up(&mut client, policy);
        for key in &keys {
            assert!(client.holder(key).is_some(), "{policy} evicted {key}");
            assert_eq!(client.call(format!("TTL {key}")), -1);
        }
        assert_eq!(client.info_number("rlock_held"), keys.len() as i64);
        assert_eq!(client.info_number("rlock_may_be_evicted"), 0);
        assert_eq!(client.places("fair-7"), ["b detached"]);
    }
}

#[track_caller]
fn warnings(server: &Server) -> usize {
    let log = fs::read_to_string(server.folder().join("log")).expect("a log");
    log.lines().filter(|line| line.contains(WARNING)).count()
}

#[test]
fn allkeys_policies_are_warned_of_when_they_take_effect() {
    let server = Server::start();
    let mut client = server.client();
    let mut expect = |setting: &str, may_be_evicted: i64, warned: usize| {
        assert_eq!(client.call(format!("CONFIG SET {setting}")), "OK");
        assert_eq!(client.info_number("rlock_may_be_evicted"), may_be_evicted, "{setting}");
        assert_eq!(warnings(&server), warned, "{setting}");
    };
    expect("maxmemory-policy allkeys-lru", 0, 0);
    expect("maxmemory 1gb", 1, 1);
    expect("maxmemory-policy allkeys-lfu", 1, 1);
    expect("hz 20", 1, 1);
    expect("maxmemory-policy volatile-ttl", 0, 1);
    expect("maxmemory-policy allkeys-random", 1, 2);
    expect("maxmemory 0", 0, 2);
    expect("maxmemory-policy noeviction", 0, 2);
    expect("maxmemory 1gb", 0, 2);
}

#[test]
fn allkeys_policies_are_warned_of_at_startup() {
    let server = Server::with(&["maxmemory 1gb", "maxmemory-policy allkeys-lru"]);
    assert_eq!(server.client().info_number("rlock_may_be_evicted"), 1);
    assert_eq!(warnings(&server), 1);
    for lines in [["maxmemory 0", "maxmemory-policy allkeys-lru"], ["maxmemory 1gb", "maxmemory-policy volatile-lru"]] {
        let server = Server::with(&lines);
        assert_eq!(server.client().info_number("rlock_may_be_evicted"), 0);
        assert_eq!(warnings(&server), 0, "{lines:?}");
    }
}

#[test]
fn fair_locks_can_be_released_and_handed_over_without_memory() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("job a PX 20000");
    let mut waiter = server.waiter("RFAIRLOCK.ACQUIRE job b PX 20000 BLOCK 0");
    client.call("RFAIRLOCK.ACQUIRE job c QUEUE 20000");
    client.call("CONFIG SET maxmemory-policy noeviction");
    client.call("CONFIG SET maxmemory 1");
    for command in ["ACQUIRE free d", "ACQUIRE job a", "ACQUIRE job d QUEUE 1000", "ACQUIRE job d BLOCK 0"] {
        client.call(format!("RFAIRLOCK.{command}")).expect_error("OOM");
    }
    assert!(client.call("RFAIRLOCK.RENEW job a PX 60000").int() > 50_000);
    assert_eq!(client.call("RFAIRLOCK.RELEASE job a"), 0);
    assert!(waiter.reply().int() > 0, "an earlier waiter is served");
    assert_eq!(client.call("RFAIRLOCK.CANCEL job c"), 1);
    assert_eq!(client.call("RFAIRLOCK.FORCERELEASE job"), 1);
    assert_eq!(client.call("RFAIRLOCK.INFO job"), Reply::Nil);
    eventually(SOON, || client.call("DBSIZE") == 0);
}
