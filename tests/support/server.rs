//! A server of one test: its own process, port and folder. It is gone when the value is dropped, also when the test fails.

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

/// A loaded machine starts a server in tens of milliseconds.
const START_DEADLINE: Duration = Duration::from_secs(20);

/// What a server or a caught Rust panic writes to the log when it goes wrong.
const CRASH_MARKS: [&str; 5] =
    ["BUG REPORT", "crashed by signal", "ASSERTION FAILED", "panic", "rlock: internal error"];

pub struct Server {
    process: OwnedProcess,
    port: u16,
    folder: TempDir,
    environment: Environment,
    family: Family,
    /// Marks in the log that a test expects.
    forgiven: Vec<&'static str>,
}

/// What is added to the environment of the process.
type Environment = Vec<(&'static str, PathBuf)>;

impl Server {
    /// A server with the module, without persistence.
    pub fn start() -> Server {
        Server::with(&[])
    }

    /// The same with further lines for its configuration file.
    pub fn with(lines: &[&str]) -> Server {
        Server::with_module_arguments("", lines)
    }

    /// The same with arguments behind the path in the loadmodule line.
    pub fn with_module_arguments(arguments: &str, lines: &[&str]) -> Server {
        Server::try_start(arguments, lines).unwrap_or_else(|log| panic!("no start:\n{log}"))
    }

    /// A server that lives by a clock of its own.
    pub fn with_wall_clock(clock: &WallClock, lines: &[&str]) -> Server {
        let started = Server::try_start_in(clock.environment().to_vec(), "", lines);
        started.unwrap_or_else(|log| panic!("no start:\n{log}"))
    }

    /// One server after the other, each for a family, without persistence.
    pub fn for_each(families: &[Family]) -> impl Iterator<Item = Server> {
        families.iter().map(|family| Server::start().speaking(*family))
    }

    /// The same server, whose clients from now on mean a family by `LOCK.`. There is a lock under `job` to be asked for.
    #[track_caller]
    pub fn speaking(mut self, family: Family) -> Server {
        // The output of a failed test ends with the family that failed.
        eprintln!("{family:?}");
        self.family = family;
        self.client().make("job");
        self
    }

    pub fn family(&self) -> Family {
        self.family
    }

    /// A server with an append-only file that is on disk before a client has its answer.
    pub fn with_aof(lines: &[&str]) -> Server {
        Server::with(&[&["appendonly yes", "appendfsync always"], lines].concat())
    }

    /// A replica to which every write streams without delay.
    pub fn replica_of(primary: &Server, lines: &[&str]) -> Server {
        let upstream = format!("replicaof 127.0.0.1 {}", primary.port);
        let replica = Server::with(&[&[upstream.as_str()], lines].concat());
        replica.catch_up_with(primary);
        // The primary starts streaming up to a second after the synchronisation. A lease should not run meanwhile.
        primary.client().call("PUBLISH stream -");
        replica.catch_up_with(primary);
        replica
    }

    /// Starts a server, or hands out the log of one that gave up.
    pub fn try_start(module_arguments: &str, lines: &[&str]) -> Result<Server, String> {
        Server::try_start_in(Environment::new(), module_arguments, lines)
    }

    fn try_start_in(environment: Environment, module_arguments: &str, lines: &[&str]) -> Result<Server, String> {
        let load = format!("loadmodule {} {module_arguments}", module_path().display());
        Server::try_start_with(environment, &load, lines)
    }

    fn try_start_with(environment: Environment, load: &str, lines: &[&str]) -> Result<Server, String> {
        set_limits();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().display();
        // Without the delay of 0 a replica's first synchronisation takes five seconds. After a crash the machine's memory is
        // not what is in doubt.
        let configuration = format!(
            "bind 127.0.0.1\nsave \"\"\nenable-debug-command local\nrepl-diskless-sync-delay 0\n\
             crash-memcheck-enabled no\ndir {path}\nlogfile {path}/log\n{load}\n{}\n{}",
            lines.join("\n"),
            if ends_in_order() { END_AT_ONCE } else { "" },
        );
        fs::write(folder.path().join("redis.conf"), configuration).expect("a configuration file");
        let (process, port) = launch(folder.path(), &environment, ANY_PORT, &[])?;
        Ok(Server { process, port, folder, environment, family: MUTEX, forgiven: Vec::new() })
    }

    /// Ends the process as a power cut does, and starts another on the same files.
    #[track_caller]
    pub fn kill_and_restart(&mut self) {
        self.kill();
        self.restart();
    }

    /// SIGKILL. Clients see their connections close. Fails if the server had logged that something broke: the next start takes the log away.
    #[track_caller]
    pub fn kill(&mut self) {
        self.process.kill();
        if !std::thread::panicking() {
            let log = self.log();
            assert_eq!(crash_mark(&log, &self.forgiven), None, "the server has crashed:\n{}", excerpt(&log));
        }
    }

    /// Starts a killed server again on the files that it has left, and on another port.
    #[track_caller]
    pub fn restart(&mut self) {
        self.try_restart().unwrap_or_else(|log| panic!("no restart:\n{log}"));
    }

    /// The same where the files may be beyond repair: hands out the log if the server gives up in good order.
    #[track_caller]
    pub fn try_restart(&mut self) -> Result<(), String> {
        let launched = launch(self.folder.path(), &self.environment, ANY_PORT, &[]);
        if let Err(log) = &launched {
            assert_eq!(crash_mark(log, &[]), None, "the server has crashed:\n{log}");
        }
        (self.process, self.port) = launched?;
        Ok(())
    }

    /// A server without the module.
    pub fn without_module(lines: &[&str]) -> Server {
        let started = Server::try_start_with(Environment::new(), "", lines);
        started.unwrap_or_else(|log| panic!("no start:\n{log}"))
    }

    /// Takes the module out of the configuration of a killed server, and starts it again on the files that it has left.
    #[track_caller]
    pub fn try_restart_without_module(&mut self) -> Result<(), String> {
        self.remove_line("loadmodule ");
        self.try_restart()
    }

    /// Removes a line that begins like this from the configuration file.
    #[track_caller]
    pub fn remove_line(&self, beginning: &str) {
        let path = self.folder.path().join("redis.conf");
        let lines = fs::read_to_string(&path).expect("a configuration file");
        let kept: Vec<_> = lines.lines().filter(|line| !line.starts_with(beginning)).collect();
        fs::write(&path, kept.join("\n") + "\n").expect("a configuration file");
    }

    /// Ends the process as a power cut does, and starts another on the same files and port, where its clients look for it.
    #[allow(dead_code, reason = "the tests of the client use it")]
    #[track_caller]
    pub fn kill_and_restart_on_its_port(&mut self) {
        self.kill();
        self.restart_in_place(&[]);
    }

    /// Starts a killed member of a fleet again where it was, with further words on its command line.
    #[track_caller]
    pub fn restart_in_place(&mut self, words: &[&str]) {
        (self.process, self.port) = launch(self.folder.path(), &self.environment, self.port, words)
            .unwrap_or_else(|log| panic!("no restart:\n{log}"));
    }

    #[track_caller]
    pub fn client(&self) -> Client {
        self.try_client().expect("the server takes connections")
    }

    /// The same where others may close the connection at any moment.
    pub fn try_client(&self) -> io::Result<Client> {
        let mut client = Client::connect(self.port)?;
        client.speak(self.family);
        Ok(client)
    }

    /// Whether it is a `master` or a `slave` by its own word. No word is none: with each role that a Sentinel gives it also closes all
    /// connections, that of whoever asks among them.
    pub fn has_role(&self, role: &str) -> bool {
        let asked = self.try_client().and_then(|mut client| client.try_call("ROLE"));
        asked.is_ok_and(|answer| answer.array()[0] == role)
    }

    /// A client whose command has reached the server and waits there: blocked, or for a message if the suite is run in that way.
    #[track_caller]
    pub fn waiter(&self, command: impl Into<Command>) -> Client {
        if notified::is_asked_for() { self.notified_waiter(command) } else { self.blocked_waiter(command) }
    }

    /// A client whose command has reached the server and waits there, for a message on a channel.
    #[track_caller]
    pub fn notified_waiter(&self, command: impl Into<Command>) -> Client {
        let mut client = self.client();
        let command = command.into();
        client.ask_notified(self.client(), command.clone());
        assert!(client.is_told_elsewhere(), "{command:?} does not wait: {:?}", client.reply());
        client
    }

    /// A client whose command has reached the server and waits there, blocked.
    #[track_caller]
    pub fn blocked_waiter(&self, command: impl Into<Command>) -> Client {
        let mut client = self.client();
        let command = command.into();
        client.send(command.clone());
        let mut observer = self.client();
        eventually(Duration::from_secs(10), || {
            let line = observer.call(format!("CLIENT LIST ID {}", client.id())).text();
            let flags = line.split(' ').find_map(|word| word.strip_prefix("flags="));
            assert!(flags.is_some(), "the client of {command:?} has gone");
            flags.is_some_and(|flags| flags.contains('b'))
        });
        client
    }

    /// Waits until the server has seen that a client is gone.
    #[track_caller]
    pub fn wait_for_departure_of(&self, client_id: i64) {
        let mut observer = self.client();
        eventually(Duration::from_secs(10), || observer.call(format!("CLIENT LIST ID {client_id}")).text().is_empty());
    }

    /// Waits until this replica has applied all that the primary has done so far.
    #[track_caller]
    pub fn catch_up_with(&self, primary: &Server) {
        let mut replica = self.client();
        eventually(START_DEADLINE, || replica.info("master_link_status") == "up");
        let target = primary.client().info_number("master_repl_offset");
        eventually(START_DEADLINE, || replica.info_number("slave_repl_offset") >= target);
    }

    /// Stops the process for a while. What is sent to it meanwhile, or closed, it finds all at once afterwards: in one turn of
    /// its event loop.
    #[track_caller]
    pub fn while_stopped(&self, happenings: impl FnOnce()) {
        self.process.stop();
        happenings();
        self.process.go_on();
    }

    /// From now on its disk is full: none of its files may grow.
    pub fn fill_disk(&self) {
        self.process.limit_files(0);
    }

    /// There is room on its disk again.
    pub fn empty_disk(&self) {
        self.process.limit_files(libc::RLIM_INFINITY);
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Fails if the server has died, does not answer, or has logged that something broke. Dropping a server asserts the same,
    /// so each test ends with it.
    #[track_caller]
    pub fn assert_alive(&mut self) {
        if let Err(trouble) = self.check_health() {
            panic!("{trouble}");
        }
    }

    /// The log since the process was started.
    pub fn log(&self) -> String {
        read_log(self.folder.path())
    }

    /// The test lets the module panic, which the log may show.
    pub fn forgive_panics(&mut self) {
        self.forgiven.extend(["panic", "rlock: internal error"]);
    }

    fn check_health(&mut self) -> Result<(), String> {
        if self.process.has_ended() {
            return Err("the server has ended".to_owned());
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

    /// Lets the process end by itself. What watches its memory makes the exit status another one if something is wrong.
    fn end_in_order(&mut self) -> Result<(), String> {
        self.process.terminate();
        eventually(END_DEADLINE, || self.process.has_ended());
        let status = self.process.wait();
        if status.success() { Ok(()) } else { Err(format!("the server ended with {status}")) }
    }
}

/// Whether servers end by themselves at the end of a test, and not by a kill: a tool that looks for leaks does so at the end of a
/// process, and a killed one has none.
fn ends_in_order() -> bool {
    std::env::var_os("RLOCK_END_IN_ORDER").is_some()
}

/// Whatever has not gone to the replicas yet, and without a snapshot.
const END_AT_ONCE: &str = "shutdown-on-sigterm nosave now force\n";

/// The search for leaks reads all of the server's memory.
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

/// Stands for a port that is looked for at each start.
const ANY_PORT: u16 = 0;

/// Starts a process and waits until it answers, or hands out the log if it ends first.
fn launch(
    folder: &Path,
    environment: &Environment,
    wanted: u16,
    words: &[&str],
) -> Result<(OwnedProcess, u16), String> {
    loop {
        // While it is down nobody else is to answer in its place.
        let port = if wanted == ANY_PORT { free_port() } else { wanted };
        let _ = fs::remove_file(folder.join("log"));
        let binary = program::server();
        // Complaints about the configuration come before the log file is open.
        let output = |name| File::create(folder.join(name)).expect("a file for the output");
        let child = Process::new(&binary)
            .arg(folder.join("redis.conf"))
            .args(["--port", &port.to_string()])
            .args(words)
            .envs(environment.iter().cloned())
            .stdin(Stdio::null())
            .stdout(output("stdout"))
            .stderr(output("stderr"))
            .spawn()
            .unwrap_or_else(|error| panic!("cannot run {}: {error}", binary.display()));

        // Another test's server may have taken the port: only our own counts.
        let own_id = format!("process_id:{}\r\n", child.id());
        let mut process = OwnedProcess::new(child);
        let mut has_given_up = || process.has_ended() || has_told_its_end(folder);
        eventually(START_DEADLINE, || has_given_up() || is_ready(port, &own_id).unwrap_or(false));
        if !has_given_up() {
            return Ok((process, port));
        }
        let log = read_log(folder);
        if wanted != ANY_PORT || !log.contains("Address already in use") {
            return Err(log);
        }
    }
}

/// Before it ends, a server checks a damaged file as redis-check-rdb does, which in Redis 7.0 may go on for ever at the end of a
/// file that was cut off within the value of a module.
fn has_told_its_end(folder: &Path) -> bool {
    read_log(folder).contains("Unrecoverable error, aborting now")
}

/// Whether our own server answers, and has read its data. Another test's may answer with an error, or end in the middle.
fn is_ready(port: u16, own_id: &str) -> io::Result<bool> {
    let mut client = Client::connect(port)?;
    client.try_send(&[Command::from("INFO everything")])?;
    let Reply::Text(info) = client.reply_within(START_DEADLINE)? else { return Ok(false) };
    let info = String::from_utf8_lossy(&info);
    Ok(info.contains(own_id) && info.contains("\r\nloading:0\r\n"))
}

/// A port that nobody listens to and that no other test of this process is given. It is below those from which the system takes the ports of
/// connections: it stays free while its server is down.
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

/// The lines that tell most: the end, or in front of a crash report's long tables.
fn excerpt(log: &str) -> String {
    let lines: Vec<_> = log.lines().collect();
    let crash = lines.iter().position(|line| line.contains("BUG REPORT START"));
    let start = crash.unwrap_or(lines.len()).saturating_sub(40);
    let end = crash.map_or(lines.len(), |at| at + 60).min(lines.len());
    lines[start..end].join("\n")
}

/// The module under test. `cargo test` does not build it, so an old one would be tested without a word.
pub fn module_path() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        // Whoever names a file means that file, whatever its age.
        if let Some(named) = std::env::var_os("RLOCK_MODULE") {
            return fs::canonicalize(named).expect("RLOCK_MODULE names a file");
        }
        // The tests of each package of the workspace come here, and each has its own folder.
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let root = package.ancestors().find(|folder| folder.join("Cargo.lock").exists()).expect("a workspace");
        let path = root.join("target/release/librlock.so");
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
