//! `run`: the environment and the status of the command, and the release of the lock.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::commands::{Desk, Running, finish, rlock, status, text, wait_for_holder};
use crate::support::{Reply, Server, free_port};

#[test]
fn command_gets_token_key_and_owner_while_the_lock_is_held() {
    let (server, desk) = (Server::start(), Desk::new());
    let (out, go) = (desk.path("out"), desk.path("go"));
    let line = format!(
        "run k -- echo $RLOCK_TOKEN $RLOCK_KEY $RLOCK_OWNER > {out}; while ! test -e {go}; do sleep 0.01; done"
    );
    let mut running = Running::start(&server, &line);
    let got = desk.wait_for("out");
    let holder = server.client().holder("k").expect("a holder");
    assert_eq!(got.trim(), format!("{} k {}", holder.token, holder.owner));
    assert!(holder.owner.contains(&format!(":{}:", running.id())), "the owner shows the process: {holder:?}");
    std::fs::write(&go, "").expect("a file");
    assert_eq!(running.status(), 0);
    assert_eq!(server.client().call("EXISTS k"), 0);
}

#[test]
fn status_of_the_command_is_returned_and_the_lock_is_free() {
    let server = Server::start();
    for (command, expected) in [("true", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        assert_eq!(status(&server, &format!("run k -- {command}")), expected, "{command}");
        assert_eq!(server.client().holder("k"), None, "{command}");
    }
}

#[test]
fn command_inherits_input_and_output() {
    let server = Server::start();
    let mut tool = rlock(&server, "run k -- tr a-z A-Z");
    tool.stdin(Stdio::from(std::fs::File::open(env!("CARGO_MANIFEST_PATH")).expect("a file")));
    let output = tool.output().expect("the tool runs");
    assert!(text(&output.stdout).contains("[PACKAGE]"), "{output:?}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn command_that_cannot_be_started_leaves_the_lock_free() {
    let (server, desk) = (Server::start(), Desk::new());
    let run = |program: &str| {
        let mut tool = rlock(&server, "run k");
        let output = tool.args(["--", program]).output().expect("the tool runs");
        (output.status.code(), text(&output.stderr))
    };
    let (missing, complaint) = run("/nowhere/at-all");
    assert_eq!(missing, Some(127));
    assert!(complaint.starts_with("rlock: /nowhere/at-all: "), "{complaint}");
    std::fs::write(desk.path("data"), "data").expect("a file");
    std::fs::set_permissions(desk.path("data"), PermissionsExt::from_mode(0o644)).expect("rights");
    assert_eq!(run(&desk.path("data")).0, Some(126));
    assert_eq!(server.client().holder("k"), None);
}

#[test]
fn wait_that_times_out_has_a_status_of_its_own() {
    let (server, desk) = (Server::start(), Desk::new());
    server.client().acquire("k other PX 600000");
    for (wait, message) in [("0", "the lock k is not free"), ("200ms", "timed out waiting for the lock k")] {
        let output = finish(&server, &format!("run k --wait {wait} -- touch {}", desk.path("ran")));
        assert_eq!(output.status.code(), Some(124), "{wait}");
        assert_eq!(text(&output.stderr), format!("rlock: {message}\n"));
    }
    assert!(!std::path::Path::new(&desk.path("ran")).exists(), "the command was not started");
    assert_eq!(server.client().waiting_owners("k"), Vec::<String>::new());
    server.client().call("RLOCK.RELEASE k other");
    assert_eq!(status(&server, "run k --wait 0 -- true"), 0);
}

#[test]
fn failures_have_statuses_of_their_own() {
    let server = Server::start();
    server.client().call("SET text here");
    assert_eq!(status(&server, "run text -- true"), 122);
    let url = format!("redis://127.0.0.1:{}/", free_port());
    for (line, command) in
        [("run k --wait 0", " -- true"), ("run k --wait 200ms", " -- true"), ("wait k --wait 200ms", ""), ("ls", "")]
    {
        assert_eq!(status(&server, &format!("{line} --url {url}{command}")), 121, "{line}");
    }
    assert_eq!(status(&server, "run k --lease soon -- true"), 125);
    assert_eq!(status(&server, "run k"), 125);
    assert_eq!(status(&server, "run k --url http://host -- true"), 125);
    assert_eq!(status(&server, "--help"), 0);
}

#[test]
fn refused_login_is_a_refusal() {
    let server = Server::start();
    let mut client = server.client();
    client.call("ACL SETUSER me on >right ~* &* +@all");
    client.call("CONFIG SET requirepass secret");
    let host = format!("127.0.0.1:{}", server.port());
    for account in ["me:wrong@", "unknown:right@", ":wrong@", ""] {
        for (line, command) in [("run k", " -- true"), ("run k --semaphore 2", " -- true"), ("wait k", ""), ("ls", "")]
        {
            let output = finish(&server, &format!("{line} --url redis://{account}{host}/{command}"));
            assert_eq!(output.status.code(), Some(122), "{line}, {account}");
            let complaint = text(&output.stderr);
            assert!(
                complaint.contains("the server refused: WRONGPASS ") || complaint.contains("NOAUTH "),
                "{complaint}"
            );
        }
    }
    assert_eq!(status(&server, &format!("run k --url redis://me:right@{host}/ -- true")), 0);
    client.call([b"CONFIG".as_slice(), b"SET", b"requirepass", b""]);
}

#[test]
fn address_needs_no_scheme() {
    let server = Server::start();
    for line in ["run k -- true", "ls"] {
        let mut tool = rlock(&server, line);
        tool.env("RLOCK_URL", format!("127.0.0.1:{}", server.port()));
        assert_eq!(Running::of(tool).status(), 0, "{line}");
    }
}

#[test]
fn empty_key_is_wrong_usage() {
    let server = Server::start();
    for words in [&["run", "", "--", "true"][..], &["show", ""], &["release", "", "--force"], &["wait", ""]] {
        let output = rlock(&server, "").args(words).output().expect("the tool runs");
        assert_eq!(output.status.code(), Some(125), "{words:?}");
        assert!(text(&output.stderr).contains("the key is empty"), "{output:?}");
    }
}

#[test]
fn password_is_not_shown() {
    let server = Server::start();
    let output = finish(&server, &format!("run k --wait 0 --url redis://me:secret@127.0.0.1:{}/ -- true", free_port()));
    assert_eq!(output.status.code(), Some(121));
    assert!(!text(&output.stderr).contains("secret"), "{output:?}");
    let refused = finish(&server, &format!("ls --url redis://me:secret@127.0.0.1:{}/", server.port()));
    assert_eq!(refused.status.code(), Some(122), "{refused:?}");
    assert!(!text(&refused.stderr).contains("secret"), "{refused:?}");
    // Without a scheme, and with a password in the query.
    for wrong in ["admin:secret@127.0.0.1:1", "redis+unix:///nowhere/s.sock?pass=secret"] {
        for line in ["run k --wait 0", "ls"] {
            let command = if line == "ls" { "" } else { " -- true" };
            let output = finish(&server, &format!("{line} --url {wrong}{command}"));
            assert_eq!(output.status.code(), Some(121), "{output:?}");
            assert!(!text(&output.stderr).contains("secret"), "{output:?}");
        }
    }
}

/// Even if the command fails.
#[test]
fn lock_is_kept_closed_for_the_rest_of_at_least() {
    let server = Server::start();
    for (kind, command, expected) in [("", "true", 0), ("", "kill -TERM $$", 143), ("--fair", "exit 7", 7)] {
        assert_eq!(status(&server, &format!("run k {kind} --at-least 10m -- {command}")), expected);
        let kept = server.client().call("RLOCK.INFO k").field("kept");
        assert!((1..=600_000).contains(&kept.field("keep-ms").int()), "{kept:?}");
        assert_eq!(status(&server, &format!("run k {kind} --wait 0 -- true")), 124);
        assert_eq!(status(&server, "release --force k"), 0);
    }
}

#[test]
fn lock_is_free_if_the_command_takes_longer_than_at_least() {
    let server = Server::start();
    for line in ["run k --at-least 1s -- sleep 1.1", "run k --at-least 0 -- true", "run k --at-least 10m"] {
        let mut tool = rlock(&server, line);
        let has_command = line.contains(" -- ");
        if !has_command {
            tool.args(["--", "/nowhere/at-all"]);
        }
        assert_eq!(Running::of(tool).status(), if has_command { 0 } else { 127 }, "{line}");
        assert_eq!(server.client().call("EXISTS k"), 0, "{line}");
    }
}

#[test]
fn only_the_outermost_run_keeps_the_lock_closed() {
    let server = Server::start();
    let tool = env!("CARGO_BIN_EXE_rlock");
    let again = format!("{tool} run k --owner $RLOCK_OWNER --at-least 10m -- true");
    let output = finish(&server, &format!("run k --at-least 20m -- {again}"));
    assert_eq!(output.status.code(), Some(0));
    let complaint = text(&output.stderr);
    assert!(
        complaint.starts_with("rlock: released the lock k, but did not keep it closed: KEEP ends a hold"),
        "{complaint}"
    );
    assert!(server.client().call("RLOCK.INFO k").field("kept").field("keep-ms").int() > 600_000);
}

#[test]
fn at_least_is_for_a_mutex_or_a_fair_lock() {
    let server = Server::start();
    for kind in ["--read", "--write", "--semaphore=2"] {
        let output = finish(&server, &format!("run k {kind} --at-least 1s -- true"));
        assert_eq!(output.status.code(), Some(125), "{kind}");
        let (complaint, option) = (text(&output.stderr), kind.split('=').next().expect("an option"));
        assert!(complaint.contains("--at-least") && complaint.contains(option), "{complaint}");
    }
}

#[test]
fn note_is_stored_with_the_hold() {
    let server = Server::start();
    let seen = finish(&server, &format!("run k --note build-7 -- {} show k", env!("CARGO_BIN_EXE_rlock")));
    assert!(text(&seen.stdout).contains("build-7"), "{seen:?}");
    let refused = finish(&server, &format!("run k --note {} -- true", "n".repeat(257)));
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).ends_with("note has 257 bytes; expected 0 to 256\n"), "{refused:?}");
}

/// If the parent ignores SIGCHLD, the kernel discards the exit status of child processes.
#[test]
fn status_of_the_command_is_returned_when_the_parent_ignores_sigchld() {
    let server = Server::start();
    let mut tool = rlock(&server, "run k -- exit 7");
    let ignore = || {
        // SAFETY: only numbers are passed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: between fork and exec it calls only signal(2), which is async-signal-safe.
    unsafe { tool.pre_exec(ignore) };
    assert_eq!(Running::of(tool).status(), 7);
    assert_eq!(server.client().holder("k"), None);
}

/// The command takes longer than the lease. A busy machine may delay a renewal by seconds.
#[test]
fn lock_is_renewed_while_the_command_runs() {
    let server = Server::start();
    let mut running = Running::start(&server, "run k --lease 6s -- sleep 8");
    wait_for_holder(&server, "k");
    assert_eq!(running.status(), 0);
    assert_eq!(server.client().call("EXISTS k"), Reply::Int(0));
    assert!(server.client().info("cmdstat_RLOCK.RENEW").starts_with("calls="));
}

#[test]
fn command_acquires_the_lock_again_with_its_owner() {
    let server = Server::start();
    let tool = env!("CARGO_BIN_EXE_rlock");
    let again = format!("run k -- {tool} run k --wait 0 --owner $RLOCK_OWNER -- true");
    assert_eq!(status(&server, &again), 0);
    assert_eq!(status(&server, &format!("run k -- {tool} run k --wait 0 -- true")), 124, "another owner");
    assert_eq!(server.client().holder("k"), None);
}
