//! The tool at a terminal, provided by script(1) of util-linux.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::PATIENCE;
use crate::commands::{Desk, hear_signals, url, wait_for_holder};
use crate::support::{Client, Server, eventually};

/// A program at a terminal: its output, and keys for it.
struct Terminal {
    script: Child,
    shown: Arc<Mutex<Vec<u8>>>,
}

impl Terminal {
    fn start(server: &Server, line: &str) -> Terminal {
        let command = format!("stty rows 30 cols 120; exec {} {line}", env!("CARGO_BIN_EXE_rlock"));
        let mut script = Command::new("script");
        script
            .args(["-qec", &command, "/dev/null"])
            .env("RLOCK_URL", url(server))
            .env("TERM", "xterm")
            .env("SHELL", "/bin/sh")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        hear_signals(&mut script);
        let mut script = script.spawn().expect("script runs");
        let mut output = script.stdout.take().expect("an output");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let of_thread = shown.clone();
        thread::spawn(move || {
            let mut chunk = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut chunk) {
                of_thread.lock().expect("no panic").extend(&chunk[..length]);
            }
        });
        Terminal { script, shown }
    }

    fn press(&mut self, keys: &[u8]) {
        self.script.stdin.as_mut().expect("an input").write_all(keys).expect("it reads");
    }

    fn shown(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("no panic")).into_owned()
    }

    #[track_caller]
    fn wait_for(&self, words: &str) {
        let start = std::time::Instant::now();
        while !self.shown().contains(words) {
            let shown = self.shown();
            assert!(start.elapsed() < PATIENCE, "no {words:?} in {:.2000?}", shown);
            thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    #[track_caller]
    fn status(&mut self) -> i32 {
        let mut ended = None;
        eventually(PATIENCE, || {
            ended = self.script.try_wait().expect("a child of this process");
            ended.is_some()
        });
        ended.and_then(|status| status.code()).expect("it exits")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        self.script.kill().expect("a child of this process");
        self.script.wait().expect("a child of this process");
    }
}

/// A lock with a holder and a waiter. `top` shows no other locks.
fn contended(server: &Server, key: &str) -> Client {
    server.client().acquire(&format!("{key} alice PX 600000"));
    server.waiter(format!("RLOCK.ACQUIRE {key} bob BLOCK 0"))
}

#[test]
fn top_draws_follows_changes_and_quits() {
    let server = Server::start();
    let _waiter = contended(&server, "orders:42");
    let mut terminal = Terminal::start(&server, "top --every 100ms");
    terminal.wait_for("orders:42");
    terminal.wait_for("by waiters");
    let _another = contended(&server, "invoices:7");
    terminal.wait_for("invoices:7");
    terminal.press(b"s");
    // ratatui draws only changed cells: `by waiters` becomes `by longest wait`.
    terminal.wait_for("wait)");
    terminal.press(b"q");
    assert_eq!(terminal.status(), 0);
    assert!(terminal.shown().contains("\x1b[?1049l"), "the screen is restored");
}

#[test]
fn top_shows_a_lost_connection_and_continues_when_the_server_is_back() {
    let mut server = Server::with(&[]);
    let _waiter = contended(&server, "orders:42");
    let mut terminal = Terminal::start(&server, "top --every 100ms");
    terminal.wait_for("orders:42");
    server.kill();
    // The message is red.
    terminal.wait_for("\x1b[38;5;1");
    server.restart_in_place(&[]);
    let _another = contended(&server, "invoices:7");
    terminal.wait_for("invoices:7");
    terminal.press(b"q");
    assert_eq!(terminal.status(), 0);
}

#[test]
fn control_c_ends_the_command_and_frees_the_lock() {
    let server = Server::start();
    let mut terminal = Terminal::start(
        &server,
        "run k -- sh -c 'trap \"sleep 0.3; exit 9\" INT; echo ready; while :; do sleep 0.02; done'",
    );
    wait_for_holder(&server, "k");
    terminal.wait_for("ready");
    terminal.press(b"\x03");
    assert_eq!(terminal.status(), 9);
    assert_eq!(server.client().holder("k"), None);
}

/// The terminal sends typed signals to the command too, which would get them twice.
#[test]
fn interrupt_is_not_forwarded_at_a_terminal() {
    let (server, desk) = (Server::start(), Desk::new());
    let got = desk.path("got");
    let traps = format!("trap \"echo INT >> {got}\" INT; trap \"echo USR1 >> {got}; exit 9\" USR1");
    let mut terminal =
        Terminal::start(&server, &format!("run k -- sh -c '{traps}; echo ready; while :; do sleep 0.02; done'"));
    terminal.wait_for("ready");
    let owner = server.client().holder("k").expect("a holder").owner;
    let tool = owner.split(':').nth(1).and_then(|id| id.parse().ok()).expect("an id of a process");
    // Without a terminal rlock would forward both, in this order.
    for signal in [libc::SIGINT, libc::SIGUSR1] {
        // SAFETY: only numbers are passed. The process holds the lock, so it lives.
        assert_eq!(unsafe { libc::kill(tool, signal) }, 0, "there is no process to signal");
    }
    assert_eq!(terminal.status(), 9);
    assert_eq!(desk.read("got"), "USR1\n");
}

#[test]
fn command_reads_from_the_terminal() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, "run k -- sh -c 'read word; echo got $word'");
    wait_for_holder(&server, "k");
    terminal.press(b"apple\n");
    terminal.wait_for("got apple");
    assert_eq!(terminal.status(), 0);
}

/// The standard input does not matter: the command stays in the foreground process group.
#[test]
fn command_with_another_standard_input_reads_from_the_terminal() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, "run k -- sh -c 'read word < /dev/tty; echo got $word' < /dev/null");
    wait_for_holder(&server, "k");
    terminal.press(b"apple\n");
    terminal.wait_for("got apple");
    assert_eq!(terminal.status(), 0);
}
