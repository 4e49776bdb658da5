//! A world with thousands of waiters or holders, which counts the work of each turn. It counts
//! steps and measures no time, so the tests also hold on a busy machine.

use core::slice::from_ref;
use std::format;
use std::string::String;

use super::keyspace::Open;
use super::world::{Output, World, asking, key, releasing};
use crate::bytes::Key;
use crate::engine::{Acquired, Engine, Transaction};
use crate::kind::{Kind, Mode};
use crate::limits::Limits;
use crate::outbox::Outbox;
use crate::request::{Ask, Refusal, Release, Request, Verb};

/// The number of waiters or holders.
pub(super) const MANY: usize = 3000;
pub(super) const LEASE_MS: u64 = 1000;
pub(super) const GRACE_MS: u64 = 20;
pub(super) const HOLDER: usize = MANY;

/// The most waiters that one turn may answer: the server writes all of these answers before
/// anything else.
const MOST_ANSWERS: usize = 400;
/// The most changes in one turn.
const MOST_EFFECTS: usize = 2_100;

pub(super) const FOREVER: Ask = Ask::Wait { until_us: None };

/// A world that skips the checks after each step, and counts the work of a turn.
pub(super) struct Crowded {
    pub(super) world: World,
    pub(super) answers: usize,
    pub(super) effects: usize,
    pub(super) turns: usize,
}

impl Crowded {
    pub(super) fn new() -> Self {
        let mut world = World::new();
        world.limits = Limits { max_waiters: 2 * MANY, max_places: 2 * MANY, fair_grace_ms: GRACE_MS, ..Limits::NONE };
        Self { world, answers: 0, effects: 0, turns: 0 }
    }

    /// Runs a command and, if it leaves work, the timer in the same turn of the server's event
    /// loop.
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

    pub(super) fn has_work(&self) -> bool {
        self.world.engine.next_timeout_us().is_some_and(|at_us| at_us <= self.world.now.mono_us)
    }

    /// Runs the timer until no work is due.
    pub(super) fn settle(&mut self) {
        while self.has_work() {
            self.run_timer();
            self.end_turn();
            assert!(self.turns < 100 * MANY, "it comes to an end");
        }
    }

    /// One run of the timer, up to its budget.
    pub(super) fn run_timer(&mut self) {
        self.world.engine.begin_turn();
        loop {
            let mut out = Outbox::new(true);
            let next = self.world.engine.next_job(self.world.now, &mut out);
            self.world.take(&[], &out);
            let Some(job) = next else { break };
            self.world.transact(core::slice::from_ref(&job.key), |engine, tx| engine.run_job(tx, &job));
            self.take_offers();
        }
    }

    pub(super) fn take_offers(&mut self) {
        while let Some((offer, keys)) = self.world.engine.next_offer(|_| true) {
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

    /// Resets the counts.
    pub(super) fn count(&mut self) {
        (self.answers, self.effects, self.turns) = (0, 0, 0);
    }

    pub(super) fn acquire(&mut self, keys: &[Key], owner: usize, request: &Request) -> Result<Acquired, Refusal> {
        let acquired = self.command(keys, |engine, tx| engine.acquire(tx, name(owner).as_bytes(), request));
        if let Ok(Acquired::Waiting(ticket)) = acquired {
            self.world.expect_answer(ticket);
        }
        acquired
    }

    /// Lets `MANY` owners run the same command, and then counts the work that follows.
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
        let request = Release { verb, ..releasing(kind, mode, owner.as_bytes()) };
        self.command(keys, |engine, tx| engine.release(tx, &request)).unwrap();
    }

    /// Advances the clock. Nothing is due before the end.
    pub(super) fn advance(&mut self, ms: u64) {
        self.world.pause(ms);
        self.settle();
    }

    /// Runs the timer, and checks that each waiter of the crowd got its answer.
    pub(super) fn all_answered(&mut self) {
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

/// A held lock with a crowd of waiters.
pub(super) fn waiting(kind: Kind, held: Mode, wanted: Mode, owner: impl Fn(usize) -> usize) -> (Crowded, Key) {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    if kind == Kind::Semaphore {
        crowded.command(from_ref(&lock), |engine, tx| engine.init_semaphore(tx, 2, None)).unwrap();
        crowded.acquire(from_ref(&lock), HOLDER, &request(kind, held, Ask::Try)).unwrap();
    }
    crowded.acquire(from_ref(&lock), HOLDER, &request(kind, held, Ask::Try)).unwrap();
    crowded.crowd(&lock, owner, &request(kind, wanted, FOREVER));
    assert_eq!(crowded.world.engine.waiting(), MANY);
    (crowded, lock)
}

/// A lock with many holders.
pub(super) fn held(kind: Kind, mode: Mode, session_ms: Option<u64>) -> (Crowded, Key) {
    let (mut crowded, lock) = (Crowded::new(), key("lock"));
    if kind == Kind::Semaphore {
        let permits = u32::try_from(MANY).unwrap();
        crowded.command(from_ref(&lock), |engine, tx| engine.init_semaphore(tx, permits, None)).unwrap();
    }
    crowded.crowd(&lock, itself, &Request { session_ms, ..request(kind, mode, Ask::Try) });
    (crowded, lock)
}

/// Many locks, all bound to connection 1.
pub(super) fn of_one_session() -> Crowded {
    let mut crowded = Crowded::new();
    let hold = Request { session_ms: Some(5), ..request(Kind::Mutex, Mode::Exclusive, Ask::Try) };
    for owner in 0..MANY {
        crowded.world.client = Some(1);
        crowded.acquire(&[key(&name(owner))], owner, &hold).unwrap();
    }
    crowded.count();
    crowded
}
