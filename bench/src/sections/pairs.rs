//! The server's costs of a pair of commands: one acquires a free lock, the other releases it.
//!
//! All sides run pipelined on one connection, in batches over the same keys and owners. So system
//! calls are a small and equal part of the costs, and the commands themselves the large part.

use std::time::Duration;

use anyhow::{Result, ensure};
use rlock_bench::connection::Connection;
use rlock_bench::resp::{self, Frame};
use rlock_bench::server::Server;

use crate::names;
use crate::report::{Figure, Series, Unit};

const KEYS: usize = 1000;
const BATCH_PAIRS: usize = 200;
const BATCHES: usize = 250;
/// Batches that each side runs before the measured ones of a round, to load its code and data into
/// the CPU's caches.
const WARM_UP_BATCHES: usize = 10;
/// Not above the longest lease in `failover`.
const LEASE_MS: &[u8] = b"10000";
const REWRITE_TIMEOUT: Duration = Duration::from_secs(30);

/// The usual script that deletes a lock only if the caller still holds it.
const COMPARE_AND_DELETE: &[u8] = b"if redis.call('get', KEYS[1]) == ARGV[1] then \
    return redis.call('del', KEYS[1]) else return 0 end";

/// A re-entrant lock as client libraries build it: a hash that counts the holds of an owner. Nil
/// means that the lock was acquired; a number is the remaining lease of another owner, in
/// milliseconds.
const HASH_ACQUIRE: &[u8] = b"local lock, owner, lease = KEYS[1], ARGV[1], ARGV[2] \
    local is_mine = redis.call('exists', lock) == 0 or redis.call('hexists', lock, owner) == 1 \
    if not is_mine then return redis.call('pttl', lock) end \
    redis.call('hincrby', lock, owner, 1) \
    redis.call('pexpire', lock, lease) \
    return nil";

/// The release of that lock: the last hold deletes the hash, and publishes to the waiters.
const HASH_RELEASE: &[u8] = b"local lock, channel, owner, lease = KEYS[1], KEYS[2], ARGV[1], ARGV[2] \
    if redis.call('hexists', lock, owner) == 0 then return nil end \
    if redis.call('hincrby', lock, owner, -1) > 0 then redis.call('pexpire', lock, lease) return 0 end \
    redis.call('del', lock) \
    redis.call('publish', channel, 'free') \
    return 1";

/// The commands that acquire and release a lock.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Side {
    /// RLOCK.ACQUIRE and RLOCK.RELEASE.
    Rlock,
    /// SET NX PX and DEL.
    SetDel,
    /// SET NX PX and compare-and-delete, by the script's digest.
    SetScript,
    /// SET NX PX and DELEX … IFEQ, of Redis 8.4 and newer.
    SetDelEx,
    /// SET NX PX and DELIFEQ, of Valkey 9.
    SetDelIfEq,
    /// Two scripts on a hash, by their digests.
    HashScripts,
    /// Two commands of a module that do nothing.
    Noop,
    /// The commands of the bare module, with this suffix.
    Bare(&'static str),
}

impl Side {
    /// The name in the table.
    pub fn name(self) -> String {
        match self {
            Self::Rlock => "ACQUIRE + RELEASE".to_owned(),
            Self::SetDel => "SET NX PX + DEL".to_owned(),
            Self::SetScript => "SET NX PX + EVALSHA".to_owned(),
            Self::SetDelEx => "SET NX PX + DELEX IFEQ".to_owned(),
            Self::SetDelIfEq => "SET NX PX + DELIFEQ".to_owned(),
            Self::HashScripts => "2 EVALSHA on a hash".to_owned(),
            Self::Noop => "2 BARE.NOOP".to_owned(),
            Self::Bare(service) => format!("BARE.ACQUIRE{service} + BARE.RELEASE{service}"),
        }
    }

    fn check_taken(self, reply: Frame<'_>, last_token: &mut i64) -> Result<()> {
        match self {
            Self::Rlock => {
                let token = reply.integer()?;
                ensure!(token > *last_token, "token {token} after {last_token}");
                *last_token = token;
                Ok(())
            }
            Self::SetDel | Self::SetScript | Self::SetDelEx | Self::SetDelIfEq => reply.expect(b"+OK\r\n"),
            Self::HashScripts => reply.expect(b"$-1\r\n"),
            Self::Noop => reply.expect(b":0\r\n"),
            Self::Bare(_) => reply.expect(b":1\r\n"),
        }
    }

    fn check_given_back(self, reply: Frame<'_>) -> Result<()> {
        match self {
            Self::Rlock | Self::Noop | Self::Bare(_) => reply.expect(b":0\r\n"),
            Self::SetDel | Self::SetScript | Self::SetDelEx | Self::SetDelIfEq | Self::HashScripts => {
                reply.expect(b":1\r\n")
            }
        }
    }
}

/// The listener to the changes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Listener {
    /// None.
    None,
    /// The append-only file, flushed to the disk once a second.
    AppendOnlyFile,
}

impl Listener {
    /// The name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "no listener",
            Self::AppendOnlyFile => "AOF everysec",
        }
    }
}

struct Name {
    key: String,
    owner: String,
    channel: String,
}

struct Digests {
    compare_and_delete: Vec<u8>,
    hash_acquire: Vec<u8>,
    hash_release: Vec<u8>,
}

/// Runs sides in turns.
pub struct Pairs {
    connection: Connection,
    names: Vec<Name>,
    digests: Digests,
    /// The last token. Tokens rise strictly, so each must be above it.
    last_token: i64,
    granted: usize,
}

impl Pairs {
    /// Connects, and loads the scripts.
    pub fn connect(server: &mut Server) -> Result<Self> {
        let mut connection = server.connect()?;
        let mut load =
            |script: &[u8]| -> Result<Vec<u8>> { Ok(connection.call(&[b"SCRIPT", b"LOAD", script])?.bulk()?.to_vec()) };
        let digests = Digests {
            compare_and_delete: load(COMPARE_AND_DELETE)?,
            hash_acquire: load(HASH_ACQUIRE)?,
            hash_release: load(HASH_RELEASE)?,
        };
        let names = (0..KEYS).map(|index| {
            let key = names::lock_key(index);
            Name { channel: format!("freed:{{{key}}}"), key, owner: names::owner_id(index) }
        });
        Ok(Self { connection, names: names.collect(), digests, last_token: 0, granted: 0 })
    }

    /// Measures the server's CPU time per pair, in microseconds, of each side in each round.
    pub fn measure(
        &mut self,
        server: &mut Server,
        listener: Listener,
        sides: &[Side],
        rounds: usize,
    ) -> Result<Vec<Series>> {
        if listener == Listener::AppendOnlyFile {
            for [name, value] in
                [["auto-aof-rewrite-percentage", "0"], ["appendfsync", "everysec"], ["appendonly", "yes"]]
            {
                configure(server, name, value)?;
            }
            server.wait_for_info("aof_rewrite_in_progress", 0, REWRITE_TIMEOUT)?;
        }
        let mut costs_us = vec![Series::default(); sides.len()];
        for _ in 0..rounds {
            for (side, costs_us) in sides.iter().zip(&mut costs_us) {
                self.run(*side, WARM_UP_BATCHES)?;
                let before_ns = server.main_thread_cpu_ns()?;
                self.run(*side, BATCHES)?;
                let cpu_ns = server.main_thread_cpu_ns()? - before_ns;
                costs_us.push(cpu_ns as f64 / 1e3 / (BATCHES * BATCH_PAIRS) as f64);
                server.ensure_no_keys()?;
            }
            if listener == Listener::AppendOnlyFile {
                shorten_append_only_file(server)?;
            }
        }
        if listener == Listener::AppendOnlyFile {
            configure(server, "appendonly", "no")?;
        }
        self.ensure_all_were_granted(server)?;
        Ok(costs_us)
    }

    /// Runs `batches` batches of pairs, and checks each before it sends the next.
    fn run(&mut self, side: Side, batches: usize) -> Result<()> {
        let mut commands = Vec::new();
        let mut names = self.names.iter().cycle();
        for _ in 0..batches {
            commands.clear();
            for name in names.by_ref().take(BATCH_PAIRS) {
                push_pair(&mut commands, side, name, &self.digests);
            }
            self.connection.send(&commands)?;
            for _ in 0..BATCH_PAIRS {
                side.check_taken(self.connection.reply()?, &mut self.last_token)?;
                side.check_given_back(self.connection.reply()?)?;
            }
        }
        if side == Side::Rlock {
            self.granted += batches * BATCH_PAIRS;
        }
        Ok(())
    }

    /// Fails unless the module has counted exactly the grants that the client has received.
    fn ensure_all_were_granted(&self, server: &mut Server) -> Result<()> {
        let (granted, expected) = (server.info_number("rlock_granted_at_once")?, self.granted as u64);
        ensure!(granted == expected, "the module counted {granted} grants, the client {expected}");
        Ok(())
    }
}

/// The figure of a side for a line of the table.
pub fn figure(side: Side, sides: &[Side], costs_us: &[Series]) -> Figure {
    let none = Series::default();
    let costs_us = sides.iter().zip(costs_us).find(|(candidate, _)| **candidate == side);
    Figure::new(side.name(), Unit::Us, costs_us.map_or(&none, |(_, costs_us)| costs_us))
}

fn push_pair(out: &mut Vec<u8>, side: Side, name: &Name, digests: &Digests) {
    let (key, owner) = (name.key.as_bytes(), name.owner.as_bytes());
    match side {
        Side::Rlock => {
            resp::push_command(out, &[b"RLOCK.ACQUIRE", key, owner, b"PX", LEASE_MS]);
            resp::push_command(out, &[b"RLOCK.RELEASE", key, owner]);
        }
        Side::SetDel => {
            resp::push_command(out, &[b"SET", key, owner, b"NX", b"PX", LEASE_MS]);
            resp::push_command(out, &[b"DEL", key]);
        }
        Side::SetScript => {
            resp::push_command(out, &[b"SET", key, owner, b"NX", b"PX", LEASE_MS]);
            resp::push_command(out, &[b"EVALSHA", &digests.compare_and_delete, b"1", key, owner]);
        }
        Side::SetDelEx => {
            resp::push_command(out, &[b"SET", key, owner, b"NX", b"PX", LEASE_MS]);
            resp::push_command(out, &[b"DELEX", key, b"IFEQ", owner]);
        }
        Side::SetDelIfEq => {
            resp::push_command(out, &[b"SET", key, owner, b"NX", b"PX", LEASE_MS]);
            resp::push_command(out, &[b"DELIFEQ", key, owner]);
        }
        Side::HashScripts => {
            resp::push_command(out, &[b"EVALSHA", &digests.hash_acquire, b"1", key, owner, LEASE_MS]);
            let channel = name.channel.as_bytes();
            resp::push_command(out, &[b"EVALSHA", &digests.hash_release, b"2", key, channel, owner, LEASE_MS]);
        }
        Side::Noop => {
            resp::push_command(out, &[b"BARE.NOOP", key, owner]);
            resp::push_command(out, &[b"BARE.NOOP", key, owner]);
        }
        Side::Bare(service) => {
            let (acquire, release) = (format!("BARE.ACQUIRE{service}"), format!("BARE.RELEASE{service}"));
            resp::push_command(out, &[acquire.as_bytes(), key, owner, b"PX", LEASE_MS]);
            resp::push_command(out, &[release.as_bytes(), key, owner]);
        }
    }
}

fn configure(server: &mut Server, name: &str, value: &str) -> Result<()> {
    server.control().call(&[b"CONFIG", b"SET", name.as_bytes(), value.as_bytes()])?.expect(b"+OK\r\n")
}

/// Rewrites the append-only file: a round writes hundreds of megabytes, and the rewrite frees them.
fn shorten_append_only_file(server: &mut Server) -> Result<()> {
    server.control().call(&[b"BGREWRITEAOF"])?;
    server.wait_for_info("aof_rewrite_in_progress", 0, REWRITE_TIMEOUT)
}
