//! A fleet of nodes, each with one connection and a thousand clients, that takes locks and crashes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};

use rlock_core::{Acquired, Answer};

use crate::load::Load;
use crate::world::World;

const LEASE_MS: u64 = 30_000;
const WAIT_MS: u64 = 60_000;
/// How long a crashed node is down.
const REBOOT_US: u64 = 10_000_000;
const SAMPLE_US: u64 = 100_000;

/// The parameters of a fleet.
#[derive(Clone, Debug)]
pub struct Fleet {
    pub name: &'static str,
    pub nodes: u64,
    pub clients: usize,
    pub locks: usize,
    /// The mean pause of a client between two locks.
    pub think_us: f64,
    pub least_hold_us: f64,
    pub most_hold_us: f64,
    /// The time between two crashes of nodes; 0 for no crashes.
    pub between_crashes_us: u64,
    /// How many holds of a million are never released, because the client hangs.
    pub stuck_in_a_million: f64,
    /// The simulated time. Its first half is not measured, except for a herd.
    pub span_us: u64,
    /// All clients ask at once at the beginning.
    pub is_herd: bool,
}

/// The next step of a client, and when. The order of the fields makes plans sort by time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Plan {
    at_us: u64,
    /// Plans for the same moment run in the order in which they were made.
    order: u64,
    client: usize,
    /// How often the client's node had crashed when the plan was made.
    life: u32,
    step: Step,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Ask,
    Free { lock: usize, token: u64 },
}

/// The results of a run.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    pub seconds: f64,
    pub granted: u64,
    pub handed_over: u64,
    pub timed_out: u64,
    pub expired: u64,
    pub disconnected: u64,
    pub waiting_most: usize,
    pub waiting_mean: f64,
    pub wait_p50_us: u64,
    pub wait_p99_us: u64,
    pub waiters_bytes: usize,
    pub value_bytes: usize,
    pub held_most: usize,
    pub operations: u64,
    pub engine_s: f64,
    pub longest_us: f64,
    pub replicated_bytes: u64,
}

struct Run<'f> {
    fleet: &'f Fleet,
    world: World,
    load: Load,
    agenda: BinaryHeap<Reverse<Plan>>,
    order: u64,
    tickets: HashMap<u64, (usize, usize)>,
    /// How often each node has crashed. Plans from before a crash are void.
    lives: Vec<u32>,
    requests: u64,
    operations: u64,
}

impl Fleet {
    /// Simulates the fleet.
    pub fn simulate(&self, seed: u64) -> Findings {
        let load = Load::new(seed, self.locks, self.least_hold_us, self.most_hold_us, self.think_us);
        let mut run = Run {
            fleet: self,
            world: World::new(self.locks),
            load,
            agenda: BinaryHeap::new(),
            order: 0,
            tickets: HashMap::new(),
            lives: vec![0; usize::try_from(self.nodes).unwrap_or(0)],
            requests: 0,
            operations: 0,
        };
        for client in 0..self.clients {
            let at_us = if self.is_herd { 0 } else { run.load.think_us() };
            run.plan(at_us, client, Step::Ask);
        }
        run.live()
    }

    fn node_of(&self, client: usize) -> u64 {
        client as u64 % self.nodes
    }
}

impl Run<'_> {
    fn live(mut self) -> Findings {
        let begin_us = if self.fleet.is_herd { 0 } else { self.fleet.span_us / 2 };
        let mut found = Findings::default();
        let (mut samples, mut next_sample_us) = (0u64, begin_us);
        let mut next_crash_us = self.fleet.between_crashes_us;
        let mut before = None;
        while self.world.now_us < self.fleet.span_us {
            // Granted clients make their next plan before time goes on.
            self.hear();
            let next_us = self.agenda.peek().map_or(self.fleet.span_us, |Reverse(plan)| plan.at_us);
            self.world.advance_to(next_us.min(self.fleet.span_us));
            if !self.world.answers.is_empty() {
                continue;
            }
            if self.world.now_us >= begin_us && before.is_none() {
                before = Some((self.world.costs, self.stats(), self.operations));
                self.world.costs.longest = std::time::Duration::ZERO;
            }
            if self.world.now_us >= next_sample_us {
                next_sample_us += SAMPLE_US;
                samples += 1;
                self.sample(&mut found);
            }
            if self.fleet.between_crashes_us > 0 && self.world.now_us >= next_crash_us {
                next_crash_us += self.fleet.between_crashes_us;
                self.crash();
            }
            self.take_next_step();
            if self.agenda.is_empty() && self.world.answers.is_empty() && self.world.engine.waiting() == 0 {
                break;
            }
        }
        self.conclude(found, before.unwrap_or_default(), samples, begin_us)
    }

    /// Takes the next step if it is due, and not void because of a crash.
    fn take_next_step(&mut self) {
        let is_due = |plan: &&Reverse<Plan>| plan.0.at_us <= self.world.now_us;
        if self.agenda.peek().filter(is_due).is_some()
            && let Some(Reverse(plan)) = self.agenda.pop()
            && plan.life == self.life(plan.client)
        {
            self.take_step(plan.client, plan.step);
        }
    }

    fn take_step(&mut self, client: usize, step: Step) {
        let node = self.fleet.node_of(client);
        let owner = owner_of(node, client);
        self.operations += 1;
        match step {
            Step::Ask => {
                let lock = self.load.lock();
                self.requests += 1;
                let asked = self.world.acquire(lock, owner.as_bytes(), (node, self.requests), (LEASE_MS, WAIT_MS));
                match asked {
                    Ok(Acquired::Granted(grant)) => self.hold(client, lock, grant.tokens.first().copied().unwrap_or(0)),
                    Ok(Acquired::Waiting(ticket)) => {
                        self.tickets.insert(ticket, (client, lock));
                    }
                    Ok(Acquired::Denied) | Err(_) => self.think(client),
                }
            }
            Step::Free { lock, token } => {
                // Its lease may have expired. Then there is nothing to release.
                let _ = self.world.release(lock, owner.as_bytes(), node, token);
                self.think(client);
            }
        }
    }

    fn hear(&mut self) {
        for (ticket, answer) in std::mem::take(&mut self.world.answers) {
            let Some((client, lock)) = self.tickets.remove(&ticket) else { continue };
            match answer {
                Answer::Granted(grant) => self.hold(client, lock, grant.tokens.first().copied().unwrap_or(0)),
                // Its node has crashed, and comes back by itself.
                Answer::Closed => {}
                _ => self.think(client),
            }
        }
    }

    fn hold(&mut self, client: usize, lock: usize, token: u64) {
        if self.load.happens(self.fleet.stuck_in_a_million / 1e6) {
            // It hangs: it releases nothing, and its lease expires. It is restarted later.
            return self.plan(self.world.now_us + 2 * LEASE_MS * 1000, client, Step::Ask);
        }
        let at_us = self.world.now_us + self.load.hold_us();
        self.plan(at_us, client, Step::Free { lock, token });
    }

    fn think(&mut self, client: usize) {
        // In a herd, each client asks once.
        if !self.fleet.is_herd {
            let at_us = self.world.now_us + self.load.think_us();
            self.plan(at_us, client, Step::Ask);
        }
    }

    /// Crashes a node: its connection closes, with all holds and waits of its clients.
    fn crash(&mut self) {
        let node = self.load.node(self.fleet.nodes);
        self.world.close(node);
        if let Some(life) = usize::try_from(node).ok().and_then(|node| self.lives.get_mut(node)) {
            *life += 1;
        }
        let nodes = usize::try_from(self.fleet.nodes).unwrap_or(1);
        self.tickets.retain(|_, (client, _)| *client % nodes != node as usize);
        for client in (node as usize..self.fleet.clients).step_by(nodes) {
            let at_us = self.world.now_us + REBOOT_US + self.load.think_us();
            self.plan(at_us, client, Step::Ask);
        }
    }

    fn plan(&mut self, at_us: u64, client: usize, step: Step) {
        self.order += 1;
        self.agenda.push(Reverse(Plan { at_us, order: self.order, client, life: self.life(client), step }));
    }

    fn life(&self, client: usize) -> u32 {
        self.lives[self.fleet.node_of(client) as usize]
    }

    fn stats(&mut self) -> HashMap<&'static str, u64> {
        self.world.engine.stats(rlock_core::Kind::Mutex).named().into_iter().collect()
    }

    fn sample(&mut self, found: &mut Findings) {
        let waiting = self.world.engine.waiting();
        found.waiting_mean += waiting as f64;
        if waiting >= found.waiting_most {
            found.waiting_most = waiting;
            found.waiters_bytes = self.world.engine.waiters_bytes();
        }
        let held = self.world.engine.held();
        if held > found.held_most {
            found.held_most = held;
            found.value_bytes = self.world.value_bytes();
        }
    }

    fn conclude(
        mut self,
        mut found: Findings,
        before: (crate::world::Costs, HashMap<&'static str, u64>, u64),
        samples: u64,
        begin_us: u64,
    ) -> Findings {
        let (costs, stats, operations) = before;
        let now = self.stats();
        let since = |name: &str| now.get(name).copied().unwrap_or(0) - stats.get(name).copied().unwrap_or(0);
        found.seconds = (self.world.now_us - begin_us) as f64 / 1e6;
        found.granted = since("granted_at_once") + since("granted_after_waiting");
        found.handed_over = since("handed_over");
        found.timed_out = since("timed_out");
        found.expired = since("expired");
        found.disconnected = since("disconnected");
        found.waiting_mean /= samples.max(1) as f64;
        found.operations = self.operations - operations;
        found.engine_s = (self.world.costs.engine - costs.engine).as_secs_f64();
        found.longest_us = self.world.costs.longest.as_secs_f64() * 1e6;
        found.replicated_bytes = self.world.costs.replicated_bytes - costs.replicated_bytes;
        let now = rlock_core::Now { mono_us: self.world.now_us, wall_us: self.world.now_us };
        let waits = self.world.engine.wait_summary(now);
        (found.wait_p50_us, found.wait_p99_us) = (waits.p50_us, waits.p99_us);
        found
    }
}

fn owner_of(node: u64, client: usize) -> String {
    format!("node-{node:04}.example/worker-{client:07}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn herd() -> Fleet {
        Fleet {
            name: "herd",
            nodes: 10,
            clients: 200,
            locks: 1,
            think_us: 1e6,
            least_hold_us: 1000.0,
            most_hold_us: 1000.0,
            between_crashes_us: 0,
            stuck_in_a_million: 0.0,
            span_us: 10_000_000,
            is_herd: true,
        }
    }

    #[test]
    fn a_herd_is_served_one_after_the_other() {
        let found = herd().simulate(1);
        assert_eq!((found.granted, found.handed_over, found.timed_out), (200, 199, 0));
        assert_eq!(found.seconds, 0.2);
    }

    #[test]
    fn a_client_that_hangs_costs_its_lease() {
        let found = Fleet { clients: 2, stuck_in_a_million: 1e6, span_us: 70_000_000, ..herd() }.simulate(1);
        assert!(found.expired >= 2, "{found:?}");
    }

    #[test]
    fn the_clients_of_a_node_that_crashes_hold_and_wait_no_longer() {
        let found = Fleet { between_crashes_us: 50_000, most_hold_us: 1e6, least_hold_us: 1e6, ..herd() }.simulate(1);
        assert!(found.disconnected > 0 && found.expired > 0, "{found:?}");
    }
}
