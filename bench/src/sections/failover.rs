//! The costs of exclusion through failovers: the time from the death of a master to the next grant,
//! and the time that the right to grant adds to each grant while nothing fails.
//!
//! A replica is promoted at once, without a Sentinel or a cluster that detects the death. So the
//! result is the time that the module adds to theirs.

use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rlock_bench::clock;
use rlock_bench::resp;
use rlock_bench::server::{Server, ServerConfig};
use rlock_bench::swarm::{Idling, Swarm};

use super::handover;
use super::pairs::{Listener, Pairs, Side};
use super::relay::Prize;
use crate::report::{Aim, Figure, Line, Series, Statistic, Unit};

/// The longest leases of the profiles in docs/operations/failover.md, in seconds.
const LEASES_S: [u64; 3] = [10, 15, 53];
const REPLICAS: usize = 2;
const FOLLOW_TIMEOUT: Duration = Duration::from_secs(60);
const AIM: Aim = Aim::AtMost(1.05);

/// Measures the time after a death, and the cost of a grant.
pub fn measure(config: &ServerConfig, rounds: usize, deaths: usize) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for lease_s in LEASES_S {
        let (mut renewed, mut granted) = (Series::default(), Series::default());
        for _ in 0..deaths {
            let (renewed_ms, granted_ms) = death(config, lease_s)?;
            renewed.push(renewed_ms);
            granted.push(granted_ms);
        }
        let what = |until| format!("from the promotion to {until}, leases of at most {lease_s} s, {deaths} times");
        lines.push(Line::value(what("the next grant"), Statistic::Median, Unit::Ms, granted));
        lines.push(Line::value(what("the first renewal"), Statistic::Median, Unit::Ms, renewed));
    }
    let mut fleet = Fleet::start(config, 1)?;
    lines.push(pairs(&mut fleet, rounds)?);
    lines.extend(handovers(&mut fleet, rounds)?);
    Ok(lines)
}

struct Fleet {
    master: Server,
    replicas: Vec<Server>,
}

impl Fleet {
    fn start(config: &ServerConfig, replicas: usize) -> Result<Self> {
        let mut master = Server::start(config)?;
        call(&mut master, "CONFIG SET repl-diskless-sync-delay 0")?;
        let mut started = Vec::new();
        for _ in 0..replicas {
            let mut replica = Server::start(config)?;
            follow(&mut replica, &master)?;
            started.push(replica);
        }
        for replica in &mut started {
            wait_for(replica, "master_link_status", "up")?;
        }
        Ok(Self { master, replicas: started })
    }

    /// Applies `settings` to all servers, and waits until the master may grant.
    fn configure(&mut self, settings: &str) -> Result<()> {
        for server in self.replicas.iter_mut().chain([&mut self.master]) {
            call(server, &format!("CONFIG SET repl-ping-replica-period 1 {settings}"))?;
        }
        wait_for(&mut self.master, "rlock_may_grant", "1")
    }
}

/// Kills a master and promotes a replica. Returns the times from then to the first renewal of a hold
/// of the former master, and to the grant of a request that waits, in milliseconds.
fn death(config: &ServerConfig, lease_s: u64) -> Result<(f64, f64)> {
    let mut fleet = Fleet::start(config, REPLICAS)?;
    let lease_ms = (1000 * lease_s).to_string();
    let acquire = |owner: &[u8], key: &[u8], block: &[&[u8]]| {
        resp::command(&[&[b"RLOCK.ACQUIRE", key, owner, b"PX", lease_ms.as_bytes()], block].concat())
    };
    let mut client = fleet.master.connect()?;
    client.send(&acquire(b"holder", b"failover:held", &[]))?;
    ensure!(client.reply()?.integer()? > 0, "the hold of the former master");
    // Not at the master, which would have to wait for its right to grant first.
    for replica in &mut fleet.replicas {
        let settings = format!("rlock.max-lease-ms {lease_ms} rlock.exclusion failover rlock.replicas {REPLICAS}");
        call(replica, &format!("CONFIG SET repl-ping-replica-period 1 {settings}"))?;
        replica.wait_for_info("rlock_held", 1, FOLLOW_TIMEOUT)?;
    }
    let Fleet { master, replicas } = fleet;
    let [mut promoted, mut other] = <[Server; REPLICAS]>::try_from(replicas).ok().context("two replicas")?;
    let [mut client, mut holder] = [promoted.connect()?, promoted.connect()?];
    drop(master);
    let died = clock::now();
    call(&mut promoted, "REPLICAOF NO ONE")?;
    follow(&mut other, &promoted)?;
    client.send(&acquire(b"next", b"failover:lock", &[b"BLOCK", b"0"]))?;
    let renewed = loop {
        holder.send(&resp::command(&[b"RLOCK.RENEW", b"failover:held", b"holder"]))?;
        match holder.reply()?.integer() {
            Ok(_) => break clock::now() - died,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    };
    let token = client.reply()?.integer()?;
    let granted = clock::now() - died;
    ensure!(token > 0, "token {token}");
    Ok((clock::as_ms(renewed), clock::as_ms(granted)))
}

/// The settings under which a master does not need its replica in order to grant, and those under
/// which it does.
const WITHOUT: &str = "rlock.exclusion off";
const WITH: &str = "rlock.max-lease-ms 10000 rlock.replicas 1 rlock.exclusion failover rlock.max-replica-lag-ms 3000";

fn pairs(fleet: &mut Fleet, rounds: usize) -> Result<Line> {
    let mut measured = Pairs::connect(&mut fleet.master)?;
    let (mut with, mut without) = (Series::default(), Series::default());
    for _ in 0..rounds {
        for (settings, costs_us) in [(WITHOUT, &mut without), (WITH, &mut with)] {
            fleet.configure(settings)?;
            let cost_us = measured.measure(&mut fleet.master, Listener::None, &[Side::Rlock], 1)?;
            costs_us.push(cost_us.first().map_or(f64::NAN, Series::median));
        }
    }
    Ok(Line::ratio(
        "uncontended: server CPU per pair, a replica follows: with the settings against without",
        Figure::new("with", Unit::Us, &with),
        Figure::new("without", Unit::Us, &without),
    )
    .aim(AIM))
}

fn handovers(fleet: &mut Fleet, rounds: usize) -> Result<[Line; 2]> {
    let mut swarm = Swarm::connect(fleet.master.address(), handover::CONNECTIONS)?;
    swarm.set_idling(Idling::Sleep);
    let (mut with, mut without) = (handover::Rounds::default(), handover::Rounds::default());
    for _ in 0..rounds {
        for (settings, measured) in [(WITHOUT, &mut without), (WITH, &mut with)] {
            fleet.configure(settings)?;
            measured.push(handover::round(Prize::Lock, &mut fleet.master, &mut swarm)?);
        }
    }
    let line = |what: &str, unit, of: fn(&handover::Rounds) -> &Series| {
        let what = format!("handover: {what}, a replica follows: with the settings against without");
        Line::ratio(what, Figure::new("with", unit, of(&with)), Figure::new("without", unit, of(&without)))
    };
    Ok([
        line("hand-overs per second", Unit::PerSecond, |rounds| &rounds.per_second).aim(Aim::AtLeast(0.95)),
        line("server CPU per hand-over", Unit::Us, |rounds| &rounds.server_cpu_us).aim(AIM),
    ])
}

fn call(server: &mut Server, command: &str) -> Result<()> {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    server.control().call(&words)?.expect(b"+OK\r\n").with_context(|| command.to_owned())
}

fn follow(replica: &mut Server, master: &Server) -> Result<()> {
    call(replica, &format!("REPLICAOF 127.0.0.1 {}", master.address().port()))
}

fn wait_for(server: &mut Server, field: &str, value: &str) -> Result<()> {
    let deadline = clock::now() + FOLLOW_TIMEOUT;
    while server.info_field(field)? != value {
        ensure!(clock::now() < deadline, "INFO's {field} is not {value}");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}
