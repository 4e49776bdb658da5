//! Damaged files: a server either starts and has intact locks, or says why it refuses the file.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::mutations::assert_usable;
use crate::support::{
    Client, Command, Reply, Server, at_length, eventually, propagated, seed, skipped_here,
    snapshots_may_have_the_last_token,
};

const SOON: Duration = Duration::from_secs(5);

/// The reply of TYPE for a lock.
const LOCK_TYPE: &str = "RedisLock";

/// The line that the module logs for a file that ends within its last token.
const TOKEN_IS_CUT: &str = "rlock: the file is cut short or damaged within the last token";

/// Overwrites a file.
fn write(path: &PathBuf, bytes: &[u8]) {
    fs::write(path, bytes).expect("a writable file");
}

/// Runs all commands on each lock, and returns the number of locks.
#[track_caller]
fn assert_locks_are_usable(client: &mut Client) -> usize {
    let keys = client.call("KEYS *");
    // A key with any other character is one whose name was damaged.
    let is_plain = |name: &&str| name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
    let names = keys.array().iter().filter_map(|key| str::from_utf8(key.bytes()).ok());
    let names: Vec<_> =
        names.filter(is_plain).filter(|name| client.call(format!("TYPE {name}")) == LOCK_TYPE).collect();
    for name in &names {
        assert_usable(client, name);
    }
    names.len()
}

#[test]
fn damaged_snapshot_is_loaded_or_refused_without_a_crash() {
    let mut random = StdRng::seed_from_u64(seed());
    let mut server = Server::with(&["rdbcompression no", "rdbchecksum no", "dbfilename dump.rdb"]);
    let mut client = server.client();
    for number in 0..20 {
        client.acquire(&format!("lock-{number} owner-of-{number} PX 600000 REQ 5 SESSION 600000"));
        client.acquire_fair(&format!("fair-{number} owner-of-{number} PX 600000"));
        client.call(format!("RFAIRLOCK.ACQUIRE fair-{number} second QUEUE 600000"));
    }
    assert_eq!(client.call("SAVE"), "OK");
    let path = server.folder().join("dump.rdb");
    let whole = fs::read(&path).expect("a snapshot");
    server.kill();
    let owners: Vec<_> = (0..whole.len()).filter(|at| whole[*at..].starts_with(b"owner-of-")).collect();
    assert_eq!(owners.len(), 40);
    let (mut loaded, mut refused, mut by_the_module, mut found) = (0, 0, 0, 0);
    for round in 0..at_length(60, 1000) {
        let mut damaged = whole.clone();
        // Damage the data of a lock, which begins shortly before the owner. A damaged key name
        // could appear twice, and then the server aborts by itself.
        let at = owners.choose(&mut random).expect("not empty") - 4 + random.random_range(0..36);
        match round % 3 {
            0 => damaged.truncate(random.random_range(0..whole.len())),
            1 => damaged[at] ^= 1 << random.random_range(0..8),
            _ => damaged[at] = random.random(),
        }
        write(&path, &damaged);
        match server.try_restart() {
            Ok(()) => {
                loaded += 1;
                let mut client = server.client();
                client.acquire("new a PX 600000");
                found += assert_locks_are_usable(&mut client);
                server.kill();
            }
            Err(log) => {
                refused += 1;
                let is_ours = log.contains("the responsible module is not able to load");
                let says_why =
                    log.contains("rlock: the payload of a lock is malformed: ") || log.contains(TOKEN_IS_CUT);
                assert!(!is_ours || says_why, "the log says why:\n{log}");
                by_the_module += usize::from(is_ours);
            }
        }
    }
    assert!(loaded > 5 && refused > 5, "{loaded} loaded and {refused} refused");
    assert!(by_the_module > 0, "the module refused none of {refused} files");
    assert!(found > 20 * loaded, "{found} locks in {loaded} files");
    write(&path, &whole);
    server.restart();
    assert_eq!(server.client().call("RLOCK.HOLDS lock-7 owner-of-7"), 1);
}

/// A snapshot with the lock `job`, whose server is down.
struct Saved {
    server: Server,
    path: PathBuf,
    whole: Vec<u8>,
    has_the_last_token: bool,
}

impl Saved {
    fn new() -> Self {
        let mut server = Server::with(&["rdbcompression no", "rdbchecksum no", "dbfilename dump.rdb"]);
        let mut client = server.client();
        client.acquire("job owner PX 600000");
        assert_eq!(client.call("SAVE"), "OK");
        let has_the_last_token = snapshots_may_have_the_last_token(&mut client);
        let path = server.folder().join("dump.rdb");
        let whole = fs::read(&path).expect("a snapshot");
        server.kill();
        Self { server, path, whole, has_the_last_token }
    }

    #[track_caller]
    fn assert_refused(&mut self, damaged: &[u8], reason: &str) {
        write(&self.path, damaged);
        let log = self.server.try_restart().expect_err("the file is refused");
        assert!(log.contains(reason), "{log}");
    }

    #[track_caller]
    fn assert_whole_is_loaded(&mut self) {
        write(&self.path, &self.whole);
        self.server.restart();
        assert_eq!(self.server.client().call("RLOCK.HOLDS job owner"), 1);
    }
}

#[test]
fn snapshot_that_ends_within_its_last_token_is_refused_with_the_reason() {
    let mut saved = Saved::new();
    if saved.has_the_last_token {
        // After the token follow the ends of the module's data and of the file, and its checksum.
        let end = saved.whole.len() - 2 - size_of::<u64>();
        let cut = saved.whole[..end - 1].to_vec();
        saved.assert_refused(&cut, TOKEN_IS_CUT);
    } else {
        skipped_here("no snapshot has the last token");
    }
    saved.assert_whole_is_loaded();
}

/// The type's name with the payload version in its last bits precedes the value, which follows its
/// key, and the last token.
#[test]
fn snapshot_of_a_newer_version_is_refused_with_the_reason() {
    const LEN: usize = 9;
    let mut saved = Saved::new();
    let key = b"job";
    let start = saved.whole.windows(key.len()).position(|bytes| bytes == key).expect("the key") + key.len();
    let id = &saved.whole[start..start + LEN];
    let ids: Vec<_> = (0..=saved.whole.len() - LEN).filter(|at| saved.whole[*at..].starts_with(id)).collect();
    assert_eq!(ids.len(), 1 + usize::from(saved.has_the_last_token));
    for at in ids {
        let mut newer = saved.whole.clone();
        newer[at + LEN - 1] += 1;
        saved
            .assert_refused(&newer, "rlock: the data was saved by a newer rlock (payload version 2, this one reads 1)");
    }
    saved.assert_whole_is_loaded();
}

#[test]
fn append_only_file_cut_during_a_hand_over_has_one_holder() {
    let mut server = Server::with_aof(&["aof-load-truncated yes"]);
    let mut client = server.client();
    client.acquire("released a PX 600000");
    client.acquire("expiring a PX 600000");
    let mut waiters =
        ["released", "expiring"].map(|key| server.waiter(format!("RLOCK.ACQUIRE {key} b PX 600000 BLOCK 0")));
    client.call("RLOCK.RELEASE released a");
    waiters[0].reply().int();
    let folder = server.folder().join("appendonlydir");
    let increment = fs::read_dir(folder).expect("a folder of append-only files");
    let is_increment = |path: &PathBuf| path.to_string_lossy().ends_with(".incr.aof");
    let path = increment.map(|file| file.expect("an entry").path()).find(is_increment).expect("an increment");
    let before = fs::read(&path).expect("an append-only file").len();
    // One hand-over by a command, and one by the timer.
    client.call("RLOCK.FORCERELEASE expiring");
    waiters[1].reply().int();
    client.call("RLOCK.FORCERELEASE released");
    let mut c = server.waiter("RLOCK.ACQUIRE expiring c PX 600000 BLOCK 0");
    client.call("DEL expiring");
    c.reply().int();
    let whole = fs::read(&path).expect("an append-only file");
    assert!(propagated(&server).len() > 8);
    server.kill();
    let step = ((whole.len() - before) / at_length(25, 400)).max(1);
    for length in (before..=whole.len()).step_by(step) {
        write(&path, &whole[..length]);
        server.restart();
        let holder = server.client().holder("expiring");
        // After DEL the lock is free until the timer grants it.
        let is_deleted = whole[..length].windows(3).any(|word| word == b"DEL");
        assert!(holder.is_some() || is_deleted, "cut at {length} of {}", whole.len());
        server.kill();
    }
    write(&path, &whole);
    server.restart();
    assert_eq!(server.client().holder("expiring").expect("a holder").owner, "c");
}

#[test]
fn unreadable_effect_is_logged_and_changes_nothing() {
    let mut server = Server::with_aof(&["aof-use-rdb-preamble no"]);
    let mut client = server.client();
    let token = client.acquire("job a PX 600000");
    client.call("SET text x");
    // Effects of a newer version, or invalid ones.
    let effects = [
        format!("RLOCK.APPLY job shared {token} 1"),
        "RLOCK.APPLY job -".to_owned(),
        "RLOCK.APPLY text granted".to_owned(),
    ];
    let mut words = effects.map(|effect| Command::from(effect).0).to_vec();
    words.push(vec![b"RLOCK.APPLY".to_vec(), b"job".to_vec(), vec![0xff; 300], b"x".to_vec()]);
    let mut tail = Vec::new();
    for words in &words {
        tail.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            tail.extend(format!("${}\r\n", word.len()).bytes());
            tail.extend(word);
            tail.extend(b"\r\n");
        }
    }
    server.kill();
    let folder = server.folder().join("appendonlydir");
    for file in fs::read_dir(folder).expect("a folder of append-only files") {
        let path = file.expect("an entry").path();
        if path.to_string_lossy().ends_with(".incr.aof") {
            let whole = fs::read(&path).expect("an append-only file");
            write(&path, &[whole, tail.clone()].concat());
        }
    }
    server.restart();
    let mut client = server.client();
    assert_eq!(client.holder("job").expect("a holder").identity(), ("a", 1, token));
    assert_eq!(client.call("GET text"), "x");
    assert!(server.log().contains("could not be read"));
    assert_eq!(client.call("RLOCK.RELEASE job a"), 0);
    eventually(SOON, || client.call("RLOCK.INFO job") == Reply::Nil);
}
