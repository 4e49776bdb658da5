//! Random histories of one mutex against a simple oracle: a holder, a list of waiters, and a loop
//! that visits all of them.

use proptest::prelude::*;
use std::vec::Vec;

use super::world::{LIMITS, Output, World, key};
use crate::engine::Acquired;
use crate::event::{EndCause, Event};
use crate::kind::{Kind, Mode};
use crate::outbox::Answer;
use crate::request::{Ask, Refusal, Release, Renew, Request, RequestMark, Verb};

#[derive(Clone, Debug)]
enum Step {
    Acquire {
        owner: u8,
        lease_ms: u64,
        block_ms: Option<u64>,
        claim_ms: Option<u64>,
        request_id: Option<u64>,
        is_once: bool,
    },
    /// With the token of the hold, with another one, or without.
    Release {
        owner: u8,
        request_id: Option<u64>,
        is_meant: Option<bool>,
        keep_ms: Option<u64>,
    },
    Renew {
        owner: u8,
        lease_ms: Option<u64>,
    },
    Force,
    Advance(u64),
    Leaves(usize),
    Delete,
}

/// How long a request waits; 0 for no limit.
pub(super) fn wait_ms() -> impl Strategy<Value = u64> {
    prop_oneof![1 => Just(0), 4 => 1..60u64]
}

fn step() -> impl Strategy<Value = Step> {
    let owner = || 0..4u8;
    // Few ids, so that they repeat, fall and rise.
    let id = || proptest::option::weighted(0.4, 1..6u64);
    let claim_ms = || proptest::option::weighted(0.5, 1..20u64);
    prop_oneof![
        8 => (owner(), 1..80u64, proptest::option::of(wait_ms()), claim_ms(), id(), proptest::bool::weighted(0.3))
            .prop_map(|(owner, lease_ms, block_ms, claim_ms, request_id, is_once)| {
                Step::Acquire { owner, lease_ms, block_ms, claim_ms, request_id, is_once }
            }),
        6 => (owner(), id(), proptest::option::weighted(0.4, any::<bool>()), proptest::option::weighted(0.3, 1..60u64))
            .prop_map(|(owner, request_id, is_meant, keep_ms)| {
                Step::Release { owner, request_id, is_meant, keep_ms }
            }),
        2 => (owner(), proptest::option::of(1..80u64))
            .prop_map(|(owner, lease_ms)| Step::Renew { owner, lease_ms }),
        1 => Just(Step::Force),
        5 => (0..60u64).prop_map(Step::Advance),
        1 => any::<usize>().prop_map(Step::Leaves),
        1 => Just(Step::Delete),
    ]
}

/// The answer to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    Granted,
    Nil,
    Waits,
    Superseded,
    Left(u32),
    RenewedMs(u64),
    Forced(bool),
    Stale,
    NotOwner,
    Reentered,
    MaxWaiters,
}

#[derive(Clone, Debug)]
struct Holder {
    owner: u8,
    count: u32,
    until_ms: u64,
    lease_ms: u64,
    /// Its last numbered request, and the count that it has added.
    mark: Option<(u64, Verb, u32)>,
    is_kept: bool,
}

#[derive(Clone, Debug)]
struct InLine {
    ticket: usize,
    owner: u8,
    lease_ms: u64,
    claim_ms: Option<u64>,
    until_ms: Option<u64>,
    request_id: Option<u64>,
    is_once: bool,
}

/// The oracle. `told` collects (ticket, answer) for waiters; tickets count from 1.
#[derive(Default)]
struct Oracle {
    now_ms: u64,
    holder: Option<Holder>,
    line: Vec<InLine>,
    tickets: usize,
    told: Vec<(usize, Told)>,
    ended: Vec<(u64, EndCause)>,
}

impl Oracle {
    fn mark(&self, owner: u8, id: Option<u64>, verb: Verb) -> Result<bool, Told> {
        let is_meant = |holder: &&Holder| holder.owner == owner && (!holder.is_kept || verb == Verb::Release);
        let last = self.holder.as_ref().filter(is_meant).and_then(|holder| holder.mark);
        match (last, id) {
            (Some((last, ..)), Some(id)) if id < last => Err(Told::Stale),
            (Some((last, by, _)), Some(id)) if id == last && by != verb => Err(Told::Stale),
            (Some((last, ..)), Some(id)) => Ok(id == last),
            _ => Ok(false),
        }
    }

    fn holds(&self, owner: u8) -> bool {
        self.holder.as_ref().is_some_and(|holder| holder.owner == owner && !holder.is_kept)
    }

    /// `claim_ms` is not set for a holder that acquires again without waiting.
    fn grant(&mut self, owner: u8, lease_ms: u64, claim_ms: Option<u64>, id: Option<u64>, is_once: bool) {
        let until_ms = self.now_ms + lease_ms.min(claim_ms.unwrap_or(lease_ms));
        let mark = |added| id.map(|id| (id, Verb::Acquire, added));
        match &mut self.holder {
            Some(holder) => {
                holder.count += u32::from(!is_once);
                holder.until_ms = holder.until_ms.max(until_ms);
                holder.lease_ms = lease_ms;
                holder.mark = mark(u32::from(!is_once)).or(holder.mark);
            }
            None => self.holder = Some(Holder { owner, count: 1, until_ms, lease_ms, mark: mark(1), is_kept: false }),
        }
    }

    /// Grants a free lock to the head of the queue, and to all requests of its owner.
    fn hand_over(&mut self) {
        if self.holder.is_some() || self.line.is_empty() {
            return;
        }
        let owner = self.line[0].owner;
        let (granted, rest): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.line).into_iter().partition(|w| w.owner == owner);
        self.line = rest;
        for waiter in granted {
            self.grant(owner, waiter.lease_ms, waiter.claim_ms, waiter.request_id, waiter.is_once);
            self.told.push((waiter.ticket, Told::Granted));
        }
    }

    fn end(&mut self, cause: EndCause) {
        self.holder = None;
        self.ended.push((self.now_ms, cause));
        self.hand_over();
    }

    fn acquire(
        &mut self,
        owner: u8,
        lease_ms: u64,
        (block_ms, claim_ms): (Option<u64>, Option<u64>),
        id: Option<u64>,
        is_once: bool,
    ) -> Told {
        match self.mark(owner, id, Verb::Acquire) {
            Err(stale) => return stale,
            Ok(true) => {
                self.renew(owner, Some(lease_ms));
                return Told::Granted;
            }
            Ok(false) => {}
        }
        if self.holds(owner) {
            self.grant(owner, lease_ms, None, id, is_once);
            return Told::Granted;
        }
        let mut place = self.line.len();
        if let Some(at) = self.line.iter().position(|waiter| waiter.owner == owner) {
            let waiting = self.line[at].clone();
            let ids = id.zip(waiting.request_id);
            if ids.is_some_and(|(id, waiting)| id < waiting) {
                return Told::Stale;
            }
            if block_ms.is_some() || ids.is_some_and(|(id, waiting)| id == waiting) {
                self.line.remove(at);
                self.told.push((waiting.ticket, Told::Superseded));
                place = at;
            }
        }
        if self.holder.is_none() && self.line.is_empty() {
            self.grant(owner, lease_ms, claim_ms, id, is_once);
            return Told::Granted;
        }
        let Some(block_ms) = block_ms else { return Told::Nil };
        if self.line.len() >= LIMITS.max_waiters {
            return Told::MaxWaiters;
        }
        self.tickets += 1;
        let until_ms = (block_ms != 0).then(|| self.now_ms + block_ms);
        let waiter = InLine { ticket: self.tickets, owner, lease_ms, claim_ms, until_ms, request_id: id, is_once };
        self.line.insert(place, waiter);
        Told::Waits
    }

    fn release(&mut self, owner: u8, id: Option<u64>, is_meant: Option<bool>, keep_ms: Option<u64>) -> Told {
        if self.holder.as_ref().is_none_or(|holder| holder.owner != owner) || is_meant == Some(false) {
            return Told::NotOwner;
        }
        let repeated = match self.mark(owner, id, Verb::Release) {
            Err(stale) => return stale,
            Ok(repeated) => repeated,
        };
        let holder = self.holder.as_mut().unwrap();
        if repeated {
            return Told::Left(holder.count);
        }
        if keep_ms.is_some() && holder.is_kept {
            return Told::Left(1);
        }
        if holder.is_kept && is_meant.is_none() {
            return Told::NotOwner;
        }
        if keep_ms.is_some() && holder.count > 1 {
            return Told::Reentered;
        }
        holder.mark = id.map(|id| (id, Verb::Release, 0)).or(holder.mark);
        if let Some(keep_ms) = keep_ms {
            (holder.is_kept, holder.until_ms) = (true, self.now_ms + keep_ms);
            return Told::Left(1);
        }
        holder.count -= 1;
        let left = holder.count;
        if left == 0 {
            self.end(EndCause::Released);
        }
        Told::Left(left)
    }

    fn renew(&mut self, owner: u8, lease_ms: Option<u64>) -> Told {
        let now_ms = self.now_ms;
        match &mut self.holder {
            Some(holder) if holder.owner == owner && !holder.is_kept => {
                holder.lease_ms = lease_ms.unwrap_or(holder.lease_ms);
                holder.until_ms = holder.until_ms.max(now_ms + holder.lease_ms);
                Told::RenewedMs(holder.until_ms - now_ms)
            }
            _ => Told::NotOwner,
        }
    }

    fn advance(&mut self, ms: u64) {
        for _ in 0..=ms {
            // A waiter that has timed out gets nil, even if the lock is released at the same
            // moment.
            let now_ms = self.now_ms;
            let (over, line): (Vec<_>, Vec<_>) = std::mem::take(&mut self.line)
                .into_iter()
                .partition(|w| w.until_ms.is_some_and(|until_ms| until_ms <= now_ms));
            self.line = line;
            self.told.extend(over.into_iter().map(|w| (w.ticket, Told::Nil)));
            if let Some(holder) = self.holder.as_ref().filter(|holder| holder.until_ms <= now_ms) {
                self.end(if holder.is_kept { EndCause::Released } else { EndCause::Expired });
            }
            self.now_ms += 1;
        }
        self.now_ms -= 1;
    }
}

fn name(owner: u8) -> [u8; 1] {
    [b'a' + owner]
}

/// Runs a step in the world and returns its answer.
fn run(world: &mut World, step: &Step, waiting: &[usize]) -> Option<Told> {
    let lock = key("k");
    let refused = |refusal| match refusal {
        Refusal::Stale { .. } => Told::Stale,
        Refusal::NotOwner { .. } => Told::NotOwner,
        Refusal::KeepsReentered { .. } => Told::Reentered,
        Refusal::MaxWaiters { .. } => Told::MaxWaiters,
        other => panic!("{other:?}"),
    };
    match *step {
        Step::Acquire { owner, lease_ms, block_ms, claim_ms, request_id, is_once } => {
            let request = Request {
                verb: Verb::Acquire,
                kind: Kind::Mutex,
                mode: Mode::Exclusive,
                count: 1,
                lease_ms,
                request_id,
                session_ms: None,
                claim_ms,
                grace_ms: None,
                is_once,
                is_timed: false,
                notify: None,
                ask: match block_ms {
                    Some(block_ms) => Ask::Wait { until_us: (block_ms != 0).then(|| world.now.after_ms(block_ms)) },
                    None => Ask::Try,
                },
            };
            let acquired = world.on_key(&lock, |engine, tx| engine.acquire(tx, &name(owner), &request));
            Some(match acquired {
                Ok(Acquired::Granted(_)) => Told::Granted,
                Ok(Acquired::Denied) => Told::Nil,
                Ok(Acquired::Waiting(ticket)) => {
                    world.expect_answer(ticket);
                    Told::Waits
                }
                Err(refusal) => refused(refusal),
            })
        }
        Step::Release { owner, request_id, is_meant, keep_ms } => {
            let owner = name(owner);
            let hold = world.lock(&lock).and_then(|lock| lock.holds().first()).map_or(1, |hold| hold.token());
            let tokens: Vec<u64> =
                is_meant.map(|is_meant| if is_meant { hold } else { hold + 1 }).into_iter().collect();
            let request = Release {
                verb: Verb::Release,
                kind: Kind::Mutex,
                owner: &owner,
                mode: Mode::Exclusive,
                count: 1,
                request_id,
                tokens: &tokens,
                keep_ms,
                is_each: false,
            };
            let left = world.on_key(&lock, |engine, tx| engine.release(tx, &request));
            Some(left.map_or_else(refused, |left| Told::Left(left[0].unwrap())))
        }
        Step::Renew { owner, lease_ms } => {
            let owner = name(owner);
            let request = Renew {
                kind: Kind::Mutex,
                owner: &owner,
                mode: Mode::Exclusive,
                lease_ms,
                tokens: &[],
                is_each: false,
            };
            let left_ms = world.on_key(&lock, |engine, tx| engine.renew(tx, &request));
            Some(left_ms.map_or_else(refused, |left_ms| Told::RenewedMs(left_ms[0].unwrap())))
        }
        Step::Force => {
            let forced = world.on_key(&lock, |engine, tx| engine.force_release(tx, None, None));
            Some(Told::Forced(forced.unwrap()))
        }
        Step::Advance(ms) => {
            world.advance(ms);
            None
        }
        Step::Leaves(index) => {
            if let Some(ticket) = waiting.get(index % waiting.len().max(1)) {
                world.waiter_left(*ticket, false);
                world.run_timer();
            }
            None
        }
        Step::Delete => {
            world.unlink(&lock);
            world.run_timer();
            None
        }
    }
}

/// Runs the same step in the oracle.
fn run_oracle(oracle: &mut Oracle, step: &Step) -> Option<Told> {
    match *step {
        Step::Acquire { owner, lease_ms, block_ms, claim_ms, request_id, is_once } => {
            Some(oracle.acquire(owner, lease_ms, (block_ms, claim_ms), request_id, is_once))
        }
        Step::Release { owner, request_id, is_meant, keep_ms } => {
            Some(oracle.release(owner, request_id, is_meant, keep_ms))
        }
        Step::Renew { owner, lease_ms } => Some(oracle.renew(owner, lease_ms)),
        Step::Force => {
            let forced = oracle.holder.is_some();
            if forced {
                oracle.end(EndCause::Forced);
            }
            Some(Told::Forced(forced))
        }
        Step::Advance(ms) => {
            oracle.advance(ms);
            None
        }
        Step::Leaves(index) => {
            if !oracle.line.is_empty() {
                oracle.line.remove(index % oracle.line.len());
            }
            None
        }
        Step::Delete => {
            oracle.holder = None;
            oracle.hand_over();
            None
        }
    }
}

/// The output of the engine, in the oracle's words.
fn outputs(world: &mut World) -> (Vec<(usize, Told)>, Vec<EndCause>) {
    let (mut told, mut ended) = (Vec::new(), Vec::new());
    for (_, output) in std::mem::take(&mut world.outputs) {
        match output {
            Output::Answer { ticket, answer, .. } => told.push((
                world.number_of(ticket),
                match answer {
                    Answer::Granted(_) => Told::Granted,
                    Answer::TimedOut => Told::Nil,
                    Answer::Superseded => Told::Superseded,
                    other => panic!("{other:?}"),
                },
            )),
            Output::Effect { event: Event::Ended { cause, .. }, .. } => ended.push(cause),
            Output::Effect { .. } => {}
        }
    }
    (told, ended)
}

/// More would take minutes under Miri.
const MOST_STEPS: usize = if cfg!(miri) { 10 } else { 80 };

proptest! {
    #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 2 } else { 2000 }, ..ProptestConfig::default() })]

    #[test]
    fn a_mutex_does_what_the_oracle_says(steps in prop::collection::vec(step(), 1..MOST_STEPS)) {
        let mut world = World::new();
        let mut oracle = Oracle::default();
        for step in &steps {
            let waiting: Vec<usize> = oracle.line.iter().map(|w| w.ticket).collect();
            // On a real server the timer may run after a command at the moment of a deadline. Here
            // both sides first reach the same state.
            world.advance(0);
            oracle.advance(0);
            prop_assert_eq!(run(&mut world, step, &waiting), run_oracle(&mut oracle, step), "{:?}", step);
            let (mut told, ended) = outputs(&mut world);
            let mut expected = std::mem::take(&mut oracle.told);
            // The order of waiters that time out in the same step does not matter.
            told.sort_by_key(|(ticket, _)| *ticket);
            expected.sort_by_key(|(ticket, _)| *ticket);
            prop_assert_eq!(told, expected, "{:?}", step);
            let expected: Vec<_> = std::mem::take(&mut oracle.ended).into_iter().map(|(_, cause)| cause).collect();
            prop_assert_eq!(ended, expected, "{:?}", step);
            let held = world.lock(&key("k")).and_then(|lock| lock.holds().first().cloned());
            let state = held.map(|hold| (
                hold.owner().as_slice().to_vec(),
                hold.count(),
                hold.deadline_us() / 1000,
                hold.request(),
            ));
            let expected = oracle.holder.as_ref().map(|holder| (
                name(holder.owner).to_vec(),
                holder.count,
                holder.until_ms,
                holder.mark.map(|(id, verb, added)| RequestMark { id, verb, added }),
            ));
            prop_assert_eq!(state, expected, "{:?}", step);
            prop_assert_eq!(world.engine.waiting(), oracle.line.len());
            for waiter in &oracle.line {
                prop_assert!(world.is_waiting(waiter.ticket));
            }
        }
    }
}
