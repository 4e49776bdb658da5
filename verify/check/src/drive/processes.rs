//! Clients in their own processes, which can be stopped with SIGSTOP for longer than their leases.
//!
//! They use the crate `rlock-client`, because the client decides how long a lock counts as held.
//! Each client checks its guard again and again, and records the last time at which the guard
//! reported the lock as held. The rules check these times. The other clients of a campaign compute
//! their leases themselves.
//!
//! A process of clients is this program itself, called with [`COMMAND`]. It writes a line for each
//! acquisition.

use std::io::{BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use anyhow::{Context, Result, anyhow, ensure};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use rlock_client::{Client, Guard, Lock};

use super::wire::now_us;
use crate::history::{Call, Key, Kind, Mode, Operation, Outcome};

/// The subcommand that runs a process of clients.
pub const COMMAND: &str = "clients";

/// The number of clients in each process.
const CLIENTS: u64 = 8;

/// The lease of their guards, which renew it. A process is usually stopped for longer.
const LEASE: Duration = Duration::from_millis(300);

/// How long they wait for a lock.
const WAIT: Duration = Duration::from_secs(1);

/// The longest time for which they keep a lock.
const LONGEST_HOLD_MS: u64 = 400;

/// The longest pause between two checks of a guard.
const ASKS_EVERY_MS: u64 = 3;

/// The lowest number of their owners.
pub(super) const FIRST_OWNER: u64 = 1 << 62;

/// The arguments of a process of clients.
#[derive(Clone, Debug, clap::Args)]
pub struct Order {
    /// The address of the server.
    #[arg(long)]
    address: SocketAddr,
    /// The end of the work, on the steady clock.
    #[arg(long)]
    until_us: u64,
    /// The number of the process.
    #[arg(long)]
    number: u64,
    /// The seed of the clients' random choices.
    #[arg(long)]
    seed: u64,
    /// The locks, each as its index among the keys of the campaign, `m` for a mutex or `f` for a
    /// fair lock, and its name: `3:m:name`.
    keys: Vec<String>,
}

impl Order {
    /// Arguments for work until a moment, on those keys of a campaign that these clients use.
    #[must_use]
    pub fn of(address: SocketAddr, until_us: u64, number: u64, seed: u64, keys: &[Key]) -> Self {
        let keys = keys.iter().enumerate().filter_map(|(number, key)| Target::of(number, key)).collect();
        Self { address, until_us, number, seed, keys }
    }
}

/// A lock to compete for.
#[derive(Clone, Debug)]
struct Target {
    key: u32,
    is_fair: bool,
    name: String,
}

impl Target {
    fn read(text: &str) -> Result<Self> {
        let mut parts = text.splitn(3, ':');
        let mut next =
            || parts.next().with_context(|| format!("{text} is not a key; expected INDEX:m:NAME or INDEX:f:NAME"));
        Ok(Self { key: next()?.parse()?, is_fair: next()? == "f", name: next()?.to_owned() })
    }

    /// The text of a key of a campaign, if these clients use it.
    fn of(number: usize, key: &Key) -> Option<String> {
        let kind = match key.kind {
            Kind::Mutex => "m",
            Kind::Fair => "f",
            Kind::RwLock | Kind::Semaphore => return None,
        };
        (!key.name.starts_with("own")).then(|| format!("{number}:{kind}:{}", key.name))
    }
}

/// An acquisition, as a client saw it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    key: u32,
    owner: u64,
    /// 0 if the client does not know of a grant: the lease may have expired before the client read
    /// the answer.
    token: u64,
    sent_us: u64,
    answered_us: u64,
    /// When the guard last said that it holds; `sent_us` if it never did.
    held_us: u64,
}

impl Seen {
    fn write(self) -> String {
        let Self { key, owner, token, sent_us, answered_us, held_us } = self;
        format!("{key} {owner} {token} {sent_us} {answered_us} {held_us}")
    }

    fn read(line: &str) -> Result<Self> {
        let numbers: Vec<u64> = line.split(' ').map(str::parse).collect::<Result<_, _>>()?;
        let [key, owner, token, sent_us, answered_us, held_us] =
            numbers.try_into().map_err(|_| anyhow!("expected six numbers, received {line:?}"))?;
        Ok(Self { key: u32::try_from(key)?, owner, token, sent_us, answered_us, held_us })
    }

    /// The acquisition as an operation. Its lease is the time for which the client believed that it
    /// held.
    fn operation(self) -> Operation {
        let Self { key, owner, token, sent_us, answered_us, held_us } = self;
        let lasts_us = if token == 0 { LEASE.as_micros() as u64 } else { held_us.saturating_sub(sent_us) };
        let call = Call::Acquire {
            count: 1,
            lease_ms: lasts_us / 1000,
            block_ms: None,
            request_id: None,
            keeps_place: false,
            is_once: false,
        };
        let outcome = if token == 0 { Outcome::Unknown } else { Outcome::Granted(token) };
        Operation { key, owner, mode: Mode::Exclusive, sent_us, answered_us, order: 0, call, outcome }
    }
}

/// The parent's handle of a process of clients.
pub struct Process {
    child: Child,
    reader: JoinHandle<Result<Vec<Operation>>>,
}

impl Process {
    /// Starts a process.
    ///
    /// # Errors
    ///
    /// If it does not start.
    pub fn start(program: &Path, order: &Order) -> Result<Self> {
        let Order { address, until_us, number, seed, keys } = order;
        // The kernel kills it when this thread ends, however that happens.
        let mut child = Command::new("setpriv")
            .args(["--pdeathsig", "KILL", "--"])
            .arg(program)
            .args([COMMAND, "--address", &address.to_string(), "--until-us", &until_us.to_string()])
            .args(["--number", &number.to_string(), "--seed", &seed.to_string()])
            .args(keys)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start a process of clients")?;
        let stdout = child.stdout.take().context("its output is piped")?;
        let reader = thread::spawn(move || {
            let lines = BufReader::new(stdout).lines();
            lines.map(|line| Ok(Seen::read(&line?)?.operation())).collect()
        });
        Ok(Self { child, reader })
    }

    /// Stops the process for a while.
    ///
    /// # Errors
    ///
    /// If it cannot be signalled.
    pub fn stand_still(&self, lasts: Duration) -> Result<()> {
        super::server::signal(&self.child, "-STOP")?;
        thread::sleep(lasts);
        super::server::signal(&self.child, "-CONT")
    }

    /// Waits for the process to end, and returns the operations of its clients.
    ///
    /// # Errors
    ///
    /// If the process has failed.
    pub fn finish(mut self) -> Result<Vec<Operation>> {
        let operations = self.reader.join().map_err(|_| anyhow!("the reader has panicked"))??;
        let status = self.child.wait()?;
        ensure!(status.success(), "a process of clients has failed: {status}");
        Ok(operations)
    }
}

/// Runs a process of clients.
///
/// # Errors
///
/// If a key cannot be read, or the server cannot be reached at the start.
pub fn work(order: &Order) -> Result<()> {
    let targets: Arc<[Target]> = order.keys.iter().map(|text| Target::read(text)).collect::<Result<_>>()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(async {
        let mut clients = tokio::task::JoinSet::new();
        for number in 0..CLIENTS {
            let (number, targets) = (order.number * CLIENTS + number, Arc::clone(&targets));
            let random = StdRng::seed_from_u64(order.seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let client = Client::connect(&format!("redis://{}", order.address)).await?;
            clients.spawn(compete(client, targets, random, FIRST_OWNER + (number << 40), order.until_us));
        }
        while let Some(ended) = clients.join_next().await {
            ended??;
        }
        Ok(())
    })
}

/// Runs one client. It repeats whatever fails.
async fn compete(
    client: Client,
    targets: Arc<[Target]>,
    mut random: StdRng,
    mut owner: u64,
    until_us: u64,
) -> Result<()> {
    while now_us() < until_us {
        let target = targets.get(random.random_range(0..targets.len())).context("there are locks")?;
        owner += 1;
        let sent_us = now_us();
        let seen = if target.is_fair {
            hold(client.fair_lock(&target.name), &mut random, sent_us).await
        } else {
            hold(client.lock(&target.name), &mut random, sent_us).await
        };
        let (token, answered_us, held_us) = seen.unwrap_or_else(|| (0, now_us(), sent_us));
        let key = target.key;
        // One write per line, so that the lines of clients do not mix.
        writeln!(std::io::stdout().lock(), "{}", Seen { key, owner, token, sent_us, answered_us, held_us }.write())?;
        if seen.is_none() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    client.close().await?;
    Ok(())
}

/// Acquires a lock, keeps it for a while or until it is lost, and releases it. Returns its token,
/// the time of the grant, and the last time at which the guard said that it holds.
async fn hold<K: rlock_client::Kind>(lock: Lock<K>, random: &mut StdRng, sent_us: u64) -> Option<(u64, u64, u64)> {
    let guard: Guard<K> = lock.lease(LEASE).acquire_timeout(WAIT).await.ok()?;
    let (granted_us, token) = (now_us(), guard.token());
    let gives_up_us = granted_us + 1000 * random.random_range(0..=LONGEST_HOLD_MS);
    let mut held_us = sent_us;
    loop {
        // If the process is stopped between these two calls, the guard answers later than the
        // recorded time. A guard that holds then also held at the recorded time.
        let asked_us = now_us();
        if !guard.is_held() {
            break;
        }
        held_us = asked_us;
        if asked_us >= gives_up_us {
            break;
        }
        tokio::time::sleep(Duration::from_millis(random.random_range(0..=ASKS_EVERY_MS))).await;
    }
    // The lock may be lost.
    let _ = guard.release().await;
    Some((token, granted_us, held_us))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lease_of_an_operation_is_the_time_of_the_belief() {
        let seen = Seen { key: 3, owner: 7, token: 9, sent_us: 10_000, answered_us: 12_000, held_us: 35_000 };
        assert_eq!(Seen::read(&seen.write()).expect("a line"), seen);
        let one = seen.operation();
        let Call::Acquire { lease_ms, .. } = one.call else { panic!("it acquires") };
        assert_eq!((one.key, one.owner, one.token(), lease_ms), (3, 7, Some(9), 25));
        let one = Seen { token: 0, held_us: 10_000, ..seen }.operation();
        let Call::Acquire { lease_ms, .. } = one.call else { panic!("it acquires") };
        assert_eq!(
            (one.outcome, u128::from(lease_ms)),
            (Outcome::Unknown, LEASE.as_millis()),
            "it may have been granted"
        );
    }

    #[test]
    fn keys_survive_writing_and_reading() {
        let key = |name: &str, kind| Key { name: name.into(), kind, permits: 1 };
        let text = Target::of(4, &key("fair:0", Kind::Fair)).expect("a key for them");
        let target = Target::read(&text).expect("a key");
        assert_eq!((target.key, target.is_fair, target.name.as_str()), (4, true, "fair:0"));
        assert!(
            Target::of(4, &key("own-1", Kind::Mutex)).is_none() && Target::of(4, &key("s", Kind::Semaphore)).is_none()
        );
    }
}
