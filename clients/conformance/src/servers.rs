//! Servers of one scenario. Dropping a value ends its process.

use std::path::PathBuf;
use std::process::Stdio;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use redis::Value;
use redis::aio::MultiplexedConnection;
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;
use tokio::process::{Child, Command};

use crate::broken::{Broken, ensure};
use crate::clock::now_us;

const START_DEADLINE: Duration = Duration::from_secs(30);
const ANSWER_DEADLINE: Duration = Duration::from_secs(20);

/// The programs and the module that servers are started with.
#[derive(Clone, Debug)]
pub struct Programs {
    pub server: String,
    pub cli: String,
    pub module: PathBuf,
}

pub struct Server {
    programs: Arc<Programs>,
    child: Mutex<Child>,
    pub port: u16,
    folder: TempDir,
    connection: tokio::sync::Mutex<Option<MultiplexedConnection>>,
}

pub fn free_port() -> u16 {
    loop {
        let port = rand::random_range(10_000..32_000);
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn spawn(programs: &Programs, folder: &TempDir, port: u16) -> Child {
    Command::new(&programs.server)
        .arg(folder.path().join("conf"))
        .args(["--port", &port.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap_or_else(|error| panic!("cannot run {}: {error}", programs.server))
}

impl Server {
    /// Starts a server with the module and these lines of configuration.
    pub async fn start(programs: &Arc<Programs>, lines: &[&str]) -> Result<Server, Broken> {
        let module = format!("loadmodule {}", programs.module.display());
        Self::start_bare(programs, &[&[module.as_str()], lines].concat()).await
    }

    /// Starts a server without the module.
    pub async fn start_bare(programs: &Arc<Programs>, lines: &[&str]) -> Result<Server, Broken> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().display();
        let conf = format!(
            "bind 127.0.0.1\nsave \"\"\nenable-debug-command local\nrepl-diskless-sync-delay 0\ndir {path}\nlogfile {path}/log\n{}\n",
            lines.join("\n")
        );
        std::fs::write(folder.path().join("conf"), conf).expect("a configuration file");
        let port = free_port();
        let child = Mutex::new(spawn(programs, &folder, port));
        let server = Server { programs: programs.clone(), child, port, folder, connection: Default::default() };
        let is_up = server.is_up().await?;
        ensure!(is_up, "driver", "no server: {}", server.log());
        Ok(server)
    }

    async fn is_up(&self) -> Result<bool, Broken> {
        let deadline = now_us() + START_DEADLINE.as_micros() as i64;
        while now_us() < deadline && lock(&self.child).try_wait().expect("a child").is_none() {
            if let Ok(Value::BulkString(info)) = self.try_ask(&["INFO", "everything"]).await {
                let (info, own) =
                    (String::from_utf8_lossy(&info).into_owned(), format!("process_id:{}\r\n", self.pid()));
                if info.contains(&own) && info.contains("\r\nloading:0\r\n") {
                    return Ok(true);
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        Ok(false)
    }

    fn pid(&self) -> u32 {
        lock(&self.child).id().unwrap_or(0)
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Sends a command. A server that changes its role closes its connections, so a lost connection is retried once.
    pub async fn try_ask(&self, words: &[&str]) -> redis::RedisResult<Value> {
        match self.ask_once(words).await {
            Err(error) if error.is_unrecoverable_error() => self.ask_once(words).await,
            answer => answer,
        }
    }

    async fn ask_once(&self, words: &[&str]) -> redis::RedisResult<Value> {
        let mut kept = self.connection.lock().await;
        if kept.is_none() {
            let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(ANSWER_DEADLINE));
            let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port))?;
            *kept = Some(client.get_multiplexed_async_connection_with_config(&config).await?);
        }
        let connection = kept.as_mut().expect("it was made");
        let (name, arguments) = words.split_first().expect("a command");
        let answer = redis::cmd(name).arg(arguments).query_async(connection).await;
        if answer.as_ref().is_err_and(|error| error.is_unrecoverable_error()) {
            *kept = None;
        }
        answer
    }

    /// Sends a command of the driver, past any proxy.
    pub async fn ask(&self, command: &str) -> Result<Value, Broken> {
        let words: Vec<_> = command.split_whitespace().collect();
        self.try_ask(&words).await.map_err(|error| Broken::new("driver", format!("{command}: {error}")))
    }

    pub async fn number(&self, command: &str) -> Result<i64, Broken> {
        match self.ask(command).await? {
            Value::Int(number) => Ok(number),
            other => Err(Broken::new("driver", format!("{command}: {other:?}"))),
        }
    }

    pub async fn text(&self, command: &str) -> Result<String, Broken> {
        match self.ask(command).await? {
            Value::BulkString(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => Ok(text),
            Value::Nil => Ok(String::new()),
            other => Err(Broken::new("driver", format!("{command}: {other:?}"))),
        }
    }

    /// A field of `INFO rlock`.
    pub async fn gauge(&self, field: &str) -> Result<i64, Broken> {
        let info = self.text("INFO rlock").await?;
        let value = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok());
        value.ok_or_else(|| Broken::new("driver", format!("INFO has no {field}")))
    }

    /// Milliseconds until the server ends the hold; -2 if the hold has ended.
    pub async fn lease_left(&self, key: &str, token: i64) -> Result<i64, Broken> {
        self.number(&format!("RLOCK.PTTL {key} TOKEN {token}")).await
    }

    /// Fails if the server still has a hold or a waiter after this time.
    pub async fn is_clean(&self, within: Duration) -> Result<(), Broken> {
        let deadline = now_us() + within.as_micros() as i64;
        loop {
            let (held, waiting) = (self.gauge("rlock_held").await?, self.gauge("rlock_waiting").await?);
            if held == 0 && waiting == 0 {
                return Ok(());
            }
            let what = || format!("{held} holds and {waiting} waits are left after {within:?}");
            ensure!(now_us() < deadline, "B11 B21 B24", "{}", what());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// A number of RLOCK.INFO; 0 if it is missing.
    pub async fn field(&self, key: &str, name: &str) -> Result<i64, Broken> {
        let fields = match self.ask(&format!("RLOCK.INFO {key}")).await? {
            Value::Array(fields) => fields,
            Value::Map(fields) => fields.into_iter().flat_map(|(name, value)| [name, value]).collect(),
            _ => return Ok(0),
        };
        let is_it = |field: &Value| matches!(field, Value::BulkString(bytes) if bytes == name.as_bytes());
        let at = fields.iter().position(is_it).unwrap_or(fields.len());
        Ok(if let Some(Value::Int(number)) = fields.get(at + 1) { *number } else { 0 })
    }

    /// The reply to RLOCK.INFO as text.
    pub async fn info(&self, key: &str) -> Result<String, Broken> {
        Ok(format!("{:?}", self.ask(&format!("RLOCK.INFO {key}")).await?))
    }

    /// Waits until `count` requests wait on the server.
    pub async fn until_waiting(&self, count: i64) -> Result<(), Broken> {
        let deadline = now_us() + ANSWER_DEADLINE.as_micros() as i64;
        while self.gauge("rlock_waiting").await? != count {
            ensure!(
                now_us() < deadline,
                "B6",
                "there were not {count} requests waiting on the server within {ANSWER_DEADLINE:?}"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Ok(())
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.pid() as i32).expect("a running server");
        kill_process(pid, signal).expect("a running server");
    }

    pub fn stop(&self) {
        self.signal(Signal::STOP);
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    pub async fn kill(&self) {
        self.signal(Signal::KILL);
        while lock(&self.child).try_wait().expect("a child").is_none() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        *self.connection.lock().await = None;
    }

    /// Starts a killed server again, on its files and its port.
    pub async fn start_again(&self) -> Result<(), Broken> {
        *lock(&self.child) = spawn(&self.programs, &self.folder, self.port);
        let is_up = self.is_up().await?;
        ensure!(is_up, "driver", "no restart: {}", self.log());
        Ok(())
    }
}

/// Three primaries, first in the list, with this number of replicas each.
pub async fn cluster(programs: &Arc<Programs>, replicas: usize, settings: &[&str]) -> Result<Vec<Server>, Broken> {
    let mut nodes = Vec::new();
    for _ in 0..3 * (replicas + 1) {
        let bus = format!("cluster-port {}", free_port());
        let lines = ["cluster-enabled yes", "cluster-node-timeout 2000", "cluster-require-full-coverage no", &bus];
        nodes.push(Server::start(programs, &[&lines, settings].concat()).await?);
    }
    let mut create = Command::new(&programs.cli);
    create.args(["--cluster", "create"]).args(nodes.iter().map(|node| format!("127.0.0.1:{}", node.port)));
    create.args(["--cluster-yes", "--cluster-replicas", &replicas.to_string()]);
    let output = create.output().await.expect("redis-cli runs");
    ensure!(output.status.success(), "driver", "no cluster: {}", String::from_utf8_lossy(&output.stdout));
    let deadline = now_us() + START_DEADLINE.as_micros() as i64;
    for node in &nodes {
        while !node.text("CLUSTER INFO").await?.contains("cluster_state:ok") {
            ensure!(now_us() < deadline, "driver", "the cluster does not come up");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    Ok(nodes)
}

/// One Sentinel with a quorum of 1, for a primary with one replica.
pub struct Sentinel {
    _child: Child,
    _folder: TempDir,
    pub port: u16,
}

impl Sentinel {
    pub async fn of(programs: &Arc<Programs>, primary: &Server) -> Result<Sentinel, Broken> {
        let (folder, port) = (tempfile::tempdir().expect("a folder"), free_port());
        let conf = format!(
            "bind 127.0.0.1\nport {port}\ndir {}\nsentinel monitor fleet 127.0.0.1 {} 1\nsentinel down-after-milliseconds fleet 1000\n\
             sentinel failover-timeout fleet 5000\n",
            folder.path().display(),
            primary.port
        );
        std::fs::write(folder.path().join("conf"), conf).expect("a configuration file");
        let mut command = Command::new(&programs.server);
        command.arg(folder.path().join("conf")).arg("--sentinel").kill_on_drop(true);
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
        let sentinel = Sentinel { _child: child, _folder: folder, port };
        let deadline = now_us() + START_DEADLINE.as_micros() as i64;
        // It reads the INFO of the primary every ten seconds.
        while !sentinel.says("SENTINEL REPLICAS fleet").await.contains("\"slave\"") {
            ensure!(now_us() < deadline, "driver", "the Sentinel does not see the replica");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        Ok(sentinel)
    }

    pub async fn says(&self, command: &str) -> String {
        let words: Vec<_> = command.split_whitespace().collect();
        let asked = async {
            let client = redis::Client::open(format!("redis://127.0.0.1:{}/", self.port))?;
            let mut connection = client.get_multiplexed_async_connection().await?;
            redis::cmd(words[0]).arg(&words[1..]).query_async::<Value>(&mut connection).await
        };
        asked
            .await
            .map(|value| format!("{value:?}").replace("bulk-string('\"", "\"").replace("\"')", "\""))
            .unwrap_or_default()
    }
}
