//! The tool at a terminal, which `script` of util-linux gives it.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::PATIENCE;
use crate::commands::{Desk, hear_signals, url, wait_for_holder};
use crate::support::{Client, Server, eventually};

/// A program at a terminal: what it shows, and keys for it.
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

/// A lock that somebody holds and somebody waits for: `top` shows no others.
fn contended(server: &Server, key: &str) -> Client {
    server.client().acquire(&format!("{key} alice PX 600000"));
    server.waiter(format!("RLOCK.ACQUIRE {key} bob BLOCK 0"))
}

#[test]
fn top_is_drawn_follows_what_happens_and_ends() {
    let server = Server::start();
    let _waiter = contended(&server, "orders:42");
    let mut terminal = Terminal::start(&server, "top --every 100ms");
    terminal.wait_for("orders:42");
    terminal.wait_for("by waiters");
    let _another = contended(&server, "invoices:7");
    terminal.wait_for("invoices:7");
    terminal.press(b"s");
    // Only what changes is drawn: `by waiters` becomes `by longest wait`.
    terminal.wait_for("wait)");
    terminal.press(b"q");
    assert_eq!(terminal.status(), 0);
    assert!(terminal.shown().contains("\x1b[?1049l"), "the screen is put back");
}

#[test]
fn top_says_that_the_server_is_gone_and_goes_on_when_it_is_back() {
    let mut server = Server::with(&[]);
    let _waiter = contended(&server, "orders:42");
    let mut terminal = Terminal::start(&server, "top --every 100ms");
    terminal.wait_for("orders:42");
    server.kill();
    // In red: a word of every such message.
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

/// It sends what is typed to the command as well, which would hear it twice.
#[test]
fn an_interrupt_is_left_to_the_terminal() {
    let (server, desk) = (Server::start(), Desk::new());
    let told = desk.path("told");
    let traps = format!("trap \"echo INT >> {told}\" INT; trap \"echo USR1 >> {told}; exit 9\" USR1");
    let mut terminal =
        Terminal::start(&server, &format!("run k -- sh -c '{traps}; echo ready; while :; do sleep 0.02; done'"));
    terminal.wait_for("ready");
    let owner = server.client().holder("k").expect("a holder").owner;
    let tool = owner.split(':').nth(1).and_then(|id| id.parse().ok()).expect("an id of a process");
    // Without a terminal both would be passed on, in this order.
    for signal in [libc::SIGINT, libc::SIGUSR1] {
        // SAFETY: only numbers are passed. The process holds the lock, so it lives.
        assert_eq!(unsafe { libc::kill(tool, signal) }, 0, "there is no process to signal");
    }
    assert_eq!(terminal.status(), 9);
    assert_eq!(desk.read("told"), "USR1\n");
}

#[test]
fn a_command_reads_from_the_terminal() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, "run k -- sh -c 'read word; echo got $word'");
    wait_for_holder(&server, "k");
    terminal.press(b"apple\n");
    terminal.wait_for("got apple");
    assert_eq!(terminal.status(), 0);
}

/// What the command reads there, and how it is stopped and continued, does not depend on where its input comes from.
#[test]
fn a_command_with_another_input_reads_from_the_terminal() {
    let server = Server::start();
    let mut terminal = Terminal::start(&server, "run k -- sh -c 'read word < /dev/tty; echo got $word' < /dev/null");
    wait_for_holder(&server, "k");
    terminal.press(b"apple\n");
    terminal.wait_for("got apple");
    assert_eq!(terminal.status(), 0);
}
