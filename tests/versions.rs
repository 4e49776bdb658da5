//! Files of older versions can be read: each folder of `tests/data` has a snapshot and an
//! append-only file written by a release, and a list of their contents.
//!
//! `RLOCK_KEEP_DATA=1 cargo test --test module versions` writes the files of this version there.
//! Each release does so.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{Client, Reply, Server, WallClock, describe_lock, eventually, snapshots_may_have_the_last_token};

const SNAPSHOT: &str = "snapshot.rdb";
const EFFECTS: &str = "effects.aof";
/// The unix time of the files, the last token, and the lock under each key, one line each.
const CONTENTS: &str = "contents.txt";

const KEYS: [&str; 7] = ["mutex", "fair", "readers", "writer", "semaphore", "idle", "queue"];

/// 300 days in seconds, nearly the longest lease. The test sets the clock back to the day of the
/// files.
const LEASE: &str = "EX 25920000";

const A_DAY: Duration = Duration::from_secs(86_400);

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs()
}

/// Creates locks of all kinds, with everything that a hold or a place can store. The commands cause
/// nearly every kind of effect.
#[track_caller]
fn make_locks(client: &mut Client, clock: &WallClock) -> i64 {
    for command in [
        "RLOCK.ACQUIRE mutex a PX 60000 REQ 1",
        "RLOCK.ACQUIRE mutex a LONG REQ 2",
        "RLOCK.RENEW mutex a LONG",
        "RFAIRLOCK.ACQUIRE fair a LONG",
        "RFAIRLOCK.ACQUIRE fair b QUEUE 25920000000 LONG REQ 7",
        "RFAIRLOCK.ACQUIRE fair c QUEUE 25920000000",
        "RFAIRLOCK.ACQUIRE fair d QUEUE 25920000000",
        "RFAIRLOCK.CANCEL fair c",
        "RFAIRLOCK.ACQUIRE queue a",
        "RFAIRLOCK.ACQUIRE queue b QUEUE 25920000000",
        "RFAIRLOCK.RELEASE queue a",
        "RRWLOCK.ACQUIRE readers a READ LONG",
        "RRWLOCK.ACQUIRE readers b READ LONG SESSION 31536000000",
        "RRWLOCK.ACQUIRE writer a WRITE LONG",
        "RRWLOCK.ACQUIRE writer a READ LONG",
        "RSEMAPHORE.INIT semaphore 5",
        "RSEMAPHORE.RESIZE semaphore 7",
        "RSEMAPHORE.ACQUIRE semaphore a PERMITS 3 LONG REQ 1",
        "RSEMAPHORE.RELEASE semaphore a PERMITS 1 REQ 2",
        "RSEMAPHORE.ACQUIRE semaphore b LONG",
        "RSEMAPHORE.INIT idle 4294967295",
        "RLOCK.ACQUIRE forced a",
        "RLOCK.FORCERELEASE forced",
        "RLOCK.ACQUIRE short a PX 1",
    ] {
        let command = command.replace("LONG", LEASE);
        let reply = client.call(command.as_str());
        assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
    }
    eventually(Duration::from_secs(5), || client.call("EXISTS short") == 0);
    // The highest token belongs to a hold that has ended.
    clock.step_forward(A_DAY);
    let last = client.acquire("released a");
    client.call("RLOCK.RELEASE released a");
    clock.step_forward(Duration::ZERO);
    last
}

fn describe_locks(client: &mut Client) -> Vec<String> {
    KEYS.iter().map(|key| format!("{key} {}", describe_lock(client, key))).collect()
}

/// Writes the files of this version into a folder. Returns whether the snapshot has the last token.
fn write_files(folder: &Path) -> bool {
    let clock = WallClock::new();
    let lines = ["aof-use-rdb-preamble no", "appendonly yes", "appendfsync always", "rlock.fair-grace-ms 31536000000"];
    let server = Server::with_wall_clock(&clock, &lines);
    let mut client = server.client();
    let last = make_locks(&mut client, &clock);
    assert_eq!(client.call("SAVE"), "OK");
    let contents =
        [vec![format!("made at {}", unix_seconds()), format!("last token {last}")], describe_locks(&mut client)];
    fs::write(folder.join(CONTENTS), contents.concat().join("\n") + "\n").expect("a writable folder");
    fs::copy(server.folder().join("dump.rdb"), folder.join(SNAPSHOT)).expect("a snapshot");
    // Since Redis 7 the append-only file has parts: a base and an increment.
    let parts = ["appendonly.aof.1.base.aof", "appendonly.aof.1.incr.aof"];
    let effects = parts.map(|part| fs::read(server.folder().join("appendonlydir").join(part)).unwrap_or_default());
    fs::write(folder.join(EFFECTS), effects.concat()).expect("a writable folder");
    snapshots_may_have_the_last_token(&mut client)
}

/// Loads the files of a folder, with the clock set to the time at which they were written.
#[track_caller]
fn assert_files_are_read(folder: &Path, has_last_token: bool) {
    eprintln!("{}", folder.display());
    let contents = fs::read_to_string(folder.join(CONTENTS)).expect("the contents of the files");
    let mut lines = contents.lines();
    let mut number = |what: &str| -> u64 {
        let line = lines.next().and_then(|line| line.strip_prefix(what)).expect("a number in the contents");
        line.parse().expect("a number")
    };
    let (made_at, last) = (number("made at "), number("last token "));
    let expected: Vec<&str> = lines.collect();

    for (file, name, line) in [(SNAPSHOT, "dump.rdb", "appendonly no"), (EFFECTS, "appendonly.aof", "appendonly yes")] {
        let clock = WallClock::new();
        let now = unix_seconds();
        clock.step_forward(Duration::from_secs(made_at.saturating_sub(now)));
        if now > made_at {
            clock.step_back(Duration::from_secs(now - made_at));
        }
        let mut server = Server::with_wall_clock(&clock, &[line, "rlock.fair-grace-ms 31536000000"]);
        server.kill();
        let _ = fs::remove_dir_all(server.folder().join("appendonlydir"));
        fs::copy(folder.join(file), server.folder().join(name)).expect("the file of an older version");
        server.restart();
        let mut client = server.client();
        assert_eq!(describe_locks(&mut client), expected, "{file}");
        let lease_ms = client.holder("mutex").expect("a holder").lease_ms;
        assert!(lease_ms > 20_000_000_000, "{file}: the lease must keep its length, and is {lease_ms} ms");
        if file == EFFECTS || has_last_token {
            assert_eq!(client.acquire("new a") as u64, last + 1, "{file}: tokens continue above the last one");
        }
    }
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

#[test]
fn files_of_older_versions_are_read() {
    let folders: Vec<_> = fs::read_dir(data()).expect("the data of older versions").collect();
    assert!(!folders.is_empty());
    for folder in folders {
        assert_files_are_read(&folder.expect("a readable folder").path(), true);
    }
}

/// A payload has the same frame as in 0.1.0: the same version, and all data in one string. The
/// string itself is compared in `core/src/codec.rs`, without a clock.
#[test]
fn payload_has_the_frame_of_0_1_0() {
    const OPCODE_OF_KEYS: u8 = 7;
    // The type of the payload, the name and version of the module type, and the opcode of a string.
    const FRAME: usize = 11;
    // The version of the snapshot format, and a checksum.
    const FOOTER: usize = 10;
    let snapshot = fs::read(data().join("0.1.0").join(SNAPSHOT)).expect("a snapshot");
    let clock = WallClock::new();
    let server = Server::with_wall_clock(&clock, &["rdbcompression no"]);
    let mut client = server.client();
    make_locks(&mut client, &clock);
    for key in KEYS {
        let named = [&[OPCODE_OF_KEYS, u8::try_from(key.len()).expect("a short name")], key.as_bytes()].concat();
        let at = snapshot.windows(named.len()).position(|bytes| bytes == named).expect("a key") + named.len();
        let payload = client.call(format!("DUMP {key}")).bytes().to_vec();
        assert_eq!(payload[0], OPCODE_OF_KEYS, "{key}");
        assert_eq!(payload[1..FRAME], snapshot[at..at + FRAME - 1], "{key}");
        if key == "idle" {
            // This lock stores no times, so its whole payload can be compared.
            let all = &payload[1..payload.len() - FOOTER];
            assert_eq!(*all, snapshot[at..at + all.len()], "{key}");
        }
    }
}

#[test]
fn files_of_this_version_are_read() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let has_last_token = write_files(folder.path());
    if std::env::var_os("RLOCK_KEEP_DATA").is_some() {
        let kept = data().join(env!("CARGO_PKG_VERSION"));
        fs::create_dir_all(&kept).expect("a folder for the data");
        for file in [SNAPSHOT, EFFECTS, CONTENTS] {
            fs::copy(folder.path().join(file), kept.join(file)).expect("a copy");
        }
    }
    assert_files_are_read(folder.path(), has_last_token);
}
