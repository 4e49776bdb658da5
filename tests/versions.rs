//! What an older version wrote is read: each folder of `tests/data` has a snapshot and an append-only file that a release has
//! left, and what they have in them.
//!
//! `RLOCK_KEEP_DATA=1 cargo test --test module versions` puts this version's files there. That belongs to each release.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::support::{Client, Reply, Server, WallClock, eventually, shown, snapshots_may_have_the_last_token};

const SNAPSHOT: &str = "snapshot.rdb";
const EFFECTS: &str = "effects.aof";
/// The unix time of the files, the last token, and what is under each key, a line for each.
const CONTENTS: &str = "contents.txt";

const KEYS: [&str; 7] = ["mutex", "fair", "readers", "writer", "semaphore", "idle", "queue"];

/// Nearly as long as a lease can be, in seconds. The test brings the clock back to the day of the files.
const LEASE: &str = "EX 25920000";

const A_DAY: Duration = Duration::from_secs(86_400);

fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("a clock after 1970").as_secs()
}

/// Locks of all kinds, with everything that a hold or a place can have, and an effect of nearly every sort on the way.
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
    // The highest token is of a hold that is no more.
    clock.step_forward(A_DAY);
    let last = client.acquire("released a");
    client.call("RLOCK.RELEASE released a");
    clock.step_forward(Duration::ZERO);
    last
}

fn picture(client: &mut Client) -> Vec<String> {
    KEYS.iter().map(|key| format!("{key} {}", shown(client, key))).collect()
}

/// Writes the files of this version into a folder. Returns whether the snapshot has the last token.
fn write_files(folder: &Path) -> bool {
    let clock = WallClock::new();
    let lines = ["aof-use-rdb-preamble no", "appendonly yes", "appendfsync always", "rlock.fair-grace-ms 31536000000"];
    let server = Server::with_wall_clock(&clock, &lines);
    let mut client = server.client();
    let last = make_locks(&mut client, &clock);
    assert_eq!(client.call("SAVE"), "OK");
    let contents = [vec![format!("made at {}", unix_seconds()), format!("last token {last}")], picture(&mut client)];
    fs::write(folder.join(CONTENTS), contents.concat().join("\n") + "\n").expect("a writable folder");
    fs::copy(server.folder().join("dump.rdb"), folder.join(SNAPSHOT)).expect("a snapshot");
    // A file in parts, as servers have written since Redis 7, is the beginning and the rest.
    let parts = ["appendonly.aof.1.base.aof", "appendonly.aof.1.incr.aof"];
    let effects = parts.map(|part| fs::read(server.folder().join("appendonlydir").join(part)).unwrap_or_default());
    fs::write(folder.join(EFFECTS), effects.concat()).expect("a writable folder");
    snapshots_may_have_the_last_token(&mut client)
}

/// Reads the files of a folder on the day on which they were made.
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
        assert_eq!(picture(&mut client), expected, "{file}");
        let lease_ms = client.holder("mutex").expect("a holder").lease_ms;
        assert!(lease_ms > 20_000_000_000, "{file}: the lease is as long as it was, and not {lease_ms} ms");
        if file == EFFECTS || has_last_token {
            assert_eq!(client.acquire("new a") as u64, last + 1, "{file}: tokens go on above the last one");
        }
    }
}

fn data() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data")
}

#[test]
fn what_each_older_version_wrote_is_read() {
    let folders: Vec<_> = fs::read_dir(data()).expect("the data of older versions").collect();
    assert!(!folders.is_empty());
    for folder in folders {
        assert_files_are_read(&folder.expect("a readable folder").path(), true);
    }
}

/// A payload begins as it did in 0.1.0: with the same version, and in one string. What is in the string is compared in `core/src/codec.rs`, without a
/// clock.
#[test]
fn a_payload_has_the_frame_of_0_1_0() {
    const OPCODE_OF_KEYS: u8 = 7;
    // The kind of payload, the name and version of the type, and the mark of a string.
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
            // It has no time in it.
            let all = &payload[1..payload.len() - FOOTER];
            assert_eq!(*all, snapshot[at..at + all.len()], "{key}");
        }
    }
}

#[test]
fn what_this_version_writes_is_read() {
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
