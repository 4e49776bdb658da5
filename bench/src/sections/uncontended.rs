//! What it costs the server to acquire and release a lock that nobody else wants.
//!
//! All sides run pipelined on one connection, in batches over the same keys and owners, so that system
//! calls are a small and equal part of the cost and the commands themselves the large one.

use anyhow::{Result, ensure};
use rlock_bench::connection::Connection;
use rlock_bench::resp::{self, Frame};
use rlock_bench::server::Server;

use crate::names;
use crate::report::{Aim, Figure, Line, Series, Unit};

const KEYS: usize = 1000;
const BATCH_PAIRS: usize = 200;
const BATCHES: usize = 500;
/// Batches that a side runs unmeasured at the beginning of its round, to have its own code and data in
/// the CPU's caches.
const WARM_UP_BATCHES: usize = 10;
const LEASE_MS: &[u8] = b"30000";

/// The usual script that deletes a lock only if it is still one's own.
const COMPARE_AND_DELETE: &[u8] = b"if redis.call('get', KEYS[1]) == ARGV[1] then \
    return redis.call('del', KEYS[1]) else return 0 end";

/// What takes and gives back a lock.
enum Side {
    /// RLOCK.ACQUIRE and RLOCK.RELEASE; knows the last token.
    Rlock(i64),
    /// SET NX PX and DEL.
    SetDel,
    /// SET NX PX and compare-and-delete, by the script's digest.
    SetScript(Vec<u8>),
    /// Twice NOOP.NOOP.
    Noop,
}

impl Side {
    fn name(&self) -> &'static str {
        match self {
            Self::Rlock(_) => "ACQUIRE + RELEASE",
            Self::SetDel => "SET NX PX + DEL",
            Self::SetScript(_) => "SET NX PX + EVALSHA",
            Self::Noop => "2 NOOP.NOOP",
        }
    }

    fn push_pair(&self, out: &mut Vec<u8>, key: &[u8], owner: &[u8]) {
        match self {
            Self::Rlock(_) => {
                resp::push_command(out, &[b"RLOCK.ACQUIRE", key, owner, b"PX", LEASE_MS]);
                resp::push_command(out, &[b"RLOCK.RELEASE", key, owner]);
            }
            Self::SetDel => {
                resp::push_command(out, &[b"SET", key, owner, b"NX", b"PX", LEASE_MS]);
                resp::push_command(out, &[b"DEL", key]);
            }
            Self::SetScript(digest) => {
                resp::push_command(out, &[b"SET", key, owner, b"NX", b"PX", LEASE_MS]);
                resp::push_command(out, &[b"EVALSHA", digest, b"1", key, owner]);
            }
            Self::Noop => {
                resp::push_command(out, &[b"NOOP.NOOP", key, owner]);
                resp::push_command(out, &[b"NOOP.NOOP", key, owner]);
            }
        }
    }

    /// Checks that the lock was taken. Tokens rise strictly, so each must pass the one before.
    fn check_taken(&mut self, reply: Frame<'_>) -> Result<()> {
        match self {
            Self::Rlock(last_token) => {
                let token = reply.integer()?;
                ensure!(token > *last_token, "token {token} after {last_token}");
                *last_token = token;
                Ok(())
            }
            Self::SetDel | Self::SetScript(_) => reply.expect(b"+OK\r\n"),
            Self::Noop => reply.expect(b":0\r\n"),
        }
    }

    /// Checks that the lock was given back.
    fn check_given_back(&self, reply: Frame<'_>) -> Result<()> {
        match self {
            Self::Rlock(_) | Self::Noop => reply.expect(b":0\r\n"),
            Self::SetDel | Self::SetScript(_) => reply.expect(b":1\r\n"),
        }
    }

    /// Runs `batches` batches of pairs, each checked before the next is sent.
    fn run(&mut self, connection: &mut Connection, names: &[Name], batches: usize) -> Result<()> {
        let mut commands = Vec::new();
        let mut names = names.iter().cycle();
        for _ in 0..batches {
            commands.clear();
            for name in names.by_ref().take(BATCH_PAIRS) {
                self.push_pair(&mut commands, name.key.as_bytes(), name.owner.as_bytes());
            }
            connection.send(&commands)?;
            for _ in 0..BATCH_PAIRS {
                self.check_taken(connection.reply()?)?;
                self.check_given_back(connection.reply()?)?;
            }
        }
        Ok(())
    }
}

struct Name {
    key: String,
    owner: String,
}

/// Measures the server's CPU time per pair.
pub fn measure(server: &mut Server, rounds: usize, with_noop: bool) -> Result<Vec<Line>> {
    let script = server.control().call(&[b"SCRIPT", b"LOAD", COMPARE_AND_DELETE])?;
    let digest = script.bulk()?.to_vec();
    let mut sides = vec![Side::Rlock(0), Side::SetDel, Side::SetScript(digest)];
    if with_noop {
        sides.push(Side::Noop);
    }
    let names: Vec<Name> =
        (0..KEYS).map(|index| Name { key: names::lock_key(index), owner: names::owner_id(index) }).collect();
    let mut connection = server.connect()?;
    let mut costs_us = vec![Series::default(); sides.len()];
    for _ in 0..rounds {
        for (side, costs_us) in sides.iter_mut().zip(&mut costs_us) {
            side.run(&mut connection, &names, WARM_UP_BATCHES)?;
            let before_ns = server.main_thread_cpu_ns()?;
            side.run(&mut connection, &names, BATCHES)?;
            let cpu_ns = server.main_thread_cpu_ns()? - before_ns;
            costs_us.push(cpu_ns as f64 / 1e3 / (BATCHES * BATCH_PAIRS) as f64);
            server.ensure_no_keys()?;
        }
    }
    ensure_all_were_granted(server, rounds)?;

    let figure = |index: usize| Figure::new(sides[index].name(), Unit::Us, &costs_us[index]);
    let mut lines = vec![
        Line::ratio("server CPU per pair, against SET + DEL", figure(0), figure(1)).aim(Aim::AtMost(1.15)),
        Line::ratio("server CPU per pair, against SET + script", figure(0), figure(2)).aim(Aim::AtMost(0.45)),
    ];
    if with_noop {
        let measure = "server CPU per pair, against two empty module commands";
        lines.push(Line::ratio(measure, figure(0), figure(3)));
    }
    Ok(lines)
}

/// The module must have counted exactly the grants that the client has seen.
fn ensure_all_were_granted(server: &mut Server, rounds: usize) -> Result<()> {
    let granted = server.info_number("rlock_granted_at_once")?;
    let expected = rounds * (WARM_UP_BATCHES + BATCHES) * BATCH_PAIRS;
    ensure!(granted == expected as u64, "the module counted {granted} grants, the client {expected}");
    Ok(())
}
