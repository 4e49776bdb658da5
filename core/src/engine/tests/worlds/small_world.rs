//! A world so small that a search can try all of its actions, with an oracle beside each key.

use core::num::NonZeroU32;
use std::vec::Vec;

use super::action::{Action, Means};
use super::commands::{Asked, SESSION_MS, refused};
use super::kept::Kept;
use super::oracle::circles;
use super::oracle::fair::FairOracle;
use super::oracle::{self, Oracle, Told};
use super::remembered::{self, Remembered};
use super::search::Setup;
use crate::budget::Scarcity;
use crate::bytes::Key;
use crate::engine::tests::keyspace::Value;
use crate::engine::tests::world::{World, key, releasing};
use crate::kind::{Kind, Mode};
use crate::lock::{Hold, Lock};
use crate::request::{Cancel, Channel, Release, Verb};
use crate::time::US_PER_MS;

/// The time until something may be due.
const TICK_MS: u64 = 10;

const MAX_OWNERS: usize = 3;

/// A simple description of the behavior of each key.
pub(super) enum Spec {
    Plain(Vec<Oracle>),
    Fair(Vec<FairOracle>),
    /// Checks only the invariants of any history.
    None,
}

/// A request that has waited.
pub(super) struct Ticket {
    pub(super) ticket: u64,
    pub(super) key: usize,
    pub(super) owner: u8,
    pub(super) asked: Asked,
    pub(super) until_ms: u64,
}

pub(super) struct SmallWorld {
    pub(super) world: World,
    pub(super) setup: &'static Setup,
    pub(super) spec: Spec,
    pub(super) tickets: Vec<Ticket>,
    /// The answers to waiters since the world last had no work.
    pub(super) answers: Vec<(usize, u8, Told)>,
    /// Grants whose answer was lost, and which no owner has used: key, owner and token.
    pub(super) lost: Vec<(usize, u8, u64)>,
    pub(super) kept: Kept,
    pub(super) remembered: Remembered,
    /// The current connection of each owner. A new one gets a higher number than all others, as on
    /// a server.
    pub(super) connections: [u64; MAX_OWNERS],
    /// Tokens that their owners know. An owner that loses a later answer with the same token still
    /// knows it.
    pub(super) told: Vec<u64>,
}

impl SmallWorld {
    pub(super) fn new(setup: &'static Setup) -> Self {
        let mut world = World::new();
        if setup.is_in_parts {
            let (own, shared, search_steps, parts, bindings) = (0, 1, 1000, 1, 1);
            world.engine.budget.make_scarce(Scarcity { own, shared, search_steps, parts, bindings });
        }
        let plain = |kind| Spec::Plain((0..setup.keys).map(|_| Oracle::new(kind)).collect());
        let spec = match setup.kind {
            _ if setup.is_mixed => Spec::None,
            Kind::Mutex => plain(oracle::Kind::Mutex),
            Kind::RwLock => plain(oracle::Kind::ReadWrite),
            Kind::Semaphore => plain(oracle::Kind::Semaphore(Some(setup.permits))),
            Kind::Fair => Spec::Fair((0..setup.keys).map(|_| FairOracle::default()).collect()),
        };
        if setup.kind == Kind::Semaphore {
            for number in 0..setup.keys {
                world.arrive(&name(number), Value::Lock(Lock::new(Kind::Semaphore, setup.permits)));
            }
            world.run_timer();
        }
        Self {
            world,
            setup,
            spec,
            tickets: Vec::new(),
            answers: Vec::new(),
            lost: Vec::new(),
            kept: Kept::default(),
            remembered: Remembered::default(),
            connections: [1, 2, 3],
            told: Vec::new(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.world.now.mono_us / US_PER_MS
    }

    /// Runs an action, and compares. `false` if the action is not possible now, and nothing was
    /// done.
    pub(super) fn act(&mut self, action: Action) -> bool {
        let now_ms = self.now_ms();
        self.kept.forget(action);
        match action {
            Action::Acquire { key, owner, mode, count, ask, id } => {
                let asked = Asked { mode, count, ask, id };
                // The engine searches for cycles at once, and the timer again. An event of another
                // lock may come between the two.
                let is_searched_twice = self.setup.keys > 1 && self.waits_anew(key, owner, asked);
                if is_searched_twice {
                    self.run_timer(0);
                }
                self.acquire(key, owner, asked);
                if is_searched_twice {
                    self.run_timer(0);
                }
            }
            Action::Release { key, owner, mode, id } => self.release(key, owner, mode, id, Means::Any),
            Action::Keep { key, owner, id } => self.release_and_keep(key, owner, id),
            Action::ReleaseToken { key, owner, mode, means } => self.release(key, owner, mode, None, means),
            Action::Renew { key, owner, mode } => self.renew(key, owner, mode, Means::Any),
            Action::RenewToken { key, owner, mode, means } => self.renew(key, owner, mode, means),
            Action::Publish { is_heard } => return self.publish(is_heard),
            Action::Disconnect { owner } => return self.disconnect(owner),
            Action::Force { key } => {
                let kind = self.kind(key);
                let _ = self.world.on_key(&name(key), |engine, tx| engine.force_release(tx, Some(kind), None));
                match &mut self.spec {
                    Spec::Plain(oracles) => oracles[key].force(now_ms),
                    Spec::Fair(oracles) => oracles[key].force(now_ms),
                    Spec::None => {}
                }
            }
            Action::Cancel { owner, id } => {
                let who = [owner];
                let cancel = Cancel { kind: self.kind(0), owner: &who, request_id: id };
                let _ = self.world.on_key(&name(0), |engine, tx| engine.cancel(tx, &cancel));
                match &mut self.spec {
                    Spec::Plain(oracles) => oracles[0].cancel(owner, id, now_ms),
                    Spec::Fair(oracles) => oracles[0].cancel(owner, id, now_ms),
                    Spec::None => {}
                }
                let still_waits =
                    self.waiting(0, owner).is_some_and(|waiting| id.is_none_or(|id| waiting.asked.id == Some(id)));
                assert!(!still_waits, "a cancelled request does not wait");
                if id.is_some() {
                    Mode::ALL.iter().for_each(|mode| self.remembered.forget((0, owner, *mode)));
                }
            }
            Action::Leave { key, owner } => return self.leave(key, owner),
            Action::Hear => {
                if !self.world.engine.has_pending_answers() {
                    return false;
                }
                self.remember_grants();
                self.world.engine.confirm_grants(|_| true);
                match &mut self.spec {
                    Spec::Plain(oracles) => oracles.iter_mut().for_each(Oracle::hear_all),
                    Spec::Fair(oracles) => oracles.iter_mut().for_each(FairOracle::hear_all),
                    Spec::None => {}
                }
            }
            Action::Delete { key } => {
                if self.world.unlink(&name(key)).is_none() {
                    return false;
                }
                self.world.engine.value_changed(name(key).borrow());
                match &mut self.spec {
                    Spec::Plain(oracles) => oracles[key].delete(),
                    Spec::Fair(oracles) => oracles[key].delete(),
                    Spec::None => {}
                }
            }
            Action::Init { key, idle_ms } => {
                let permits = self.setup.permits;
                let made = self.world.on_key(&name(key), |engine, tx| engine.init_semaphore(tx, permits, idle_ms));
                assert!(made.is_ok(), "INIT creates a semaphore");
                if let Spec::Plain(oracles) = &mut self.spec {
                    oracles[key].init(permits, idle_ms, now_ms);
                }
            }
            Action::FailOver => {
                self.world.fail_over();
                self.tickets.clear();
                self.answers.clear();
                self.lost.clear();
                match &mut self.spec {
                    Spec::Plain(oracles) => oracles.iter_mut().for_each(|oracle| {
                        oracle.fail_over();
                        oracle.answers.clear();
                    }),
                    Spec::Fair(oracles) => oracles.iter_mut().for_each(|oracle| {
                        oracle.fail_over();
                        oracle.answers.clear();
                    }),
                    Spec::None => {}
                }
            }
            Action::Pause => self.world.pause(TICK_MS),
            Action::Timer => self.run_timer(0),
            Action::Tick => self.run_timer(TICK_MS),
            _ if !self.act_on_any(action) => return false,
            _ => {}
        }
        self.kept.check_kept(&self.world);
        true
    }

    /// Actions of the server, or actions that only worlds without an oracle know.
    fn act_on_any(&mut self, action: Action) -> bool {
        match action {
            Action::AcquireMany { owner, ask } => self.acquire_many(owner, ask),
            Action::ReleaseMany { owner } => {
                let owner = [owner];
                let one = releasing(Kind::Mutex, Mode::Exclusive, &owner);
                let request = Release { verb: Verb::ReleaseMany, ..one };
                let _ = self.world.on_keys(&self.all(), |engine, tx| engine.release(tx, &request));
            }
            Action::Close { owner } => {
                if !matches!(self.spec, Spec::None) && self.is_overdue(owner) {
                    return false;
                }
                for key in 0..self.setup.keys {
                    self.hang_up(key, owner);
                }
                self.world.engine.client_closed(self.client(owner), |_| false);
                self.connections[usize::from(owner)] = self.connections.iter().max().map_or(1, |newest| newest + 1);
                if let Spec::Plain(oracles) = &mut self.spec {
                    oracles.iter_mut().for_each(|oracle| oracle.close(owner));
                }
            }
            Action::Foreign { key } => self.world.arrive(&name(key), Value::Foreign),
            Action::Rename => {
                let Some(value) = self.world.unlink(&name(0)) else { return false };
                self.world.arrive(&name(1), value);
            }
            Action::Copy => {
                let Some(lock) = self.world.lock(&name(1)).cloned() else { return false };
                self.remembered.copy(&lock);
                self.world.arrive(&name(0), Value::Lock(lock));
            }
            Action::Swap => self.world.swap(),
            Action::Flush => self.world.flush(),
            Action::Promote => {
                self.world.engine.promoted();
                match &mut self.spec {
                    Spec::Plain(oracles) => oracles.iter_mut().for_each(Oracle::promote),
                    Spec::Fair(oracles) => oracles.iter_mut().for_each(FairOracle::promote),
                    Spec::None => {}
                }
            }
            Action::Part => self.world.run_timer_once(),
            Action::Demote => {
                // Publishes earlier answers first.
                self.publish(true);
                self.world.demote();
            }
            Action::ChannelGone { owner } => self.take_channel_away(owner),
            Action::Resize { permits } => {
                let now_ms = self.now_ms();
                let resized = self.world.on_key(&name(0), |engine, tx| engine.resize_semaphore(tx, permits));
                if let Spec::Plain(oracles) = &mut self.spec {
                    let told = resized.map_or_else(|refusal| refused(&refusal), Told::Free);
                    assert_eq!(told, oracles[0].resize(permits, now_ms), "the answer to RESIZE");
                }
            }
            Action::Drain { owner } => self.drain(owner),
            _ => return false,
        }
        true
    }

    pub(super) fn all(&self) -> Vec<Key> {
        (0..self.setup.keys).map(name).collect()
    }

    pub(super) fn kind(&self, key: usize) -> Kind {
        if self.setup.is_mixed && key == 1 { self.setup.other_kind } else { self.setup.kind }
    }

    pub(super) fn client(&self, owner: u8) -> u64 {
        self.connections[usize::from(owner)]
    }

    pub(super) fn waiting(&self, key: usize, owner: u8) -> Option<&Ticket> {
        let is_it = |ticket: &&Ticket| (ticket.key, ticket.owner) == (key, owner);
        self.tickets.iter().filter(is_it).find(|ticket| self.world.engine.is_waiting(ticket.ticket))
    }

    /// Owners that are about to receive their grants remember the request that was granted.
    fn remember_grants(&mut self) {
        for Ticket { ticket, key, owner, asked, .. } in &self.tickets {
            let whose = (*key, *owner, asked.mode);
            let held = remembered::hold(&self.world, whose).map(Hold::token);
            if self.world.engine.pending.holds(*ticket).any(|(_, token)| Some(*token) == held) {
                self.remembered.keep(&self.world, whose, asked.id, Verb::Acquire);
            }
        }
    }

    /// Whether a hold with a session but without a connection is about to end.
    fn check_sessions(&self) {
        let latest_us = self.world.now.after_ms(SESSION_MS);
        for key in self.all() {
            let Some(lock) = self.world.lock(&key) else { continue };
            for hold in lock.holds().iter().filter(|hold| hold.session_ms().is_some()) {
                let is_bound = !lock.clients(hold.token()).is_empty();
                assert!(is_bound || hold.deadline_us() <= latest_us, "a session ends with its connection");
            }
        }
    }

    /// Runs the timer now, and whenever something is due until some time has passed.
    fn run_timer(&mut self, ms: u64) {
        let (mut now_ms, end_ms) = (self.now_ms(), self.now_ms() + ms);
        self.world.advance(ms);
        self.world.run_timer();
        loop {
            let next_ms = match &mut self.spec {
                Spec::Plain(oracles) => {
                    circles::run_timers(oracles, now_ms);
                    oracles.iter().filter_map(Oracle::next_ms).min()
                }
                Spec::Fair(oracles) => {
                    oracles.iter_mut().for_each(|oracle| oracle.run_timer(now_ms));
                    oracles.iter().filter_map(FairOracle::next_ms).min()
                }
                Spec::None => None,
            };
            match next_ms.filter(|next_ms| *next_ms <= end_ms) {
                Some(next_ms) => now_ms = next_ms.max(now_ms),
                None => break,
            }
        }
        self.check_sessions();
        self.check_lost();
        self.compare();
    }
}

pub(super) fn name(number: usize) -> Key {
    key(["first", "second"][number])
}

/// The channel of an owner.
pub(super) fn channel(owner: u8) -> Channel {
    Channel(NonZeroU32::MIN.saturating_add(owner.into()))
}

/// The command family for a mode; if two are possible, the one that the key is for.
pub(super) fn mode_kind(mode: Mode, kind: Kind) -> Kind {
    match mode {
        Mode::Exclusive if kind == Kind::Fair => Kind::Fair,
        Mode::Exclusive => Kind::Mutex,
        Mode::Read | Mode::Write => Kind::RwLock,
        Mode::Permits => Kind::Semaphore,
    }
}
