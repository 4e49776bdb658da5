//! Servers of one's own: on a free port of 127.0.0.1, in a temporary folder, killed by their process id when dropped.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use super::wire::Connection;

/// A port that was free a moment ago may be taken when the server comes to it.
const START_ATTEMPTS: u32 = 5;
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    /// `redis-server`, or a path.
    pub server: PathBuf,
    /// The module to load.
    pub module: PathBuf,
}

/// A running server.
pub struct Server {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
}

impl Server {
    /// Starts a server, with a wall clock of its own if there is one, and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not start; the error carries its log.
    pub fn start(program: &Program, clock: Option<&WallClock>) -> Result<Self> {
        let mut attempt = 1;
        loop {
            match Self::start_once(program, clock) {
                Err(error) if attempt < START_ATTEMPTS && error.to_string().contains("Address already in use") => {
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn start_once(program: &Program, clock: Option<&WallClock>) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let module = fs::canonicalize(&program.module)
            .with_context(|| format!("there is no module at {}", program.module.display()))?;
        let mut command = Command::new(&program.server);
        command
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""])
            .args(["--replica-read-only", "no", "--repl-diskless-sync-delay", "0"])
            .arg("--dir")
            .arg(folder.path())
            .args(["--logfile", "log", "--loadmodule"])
            .arg(module)
            .stdin(Stdio::null())
            .stdout(Stdio::null());
        if let Some(clock) = clock {
            command.env("LD_PRELOAD", &clock.shim).env("RLOCK_TEST_CLOCK", clock.file());
        }
        let child = command.spawn().with_context(|| format!("cannot run {}", program.server.display()))?;
        let mut server = Self { child, address, folder };
        let deadline = Instant::now() + START_TIMEOUT;
        while Connection::open(address).and_then(|mut connection| connection.ask("PING")).is_err() {
            if server.child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("the server does not start; its log:\n{}", server.log());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it has logged.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// Whether its process has not ended.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The step of a server's wall clock, shared with the server through a file; see `tests/support/clock_shim.c`.
pub struct WallClock {
    folder: TempDir,
    shim: PathBuf,
}

impl WallClock {
    /// A clock that shows the true time. Builds the shim with the C compiler that Rust links with.
    ///
    /// # Errors
    ///
    /// If there is no compiler.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let shim = folder.path().join("clock_shim.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/support/clock_shim.c");
        let status =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shim).arg(source).arg("-ldl").status()?;
        ensure!(status.success(), "cc cannot build the clock's shim");
        let clock = Self { folder, shim };
        clock.step_to(0)?;
        Ok(clock)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("step")
    }

    /// From now on the wall clock is so many seconds ahead of the true one.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn step_to(&self, ahead_s: i64) -> Result<()> {
        // In place and in one write, since the server has the file mapped.
        let mut file = File::options().create(true).truncate(false).write(true).open(self.file())?;
        Ok(file.write_all(&(ahead_s * 1_000_000).to_ne_bytes())?)
    }
}
