//! Makes faults happen while clients work.

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

/// The times at which clients may expect less of the server than usual.
#[derive(Debug, Default)]
pub(super) struct Interruptions {
    /// Pairs of times: when a server was lost, and when another one, which may lack some of its
    /// changes, had taken over.
    pub(super) takeovers_us: Vec<u64>,
    /// When the server granted nothing, so that its replica could catch up.
    pub(super) pauses: Vec<Possible>,
    /// When the server was a replica.
    pub(super) demotions: Vec<Possible>,
    /// Violations that were observed while a fault was made.
    pub(super) violations: Vec<Violation>,
}

impl Interruptions {
    /// All interruptions, each with a description.
    pub(super) fn spans(&self) -> Vec<(u64, u64, &'static str)> {
        let of = |spans: &[Possible], what| spans.iter().map(|span| (span.from_us, span.until_us, what)).collect();
        let mut all: Vec<_> = of(&self.pauses, "nothing is granted");
        all.extend::<Vec<_>>(of(&self.demotions, "the server is a replica"));
        let takeovers: Vec<Possible> = takeovers::spans(&self.takeovers_us).collect();
        all.extend::<Vec<_>>(of(&takeovers, "another server takes over"));
        all
    }

    /// Records a pause. It begins after the earlier pauses began, but possibly before the last one
    /// ended.
    fn pause(&mut self, from_us: u64, until_us: u64) {
        match self.pauses.last_mut() {
            Some(last) if from_us <= last.until_us => last.until_us = last.until_us.max(until_us),
            _ => self.pauses.push(Possible { from_us, until_us }),
        }
    }
}

/// Makes one kind of fault happen.
pub(super) struct Harm<'h> {
    pub(super) faults: Faults,
    pub(super) master: &'h mut Server,
    pub(super) clock: &'h WallClock,
    pub(super) replica: &'h mut Server,
    pub(super) clock_of_replica: &'h WallClock,
    pub(super) network: Option<&'h Network>,
    pub(super) sentinels: Option<&'h Sentinels>,
    /// The clients in processes of their own.
    pub(super) processes: &'h [Process],
    pub(super) interruptions: Interruptions,
    /// How many milliseconds the wall clock was set back in total, on the server that was set back
    /// last.
    pub(super) behind_ms: i64,
    /// There was already one rest after a pause.
    pub(super) has_rested: bool,
    pub(super) seed: u64,
}

/// The wall clock steps by up to this many milliseconds in either direction.
const STEP_MS: i64 = 3_600_000;

/// How far, in milliseconds, the wall clock steps back at some of the kills. Deadlines on disk are
/// wall clock times, so with a larger step the locks of lost clients would outlast the slack. A
/// restart mostly takes less, so the clock is then behind the tokens that were given.
const BACK_MS: i64 = 100;
const GOES_BACK: f64 = 0.3;

/// The share of full disks and demotions, besides the first one, that last for a long time: at the
/// end, every wait that began before is overdue by more than the slack.
const LONG: f64 = 0.1;
const LONG_TIME: Duration = Duration::from_secs(6);

/// The size of the replies to a client that does not read. They overrun its buffer.
const BIG_BYTES: usize = 1_000_000;
const BIG_REPLIES: usize = 30;

/// Waits at the old master end within this time after a replica took over. Waits with `NOTIFY` end
/// when the module next checks the role.
const WAITS_END_US: u64 = 2_000_000;
/// The share of pauses, besides the first one, that a rest follows. The rest shows whether a
/// request waits in vain: it lasts for the rest of the pause, the slack, and one more second.
const QUIET: f64 = 0.2;
const QUIET_TIME: Duration = Duration::from_secs(6);

/// How long a process of clients is stopped: mostly longer than its leases, but less than the
/// slack, so that an answer which it reads late does not count as an answer that was sent late.
const STOPPED_MS: RangeInclusive<u64> = 50..=1_200;

/// How often clients lose their connections between two failovers.
const STORMS: u32 = 4;

/// How long a replica is left alone after it took over.
const BETWEEN_TAKEOVERS: Duration = Duration::from_millis(2_500);

/// How long a node of a cluster accepts no requests after its restart: two seconds, and the time
/// until all nodes agree.
const COMES_BACK_US: u64 = 2_500_000;

/// How long a server takes to notice that its disk has room, even on a busy machine: it retries
/// each second.
const WRITES_AGAIN_US: u64 = 5_000_000;

/// A move that takes longer than this counts as a pause. While a slot moves, a waiter whose key was
/// removed in the meantime is not served: at the source node the key may already have moved, and
/// the target node does not have the slot yet. If the slot is back before the source node checks
/// its blocked clients, a request that waits there may wait for all that time. Two shorter moves,
/// and the time between them, take less than the slack.
const LONG_MOVE_US: u64 = 500_000;

/// How often one node, or both, are killed at a step of a move.
const KILLED: f64 = 0.1;

/// How long a node of a cluster is left alone after it was killed and is up again.
const BETWEEN_KILLS: Duration = Duration::from_millis(1_500);

/// How long a hold may outlive its connection on a busy machine.
const GONE_US: u64 = 2_000_000;

impl Harm<'_> {
    /// Makes faults until a moment of the steady clock, and repairs everything at the end.
    pub(super) fn run_until(mut self, until_us: u64) -> Result<Interruptions> {
        let mut random = StdRng::seed_from_u64(self.seed);
        if self.faults == Faults::OutputBuffers {
            let mut control = Connection::open(self.master.address())?;
            control.ask(&format!("SET big {}", "x".repeat(BIG_BYTES)))?;
            control.ask_words(&["CONFIG", "SET", "client-output-buffer-limit", "normal 1mb 0 0"])?;
        }
        if self.faults == Faults::ClusterFailover {
            self.set_replica_back()?;
        }
        // At least once, however short the campaign is.
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
                let stopped = self.processes.choose(random).context("the campaign has no processes of clients")?;
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
                    ensure!(
                        said.contains("aof_last_write_status:err"),
                        "the server still writes although its disk is full"
                    );
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
                let (mut kills, has_rested) = (Vec::new(), self.has_rested);
                let moved = self.move_slot(|ends| {
                    // A move with many kills takes long. A short campaign would end before the rest.
                    if (kills.is_empty() || has_rested) && random.random_bool(KILLED) {
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

/// The fate of a server that Sentinels replace.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Ends {
    /// It is killed.
    Dies,
    /// It lives, and a Sentinel is told to replace it.
    IsTold,
    /// It is suspended until another server has replaced it.
    StandsStill,
}

impl Harm<'_> {
    /// Waits for a while without faults: at its first call, and then now and then.
    fn rest(&mut self, random: &mut StdRng) {
        if !self.has_rested || random.random_bool(QUIET) {
            self.has_rested = true;
            thread::sleep(QUIET_TIME);
        }
    }

    /// Kills and restarts the server. Its wall clock may be set back in between.
    fn kill(&mut self, clock_goes_back: bool) -> Result<()> {
        self.master.kill()?;
        if clock_goes_back {
            self.behind_ms += BACK_MS;
            self.clock.step_to(-self.behind_ms)?;
        }
        self.master.restart()
    }

    /// Lets the replica take over with a clock that is behind. Its tokens are still above those of
    /// its master, because it knows those.
    fn set_replica_back(&mut self) -> Result<()> {
        self.behind_ms += i64::try_from(self.faults.replica_is_behind_us() / 1000)?;
        self.clock_of_replica.step_to(-self.behind_ms)
    }

    fn lose_connections(&self, random: &mut StdRng) {
        if let Some(network) = self.network {
            network.lose(|| random.random_bool(0.2));
        }
    }

    /// Lets the replica of a cluster take over without asking its master.
    fn take_over_unasked(&mut self, how: &str) -> Result<()> {
        self.interruptions.takeovers_us.push(now_us());
        self.take_over(how)?;
        self.interruptions.takeovers_us.push(now_us());
        // Clients need this time before the next takeover to prove something.
        thread::sleep(BETWEEN_TAKEOVERS);
        Ok(())
    }

    /// Kills the master and promotes its replica; the old master follows it after its restart.
    /// Clients reach the new master through the network.
    fn fail_over(&mut self, promote: impl FnOnce(SocketAddr) -> Result<()>) -> Result<()> {
        self.interruptions.takeovers_us.push(now_us());
        self.master.kill()?;
        promote(self.replica.address())?;
        self.route_to_replica();
        self.interruptions.takeovers_us.push(now_us());
        std::mem::swap(self.master, self.replica);
        self.replica.restart()?;
        self.replica.follow(self.master.address())
    }

    fn route_to_replica(&self) {
        if let Some(network) = self.network {
            network.route_to(self.replica.address());
        }
    }

    /// Lets the Sentinels find the master dead or silent, or tells them to replace it while it
    /// works.
    fn be_replaced(&mut self, ends: Ends) -> Result<()> {
        let sentinels = self.sentinels.context("the campaign has no Sentinels")?;
        sentinels.wait_until_ready(self.master.address())?;
        if ends == Ends::Dies {
            // The Sentinels would make it follow too, but only ten seconds after its restart.
            return self.fail_over(|replica| sentinels.wait_for(replica));
        }
        let from_us = now_us();
        self.interruptions.takeovers_us.push(from_us);
        if ends == Ends::StandsStill {
            self.master.stand_still_until(|| sentinels.wait_for(self.replica.address()))?;
            // Connections to it stayed open, but it answered nothing over them.
            self.interruptions.pause(from_us, now_us());
        } else {
            sentinels.fail_over_to(self.replica.address())?;
        }
        self.route_to_replica();
        std::mem::swap(self.master, self.replica);
        // Until it follows, it may have granted locks to clients that were still connected.
        self.replica.follow(self.master.address())?;
        self.interruptions.takeovers_us.push(now_us());
        Ok(())
    }

    /// Moves the slot, with its keys, to the other node. `at_each_step` may do harm to both.
    /// Returns whether the move took so long that it counts as a pause.
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

    /// Lets the replica of a cluster take over. Returns the time at which it had become the master.
    fn take_over(&mut self, how: &str) -> Result<u64> {
        let taken_over_us = cluster::take_over(self.master, self.replica, how)?;
        self.change_places();
        Ok(taken_over_us)
    }

    /// Treats the other server as the master from now on. The cluster redirects the clients.
    fn change_places(&mut self) {
        std::mem::swap(self.master, self.replica);
        std::mem::swap(&mut self.clock, &mut self.clock_of_replica);
        if let Some(network) = self.network {
            network.route_new_to(self.master.address());
        }
    }
}

/// Sends a command, waits, and sends another one. Returns the span between the end of the first and
/// the beginning of the second.
fn between(address: SocketAddr, lasts: Duration, first: &str, then: &str) -> Result<Possible> {
    let mut control = Connection::insist(address)?;
    control.ask(first)?;
    let from_us = now_us();
    thread::sleep(lasts);
    let until_us = now_us();
    control.ask(then)?;
    Ok(Possible { from_us, until_us })
}

/// Waits until a server has noticed that its disk has room.
fn writes_again(address: SocketAddr) -> Result<()> {
    let deadline_us = now_us() + WRITES_AGAIN_US;
    let mut control = Connection::open(address)?;
    while !text(control.ask("INFO persistence")?)?.contains("aof_last_write_status:ok") {
        ensure!(now_us() < deadline_us, "the server does not write although its disk has room again");
        thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

/// Cuts some of the connections, except those of MONITOR.
fn cut_connections(address: SocketAddr, share: f64, random: &mut StdRng) -> Result<()> {
    let mut control = Connection::insist(address)?;
    let mut listed = text(control.ask("CLIENT LIST TYPE normal")?)?;
    listed.push_str(&text(control.ask("CLIENT LIST TYPE pubsub")?)?);
    for line in listed.lines().filter(|line| !line.contains("cmd=monitor") && !line.contains("cmd=client")) {
        let id = line.split_ascii_whitespace().find_map(|field| field.strip_prefix("id="));
        if let Some(id) = id.filter(|_| random.random_bool(share)) {
            // It may have closed by itself.
            let _ = control.call(&format!("CLIENT KILL ID {id}"));
        }
    }
    Ok(())
}

/// A client requests locks with a session, and more data than it reads: the server closes it, and
/// its holds must end. Returns a violation if they do not.
fn overrun(address: SocketAddr, random: &mut StdRng) -> Result<Option<Violation>> {
    let mut greedy = Connection::insist(address)?;
    let name = format!("overrun-{}", random.random_range(0..4));
    for _ in 0..BIG_REPLIES {
        // The connection may be closed by now, as intended.
        let _ = greedy.send(&format!("RLOCK.ACQUIRE {name} greedy PX 60000 SESSION 0 BLOCK 1000"));
        // A part of a value is copied into the buffer. A whole value may only be referenced, and
        // then it does not count.
        let _ = greedy.send("GETRANGE big 1 -1");
    }
    let answers = (0..2 * BIG_REPLIES).filter(|_| greedy.receive() != Outcome::Unknown || !greedy.is_lost()).count();
    ensure!(answers < 2 * BIG_REPLIES, "the server did not close a client that does not read");
    let mut control = Connection::insist(address)?;
    let deadline_us = now_us() + GONE_US;
    while control.ask(&format!("RLOCK.PTTL {name}"))? != Value::Int(-2) {
        if now_us() > deadline_us {
            let story = format!("{name} is still held by a client that was closed because it did not read");
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
    fn overlapping_pauses_are_merged() {
        let mut interruptions = Interruptions::default();
        for (from_us, until_us) in [(10, 20), (15, 30), (16, 25), (40, 50)] {
            interruptions.pause(from_us, until_us);
        }
        let expected = [Possible { from_us: 10, until_us: 30 }, Possible { from_us: 40, until_us: 50 }];
        assert_eq!(interruptions.pauses, expected);
    }
}
