//! `run`: signals, a lost lock, and the death of rlock.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use crate::commands::{Desk, Running, VERY_LONG, is_alive, rlock, status, wait_for_end_of, wait_for_waiters};
use crate::eventually;
use crate::support::{Server, Stopwatch};

/// A command that writes its process id and then waits, with a trap for signals.
fn waiting(desk: &Desk, trap: &str) -> String {
    format!("{trap} echo $$ > {}; while :; do sleep 0.02; done", desk.path("id"))
}

/// A command that ignores SIGTERM and then writes its process id. It ends after 40 s if no test
/// kills it.
fn deaf(desk: &Desk) -> String {
    format!(r"trap '' TERM; echo \$\$ > {}; for each in $(echo $(seq 2000)); do sleep 0.02; done", desk.path("deaf"))
}

#[test]
fn signals_are_forwarded_and_the_lock_is_released() {
    let server = Server::start();
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGUSR1] {
        let desk = Desk::new();
        let mut run =
            Running::start(&server, &format!("run k -- {}", waiting(&desk, "trap 'exit 42' HUP INT TERM USR1;")));
        desk.wait_for("id");
        run.signal(signal);
        assert_eq!(run.status(), 42, "signal {signal}");
        assert_eq!(server.client().holder("k"), None);

        let desk = Desk::new();
        let mut run = Running::start(&server, &format!("run k -- {}", waiting(&desk, "")));
        desk.wait_for("id");
        run.signal(signal);
        assert_eq!(run.status(), 128 + signal, "signal {signal} without a trap");
        assert_eq!(server.client().holder("k"), None);
    }
}

#[test]
fn signal_reaches_child_processes_of_the_command() {
    let (server, desk) = (Server::start(), Desk::new());
    let line = format!("run k -- sleep 60 & echo $! > {}; wait", desk.path("id"));
    let mut run = Running::start(&server, &line);
    let grandchild = desk.process("id");
    run.signal(libc::SIGTERM);
    assert_eq!(run.status(), 143);
    wait_for_end_of(grandchild);
}

/// The command ends at once; its child process cleans up first.
#[test]
fn lock_is_held_until_child_processes_of_the_signalled_command_have_ended() {
    let server = Server::start();
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        let desk = Desk::new();
        let tidying = format!("trap \\\"sleep 1; echo done > {}; exit\\\" TERM HUP;", desk.path("tidy"));
        let job = format!("{tidying} echo > {}; while :; do sleep 0.02; done", desk.path("ready"));
        let line = format!("run k -- sh -c \"{job}\" & echo $$ > {}; wait", desk.path("id"));
        let mut run = Running::start(&server, &line);
        let command = desk.process("id");
        desk.wait_for("ready");
        run.signal(signal);
        wait_for_end_of(command);
        assert!(server.client().holder("k").is_some(), "signal {signal}: the child process is cleaning up");
        assert_eq!(run.status(), 128 + signal);
        assert_eq!(desk.read("tidy"), "done\n", "signal {signal}");
        assert_eq!(server.client().holder("k"), None);
    }
}

#[test]
fn child_processes_of_a_signalled_command_are_killed_if_they_do_not_end() {
    let (server, desk) = (Server::start(), Desk::new());
    let line = format!("run k --kill-after 300ms -- sh -c \"{}\" & {}", deaf(&desk), waiting(&desk, ""));
    let mut run = Running::start(&server, &line);
    desk.wait_for("id");
    let grandchild = desk.process("deaf");
    run.signal(libc::SIGTERM);
    assert_eq!(run.status(), 143);
    wait_for_end_of(grandchild);
    assert_eq!(server.client().holder("k"), None);
}

#[test]
fn signal_ends_the_wait_and_cancels_the_request() {
    let server = Server::start();
    for kind in ["", "--fair", "--session 1s"] {
        let mut holder = server.client();
        let acquire = if kind == "--fair" { "RFAIRLOCK" } else { "RLOCK" };
        holder.call(format!("{acquire}.ACQUIRE k other PX 600000")).int();
        let mut run = Running::start(&server, &format!("run k {kind} -- true"));
        wait_for_waiters(&server, "k", 1);
        run.signal(libc::SIGTERM);
        assert_eq!(run.status(), 143);
        assert_eq!(holder.waiting_owners("k"), Vec::<String>::new());
        holder.call(format!("{acquire}.RELEASE k other"));
        assert_eq!(holder.holder("k"), None, "no waiter was left to be granted the lock");
    }
}

#[test]
fn ignored_signals_stay_ignored() {
    let (server, desk) = (Server::start(), Desk::new());
    let line = format!("run k -- {}", waiting(&desk, ""));
    let tool = rlock(&server, &line);
    // As nohup(1) does.
    let mut shell = std::process::Command::new("sh");
    shell.args(["-c", "trap '' HUP; exec \"$@\"", "sh"]).arg(tool.get_program()).args(tool.get_args());
    shell.env("RLOCK_URL", crate::commands::url(&server)).stdin(std::process::Stdio::null());
    let mut run = Running::of(shell);
    let command = desk.process("id");
    run.signal(libc::SIGHUP);
    run.signal(libc::SIGUSR2);
    assert_eq!(run.status(), 128 + libc::SIGUSR2, "the second signal ended it");
    assert!(!is_alive(command));
}

#[test]
fn lost_lock_ends_the_command() {
    let (server, desk) = (Server::start(), Desk::new());
    let trap = format!("trap 'echo TERM > {}; exit 0' TERM;", desk.path("got"));
    let mut run = Running::start(&server, &format!("run k --lease 1s --kill-after 30s -- {}", waiting(&desk, &trap)));
    desk.wait_for("id");
    assert_eq!(status(&server, "release --force k"), 0);
    assert_eq!(run.status(), 123);
    assert_eq!(desk.read("got"), "TERM\n");
}

#[test]
fn command_that_ignores_sigterm_is_killed_with_its_child_processes() {
    let server = Server::start();
    // The second command ends on SIGTERM, its child process does not.
    for trap in ["trap '' TERM;", ""] {
        let desk = Desk::new();
        let line =
            format!("run k --lease 1s --kill-after 300ms -- sh -c \"{}\" & {}", deaf(&desk), waiting(&desk, trap));
        let mut run = Running::start(&server, &line);
        let (command, grandchild) = (desk.process("id"), desk.process("deaf"));
        server.client().call("RLOCK.FORCERELEASE k");
        assert_eq!(run.status(), 123);
        assert!(!is_alive(command));
        wait_for_end_of(grandchild);
    }
}

#[test]
fn lost_lock_is_reported_even_if_the_command_ends_by_itself() {
    let (server, desk) = (Server::start(), Desk::new());
    // The next renewal, in 10 s, would detect the loss.
    let line =
        format!("run k -- echo $$ > {}; while ! test -e {}; do sleep 0.01; done", desk.path("id"), desk.path("go"));
    let mut run = Running::start(&server, &line);
    desk.wait_for("id");
    server.client().call("RLOCK.FORCERELEASE k");
    std::fs::write(desk.path("go"), "").expect("a file");
    assert_eq!(run.status(), 123);
}

/// The command runs while rlock is stopped. Only the token protects the resource then.
#[test]
fn stopped_rlock_ends_the_command_when_it_continues() {
    let (server, desk) = (Server::start(), Desk::new());
    let mut run = Running::start(&server, &format!("run k --lease 500ms -- {}", waiting(&desk, "")));
    desk.wait_for("id");
    run.signal(libc::SIGSTOP);
    eventually(|| server.client().holder("k").is_none());
    run.signal(libc::SIGCONT);
    assert_eq!(run.status(), 123);
}

/// Even with a --kill-after that has not passed: another owner may hold the lock.
#[test]
fn rlock_that_continues_after_the_lease_kills_the_command() {
    let (server, desk) = (Server::start(), Desk::new());
    let line = format!("run k --lease 500ms --kill-after 1h -- {}", waiting(&desk, "trap '' TERM;"));
    let mut run = Running::start(&server, &line);
    desk.wait_for("id");
    run.signal(libc::SIGSTOP);
    eventually(|| server.client().holder("k").is_none());
    run.signal(libc::SIGCONT);
    assert_eq!(run.status(), 123);
}

#[test]
fn timed_command_ends_before_the_lease_expires_if_the_server_is_silent() {
    let (server, desk) = (Server::start(), Desk::new());
    let run = Running::start(&server, &format!("run k --lease 3s -- {}", waiting(&desk, "trap '' TERM;")));
    assert_ends_before_its_lease_of_3_s(server, run, desk.process("id"));
}

/// Asserts that a process of the command ends while the server is silent.
#[track_caller]
fn assert_ends_before_its_lease_of_3_s(mut server: Server, mut run: Running, process: i32) {
    let watch = Stopwatch::start();
    let mut took = Duration::ZERO;
    server.while_stopped(|| {
        wait_for_end_of(process);
        took = watch.elapsed();
    });
    // rlock sent the last renewal before the server was stopped. Its timer, its signal and this test
    // may each be late.
    let lateness = watch.lateness();
    assert!(took < Duration::from_secs(3) + lateness * 3, "took {took:?}, on a machine that was late by {lateness:?}");
    assert_eq!(run.status(), 123);
    server.assert_alive();
}

/// Even with a --kill-after longer than the lease.
#[test]
fn timed_child_processes_of_the_command_do_not_outlive_the_lease() {
    let (server, desk) = (Server::start(), Desk::new());
    let line = format!("run k --lease 3s --kill-after 1m -- sh -c \"{}\" & {}", deaf(&desk), waiting(&desk, ""));
    let run = Running::start(&server, &line);
    desk.wait_for("id");
    assert_ends_before_its_lease_of_3_s(server, run, desk.process("deaf"));
}

/// Standard error is a full disk, or a pipe that its reader has closed.
#[test]
fn lost_lock_ends_the_command_even_if_the_message_cannot_be_written() {
    let server = Server::start();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").expect("a full device"));
    let broken = || Stdio::from(std::io::pipe().expect("a pipe").1);
    for stderr in [full(), broken()] {
        let desk = Desk::new();
        let line =
            format!("run k --lease 1s -- sleep 60 & echo $! > {}; {}", desk.path("grandchild"), waiting(&desk, ""));
        let mut tool = rlock(&server, &line);
        tool.stderr(stderr);
        let mut run = Running::of(tool);
        desk.wait_for("id");
        let grandchild = desk.process("grandchild");
        assert_eq!(status(&server, "release --force k"), 0);
        assert_eq!(run.status(), 123);
        wait_for_end_of(grandchild);
    }
}

#[test]
fn timed_killed_rlock_ends_the_command_and_the_session() {
    let (server, desk) = (Server::start(), Desk::new());
    let mut run = Running::start(&server, &format!("run k --session 500ms -- {}", waiting(&desk, "")));
    let command = desk.process("id");
    let watch = Stopwatch::start();
    run.signal(libc::SIGKILL);
    eventually(|| !run.is_running());
    eventually(|| server.client().holder("k").is_none());
    watch.assert_took_ms(500..1500, "the session");
    wait_for_end_of(command);
}

#[test]
fn timed_lock_of_killed_rlock_without_session_expires_with_its_lease() {
    let (server, desk) = (Server::start(), Desk::new());
    let mut run = Running::start(&server, &format!("run k --lease 2s -- {}", waiting(&desk, "")));
    let command = desk.process("id");
    run.signal(libc::SIGKILL);
    eventually(|| !run.is_running());
    let watch = Stopwatch::start();
    let left_ms = u64::try_from(server.client().call("RLOCK.PTTL k").int()).expect("the lock is held");
    wait_for_end_of(command);
    eventually(|| server.client().holder("k").is_none());
    watch.assert_took_ms(left_ms.saturating_sub(2)..left_ms + 500, "the rest of the lease");
}

#[test]
fn timed_rlock_killed_while_it_waits_leaves_no_waiter() {
    let server = Server::start();
    let lease_ms = VERY_LONG.as_millis();
    server.client().acquire(&format!("k other PX {lease_ms}"));
    let run = Running::start(&server, "run k -- true");
    wait_for_waiters(&server, "k", 1);
    run.signal(libc::SIGKILL);
    let watch = Stopwatch::start();
    wait_for_waiters(&server, "k", 0);
    watch.assert_took_ms(0..1000, "the waiter");
}

#[test]
fn failed_release_does_not_change_the_status() {
    let mut server = Server::start();
    let desk = Desk::new();
    let waits = format!("echo > {}; while [ ! -e {} ]; do sleep 0.02; done", desk.path("runs"), desk.path("over"));
    let mut run = Running::start(&server, &format!("run k -- {waits}"));
    desk.wait_for("runs");
    server.kill();
    File::create(desk.path("over")).expect("a file");
    // The command held the lock until its end.
    assert_eq!(run.status(), 0);
    server.restart();
}
