//! `ls`, `show`, `release`, `wait`, and `top` with `--once` or `--json`.

use std::fs::File;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::commands::{Running, finish, rlock, status, text, url, wait_for_waiters};
use crate::support::{Client, Command, OwnedProcess, Server, free_port};

fn json(bytes: &[u8]) -> Value {
    serde_json::from_slice(bytes).expect("JSON")
}

/// A server with a lock of each kind; the fair one has a waiter.
fn server_with_locks() -> Server {
    let server = Server::start();
    let mut client = server.client();
    client.call("SET text here");
    client.acquire("mutex alice PX 600000");
    client.acquire_fair("fair alice PX 600000");
    client.call("RFAIRLOCK.ACQUIRE fair bob QUEUE 600000");
    client.call("RRWLOCK.ACQUIRE rw alice READ PX 600000").int();
    client.call("RRWLOCK.ACQUIRE rw bob READ PX 600000").int();
    client.call("RSEMAPHORE.INIT permits 5");
    client.call("RSEMAPHORE.ACQUIRE permits alice PERMITS 3 PX 600000").int();
    server
}

#[test]
fn ls_lists_only_locks_and_those_of_all_kinds() {
    let server = server_with_locks();
    let out = text(&finish(&server, "ls").stdout);
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["KEY", "KIND", "WAITERS", "LONGEST", "HOLDERS", "LEASE", "OWNER"]);
    let column = |column: usize| lines[1..].iter().map(|line| line[column]).collect::<Vec<_>>();
    assert_eq!(column(0), ["fair", "mutex", "permits", "rw"]);
    assert_eq!(column(1), ["fair", "mutex", "semaphore", "rwlock"]);
    assert_eq!(column(2), ["1", "0", "0", "0"]);
    assert_eq!((lines[3][3], lines[4][3]), ("3/5", "2"));
    assert!(lines.iter().skip(1).all(|line| line.last() == Some(&"alice")), "{out}");

    let out = finish(&server, "ls --json m*").stdout;
    assert_eq!(json(&out)["holders"][0]["owner"], "alice");
}

/// One user has no permission for two keys, which RLOCK.TOP leaves out too. The other has none for
/// RLOCK.INFO.
#[test]
fn refused_details_are_reported_as_missing() {
    let server = server_with_locks();
    let _bob = server.waiter("RLOCK.ACQUIRE mutex bob BLOCK 0");
    let _dave = server.waiter("RRWLOCK.ACQUIRE rw dave WRITE BLOCK 0");
    server.client().call("ACL SETUSER keys on >pw +@all ~m* ~f*");
    server.client().call("ACL SETUSER commands on >pw +@all -rlock.info ~*");
    let by = |user: &str, line: &str| {
        let output = finish(&server, &format!("--url redis://{user}:pw@127.0.0.1:{}/ {line}", server.port()));
        (output.status.code(), text(&output.stdout), text(&output.stderr))
    };
    let of_two = "rlock: details of 2 locks are missing: the server refused: NOPERM ";
    for (user, line) in [("keys", "ls"), ("keys", "ls --json"), ("commands", "top --once"), ("commands", "top --json")]
    {
        let (status, shown, complaint) = by(user, line);
        assert_eq!(status, Some(122), "{line}");
        assert!(shown.contains("mutex"), "{line} shows the rest");
        assert!(complaint.starts_with(of_two), "{line}: {complaint}");
    }
    assert!(by("commands", "top --once").1.contains("rw  "), "top shows the reply of RLOCK.TOP");
    // No request names the other keys, so the server refuses none.
    for line in ["ls m*", "top --once"] {
        let (status, _, complaint) = by("keys", line);
        assert_eq!((status, complaint.as_str()), (Some(0), ""), "{line}");
    }
}

#[test]
fn omitted_holders_are_counted() {
    let server = Server::start();
    let acquire = |number| Command::from(format!("RRWLOCK.ACQUIRE rw reader:{number} READ PX 600000"));
    server.client().call_in_one_step(&(0..1200).map(acquire).collect::<Vec<_>>());
    let out = text(&finish(&server, "show rw").stdout);
    assert_eq!(out.lines().filter(|line| line.starts_with("reader:")).count(), 1000);
    assert_eq!(out.lines().last(), Some("and 200 more"));
    let shown = json(&finish(&server, "show rw --json").stdout);
    assert_eq!(shown["holders_count"], 1200);
}

#[test]
fn full_disk_is_a_failure_and_closed_pipe_is_not() {
    let server = server_with_locks();
    for line in ["ls", "ls --json", "show fair", "show fair --json", "top --once", "top --json", "--help"] {
        let mut tool = rlock(&server, line);
        tool.stdout(File::options().write(true).open("/dev/full").expect("a full device"));
        let output = tool.stderr(Stdio::piped()).spawn().and_then(Child::wait_with_output).expect("the tool runs");
        assert_eq!(output.status.code(), Some(125), "{line}");
        assert!(text(&output.stderr).starts_with("rlock: standard output: "), "{line}: {output:?}");
        let mut tool = rlock(&server, line);
        tool.stdout(std::io::pipe().expect("a pipe").1);
        assert_eq!(Running::of(tool).status(), 0, "{line}");
    }
}

#[test]
fn ls_lists_two_thousand_locks() {
    let server = Server::start();
    let acquire = |number| Command::from(format!("RLOCK.ACQUIRE lock:{number} me PX 600000"));
    server.client().call_in_one_step(&(0..2000).map(acquire).collect::<Vec<_>>());
    assert_eq!(text(&finish(&server, "ls").stdout).lines().count(), 2001);
}

#[test]
fn control_characters_are_escaped() {
    let server = Server::start();
    server.client().call([b"RLOCK.ACQUIRE".as_slice(), b"\x1b[2J", b"\x07bell", b"PX", b"600000"]);
    let out = text(&finish(&server, "ls").stdout);
    assert!(out.contains("\\u{1b}[2J") && out.contains("\\u{7}bell"), "{out:?}");
}

#[test]
fn show_prints_holders_and_queue() {
    let server = server_with_locks();
    let out = text(&finish(&server, "show fair").stdout);
    let token = server.client().holder("fair").expect("a holder").token.to_string();
    assert!(out.contains("alice") && out.contains(&token) && out.contains("bob"), "{out}");
    let shown = json(&finish(&server, "show fair --json").stdout);
    assert_eq!((&shown["holders"][0]["owner"], &shown["queue"][0]["owner"]), (&"alice".into(), &"bob".into()));
    assert!(text(&finish(&server, "show permits").stdout).contains("2 of 5 permits available"));

    assert_eq!(status(&server, "show nothing"), 1);
    assert_eq!(status(&server, "show text"), 122);
}

#[test]
fn show_prints_how_long_a_hold_has_lasted_and_the_connections_of_its_session() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("k alice PX 600000 SESSION 60000 NOTE build-7");
    let mut other = server.client();
    other.call("RLOCK.RENEW k alice").int();
    let waiter = server.waiter("RLOCK.ACQUIRE k bob BLOCK 0");
    crate::eventually(|| client.call("RLOCK.INFO k").field("holders").array()[0].field("held-ms").int() >= 50);
    let out = text(&finish(&server, "show k").stdout);
    let cells = |line: &str| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    let mut lines = out.lines().skip(2).map(cells);
    let heads = ["HOLDER", "MODE", "HOLDS", "TOKEN", "HELD", "LEASE", "SESSION", "NOTE"];
    assert_eq!(lines.next(), Some(heads.map(str::to_owned).to_vec()), "{out}");
    let row = lines.next().expect("a holder");
    assert!(row[4].ends_with('s') && row[5].starts_with("9m"), "{out}");
    assert_eq!(row[6..], [format!("id={},{}", client.id(), other.id()), "build-7".to_owned()], "{out}");
    let shown = json(&finish(&server, "show k --json").stdout);
    let holder = &shown["holders"][0];
    assert!(holder["held_ms"].as_i64().is_some_and(|held| (50..600_000).contains(&held)), "{shown}");
    assert_eq!(holder["clients"], serde_json::json!([client.id(), other.id()]));
    assert!(shown["queue"][0]["client"].as_i64().is_some_and(|id| id > 0), "{shown}");
    drop(waiter);
}

#[test]
fn notes_have_a_column_if_there_are_any() {
    let server = server_with_locks();
    let note = b"build\x1b[2J 7".as_slice();
    let acquire = |owner| [b"RLOCK.ACQUIRE".as_slice(), b"noted", owner, b"BLOCK", b"0", b"NOTE", note];
    server.client().call(acquire(b"alice")).int();
    let mut waiter = server.client();
    waiter.send(acquire(b"bob"));
    wait_for_waiters(&server, "noted", 1);
    let shown = "build\\u{1b}[2J 7";
    for line in ["ls", "ls noted", "top --once", "show noted"] {
        let out = text(&finish(&server, line).stdout);
        let noted: Vec<_> = out.lines().filter(|line| line.contains(shown)).collect();
        assert!(out.contains("  NOTE\n") && noted.iter().all(|line| line.ends_with(shown)), "{out}");
        assert_eq!(noted.len(), if line == "show noted" { 2 } else { 1 }, "{out}");
    }
    for line in ["ls fair", "show fair"] {
        assert!(!text(&finish(&server, line).stdout).contains("NOTE"), "{line}");
    }
    let seen = json(&finish(&server, "show noted --json").stdout);
    assert_eq!((&seen["holders"][0]["note"], &seen["queue"][0]["note"]), (&shown.into(), &shown.into()));
    assert_eq!(json(&finish(&server, "top --json").stdout)["locks"][0]["holders"][0]["note"], shown);
    assert_eq!(json(&finish(&server, "ls --json noted").stdout)["holders"][0]["note"], shown);
    assert!(json(&finish(&server, "show fair --json").stdout)["holders"][0].get("note").is_none());
}

/// They come from the reply of RLOCK.TOP.
#[test]
fn top_shows_notes_of_other_databases() {
    let server = Server::start();
    let mut client = server.client();
    client.call("SELECT 3");
    client.acquire("k alice PX 600000 NOTE build-7");
    let mut waiter = server.client();
    waiter.call("SELECT 3");
    waiter.send("RLOCK.ACQUIRE k bob BLOCK 0");
    crate::eventually(|| client.info_number("rlock_waiting") == 1);
    assert!(text(&finish(&server, "top --once").stdout).ends_with("alice  build-7\n"));
}

#[test]
fn kept_lock_is_not_shown_as_free() {
    let server = Server::start();
    let token = server.client().acquire("k alice PX 600000");
    server.client().call("RLOCK.RELEASE k alice KEEP 600000").int();
    let out = text(&finish(&server, "show k").stdout);
    assert!(out.contains("not held; alice has released it and keeps it closed for 9m"), "{out}");
    let kept = json(&finish(&server, "show k --json").stdout)["kept"].clone();
    assert_eq!((&kept["owner"], &kept["token"]), (&"alice".into(), &token.into()));
    assert!(kept["keep_ms"].as_i64().is_some_and(|left| (1..=600_000).contains(&left)), "{kept}");
    let out = text(&finish(&server, "ls").stdout);
    let cells: Vec<_> = out.lines().nth(1).expect("a lock").split_whitespace().collect();
    assert!(cells[..4] == ["k", "mutex", "0", "kept"] && cells[4].starts_with("9m"), "{out}");
    assert_eq!(status(&server, "wait k --wait 0"), 124);
}

#[test]
fn release_takes_a_lock_of_any_kind_away() {
    let server = server_with_locks();
    assert_eq!(status(&server, "release mutex"), 125, "only by force");
    for key in ["mutex", "fair", "rw", "permits"] {
        assert_eq!(status(&server, &format!("release --force {key}")), 0, "{key}");
        let info = server.client().call(format!("RLOCK.INFO {key}"));
        let is_free = info == crate::support::Reply::Nil || info.field("holders").array().is_empty();
        assert!(is_free, "{key}: {info:?}");
    }
    assert_eq!(status(&server, "release --force mutex"), 1);
}

#[test]
fn release_by_token_spares_other_holds() {
    let server = Server::start();
    let token = server.client().acquire("k alice PX 600000");
    assert_eq!(status(&server, &format!("release --force k --token {}", token - 1)), 1);
    assert!(server.client().holder("k").is_some());
    assert_eq!(status(&server, &format!("release --force k --token {token}")), 0);
    assert_eq!(server.client().holder("k"), None);
}

#[test]
fn wait_ends_when_the_lock_is_free() {
    let server = Server::start();
    assert_eq!(status(&server, "wait k"), 0);
    server.client().acquire("k alice PX 600000");
    assert_eq!(status(&server, "wait k --wait 300ms"), 124);
    server.client().call("CONFIG RESETSTAT");
    let mut wait = Running::start(&server, "wait k");
    // If rlock checks a second time, the first check did not end the wait.
    let looks = || {
        let all = server.client().call("INFO commandstats").text();
        let line = all.lines().find_map(|line| line.strip_prefix("cmdstat_RLOCK.INFO:calls="));
        line.and_then(|rest| rest.split(',').next()?.parse().ok()).unwrap_or(0)
    };
    crate::eventually(|| looks() >= 2);
    assert!(wait.is_running());
    server.client().call("RLOCK.RELEASE k alice");
    assert_eq!(wait.status(), 0);
    assert_eq!(server.client().holder("k"), None, "it does not acquire the lock");
}

#[test]
fn top_shows_the_most_contended_lock_first() {
    let server = server_with_locks();
    let _bob = server.waiter("RLOCK.ACQUIRE mutex bob BLOCK 0");
    let _carol = server.waiter("RLOCK.ACQUIRE mutex carol BLOCK 0");
    let _dave = server.waiter("RRWLOCK.ACQUIRE rw dave WRITE BLOCK 0");
    wait_for_waiters(&server, "mutex", 2);
    wait_for_waiters(&server, "rw", 1);
    let seen = json(&finish(&server, "top --json --count 2").stdout);
    let keys: Vec<_> = seen["locks"].as_array().expect("locks").iter().map(|lock| &lock["key"]).collect();
    assert_eq!(keys, ["mutex", "rw"]);
    assert_eq!(seen["locks"][1]["holders"].as_array().expect("holders").len(), 2);
    assert_eq!(seen["server"]["waiting"], 3);
    assert!(seen["locks"][0]["longest_wait_ms"].is_i64());
    let out = text(&finish(&server, "top --once").stdout);
    assert!(out.lines().nth(1).is_some_and(|line| line.starts_with("mutex")), "{out}");
}

#[test]
fn top_shows_locks_of_all_databases() {
    let server = Server::start();
    let mut client = server.client();
    client.call("SELECT 3");
    client.acquire("k alice PX 600000");
    let mut waiter = server.client();
    waiter.call("SELECT 3");
    waiter.send("RLOCK.ACQUIRE k bob BLOCK 0");
    crate::eventually(|| client.info_number("rlock_waiting") == 1);
    let seen = |line: &str| json(&finish(&server, line).stdout)["locks"][0].clone();
    assert_eq!(
        (&seen("top --json")["key"], &seen("top --json")["holders"][0]["owner"]),
        (&"3/k".into(), &"alice".into())
    );
    let url = format!("{}3", url(&server));
    assert_eq!(seen(&format!("--url {url} top --json"))["key"], "k");
}

#[test]
fn missing_module_is_a_refusal_and_missing_locks_are_not() {
    let server = Server::start();
    for line in ["ls", "top --once", "show k", "run k -- true"] {
        assert_ne!(status(&server, line), 122, "{line}");
    }
    let (port, folder) = (free_port(), tempfile::tempdir().expect("a folder"));
    let mut plain = std::process::Command::new(std::env::var_os("RLOCK_SERVER").unwrap_or("redis-server".into()));
    plain.args(["--bind", "127.0.0.1", "--save", "", "--port", &port.to_string()]).current_dir(folder.path());
    let _plain = OwnedProcess::new(plain.stdout(std::process::Stdio::null()).spawn().expect("a server"));
    crate::eventually(|| Client::connect(port).is_ok());
    for line in ["ls", "top --once", "show k", "run k -- true"] {
        let line = format!("--url redis://127.0.0.1:{port}/ {line}");
        let output = finish(&server, &line);
        assert_eq!(output.status.code(), Some(122), "{line}");
        assert_eq!(text(&output.stderr), "rlock: the server has not loaded the module rlock\n", "{line}");
    }
}

/// The cost of RLOCK.INFO grows with the number of holders.
#[test]
fn holders_of_a_very_large_lock_are_not_requested() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RSEMAPHORE.INIT crowd 10000");
    let acquire = |number| Command::from(format!("RSEMAPHORE.ACQUIRE crowd owner:{number} PX 600000"));
    client.call_in_one_step(&(0..5000).map(acquire).collect::<Vec<_>>());
    client.call("CONFIG RESETSTAT");
    let seen = json(&finish(&server, "ls --json").stdout);
    assert_eq!(seen["many_holders"], true);
    assert!(!client.call("INFO commandstats").text().contains("RLOCK.INFO"));
    let has_many = |line: &str| line.split_whitespace().any(|cell| cell == "many");
    assert!(text(&finish(&server, "ls").stdout).lines().any(has_many));
}

/// The queue makes the value of a fair lock large, not its holders.
#[test]
fn all_waiters_of_a_large_fair_lock_are_counted() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire_fair("queue first PX 600000");
    let queue = |number| Command::from(format!("RFAIRLOCK.ACQUIRE queue owner:{number} QUEUE 600000"));
    client.call_in_one_step(&(0..5000).map(queue).collect::<Vec<_>>());
    assert_eq!(json(&finish(&server, "ls --json").stdout)["waiters"], 5000);
}
