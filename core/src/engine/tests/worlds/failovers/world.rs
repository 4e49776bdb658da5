//! Servers that replicate, owners that send requests, and time. One step at a time.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::vec::Vec;

use super::action::{Action, Ask};
use super::beliefs::{Beliefs, overlap};
use super::fault::Fault;
use super::server::{Link, Sent, Server, Values, Waiting};
use super::{LAG, LEASE, SESSION, Setup};
use crate::bytes::{Key, KeyRef};
use crate::codec::{decode, encode};
use crate::effect::{Facts, parse_effect, write_effect};
use crate::engine::tests::keyspace::{Open, Value};
use crate::engine::tests::world::key;
use crate::engine::tests::worlds::canonical::{OneServer, Seen};
use crate::engine::{Acquired, Engine, Transaction};
use crate::keyspace::KeyId;
use crate::kind::{Kind, Mode};
use crate::limits::{Limits, MayGrant};
use crate::lock::Lock;
use crate::outbox::{Answer, Outbox};
use crate::quarantine::{GrantRules, Quarantine, QuarantineAfter};
use crate::request::{Ask as How, Release, Renew, Request, Verb};
use crate::right_to_grant::{Readings, Replication};
use crate::time::{Now, US_PER_MS};

/// A tick is a millisecond, so nothing is rounded on the way to a replica.
const TICK_US: u64 = US_PER_MS;

/// The moment at which a world begins.
const BEGIN: u64 = 100;

static BARRED: BTreeSet<u64> = BTreeSet::new();

/// The events of a step.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Shown {
    /// A replica was promoted that lacks effects of its master.
    pub(super) lost_suffix: bool,
    /// Since the last promotion, owners have gained beliefs by an answer of the former master, and
    /// by one of the new master.
    pub(super) under_both: bool,
    /// A quarantine ended after a promotion.
    pub(super) ended: bool,
    /// The new master has granted after it.
    pub(super) granted_after: bool,
}

#[derive(Clone)]
pub(super) struct World<'s> {
    setup: &'s Setup,
    fault: Fault,
    now: u64,
    servers: Vec<Rc<Server>>,
    owners: [Beliefs; 2],
    /// An owner has sent a request.
    has_begun: bool,
    /// Whether some step gave an owner a belief by an answer of a former master, and of a new one.
    answered: [bool; 2],
    pub(super) shown: Shown,
}

/// For what the core asks whether it may grant.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    Timer,
    Renewal,
    /// Of an owner that holds in the same mode, or in another one.
    Attempt {
        ask: Ask,
        holds: bool,
        holds_other: bool,
    },
}

/// The two readings of a tick.
struct Plain<'w> {
    now_us: u64,
    replication: &'w Replication,
}

impl Readings for Plain<'_> {
    fn clock_us(&mut self) -> u64 {
        self.now_us
    }

    fn replication(&mut self) -> Option<Replication> {
        Some(self.replication.clone())
    }
}

/// The two readings of a tick, with a failover between them.
struct Between<'w, 's> {
    world: &'w mut World<'s>,
    server: usize,
    readings: usize,
    /// The state of the replication for a tick that reads the clock last.
    early: Option<Replication>,
}

impl Between<'_, '_> {
    fn reads(&mut self) {
        self.readings += 1;
        if self.readings == 2 {
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

    fn replication(&mut self) -> Option<Replication> {
        self.early.take().or_else(|| {
            self.reads();
            Some(self.world.replication(self.server))
        })
    }
}

impl<'s> World<'s> {
    pub(super) fn new(setup: &'s Setup, fault: Fault) -> Self {
        let servers = (0..setup.servers).map(|_| Rc::new(Server::new(setup.servers))).collect();
        let owners = [Beliefs::default(), Beliefs::default()];
        let answered = [false, false];
        let (has_begun, shown) = (false, Shown::default());
        let mut world = Self { setup, fault, now: BEGIN, servers, owners, has_begun, answered, shown };
        for number in 0..setup.servers {
            let server = world.server(number);
            if setup.kind == Kind::Semaphore {
                let lock = Lock::new(Kind::Semaphore, setup.permits);
                server.values.0.insert(at(0), Value::Lock(lock));
                server.engine.value_loaded(key(NAMES[0]));
            }
        }
        for replica in 1..setup.servers {
            world.follow(replica, 0);
        }
        for number in 0..setup.servers {
            // All have run for long.
            let rules = GrantRules { quarantine_after: QuarantineAfter::Empty, ..setup.rules() };
            let quarantine = &mut world.server(number).quarantine;
            *quarantine = Quarantine::new();
            quarantine.look(&rules, true, 0);
        }
        if setup.min_replicas > 0 {
            world.act(Action::Follow(0));
        }
        for action in &setup.begins_with {
            assert!(world.act(*action), "{action}");
        }
        world
    }

    fn server(&mut self, number: usize) -> &mut Server {
        Rc::make_mut(&mut self.servers[number])
    }

    fn now_of(&self, server: usize) -> Now {
        let wall = self.now + 1000 + self.setup.clocks_ahead[server];
        Now { mono_us: self.now * TICK_US, wall_us: wall * TICK_US }
    }

    fn rules(&self) -> GrantRules {
        let rules = self.setup.rules();
        match self.fault {
            Fault::TooShort => GrantRules { quarantine_ms: rules.quarantine_ms - 1, ..rules },
            Fault::NoQuarantine => GrantRules { quarantine_ms: 0, ..rules },
            _ => rules,
        }
    }

    fn is_master(&self, server: usize) -> bool {
        self.servers.get(server).is_some_and(|server| server.is_master())
    }

    fn replicas_of(&self, master: usize) -> Vec<usize> {
        (0..self.servers.len()).filter(|replica| self.servers[*replica].follows == Some(master)).collect()
    }

    fn newest_term(&self) -> u64 {
        self.servers.iter().map(|server| server.term).max().unwrap_or(0)
    }

    /// Whether two owners hold beliefs that exclude each other.
    pub(super) fn overlaps(&self) -> bool {
        overlap(&self.owners, self.setup.permits, self.now)
    }

    /// Takes a step. Returns `false` and does nothing if it is not possible now.
    pub(super) fn act(&mut self, action: Action) -> bool {
        self.shown = Shown::default();
        match action {
            Action::Pass(ticks) => self.now += ticks,
            Action::Tick(server) if self.is_master(server) => self.tick(server),
            Action::SlowTick(server) if server == 0 && self.is_master(server) && self.is_replica_of(1, server) => {
                self.slow_tick(server);
            }
            Action::Receive(replica) if self.follows_master(replica) => self.receive(replica),
            Action::Follow(master) if self.is_master(master) && !self.replicas_of(master).is_empty() => {
                self.let_follow(master);
            }
            Action::Promote(server) if self.may_promote(server) => self.promote(server),
            Action::FailOver(server) if self.may_promote(server) => self.fail_over(server),
            Action::Attach(server, master) if self.may_attach(server, master) => self.follow(server, master),
            Action::Restart(server) => self.restart(server, true),
            Action::Lose(server) => self.restart(server, false),
            Action::Ask(owner, server, key, ask) if self.is_master(server) => return self.ask(owner, server, key, ask),
            _ => return false,
        }
        true
    }

    /// A replica of a server that is a replica itself receives nothing: chains are not modelled.
    fn follows_master(&self, replica: usize) -> bool {
        self.servers.get(replica).and_then(|server| server.follows).is_some_and(|master| self.is_master(master))
    }

    fn is_replica_of(&self, replica: usize, master: usize) -> bool {
        self.servers[replica].follows == Some(master)
    }

    /// The replicas of the first master are alike, so the second server is the first to be
    /// promoted.
    fn may_promote(&self, server: usize) -> bool {
        self.servers[server].follows.is_some() && (server == 1 || self.newest_term() > 0)
    }

    /// No server follows a master again that it knows to be replaced.
    fn may_attach(&self, server: usize, master: usize) -> bool {
        server != master && self.is_master(master) && self.servers[master].term > self.servers[server].term
    }

    // Replication.

    fn replication(&self, server: usize) -> Replication {
        let mut replication = self.servers[server].replication();
        match self.fault {
            Fault::CountsConnected => replication.acknowledged.iter_mut().for_each(|offset| *offset = u64::MAX),
            Fault::OneTooFew => replication.acknowledged.push(u64::MAX),
            _ => {}
        }
        replication
    }

    /// Writes something else than an effect to the stream.
    fn ping(&mut self, master: usize) {
        self.server(master).offset += 1;
    }

    fn receive(&mut self, replica: usize) {
        let master = self.servers[replica].follows.expect("a replica");
        if self.servers[replica].needs_copy {
            self.copy(replica, master);
        }
        let (now, offset) = (self.now_of(replica), self.servers[master].offset);
        let server = self.server(replica);
        for Sent { key: number, facts, arguments } in std::mem::take(&mut server.on_the_way) {
            let [first, second] = &arguments;
            let event = parse_effect(&facts, [first.as_deref(), second.as_deref()], now).expect("a valid effect");
            let mut open = open(&mut server.values, &[number], None);
            server.engine.apply_effect(&mut open, KeyId(0), &event).expect("a replica can apply it");
        }
        while server.engine.has_to_observe() {
            server.engine.begin_turn();
            while let Some(key) = server.engine.next_to_observe() {
                let mut open = Open { open: [key].into(), client: None, barred: &BARRED, values: &mut server.values.0 };
                server.engine.observe(&mut open, KeyId(0));
            }
        }
        server.offset = offset;
        self.server(master).links[replica].in_socket = Some(offset);
        if self.setup.clocks_ahead == [0; 4] {
            let locks = |server: usize| -> Vec<&Lock> {
                let values = self.servers[server].values.0.values();
                values.filter_map(|value| if let Value::Lock(lock) = value { Some(lock) } else { None }).collect()
            };
            assert_eq!(locks(replica), locks(master), "a replica has what its master has");
        }
    }

    /// A replica loads a copy of its master's data.
    fn copy(&mut self, replica: usize, master: usize) {
        let (from, to) = (self.now_of(master), self.now_of(replica));
        let mut values = Values::default();
        let mut engine = Engine::new([1, 2, 3, 4]);
        for ((db, name), value) in &self.servers[master].values.0 {
            let Value::Lock(lock) = value else { continue };
            let mut bytes = Vec::new();
            encode(lock, from, &mut bytes);
            let lock = decode(&bytes, to).expect("a valid lock");
            values.0.insert((*db, name.clone()), Value::Lock(lock));
            engine.value_loaded(Key { db: *db, name: name.as_slice().into() });
        }
        engine.raise_token(self.servers[master].engine.last_token());
        let (rules, has_keys, now_us) = (self.rules(), !values.0.is_empty(), self.now * TICK_US);
        let offset = self.servers[master].offset;
        let server = self.server(replica);
        engine.raise_token(server.engine.last_token());
        (server.engine, server.values, server.offset) = (engine, values, offset);
        server.on_the_way.clear();
        server.needs_copy = false;
        server.quarantine.on_load_from_master();
        server.quarantine.look(&rules, has_keys, now_us);
    }

    /// A server becomes a replica of a master.
    fn follow(&mut self, server: usize, master: usize) {
        let (term, servers) = (self.servers[master].term, self.servers.len());
        let replica = self.server(server);
        replica.engine.demoted();
        replica.waiting.clear();
        replica.follows = Some(master);
        replica.term = term;
        replica.links = std::vec![Link::default(); servers];
        self.copy(server, master);
        self.server(master).links[server] = Link { acknowledged: Some(0), in_socket: None };
        let (rules, now_us) = (self.rules(), self.now * TICK_US);
        let replication = self.replication(server);
        let readings = &mut Plain { now_us, replication: &replication };
        self.server(server).quarantine.on_tick(&rules, false, readings);
    }

    fn promote(&mut self, number: usize) {
        let (term, rules, now_us) = (self.newest_term() + 1, self.rules(), self.now * TICK_US);
        let fault = self.fault;
        let servers = self.servers.len();
        let server = self.server(number);
        let has_lost = !server.on_the_way.is_empty();
        server.on_the_way.clear();
        server.needs_copy = false;
        server.follows = None;
        server.term = term;
        server.links = std::vec![Link::default(); servers];
        let before = server.quarantine.clone();
        server.quarantine.on_promoted(&rules, now_us);
        if fault == Fault::NotBegunAnew {
            stays(&mut server.quarantine, &before, &rules, now_us);
        }
        if fault == Fault::NotBegunWhenFollowed {
            server.quarantine.awaits_replicas = false;
        }
        server.engine.promoted();
        self.shown.lost_suffix = has_lost;
        self.answered = [false, false];
    }

    fn let_follow(&mut self, master: usize) {
        self.tick(master);
        for replica in self.replicas_of(master) {
            self.receive(replica);
        }
        self.tick(master);
    }

    fn fail_over(&mut self, server: usize) {
        let others = self.servers[server].follows.map(|master| self.replicas_of(master)).unwrap_or_default();
        self.promote(server);
        let lost_suffix = self.shown.lost_suffix;
        for other in others.into_iter().filter(|other| *other != server) {
            self.follow(other, server);
        }
        self.let_follow(server);
        self.shown.lost_suffix = lost_suffix;
    }

    fn restart(&mut self, number: usize, keeps: bool) {
        let servers = self.servers.len();
        let (rules, now_us) = (self.rules(), self.now * TICK_US);
        for replica in self.replicas_of(number) {
            self.server(replica).needs_copy = true;
        }
        let server = self.server(number);
        let mut restarted = Server::new(servers);
        (restarted.follows, restarted.term, restarted.offset) = (server.follows, server.term, server.offset);
        restarted.needs_copy = server.follows.is_some();
        restarted.engine.raise_token(server.engine.last_token());
        if keeps {
            for (at, value) in std::mem::take(&mut server.values.0) {
                let Value::Lock(mut lock) = value else { continue };
                lock.take_alarm();
                lock.unbind_all();
                restarted.engine.value_loaded(Key { db: at.0, name: at.1.as_slice().into() });
                restarted.values.0.insert(at, Value::Lock(lock));
            }
        }
        restarted.quarantine.look(&rules, !restarted.values.0.is_empty(), now_us);
        if restarted.follows.is_none() {
            restarted.engine.promoted();
        }
        *server = restarted;
        for replica in self.replicas_of(number) {
            self.server(number).links[replica].acknowledged = Some(0);
        }
    }

    // A master's own work.

    fn tick(&mut self, number: usize) {
        self.server(number).read_acknowledgements();
        let replication = self.replication(number);
        let now_us = self.now * TICK_US;
        let mut readings = Plain { now_us, replication: &replication };
        self.tick_with(number, &mut |quarantine, rules| quarantine.on_tick(rules, true, &mut readings).has_resumed);
    }

    fn slow_tick(&mut self, number: usize) {
        self.server(number).read_acknowledgements();
        let mut quarantine = std::mem::take(&mut self.server(number).quarantine);
        let rules = self.rules();
        let mut between = Between { world: self, server: number, readings: 0, early: None };
        let ticked = quarantine.on_tick(&rules, true, &mut between);
        self.server(number).quarantine = quarantine;
        self.after_tick(number, ticked.has_resumed);
    }

    /// The events between the readings of a slow tick.
    fn meanwhile(&mut self, master: usize) {
        self.ping(master);
        for replica in self.replicas_of(master) {
            self.receive(replica);
        }
        self.fail_over(1);
        self.now += 1;
    }

    fn tick_with(&mut self, number: usize, tick: &mut dyn FnMut(&mut Quarantine, &GrantRules) -> bool) {
        let (rules, now_us, fault) = (self.rules(), self.now * TICK_US, self.fault);
        let quarantine = &mut self.server(number).quarantine;
        if fault == Fault::StampsWhenRead {
            quarantine.right.noted.values_mut().for_each(|at_us| *at_us = now_us);
        }
        let before = quarantine.clone();
        let has_resumed = tick(quarantine, &rules);
        if fault == Fault::NotBegunAnew {
            stays(quarantine, &before, &rules, now_us);
        }
        self.after_tick(number, has_resumed);
    }

    fn after_tick(&mut self, number: usize, has_resumed: bool) {
        if has_resumed {
            self.shown.ended |= self.servers[number].quarantine.since_us.is_some();
            self.server(number).engine.grants_resumed();
        }
        self.ping(number);
        self.begin_turn(number);
        self.run_timer(number);
    }

    /// A turn of the server begins: it has written its answers.
    fn begin_turn(&mut self, number: usize) {
        let Server { engine, waiting, .. } = self.server(number);
        engine.begin_turn();
        engine.confirm_grants(|_| true);
        waiting.retain(|waiting| engine.is_waiting(waiting.ticket));
    }

    fn run_timer(&mut self, number: usize) {
        loop {
            self.server(number).engine.begin_turn();
            loop {
                self.take_offers(number);
                let (now, mut out) = (self.now_of(number), Outbox::new(true));
                let job = self.server(number).engine.next_job(now, &mut out);
                self.publish(number, &[], &out);
                let Some(key) = job else { break };
                let keys = [number_of(key.borrow())];
                self.transact(number, &keys, None, Purpose::Timer, |engine, tx| engine.run_job(tx));
            }
            let (due_us, now_us) = (self.servers[number].engine.next_timeout_us(), self.now * TICK_US);
            if due_us.is_none_or(|due_us| due_us > now_us) {
                break;
            }
        }
    }

    fn take_offers(&mut self, number: usize) {
        while let Some((offer, keys)) = self.server(number).engine.next_offer(|_| true) {
            let keys: Vec<usize> = keys.iter().map(|key| number_of(key.borrow())).collect();
            self.transact(number, &keys, None, Purpose::Timer, |engine, tx| engine.take_offer(tx, offer));
        }
    }

    /// Whether the server may grant, by the rules or by the wrong one.
    fn may_grant(&mut self, number: usize, purpose: Purpose) -> MayGrant {
        let (rules, now_us, fault) = (self.rules(), self.now * TICK_US, self.fault);
        let may_grant = self.server(number).quarantine.may_grant(&rules, now_us);
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
            (MayGrant::Quarantine { left_ms, .. }, Fault::RenewsAtOnce, Purpose::Renewal) => {
                MayGrant::Quarantine { left_ms, renews: true }
            }
            (MayGrant::Quarantine { renews: true, .. }, Fault::RenewsUnclaimed, Purpose::Renewal) => MayGrant::Yes,
            (MayGrant::NoReplicas, Fault::TimerGrants, Purpose::Timer) => MayGrant::Yes,
            _ => may_grant,
        }
    }

    fn transact<R>(
        &mut self,
        number: usize,
        keys: &[usize],
        client: Option<u64>,
        purpose: Purpose,
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        let may_grant = self.may_grant(number, purpose);
        let limits = Limits {
            max_waiters: 6,
            max_places: 8,
            fair_grace_ms: GRACE,
            max_lease_ms: LEASE,
            may_grant,
            marks_unclaimed: true,
        };
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
    fn publish(&mut self, number: usize, keys: &[usize], out: &Outbox) {
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
            let Waiting { owner, key, ask, sent, .. } = waiting[at];
            if let (Answer::Granted(token), Ask::Wait(mode, count)) = (&told.answer, ask) {
                // The waiter stays known until the next turn, because its connection may close
                // before that.
                let (now, owner) = (self.now, usize::from(owner));
                if self.setup.believes_after_wait {
                    self.owners[owner].granted(key, mode, count, *token, LEASE, sent, now);
                } else {
                    self.owners[owner].granted_after_wait(key, mode, count, *token, now);
                }
                self.note_grant(number);
            } else {
                waiting.remove(at);
            }
        }
    }

    fn note_grant(&mut self, number: usize) {
        let quarantine = &self.servers[number].quarantine;
        let is_over = quarantine.left_ms(&self.setup.rules(), self.now * TICK_US) == 0;
        self.shown.granted_after |= quarantine.since_us.is_some() && is_over;
    }

    // Owners.

    /// An owner gains a belief by an answer of this server.
    fn note_belief(&mut self, number: usize) {
        let newest = self.newest_term();
        self.answered[usize::from(self.servers[number].term == newest)] = true;
        self.shown.under_both |= newest > 0 && self.answered == [true, true];
    }

    fn ask(&mut self, owner: u8, number: usize, key: usize, ask: Ask) -> bool {
        // Owners are alike, so the first one begins.
        if owner > 0 && self.setup.are_owners_alike && !self.has_begun {
            return false;
        }
        self.has_begun = true;
        match ask {
            Ask::Leave => return self.leave(owner, number),
            Ask::Close => return self.close(owner, number),
            Ask::Renew(mode) => return self.renew(owner, number, key, mode),
            Ask::Release(mode) => {
                if self.owners[usize::from(owner)].of(key, mode).is_none() {
                    return false;
                }
                self.begin_turn(number);
                self.owners[usize::from(owner)].forget(key, mode);
                let who = [owner];
                let request = Release {
                    verb: Verb::Release,
                    kind: self.setup.kind,
                    owner: &who,
                    mode,
                    count: self.count_held(owner, number, key, mode),
                    request_id: None,
                    tokens: &[],
                    keep_ms: None,
                };
                let purpose = Purpose::Attempt { ask, holds: false, holds_other: false };
                let _ = self.transact(number, &[key], None, purpose, |engine, tx| engine.release(tx, &request));
            }
            Ask::Wait(mode, _) if self.owners[usize::from(owner)].believes(key, mode, self.now) => return false,
            Ask::Try(mode, count) | Ask::Once(mode, count) | Ask::Wait(mode, count) => {
                self.acquire(owner, number, &[key], ask, mode, count);
            }
            Ask::TryBoth => self.acquire(owner, number, &[0, 1], ask, Mode::Exclusive, 1),
            Ask::Drain => self.drain(owner, number, ask),
        }
        self.take_offers(number);
        true
    }

    /// The owner's live hold at a server.
    fn count_held(&self, owner: u8, number: usize, key: usize, mode: Mode) -> u32 {
        self.hold(owner, number, key, mode).map_or(1, |(_, count)| count)
    }

    fn hold(&self, owner: u8, number: usize, key: usize, mode: Mode) -> Option<(u64, u32)> {
        match self.servers[number].values.0.get(&at(key)) {
            Some(Value::Lock(lock)) => {
                lock.live_hold(&[owner], mode, self.now_of(number)).map(|hold| (hold.token(), hold.count()))
            }
            _ => None,
        }
    }

    fn request(&self, ask: Ask, mode: Mode, count: u32) -> Request {
        let waits = matches!(ask, Ask::Wait(..));
        Request {
            verb: if ask == Ask::TryBoth { Verb::AcquireMany } else { Verb::Acquire },
            kind: self.setup.kind,
            mode,
            count,
            lease_ms: LEASE,
            request_id: waits.then_some(1),
            session_ms: self.setup.has_sessions.then_some(SESSION),
            claim_ms: None,
            grace_ms: None,
            is_once: matches!(ask, Ask::Once(..)),
            notify: None,
            ask: if waits { How::Wait { until_us: None } } else { How::Try },
        }
    }

    fn attempt(&self, owner: u8, number: usize, keys: &[usize], ask: Ask, mode: Mode) -> Purpose {
        let holds = |mode: Mode| keys.iter().any(|key| self.hold(owner, number, *key, mode).is_some());
        let holds_other = [Mode::Read, Mode::Write].into_iter().filter(|other| *other != mode).any(holds);
        Purpose::Attempt { ask, holds: holds(mode), holds_other }
    }

    fn acquire(&mut self, owner: u8, number: usize, keys: &[usize], ask: Ask, mode: Mode, count: u32) {
        self.begin_turn(number);
        let (request, client) = (self.request(ask, mode, count), self.servers[number].connections[usize::from(owner)]);
        let purpose = self.attempt(owner, number, keys, ask, mode);
        let acquired =
            self.transact(number, keys, Some(client), purpose, |engine, tx| engine.acquire(tx, &[owner], &request));
        match acquired {
            Ok(Acquired::Granted(tokens)) => {
                for (key, token) in keys.iter().zip(tokens) {
                    self.owners[usize::from(owner)].granted(*key, mode, count, token, LEASE, self.now, self.now);
                }
                self.note_belief(number);
                self.note_grant(number);
            }
            Ok(Acquired::Waiting(ticket)) => {
                let waiting = Waiting { ticket, owner, key: keys[0], ask, sent: self.now };
                self.server(number).waiting.push(waiting);
            }
            Ok(Acquired::Denied) | Err(_) => {}
        }
    }

    fn drain(&mut self, owner: u8, number: usize, ask: Ask) {
        self.begin_turn(number);
        let request = self.request(ask, Mode::Permits, 1);
        let purpose = Purpose::Attempt { ask, holds: false, holds_other: false };
        let taken =
            self.transact(number, &[0], None, purpose, |engine, tx| engine.drain_semaphore(tx, &[owner], &request));
        if let Ok(count @ 1..) = taken
            && let Some((token, _)) = self.hold(owner, number, 0, Mode::Permits)
        {
            self.owners[usize::from(owner)].granted(0, Mode::Permits, count, token, LEASE, self.now, self.now);
            self.note_belief(number);
            self.note_grant(number);
        }
    }

    fn renew(&mut self, owner: u8, number: usize, key: usize, mode: Mode) -> bool {
        let Some(token) = self.owners[usize::from(owner)].of(key, mode).map(|claim| claim.token) else {
            return false;
        };
        self.begin_turn(number);
        let (who, kind, client) = ([owner], self.setup.kind, self.servers[number].connections[usize::from(owner)]);
        let tokens = [token];
        let tokens = if self.fault == Fault::RenewsAnyToken { &[] } else { &tokens[..] };
        let request = Renew { kind, owner: &who, mode, lease_ms: Some(LEASE), tokens };
        let renewed =
            self.transact(number, &[key], Some(client), Purpose::Renewal, |engine, tx| engine.renew(tx, &request));
        if renewed.is_ok() && self.owners[usize::from(owner)].renewed(key, mode, LEASE, self.now) {
            self.note_belief(number);
        }
        self.take_offers(number);
        true
    }

    /// Closes the connection of a wait, or of a grant of the last turn.
    fn leave(&mut self, owner: u8, number: usize) -> bool {
        let waiting = &mut self.server(number).waiting;
        let Some(at) = waiting.iter().position(|waiting| waiting.owner == owner) else { return false };
        let ticket = waiting.remove(at).ticket;
        self.server(number).engine.waiter_left(ticket, false);
        true
    }

    /// Closes the connection that an owner's holds are bound to.
    fn close(&mut self, owner: u8, number: usize) -> bool {
        if self.owners[usize::from(owner)].claims().is_empty() {
            return false;
        }
        let client = self.servers[number].connections[usize::from(owner)];
        self.owners[usize::from(owner)].disconnected(SESSION);
        let server = self.server(number);
        server.engine.client_closed(client, |_| true);
        server.connections[usize::from(owner)] = server.connections.iter().max().map_or(1, |newest| newest + 1);
        true
    }

    // Two worlds are equal if no later step can tell them apart.

    pub(super) fn hash(&self) -> u64 {
        let mut terms: Vec<u64> = self.servers.iter().map(|server| server.term).collect();
        terms.sort_unstable();
        terms.dedup();
        let mut seen = Seen::new(self.one(0));
        for (number, server) in self.servers.iter().enumerate() {
            seen.of = self.one(number);
            seen.see();
            seen.word(server.follows.map_or(u64::MAX, |master| master as u64));
            seen.word(terms.iter().position(|term| *term == server.term).unwrap_or(0) as u64);
            seen.word(u64::from(server.needs_copy));
            seen.word(server.on_the_way.len() as u64);
            self.see_rights(&mut seen, server);
            for waiting in &server.waiting {
                seen.word(u64::from(waiting.owner));
                seen.word(u64::from(server.engine.is_waiting(waiting.ticket)));
                seen.word(self.now - waiting.sent);
            }
            for connection in server.connections {
                seen.client(Some(connection));
            }
        }
        seen.word(self.has_begun);
        for owner in &self.owners {
            seen.word(owner.claims().len() as u64);
            for claim in owner.claims() {
                seen.word(claim.key as u64);
                seen.word(claim.mode as u64);
                seen.word(claim.count);
                seen.number(claim.token);
                seen.word(u64::from(claim.is_unclaimed()));
                // The grace of a session counts from when the last request was sent.
                let left = claim.until().saturating_sub(self.now);
                seen.word(left);
                seen.word(if left > 0 { claim.sent().map_or(0, |sent| self.now - sent) } else { 0 });
            }
        }
        seen.finish()
    }

    fn one(&self, number: usize) -> OneServer<'_> {
        let server = &self.servers[number];
        let now_us = self.now_of(number).mono_us;
        OneServer { engine: &server.engine, values: &server.values.0, unpublished: &[], now_us }
    }

    /// The quarantine and the right to grant, as far as they may still matter. Of offsets only the
    /// order counts, and of notes only those that may still bring a longer right.
    fn see_rights(&self, seen: &mut Seen<'_>, server: &Server) {
        let (rules, now_us) = (self.setup.rules(), self.now * TICK_US);
        let quarantine = &server.quarantine;
        let left_ms = quarantine.left_ms(&rules, now_us);
        seen.word(left_ms);
        seen.word(if left_ms > 0 { quarantine.reason as u64 } else { 0 });
        seen.word(u64::from(quarantine.awaits_replicas) + 2 * u64::from(quarantine.was_paused));
        let until_us = quarantine.right.until_us.max(now_us);
        seen.word(until_us - now_us);
        let lag_us = LAG * TICK_US;
        let notes: Vec<(u64, u64)> = quarantine.right.noted.iter().map(|(offset, at_us)| (*offset, *at_us)).collect();
        let notes: Vec<(u64, u64)> = notes.into_iter().filter(|(_, at_us)| at_us + lag_us > until_us).collect();
        for (_, at_us) in &notes {
            seen.word(at_us.wrapping_sub(now_us));
        }
        let is_beyond = |acknowledged: Option<u64>| {
            acknowledged.map_or(u64::MAX, |by| notes.iter().filter(|(offset, _)| *offset < by).count() as u64)
        };
        for (number, link) in server.links.iter().enumerate() {
            seen.word(is_beyond(link.acknowledged));
            seen.word(is_beyond(link.in_socket));
            let follows =
                self.servers[number].follows.is_some_and(|master| Rc::as_ptr(&self.servers[master]) == server);
            seen.word(if follows { is_beyond(Some(self.servers[number].offset)) } else { u64::MAX });
        }
        seen.word(is_beyond(Some(server.offset)));
    }
}

/// A failover within a quarantine changes nothing of it.
fn stays(quarantine: &mut Quarantine, before: &Quarantine, rules: &GrantRules, now_us: u64) {
    if before.left_ms(rules, now_us) > 0 {
        (quarantine.since_us, quarantine.reason) = (before.since_us, before.reason);
    }
}

const NAMES: [&str; 2] = ["first", "second"];

fn at(number: usize) -> (u32, Vec<u8>) {
    (0, NAMES[number].as_bytes().to_vec())
}

fn number_of(key: KeyRef<'_>) -> usize {
    NAMES.iter().position(|name| name.as_bytes() == key.name).expect("a known key")
}

fn open<'w>(values: &'w mut Values, keys: &[usize], client: Option<u64>) -> Open<'w> {
    let open = keys.iter().map(|number| key(NAMES[*number])).collect();
    Open { open, client, barred: &BARRED, values: &mut values.0 }
}

/// How long a fair lock keeps a place.
const GRACE: u64 = 2;
