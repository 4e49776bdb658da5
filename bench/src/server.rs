//! A redis-server for the benchmark, and its own figures.
//!
//! The server listens on a free port of 127.0.0.1, saves nothing and lives in a temporary folder.
//! Dropping its [`Server`], even in a panic, kills it by its process id. On Linux the kernel also
//! kills it when this process dies in any other way.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::clock::{self, ThreadTimes};
use crate::connection::Connection;

/// How many client connections a server accepts.
pub const MAX_CLIENTS: u64 = 12_000;
/// Open files that a process needs besides its connections.
const OTHER_FILES: u64 = 100;
/// A free port may be taken by the time the server binds it.
const START_ATTEMPTS: u32 = 5;
const START_TIMEOUT: Duration = Duration::from_secs(20);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// What to start.
#[derive(Clone, Debug)]
pub struct ServerConfig {
    /// The program, `redis-server` or a path.
    pub program: PathBuf,
    /// The modules to load, in this order.
    pub modules: Vec<PathBuf>,
}

/// A running server, and a connection for questions about it.
pub struct Server {
    child: Child,
    address: SocketAddr,
    control: Connection,
    _folder: TempDir,
}

impl Server {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// If it does not start. The error contains the server's log.
    pub fn start(config: &ServerConfig) -> Result<Self> {
        raise_file_limit()?;
        let mut attempt = 1;
        loop {
            match Self::start_once(config) {
                Err(error) if attempt < START_ATTEMPTS && error.to_string().contains("Address already in use") => {
                    attempt += 1;
                }
                outcome => return outcome,
            }
        }
    }

    fn start_once(config: &ServerConfig) -> Result<Self> {
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        let log_path = folder.path().join("redis.log");
        // The port is only reserved while the listener lives; see START_ATTEMPTS.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut command = Command::new(&config.program);
        command
            .args(["--bind", "127.0.0.1", "--port", &address.port().to_string()])
            .args(["--save", "", "--appendonly", "no"])
            .args(["--maxclients", &MAX_CLIENTS.to_string()])
            .arg("--dir")
            .arg(folder.path())
            .arg("--logfile")
            .arg(&log_path);
        for module in &config.modules {
            let module = fs::canonicalize(module).with_context(|| format!("no module at {}", module.display()))?;
            command.arg("--loadmodule").arg(module);
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        die_with_parent(&mut command);
        let mut child = command.spawn().with_context(|| format!("cannot run {}", config.program.display()))?;
        match wait_until_ready(&mut child, address) {
            Ok(control) => Ok(Self { child, address, control, _folder: folder }),
            Err(error) => {
                end(&mut child);
                let log = fs::read_to_string(&log_path).unwrap_or_default();
                bail!("{error:#}; the server's log:\n{log}")
            }
        }
    }

    /// The address of the server.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The process id of the server.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.child.id()
    }

    /// Opens a new connection.
    ///
    /// # Errors
    ///
    /// If the server does not accept it.
    pub fn connect(&self) -> Result<Connection> {
        Connection::open(self.address)
    }

    /// The connection for commands that are not part of a measurement.
    pub fn control(&mut self) -> &mut Connection {
        &mut self.control
    }

    /// A numeric field of INFO, of Redis or of a module.
    ///
    /// # Errors
    ///
    /// If there is no such field, or it is not a whole number.
    pub fn info_number(&mut self, field: &str) -> Result<u64> {
        self.info_field(field)?.parse().with_context(|| format!("INFO's {field} is not a whole number"))
    }

    /// A field of INFO, of Redis or of a module.
    ///
    /// # Errors
    ///
    /// If there is no such field.
    pub fn info_field(&mut self, field: &str) -> Result<String> {
        info_field(&mut self.control, field)
    }

    /// The name and version, as `Redis 8.6.3` or `Valkey 9.1.2`.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn name(&mut self) -> Result<String> {
        match self.info_field("valkey_version") {
            Ok(version) => Ok(format!("Valkey {version}")),
            Err(_) => Ok(format!("Redis {}", self.info_field("redis_version")?)),
        }
    }

    /// The number of keys.
    ///
    /// # Errors
    ///
    /// Those of the connection.
    pub fn key_count(&mut self) -> Result<u64> {
        let count = self.control.call(&[b"DBSIZE"])?.integer()?;
        Ok(u64::try_from(count)?)
    }

    /// Fails if a key is left. Each round has to prove this before the next one begins.
    ///
    /// # Errors
    ///
    /// If there are keys.
    pub fn ensure_no_keys(&mut self) -> Result<()> {
        let count = self.key_count()?;
        ensure!(count == 0, "{count} keys are left on the server");
        Ok(())
    }

    /// Waits until a field of INFO has a value.
    ///
    /// # Errors
    ///
    /// If it does not have it within `timeout`.
    pub fn wait_for_info(&mut self, field: &str, value: u64, timeout: Duration) -> Result<()> {
        let deadline = clock::now() + timeout;
        loop {
            let current = self.info_number(field)?;
            if current == value {
                return Ok(());
            }
            if clock::now() > deadline {
                bail!("INFO's {field} is still {current}, expected {value}");
            }
            thread::sleep(Duration::from_millis(2));
        }
    }

    /// The kernel scheduler's counters for the server's main thread; `None` if it does not provide
    /// them.
    #[must_use]
    pub fn main_thread_times(&self) -> Option<ThreadTimes> {
        ThreadTimes::of_main_thread(self.child.id())
    }

    /// The CPU time of the server's main thread, the one that executes commands, in nanoseconds.
    ///
    /// The value comes from the kernel's scheduler, in nanoseconds. INFO's `used_cpu_…_main_thread`
    /// has only microseconds, and each look costs an INFO. The kernel's value is exact while the
    /// thread sleeps, so this waits until the server is idle. Without such a value (no Linux, or no
    /// schedstats) it uses INFO.
    ///
    /// # Errors
    ///
    /// If the server does not become idle, or neither source has a value.
    pub fn main_thread_cpu_ns(&mut self) -> Result<u64> {
        if self.main_thread_times().is_some() {
            wait_until_asleep(self.child.id())?;
        }
        if let Some(times) = self.main_thread_times() {
            return Ok(times.cpu_ns);
        }
        let user_s: f64 = self.info_field("used_cpu_user_main_thread")?.parse()?;
        let system_s: f64 = self.info_field("used_cpu_sys_main_thread")?.parse()?;
        Ok(Duration::from_secs_f64(user_s + system_s).as_nanos().try_into()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        end(&mut self.child);
    }
}

/// Raises this process's limit of open files as far as possible; a server that it starts inherits
/// it. If that is too little for [`MAX_CLIENTS`], opening the first connection above the limit
/// fails.
///
/// # Errors
///
/// If the limit cannot be read or set.
pub fn raise_file_limit() -> Result<()> {
    rlimit::increase_nofile_limit(MAX_CLIENTS + OTHER_FILES).context("cannot raise RLIMIT_NOFILE")?;
    Ok(())
}

/// Makes the kernel kill a program when the thread that starts it ends, however it ends.
#[cfg(target_os = "linux")]
pub fn die_with_parent(command: &mut Command) {
    use std::os::unix::process::CommandExt;

    // SAFETY: the closure runs in the forked child, where only async-signal-safe functions may be
    // called; prctl is a bare system call.
    unsafe {
        command.pre_exec(|| {
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) == 0 {
                Ok(())
            } else {
                Err(std::io::Error::last_os_error())
            }
        });
    }
}

#[cfg(not(target_os = "linux"))]
pub fn die_with_parent(_command: &mut Command) {}

/// Kills a child that may already be dead, and reads its exit status so that no zombie stays.
fn end(child: &mut Child) {
    let _ = child.kill();
    let _ = child.wait();
}

fn wait_until_ready(child: &mut Child, address: SocketAddr) -> Result<Connection> {
    let deadline = clock::now() + START_TIMEOUT;
    loop {
        if let Some(status) = child.try_wait()? {
            bail!("the server ended with {status}");
        }
        if let Ok(mut connection) = Connection::open(address) {
            let process_id = info_field(&mut connection, "process_id")?;
            if process_id == child.id().to_string() {
                return Ok(connection);
            }
            // Another server has taken the port. Ours will notice that, and end.
        }
        if clock::now() > deadline {
            bail!("the server did not answer within 20 s");
        }
        thread::sleep(Duration::from_millis(5));
    }
}

fn info_field(connection: &mut Connection, field: &str) -> Result<String> {
    let reply = connection.call(&[b"INFO", b"everything"])?.bulk()?;
    let text = String::from_utf8_lossy(reply);
    text.lines()
        .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
        .map(str::to_owned)
        .with_context(|| format!("INFO has no field {field}"))
}

/// Waits until the main thread of the process `id` sleeps, as it does without work.
fn wait_until_asleep(id: u32) -> Result<()> {
    let path = format!("/proc/{id}/task/{id}/stat");
    let deadline = clock::now() + SETTLE_TIMEOUT;
    loop {
        let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
        // `id (name) state …`, and a name may contain anything.
        let state = stat.rsplit(')').next().map(str::trim_start);
        if state.is_some_and(|state| state.starts_with('S')) {
            return Ok(());
        }
        if clock::now() > deadline {
            bail!("the server did not become idle within 5 s");
        }
        thread::sleep(POLL_INTERVAL);
    }
}
