//! A peer's program: its start, the protocol over a pipe, and its records.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use crate::clock;
use crate::peer::Contestant;
use crate::process::Process;
use crate::records::{self, Record};
use crate::usage::CpuNs;

/// JVMs take time to start, and ten thousand threads to connect.
const READY_TIMEOUT: Duration = Duration::from_secs(90);
const DONE_TIMEOUT: Duration = Duration::from_secs(60);

/// The work of one program.
#[derive(Clone, Debug)]
pub struct Assignment {
    pub server: SocketAddr,
    pub lock: String,
    pub clients: usize,
    pub first: usize,
    pub locks: usize,
    pub key: String,
    pub seconds: f64,
    pub section_us: u64,
    pub lease_ms: u64,
    pub permits: usize,
    pub hold: bool,
    /// Whether it prints each grant at once.
    pub stream: bool,
}

/// A running program.
pub struct Program {
    process: Process,
    lines: Receiver<String>,
    out: PathBuf,
    log: PathBuf,
    seconds: f64,
}

/// The result of a program.
pub struct Outcome {
    pub records: Vec<Record>,
    pub errors: u64,
}

impl Program {
    /// Starts the program. Its files go into `folder`, under `name`.
    pub fn start(contestant: &Contestant, assignment: &Assignment, folder: &Path, name: &str) -> Result<Self> {
        let (out, log) = (folder.join(format!("{name}.csv")), folder.join(format!("{name}.log")));
        let mut command = Command::new(contestant.peer.folder.join("run"));
        let a = assignment;
        for (option, value) in [
            ("--peer", contestant.peer.id.clone()),
            ("--server", a.server.to_string()),
            ("--lock", a.lock.clone()),
            ("--variant", contestant.variant.clone()),
            ("--clients", a.clients.to_string()),
            ("--first", a.first.to_string()),
            ("--locks", a.locks.to_string()),
            ("--key", a.key.clone()),
            ("--seconds", a.seconds.to_string()),
            ("--section-us", a.section_us.to_string()),
            ("--lease-ms", a.lease_ms.to_string()),
            ("--permits", a.permits.to_string()),
            ("--hold", if a.hold { "yes" } else { "no" }.to_owned()),
            ("--out", out.to_string_lossy().into_owned()),
        ] {
            command.args([option, &value]);
        }
        if a.stream {
            command.env("PEERS_STREAM", "1");
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(File::create(&log)?);
        let mut process = Process::start(command)?;
        let output = process.child().stdout.take().context("a piped program has an output")?;
        let (sender, lines) = mpsc::channel();
        thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Self { process, lines, out, log, seconds: a.seconds })
    }

    pub fn wait_until_ready(&mut self) -> Result<()> {
        self.wait_for("ready", READY_TIMEOUT).map(drop)
    }

    pub fn go(&mut self) -> Result<()> {
        let input = self.process.child().stdin.as_mut().context("a piped program has an input")?;
        input.write_all(b"go\n").and_then(|()| input.flush()).with_context(|| self.complaint())
    }

    /// The CPU time that it has used so far.
    pub fn cpu_ns(&self) -> u64 {
        CpuNs::of(self.process.id()).all
    }

    pub fn wait_until_held(&mut self) -> Result<()> {
        self.wait_for("held", READY_TIMEOUT).map(drop)
    }

    /// When the next client got the lock, if the program has reported one.
    pub fn next_got_ns(&mut self) -> Option<u64> {
        self.lines.try_iter().find_map(|line| line.strip_prefix("got ")?.rsplit(' ').next()?.parse().ok())
    }

    /// Waits for the end of the work, and reads the records.
    pub fn finish(mut self) -> Result<Outcome> {
        let line = self.wait_for("done", Duration::from_secs_f64(self.seconds) + DONE_TIMEOUT)?;
        let errors = line.split(' ').nth(2).and_then(|errors| errors.parse().ok()).unwrap_or(0);
        let records = records::read(&self.out)?;
        Ok(Outcome { records, errors })
    }

    /// Kills the program, like a crash.
    pub fn kill(&mut self) {
        self.process.kill();
    }

    fn wait_for(&mut self, word: &str, timeout: Duration) -> Result<String> {
        let deadline = clock::now() + timeout;
        loop {
            match self.lines.recv_timeout(deadline.saturating_duration_since(clock::now())) {
                Ok(line) if line.split(' ').next() == Some(word) => return Ok(line),
                // A grant, or output of a library.
                Ok(_) => {}
                Err(RecvTimeoutError::Timeout) => {
                    bail!("it did not print {word:?} within {timeout:?}; {}", self.complaint())
                }
                Err(RecvTimeoutError::Disconnected) => bail!("it ended before {word:?}; {}", self.complaint()),
            }
        }
    }

    /// The first line of its stderr.
    fn complaint(&self) -> String {
        let text = std::fs::read_to_string(&self.log).unwrap_or_default();
        text.lines().next().map_or("its stderr is empty".to_owned(), |line| line.chars().take(300).collect())
    }
}
