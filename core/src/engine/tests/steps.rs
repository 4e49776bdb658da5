//! How much is done in one go, while the server's only thread does nothing else: thousands wait or hold, something concerns all of
//! them at once, and what each turn does is counted. Steps are counted and not timed, so that this holds on a busy machine.

use core::num::NonZeroU32;
use core::slice::from_ref;
use std::format;
use std::string::String;
use std::vec::Vec;

use super::keyspace::{Open, Value};
use super::world::{Output, World, asking, key};
use crate::bytes::Key;
use crate::engine::work::Scarcity;
use crate::engine::{Acquired, Engine, Transaction};
use crate::kind::{Kind, Mode};
use crate::lock::HoldIndex;
use crate::outbox::Outbox;
use crate::request::{Ask, Channel, Limits, Refusal, Release, Request, Verb};

/// How many wait or hold.
pub(super) const MANY: usize = 3000;
/// As many keys as one request may be for.
const KEYS: usize = 128;
pub(super) const LEASE_MS: u64 = 1000;
const GRACE_MS: u64 = 20;
pub(super) const HOLDER: usize = MANY;

/// How many waiters one turn may answer: the server has to write all of these answers before it does anything else.
const MOST_ANSWERS: usize = 400;
/// How many changes one turn may make.
const MOST_EFFECTS: usize = 2_100;

pub(super) const FOREVER: Ask = Ask::Wait { until_us: None };

/// A world that does not check everything after each step, and counts what a turn does.
pub(super) struct Crowded {
    pub(super) world: World,
    answers: usize,
    effects: usize,
    turns: usize,
}

impl Crowded {
    pub(super) fn new() -> Self {
        let mut world = World::new();
        world.limits = Limits { max_waiters: 2 * MANY, max_places: 2 * MANY, fair_grace_ms: GRACE_MS };
        Self { world, answers: 0, effects: 0, turns: 0 }
    }

    /// A command and, if it leaves something to be done, the timer: that goes off in the same turn of the server's event loop.
    pub(super) fn command<R>(
        &mut self,
        keys: &[Key],
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        let result = self.command_alone(keys, request);
        if self.has_work() {
            self.run_timer();
        }
        self.end_turn();
        result
    }

    pub(super) fn command_alone<R>(
        &mut self,
        keys: &[Key],
        request: impl FnOnce(&mut Engine, &mut Transaction<'_, Open<'_>>) -> R,
    ) -> R {
        self.world.engine.begin_turn();
        let result = self.world.transact(keys, request);
        self.take_offers();
        self.world.client = None;
        result
    }

    fn has_work(&self) -> bool {
        self.world.engine.next_timeout_us().is_some_and(|at_us| at_us <= self.world.now.mono_us)
    }

    /// Lets the timer run until there is nothing left to do at this moment.
    pub(super) fn settle(&mut self) {
        while self.has_work() {
            self.run_timer();
            self.end_turn();
            assert!(self.turns < 100 * MANY, "it comes to an end");
        }
    }

    /// One run of the timer, as long as it goes on.
    pub(super) fn run_timer(&mut self) {
        self.world.engine.begin_turn();
        loop {
            let mut out = Outbox::new(true);
            let next = self.world.engine.next_job(self.world.now, &mut out);
            self.world.take(&[], &out);
            let Some(key) = next else { break };
            self.world.transact(&[key], |engine, tx| engine.run_job(tx));
            self.take_offers();
        }
    }

    fn take_offers(&mut self) {
        while let Some((offer, keys)) = self.world.engine.next_offer() {
            self.world.transact(&keys, |engine, tx| engine.take_offer(tx, offer));
        }
    }

    pub(super) fn end_turn(&mut self) {
        let (mut answers, mut effects) = (0, 0);
        for (_, output) in self.world.outputs.drain(..) {
            match output {
                Output::Answer { .. } => answers += 1,
                Output::Effect { .. } => effects += 1,
            }
        }
        assert!(answers <= MOST_ANSWERS, "{answers} answers in one turn");
        assert!(effects <= MOST_EFFECTS, "{effects} changes in one turn");
        (self.answers, self.effects, self.turns) = (self.answers + answers, self.effects + effects, self.turns + 1);
    }

    /// Begins to count anew.
    fn count(&mut self) {
        (self.answers, self.effects, self.turns) = (0, 0, 0);
    }

    pub(super) fn acquire(&mut self, keys: &[Key], owner: usize, request: &Request) -> Result<Acquired, Refusal> {
        let acquired = self.command(keys, |engine, tx| engine.acquire(tx, name(owner).as_bytes(), request));
        if let Ok(Acquired::Waiting(ticket)) = acquired {
            self.world.expect_answer(ticket);
        }
        acquired
    }

    /// Owners from the first on do the same, and what comes of it is counted from then on.
    pub(super) fn crowd(&mut self, key: &Key, owner: impl Fn(usize) -> usize, request: &Request) {
        for index in 0..MANY {
            self.world.client = Some(index as u64 + 1);
            self.acquire(from_ref(key), owner(index), request).unwrap();
        }
        self.count();
    }

    pub(super) fn release(&mut self, keys: &[Key], kind: Kind, mode: Mode) {
        let owner = name(HOLDER);
        let verb = if keys.len() > 1 { Verb::ReleaseMany } else { Verb::Release };
        let request = Release { verb, kind, owner: owner.as_bytes(), mode, count: 1, request_id: None, tokens: &[] };
        self.command(keys, |engine, tx| engine.release(tx, &request)).unwrap();
    }

    /// Lets time pass. Nothing is due before the end.
    pub(super) fn advance(&mut self, ms: u64) {
        self.world.pause(ms);
        self.settle();
    }

    /// The timer answers whoever is left of the crowd.
    fn all_answered(&mut self) {
        self.settle();
        assert_eq!((self.answers, self.world.engine.waiting()), (MANY, 0));
    }
}

pub(super) fn name(owner: usize) -> String {
    format!("owner-{owner}")
}

pub(super) fn request(kind: Kind, mode: Mode, ask: Ask) -> Request {
    Request { lease_ms: LEASE_MS, ..asking(kind, mode, ask) }
}

pub(super) fn itself(index: usize) -> usize {
    index
}

/// A lock that is held, and a crowd that waits for it.
pub(super) fn waiting(kind: Kind, held: Mode, wanted: Mode, owner: impl Fn(usize) -> usize) -> (Crowded, Key) {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    if kind == Kind::Semaphore {
        crowded.command(from_ref(&lock), |engine, tx| engine.init_semaphore(tx, 2)).unwrap();
        crowded.acquire(from_ref(&lock), HOLDER, &request(kind, held, Ask::Try)).unwrap();
    }
    crowded.acquire(from_ref(&lock), HOLDER, &request(kind, held, Ask::Try)).unwrap();
    crowded.crowd(&lock, owner, &request(kind, wanted, FOREVER));
    assert_eq!(crowded.world.engine.waiting(), MANY);
    (crowded, lock)
}

/// A lock that many hold.
pub(super) fn held(kind: Kind, mode: Mode, session_ms: Option<u64>) -> (Crowded, Key) {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    if kind == Kind::Semaphore {
        let permits = u32::try_from(MANY).unwrap();
        crowded.command(from_ref(&lock), |engine, tx| engine.init_semaphore(tx, permits)).unwrap();
    }
    crowded.crowd(&lock, itself, &Request { session_ms, ..request(kind, mode, Ask::Try) });
    (crowded, lock)
}

/// Many locks that are all bound to connection 1.
fn of_one_session() -> Crowded {
    let mut crowded = Crowded::new();
    let hold = Request { session_ms: Some(5), ..request(Kind::Mutex, Mode::Exclusive, Ask::Try) };
    for owner in 0..MANY {
        crowded.world.client = Some(1);
        crowded.acquire(&[key(&name(owner))], owner, &hold).unwrap();
    }
    crowded.count();
    crowded
}

#[test]
fn requests_of_one_owner_are_granted_in_parts() {
    let (mut crowded, lock) = waiting(Kind::Mutex, Mode::Exclusive, Mode::Exclusive, |_| 0);
    crowded.release(&[lock], Kind::Mutex, Mode::Exclusive);
    crowded.all_answered();
}

/// A lock that the holder has, a request that waits for it, and behind somebody else the crowd of the same owner. These are all granted
/// with the first one, past who stands between.
fn granted_together(kind: Kind, mode: Mode, crowd: &Request) {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    if kind == Kind::Semaphore {
        crowded.command(from_ref(&lock), |engine, tx| engine.init_semaphore(tx, 1)).unwrap();
    }
    let ask = |ask| request(kind, mode, ask);
    crowded.acquire(from_ref(&lock), HOLDER, &ask(Ask::Try)).unwrap();
    crowded.acquire(from_ref(&lock), 0, &ask(FOREVER)).unwrap();
    crowded.acquire(from_ref(&lock), 1, &ask(FOREVER)).unwrap();
    crowded.crowd(&lock, |_| 0, crowd);
    crowded.release(&[lock], kind, mode);
    crowded.settle();
    assert_eq!((crowded.answers, crowded.world.engine.waiting()), (MANY + 1, 1), "{mode:?}");
}

#[test]
fn what_an_owner_has_with_what_it_is_granted_is_granted_in_parts() {
    granted_together(Kind::RwLock, Mode::Write, &request(Kind::RwLock, Mode::Read, FOREVER));
    let once = Request { is_once: true, ..request(Kind::Semaphore, Mode::Permits, FOREVER) };
    granted_together(Kind::Semaphore, Mode::Permits, &once);
}

#[test]
fn readers_are_let_in_in_parts() {
    let (mut crowded, lock) = waiting(Kind::RwLock, Mode::Write, Mode::Read, itself);
    crowded.release(&[lock], Kind::RwLock, Mode::Write);
    crowded.all_answered();
}

#[test]
fn those_who_wait_for_permits_are_served_in_parts() {
    for permits in [u32::try_from(2 * MANY).unwrap(), 0] {
        let (mut crowded, lock) = waiting(Kind::Semaphore, Mode::Permits, Mode::Permits, itself);
        crowded.command(&[lock], |engine, tx| engine.resize_semaphore(tx, permits)).unwrap();
        crowded.all_answered();
    }
}

#[test]
fn those_who_wait_for_what_is_gone_are_told_in_parts() {
    let (mut crowded, lock) = waiting(Kind::Semaphore, Mode::Permits, Mode::Permits, itself);
    crowded.world.unlink(&lock);
    crowded.all_answered();
    let (mut crowded, lock) = waiting(Kind::Mutex, Mode::Exclusive, Mode::Exclusive, itself);
    crowded.world.arrive(&lock, Value::Foreign);
    crowded.all_answered();
}

#[test]
fn waits_that_end_together_are_answered_in_parts() {
    for kind in [Kind::Mutex, Kind::Fair] {
        let (mut crowded, lock) = (Crowded::new(), key("lock"));
        crowded.acquire(from_ref(&lock), HOLDER, &request(kind, Mode::Exclusive, Ask::Try)).unwrap();
        let until_us = Some(crowded.world.now.after_ms(5));
        crowded.crowd(&lock, itself, &request(kind, Mode::Exclusive, Ask::Wait { until_us }));
        crowded.world.pause(5);
        crowded.release(&[lock], kind, Mode::Exclusive);
        crowded.all_answered();
    }
}

#[test]
fn grants_that_nobody_heard_of_are_taken_back_in_parts() {
    let (mut crowded, lock) = waiting(Kind::RwLock, Mode::Write, Mode::Read, itself);
    crowded.release(from_ref(&lock), Kind::RwLock, Mode::Write);
    crowded.all_answered();
    crowded.count();
    for client in 1..=MANY as u64 {
        crowded.world.engine.client_closed(client);
    }
    crowded.settle();
    assert_eq!((crowded.effects, crowded.world.lock(&lock).is_none()), (MANY, true));
}

#[test]
fn places_of_connections_that_closed_are_released_and_lapse_in_parts() {
    let (mut crowded, lock) = waiting(Kind::Fair, Mode::Exclusive, Mode::Exclusive, itself);
    for number in 1..=MANY {
        crowded.world.waiter_left(number, false);
    }
    crowded.settle();
    assert_eq!(crowded.effects, MANY, "each place is kept for a grace");
    crowded.advance(GRACE_MS);
    assert!(crowded.world.lock(&lock).unwrap().queue().is_none());
}

#[test]
fn places_before_one_that_lives_lapse_in_parts() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let queue = |life_ms| request(Kind::Fair, Mode::Exclusive, Ask::Queue { life_ms });
    crowded.acquire(from_ref(&lock), HOLDER, &queue(1)).unwrap();
    crowded.crowd(&lock, itself, &queue(5));
    crowded.acquire(from_ref(&lock), HOLDER + 1, &queue(LEASE_MS)).unwrap();
    crowded.world.pause(5);
    crowded.release(from_ref(&lock), Kind::Fair, Mode::Exclusive);
    crowded.settle();
    assert_eq!(crowded.world.lock(&lock).unwrap().queue().unwrap().len(), 1);
}

#[test]
fn places_that_come_with_a_value_are_cut_off_in_parts() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let queue = |life_ms| request(Kind::Fair, Mode::Exclusive, Ask::Queue { life_ms });
    crowded.acquire(from_ref(&lock), HOLDER, &queue(1)).unwrap();
    crowded.crowd(&lock, itself, &queue(5));
    let value = crowded.world.unlink(&lock).unwrap();
    let other = key("other");
    crowded.world.arrive(&other, value);
    crowded.run_timer();
    let taken = usize::try_from(crowded.world.engine.work.taken()).unwrap();
    assert!(taken > MANY / 10, "{taken} steps for {MANY} places");
    crowded.settle();
    crowded.advance(5);
    assert_eq!(crowded.world.lock(&other).unwrap().queue().unwrap().len(), MANY, "they live for a grace");
    crowded.advance(GRACE_MS);
    assert!(crowded.world.lock(&other).unwrap().queue().is_none());
}

#[test]
fn a_turn_that_has_done_enough_writes_few_lives_of_places_down() {
    let (mut crowded, lock, other) = (Crowded::new(), key("lock"), key("other"));
    crowded.crowd(&lock, itself, &request(Kind::Fair, Mode::Exclusive, Ask::Queue { life_ms: 5 }));
    let value = crowded.world.unlink(&lock).unwrap();
    crowded.world.arrive(&other, value);
    let has_more = |crowded: &Crowded| crowded.world.lock(&other).unwrap().clone().settle_places(0);
    let scarcity = Scarcity { own: 0, shared: 1, search_steps: 100, parts: 1, bindings: 1 };
    crowded.world.engine.work.make_scarce(scarcity);
    for _ in 0..2 {
        crowded.world.transact(from_ref(&other), |engine, tx| engine.run_job(tx));
        assert!(has_more(&crowded));
    }
    crowded.settle();
    assert!(!has_more(&crowded));
}

/// What is left of the turn is too little for more lives, and too much for the turn to have done enough.
#[test]
fn a_turn_ends_when_it_has_too_little_left_for_lives_of_places() {
    let (mut crowded, lock, other) = (Crowded::new(), key("lock"), key("other"));
    crowded.crowd(&lock, itself, &request(Kind::Fair, Mode::Exclusive, Ask::Queue { life_ms: 5 }));
    let value = crowded.world.unlink(&lock).unwrap();
    crowded.world.arrive(&other, value);
    let work = &mut crowded.world.engine.work;
    work.begin_timer();
    let allowance = (0..).take_while(|_| work.take(1)).count();
    crowded.world.engine.begin_turn();
    let work = &mut crowded.world.engine.work;
    work.begin_timer();
    work.take(u32::try_from(allowance).unwrap() - 7);
    assert!(!work.is_used_up());
    crowded.world.transact(from_ref(&other), |engine, tx| engine.run_job(tx));
    assert!(crowded.world.engine.work.is_used_up());
}

#[test]
fn of_very_many_leases_that_are_over_none_is_taken_away_by_force() {
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, None);
    crowded.world.pause(LEASE_MS);
    let forced = crowded.command_alone(&[lock], |engine, tx| engine.force_release(tx, Some(Kind::RwLock), None));
    assert_eq!((forced, crowded.world.engine.stats(Kind::RwLock).forced), (Ok(false), 0));
}

#[test]
fn leases_that_end_together_are_ended_in_parts() {
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, None);
    crowded.advance(LEASE_MS);
    assert_eq!((crowded.effects, crowded.world.lock(&lock).is_none()), (MANY, true));
}

#[test]
fn what_is_left_of_a_lock_that_many_held_is_cleaned_up_in_parts() {
    let (mut crowded, lock) = held(Kind::RwLock, Mode::Read, Some(5));
    crowded.world.pause(LEASE_MS);
    let write = request(Kind::RwLock, Mode::Write, Ask::Try);
    let written = crowded.command_alone(&[lock], |engine, tx| engine.acquire(tx, b"writer", &write));
    assert!(matches!(written, Ok(Acquired::Granted(_))));
    assert_cleaned_up_in_parts(&mut crowded);

    let (mut crowded, lock) = held(Kind::Semaphore, Mode::Permits, Some(5));
    crowded.command_alone(&[lock], |engine, tx| engine.force_release(tx, Some(Kind::Semaphore), None)).unwrap();
    assert_cleaned_up_in_parts(&mut crowded);
}

fn assert_cleaned_up_in_parts(crowded: &mut Crowded) {
    let indexed = |crowded: &Crowded| -> usize {
        let leftovers = crowded.world.engine.leftovers.iter();
        leftovers.map(|(_, leftovers)| leftovers.index.as_ref().map_or(0, HoldIndex::len)).sum()
    };
    let left = indexed(crowded);
    assert!(left > MANY / 4, "the command leaves what many held to the timer: {left}");
    crowded.run_timer();
    assert_eq!(indexed(crowded), 0);
    let taken = usize::try_from(crowded.world.engine.work.taken()).unwrap();
    assert!(taken > left / 10, "{taken} steps for {left} holds");
    assert_eq!(crowded.world.engine.connections.bindings().count(), 0);
}

#[test]
fn what_ended_at_once_is_dropped_a_part_at_a_time() {
    let parts = |crowded: &mut Crowded| {
        let mut parts = 0;
        while !crowded.world.engine.leftovers.is_empty() {
            crowded.world.engine.begin_turn();
            crowded.world.engine.clean_up();
            parts += 1;
        }
        parts
    };
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    crowded.crowd(&lock, itself, &request(Kind::Fair, Mode::Exclusive, Ask::Queue { life_ms: 5 }));
    crowded.world.pause(LEASE_MS);
    let other = request(Kind::Mutex, Mode::Exclusive, Ask::Try);
    crowded.command_alone(&[lock], |engine, tx| engine.acquire(tx, b"other", &other)).unwrap();
    let places = parts(&mut crowded);
    assert!(places > 10, "{places} parts for the places of a queue");

    // Each lease ends before those that were there: so the index has twice as many chunks as it needs.
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    for owner in 0..MANY {
        let lease_ms = LEASE_MS + (MANY - owner) as u64;
        let read = Request { lease_ms, ..request(Kind::RwLock, Mode::Read, Ask::Try) };
        crowded.acquire(from_ref(&lock), owner, &read).unwrap();
    }
    crowded.command_alone(&[lock], |engine, tx| engine.force_release(tx, Some(Kind::RwLock), None)).unwrap();
    let holds = parts(&mut crowded);
    assert!(holds > 18, "{holds} parts for holds and their index");
}

#[test]
fn the_timer_goes_on_with_a_connection_that_closed_when_nothing_else_is_left() {
    let mut crowded = of_one_session();
    crowded.world.engine.client_closed(1);
    let names = crowded.world.engine.queues.names.iter();
    let noted: Vec<Key> = names.map(|(_, record)| record.key().to_key()).collect();
    for lock in &noted {
        crowded.command_alone(from_ref(lock), |engine, tx| engine.force_release(tx, Some(Kind::Mutex), None)).unwrap();
    }
    crowded.end_turn();
    crowded.count();
    crowded.settle();
    assert_eq!(crowded.effects, MANY - noted.len(), "all the other sessions have ended");
}

#[test]
fn sessions_that_end_with_a_connection_are_ended_in_parts() {
    let mut crowded = of_one_session();
    crowded.world.engine.client_closed(1);
    assert!(crowded.world.engine.dirty.len() < 100, "when the connection closes, a few are looked at");
    crowded.settle();
    assert_eq!(crowded.effects, MANY);
    crowded.advance(5);
    assert_eq!((crowded.effects, crowded.world.values.len()), (2 * MANY, 0));
}

#[test]
fn what_a_sweep_passes_over_is_counted() {
    let (mut crowded, _) = waiting(Kind::Mutex, Mode::Exclusive, Mode::Exclusive, itself);
    for owner in 0..MANY {
        crowded.acquire(&[key(&name(owner))], owner, &request(Kind::Mutex, Mode::Exclusive, Ask::Try)).unwrap();
    }
    crowded.world.flush_db(7);
    crowded.run_timer();
    let taken = usize::try_from(crowded.world.engine.work.taken()).unwrap();
    assert!((MANY / 10..MANY / 4).contains(&taken), "{taken} steps for {MANY} locks of a database that stays");
}

#[test]
fn locks_of_a_whole_database_are_visited_in_a_few_runs() {
    let mut crowded = of_one_session();
    crowded.world.engine.promoted();
    crowded.settle();
    assert_eq!(crowded.effects, MANY, "their sessions count as closed");
    assert!(crowded.turns < MANY / 100, "{} runs of the timer", crowded.turns);
}

#[test]
fn the_memory_of_a_great_many_locks_is_given_back_in_parts() {
    const LOCKS: usize = 50_000;
    let mut crowded = Crowded::new();
    for owner in 0..LOCKS {
        crowded.acquire(&[key(&name(owner))], owner, &request(Kind::Mutex, Mode::Exclusive, Ask::Try)).unwrap();
    }
    crowded.world.pause(LEASE_MS);
    while crowded.world.engine.held() > 0 {
        crowded.run_timer();
        crowded.end_turn();
    }
    assert!(crowded.world.engine.leases.has_retired(), "one run does not give all of it back");
    crowded.settle();
    assert!(!crowded.world.engine.leases.has_retired());
}

#[test]
fn the_memory_of_a_great_many_waiters_is_given_back_in_parts() {
    const WAITERS: usize = 50_000;
    let mut crowded = Crowded::new();
    crowded.world.limits.max_waiters = WAITERS;
    let until_us = Some(crowded.world.now.after_ms(LEASE_MS / 2));
    let [tries, waits] = [Ask::Try, Ask::Wait { until_us }].map(|ask| request(Kind::Mutex, Mode::Exclusive, ask));
    for number in 0..WAITERS {
        let lock = key(&name(number));
        crowded.acquire(from_ref(&lock), WAITERS + number, &tries).unwrap();
        crowded.acquire(from_ref(&lock), number, &waits).unwrap();
    }
    assert_eq!(crowded.world.engine.waiting(), WAITERS);
    crowded.world.pause(LEASE_MS / 2);
    while crowded.world.engine.waiting() > 0 {
        crowded.run_timer();
        crowded.end_turn();
    }
    let queues = &crowded.world.engine.queues;
    assert!(queues.tickets.has_retired() && queues.names.has_retired(), "one run does not give all of it back");
    assert!(queues.owners.has_retired());
    crowded.settle();
    assert!(!has_retired_any(&crowded));
}

#[test]
fn the_memory_of_a_great_many_waiters_for_one_lock_is_given_back() {
    const REQUESTS: usize = 5_000;
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let mutex = |ask| request(Kind::Mutex, Mode::Exclusive, ask);
    crowded.acquire(from_ref(&lock), HOLDER, &mutex(Ask::Try)).unwrap();
    for _ in 0..REQUESTS {
        crowded.acquire(from_ref(&lock), 0, &mutex(FOREVER)).unwrap();
    }
    for number in 1..=REQUESTS {
        crowded.world.waiter_left(number, false);
    }
    assert!(crowded.world.engine.queues.tickets.has_retired());
    crowded.settle();
    assert!(!has_retired_any(&crowded));
}

fn has_retired_any(crowded: &Crowded) -> bool {
    let queues = &crowded.world.engine.queues;
    queues.tickets.has_retired() || queues.names.has_retired() || queues.owners.has_retired() || queues.has_retired()
}

#[test]
fn the_memory_of_what_was_flushed_is_given_back_in_parts() {
    const LOCKS: usize = 50_000;
    let mut crowded = Crowded::new();
    for owner in 0..LOCKS {
        crowded.acquire(&[key(&name(owner))], owner, &request(Kind::Mutex, Mode::Exclusive, Ask::Try)).unwrap();
    }
    crowded.world.flush();
    assert_eq!(crowded.world.engine.held(), 0);
    crowded.run_timer();
    assert!(crowded.world.engine.leases.has_retired(), "one run does not give all of it back");
    crowded.settle();
    assert!(!crowded.world.engine.leases.has_retired());
}

#[test]
fn swapping_databases_does_not_visit_what_the_sweep_will() {
    let mut crowded = Crowded::new();
    for number in 0..MANY {
        crowded.world.engine.value_changed(key(&name(number)).borrow());
    }
    crowded.world.swap();
    let names = crowded.world.engine.queues.names.iter().count();
    assert_eq!(names, MANY, "no name of the other database is told anything");
    crowded.settle();
}

#[test]
fn no_kind_of_work_keeps_the_others_waiting() {
    const JOBS: usize = 20;
    let (mut crowded, lock, other) = (Crowded::new(), key("lock"), key("other"));
    let mutex = |ask| request(Kind::Mutex, Mode::Exclusive, ask);
    let until_us = Some(crowded.world.now.after_ms(LEASE_MS));
    crowded.acquire(from_ref(&lock), HOLDER, &mutex(Ask::Try)).unwrap();
    crowded.acquire(from_ref(&other), HOLDER, &Request { lease_ms: 2 * LEASE_MS, ..mutex(Ask::Try) }).unwrap();
    crowded.acquire(from_ref(&other), 0, &mutex(Ask::Wait { until_us })).unwrap();
    crowded.world.pause(LEASE_MS);
    for number in 0..MANY {
        crowded.world.engine.value_changed(key(&name(number)).borrow());
    }
    crowded.count();
    for _ in 0..JOBS {
        let mut out = Outbox::new(true);
        let next = crowded.world.engine.next_job(crowded.world.now, &mut out).unwrap();
        crowded.world.take(&[], &out);
        crowded.world.transact(&[next], |engine, tx| engine.run_job(tx));
    }
    crowded.end_turn();
    assert_eq!((crowded.answers, crowded.world.lock(&lock).is_none()), (1, true), "a wait and a lease that are over");
}

#[test]
fn a_request_that_can_have_all_of_its_keys_is_offered_them_once() {
    let mut crowded = Crowded::new();
    let keys: Vec<Key> = (0..KEYS).map(|number| key(&format!("k{number}"))).collect();
    let all = |ask| Request { verb: Verb::AcquireMany, ..request(Kind::Mutex, Mode::Exclusive, ask) };
    crowded.acquire(&keys, HOLDER, &all(Ask::Try)).unwrap();
    crowded.acquire(&keys, 0, &all(FOREVER)).unwrap();
    let owner = name(HOLDER);
    let (verb, kind, mode) = (Verb::ReleaseMany, Kind::Mutex, Mode::Exclusive);
    let release = Release { verb, kind, owner: owner.as_bytes(), mode, count: 1, request_id: None, tokens: &[] };
    crowded.world.engine.begin_turn();
    crowded.world.transact(&keys, |engine, tx| engine.release(tx, &release)).unwrap();
    assert_eq!(crowded.world.engine.grantable.len(), 1, "and not once for each key");
    crowded.take_offers();
    crowded.settle();
}

#[test]
fn a_request_for_many_keys_costs_as_much_as_it_has_keys() {
    let mut crowded = Crowded::new();
    let keys: Vec<Key> = (0..KEYS).map(|number| key(&format!("k{number}"))).collect();
    let all = |ask| Request { verb: Verb::AcquireMany, ..request(Kind::Mutex, Mode::Exclusive, ask) };
    crowded.acquire(&keys, HOLDER, &all(Ask::Try)).unwrap();
    for _ in 0..MANY / KEYS {
        crowded.acquire(&keys, 0, &all(FOREVER)).unwrap();
    }
    crowded.count();
    crowded.release(&keys, Kind::Mutex, Mode::Exclusive);
    crowded.settle();
    assert_eq!((crowded.answers, crowded.world.engine.waiting()), (MANY / KEYS, 0));
}

/// Has all of the others wait for the holder's lock without a blocked connection: over two connections, each request on one of a
/// number of channels.
fn wait_for_notices(crowded: &mut Crowded, lock: &Key, ask: Ask, channels: u32) {
    crowded.acquire(from_ref(lock), HOLDER, &request(Kind::Mutex, Mode::Exclusive, Ask::Try)).unwrap();
    for number in 0..MANY {
        let channel = NonZeroU32::MIN.saturating_add(u32::try_from(number).unwrap() % channels);
        let (request_id, notify) = (Some(number as u64 + 1), Some(Channel(channel)));
        crowded.world.client = Some(number as u64 % 2 + 1);
        let request = Request { request_id, notify, ..request(Kind::Mutex, Mode::Exclusive, ask) };
        crowded.acquire(from_ref(lock), number, &request).unwrap();
    }
    assert_eq!(crowded.world.engine.waiting_notified(), MANY);
    crowded.count();
}

#[test]
fn notices_of_a_connection_that_closes_go_out_a_few_at_a_time() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    wait_for_notices(&mut crowded, &lock, FOREVER, 1);
    crowded.world.engine.client_closed(1);
    crowded.settle();
    assert_eq!((crowded.answers, crowded.world.engine.waiting()), (MANY / 2, MANY / 2));
}

#[test]
fn notices_of_waits_that_end_together_go_out_a_few_at_a_time() {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    let until_us = Some(crowded.world.now.after_ms(LEASE_MS / 2));
    wait_for_notices(&mut crowded, &lock, Ask::Wait { until_us }, 1);
    crowded.world.pause(LEASE_MS / 2);
    crowded.settle();
    assert_eq!((crowded.answers, crowded.world.engine.waiting()), (MANY, 0));
}

#[test]
fn one_look_at_the_waits_finds_those_of_all_channels_that_went_away() {
    const CHANNELS: u32 = 100;
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    wait_for_notices(&mut crowded, &lock, FOREVER, CHANNELS);
    for number in 1..=CHANNELS / 2 {
        crowded.world.engine.channel_gone(Channel(NonZeroU32::new(number).unwrap()));
    }
    crowded.run_timer();
    crowded.end_turn();
    // Channels that go while the look is under way are not forgotten.
    for number in CHANNELS / 2 + 1..CHANNELS {
        crowded.world.engine.channel_gone(Channel(NonZeroU32::new(number).unwrap()));
    }
    crowded.settle();
    let left = MANY / CHANNELS as usize;
    assert_eq!((crowded.answers, crowded.world.engine.waiting()), (MANY - left, left));
    assert!(crowded.turns < 50, "{} turns", crowded.turns);
}
