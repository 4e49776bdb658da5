//! Three Sentinels that watch a master. They replace it by its replica when it dies or when they
//! are told to.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use redis::Value;
use tempfile::TempDir;

use super::server::free_address;
use super::wire::{Connection, now_us, text};

const COUNT: usize = 3;

/// How long a master may be silent before a Sentinel considers it dead. A promotion disconnects the
/// Sentinels, which reconnect within a second: with a smaller value they would replace the new
/// master at once.
const DOWN_AFTER_MS: u32 = 2_000;

/// Twice this time must pass between two failovers.
const FAILOVER_TIMEOUT_MS: u64 = 3_000;

/// Sentinels contact each other every two seconds, and their servers every ten.
const AGREE_US: u64 = 40_000_000;

/// See the head of this file.
pub struct Sentinels {
    members: Vec<Member>,
}

/// A Sentinel. Dropping it ends the process.
struct Member {
    process: Child,
    address: SocketAddr,
    _folder: TempDir,
}

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Sentinels {
    /// Starts the Sentinels, and waits until they know the master, its only replica, and each
    /// other.
    ///
    /// # Errors
    ///
    /// If they do not start, or are not ready within 40 seconds.
    pub fn of(server: &Path, master: SocketAddr) -> Result<Self> {
        let members = (0..COUNT).map(|_| Member::start(server, master)).collect::<Result<_>>()?;
        let sentinels = Self { members };
        sentinels.wait_until_ready(master)?;
        Ok(sentinels)
    }

    /// Waits until the Sentinels would replace a master that dies.
    ///
    /// # Errors
    ///
    /// If they are not ready within 40 seconds.
    pub fn wait_until_ready(&self, master: SocketAddr) -> Result<()> {
        self.each("the Sentinels did not get ready", |sentinel| {
            let replicas = sentinel.ask("SENTINEL REPLICAS fleet")?;
            let healthy = |replica: &Value| field(replica, "flags").is_some_and(|flags| flags == "slave");
            let is_healthy = matches!(&replicas, Value::Array(all) if all.len() == 1 && all.iter().all(healthy));
            Ok(is_healthy
                && master_by(sentinel)? == Some(master)
                && sentinel.ask("SENTINEL CKQUORUM fleet").is_ok()
                && matches!(sentinel.ask("SENTINEL SENTINELS fleet")?, Value::Array(others) if others.len() == COUNT - 1))
        })
    }

    /// Tells a Sentinel to replace a live master by the replica, and waits until all have agreed.
    ///
    /// # Errors
    ///
    /// If they do not agree within 40 seconds.
    pub fn fail_over_to(&self, replica: SocketAddr) -> Result<()> {
        let first = self.members.first().context("no Sentinels")?;
        let mut sentinel = Connection::open(first.address)?;
        let (deadline_us, mut again_us, mut said) = (now_us() + AGREE_US, 0, None);
        while master_by(&mut sentinel)? != Some(replica) {
            ensure!(now_us() < deadline_us, "the Sentinel promoted no replica; it said {said:?}");
            // The command is refused during another failover. A failover that takes too long is
            // abandoned.
            if now_us() > again_us {
                again_us = now_us() + 2 * FAILOVER_TIMEOUT_MS * 1000;
                said = Some(sentinel.ask("SENTINEL FAILOVER fleet"));
            }
            thread::sleep(Duration::from_millis(20));
        }
        self.wait_for(replica)
    }

    /// Waits until all Sentinels name this master.
    ///
    /// # Errors
    ///
    /// If they do not within 40 seconds.
    pub fn wait_for(&self, master: SocketAddr) -> Result<()> {
        self.each("the Sentinels promoted no replica", |sentinel| Ok(master_by(sentinel)? == Some(master)))
    }

    fn each(&self, otherwise: &str, mut is_so: impl FnMut(&mut Connection) -> Result<bool>) -> Result<()> {
        let deadline_us = now_us() + AGREE_US;
        for member in &self.members {
            while !Connection::open(member.address).and_then(|mut sentinel| is_so(&mut sentinel)).unwrap_or(false) {
                ensure!(now_us() < deadline_us, "{otherwise}");
                thread::sleep(Duration::from_millis(20));
            }
        }
        Ok(())
    }
}

impl Member {
    fn start(server: &Path, master: SocketAddr) -> Result<Self> {
        let (folder, address) = (tempfile::tempdir()?, free_address()?);
        let configuration = folder.path().join("sentinel.conf");
        let text = format!(
            "bind 127.0.0.1\nport {}\ndir {}\nlogfile log\nsentinel monitor fleet 127.0.0.1 {} 2\n\
             sentinel down-after-milliseconds fleet {DOWN_AFTER_MS}\nsentinel failover-timeout fleet {FAILOVER_TIMEOUT_MS}\n",
            address.port(),
            folder.path().display(),
            master.port()
        );
        fs::write(&configuration, text)?;
        // The Sentinel ends with this thread, however the process ends.
        let process = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(server)
            .arg(configuration)
            .arg("--sentinel")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("cannot run {}", server.display()))?;
        Ok(Self { process, address, _folder: folder })
    }
}

/// The address of the master, according to one Sentinel.
fn master_by(sentinel: &mut Connection) -> Result<Option<SocketAddr>> {
    let Value::Array(address) = sentinel.ask("SENTINEL GET-MASTER-ADDR-BY-NAME fleet")? else { return Ok(None) };
    let words = address.into_iter().map(text).collect::<Result<Vec<_>>>()?;
    Ok(words.join(":").parse().ok())
}

/// A field of a Sentinel's description of a server.
fn field(about: &Value, name: &str) -> Option<String> {
    let Value::Array(words) = about else { return None };
    let words: Vec<String> = words.iter().cloned().map(text).collect::<Result<_>>().ok()?;
    words.chunks_exact(2).find(|pair| pair[0] == name).map(|pair| pair[1].clone())
}
