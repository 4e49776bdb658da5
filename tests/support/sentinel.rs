//! Three Sentinels that watch a primary and promote a replica when the primary is gone.

use std::fs;
use std::process::{Command as Process, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use super::client::Client;
use super::process::OwnedProcess;
use super::server::free_port;
use super::{Reply, eventually, program};

/// How long a primary may be silent before a Sentinel considers it dead. A promotion closes the
/// Sentinels' connections, and they reconnect within one second. With a shorter time they would
/// replace the new primary at once.
const DOWN_AFTER_MS: u32 = 2000;

/// Sentinels discover each other every 2 seconds, and poll their servers every 10 seconds.
const DEADLINE: Duration = Duration::from_secs(30);

const COUNT: usize = 3;

/// Three Sentinels. Dropping the value ends them, even if the test fails.
pub struct Sentinels {
    members: Vec<(OwnedProcess, u16)>,
    folder: TempDir,
}

impl Sentinels {
    /// Starts Sentinels for a primary whose replicas are already attached.
    #[track_caller]
    pub fn of(primary: u16, replicas: usize) -> Sentinels {
        Sentinels::with(primary, replicas, "")
    }

    /// Like [`of`](Self::of), with extra lines for the configuration files.
    #[track_caller]
    pub fn with(primary: u16, replicas: usize, lines: &str) -> Sentinels {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let members = (0..COUNT).map(|number| {
            let port = free_port();
            let path = folder.path().join(number.to_string());
            fs::create_dir(&path).expect("a folder");
            let configuration = format!(
                "bind 127.0.0.1\nport {port}\ndir {dir}\nlogfile {dir}/log\nsentinel monitor fleet 127.0.0.1 {primary} 2\n\
                 sentinel down-after-milliseconds fleet {DOWN_AFTER_MS}\nsentinel failover-timeout fleet 5000\n\
                 sentinel parallel-syncs fleet 5\n{lines}\n",
                dir = path.display()
            );
            fs::write(path.join("sentinel.conf"), configuration).expect("a configuration file");
            let child = Process::new(program::server())
                .arg(path.join("sentinel.conf"))
                .arg("--sentinel")
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .expect("a Sentinel starts");
            (OwnedProcess::new(child), port)
        });
        let sentinels = Sentinels { members: members.collect(), folder };
        for (_, port) in &sentinels.members {
            eventually(DEADLINE, || Client::connect(*port).is_ok());
        }
        sentinels.wait_until_ready(primary, replicas);
        sentinels
    }

    /// The ports of the Sentinels.
    #[allow(dead_code, reason = "the tests of the client use it")]
    pub fn ports(&self) -> impl Iterator<Item = u16> {
        self.members.iter().map(|(_, port)| *port)
    }

    /// The port of the primary, as the first Sentinel reports it.
    pub fn primary(&self) -> Option<u16> {
        primary_by(&mut Client::connect(self.members[0].1).ok()?)
    }

    /// Waits until all Sentinels agree on the primary, its healthy replicas, and each other. From
    /// then on they replace a primary that dies.
    #[track_caller]
    pub fn wait_until_ready(&self, primary: u16, replicas: usize) {
        for (_, port) in &self.members {
            let mut client = Client::connect(*port).expect("the Sentinel accepts connections");
            eventually(DEADLINE, || {
                let healthy = |flags: Reply| flags == "slave";
                let known = client.call("SENTINEL REPLICAS fleet");
                primary_by(&mut client) == Some(primary)
                    && known.array().iter().filter(|replica| healthy(replica.field("flags"))).count() == replicas
                    && !matches!(client.call("SENTINEL CKQUORUM fleet"), Reply::Error(_))
                    && client.call("SENTINEL SENTINELS fleet").array().len() == COUNT - 1
            });
        }
    }
}

impl Drop for Sentinels {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = fs::read_to_string(self.folder.path().join("0/log")).unwrap_or_default();
            let lines: Vec<_> = log.lines().collect();
            eprintln!("-- from the log of the first Sentinel --");
            eprintln!("{}", lines[lines.len().saturating_sub(60)..].join("\n"));
        }
    }
}

fn primary_by(client: &mut Client) -> Option<u16> {
    match client.call("SENTINEL GET-MASTER-ADDR-BY-NAME fleet") {
        Reply::Array(address) => address[1].text().parse().ok(),
        _ => None,
    }
}
