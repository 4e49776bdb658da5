//! Client commands in a small world, and the comparison of their answers with the oracle's.

use std::vec::Vec;

use super::action::{Asks, Means};
use super::oracle::fair_asking::{FairWish, Stay};
use super::oracle::holds::Back;
use super::oracle::wish::{FOR_EVER, Wish};
use super::oracle::{Told, several};
use super::remembered::{Known, Whose};
use super::small_world::{SmallWorld, Spec, Ticket, channel, mode_kind, name};
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::engine::tests::world::LIMITS;
use crate::kind::{Kind, Mode};
use crate::lock::Hold;
use crate::outbox::Grant;
use crate::request::{Ask, Refusal, Release, Renew, Request, Verb};

pub(super) const SESSION_MS: u64 = 5;
const LEASE_MS: u64 = 15;
const WAIT_MS: u64 = 25;
const CLAIM_MS: u64 = 4;
const SHORT_GRACE_MS: u64 = 6;
/// How long a lock stays kept: shorter than a full lease, and longer than the rest of a lease after
/// one tick.
const KEEP_MS: u64 = 11;
/// The lease of a renewal: shorter than a full lease, and longer than the rest of one after one
/// tick.
const RENEW_MS: u64 = 12;
/// The duration of a place without a connection.
const QUEUE_MS: u64 = 30;

/// The options of ACQUIRE.
#[derive(Clone, Copy)]
pub(super) struct Asked {
    pub(super) mode: Mode,
    pub(super) count: u32,
    pub(super) ask: Asks,
    pub(super) id: Option<u64>,
}

impl Asked {
    /// How long it waits, if it does.
    fn wait_ms(self) -> Option<u64> {
        match self.ask {
            Asks::Try | Asks::Once | Asks::Queue | Asks::ClaimNow => None,
            Asks::Wait | Asks::Claim | Asks::Grace | Asks::Bound | Asks::Notified => Some(WAIT_MS),
            Asks::WaitForEver => Some(FOR_EVER),
        }
    }
}

impl SmallWorld {
    /// The only function that sends a request.
    fn request(&self, kind: Kind, owner: u8, asked: Asked) -> Request {
        let Asked { mode, count, ask, id } = asked;
        let until_us = |wait_ms| (wait_ms != FOR_EVER).then(|| self.world.now.after_ms(wait_ms));
        Request {
            verb: Verb::Acquire,
            kind,
            mode,
            count,
            lease_ms: LEASE_MS,
            request_id: id,
            session_ms: matches!(ask, Asks::Bound).then_some(SESSION_MS),
            claim_ms: matches!(ask, Asks::Claim | Asks::ClaimNow).then_some(CLAIM_MS),
            grace_ms: (ask == Asks::Grace).then_some(if owner == 0 { 0 } else { SHORT_GRACE_MS }),
            is_once: matches!(ask, Asks::Once | Asks::Notified),
            is_timed: true,
            notify: matches!(ask, Asks::Notified).then(|| channel(owner)),
            ask: match asked.wait_ms() {
                Some(wait_ms) => Ask::Wait { until_us: until_us(wait_ms) },
                None if ask == Asks::Queue => Ask::Queue { life_ms: QUEUE_MS },
                None => Ask::Try,
            },
        }
    }

    /// Whether a request ends its owner's request for something else, and so moves to the end of
    /// the queue of a lock that can close cycles.
    pub(super) fn waits_anew(&self, key: usize, owner: u8, asked: Asked) -> bool {
        let is_searched = matches!(self.spec, Spec::Plain(_)) && asked.wait_ms().is_some();
        let is_other = |waiting: &Ticket| (waiting.asked.mode, waiting.asked.count) != (asked.mode, asked.count);
        is_searched && self.waiting(key, owner).is_some_and(is_other)
    }

    /// The required result of a numbered request, if known. If its owner waits as well, that wait
    /// may be granted in the same step.
    fn expect(&self, whose: Whose, id: Option<u64>, verb: Verb) -> Option<Known> {
        let (key, owner, _) = whose;
        let is_exclusive = self.waiting(key, owner).is_none();
        self.remembered.expect(&self.world, whose, id.filter(|_| is_exclusive), verb)
    }

    pub(super) fn acquire(&mut self, key: usize, owner: u8, asked: Asked) {
        let now_ms = self.now_ms();
        let Asked { mode, count, ask, id } = asked;
        let whose = (key, owner, mode);
        let request = self.request(mode_kind(mode, self.kind(key)), owner, asked);
        self.lost.retain(|(of, by, _)| (*of, *by) != (key, owner));
        let known = self.expect(whose, id, Verb::Acquire);
        self.world.client = Some(self.client(owner));
        let acquired = self.world.on_key(&name(key), |engine, tx| engine.acquire(tx, &[owner], &request));
        let told = self.note(acquired, key, owner, asked);
        if told == Told::Granted {
            self.kept.keep(&self.world, key, owner, mode);
            self.remember(whose, id, Verb::Acquire);
        }
        if told == Told::Waits && id.is_some() {
            self.remembered.forget(whose);
        }
        let expected = match &mut self.spec {
            Spec::Plain(oracles) => {
                let wish = Wish {
                    mode,
                    count,
                    lease_ms: LEASE_MS,
                    wait_ms: asked.wait_ms(),
                    claim_ms: request.claim_ms,
                    session_ms: request.session_ms,
                    id,
                    is_once: request.is_once,
                    is_notified: request.notify.is_some(),
                };
                several::acquire(oracles, key, owner, wish, LIMITS.max_waiters, now_ms)
            }
            Spec::Fair(oracles) => {
                let stay = match asked.wait_ms() {
                    Some(wait_ms) => Stay::Connected(wait_ms),
                    None if ask == Asks::Queue => Stay::Polled(QUEUE_MS),
                    None => Stay::No,
                };
                several::acquire_fair(
                    oracles,
                    key,
                    owner,
                    FairWish { lease_ms: LEASE_MS, claim_ms: request.claim_ms, grace_ms: request.grace_ms, stay, id },
                    now_ms,
                )
            }
            Spec::None => told,
        };
        assert_eq!(told, expected, "the answer to ACQUIRE");
        if let Some(known) = known {
            known.check(&self.world, told);
        }
    }

    pub(super) fn drain(&mut self, owner: u8) {
        let (now_ms, mode) = (self.now_ms(), Mode::Permits);
        let request = self.request(Kind::Semaphore, owner, Asked { mode, count: 1, ask: Asks::Try, id: None });
        let taken = self.world.on_key(&name(0), |engine, tx| engine.drain_semaphore(tx, &[owner], &request));
        let told = taken.map_or_else(|refusal| refused(&refusal), |taken| Told::Free(taken.into()));
        if let Spec::Plain(oracles) = &mut self.spec {
            assert_eq!(told, oracles[0].drain(owner, LEASE_MS, now_ms), "the answer to DRAIN");
        }
        if matches!(told, Told::Free(1..)) {
            self.kept.keep(&self.world, 0, owner, mode);
        }
    }

    /// An owner remembers its last completed request. While another one is under way, it does not
    /// know which of them was the last.
    fn remember(&mut self, whose: Whose, id: Option<u64>, verb: Verb) {
        let is_numbered =
            |ticket: &&Ticket| ticket.asked.id.is_some() && (ticket.key, ticket.owner, ticket.asked.mode) == whose;
        let is_under_way = |ticket: &Ticket| {
            let is_granted = || self.world.engine.pending.holds(ticket.ticket).next().is_some();
            self.world.engine.is_waiting(ticket.ticket) || is_granted()
        };
        if self.tickets.iter().filter(is_numbered).any(is_under_way) {
            self.remembered.forget(whose);
        } else {
            self.remembered.keep(&self.world, whose, id, verb);
        }
    }

    pub(super) fn acquire_many(&mut self, owner: u8, ask: Asks) {
        let asked = Asked { mode: Mode::Exclusive, count: 1, ask, id: None };
        let request = Request { verb: Verb::AcquireMany, ..self.request(Kind::Mutex, owner, asked) };
        self.world.client = Some(self.client(owner));
        let keys = self.all();
        let acquired = self.world.on_keys(&keys, |engine, tx| engine.acquire(tx, &[owner], &request));
        let told = self.note(acquired, 0, owner, asked);
        let now = self.world.now;
        let holds = |key: &Key| {
            self.world.lock(key).is_some_and(|lock| lock.live_hold(&[owner], Mode::Exclusive, now).is_some())
        };
        assert!(told != Told::Granted || keys.iter().all(holds), "all or nothing");
    }

    fn note(&mut self, acquired: Result<Acquired, Refusal>, key: usize, owner: u8, asked: Asked) -> Told {
        match acquired {
            Ok(Acquired::Granted(Grant { tokens, .. })) => {
                self.told.extend(tokens);
                Told::Granted
            }
            Ok(Acquired::Denied) => Told::Nil,
            Ok(Acquired::Waiting(ticket)) => {
                self.world.expect_answer(ticket);
                let until_ms = self.now_ms().saturating_add(asked.wait_ms().unwrap_or(0));
                self.tickets.push(Ticket { ticket, key, owner, asked, until_ms });
                Told::Waits
            }
            Err(refusal) => refused(&refusal),
        }
    }

    pub(super) fn release(&mut self, key: usize, owner: u8, mode: Mode, id: Option<u64>, means: Means) {
        self.give_back((key, owner, mode), id, means, None);
    }

    /// RELEASE with KEEP.
    pub(super) fn release_and_keep(&mut self, key: usize, owner: u8, id: Option<u64>) {
        self.give_back((key, owner, Mode::Exclusive), id, Means::Any, Some(KEEP_MS));
    }

    fn give_back(&mut self, (key, owner, mode): Whose, id: Option<u64>, means: Means, keep_ms: Option<u64>) {
        let (now_ms, kind, who) = (self.now_ms(), mode_kind(mode, self.kind(key)), [owner]);
        let (tokens, names_token) = self.meant(key, owner, mode, means);
        let whose = (key, owner, mode);
        let known = self.expect(whose, id, Verb::Release);
        let request = Release {
            verb: Verb::Release,
            kind,
            owner: &who,
            mode,
            count: 1,
            request_id: id,
            tokens: &tokens,
            keep_ms,
            is_each: false,
        };
        let left = self.world.on_key(&name(key), |engine, tx| engine.release(tx, &request));
        let told = left.map_or_else(|refusal| refused(&refusal), |left| Told::Left(left[0].unwrap()));
        if matches!(told, Told::Left(1..)) {
            self.remember(whose, id, Verb::Release);
        }
        assert!(names_token != Some(false) || !matches!(told, Told::Left(_)), "a hold is released by its own token");
        let expected = match &mut self.spec {
            Spec::Plain(oracles) => {
                oracles[key].release(owner, Back { mode, count: 1, id, names_token, keep_ms }, now_ms)
            }
            Spec::Fair(oracles) => oracles[key].release(owner, id, names_token, keep_ms, now_ms),
            Spec::None => told,
        };
        assert_eq!(told, expected, "the answer to RELEASE");
        if let Some(known) = known {
            known.check(&self.world, told);
        }
    }

    pub(super) fn renew(&mut self, key: usize, owner: u8, mode: Mode, means: Means) {
        let (now_ms, kind, who) = (self.now_ms(), mode_kind(mode, self.kind(key)), [owner]);
        let (tokens, names_token) = self.meant(key, owner, mode, means);
        let is_meant = names_token != Some(false);
        let request = Renew { kind, owner: &who, mode, lease_ms: Some(RENEW_MS), tokens: &tokens, is_each: false };
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

    /// The TOKEN argument, and if there is one, whether it matches an existing hold or a kept lock.
    fn meant(&mut self, key: usize, owner: u8, mode: Mode, means: Means) -> (Vec<u64>, Option<bool>) {
        self.lost.retain(|(of, by, _)| (*of, *by) != (key, owner));
        let now = self.world.now;
        let lock = self.world.lock(&name(key));
        let hold = lock.and_then(|lock| lock.hold(&[owner], mode)).filter(|hold| hold.is_live(now));
        let token = hold.map(Hold::token);
        match means {
            Means::Any => (Vec::new(), None),
            Means::Own => (token.into_iter().chain([1]).take(1).collect(), Some(token.is_some())),
            Means::Earlier => (token.map(|token| token - 1).into_iter().chain([1]).take(1).collect(), Some(false)),
        }
    }
}

/// The oracle's word for an error.
pub(super) fn refused(refusal: &Refusal) -> Told {
    match refusal {
        Refusal::NotOwner { .. } => Told::NotOwner,
        Refusal::Stale { .. } => Told::Stale,
        Refusal::Deadlock(_) => Told::Deadlock,
        _ => Told::Refused,
    }
}
