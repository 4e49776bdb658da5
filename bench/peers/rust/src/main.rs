//! The peers in Rust: rlock-client and rslock. bench/peers/README.md has the protocol.
//!
//! A client is a task. This program calculates nothing.

mod clients;

use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use rustix::time::{ClockId, clock_gettime};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::watch;

use clients::{Asked, Client, Clients};

const WARM_UPS: usize = 20;
/// With this many clients, the warm-up of each is short.
const MANY_CLIENTS: usize = 1000;
const WARM_UP_WAIT: Duration = Duration::from_secs(60);
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(10);

/// The driver's arguments.
#[derive(Clone, Debug, Parser)]
pub struct Arguments {
    #[arg(long)]
    pub peer: String,
    #[arg(long)]
    pub server: String,
    #[arg(long)]
    pub lock: String,
    #[arg(long)]
    pub variant: String,
    #[arg(long)]
    pub clients: usize,
    #[arg(long)]
    pub first: usize,
    #[arg(long)]
    pub locks: usize,
    #[arg(long)]
    pub key: String,
    #[arg(long)]
    pub seconds: f64,
    #[arg(long)]
    pub section_us: u64,
    #[arg(long)]
    pub lease_ms: u64,
    #[arg(long)]
    pub permits: u32,
    #[arg(long)]
    pub hold: String,
    #[arg(long)]
    pub out: PathBuf,
}

impl Arguments {
    /// Whether to take the lock and keep it.
    pub fn is_to_hold(&self) -> bool {
        self.hold == "yes"
    }
}

/// When a client asked, got the lock, began to release it, and had the answer.
type Times = [u64; 4];

/// CLOCK_MONOTONIC.
fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// The state that all clients of this process share.
struct Work {
    arguments: Arguments,
    errors: AtomicU64,
    streams: bool,
    /// When to end; set when the driver has said `go`.
    end_ns: watch::Receiver<u64>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let clients = Clients::connect(&arguments).await?;
    let (go, end_ns) = watch::channel(0);
    let streams = std::env::var("PEERS_STREAM").is_ok_and(|value| value == "1");
    let work = Arc::new(Work { arguments: arguments.clone(), errors: AtomicU64::new(0), streams, end_ns });
    let (warm, mut warmed) = tokio::sync::mpsc::channel::<()>(1);
    let mut tasks = Vec::new();
    for number in arguments.first..arguments.first + arguments.clients {
        let client = clients.client(&arguments).await?;
        tasks.push(tokio::spawn(live(number, client, Arc::clone(&work), warm.clone())));
    }
    drop(warm);
    // Each task drops its sender after its warm-up.
    while warmed.recv().await.is_some() {}
    ensure!(tasks.iter().all(|task| !task.is_finished()), "a client could not start");
    say("ready");
    let mut line = String::new();
    BufReader::new(tokio::io::stdin()).read_line(&mut line).await?;
    ensure!(line.trim() == "go", "the driver is gone");
    go.send_replace(now_ns() + (arguments.seconds * 1e9) as u64);
    let mut records = Vec::new();
    for (number, task) in (arguments.first..).zip(tasks) {
        records.push((number, task.await??));
    }
    let pairs = write(&arguments, &records)?;
    say(&format!("done {pairs} {}", work.errors.load(Ordering::Relaxed)));
    std::process::exit(0);
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // A driver that is gone needs no answer.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

fn write(arguments: &Arguments, records: &[(usize, Vec<Times>)]) -> Result<usize> {
    let file =
        std::fs::File::create(&arguments.out).with_context(|| format!("cannot create {}", arguments.out.display()))?;
    let mut file = std::io::BufWriter::new(file);
    for (number, times) in records {
        let lock = number % arguments.locks;
        for [asked, got, free, freed] in times {
            writeln!(file, "{number},{lock},{asked},{got},{free},{freed}")?;
        }
    }
    file.flush()?;
    Ok(records.iter().map(|(_, times)| times.len()).sum())
}

async fn live(
    number: usize,
    client: Client,
    work: Arc<Work>,
    warm: tokio::sync::mpsc::Sender<()>,
) -> Result<Vec<Times>> {
    let arguments = &work.arguments;
    let warm_key = format!("{}:warm:{number}", arguments.key);
    for _ in 0..if arguments.clients < MANY_CLIENTS { WARM_UPS } else { 2 } {
        match client.acquire(&warm_key, WARM_UP_WAIT).await {
            Ok(Asked::Held(held)) => held.release().await?,
            Ok(Asked::InVain) => {}
            Err(error) => {
                eprintln!("client {number} could not start: {error}");
                return Err(error);
            }
        }
    }
    drop(warm);
    let mut end_ns = work.end_ns.clone();
    let end_ns = *end_ns.wait_for(|end_ns| *end_ns > 0).await?;
    let lock = number % arguments.locks;
    let key = format!("{}:{lock}", arguments.key);
    if arguments.is_to_hold() {
        let held = client.acquire(&key, WARM_UP_WAIT).await?;
        say("held");
        tokio::time::sleep(Duration::from_nanos(end_ns.saturating_sub(now_ns()))).await;
        drop(held);
        return Ok(Vec::new());
    }
    let mut records = Vec::new();
    loop {
        let asked = now_ns();
        if asked >= end_ns {
            return Ok(records);
        }
        match pair(&client, &key, &work, (number, lock), end_ns).await {
            Ok(Some([got, free, freed])) => records.push([asked, got, free, freed]),
            Ok(None) => {}
            Err(error) => {
                if work.errors.fetch_add(1, Ordering::Relaxed) == 0 {
                    eprintln!("client {number}: {error}");
                }
                tokio::time::sleep(PAUSE_AFTER_ERROR).await;
            }
        }
    }
}

/// Takes the lock and releases it. Returns `None` on a timeout.
async fn pair(
    client: &Client,
    key: &str,
    work: &Work,
    (number, lock): (usize, usize),
    end_ns: u64,
) -> Result<Option<[u64; 3]>> {
    let wait = Duration::from_nanos(end_ns.saturating_sub(now_ns()));
    let Asked::Held(held) = client.acquire(key, wait).await? else { return Ok(None) };
    let got = now_ns();
    if work.streams {
        say(&format!("got {number} {lock} {got}"));
    }
    if work.arguments.section_us > 0 {
        tokio::time::sleep(Duration::from_micros(work.arguments.section_us)).await;
    }
    let free = now_ns();
    held.release().await?;
    Ok(Some([got, free, now_ns()]))
}
