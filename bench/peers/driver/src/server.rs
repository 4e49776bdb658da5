//! The servers: Redis with and without the module, and those that a folder of programs provides.
//!
//! Each listens on a free port of 127.0.0.1, keeps its data in a temporary folder, and ends when
//! its [`Server`] is dropped.

use std::collections::HashMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tempfile::TempDir;

use crate::clock;
use crate::peer::{Contestant, Kind};
use crate::process::Process;
use crate::usage::CpuNs;

const START_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_CLIENTS: u64 = 20_000;
const OTHER_FILES: u64 = 200;

/// Prints the name, the version and the path of servers, and fetches them if necessary.
const SCRIPT: &str = "scripts/servers";

/// How servers are started.
#[derive(Clone, Debug)]
pub struct Servers {
    pub redis: PathBuf,
    /// Other servers that peers need, by their names in `scripts/servers`.
    pub others: HashMap<String, Other>,
    pub module: PathBuf,
    /// The folders that contain the folders of programs.
    pub programs: Vec<PathBuf>,
}

/// A server of `scripts/servers`.
#[derive(Clone, Debug)]
pub struct Other {
    /// Product and version.
    pub version: String,
    pub program: PathBuf,
}

/// Finds the servers that contestants name.
pub fn find_others(contestants: &[Contestant]) -> Result<HashMap<String, Other>> {
    let mut others = HashMap::new();
    for name in contestants.iter().map(|contestant| &contestant.peer.on).filter(|name| !name.is_empty()) {
        if others.contains_key(name) {
            continue;
        }
        let output = Command::new(SCRIPT).arg(name).output().with_context(|| format!("cannot run {SCRIPT}"))?;
        let line = String::from_utf8(output.stdout)?;
        let [_, version, program] = line.trim_end().split('\t').collect::<Vec<_>>()[..] else {
            bail!("{SCRIPT} has no server {name}");
        };
        others.insert(name.clone(), Other { version: version.to_owned(), program: program.into() });
    }
    Ok(others)
}

/// A running server.
pub struct Server {
    process: Process,
    address: SocketAddr,
    start: StartLine,
    /// Only for Redis.
    control: Option<redis::Connection>,
    replica: Option<Box<Server>>,
    folder: TempDir,
}

/// The command line, to restart the server.
#[derive(Clone)]
struct StartLine {
    program: PathBuf,
    arguments: Vec<String>,
    is_redis: bool,
}

/// The server's counters, read at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counters {
    pub at_ns: u64,
    pub cpu: CpuNs,
    pub commands: u64,
    pub bytes: u64,
    pub used_memory: u64,
}

impl Servers {
    /// Starts a server of a kind, with its replica if it has one. With `append_only`, Redis keeps its
    /// data over a restart.
    pub fn start(&self, kind: &Kind, append_only: bool) -> Result<Server> {
        let mut server = self.start_one(kind, append_only, None)?;
        if kind.replica {
            server.replica = Some(Box::new(self.start_one(kind, append_only, Some(server.address))?));
            server.wait_for_replica()?;
        }
        Ok(server)
    }

    fn start_one(&self, kind: &Kind, append_only: bool, master: Option<SocketAddr>) -> Result<Server> {
        rlimit::increase_nofile_limit(MAX_CLIENTS + OTHER_FILES).context("cannot raise RLIMIT_NOFILE")?;
        let folder = tempfile::tempdir().context("cannot make a temporary folder")?;
        // Another process may take the port before the server binds it. Then the server fails, and
        // this run too.
        let address = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?;
        let mut start = match kind.is_redis() {
            true => self.redis_line(kind, append_only, address, folder.path())?,
            false => self.other_line(&kind.server, address, folder.path())?,
        };
        if let Some(master) = master {
            start.arguments.extend(["--replicaof".into(), master.ip().to_string(), master.port().to_string()]);
        }
        let process = start.run(folder.path())?;
        let mut server = Server { process, address, start, control: None, replica: None, folder };
        server
            .wait_until_ready()
            .with_context(|| format!("the server {} did not start: {}", kind.server, server.log()))?;
        Ok(server)
    }

    fn redis_line(&self, kind: &Kind, append_only: bool, address: SocketAddr, folder: &Path) -> Result<StartLine> {
        let mut arguments: Vec<String> = ["--bind", "127.0.0.1", "--save", "", "--maxclients"].map(Into::into).into();
        arguments.push(MAX_CLIENTS.to_string());
        arguments.extend(["--port".into(), address.port().to_string()]);
        arguments.extend(["--dir".into(), folder.to_string_lossy().into_owned()]);
        arguments.extend(["--appendonly".into(), if append_only { "yes" } else { "no" }.into()]);
        if kind.server == "rlock" {
            let module = std::fs::canonicalize(&self.module)
                .with_context(|| format!("no module at {}", self.module.display()))?;
            arguments.extend(["--loadmodule".into(), module.to_string_lossy().into_owned()]);
        }
        for [name, value] in &kind.settings {
            arguments.extend([format!("--{name}"), value.clone()]);
        }
        let program = match kind.on.as_str() {
            "" => &self.redis,
            name => &self.others.get(name).with_context(|| format!("the server {name} was not found"))?.program,
        };
        Ok(StartLine { program: program.clone(), arguments, is_redis: true })
    }

    fn other_line(&self, kind: &str, address: SocketAddr, folder: &Path) -> Result<StartLine> {
        let script = format!("server-{kind}");
        let folders = self.programs.iter().filter_map(|parent| std::fs::read_dir(parent).ok());
        let program = folders
            .flat_map(|entries| entries.flatten())
            .map(|entry| entry.path().join(&script))
            .find(|path| path.exists())
            .with_context(|| format!("no folder of programs has a {script}"))?;
        let arguments =
            vec![address.ip().to_string(), address.port().to_string(), folder.to_string_lossy().into_owned()];
        Ok(StartLine { program: std::fs::canonicalize(program)?, arguments, is_redis: false })
    }
}

impl StartLine {
    fn run(&self, folder: &Path) -> Result<Process> {
        let log = File::options().create(true).append(true).open(folder.join("server.log"))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        Process::start(command)
    }
}

impl Server {
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Kills the server and restarts it with the data that it has written.
    pub fn crash_and_restart(&mut self) -> Result<()> {
        self.process.kill();
        self.control = None;
        self.process = self.start.run(self.folder.path())?;
        self.wait_until_ready()
    }

    /// Its counters so far.
    pub fn counters(&mut self) -> Result<Counters> {
        let (at_ns, cpu) = (clock::monotonic_ns(), CpuNs::of(self.process.id()));
        let mut counters = Counters { at_ns, cpu, ..Counters::default() };
        if let Some(control) = &mut self.control {
            let info: String = redis::cmd("INFO").arg("everything").query(control)?;
            counters.commands = number(&info, "total_commands_processed")?;
            counters.bytes = number(&info, "total_net_input_bytes")? + number(&info, "total_net_output_bytes")?;
            counters.used_memory = number(&info, "used_memory")?;
        }
        Ok(counters)
    }

    /// The version, for Redis only.
    pub fn redis_version(&mut self) -> Result<Option<String>> {
        let Some(control) = &mut self.control else { return Ok(None) };
        let info: String = redis::cmd("INFO").arg("server").query(control)?;
        Ok(field(&info, "redis_version").map(str::to_owned))
    }

    /// Removes the data of a measurement before the next one. Only Redis supports that.
    pub fn empty(&mut self) -> Result<()> {
        if let Some(control) = &mut self.control {
            redis::cmd("FLUSHALL").arg("SYNC").exec(control)?;
        }
        Ok(())
    }

    /// A connection to Redis.
    pub fn control(&mut self) -> Result<&mut redis::Connection> {
        self.control.as_mut().context("this server is not a Redis")
    }

    fn wait_until_ready(&mut self) -> Result<()> {
        let deadline = clock::now() + START_TIMEOUT;
        loop {
            if let Some(status) = self.process.ended()? {
                bail!("it ended with {status}");
            }
            if self.answers() {
                return Ok(());
            }
            if clock::now() > deadline {
                bail!("it did not answer within 60 s");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits until the replica has all data.
    fn wait_for_replica(&mut self) -> Result<()> {
        let deadline = clock::now() + START_TIMEOUT;
        let control = self.control()?;
        loop {
            let info: String = redis::cmd("INFO").arg("replication").query(control)?;
            if info.contains("state=online") {
                return Ok(());
            }
            ensure!(clock::now() < deadline, "the replica was not in sync within 60 s");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn answers(&mut self) -> bool {
        if !self.start.is_redis {
            return TcpStream::connect(self.address).is_ok();
        }
        let connect = || -> redis::RedisResult<redis::Connection> {
            let mut connection = redis::Client::open(format!("redis://{}/", self.address))?.get_connection()?;
            // While it loads its file it answers LOADING.
            redis::cmd("DBSIZE").exec(&mut connection)?;
            Ok(connection)
        };
        self.control = connect().ok();
        self.control.is_some()
    }

    fn log(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("server.log")).unwrap_or_default();
        text.lines().rev().take(5).collect::<Vec<_>>().join(" | ")
    }
}

fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
}

fn number(info: &str, name: &str) -> Result<u64> {
    field(info, name).and_then(|value| value.parse().ok()).with_context(|| format!("INFO has no number {name}"))
}
