//! `run`: what the command gets, what becomes of its status, and that the lock is free afterwards.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Stdio;

use crate::commands::{Desk, Running, finish, rlock, status, text, wait_for_holder};
use crate::support::{Reply, Server, free_port};

#[test]
fn the_command_gets_token_key_and_owner_and_the_lock_is_held_meanwhile() {
    let (server, desk) = (Server::start(), Desk::new());
    let (out, go) = (desk.path("out"), desk.path("go"));
    let line = format!(
        "run k -- echo $RLOCK_TOKEN $RLOCK_KEY $RLOCK_OWNER > {out}; while ! test -e {go}; do sleep 0.01; done"
    );
    let mut running = Running::start(&server, &line);
    let told = desk.wait_for("out");
    let holder = server.client().holder("k").expect("a holder");
    assert_eq!(told.trim(), format!("{} k {}", holder.token, holder.owner));
    assert!(holder.owner.contains(&format!(":{}:", running.id())), "the process is found by the owner: {holder:?}");
    std::fs::write(&go, "").expect("a file");
    assert_eq!(running.status(), 0);
    assert_eq!(server.client().call("EXISTS k"), 0);
}

#[test]
fn its_status_is_passed_on_and_the_lock_is_free() {
    let server = Server::start();
    for (command, expected) in [("true", 0), ("exit 7", 7), ("kill -TERM $$", 143), ("kill -KILL $$", 137)] {
        assert_eq!(status(&server, &format!("run k -- {command}")), expected, "{command}");
        assert_eq!(server.client().holder("k"), None, "{command}");
    }
}

#[test]
fn input_and_output_go_through() {
    let server = Server::start();
    let mut tool = rlock(&server, "run k -- tr a-z A-Z");
    tool.stdin(Stdio::from(std::fs::File::open(env!("CARGO_MANIFEST_PATH")).expect("a file")));
    let output = tool.output().expect("the tool runs");
    assert!(text(&output.stdout).contains("[PACKAGE]"), "{output:?}");
    assert_eq!(text(&output.stderr), "");
}

#[test]
fn a_command_that_cannot_be_run_leaves_the_lock_free() {
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
fn who_does_not_get_the_lock_in_time_is_told_by_the_status() {
    let (server, desk) = (Server::start(), Desk::new());
    server.client().acquire("k other PX 600000");
    for wait in ["0", "200ms"] {
        let output = finish(&server, &format!("run k --wait {wait} -- touch {}", desk.path("ran")));
        assert_eq!(output.status.code(), Some(124), "{wait}");
        assert_eq!(text(&output.stderr), "rlock: the lock k was not free in time\n");
    }
    assert!(!std::path::Path::new(&desk.path("ran")).exists(), "the command has not run");
    assert_eq!(server.client().waiting_owners("k"), Vec::<String>::new());
    server.client().call("RLOCK.RELEASE k other");
    assert_eq!(status(&server, "run k --wait 0 -- true"), 0);
}

#[test]
fn other_failures_have_statuses_of_their_own() {
    let server = Server::start();
    server.client().call("SET text here");
    assert_eq!(status(&server, "run text -- true"), 122);
    let nobody = format!("run k --url redis://127.0.0.1:{}/ -- true", free_port());
    assert_eq!(status(&server, &nobody), 121);
    assert_eq!(status(&server, "run k --lease soon -- true"), 125);
    assert_eq!(status(&server, "run k"), 125);
    assert_eq!(status(&server, "run k --url nonsense -- true"), 125);
    assert_eq!(status(&server, "--help"), 0);
}

#[test]
fn a_password_is_not_shown() {
    let server = Server::start();
    let output = finish(&server, &format!("run k --url redis://me:secret@127.0.0.1:{}/ -- true", free_port()));
    assert_eq!(output.status.code(), Some(121));
    assert!(!text(&output.stderr).contains("secret"), "{output:?}");
    let refused = finish(&server, &format!("ls --url redis://me:secret@127.0.0.1:{}/", server.port()));
    assert_eq!(refused.status.code(), Some(122), "{refused:?}");
    assert!(!text(&refused.stderr).contains("secret"), "{refused:?}");
    // The scheme was forgotten, or the server is away that has a password in its query.
    for wrong in ["admin:secret@127.0.0.1:1", "redis+unix:///nowhere/s.sock?pass=secret"] {
        for line in ["run k", "ls"] {
            let command = if line == "ls" { "" } else { " -- true" };
            let output = finish(&server, &format!("{line} --url {wrong}{command}"));
            assert!(matches!(output.status.code(), Some(121 | 125)), "{output:?}");
            assert!(!text(&output.stderr).contains("secret"), "{output:?}");
        }
    }
}

/// Also if it fails. Whoever waits, waits until it opens.
#[test]
fn a_lock_is_kept_for_what_is_left_of_its_least_time() {
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
fn a_lock_is_free_when_its_least_time_is_over_before_the_command() {
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
fn a_lock_is_kept_closed_by_whoever_leaves_it_last() {
    let server = Server::start();
    let tool = env!("CARGO_BIN_EXE_rlock");
    let again = format!("{tool} run k --owner $RLOCK_OWNER --at-least 10m -- true");
    let output = finish(&server, &format!("run k --at-least 20m -- {again}"));
    assert_eq!(output.status.code(), Some(0));
    let complaint = text(&output.stderr);
    assert!(complaint.starts_with("rlock: k was released, and is not kept closed: KEEP ends a hold"), "{complaint}");
    assert!(server.client().call("RLOCK.INFO k").field("kept").field("keep-ms").int() > 600_000);
}

#[test]
fn only_a_mutex_or_a_fair_lock_has_a_least_time() {
    let server = Server::start();
    for kind in ["--read", "--write", "--semaphore=2"] {
        let output = finish(&server, &format!("run k {kind} --at-least 1s -- true"));
        assert_eq!(output.status.code(), Some(125), "{kind}");
        let (complaint, option) = (text(&output.stderr), kind.split('=').next().expect("an option"));
        assert!(complaint.contains("--at-least") && complaint.contains(option), "{complaint}");
    }
}

#[test]
fn a_note_goes_with_the_lock() {
    let server = Server::start();
    let seen = finish(&server, &format!("run k --note build-7 -- {} show k", env!("CARGO_BIN_EXE_rlock")));
    assert!(text(&seen.stdout).contains("build-7"), "{seen:?}");
    let refused = finish(&server, &format!("run k --note {} -- true", "n".repeat(257)));
    assert_eq!(refused.status.code(), Some(125));
    assert!(text(&refused.stderr).ends_with("note has 257 bytes; expected 0 to 256\n"), "{refused:?}");
}

/// A parent that ignores it has the kernel forget how its children have ended.
#[test]
fn its_status_is_passed_on_when_the_parent_ignores_the_end_of_children() {
    let server = Server::start();
    let mut tool = rlock(&server, "run k -- exit 7");
    let ignore = || {
        // SAFETY: only numbers are passed.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: between fork and exec it calls signal(2) alone, which may be called there.
    unsafe { tool.pre_exec(ignore) };
    assert_eq!(Running::of(tool).status(), 7);
    assert_eq!(server.client().holder("k"), None);
}

/// The command takes longer than the lease, and a renewal may be late by seconds.
#[test]
fn the_lock_is_renewed_while_the_command_runs() {
    let server = Server::start();
    let mut running = Running::start(&server, "run k --lease 6s -- sleep 8");
    wait_for_holder(&server, "k");
    assert_eq!(running.status(), 0);
    assert_eq!(server.client().call("EXISTS k"), Reply::Int(0));
    assert!(server.client().info("cmdstat_RLOCK.RENEW").starts_with("calls="));
}

#[test]
fn a_command_enters_a_lock_again_in_the_name_of_its_owner() {
    let server = Server::start();
    let tool = env!("CARGO_BIN_EXE_rlock");
    let again = format!("run k -- {tool} run k --wait 0 --owner $RLOCK_OWNER -- true");
    assert_eq!(status(&server, &again), 0);
    assert_eq!(status(&server, &format!("run k -- {tool} run k --wait 0 -- true")), 124, "another owner");
    assert_eq!(server.client().holder("k"), None);
}
