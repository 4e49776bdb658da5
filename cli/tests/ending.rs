//! `run`: signals, the loss of the lock, and the death of rlock itself.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use crate::commands::{Desk, Running, VERY_LONG, lives, rlock, status, wait_for_end_of, wait_for_waiters};
use crate::eventually;
use crate::support::{Server, Stopwatch};

/// A command that says its process id and then waits, and does something on signals.
fn waiting(desk: &Desk, trap: &str) -> String {
    format!("{trap} echo $$ > {}; while :; do sleep 0.02; done", desk.path("id"))
}

/// A command that says its process id when it does not hear of SIGTERM any more. It ends by itself, should nobody kill it.
fn deaf(desk: &Desk) -> String {
    format!(r"trap '' TERM; echo \$\$ > {}; for each in $(echo $(seq 2000)); do sleep 0.02; done", desk.path("deaf"))
}

#[test]
fn signals_are_passed_on_and_the_lock_is_released() {
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
        assert_eq!(run.status(), 128 + signal, "signal {signal}, which it does not catch");
        assert_eq!(server.client().holder("k"), None);
    }
}

#[test]
fn a_signal_reaches_what_the_command_has_started() {
    let (server, desk) = (Server::start(), Desk::new());
    let line = format!("run k -- sleep 60 & echo $! > {}; wait", desk.path("id"));
    let mut run = Running::start(&server, &line);
    let grandchild = desk.process("id");
    run.signal(libc::SIGTERM);
    assert_eq!(run.status(), 143);
    wait_for_end_of(grandchild);
}

/// The command itself is gone at once; what it has started tidies up first.
#[test]
fn the_lock_is_held_until_what_the_signalled_command_has_started_has_ended() {
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
        assert!(server.client().holder("k").is_some(), "signal {signal}: it has not tidied up yet");
        assert_eq!(run.status(), 128 + signal);
        assert_eq!(desk.read("tidy"), "done\n", "signal {signal}");
        assert_eq!(server.client().holder("k"), None);
    }
}

#[test]
fn what_a_signalled_command_has_started_is_killed_if_it_does_not_end() {
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
fn a_signal_ends_a_wait_and_leaves_nothing() {
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
        assert_eq!(holder.holder("k"), None, "nobody was left to be given it");
    }
}

#[test]
fn what_was_ignored_stays_ignored() {
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
    assert_eq!(run.status(), 128 + libc::SIGUSR2, "the second one ended it");
    assert!(!lives(command));
}

#[test]
fn the_loss_of_the_lock_ends_the_command() {
    let (server, desk) = (Server::start(), Desk::new());
    let trap = format!("trap 'echo told > {}; exit 0' TERM;", desk.path("told"));
    let mut run = Running::start(&server, &format!("run k --lease 1s --kill-after 30s -- {}", waiting(&desk, &trap)));
    desk.wait_for("id");
    assert_eq!(status(&server, "release --force k"), 0);
    assert_eq!(run.status(), 123);
    assert_eq!(desk.read("told"), "told\n", "it was asked first");
}

#[test]
fn a_command_that_does_not_end_is_killed_with_all_it_has_started() {
    let server = Server::start();
    // The second one ends when it is asked to, and what it has started does not.
    for trap in ["trap '' TERM;", ""] {
        let desk = Desk::new();
        let line =
            format!("run k --lease 1s --kill-after 300ms -- sh -c \"{}\" & {}", deaf(&desk), waiting(&desk, trap));
        let mut run = Running::start(&server, &line);
        let (command, grandchild) = (desk.process("id"), desk.process("deaf"));
        server.client().call("RLOCK.FORCERELEASE k");
        assert_eq!(run.status(), 123);
        assert!(!lives(command));
        wait_for_end_of(grandchild);
    }
}

#[test]
fn a_command_that_ends_by_itself_after_the_loss_does_not_hide_it() {
    let (server, desk) = (Server::start(), Desk::new());
    // The next renewal would find the loss in ten seconds.
    let line =
        format!("run k -- echo $$ > {}; while ! test -e {}; do sleep 0.01; done", desk.path("id"), desk.path("go"));
    let mut run = Running::start(&server, &line);
    desk.wait_for("id");
    server.client().call("RLOCK.FORCERELEASE k");
    std::fs::write(desk.path("go"), "").expect("a file");
    assert_eq!(run.status(), 123);
}

/// Nothing can keep the command from running meanwhile. The token is for that.
#[test]
fn a_rlock_that_was_stopped_ends_the_command_as_soon_as_it_goes_on() {
    let (server, desk) = (Server::start(), Desk::new());
    let mut run = Running::start(&server, &format!("run k --lease 500ms -- {}", waiting(&desk, "")));
    desk.wait_for("id");
    run.signal(libc::SIGSTOP);
    eventually(|| server.client().holder("k").is_none());
    run.signal(libc::SIGCONT);
    assert_eq!(run.status(), 123);
}

#[test]
fn timed_a_server_that_is_silent_ends_the_command_before_the_lease_ends() {
    let (server, desk) = (Server::start(), Desk::new());
    let run = Running::start(&server, &format!("run k --lease 3s -- {}", waiting(&desk, "trap '' TERM;")));
    assert_ends_before_its_lease_of_3_s(server, run, desk.process("id"));
}

/// A process of a command ends while the server is silent.
#[track_caller]
fn assert_ends_before_its_lease_of_3_s(mut server: Server, mut run: Running, process: i32) {
    let watch = Stopwatch::start();
    let mut took = Duration::ZERO;
    server.while_stopped(|| {
        wait_for_end_of(process);
        took = watch.elapsed();
    });
    // The last renewal was sent before the server was stopped.
    assert!(took < Duration::from_secs(3) + watch.lateness(), "{took:?}");
    assert_eq!(run.status(), 123);
    server.assert_alive();
}

/// However long it may take to end: nothing that can be ended goes on when the lock may be another's.
#[test]
fn timed_what_the_command_has_started_does_not_outlive_the_lease() {
    let (server, desk) = (Server::start(), Desk::new());
    let line = format!("run k --lease 3s --kill-after 1m -- sh -c \"{}\" & {}", deaf(&desk), waiting(&desk, ""));
    let run = Running::start(&server, &line);
    desk.wait_for("id");
    assert_ends_before_its_lease_of_3_s(server, run, desk.process("deaf"));
}

/// What it has to say goes where nobody reads: a full disk, a pipe whose reader is gone.
#[test]
fn the_loss_of_the_lock_ends_the_command_also_if_nothing_can_be_said() {
    let server = Server::start();
    let full = || Stdio::from(File::options().write(true).open("/dev/full").expect("a full device"));
    let broken = || Stdio::from(std::io::pipe().expect("a pipe").1);
    for nowhere in [full(), broken()] {
        let desk = Desk::new();
        let line =
            format!("run k --lease 1s -- sleep 60 & echo $! > {}; {}", desk.path("grandchild"), waiting(&desk, ""));
        let mut tool = rlock(&server, &line);
        tool.stderr(nowhere);
        let mut run = Running::of(tool);
        desk.wait_for("id");
        let grandchild = desk.process("grandchild");
        assert_eq!(status(&server, "release --force k"), 0);
        assert_eq!(run.status(), 123);
        wait_for_end_of(grandchild);
    }
}

#[test]
fn timed_killing_rlock_ends_the_command_and_the_session() {
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
fn timed_killing_rlock_without_a_session_leaves_the_lock_to_its_lease() {
    let (server, desk) = (Server::start(), Desk::new());
    let mut run = Running::start(&server, &format!("run k --lease 2s -- {}", waiting(&desk, "")));
    let command = desk.process("id");
    run.signal(libc::SIGKILL);
    eventually(|| !run.is_running());
    let watch = Stopwatch::start();
    let left_ms = u64::try_from(server.client().call("RLOCK.PTTL k").int()).expect("it is held");
    wait_for_end_of(command);
    eventually(|| server.client().holder("k").is_none());
    watch.assert_took_ms(left_ms.saturating_sub(2)..left_ms + 500, "what was left of the lease");
}

#[test]
fn timed_killing_rlock_while_it_waits_leaves_no_waiter() {
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
fn a_release_that_nobody_hears_leaves_the_status_alone() {
    let mut server = Server::start();
    let desk = Desk::new();
    let waits = format!("echo > {}; while [ ! -e {} ]; do sleep 0.02; done", desk.path("runs"), desk.path("over"));
    let mut run = Running::start(&server, &format!("run k -- {waits}"));
    desk.wait_for("runs");
    server.kill();
    File::create(desk.path("over")).expect("a file");
    // The command is not disturbed: the lock was its own for all of its life, which is over at once. Nobody can be told of the release.
    assert_eq!(run.status(), 0);
    server.restart();
}
