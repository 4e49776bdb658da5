//! A master's own work: its tick, its timer, and one step of the engine with the answers and
//! effects that it publishes.

use std::vec::Vec;

use super::action::Ask;
use super::fault::Fault;
use super::server::{Sent, Server, Waiting};
use super::world::{TICK_US, World, number_of, open};
use crate::effect::{Facts, write_effect};
use crate::engine::tests::keyspace::Open;
use crate::engine::{Engine, Transaction};
use crate::exclusion::{Exclusion, Readings, Replication};
use crate::limits::{Limits, MayGrant};
use crate::outbox::{Answer, Grant, Outbox};
use crate::time::US_PER_MS;

/// How long a fair lock keeps a place.
const GRACE: u64 = 2;

/// The purpose for which the core asks whether it may grant.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Timer,
    Renewal,
    /// `holds` in the same mode, `holds_other` in another one.
    Attempt {
        ask: Ask,
        holds: bool,
        holds_other: bool,
    },
}

/// The readings of a tick.
pub(super) struct Plain<'w> {
    pub(super) now_us: u64,
    pub(super) replication: &'w Replication,
}

impl Readings for Plain<'_> {
    fn clock_us(&mut self) -> u64 {
        self.now_us
    }

    fn replication(&mut self) -> Replication {
        self.replication.clone()
    }
}

/// The readings of a tick, with a failover between two of them.
struct Between<'w, 's> {
    world: &'w mut World<'s>,
    server: usize,
    readings: usize,
    /// The reading before which the failover happens.
    late: usize,
    /// The state of the replication for a tick that reads the clock last.
    early: Option<Replication>,
}

impl Between<'_, '_> {
    fn reads(&mut self) {
        self.readings += 1;
        if self.readings == self.late {
            self.world.meanwhile(self.server);
        }
    }
}

impl Readings for Between<'_, '_> {
    fn clock_us(&mut self) -> u64 {
        self.reads();
        if self.world.fault == Fault::ClockAfterOffset && self.readings == 1 {
            self.early = Some(self.world.replication(self.server));
            self.reads();
        }
        self.world.now * TICK_US
    }

    fn replication(&mut self) -> Replication {
        self.early.take().unwrap_or_else(|| {
            self.reads();
            self.world.replication(self.server)
        })
    }
}

impl World<'_> {
    pub(super) fn tick(&mut self, number: usize) {
        self.server(number).read_acknowledgements();
        let replication = self.replication(number);
        let (now_us, fault) = (self.now * TICK_US, self.fault);
        let exclusion = &mut self.server(number).exclusion;
        match fault {
            Fault::StampsWhenRead => exclusion.right.noted.values_mut().for_each(|at_us| *at_us = now_us),
            Fault::GoesOn if exclusion.right.has_begun => {
                exclusion.right.until_us = exclusion.right.until_us.max(now_us + 1);
            }
            _ => {}
        }
        let before = exclusion.clone();
        let ticked = exclusion.on_tick(true, &mut Plain { now_us, replication: &replication });
        self.after_tick(number, &before, ticked);
    }

    pub(super) fn slow_tick(&mut self, number: usize, late: usize) {
        self.server(number).read_acknowledgements();
        let mut exclusion = std::mem::take(&mut self.server(number).exclusion);
        let before = exclusion.clone();
        let mut between = Between { world: self, server: number, readings: 0, late, early: None };
        let ticked = exclusion.on_tick(true, &mut between);
        self.server(number).exclusion = exclusion;
        self.after_tick(number, &before, ticked);
    }

    /// The events between the readings of a slow tick.
    pub(super) fn meanwhile(&mut self, master: usize) {
        self.ping(master);
        for replica in self.replicas_of(master) {
            self.receive(replica);
        }
        self.fail_over(1);
        self.now += 1;
    }

    fn after_tick(&mut self, number: usize, before: &Exclusion, ticked: Option<MayGrant>) {
        let (now_us, fault) = (self.now * TICK_US, self.fault);
        let exclusion = &mut self.server(number).exclusion;
        if exclusion.quarantine_until_us != before.quarantine_until_us {
            // In ticks the last moment of a right is one before its end, so a quarantine that is one
            // shorter than the longest lease is just long enough.
            let shorter = if fault == Fault::TooShort { 2 } else { 1 };
            exclusion.quarantine_until_us -= shorter * TICK_US;
        }
        match fault {
            Fault::NoQuarantine => exclusion.quarantine_until_us = 0,
            Fault::NotAnew if before.quarantine_until_us > now_us => {
                exclusion.quarantine_until_us = before.quarantine_until_us;
            }
            Fault::CountsAtOnce => {
                exclusion.right.votes.values_mut().for_each(|vote| vote.since_us = 0);
            }
            _ => {}
        }
        if ticked == Some(MayGrant::Yes) {
            self.shown.ended |= exclusion.quarantine_until_us > 0;
            let now = self.now_of(number);
            self.server(number).engine.grants_resumed(now);
        }
        self.ping(number);
        self.begin_turn(number);
        self.run_timer(number);
    }

    /// A turn of the server begins: it has written its answers.
    pub(super) fn begin_turn(&mut self, number: usize) {
        self.send_answers(number);
        self.server(number).engine.begin_turn();
    }

    /// A turn has ended: waiters get their answers. With SESSION an owner does not believe before it
    /// has asked again.
    pub(super) fn send_answers(&mut self, number: usize) {
        let Server { engine, waiting, .. } = self.server(number);
        engine.confirm_grants(|_| true);
        for Waiting { owner, key, ask, sent, granted, .. } in
            waiting.extract_if(.., |one| !engine.is_waiting(one.ticket)).collect::<Vec<_>>()
        {
            if let (Some((token, lasts)), Ask::Wait(mode, count), false) = (granted, ask, self.setup.has_sessions) {
                self.owners[usize::from(owner)].granted(key, mode, count, token, lasts, sent, self.now);
                self.note_belief(number);
            }
        }
    }

    pub(super) fn run_timer(&mut self, number: usize) {
        for turn in 0.. {
            assert!(turn < 1000, "the timer finishes");
            self.server(number).engine.begin_turn();
            for step in 0.. {
                assert!(step < 1000, "the turn finishes");
                self.take_offers(number);
                let (now, mut out) = (self.now_of(number), Outbox::new(true));
                let job = self.server(number).engine.next_job(now, &mut out);
                self.publish(number, &[], &out);
                let Some(job) = job else { break };
                let keys = [number_of(job.key.borrow())];
                self.transact(number, &keys, None, Purpose::Timer, |engine, tx| engine.run_job(tx, &job));
            }
            let (due_us, now_us) = (self.servers[number].engine.next_timeout_us(), self.now * TICK_US);
            if due_us.is_none_or(|due_us| due_us > now_us) {
                break;
            }
        }
    }

    pub(super) fn take_offers(&mut self, number: usize) {
        while let Some((offer, keys)) = self.server(number).engine.next_offer(|_| true) {
            let keys: Vec<usize> = keys.iter().map(|key| number_of(key.borrow())).collect();
            self.transact(number, &keys, None, Purpose::Timer, |engine, tx| engine.take_offer(tx, offer));
        }
    }

    /// Whether the server may grant, by the rules or by the wrong one.
    pub(super) fn may_grant(&mut self, number: usize, purpose: Purpose) -> MayGrant {
        let (now_us, fault) = (self.now * TICK_US, self.fault);
        let may_grant = self.server(number).exclusion.may_grant(now_us);
        let is_wrong = match (fault, purpose) {
            (Fault::Reenters, Purpose::Attempt { ask: Ask::Try(..), holds, .. })
            | (Fault::AnswersOnce, Purpose::Attempt { ask: Ask::Once(..), holds, .. })
            | (Fault::AnswersRetries, Purpose::Attempt { ask: Ask::Wait(..), holds, .. }) => holds,
            (Fault::ChangesModes, Purpose::Attempt { ask: Ask::Try(..), holds_other, .. }) => holds_other,
            (Fault::Drains, Purpose::Attempt { ask: Ask::Drain, .. }) => true,
            _ => false,
        };
        match (may_grant, fault, purpose) {
            (MayGrant::Quarantine { .. }, ..) if is_wrong => MayGrant::Yes,
            (MayGrant::NoReplicas, Fault::RenewsAtOnce, Purpose::Renewal) => MayGrant::Quarantine { left_ms: 1 },
            (MayGrant::NoReplicas, Fault::TimerGrants, Purpose::Timer) => MayGrant::Yes,
            _ => may_grant,
        }
    }

    pub(super) fn transact<R>(
        &mut self,
        number: usize,
        keys: &[usize],
        client: Option<u64>,
        purpose: Purpose,
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        let may_grant = self.may_grant(number, purpose);
        let limits =
            Limits { max_waiters: 6, max_places: 8, fair_grace_ms: GRACE, max_lease_ms: self.lease(number), may_grant };
        let now = self.now_of(number);
        let mut out = Outbox::new(true);
        let Server { engine, values, .. } = self.server(number);
        let mut open = open(values, keys, client);
        let mut tx = Transaction::new(now, limits, &mut open, &mut out);
        let result = request(engine, &mut tx);
        self.publish(number, keys, &out);
        result
    }

    /// Sends the effects to the replicas, and the answers to the waiters.
    pub(super) fn publish(&mut self, number: usize, keys: &[usize], out: &Outbox) {
        let now = self.now_of(number);
        let replicas = self.replicas_of(number);
        for (index, effect) in out.effects().iter().enumerate() {
            let event = out.event(index).expect("an outbox that keeps events");
            self.server(number).offset += 1;
            let mut facts = Facts::default();
            let arguments = write_effect(event, now, &mut facts).in_order();
            for replica in &replicas {
                let arguments = arguments.map(|argument| argument.map(<[u8]>::to_vec));
                let sent = Sent { key: keys[effect.key.0], facts: facts.to_vec(), arguments };
                self.server(*replica).on_the_way.push(sent);
            }
        }
        for told in out.answers() {
            let waiting = &mut self.server(number).waiting;
            let Some(at) = waiting.iter().position(|waiting| waiting.ticket == told.ticket) else { continue };
            if let Answer::Granted(Grant { tokens, belief: Some(belief), .. }) = &told.answer {
                // It gets the answer when the turn ends, because its connection may close before
                // that.
                waiting[at].granted = Some((tokens[0], belief.ms() * US_PER_MS / TICK_US));
                self.note_grant(number);
            } else {
                waiting.remove(at);
            }
        }
    }

    pub(super) fn note_grant(&mut self, number: usize) {
        let until_us = self.servers[number].exclusion.quarantine_until_us;
        self.shown.granted_after |= until_us > 0 && until_us <= self.now * TICK_US;
    }
}
