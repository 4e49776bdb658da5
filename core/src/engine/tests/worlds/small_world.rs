//! A world so small that all that can happen in it can be tried, with an oracle beside each of its keys.

use core::num::NonZeroU32;
use std::vec::Vec;

use super::action::{Action, Asks, Means};
use super::kept::Kept;
use super::oracle::circles;
use super::oracle::fair::FairOracle;
use super::oracle::fair_places::{FairWish, Stay};
use super::oracle::holds::Back;
use super::oracle::line::Wish;
use super::oracle::{self, Oracle, Told};
use super::search::Setup;
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::engine::tests::keyspace::Value;
use crate::engine::tests::world::{World, key};
use crate::engine::work::Scarcity;
use crate::kind::{Kind, Mode};
use crate::lock::{Hold, Lock};
use crate::request::{Ask, Cancel, Channel, Refusal, Release, Renew, Request, Verb};
use crate::time::US_PER_MS;

/// How long it takes until something may have become due.
const TICK_MS: u64 = 10;
const SESSION_MS: u64 = 5;
const LEASE_MS: u64 = 15;
const WAIT_MS: u64 = 25;
/// The lease of a renewal: longer than what is left of a hold after a while, and shorter than what is left at first.
const RENEW_MS: u64 = 12;
/// The life of a place that is asked for without a connection.
const QUEUE_MS: u64 = 30;

const MAX_OWNERS: usize = 3;

/// Says in plain words what each key of a world does.
pub(super) enum Spec {
    Plain(Vec<Oracle>),
    Fair(Vec<FairOracle>),
    /// Only what must hold in any history is checked.
    None,
}

/// A request that has waited.
pub(super) struct Ticket {
    pub(super) ticket: u64,
    pub(super) key: usize,
    pub(super) owner: u8,
    pub(super) asked: (Mode, u32),
    pub(super) until_ms: u64,
}

pub(super) struct SmallWorld {
    pub(super) world: World,
    pub(super) setup: &'static Setup,
    pub(super) spec: Spec,
    pub(super) tickets: Vec<Ticket>,
    /// What waiters were answered since the world was last at rest.
    pub(super) answers: Vec<(usize, u8, Told)>,
    /// Grants that nobody was told of, and that nobody has used: key, owner and token.
    pub(super) lost: Vec<(usize, u8, u64)>,
    kept: Kept,
    /// The present connection of each owner. A new one has a number above all, as on a server.
    pub(super) connections: [u64; MAX_OWNERS],
    /// Tokens that their owners were told. Whoever loses a later answer with one of them keeps what it knew of.
    pub(super) told: Vec<u64>,
}

impl SmallWorld {
    pub(super) fn new(setup: &'static Setup) -> Self {
        let mut world = World::new();
        if setup.is_in_parts {
            let (own, shared, search_steps, parts, bindings) = (0, 1, 1000, 1, 1);
            world.engine.work.make_scarce(Scarcity { own, shared, search_steps, parts, bindings });
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
            connections: [1, 2, 3],
            told: Vec::new(),
        }
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.world.now.mono_us / US_PER_MS
    }

    /// Does something, and compares. `false` if that is not possible now, and nothing was done.
    pub(super) fn act(&mut self, action: Action) -> bool {
        let now_ms = self.now_ms();
        self.kept.forget(action);
        match action {
            Action::Acquire { key, owner, mode, count, ask } => {
                // Who waits sends the same request again at most, and that only if it is numbered.
                let is_other = |waiting: &Ticket| ask != Asks::Notified || waiting.asked != (mode, count);
                let waits = match ask {
                    Asks::Wait | Asks::Notified => true,
                    Asks::Bound => !matches!(self.spec, Spec::None),
                    _ => false,
                };
                if waits && self.waiting(key, owner).is_some_and(is_other) {
                    return false;
                }
                self.acquire(key, owner, mode, count, ask);
            }
            Action::Release { key, owner, mode } => self.release(key, owner, mode, Means::Any),
            Action::ReleaseToken { key, owner, mode, means } => self.release(key, owner, mode, means),
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
            Action::Cancel { owner } => {
                let who = [owner];
                let cancel = Cancel { kind: self.kind(0), owner: &who, request_id: None };
                let _ = self.world.on_key(&name(0), |engine, tx| engine.cancel(tx, &cancel));
                match &mut self.spec {
                    Spec::Plain(oracles) => oracles[0].cancel(owner, now_ms),
                    Spec::Fair(oracles) => oracles[0].cancel(owner, now_ms),
                    Spec::None => {}
                }
                assert!(self.waiting(0, owner).is_none(), "who has cancelled does not wait");
            }
            Action::Leave { key, owner } => return self.leave(key, owner),
            Action::Hear => {
                if !self.world.engine.has_undelivered_grants() {
                    return false;
                }
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
            Action::Init { key } => {
                let permits = self.setup.permits;
                let made = self.world.on_key(&name(key), |engine, tx| engine.init_semaphore(tx, permits));
                assert!(made.is_ok(), "a semaphore can be made");
                if let Spec::Plain(oracles) = &mut self.spec {
                    oracles[key].init(permits, now_ms);
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

    /// What is the server's affair, or known to worlds without an oracle only.
    fn act_on_any(&mut self, action: Action) -> bool {
        match action {
            Action::AcquireMany { owner, waits } => self.acquire_many(owner, waits),
            Action::ReleaseMany { owner } => {
                let (verb, kind, mode) = (Verb::ReleaseMany, Kind::Mutex, Mode::Exclusive);
                let owner = [owner];
                let request = Release { verb, kind, owner: &owner, mode, count: 1, request_id: None, tokens: &[] };
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
                self.world.arrive(&name(0), Value::Lock(lock));
            }
            Action::Swap => self.world.swap(),
            Action::Flush => self.world.flush(),
            Action::Promote => self.world.engine.promoted(),
            Action::Part => self.world.run_timer_once(),
            Action::Demote => {
                // What there was to tell is told before.
                self.publish(true);
                self.world.demote();
            }
            Action::ChannelGone { owner } => self.take_channel_away(owner),
            Action::Resize { permits } => {
                let _ = self.world.on_key(&name(0), |engine, tx| engine.resize_semaphore(tx, permits));
            }
            _ => return false,
        }
        true
    }

    fn all(&self) -> Vec<Key> {
        (0..self.setup.keys).map(name).collect()
    }

    fn kind(&self, key: usize) -> Kind {
        if self.setup.is_mixed && key == 1 { self.setup.other_kind } else { self.setup.kind }
    }

    pub(super) fn client(&self, owner: u8) -> u64 {
        self.connections[usize::from(owner)]
    }

    pub(super) fn waiting(&self, key: usize, owner: u8) -> Option<&Ticket> {
        let is_it = |ticket: &&Ticket| (ticket.key, ticket.owner) == (key, owner);
        self.tickets.iter().filter(is_it).find(|ticket| self.world.engine.is_waiting(ticket.ticket))
    }

    /// The one place where a request is made: see [`Asks`] for what is asked.
    fn request(&self, kind: Kind, mode: Mode, count: u32, ask: Asks, owner: u8) -> Request {
        let until_us = Some(self.world.now.after_ms(WAIT_MS));
        Request {
            verb: Verb::Acquire,
            kind,
            mode,
            count,
            lease_ms: LEASE_MS,
            request_id: matches!(ask, Asks::Numbered | Asks::Notified).then_some(1),
            session_ms: matches!(ask, Asks::Bound).then_some(SESSION_MS),
            is_once: matches!(ask, Asks::Once | Asks::Notified),
            notify: matches!(ask, Asks::Notified).then(|| channel(owner)),
            ask: match ask {
                Asks::Try | Asks::Once => Ask::Try,
                Asks::Queue => Ask::Queue { life_ms: QUEUE_MS },
                Asks::Wait | Asks::Bound | Asks::Numbered | Asks::Notified => Ask::Wait { until_us },
            },
        }
    }

    fn acquire(&mut self, key: usize, owner: u8, mode: Mode, count: u32, ask: Asks) {
        let now_ms = self.now_ms();
        let request = self.request(mode_kind(mode, self.kind(key)), mode, count, ask, owner);
        self.lost.retain(|(of, by, _)| (*of, *by) != (key, owner));
        // Another request of the same owner that waits may be granted in the same step.
        let is_alone = self.waiting(key, owner).is_none();
        let granted_before = self.numbered(key, owner, mode).filter(|_| ask == Asks::Numbered && is_alone);
        self.world.client = Some(self.client(owner));
        let acquired = self.world.on_key(&name(key), |engine, tx| engine.acquire(tx, &[owner], &request));
        let told = self.note(acquired, key, owner, (mode, count));
        if told == Told::Granted {
            self.kept.keep(&self.world, key, owner, mode);
        }
        if granted_before.is_some() && told == Told::Granted {
            assert_eq!(self.numbered(key, owner, mode), granted_before, "a repeated request counts once");
        }
        let waits = matches!(ask, Asks::Wait | Asks::Notified | Asks::Bound);
        let expected = match &mut self.spec {
            Spec::Plain(oracles) => {
                let wish = Wish {
                    mode,
                    count,
                    lease_ms: LEASE_MS,
                    wait_ms: waits.then_some(WAIT_MS),
                    session_ms: request.session_ms,
                    id: request.request_id,
                    is_once: request.is_once,
                    is_notified: request.notify.is_some(),
                };
                let told = oracles[key].acquire(owner, wish, now_ms);
                if told == Told::Waits && circles::closes_a_circle(oracles, key, owner, now_ms) {
                    oracles[key].leave_line(owner);
                    Told::Deadlock
                } else {
                    told
                }
            }
            Spec::Fair(oracles) => {
                let stay = match ask {
                    Asks::Queue => Stay::Polled(QUEUE_MS),
                    _ if waits => Stay::Connected(WAIT_MS),
                    _ => Stay::No,
                };
                circles::acquire_fair(oracles, key, owner, FairWish { lease_ms: LEASE_MS, stay }, now_ms)
            }
            Spec::None => return,
        };
        assert_eq!(told, expected, "the answer to ACQUIRE");
    }

    /// The token and the count of the hold that the numbered request of an owner has made, if it is not about to be taken back.
    fn numbered(&self, key: usize, owner: u8, mode: Mode) -> Option<(u64, u32)> {
        let hold = self.world.lock(&name(key))?.live_hold(&[owner], mode, self.world.now)?;
        let dirty = self.world.engine.queues.record(name(key).borrow()).and_then(|record| record.dirty.as_ref());
        if dirty.is_some_and(|dirty| dirty.undelivered.iter().any(|grant| grant.token == hold.token())) {
            return None;
        }
        hold.request().is_some_and(|mark| mark.verb == Verb::Acquire).then(|| (hold.token(), hold.count()))
    }

    /// A hold with a session that no connection is bound to is about to end.
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

    fn acquire_many(&mut self, owner: u8, waits: bool) {
        let ask = if waits { Asks::Wait } else { Asks::Try };
        let request = Request { verb: Verb::AcquireMany, ..self.request(Kind::Mutex, Mode::Exclusive, 1, ask, owner) };
        self.world.client = Some(self.client(owner));
        let keys = self.all();
        let acquired = self.world.on_keys(&keys, |engine, tx| engine.acquire(tx, &[owner], &request));
        let told = self.note(acquired, 0, owner, (Mode::Exclusive, 1));
        let now = self.world.now;
        let holds = |key: &Key| {
            self.world.lock(key).is_some_and(|lock| lock.live_hold(&[owner], Mode::Exclusive, now).is_some())
        };
        assert!(told != Told::Granted || keys.iter().all(holds), "all or nothing");
    }

    fn note(&mut self, acquired: Result<Acquired, Refusal>, key: usize, owner: u8, asked: (Mode, u32)) -> Told {
        match acquired {
            Ok(Acquired::Granted(tokens)) => {
                self.told.extend(tokens);
                Told::Granted
            }
            Ok(Acquired::Denied) => Told::Nil,
            Ok(Acquired::Waiting(ticket)) => {
                self.world.expect_answer(ticket);
                self.tickets.push(Ticket { ticket, key, owner, asked, until_ms: self.now_ms() + WAIT_MS });
                Told::Waits
            }
            Err(Refusal::Deadlock(_)) => Told::Deadlock,
            Err(_) => Told::Refused,
        }
    }

    fn release(&mut self, key: usize, owner: u8, mode: Mode, means: Means) {
        let (now_ms, kind, who) = (self.now_ms(), mode_kind(mode, self.kind(key)), [owner]);
        let (tokens, is_meant) = self.meant(key, owner, mode, means);
        let tokens = &tokens;
        let request = Release { verb: Verb::Release, kind, owner: &who, mode, count: 1, request_id: None, tokens };
        let left = self.world.on_key(&name(key), |engine, tx| engine.release(tx, &request));
        let told = match left {
            Ok(left) => Told::Left(left[0]),
            Err(Refusal::NotOwner { .. }) => Told::NotOwner,
            Err(_) => Told::Refused,
        };
        assert!(is_meant || !matches!(told, Told::Left(_)), "a hold is released by its own token");
        let expected = match &mut self.spec {
            Spec::Plain(oracles) => oracles[key].release(owner, Back { mode, count: 1, id: None, is_meant }, now_ms),
            Spec::Fair(oracles) => oracles[key].release(owner, is_meant, now_ms),
            Spec::None => return,
        };
        assert_eq!(told, expected, "the answer to RELEASE");
    }

    fn renew(&mut self, key: usize, owner: u8, mode: Mode, means: Means) {
        let (now_ms, kind, who) = (self.now_ms(), mode_kind(mode, self.kind(key)), [owner]);
        let (tokens, is_meant) = self.meant(key, owner, mode, means);
        let request = Renew { kind, owner: &who, mode, lease_ms: Some(RENEW_MS), tokens: &tokens };
        self.world.client = Some(self.client(owner));
        let renewed = self.world.on_key(&name(key), |engine, tx| engine.renew(tx, &request));
        if renewed.is_ok() {
            self.kept.keep(&self.world, key, owner, mode);
        }
        assert!(is_meant || renewed.is_err(), "a hold is renewed by its own token");
        let expected = match &mut self.spec {
            Spec::Plain(oracles) => oracles[key].renew(owner, mode, is_meant, RENEW_MS, now_ms),
            Spec::Fair(oracles) => oracles[key].renew(owner, is_meant, RENEW_MS, now_ms),
            Spec::None => return,
        };
        assert_eq!(renewed.is_ok(), matches!(expected, Told::Left(_)), "the answer to RENEW");
    }

    /// What TOKEN says, and whether it is that of a hold which is there.
    fn meant(&mut self, key: usize, owner: u8, mode: Mode, means: Means) -> (Vec<u64>, bool) {
        self.lost.retain(|(of, by, _)| (*of, *by) != (key, owner));
        let now = self.world.now;
        let lock = self.world.lock(&name(key));
        let token = lock.and_then(|lock| lock.live_hold(&[owner], mode, now)).map(Hold::token);
        match means {
            Means::Any => (Vec::new(), true),
            Means::Own => (token.into_iter().chain([1]).take(1).collect(), token.is_some()),
            Means::Earlier => (token.map(|token| token - 1).into_iter().chain([1]).take(1).collect(), false),
        }
    }

    /// Lets the timer run now, and whenever something is due until some time has passed.
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

/// The family of commands for a mode; where both are possible, the one that the key is for.
fn mode_kind(mode: Mode, kind: Kind) -> Kind {
    match mode {
        Mode::Exclusive if kind == Kind::Fair => Kind::Fair,
        Mode::Exclusive => Kind::Mutex,
        Mode::Read | Mode::Write => Kind::RwLock,
        Mode::Permits => Kind::Semaphore,
    }
}
