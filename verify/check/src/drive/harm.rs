//! Who makes something go wrong while clients work.

use std::net::SocketAddr;
use std::ops::RangeInclusive;
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use redis::Value;

use super::cluster;
use super::fault::Faults;
use super::half_open::Network;
use super::processes::Process;
use super::sentinel::Sentinels;
use super::server::{Server, WallClock};
use super::wire::{Connection, now_us, text};
use crate::history::{Outcome, Rule, Violation};
use crate::takeovers;
use crate::timeline::Possible;

/// When clients could not expect of the server what they may expect at other times.
#[derive(Debug, Default)]
pub(super) struct Interruptions {
    /// Pairs: a server was lost, and another one had taken over that may not have heard all of it.
    pub(super) takeovers_us: Vec<u64>,
    /// The server gave nobody anything, so that its replica could hear all of it.
    pub(super) pauses: Vec<Possible>,
    /// The server was a replica.
    pub(super) demotions: Vec<Possible>,
    /// What must not have happened, and was seen by who did harm.
    pub(super) violations: Vec<Violation>,
}

impl Interruptions {
    /// All of them, each with what it was.
    pub(super) fn spans(&self) -> Vec<(u64, u64, &'static str)> {
        let of = |spans: &[Possible], what| spans.iter().map(|span| (span.from_us, span.until_us, what)).collect();
        let mut all: Vec<_> = of(&self.pauses, "nobody is given anything");
        all.extend::<Vec<_>>(of(&self.demotions, "the server is a replica"));
        let takeovers: Vec<Possible> = takeovers::spans(&self.takeovers_us).collect();
        all.extend::<Vec<_>>(of(&takeovers, "another server takes over"));
        all
    }

    /// Notes a pause that began after those before it, and may have begun within the last one.
    fn pause(&mut self, from_us: u64, until_us: u64) {
        match self.pauses.last_mut() {
            Some(last) if from_us <= last.until_us => last.until_us = last.until_us.max(until_us),
            _ => self.pauses.push(Possible { from_us, until_us }),
        }
    }
}

/// Does harm to a server.
pub(super) struct Harm<'h> {
    pub(super) faults: Faults,
    pub(super) master: &'h mut Server,
    pub(super) clock: &'h WallClock,
    pub(super) replica: &'h mut Server,
    pub(super) clock_of_replica: &'h WallClock,
    pub(super) network: Option<&'h Network>,
    pub(super) sentinels: Option<&'h Sentinels>,
    /// Clients in processes of their own.
    pub(super) processes: &'h [Process],
    pub(super) interruptions: Interruptions,
    /// How far the wall clock was set back in all, of whichever server was set back last.
    pub(super) behind_ms: i64,
    /// Nothing has happened for a while already, after a pause.
    pub(super) has_rested: bool,
    pub(super) seed: u64,
}

/// The wall clock steps by up to so many milliseconds in either direction.
const STEP_MS: i64 = 3_600_000;

/// So many milliseconds the wall clock steps back at some of the times when the server is killed. Deadlines on disk are moments of that
/// clock, so with more of it the locks of clients that were lost are kept for longer than the slack. A restart mostly takes less, so the clock is
/// behind tokens that were given.
const BACK_MS: i64 = 100;
const GOES_BACK: f64 = 0.3;

/// How often the disk is full, or the server a replica, for long, apart from the first time: then every wait that began before is over for longer than
/// the slack.
const LONG: f64 = 0.1;
const LONG_TIME: Duration = Duration::from_secs(6);

/// What a client that does not read is sent, so that its buffer runs over.
const BIG_BYTES: usize = 1_000_000;
const BIG_REPLIES: usize = 30;

/// When a replica has taken over, waits at the old master end within this time: those with `NOTIFY` when its module looks.
const WAITS_END_US: u64 = 2_000_000;
/// How often nothing happens for a while after a pause, apart from the first time, so that it shows if somebody waits in vain: for longer than a pause goes on
/// by then, and the slack, and a second.
const QUIET: f64 = 0.2;
const QUIET_TIME: Duration = Duration::from_secs(6);

/// For how long a process of clients is stopped: mostly longer than its leases, and shorter than the slack, so that what it has heard too late is
/// not taken for something that was said too late.
const STOPPED_MS: RangeInclusive<u64> = 50..=1_200;

/// How often clients lose their connections from one failover to the next.
const STORMS: u32 = 4;

/// How long a replica that has taken over is left in peace.
const BETWEEN_TAKEOVERS: Duration = Duration::from_millis(2_500);

/// How long a node of a cluster takes no requests when it has come back: two seconds, and what it takes until all nodes agree.
const COMES_BACK_US: u64 = 2_500_000;

/// When there is room on its disk, a server finds it out within this time also on a busy machine: it tries again each second.
const WRITES_AGAIN_US: u64 = 5_000_000;

/// A slot that is on its way for longer than this keeps those waiting whose key was removed meanwhile: at the node that it leaves the key may have gone
/// ahead, and at the other one the slot has not arrived. Who waits at the node that it leaves may do so until the slot is back, if it comes back before
/// the server looks at its blocked clients. Two shorter moves, and the time between them, are less than the slack.
const LONG_MOVE_US: u64 = 500_000;

/// How often one of two nodes, or both, are killed at a step of a move.
const KILLED: f64 = 0.1;

/// How long a node of a cluster that was killed, and is there again, is left in peace.
const BETWEEN_KILLS: Duration = Duration::from_millis(1_500);

/// How long a hold may outlive its connection on a busy machine.
const GONE_US: u64 = 2_000_000;

impl Harm<'_> {
    /// Goes on until a moment of the steady clock, and mends everything in the end.
    pub(super) fn go_on(mut self, until_us: u64) -> Result<Interruptions> {
        let mut random = StdRng::seed_from_u64(self.seed);
        if self.faults == Faults::OutputBuffers {
            let mut control = Connection::open(self.master.address())?;
            control.ask(&format!("SET big {}", "x".repeat(BIG_BYTES)))?;
            control.ask_words(&["CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 0 0"])?;
        }
        if self.faults == Faults::ClusterFailover {
            self.set_replica_back()?;
        }
        // Once at least, however short the campaign is.
        loop {
            self.once(&mut random)?;
            thread::sleep(Duration::from_millis(random.random_range(50..400)));
            if now_us() >= until_us {
                break;
            }
        }
        self.clock.step_to(0)?;
        if self.faults.is_in_cluster() {
            cluster::wait_until_it_is_up(self.master)?;
        }
        Ok(self.interruptions)
    }

    fn once(&mut self, random: &mut StdRng) -> Result<()> {
        let (address, span) = (self.master.address(), Duration::from_millis(random.random_range(1..400)));
        match self.faults {
            Faults::Clock => self.clock.step_to(random.random_range(-STEP_MS..=STEP_MS)),
            Faults::Crashes => match random.random_range(0..10) {
                0 => self.master.kill_and_restart(),
                1..5 => self.master.stand_still(span),
                _ => cut_connections(address, 0.2, random),
            },
            Faults::Disconnects if random.random_bool(0.1) => self.master.stand_still(span / 4),
            Faults::Disconnects => cut_connections(address, 0.2, random),
            Faults::Kill => self.kill(random.random_bool(GOES_BACK)),
            Faults::KillInCluster => {
                let from_us = now_us();
                self.kill(random.random_bool(GOES_BACK))?;
                cluster::wait_until_it_is_up(self.master)?;
                self.interruptions.pause(from_us, now_us());
                thread::sleep(BETWEEN_KILLS);
                self.rest(random);
                Ok(())
            }
            Faults::Stop | Faults::StopInCluster => self.master.stand_still(span),
            Faults::ClientStop => {
                let stopped = self.processes.choose(random).context("there are processes of clients")?;
                stopped.stand_still(Duration::from_millis(random.random_range(STOPPED_MS)))
            }
            Faults::ClientKill | Faults::ClientKillInCluster => cut_connections(address, 1.0, random),
            Faults::HalfOpen | Faults::HalfOpenInCluster => {
                self.lose_connections(random);
                Ok(())
            }
            Faults::Memory => between(address, span, "CONFIG SET maxmemory 1", "CONFIG SET maxmemory 0").map(drop),
            Faults::FullDisk => {
                let from_us = now_us();
                self.master.fill_disk()?;
                let is_long = self.interruptions.pauses.is_empty() || random.random_bool(LONG);
                thread::sleep(if is_long { LONG_TIME } else { span * 4 });
                if is_long {
                    let said = text(Connection::open(address)?.ask("INFO persistence")?)?;
                    ensure!(said.contains("aof_last_write_status:err"), "the server writes to a disk that is full");
                }
                self.master.free_disk()?;
                writes_again(address)?;
                self.interruptions.pause(from_us, now_us());
                self.rest(random);
                Ok(())
            }
            Faults::OutputBuffers => {
                self.interruptions.violations.extend(overrun(address, random)?);
                Ok(())
            }
            Faults::Failover => self.fail_over(|replica| Connection::open(replica)?.ask("REPLICAOF NO ONE").map(drop)),
            Faults::Sentinel => self.be_replaced(if random.random_bool(0.5) { Ends::Dies } else { Ends::IsTold }),
            Faults::SentinelStop => {
                self.be_replaced(Ends::StandsStill)?;
                self.rest(random);
                Ok(())
            }
            Faults::SentinelStorms => {
                for _ in 0..STORMS {
                    if random.random_bool(0.5) {
                        cut_connections(address, 0.5, random)?;
                    } else {
                        self.lose_connections(random);
                    }
                    thread::sleep(span);
                }
                self.be_replaced(if random.random_bool(0.5) { Ends::Dies } else { Ends::IsTold })
            }
            Faults::ClusterFailover => {
                let from_us = now_us();
                let until_us = self.take_over("")? + WAITS_END_US;
                self.interruptions.pause(from_us, until_us);
                self.set_replica_back()?;
                self.rest(random);
                Ok(())
            }
            Faults::ClusterForce => self.take_over_unasked("FORCE"),
            Faults::ClusterTakeover => self.take_over_unasked("TAKEOVER"),
            Faults::SlotMoves => {
                if self.move_slot(|_| Ok(()))? {
                    self.rest(random);
                }
                Ok(())
            }
            Faults::SlotMovesAndKills => {
                let mut kills = Vec::new();
                let moved = self.move_slot(|ends| {
                    if random.random_bool(KILLED) {
                        // One of them, or all.
                        let (only, from_us) = (random.random_range(0..=ends.len()), now_us());
                        let is_killed = |at: usize| only == at || only == ends.len();
                        let killed: Vec<usize> = (0..ends.len()).filter(|at| is_killed(*at)).collect();
                        for at in &killed {
                            ends.get_mut(*at).map_or(Ok(()), |end| end.kill())?;
                        }
                        for at in &killed {
                            ends.get_mut(*at).map_or(Ok(()), |end| end.restart())?;
                        }
                        kills.push((from_us, now_us() + COMES_BACK_US));
                    }
                    Ok(())
                });
                for (from_us, until_us) in &kills {
                    self.interruptions.pause(*from_us, *until_us);
                }
                if moved? || !kills.is_empty() {
                    self.rest(random);
                }
                Ok(())
            }
            Faults::Demotion => {
                let is_long = self.interruptions.demotions.is_empty() || random.random_bool(LONG);
                let span = if is_long { LONG_TIME } else { span };
                let demotion = between(address, span, "REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE")?;
                self.interruptions.demotions.push(demotion);
                Ok(())
            }
        }
    }
}

/// How a server ends that is replaced by Sentinels.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// It is killed.
    Dies,
    /// It lives, and a Sentinel is told to replace it.
    IsTold,
    /// It stands still until another one is in its place.
    StandsStill,
}

impl Harm<'_> {
    /// Lets nothing happen for a while, the first time and now and then.
    fn rest(&mut self, random: &mut StdRng) {
        if !self.has_rested || random.random_bool(QUIET) {
            self.has_rested = true;
            thread::sleep(QUIET_TIME);
        }
    }

    /// The server is killed and comes back; its wall clock may be set back meanwhile.
    fn kill(&mut self, clock_goes_back: bool) -> Result<()> {
        self.master.kill()?;
        if clock_goes_back {
            self.behind_ms += BACK_MS;
            self.clock.step_to(-self.behind_ms)?;
        }
        self.master.restart()
    }

    /// The replica will take over with a clock that is behind: by what it was sent, its tokens are above those of its master all the same.
    fn set_replica_back(&mut self) -> Result<()> {
        self.behind_ms += i64::try_from(self.faults.replica_is_behind_us() / 1000)?;
        self.clock_of_replica.step_to(-self.behind_ms)
    }

    fn lose_connections(&self, random: &mut StdRng) {
        if let Some(network) = self.network {
            network.lose(|| random.random_bool(0.2));
        }
    }

    /// The replica of a cluster takes over without its master being asked.
    fn take_over_unasked(&mut self, how: &str) -> Result<()> {
        self.interruptions.takeovers_us.push(now_us());
        self.take_over(how)?;
        self.interruptions.takeovers_us.push(now_us());
        // Until the next one, clients prove something.
        thread::sleep(BETWEEN_TAKEOVERS);
        Ok(())
    }

    /// The master is killed, its replica is promoted, and the old one follows it when it comes back. Clients find the new one through
    /// the network.
    fn fail_over(&mut self, promote: impl FnOnce(SocketAddr) -> Result<()>) -> Result<()> {
        self.interruptions.takeovers_us.push(now_us());
        self.master.kill()?;
        promote(self.replica.address())?;
        self.lead_to_replica();
        self.interruptions.takeovers_us.push(now_us());
        std::mem::swap(self.master, self.replica);
        self.replica.restart()?;
        self.replica.follow(self.master.address())
    }

    fn lead_to_replica(&self) {
        if let Some(network) = self.network {
            network.lead_to(self.replica.address());
        }
    }

    /// The Sentinels find that the master is dead, or does not answer, or are told to replace it while it works.
    fn be_replaced(&mut self, ends: Ends) -> Result<()> {
        let sentinels = self.sentinels.context("there are Sentinels")?;
        sentinels.wait_until_ready(self.master.address())?;
        if ends == Ends::Dies {
            // They would make it follow as well, ten seconds after it has come back.
            return self.fail_over(|replica| sentinels.wait_for(replica));
        }
        let from_us = now_us();
        self.interruptions.takeovers_us.push(from_us);
        if ends == Ends::StandsStill {
            self.master.stand_still_until(|| sentinels.wait_for(self.replica.address()))?;
            // Connections to it were there all the time, and nobody was told anything over them.
            self.interruptions.pause(from_us, now_us());
        } else {
            sentinels.fail_over_to(self.replica.address())?;
        }
        self.lead_to_replica();
        std::mem::swap(self.master, self.replica);
        // Until then it may have given something to whoever was still connected.
        self.replica.follow(self.master.address())?;
        self.interruptions.takeovers_us.push(now_us());
        Ok(())
    }

    /// The slot goes to the other node, with what is in it. `at_each_step` may do harm to both.
    /// Moves the slot to the other node. Returns whether that took long, and is a pause.
    fn move_slot(&mut self, at_each_step: impl FnMut(&mut [&mut Server; 2]) -> Result<()>) -> Result<bool> {
        let from_us = now_us();
        cluster::move_slot([self.master, self.replica], at_each_step)?;
        let until_us = now_us();
        self.change_places();
        let is_long = until_us - from_us > LONG_MOVE_US;
        if is_long {
            self.interruptions.pause(from_us, until_us);
        }
        Ok(is_long)
    }

    /// The replica of a cluster takes over. Returns when it had done so.
    fn take_over(&mut self, how: &str) -> Result<u64> {
        let taken_over_us = cluster::take_over(self.master, self.replica, how)?;
        self.change_places();
        Ok(taken_over_us)
    }

    /// The other server is the one to ask now. It has told the clients, or it will.
    fn change_places(&mut self) {
        std::mem::swap(self.master, self.replica);
        std::mem::swap(&mut self.clock, &mut self.clock_of_replica);
        if let Some(network) = self.network {
            network.lead_newcomers_to(self.master.address());
        }
    }
}

/// Does something, and after a while something else. Returns when the first had been done, and the second not yet.
fn between(address: SocketAddr, lasts: Duration, first: &str, then: &str) -> Result<Possible> {
    let mut control = Connection::insist(address)?;
    control.ask(first)?;
    let from_us = now_us();
    thread::sleep(lasts);
    let until_us = now_us();
    control.ask(then)?;
    Ok(Possible { from_us, until_us })
}

/// Waits until a server has found out that there is room on its disk.
fn writes_again(address: SocketAddr) -> Result<()> {
    let deadline_us = now_us() + WRITES_AGAIN_US;
    let mut control = Connection::open(address)?;
    while !text(control.ask("INFO persistence")?)?.contains("aof_last_write_status:ok") {
        ensure!(now_us() < deadline_us, "the server does not write to a disk that has room again");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Cuts some of the connections, but for those that listen.
fn cut_connections(address: SocketAddr, share: f64, random: &mut StdRng) -> Result<()> {
    let mut control = Connection::insist(address)?;
    let mut listed = text(control.ask("CLIENT LIST TYPE normal")?)?;
    listed.push_str(&text(control.ask("CLIENT LIST TYPE pubsub")?)?);
    for line in listed.lines().filter(|line| !line.contains("cmd=monitor") && !line.contains("cmd=client")) {
        let id = line.split_ascii_whitespace().find_map(|field| field.strip_prefix("id="));
        if let Some(id) = id.filter(|_| random.random_bool(share)) {
            // It may have gone by itself.
            let _ = control.call(&format!("CLIENT KILL ID {id}"));
        }
    }
    Ok(())
}

/// A client asks for locks with a session, and for more than it reads: the server closes it, with what it holds. Returns what is not as it has
/// to be then.
fn overrun(address: SocketAddr, random: &mut StdRng) -> Result<Option<Violation>> {
    let mut greedy = Connection::insist(address)?;
    let name = format!("overrun-{}", random.random_range(0..4));
    for _ in 0..BIG_REPLIES {
        // The connection may be closed by now: that is what this is for.
        let _ = greedy.send(&format!("RLOCK.ACQUIRE {name} greedy PX 60000 SESSION 0 BLOCK 1000"));
        // A part of a value is copied into the buffer; a whole one may only be referred to, and does not count.
        let _ = greedy.send("GETRANGE big 1 -1");
    }
    let answers = (0..2 * BIG_REPLIES).filter(|_| greedy.receive() != Outcome::Unknown || !greedy.is_lost()).count();
    ensure!(answers < 2 * BIG_REPLIES, "the buffer of a client that does not read has no end");
    let mut control = Connection::insist(address)?;
    let deadline_us = now_us() + GONE_US;
    while control.ask(&format!("RLOCK.PTTL {name}"))? != Value::Int(-2) {
        if now_us() > deadline_us {
            let story = format!("{name} is held by a client that was closed because it did not read");
            return Ok(Some(Violation { rule: Rule::NothingIsLeftOver, story }));
        }
        thread::sleep(Duration::from_millis(5));
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_that_overlap_are_one() {
        let mut interruptions = Interruptions::default();
        for (from_us, until_us) in [(10, 20), (15, 30), (16, 25), (40, 50)] {
            interruptions.pause(from_us, until_us);
        }
        let expected = [Possible { from_us: 10, until_us: 30 }, Possible { from_us: 40, until_us: 50 }];
        assert_eq!(interruptions.pauses, expected);
    }
}
