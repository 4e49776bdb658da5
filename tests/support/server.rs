//! A server that belongs to one test: its own process, port and folder. Dropping the value ends the
//! process, even if the test fails.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command as Process, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{LazyLock, OnceLock};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::client::{Client, Command};
use super::eventually;
use super::family::{Family, MUTEX};
use super::notified;
use super::process::{OwnedProcess, set_limits};
use super::program;
use super::reply::Reply;
use super::wall_clock::WallClock;

/// Even a loaded machine starts a server in tens of milliseconds.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// Log marks of a server crash or of a Rust panic that the module caught.
const CRASH_MARKS: [&str; 5] =
    ["BUG REPORT", "crashed by signal", "ASSERTION FAILED", "panic", "rlock: internal error"];

pub struct Server {
    process: OwnedProcess,
    port: u16,
    folder: TempDir,
    place: Place,
    family: Family,
    /// Marks that the test expects in the log.
    forgiven: Vec<&'static str>,
}

/// Where a process runs.
#[derive(Default)]
struct Place {
    /// Extra environment variables.
    environment: Vec<(&'static str, PathBuf)>,
    /// The words of a command that starts the server in its own process.
    wrapper: Vec<String>,
    port: u16,
}

impl Server {
    /// Starts a server with the module and without persistence.
    pub fn start() -> Server {
        Server::with(&[])
    }

    /// Like [`start`](Self::start), with extra lines for the configuration file.
    pub fn with(lines: &[&str]) -> Server {
        Server::with_module_arguments("", lines)
    }

    /// Like [`with`](Self::with), with arguments after the path in the `loadmodule` line.
    pub fn with_module_arguments(arguments: &str, lines: &[&str]) -> Server {
        Server::try_start(arguments, lines).unwrap_or_else(|log| panic!("the server did not start:\n{log}"))
    }

    /// Starts a server whose wall clock the test can step.
    pub fn with_wall_clock(clock: &WallClock, lines: &[&str]) -> Server {
        Server::placed(Place { environment: clock.environment().to_vec(), ..Place::default() }, lines)
    }

    /// Starts a server with a command that becomes the server, such as `ip netns exec`, on a port.
    pub fn wrapped(wrapper: Vec<String>, port: u16, lines: &[&str]) -> Server {
        Server::placed(Place { wrapper, port, ..Place::default() }, lines)
    }

    fn placed(place: Place, lines: &[&str]) -> Server {
        let started = Server::try_start_in(place, "", lines);
        started.unwrap_or_else(|log| panic!("the server did not start:\n{log}"))
    }

    /// Starts one server after another, one for each family, without persistence.
    pub fn for_each(families: &[Family]) -> impl Iterator<Item = Server> {
        families.iter().map(|family| Server::start().speaking(*family))
    }

    /// Makes the clients of this server read `LOCK.` as commands of `family`, and creates the
    /// semaphore `job` if the family needs one.
    #[track_caller]
    pub fn speaking(mut self, family: Family) -> Server {
        // On failure the last line names the family that failed.
        eprintln!("{family:?}");
        self.family = family;
        self.client().make("job");
        self
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// Starts a server whose append-only file is synced to disk before each reply.
    pub fn with_aof(lines: &[&str]) -> Server {
        Server::with(&[&["appendonly yes", "appendfsync always"], lines].concat())
    }

    /// Starts a replica, and returns once writes stream to it without delay.
    pub fn replica_of(primary: &Server, lines: &[&str]) -> Server {
        let upstream = format!("replicaof 127.0.0.1 {}", primary.port);
        let replica = Server::with(&[&[upstream.as_str()], lines].concat());
        replica.catch_up_with(primary);
        // The primary starts to stream up to one second after the synchronisation. No lease should
        // run during that time.
        primary.client().call("PUBLISH stream -");
        replica.catch_up_with(primary);
        replica
    }

    /// Starts a server, or returns the log if it gave up.
    pub fn try_start(module_arguments: &str, lines: &[&str]) -> Result<Server, String> {
        Server::try_start_in(Place::default(), module_arguments, lines)
    }

    fn try_start_in(place: Place, module_arguments: &str, lines: &[&str]) -> Result<Server, String> {
        let load = format!("loadmodule {} {module_arguments}", module_path().display());
        Server::try_start_with(place, &load, lines)
    }

    fn try_start_with(place: Place, load: &str, lines: &[&str]) -> Result<Server, String> {
        set_limits();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().display();
        // `repl-diskless-sync-delay 0`: otherwise the first synchronisation of a replica takes 5
        // seconds. `crash-memcheck-enabled no`: after a crash we do not suspect the machine's
        // memory.
        let configuration = format!(
            "bind 127.0.0.1\nsave \"\"\nenable-debug-command local\nrepl-diskless-sync-delay 0\n\
             crash-memcheck-enabled no\ndir {path}\nlogfile {path}/log\n{load}\n{}\n{}",
            lines.join("\n"),
            if ends_in_order() { END_AT_ONCE } else { "" },
        );
        fs::write(folder.path().join("redis.conf"), configuration).expect("a configuration file");
        let (process, port) = launch(folder.path(), &place, place.port, &[])?;
        Ok(Server { process, port, folder, place, family: MUTEX, forgiven: Vec::new() })
    }

    /// Kills the process with SIGKILL and starts another one on the same files.
    #[track_caller]
    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.restart();
    }

    /// Sends SIGKILL. Clients see their connections close. Fails if the log shows a crash, because
    /// the next start deletes the log.
    #[track_caller]
    pub fn kill(&mut self) {
        self.process.kill();
        if !std::thread::panicking() {
            let log = self.log();
            assert_eq!(crash_mark(&log, &self.forgiven), None, "the server crashed:\n{}", excerpt(&log));
        }
    }

    /// Restarts a killed server on the files that it left, on another port.
    #[track_caller]
    pub fn restart(&mut self) {
        self.try_restart().unwrap_or_else(|log| panic!("the server did not restart:\n{log}"));
    }

    /// Like [`restart`](Self::restart), for files that may be damaged: returns the log if the
    /// server refuses them without a crash.
    #[track_caller]
    pub fn try_restart(&mut self) -> Result<(), String> {
        let launched = launch(self.folder.path(), &self.place, ANY_PORT, &[]);
        if let Err(log) = &launched {
            assert_eq!(crash_mark(log, &[]), None, "the server crashed:\n{log}");
        }
        (self.process, self.port) = launched?;
        Ok(())
    }

    /// Starts a server without the module.
    pub fn without_module(lines: &[&str]) -> Server {
        let started = Server::try_start_with(Place::default(), "", lines);
        started.unwrap_or_else(|log| panic!("the server did not start:\n{log}"))
    }

    /// Removes the module from the configuration of a killed server and restarts it on the files
    /// that it left.
    #[track_caller]
    pub fn try_restart_without_module(&mut self) -> Result<(), String> {
        self.remove_line("loadmodule ");
        self.try_restart()
    }

    /// Removes all lines with this prefix from the configuration file.
    #[track_caller]
    pub fn remove_line(&self, beginning: &str) {
        let path = self.folder.path().join("redis.conf");
        let lines = fs::read_to_string(&path).expect("a configuration file");
        let kept: Vec<_> = lines.lines().filter(|line| !line.starts_with(beginning)).collect();
        fs::write(&path, kept.join("\n") + "\n").expect("a configuration file");
    }

    /// Like [`kill_and_restart`](Self::kill_and_restart), on the same port, so that its clients
    /// find it again.
    #[allow(dead_code, reason = "the tests of the client use it")]
    #[track_caller]
    pub fn kill_and_restart_on_its_port(&mut self) {
        self.kill();
        self.restart_in_place(&[]);
    }

    /// Restarts a killed server on its old port, with extra command-line arguments.
    #[track_caller]
    pub fn restart_in_place(&mut self, words: &[&str]) {
        (self.process, self.port) = launch(self.folder.path(), &self.place, self.port, words)
            .unwrap_or_else(|log| panic!("the server did not restart:\n{log}"));
    }

    #[track_caller]
    pub fn client(&self) -> Client {
        self.try_client().expect("the server accepts connections")
    }

    /// Like [`client`](Self::client), for a connection that the server may close at any moment.
    pub fn try_client(&self) -> io::Result<Client> {
        let mut client = Client::connect(self.port)?;
        client.speak(self.family);
        Ok(client)
    }

    /// Whether ROLE reports `master` or `slave`. A failed call counts as no: a Sentinel that
    /// changes the role also closes all connections, including this one.
    pub fn has_role(&self, role: &str) -> bool {
        let asked = self.try_client().and_then(|mut client| client.try_call("ROLE"));
        asked.is_ok_and(|answer| answer.array()[0] == role)
    }

    /// Returns a client whose command waits in the server's queue. It is blocked, or waits for a
    /// message if the suite runs with RLOCK_WAIT_BY_NOTIFY.
    #[track_caller]
    pub fn waiter(&self, command: impl Into<Command>) -> Client {
        if notified::is_asked_for() { self.notified_waiter(command) } else { self.blocked_waiter(command) }
    }

    /// Returns a client whose command waits in the server's queue, for a message on a channel.
    #[track_caller]
    pub fn notified_waiter(&self, command: impl Into<Command>) -> Client {
        let mut client = self.client();
        let command = command.into();
        client.send_notified(self.client(), command.clone());
        assert!(client.awaits_message(), "{command:?} does not wait: {:?}", client.reply());
        client
    }

    /// Returns a client whose command waits in the server's queue, blocked.
    #[track_caller]
    pub fn blocked_waiter(&self, command: impl Into<Command>) -> Client {
        let mut client = self.client();
        let command = command.into();
        client.send(command.clone());
        let mut observer = self.client();
        eventually(Duration::from_secs(10), || {
            let line = observer.call(format!("CLIENT LIST ID {}", client.id())).text();
            let flags = line.split(' ').find_map(|word| word.strip_prefix("flags="));
            assert!(flags.is_some(), "the client of {command:?} is gone");
            flags.is_some_and(|flags| flags.contains('b'))
        });
        client
    }

    /// Waits until the server has noticed that a client is gone.
    #[track_caller]
    pub fn wait_for_departure_of(&self, client_id: i64) {
        let mut observer = self.client();
        eventually(Duration::from_secs(10), || observer.call(format!("CLIENT LIST ID {client_id}")).text().is_empty());
    }

    /// Waits until this replica has applied all writes that the primary has made so far.
    #[track_caller]
    pub fn catch_up_with(&self, primary: &Server) {
        let mut replica = self.client();
        eventually(START_DEADLINE, || replica.info("master_link_status") == "up");
        let target = primary.client().info_number("master_repl_offset");
        eventually(START_DEADLINE, || replica.info_number("slave_repl_offset") >= target);
    }

    /// Stops the process, runs `actions`, and continues it. The process then sees all commands
    /// and closed connections from that time at once, in one turn of its event loop.
    #[track_caller]
    pub fn while_stopped(&self, actions: impl FnOnce()) {
        self.process.stop();
        actions();
        self.process.go_on();
    }

    /// Simulates a full disk: from now on none of the server's files may grow.
    pub fn fill_disk(&self) {
        self.process.limit_files(0);
    }

    /// Ends [`fill_disk`](Self::fill_disk).
    pub fn empty_disk(&self) {
        self.process.limit_files(libc::RLIM_INFINITY);
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Fails if the server has ended, does not answer, or has a crash in its log. Dropping a server
    /// runs the same check, so every test ends with it.
    #[track_caller]
    pub fn assert_alive(&mut self) {
        if let Err(trouble) = self.check_health() {
            panic!("{trouble}");
        }
    }

    /// The log since the last start of the process.
    pub fn log(&self) -> String {
        read_log(self.folder.path())
    }

    /// Accepts panics of the module in the log.
    pub fn forgive_panics(&mut self) {
        self.forgiven.extend(["panic", "rlock: internal error"]);
    }

    fn check_health(&mut self) -> Result<(), String> {
        if self.process.has_ended() {
            return Err("the server process has ended".to_owned());
        }
        let answer = Client::connect(self.port).map(|mut client| client.call("PING"));
        if !answer.as_ref().is_ok_and(|reply| reply == "PONG") {
            return Err(format!("the server does not answer: {answer:?}"));
        }
        let log = read_log(self.folder.path());
        match crash_mark(&log, &self.forgiven) {
            Some(mark) => Err(format!("the server's log has {mark:?}")),
            None => Ok(()),
        }
    }

    /// Ends the process with SIGTERM. A memory checker turns the exit status into a failure if it
    /// found an error.
    fn end_in_order(&mut self) -> Result<(), String> {
        self.process.terminate();
        eventually(END_DEADLINE, || self.process.has_ended());
        let status = self.process.wait();
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}")) }
    }
}

/// Whether tests end their servers with SIGTERM instead of SIGKILL. A leak checker runs when a
/// process exits, and a killed process never runs it.
fn ends_in_order() -> bool {
    std::env::var_os("RLOCK_END_IN_ORDER").is_some()
}

/// `now force`: without waiting for replicas. `nosave`: without a snapshot.
const END_AT_ONCE: &str = "shutdown-on-sigterm nosave now force\n";

/// A leak checker reads all memory of the server.
const END_DEADLINE: Duration = Duration::from_secs(60);

impl Drop for Server {
    fn drop(&mut self) {
        let failing = std::thread::panicking();
        let health = match failing {
            true => Ok(()),
            false if ends_in_order() => self.check_health().and_then(|()| self.end_in_order()),
            false => self.check_health(),
        };
        if failing || health.is_err() {
            eprintln!("-- from the log of port {} --", self.port);
            eprintln!("{}", excerpt(&read_log(self.folder.path())));
        }
        if let Err(trouble) = health {
            panic!("{trouble}");
        }
    }
}

const PORTS: Range<u16> = 10_000..32_000;

/// Picks a free port at each start.
const ANY_PORT: u16 = 0;

/// Starts a process and waits until it answers. Returns the log if the process ends first.
fn launch(folder: &Path, place: &Place, wanted: u16, words: &[&str]) -> Result<(OwnedProcess, u16), String> {
    loop {
        // While the server is down, no other process should answer on its port.
        let port = if wanted == ANY_PORT { free_port() } else { wanted };
        let _ = fs::remove_file(folder.join("log"));
        let binary = program::server();
        // Errors in the configuration are printed before the log file is open.
        let output = |name| File::create(folder.join(name)).expect("a file for the output");
        let mut words_before = place.wrapper.iter().map(OsStr::new).chain([binary.as_os_str()]);
        let child = Process::new(words_before.next().expect("the server's program"))
            .args(words_before)
            .arg(folder.join("redis.conf"))
            .args(["--port", &port.to_string()])
            .args(words)
            .envs(place.environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", binary.display()));

        // Another test's server may have taken the port, so we compare process ids.
        let own_id = format!("process_id:{}\r\n", child.id());
        let mut process = OwnedProcess::new(child);
        let mut has_given_up = || process.has_ended() || has_told_its_end(folder);
        eventually(START_DEADLINE, || has_given_up() || is_ready(port, &own_id, folder).unwrap_or(false));
        if !has_given_up() {
            return Ok((process, port));
        }
        let log = read_log(folder);
        if wanted != ANY_PORT || !log.contains("Address already in use") {
            return Err(log);
        }
    }
}

/// Whether the server has logged its last line. Before it exits, a server checks a damaged file as
/// `redis-check-rdb` does. In Redis 7.0 this check can loop forever at the end of a file that was
/// truncated inside a module value.
fn has_told_its_end(folder: &Path) -> bool {
    read_log(folder).contains("Unrecoverable error, aborting now")
}

/// Whether our own server answers and has loaded its data. A server of another test may answer with
/// an error, or exit during the call.
fn is_ready(port: u16, own_id: &str, folder: &Path) -> io::Result<bool> {
    let mut client = Client::connect(port)?;
    client.try_send(&[Command::from("INFO everything")])?;
    let info = match client.reply_within(START_DEADLINE)? {
        Reply::Text(info) => info,
        // A test has renamed INFO.
        Reply::Error(text) if text.contains("unknown command") => {
            let of_folder = client.try_call("CONFIG GET dir")?;
            return Ok(matches!(of_folder, Reply::Array(_) | Reply::Map(_))
                && of_folder.field("dir").text() == folder.to_string_lossy());
        }
        _ => return Ok(false),
    };
    let info = String::from_utf8_lossy(&info);
    Ok(info.contains(own_id) && info.contains("\r\nloading:0\r\n"))
}

/// Returns a port on which no process listens and which no other test of this process gets. It is
/// below the system's ephemeral port range, so it stays free while its server is down.
pub fn free_port() -> u16 {
    static LATEST: LazyLock<AtomicU16> = LazyLock::new(|| AtomicU16::new(rand::random_range(PORTS)));
    let next = |port: u16| if port + 1 < PORTS.end { port + 1 } else { PORTS.start };
    let take = || {
        LATEST.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |port| Some(next(port))).unwrap_or_else(|port| port)
    };
    let is_free = |port: &u16| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok();
    std::iter::repeat_with(take).find(is_free).expect("a free port")
}

fn read_log(folder: &Path) -> String {
    let read = |name| fs::read(folder.join(name)).unwrap_or_default();
    String::from_utf8_lossy(&[read("stdout"), read("stderr"), read("log")].concat()).into_owned()
}

fn crash_mark(log: &str, forgiven: &[&str]) -> Option<&'static str> {
    CRASH_MARKS.into_iter().find(|mark| log.contains(mark) && !forgiven.contains(mark))
}

/// The most useful lines: the end of the log, or the lines around the start of a crash report.
fn excerpt(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    let crash = lines.iter().position(|line| line.contains("BUG REPORT START"));
    let start = crash.unwrap_or(lines.len()).saturating_sub(40);
    let end = crash.map_or(lines.len(), |at| at + 60).min(lines.len());
    lines[start..end].join("\n")
}

/// The module under test. `cargo test` does not build it, so we check that it is newer than the
/// sources.
pub fn module_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // A file named by RLOCK_MODULE is used whatever its age.
        if let Some(named) = std::env::var_os("RLOCK_MODULE") {
            return fs::canonicalize(named).expect("RLOCK_MODULE names a file");
        }
        // All packages of the workspace use this function, and each has its own manifest folder.
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace");
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| "target".into());
        let path = root.join(target).join("release/librlock.so");
        let Some(built) = modified(&path) else {
            panic!("{} is missing: run `make build`", path.display());
        };
        for source in ["src", "core/src", "Cargo.toml"] {
            let changed = newest_below(&root.join(source));
            assert!(changed <= Some(built), "{} is older than {source}: run `make build`", path.display());
        }
        path
    })
}

fn newest_below(path: &Path) -> Option<SystemTime> {
    if !path.is_dir() {
        return modified(path);
    }
    let entries = fs::read_dir(path).expect("a readable source folder");
    entries.map(|entry| newest_below(&entry.expect("a readable entry").path())).max().flatten()
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|data| data.modified()).ok()
}
