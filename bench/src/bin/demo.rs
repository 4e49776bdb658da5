//! `rlock-demo`: a thousand clients add one to a counter, each under the same lock.
//!
//! Two commands read and write the counter, so without mutual exclusion additions would be lost.
//! The exit code is 1 if one was lost, or if a waiter or the lock is left.

use std::io::{IsTerminal, stderr};
use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail, ensure};
use clap::{ArgGroup, Parser, value_parser};
use indicatif::{ProgressBar, ProgressStyle};
use rlock_bench::clock;
use rlock_bench::connection::Connection;
use rlock_bench::resp::{self, Frame};
use rlock_bench::server::{self, Server, ServerConfig};
use rlock_bench::swarm::{Outbox, Script, Swarm};

const LOCK: &[u8] = b"counter-lock";
const COUNTER: &[u8] = b"counter";
/// How many lines of progress are printed without a terminal.
const PLAIN_STEPS: usize = 10;

/// Lets many clients increment one counter under one lock, and checks that no increment is lost
#[derive(Debug, Parser)]
#[command(version)]
#[command(group(ArgGroup::new("where").required(true).args(["module", "url"])))]
struct Arguments {
    /// Start a server with this module, librlock.so
    #[arg(long, value_name = "PATH")]
    module: Option<PathBuf>,

    /// Use a running server that has the module; the keys counter and counter-lock are overwritten
    #[arg(long, value_name = "HOST:PORT")]
    url: Option<String>,

    /// Program of the server to start
    #[arg(long, value_name = "PATH", default_value = "redis-server")]
    server: PathBuf,

    /// Number of clients
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = value_parser!(u16).range(1..=10_000))]
    clients: u16,
}

/// The reply that a client waits for.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Step {
    Acquire,
    Get,
    Set,
    Release,
    Done,
}

/// The exchange of all clients with the server. Connection `i` is client `i`.
struct Counting {
    steps: Vec<Step>,
    done: usize,
    progress: Progress,
}

impl Counting {
    fn new(clients: usize) -> Self {
        Self { steps: vec![Step::Acquire; clients], done: 0, progress: Progress::new(clients) }
    }
}

impl Script for Counting {
    fn begin(&mut self, outbox: &mut Outbox) {
        for client in 0..self.steps.len() {
            let owner = owner_id(client);
            let acquire: &[&[u8]] = &[b"RLOCK.ACQUIRE", LOCK, owner.as_bytes(), b"PX", b"30000", b"BLOCK", b"0"];
            outbox.push(client, &resp::command(acquire));
        }
    }

    fn on_reply(&mut self, client: usize, reply: Frame<'_>, outbox: &mut Outbox) -> Result<()> {
        let next = match self.steps[client] {
            Step::Acquire => {
                ensure!(reply.integer()? > 0, "no token: {reply}");
                outbox.push(client, &resp::command(&[b"GET", COUNTER]));
                Step::Get
            }
            Step::Get => {
                let seen = parse_counter(reply)?;
                let next = (seen + 1).to_string();
                outbox.push(client, &resp::command(&[b"SET", COUNTER, next.as_bytes()]));
                Step::Set
            }
            Step::Set => {
                reply.expect(b"+OK\r\n")?;
                let owner = owner_id(client);
                let release: &[&[u8]] = &[b"RLOCK.RELEASE", LOCK, owner.as_bytes()];
                outbox.push(client, &resp::command(release));
                Step::Release
            }
            Step::Release => {
                reply.expect(b":0\r\n")?;
                self.done += 1;
                self.progress.show(self.done);
                Step::Done
            }
            Step::Done => bail!("unexpected reply for client {client}, which has finished: {reply}"),
        };
        self.steps[client] = next;
        Ok(())
    }

    fn finished(&self) -> bool {
        self.done == self.steps.len()
    }
}

/// A bar on a terminal, a few plain lines elsewhere.
struct Progress {
    clients: usize,
    bar: Option<ProgressBar>,
}

impl Progress {
    fn new(clients: usize) -> Self {
        let bar = stderr().is_terminal().then(|| {
            let style = ProgressStyle::with_template("{bar:40} {pos}/{len} clients")
                .expect("the template is constant and valid");
            ProgressBar::new(clients as u64).with_style(style)
        });
        Self { clients, bar }
    }

    fn show(&self, done: usize) {
        match &self.bar {
            Some(bar) if done == self.clients => bar.finish(),
            Some(bar) => bar.set_position(done as u64),
            None if done.is_multiple_of(self.clients.div_ceil(PLAIN_STEPS)) || done == self.clients => {
                eprintln!("{done} of {} clients are done", self.clients);
            }
            None => {}
        }
    }
}

fn owner_id(client: usize) -> String {
    format!("client-{client:06}")
}

fn parse_counter(reply: Frame<'_>) -> Result<usize> {
    std::str::from_utf8(reply.bulk()?)
        .ok()
        .and_then(|text| text.parse().ok())
        .with_context(|| format!("the counter is not a number: {reply}"))
}

/// Counts, prints the result, and returns whether nothing was lost and nothing is left.
fn count(address: SocketAddr, clients: usize) -> Result<bool> {
    let mut control = Connection::open(address)?;
    control.call(&[b"SET", COUNTER, b"0"])?.expect(b"+OK\r\n")?;
    let mut swarm = Swarm::connect(address, clients)?;
    println!("{clients} clients are connected");
    let mut counting = Counting::new(clients);
    let start = clock::now();
    swarm.run(&mut counting)?;
    let duration = start.elapsed();

    let counter = parse_counter(control.call(&[b"GET", COUNTER])?)?;
    let waiters = control.call(&[b"RLOCK.WAITERS", LOCK])?;
    let nobody_waits = waiters.expect(b"*0\r\n").is_ok();
    println!("waiters left      {}", if nobody_waits { "none" } else { "SOME" });
    let keys = control.call(&[b"EXISTS", LOCK])?.integer()?;
    println!("counter           {counter} of {clients}");
    println!("duration          {:.3} s", duration.as_secs_f64());
    println!("hand-overs        {:.0}/s", clients as f64 / duration.as_secs_f64());
    println!("lock left         {}", if keys == 0 { "no" } else { "YES" });
    Ok(counter == clients && nobody_waits && keys == 0)
}

fn main() -> Result<ExitCode> {
    let arguments = Arguments::parse();
    server::raise_file_limit()?;
    let passed = match (&arguments.module, &arguments.url) {
        (Some(module), _) => {
            let server = Server::start(&ServerConfig { program: arguments.server, modules: vec![module.clone()] })?;
            count(server.address(), arguments.clients.into())?
        }
        (None, Some(url)) => {
            let address = url
                .to_socket_addrs()
                .with_context(|| format!("expected HOST:PORT, got '{url}'"))?
                .next()
                .with_context(|| format!("{url} has no address"))?;
            count(address, arguments.clients.into())?
        }
        (None, None) => bail!("expected --module or --url"),
    };
    Ok(ExitCode::from(u8::from(!passed)))
}
