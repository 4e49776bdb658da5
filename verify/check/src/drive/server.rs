//! Servers for tests: each on a free port of 127.0.0.1, in a temporary folder, and killed by its
//! process id when dropped.

use std::fs::{self, File};
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use super::small_disk::SmallDisk;
use super::wire::Connection;

/// A free port may be taken by the time the server binds it.
const START_ATTEMPTS: u32 = 5;
const START_TIMEOUT: Duration = Duration::from_secs(20);

/// What to start.
#[derive(Clone, Debug)]
pub struct Program {
    /// `redis-server`, or a path.
    pub server: PathBuf,
    /// The module to load.
    pub module: PathBuf,
    /// Which data the server writes to its disk.
    pub disk: Disk,
    /// Whether clients get lost while they wait. A fair lock waits for each of them for the grace,
    /// so the grace is short then.
    pub loses_clients: bool,
    /// Whether the server is a node of a cluster.
    pub is_cluster: bool,
    /// The checker whose client is used for processes of clients; `None` for the running one.
    pub clients: Option<PathBuf>,
}

impl Program {
    /// A server outside a cluster that writes nothing to its disk.
    #[must_use]
    pub fn alone(server: PathBuf, module: PathBuf) -> Self {
        Self { server, module, disk: Disk::None, loses_clients: false, is_cluster: false, clients: None }
    }
}

/// Which data a server writes to its disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Disk {
    /// Nothing.
    None,
    /// Everything that it has answered (`appendfsync always`).
    Always,
    /// All changes, at most a second later, on a disk that can be filled. While that is full,
    /// the server stays up and refuses to write. Where no file system can be mounted, the disk is
    /// shared, and "full" means that none of the server's files may grow.
    Small,
}

/// A running server.
pub struct Server {
    child: Child,
    address: SocketAddr,
    folder: TempDir,
    /// The disk for its files, if they are not in `folder`.
    disk: Option<SmallDisk>,
    program: Program,
    environment: Vec<(&'static str, PathBuf)>,
    /// The port for the other nodes of a cluster.
    bus_port: Option<u16>,
}

impl Server {
    /// Starts a server, optionally with a wall clock of its own, and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not start. The error contains its log.
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
        let address = free_address()?;
        let bus_port = program.is_cluster.then(free_address).transpose()?.map(|address| address.port());
        let environment = clock.map(WallClock::environment).unwrap_or_default();
        let disk = if program.disk == Disk::Small { small_disk(&folder)? } else { None };
        let child = spawn(program, &environment, (address, bus_port), &folder, disk.as_ref())?;
        let mut server = Self { child, address, folder, disk, program: program.clone(), environment, bus_port };
        server.wait_until_ready()?;
        Ok(server)
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = Instant::now() + START_TIMEOUT;
        while Connection::open(self.address).and_then(|mut connection| connection.ask("PING")).is_err() {
            if self.child.try_wait()?.is_some() || Instant::now() > deadline {
                bail!("the server did not start; its log:\n{}", self.log());
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Kills the server like `kill -9`, and restarts it with the data on its disk.
    ///
    /// # Errors
    ///
    /// If it does not start again.
    pub fn kill_and_restart(&mut self) -> Result<()> {
        self.kill()?;
        self.restart()
    }

    /// Kills the server like `kill -9`.
    ///
    /// # Errors
    ///
    /// If it cannot be signalled. Also if it has already ended by itself, because that must not
    /// pass for this kill.
    pub fn kill(&mut self) -> Result<()> {
        ensure!(self.is_alive(), "the server ended by itself; its log:\n{}", self.log());
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }

    /// Makes the server a replica of another one, and waits until it has its data.
    ///
    /// # Errors
    ///
    /// If the replica does not connect within 20 seconds.
    pub fn follow(&self, master: SocketAddr) -> Result<()> {
        let mut there = Connection::open(self.address)?;
        there.ask(&format!("REPLICAOF 127.0.0.1 {}", master.port()))?;
        let deadline = Instant::now() + START_TIMEOUT;
        while !super::wire::info(&mut there)?.contains("master_link_status:up") {
            ensure!(Instant::now() < deadline, "the replica did not connect; its log:\n{}", self.log());
            thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Restarts the server with the data on its disk.
    ///
    /// # Errors
    ///
    /// If it does not start again.
    pub fn restart(&mut self) -> Result<()> {
        let addresses = (self.address, self.bus_port);
        self.child = spawn(&self.program, &self.environment, addresses, &self.folder, self.disk.as_ref())?;
        self.wait_until_ready()
    }

    /// Suspends the server for a while (SIGSTOP), as an overloaded machine does.
    ///
    /// # Errors
    ///
    /// If it cannot be signalled.
    pub fn stand_still(&self, lasts: Duration) -> Result<()> {
        self.stand_still_until(|| {
            thread::sleep(lasts);
            Ok(())
        })
    }

    /// Suspends the server until `has_happened` returns.
    ///
    /// # Errors
    ///
    /// If it cannot be signalled, or `has_happened` fails.
    pub fn stand_still_until(&self, has_happened: impl FnOnce() -> Result<()>) -> Result<()> {
        signal(&self.child, "-STOP")?;
        let happened = has_happened();
        signal(&self.child, "-CONT")?;
        happened
    }

    /// Makes all further writes to its disk fail.
    ///
    /// # Errors
    ///
    /// If the disk cannot be filled.
    pub fn fill_disk(&self) -> Result<()> {
        self.disk.as_ref().map_or_else(|| self.limit_files("0"), |disk| disk.fill(&self.child))
    }

    /// Makes room on its disk again.
    ///
    /// # Errors
    ///
    /// If the disk cannot be freed.
    pub fn free_disk(&self) -> Result<()> {
        self.disk.as_ref().map_or_else(|| self.limit_files("unlimited"), |disk| disk.free(&self.child))
    }

    /// The error of a write to the full disk.
    #[must_use]
    pub fn error_of_full_disk(&self) -> &'static str {
        if self.disk.is_some() { "ENOSPC" } else { "EFBIG" }
    }

    fn limit_files(&self, bytes: &str) -> Result<()> {
        let (process, limit) = (self.child.id().to_string(), format!("--fsize={bytes}:"));
        let status = Command::new("prlimit").args(["--pid", &process, &limit]).status()?;
        ensure!(status.success(), "cannot limit the files of the server");
        Ok(())
    }

    /// The port for the other nodes of a cluster.
    #[must_use]
    pub fn bus_port(&self) -> Option<u16> {
        self.bus_port
    }

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The server's log.
    #[must_use]
    pub fn log(&self) -> String {
        fs::read_to_string(log_of(&self.folder)).unwrap_or_default()
    }

    /// Whether the process is running.
    pub fn is_alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }
}

/// Sends a signal to a child process.
pub(super) fn signal(process: &Child, signal: &str) -> Result<()> {
    let status = Command::new("kill").args([signal, &process.id().to_string()]).status()?;
    ensure!(status.success(), "cannot send {signal} to process {}", process.id());
    Ok(())
}

/// A port that is free at this moment.
pub(super) fn free_address() -> Result<SocketAddr> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?)
}

/// A disk in the folder of a server, if one can be mounted.
fn small_disk(folder: &TempDir) -> Result<Option<SmallDisk>> {
    let disk = folder.path().join("disk");
    fs::create_dir(&disk)?;
    Ok(SmallDisk::at(disk))
}

fn spawn(
    program: &Program,
    environment: &[(&str, PathBuf)],
    (address, bus_port): (SocketAddr, Option<u16>),
    folder: &TempDir,
    disk: Option<&SmallDisk>,
) -> Result<Child> {
    let module =
        fs::canonicalize(&program.module).with_context(|| format!("no module at {}", program.module.display()))?;
    // With SIGXFSZ ignored, the server gets an error when a file may not grow, instead of being
    // killed. The server ends with this thread, however the process ends.
    let mut command = Command::new("sh");
    if let Some(disk) = disk {
        command = disk.command();
        command.arg("sh");
    }
    command.args(["-c", "trap '' XFSZ; exec setpriv --pdeathsig KILL -- \"$0\" \"$@\""]).arg(&program.server);
    command
        .args(["--bind", "127.0.0.1", "--port", &address.port().to_string(), "--save", ""])
        .args(["--replica-read-only", "no", "--repl-diskless-sync-delay", "0"])
        .arg("--dir")
        .arg(disk.map_or(folder.path(), SmallDisk::folder))
        .arg("--logfile")
        .arg(log_of(folder))
        .arg("--loadmodule")
        .arg(module)
        .envs(environment.iter().cloned())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if program.disk != Disk::None {
        let sync = if program.disk == Disk::Always { "always" } else { "everysec" };
        command.args(["--appendonly", "yes", "--appendfsync", sync, "--auto-aof-rewrite-percentage", "0"]);
    }
    if let Some(bus_port) = bus_port {
        command.args(["--cluster-enabled", "yes", "--cluster-port", &bus_port.to_string()]);
        // Otherwise a node that gave up its last slot would become a replica of the other node.
        command.args(["--cluster-allow-replica-migration", "no"]);
        // After a failover, no node votes for another one of the same master until twice this time
        // has passed.
        command.args(["--cluster-node-timeout", "1000"]);
    }
    if program.loses_clients {
        command.args(["--rlock.fair-grace-ms", "50"]);
    }
    command.spawn().with_context(|| format!("cannot run {}", program.server.display()))
}

/// Beside the server's files: the log must have room, and outlive the server.
fn log_of(folder: &TempDir) -> PathBuf {
    folder.path().join("log")
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The offset of a server's wall clock, shared with the server through a file. See
/// `tests/support/clock_shim.c`.
pub struct WallClock {
    folder: TempDir,
    shim: PathBuf,
}

impl WallClock {
    /// Creates a clock that shows the true time. Builds the shim with the C compiler that Rust
    /// links with.
    ///
    /// # Errors
    ///
    /// If there is no compiler.
    pub fn new() -> Result<Self> {
        let folder = tempfile::tempdir()?;
        let shim = folder.path().join("clock_shim.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/support/clock_shim.c");
        let status =
            Command::new("cc").args(["-shared", "-fPIC", "-O1", "-o"]).arg(&shim).arg(source).arg("-ldl").status()?;
        ensure!(status.success(), "cc cannot build clock_shim.c");
        let clock = Self { folder, shim };
        clock.step_to(0)?;
        Ok(clock)
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("step")
    }

    /// The environment that makes a server use this clock.
    fn environment(&self) -> Vec<(&'static str, PathBuf)> {
        vec![("LD_PRELOAD", self.shim.clone()), ("RLOCK_TEST_CLOCK", self.file())]
    }

    /// Sets the wall clock to this many milliseconds ahead of the true time.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn step_to(&self, ahead_ms: i64) -> Result<()> {
        // The server has the file mapped, so it is written in place and in one write.
        let mut file = File::options().create(true).truncate(false).write(true).open(self.file())?;
        Ok(file.write_all(&(ahead_ms * 1_000).to_ne_bytes())?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn running(program: &str, arguments: &[&str]) -> Server {
        let child = Command::new(program).args(arguments).spawn().expect("a standard program");
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = Program::alone(program.into(), PathBuf::new());
        Server { child, address, folder, disk: None, program, environment: Vec::new(), bus_port: None }
    }

    #[test]
    fn crash_is_not_taken_for_a_kill() {
        let mut crashed = running("false", &[]);
        while crashed.is_alive() {
            thread::sleep(Duration::from_millis(1));
        }
        crashed.kill().expect_err("it ended before");
        running("sleep", &["60"]).kill().expect("it is running");
    }
}
