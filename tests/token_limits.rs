//! Fencing tokens near their limit: a clock that was wrong for a moment, and forged files.

use std::fs;
use std::path::Path;
use std::time::Duration;

use crate::support::{Client, Reply, Server, WallClock, eventually, propagated};

/// The highest token that is ever granted or accepted.
const MAX_TOKEN: i64 = (1 << 53) - (1 << 49);

/// Tokens follow the clock up to this value, in the year 2219.
const CLOCK_END: i64 = (1 << 53) - (1 << 50);

const YEAR: Duration = Duration::from_secs(365 * 24 * 3600);

/// Acquires locks of all kinds. Returns their keys.
fn take_some(client: &mut Client, name: &str) -> Vec<String> {
    client.call(format!("RSEMAPHORE.INIT {name}-semaphore 3"));
    let keys = ["mutex", "fair", "rwlock", "semaphore"].map(|kind| format!("{name}-{kind}"));
    client.acquire(&format!("{} a PX 600000", keys[0]));
    client.acquire_fair(&format!("{} a PX 600000", keys[1]));
    client.call(format!("RFAIRLOCK.ACQUIRE {} b QUEUE 600000", keys[1]));
    client.call(format!("RRWLOCK.ACQUIRE {} a READ PX 600000", keys[2])).int();
    client.call(format!("RSEMAPHORE.ACQUIRE {} a PX 600000", keys[3])).int();
    keys.to_vec()
}

/// All tokens of holds on a server, in order.
fn tokens(client: &mut Client, keys: &[String]) -> Vec<i64> {
    let mut tokens = Vec::new();
    for key in keys {
        let info = client.call(format!("RLOCK.INFO {key}"));
        tokens.extend(info.field("holders").array().iter().map(|holder| holder.field("token").int()));
    }
    tokens.sort_unstable();
    tokens
}

#[test]
fn clock_in_the_year_2300_loses_no_lock_and_repeats_no_token() {
    let clock = WallClock::new();
    let mut primary = Server::with_wall_clock(&clock, &["appendonly yes", "appendfsync always", "save 3600 1"]);
    let mut client = primary.client();
    let mut keys = take_some(&mut client, "before");
    clock.step_forward(280 * YEAR);
    eventually(Duration::from_secs(5), || {
        client.call("TIME").array()[0].text().parse::<i64>().expect("a number") > 9_000_000_000
    });
    let at_the_end = client.acquire("far a PX 600000");
    assert_eq!(at_the_end, CLOCK_END);
    keys.push("far".into());
    keys.extend(take_some(&mut client, "there"));
    clock.step_back(Duration::ZERO);
    eventually(Duration::from_secs(5), || {
        client.call("TIME").array()[0].text().parse::<i64>().expect("a number") < 9_000_000_000
    });
    keys.extend(take_some(&mut client, "after"));
    let given = tokens(&mut client, &keys);
    assert!(given.windows(2).all(|pair| pair[0] < pair[1]), "tokens must rise: {given:?}");
    assert_eq!(given.len(), keys.len());

    // A replica has the same tokens, and grants higher ones after its promotion.
    let replica = Server::replica_of(&primary, &[]);
    replica.catch_up_with(&primary);
    client.acquire("streamed a PX 600000");
    keys.push("streamed".into());
    assert_eq!(client.call("WAIT 1 5000"), 1);
    let given = tokens(&mut client, &keys);
    let mut on_replica = replica.client();
    assert_eq!(tokens(&mut on_replica, &keys), given);
    on_replica.call("REPLICAOF NO ONE");
    assert!(on_replica.acquire("new a") > *given.last().expect("some"));

    // So does a restart, both from the append-only file and from a snapshot.
    primary.kill_and_restart();
    let mut client = primary.client();
    assert_eq!(tokens(&mut client, &keys), given);
    let next = client.acquire("again a PX 600000");
    assert!(next > *given.last().expect("some"));
    assert_eq!(client.call("DEBUG RELOAD"), "OK");
    assert_eq!(tokens(&mut client, &keys), given);
    assert!(client.acquire("once-more a") > next);
}

/// Starts a server on an append-only file with these commands.
fn started_on(commands: &[&[&str]]) -> Result<Server, String> {
    let mut server = Server::with_aof(&["aof-use-rdb-preamble no"]);
    server.client().call("SET something here");
    propagated(&server);
    let folder = server.folder().join("appendonlydir");
    server.kill();
    let files = fs::read_dir(&folder).expect("a folder").map(|file| file.expect("an entry").path());
    let newest = files.filter(|path| path.to_string_lossy().ends_with(".incr.aof")).max().expect("an increment");
    let mut stream = String::new();
    for words in commands {
        stream.push_str(&format!("*{}\r\n", words.len()));
        words.iter().for_each(|word| stream.push_str(&format!("${}\r\n{word}\r\n", word.len())));
    }
    fs::write(newest, stream).expect("a writable file");
    server.try_restart().map(|()| server)
}

#[test]
fn effect_with_a_token_beyond_the_limit_is_not_applied() {
    let beyond = format!("granted mutex exclusive {} 1 99999999999999 30000 - -", MAX_TOKEN + 1);
    let good = "granted mutex exclusive 1795215258031730 1 99999999999999 30000 - -";
    let server = started_on(&[&["RLOCK.APPLY", "far", &beyond, "a"], &["RLOCK.APPLY", "near", good, "a"]]);
    let server = server.expect("a start without the invalid effect");
    let mut client = server.client();
    assert!(client.is_free("far"));
    assert_eq!(client.holder("near").expect("a holder").owner, "a");
    assert!(server.log().contains("an effect could not be read (token)"), "the log says why");
    assert!(client.acquire("new a") < CLOCK_END);
    assert_eq!(client.call("DEBUG RELOAD"), "OK");
}

#[test]
fn server_without_tokens_refuses_new_holds_and_keeps_existing_ones() {
    let last = format!("granted mutex exclusive {MAX_TOKEN} 1 99999999999999 30000 - -");
    let mut server = started_on(&[&["RLOCK.APPLY", "last", &last, "a"]]).expect("the highest accepted token");
    let mut client = server.client();
    for round in ["at once", "after a restart"] {
        assert_eq!(client.info_number("rlock_tokens_left"), 0);
        assert!(matches!(client.call("RLOCK.ACQUIRE new a"), Reply::Error(error) if error.starts_with("NOTOKENS ")));
        assert!(
            matches!(client.call("RLOCK.ACQUIRE last b BLOCK 100"), Reply::Error(error) if error.starts_with("NOTOKENS "))
        );
        assert!(matches!(client.call("RLOCK.MACQUIRE 2 x y a"), Reply::Error(error) if error.starts_with("NOTOKENS ")));
        assert!(client.is_free("x") && client.is_free("new"));
        assert_eq!(client.acquire("last a"), MAX_TOKEN, "a re-entry needs no token");
        assert_eq!(client.call("RLOCK.RELEASE last a"), 1, "{round}");
        server.kill_and_restart();
        client = server.client();
    }
    assert_eq!(client.call("RLOCK.RELEASE last a"), 0);
}

#[test]
fn append_only_file_never_makes_a_lock_whose_snapshot_cannot_be_loaded() {
    let granted = |kind, token: &str| format!("granted {kind} {token} 1 99999999999999 30000 - -");
    let (read, write) = (granted("rwlock read", "11"), granted("rwlock write", "12"));
    let (first, again) = (granted("semaphore permits", "21"), granted("semaphore permits", "21"));
    let server = started_on(&[
        &["RLOCK.APPLY", "rw", &write, "w"],
        &["RLOCK.APPLY", "rw", &read, "r"],
        &["RLOCK.APPLY", "s", "sized 5"],
        &["RLOCK.APPLY", "s", &first, "a"],
        &["RLOCK.APPLY", "s", &again, "b"],
        &["RLOCK.APPLY", "rw", "sized 7"],
    ])
    .expect("a start without the invalid effects");
    let mut client = server.client();
    // The later effect counts: a primary that granted READ did not have a writer at that time.
    assert_eq!(client.call("RRWLOCK.HOLDS rw r READ"), 1);
    assert_eq!(client.call("RRWLOCK.HOLDS rw w WRITE"), 0);
    assert_eq!(client.call("RSEMAPHORE.HOLDS s a"), 1);
    assert_eq!(client.call("RSEMAPHORE.HOLDS s b"), 0);
    let log = server.log();
    assert!(log.contains("could not be applied to \"s\": another hold has this token"), "the log says why");
    assert!(log.contains("could not be applied to \"rw\": the lock is of another kind"), "the log says why");
    assert_eq!(client.call("DEBUG RELOAD"), "OK");
    assert_eq!(client.call("RRWLOCK.HOLDS rw r READ"), 1);
}

/// A snapshot of a version that stores the last token outside of the keys in each snapshot.
#[test]
fn snapshot_with_a_last_token_beyond_the_limit_is_refused() {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/0.1.0");
    let contents = fs::read_to_string(data.join("contents.txt")).expect("the contents of the snapshot");
    let last = contents.lines().find_map(|line| line.strip_prefix("last token ")).expect("the last token");
    let last: u64 = last.parse().expect("a number");
    let snapshot = fs::read(data.join("snapshot.rdb")).expect("a snapshot");
    let at = snapshot.windows(8).position(|bytes| bytes == last.to_be_bytes()).expect("the last token");
    let mut server = Server::with(&["rdbchecksum no", "dbfilename dump.rdb"]);
    server.kill();
    for (token, is_loaded) in [(MAX_TOKEN + 1, false), (MAX_TOKEN, true)] {
        let mut changed = snapshot.clone();
        changed[at..at + 8].copy_from_slice(&token.to_be_bytes());
        fs::write(server.folder().join("dump.rdb"), changed).expect("a writable file");
        match server.try_restart() {
            Ok(()) => assert!(is_loaded, "{token} is loaded"),
            Err(log) => {
                assert!(!is_loaded, "{token} is refused");
                assert!(log.contains(&format!("rlock: the last token in the file is {token}")), "{log}");
            }
        }
    }
    assert_eq!(server.client().info_number("rlock_tokens_left"), 0);
}
