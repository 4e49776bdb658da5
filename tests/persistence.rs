//! Locks survive the process: a server that reads its files back holds everything that it
//! acknowledged.

use std::io::ErrorKind;
use std::thread;
use std::time::Duration;

use crate::support::{ALL, Client, Command, Family, MUTEX, Reply, Server, Stopwatch, WallClock, eventually};

const SOON: Duration = Duration::from_secs(5);

/// Files store whole milliseconds of the wall clock, so each save and load may add up to 1 ms.
const ROUNDING_MS: i64 = 5;

/// Locks of all kinds in several states, with the owner, count and token expected for each key.
struct SavedLocks(Vec<(String, (String, i64, i64))>);

impl SavedLocks {
    #[track_caller]
    fn create(client: &mut Client) -> SavedLocks {
        let saved = ALL.iter().flat_map(|family| SavedLocks::create_of(client, *family)).collect();
        client.speak(MUTEX);
        SavedLocks(saved)
    }

    #[track_caller]
    fn create_of(client: &mut Client, family: Family) -> Vec<(String, (String, i64, i64))> {
        client.speak(family);
        let keys = ["once", "thrice", "less", "handed-over", "gone"].map(|name| family.key(name));
        let [once, thrice, less, handed_over, gone] = &keys;
        for key in &keys {
            client.make(key);
        }
        client.acquire(&format!("{once} a PX 50000"));
        client.acquire(&format!("{thrice} a PX 40000"));
        client.acquire(&format!("{thrice} a PX 50000 REQ 8"));
        client.acquire(&format!("{thrice} a PX 50000 REQ 9"));
        client.acquire(&format!("{less} b PX 50000 REQ 1"));
        client.acquire(&format!("{less} b PX 50000 REQ 2"));
        assert_eq!(client.call(format!("LOCK.RELEASE {less} b REQ 3")), 1);
        client.acquire(&format!("{handed_over} a PX 50000"));
        client.acquire(&format!("{gone} a PX 50000"));
        client.call(format!("LOCK.RELEASE {gone} a"));
        let held = keys[..4].iter();
        held.map(|key| (key.clone(), identity(client, key))).collect()
    }

    /// Asserts that everything is unchanged, including state that only repeated requests reveal.
    #[track_caller]
    fn assert_intact(&self, client: &mut Client) {
        // The idle semaphore exists as well.
        assert_eq!(client.call("DBSIZE"), self.0.len() as i64 + 1);
        for (key, before) in &self.0 {
            assert_eq!(identity(client, key), *before, "{key}");
            let left = client.call(format!("RLOCK.PTTL {key}")).int();
            assert!((40_000..=50_000 + ROUNDING_MS).contains(&left), "{key}: {left} ms left of 50000");
        }
        for family in ALL {
            client.speak(*family);
            self.assert_requests_are_known(client, *family);
        }
        client.speak(MUTEX);
    }

    #[track_caller]
    fn assert_requests_are_known(&self, client: &mut Client, family: Family) {
        let [once, thrice, less] = ["once", "thrice", "less"].map(|name| family.key(name));
        let (_, _, token) = identity(client, &thrice);
        assert_eq!(client.acquire(&format!("{thrice} a REQ 9")), token);
        client.call(format!("LOCK.ACQUIRE {thrice} a REQ 8")).expect_error("STALE");
        assert_eq!(client.call(format!("LOCK.HOLDS {thrice} a")), 3, "a repeated request does not count again");
        assert_eq!(client.call(format!("LOCK.RELEASE {less} b REQ 3")), 1);
        client.call(format!("LOCK.ACQUIRE {less} b REQ 3")).expect_error("STALE");
        assert_eq!(client.call(format!("LOCK.HOLDS {less} b")), 1);
        // The last lease is part of a hold. A repeated request without a lease uses the default,
        // and never shortens the lease.
        assert!(client.call(format!("LOCK.RENEW {once} a")).int() > 45_000);
    }
}

#[track_caller]
fn identity(client: &mut Client, key: &str) -> (String, i64, i64) {
    let holder = client.holder(key).unwrap_or_else(|| panic!("{key} is not held"));
    (holder.owner, holder.holds, holder.token)
}

#[test]
fn append_only_file_restores_everything_after_a_kill() {
    for preamble in ["yes", "no"] {
        let mut server = Server::with_aof(&[&format!("aof-use-rdb-preamble {preamble}")]);
        let saved = SavedLocks::create(&mut server.client());
        for _ in 0..2 {
            server.kill_and_restart();
            saved.assert_intact(&mut server.client());
        }
    }
}

#[test]
fn rewritten_append_only_file_restores_everything() {
    for preamble in ["yes", "no"] {
        let mut server = Server::with_aof(&[&format!("aof-use-rdb-preamble {preamble}")]);
        let mut client = server.client();
        let saved = SavedLocks::create(&mut client);
        client.rewrite_append_only_file();
        server.kill_and_restart();
        saved.assert_intact(&mut server.client());
    }
}

#[test]
fn snapshot_restores_everything() {
    let mut server = Server::start();
    let mut client = server.client();
    let saved = SavedLocks::create(&mut client);
    assert_eq!(client.call("SAVE"), "OK");
    server.kill_and_restart();
    saved.assert_intact(&mut server.client());
}

#[test]
fn shutdown_with_waiters_ends_and_everything_is_restored() {
    for (shutdown, lines) in [
        ("SHUTDOWN SAVE", &[][..]),
        ("SHUTDOWN NOSAVE", &["appendonly yes", "appendfsync everysec"]),
        ("SHUTDOWN", &["appendonly yes", "appendfsync no"]),
    ] {
        let mut server = Server::with(lines);
        let mut client = server.client();
        let saved = SavedLocks::create(&mut client);
        let mut waiter = server.waiter("RLOCK.ACQUIRE once-mutex-exclusive b PX 50000 BLOCK 0");
        client.send(shutdown);
        for connection in [&mut client, &mut waiter] {
            let end = connection.reply_within(Duration::from_secs(10)).expect_err("the server is gone");
            assert_eq!(end.kind(), ErrorKind::UnexpectedEof, "{shutdown}");
        }
        server.kill_and_restart();
        saved.assert_intact(&mut server.client());
    }
}

#[test]
fn reload_restores_everything_and_waiters_keep_waiting() {
    let server = Server::with_aof(&[]);
    let mut client = server.client();
    let saved = SavedLocks::create(&mut client);
    let mut waiter = server.waiter("RLOCK.ACQUIRE once-mutex-exclusive b PX 50000 BLOCK 0");
    for load in ["DEBUG RELOAD", "DEBUG LOADAOF"] {
        assert_eq!(client.call(load), "OK");
        saved.assert_intact(&mut client);
        assert_eq!(client.waiting_owners("once-mutex-exclusive"), ["b"], "{load}");
    }
    client.call("RLOCK.RELEASE once-mutex-exclusive a");
    waiter.reply().int();
}

#[test]
fn lease_keeps_running_while_the_server_is_down() {
    for save in [false, true] {
        let mut server = if save { Server::start() } else { Server::with_aof(&[]) };
        let mut client = server.client();
        client.acquire("short a PX 300");
        client.acquire("long a PX 20000");
        if save {
            client.call("SAVE");
        }
        server.kill();
        // The short lease expires while the server is down.
        thread::sleep(Duration::from_millis(400));
        server.restart();
        let mut client = server.client();
        assert_eq!(client.call("RLOCK.HOLDS short a"), 0);
        assert_eq!(client.call("RLOCK.PTTL short"), -2);
        eventually(SOON, || client.call("EXISTS short") == 0);
        let left = client.call("RLOCK.PTTL long").int();
        assert!((10_000..=19_600).contains(&left), "{left}");
        client.acquire("short b PX 60000");
    }
}

#[test]
fn timed_remaining_lease_after_a_restart_expires_on_time() {
    let mut server = Server::with_aof(&[]);
    server.client().acquire("job a PX 1500");
    server.kill_and_restart();
    let mut client = server.client();
    let left_ms = u64::try_from(client.call("RLOCK.PTTL job").int()).expect("a held lock");
    let watch = Stopwatch::start();
    client.acquire("job b BLOCK 0");
    watch.assert_took_ms(left_ms.saturating_sub(2)..left_ms + 100, "the remaining lease");
}

/// No command touches this lock, so only the timer can expire it. It is set when the file is
/// loaded.
#[test]
fn lease_expires_after_a_restart_without_a_command_in_any_database() {
    let mut server = Server::start();
    let mut client = server.client();
    client.call("SELECT 9");
    client.acquire("job a PX 2000");
    assert_eq!(client.call("SAVE"), "OK");
    server.kill_and_restart();
    let mut client = server.client();
    assert_eq!(client.call("SELECT 9"), "OK");
    eventually(Duration::from_secs(10), || client.call("DBSIZE") == 0);
    assert_eq!(client.info_number("rlock_expired"), 1);
}

#[test]
fn kill_loses_no_acknowledged_grant() {
    let clock = WallClock::new();
    let mut server = Server::with_wall_clock(&clock, &["appendonly yes", "appendfsync always"]);
    let workers: Vec<_> = (0..8)
        .map(|worker| {
            let mut client = server.client();
            thread::spawn(move || {
                let mut grants = Vec::new();
                for number in 0.. {
                    let key = format!("job-{worker}-{number}");
                    let acquire = format!("RLOCK.ACQUIRE {key} a PX 600000").into();
                    if client.try_send(&[acquire]).is_err() {
                        break;
                    }
                    match client.reply_within(Duration::from_secs(10)) {
                        Ok(reply) => grants.push((key, reply.int())),
                        Err(error) if error.kind() == ErrorKind::UnexpectedEof => break,
                        Err(error) => panic!("{error}"),
                    }
                }
                grants
            })
        })
        .collect();
    let mut observer = server.client();
    eventually(Duration::from_secs(20), || observer.call("DBSIZE").int() > 500);
    server.kill();
    let grants: Vec<_> = workers.into_iter().flat_map(|worker| worker.join().expect("no panic")).collect();
    assert!(grants.len() > 490, "{}", grants.len());

    // With a clock that never goes back, tokens would rise without the saved ones.
    clock.step_back(Duration::from_secs(3600));
    server.restart();
    let mut client = server.client();
    for (key, token) in &grants {
        assert_eq!(identity(&mut client, key), ("a".to_owned(), 1, *token));
    }
    let newest = grants.iter().map(|(_, token)| *token).max().expect("some grants");
    assert!(client.acquire("new a") > newest);
}

#[test]
fn kill_undoes_no_acknowledged_release() {
    let mut server = Server::with_aof(&[]);
    let mut client = server.client();
    for number in 0..50 {
        client.acquire(&format!("job-{number} a PX 600000"));
        assert_eq!(client.call(format!("RLOCK.RELEASE job-{number} a")), 0);
    }
    server.kill_and_restart();
    assert_eq!(server.client().call("DBSIZE"), 0);
}

#[test]
fn waiters_end_with_the_process_and_are_granted_nothing() {
    let mut server = Server::with_aof(&[]);
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let _waiter = server.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    server.kill_and_restart();
    let mut client = server.client();
    assert_eq!(client.call("RLOCK.WAITERS job"), Reply::Array(vec![]));
    client.call("RLOCK.RELEASE job a");
    assert_eq!(client.call("EXISTS job"), 0);
}

#[test]
fn lock_of_any_kind_is_the_same_under_another_key() {
    for server in Server::for_each(ALL) {
        let mut client = server.client();
        client.acquire("job a PX 50000 REQ 4");
        client.acquire("job a PX 50000 REQ 5");
        let original = identity(&mut client, "job");
        let payload = client.call("DUMP job");
        let restore: Command = [b"RESTORE".as_slice(), b"restored", b"0", payload.bytes()].into();
        assert_eq!(client.call(restore), "OK");
        assert_eq!(client.call("COPY job copy"), 1);
        assert_eq!(client.call("RENAME job renamed"), "OK");
        assert_eq!(client.call("COPY renamed moved"), 1);
        let assert_same = |client: &mut Client, key: &str| {
            assert_eq!(identity(client, key), original, "{key}");
            assert!(client.call(format!("LOCK.PTTL {key}")).int() > 40_000, "{key}");
            assert_eq!(client.acquire(&format!("{key} a REQ 5")), original.2, "{key}");
            client.call(format!("LOCK.ACQUIRE {key} a REQ 4")).expect_error("STALE");
            assert_eq!(client.call(format!("LOCK.RELEASE {key} a")), 1, "{key}");
        };
        for key in ["restored", "copy", "renamed"] {
            assert_same(&mut client, key);
        }
        assert_eq!(client.call("MOVE moved 1"), 1);
        client.call("SELECT 1");
        assert_same(&mut client, "moved");
    }
}
