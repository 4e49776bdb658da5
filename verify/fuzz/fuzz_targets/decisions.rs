//! Sequences of commands, deadlines and disconnects, four bytes each, checked against the oracles
//! of the small worlds. After each step both sides must agree on the answers, the holders and the
//! waiters.
//!
//! A sequence uses only what the oracles support. The first byte chooses the world: a mutex, a
//! read-write lock and a semaphore, whose waiters are blocked or answered on a channel; or a fair
//! lock.

#![no_main]

use std::num::NonZeroU32;

use libfuzzer_sys::fuzz_target;
use rlock_core::{
    Acquired, Answer, Ask, Cancel, Channel, Key, Kind, Lock, Mode, Refusal, Release, Renew, Request, US_PER_MS, Verb,
};
use rlock_fuzz::{LIMITS, World, live};

#[path = "../../../core/src/engine/tests/worlds/oracle/mod.rs"]
#[allow(dead_code, reason = "the small worlds use all of it")]
mod oracle;

/// The place where the oracles expect the types of the core.
mod kind {
    pub(crate) use rlock_core::Mode;
}

mod request {
    pub(crate) use rlock_core::Verb;
}

use oracle::circles::run_timers;
use oracle::fair::FairOracle;
use oracle::fair_asking::{FairWish, Stay};
use oracle::fair_places::Place;
use oracle::holds::Back;
use oracle::kept::Kept;
use oracle::line::InLine;
use oracle::several::acquire;
use oracle::wish::{FOR_EVER, Wish};
use oracle::{Oracle, Told, accept_what_is_open};

const OWNERS: u8 = 4;
const PERMITS: u32 = 3;
/// How long a semaphore that was deleted and created again may stay idle.
const IDLE_MS: u64 = 25;

fuzz_target!(|bytes: &[u8]| {
    let Some((world, steps)) = bytes.split_first() else {
        return;
    };
    let mut beside = Beside::new(*world);
    for step in steps.chunks_exact(4).take(100) {
        if let [verb, at, who, how] = *step {
            beside.take(verb, at, who, how);
            beside.compare();
        }
    }
    beside.hear(true);
    // Waiters without a time limit may hold one after the other.
    for _ in 0..=LIMITS.max_waiters + LIMITS.max_places {
        beside.world.pass(100);
        beside.run_timer();
        beside.compare();
        beside.hear(true);
    }
    assert_eq!((beside.world.engine.held(), beside.world.engine.waiting()), (0, 0), "something is left over");
});

enum Spec {
    Plain(Vec<Oracle>),
    Fair(FairOracle),
}

/// A request that waits, or whose grant may not have been received.
struct Ticket {
    ticket: u64,
    key: usize,
    owner: u8,
    is_granted: bool,
}

/// A world with an oracle beside each of its keys.
struct Beside {
    world: World,
    spec: Spec,
    is_notified: bool,
    tickets: Vec<Ticket>,
    /// How many connections of each owner were closed.
    closed: [u64; OWNERS as usize],
}

impl Beside {
    fn new(which: u8) -> Self {
        let mut world = World::default();
        let spec = if which % 3 == 2 {
            Spec::Fair(FairOracle::default())
        } else {
            let made = world.on(&[name(2)], None, |engine, tx| engine.init_semaphore(tx, PERMITS, None));
            assert!(made.is_ok(), "cannot create a semaphore");
            let kinds = [oracle::Kind::Mutex, oracle::Kind::ReadWrite, oracle::Kind::Semaphore(Some(PERMITS))];
            Spec::Plain(kinds.map(Oracle::new).into())
        };
        Self { world, spec, is_notified: which % 3 == 1, tickets: Vec::new(), closed: [0; OWNERS as usize] }
    }

    fn now_ms(&self) -> u64 {
        self.world.now.mono_us / US_PER_MS
    }

    /// The current connection of an owner. No number is used twice.
    fn client(&self, owner: u8) -> u64 {
        u64::from(owner) + 1 + self.closed[usize::from(owner)] * u64::from(OWNERS)
    }

    fn take(&mut self, verb: u8, at: u8, who: u8, how: u8) {
        self.world.engine.begin_turn();
        let (key, kind, mode) = match (&self.spec, at % 3) {
            (Spec::Fair(_), _) => (0, Kind::Fair, Mode::Exclusive),
            (Spec::Plain(_), 0) => (0, Kind::Mutex, Mode::Exclusive),
            (Spec::Plain(_), 1) => (1, Kind::RwLock, if at & 4 == 0 { Mode::Read } else { Mode::Write }),
            (Spec::Plain(_), _) => (2, Kind::Semaphore, Mode::Permits),
        };
        let owner = who % OWNERS;
        let count = if mode == Mode::Permits { u32::from(who >> 2) % PERMITS + 1 } else { 1 };
        let (keys, now_ms, id) = ([name(key)], self.now_ms(), u64::from(how >> 2 & 3));
        // For CLAIM and KEEP.
        let short_ms = (verb & 16 != 0).then(|| u64::from(verb >> 5) * 3 + 1);
        match verb % 16 {
            0..=5 => {
                let waits = how & 2 != 0;
                let notify = (self.is_notified && waits).then(|| channel(owner));
                let span_ms = match u64::from(at >> 3) {
                    31 if waits => FOR_EVER,
                    ms => ms + 1,
                };
                let is_plain = kind != Kind::Fair;
                let request = Request {
                    verb: Verb::Acquire,
                    kind,
                    mode,
                    count,
                    lease_ms: u64::from(how >> 4) * 3 + 1,
                    request_id: (id > 0 || notify.is_some()).then_some(id.max(1)),
                    session_ms: (is_plain && who & 64 != 0).then_some(u64::from(how & 15)),
                    claim_ms: short_ms,
                    grace_ms: short_ms.filter(|_| kind == Kind::Fair && waits && who & 16 != 0).map(|ms| ms / 4),
                    is_once: is_plain && (who & 32 != 0 || notify.is_some()),
                    is_timed: false,
                    notify,
                    ask: match how & 3 {
                        2 | 3 => {
                            let until_us = (span_ms != FOR_EVER).then(|| self.world.now.after_ms(span_ms));
                            Ask::Wait { until_us }
                        }
                        1 if kind == Kind::Fair => Ask::Queue { life_ms: span_ms },
                        _ => Ask::Try,
                    },
                };
                self.acquire(key, owner, &request, span_ms);
            }
            6 | 7 => {
                let (tokens, names_token) = self.meant(key, owner, mode, how);
                let request_id = (id > 0).then_some(id);
                let who = [owner];
                let keep_ms = short_ms.filter(|_| mode == Mode::Exclusive);
                let verb = Verb::Release;
                let (tokens, is_each) = (&tokens, false);
                let request = Release { verb, kind, owner: &who, mode, count, request_id, tokens, keep_ms, is_each };
                let left = self.world.on(&keys, None, |engine, tx| engine.release(tx, &request));
                let told = left.map_or_else(|refusal| refused(&refusal), |left| Told::Left(left[0].unwrap_or(0)));
                let expected = match &mut self.spec {
                    Spec::Plain(oracles) => {
                        oracles[key].release(owner, Back { mode, count, id: request_id, names_token, keep_ms }, now_ms)
                    }
                    Spec::Fair(oracle) => oracle.release(owner, request_id, names_token, keep_ms, now_ms),
                };
                assert_eq!(told, expected, "the answer to RELEASE");
            }
            8 => {
                let (tokens, names_token) = self.meant(key, owner, mode, how);
                let is_meant = names_token != Some(false);
                let lease_ms = u64::from(how & 63) + 1;
                let request = Renew { kind, owner: &[owner], mode, lease_ms: Some(lease_ms), tokens: &tokens, is_each: false };
                let client = Some(self.client(owner));
                let renewed = self.world.on(&keys, client, |engine, tx| engine.renew(tx, &request));
                let expected = match &mut self.spec {
                    Spec::Plain(oracles) => oracles[key].renew(owner, mode, is_meant, lease_ms, now_ms),
                    Spec::Fair(oracle) => oracle.renew(owner, is_meant, lease_ms, now_ms),
                };
                assert_eq!(renewed.is_ok(), matches!(expected, Told::Left(_)), "the answer to RENEW");
            }
            9 if kind == Kind::Semaphore && how & 1 == 1 => {
                let permits = u32::from(how >> 1) % 4 + 1;
                let resized = self.world.on(&keys, None, |engine, tx| engine.resize_semaphore(tx, permits));
                let told = resized.map_or_else(|refusal| refused(&refusal), Told::Free);
                if let Spec::Plain(oracles) = &mut self.spec {
                    assert_eq!(told, oracles[key].resize(permits, now_ms), "the answer to RESIZE");
                }
            }
            9 if kind == Kind::Semaphore && how & 3 == 2 => self.drain(owner, u64::from(how >> 4) * 3 + 1),
            9 => {
                let forced = self.world.on(&keys, None, |engine, tx| engine.force_release(tx, Some(kind), None));
                let is_missing = forced == Err(Refusal::NoSemaphore);
                assert!(forced.is_ok() || is_missing, "FORCERELEASE was refused");
                match &mut self.spec {
                    Spec::Plain(oracles) => oracles[key].force(now_ms),
                    Spec::Fair(oracle) => oracle.force(now_ms),
                }
            }
            10 => {
                let request_id = (id > 0).then_some(id);
                let cancel = Cancel { kind, owner: &[owner], request_id };
                let cancelled = self.world.on(&keys, None, |engine, tx| engine.cancel(tx, &cancel));
                assert!(cancelled.is_ok(), "CANCEL was refused");
                match &mut self.spec {
                    Spec::Plain(oracles) => oracles[key].cancel(owner, request_id, now_ms),
                    Spec::Fair(oracle) => oracle.cancel(owner, request_id, now_ms),
                }
            }
            11 if self.is_notified || at & 8 != 0 => self.close(owner),
            11 => self.leave(key, owner),
            12 => self.hear(how & 1 == 0),
            13 => self.delete(key),
            14 if how & 64 != 0 => self.promote(),
            14 => self.world.pass(u64::from(how % 32)),
            _ => {
                self.world.pass(u64::from(how % 32));
                self.run_timer();
            }
        }
    }

    fn acquire(&mut self, key: usize, owner: u8, request: &Request, span_ms: u64) {
        let now_ms = self.now_ms();
        let Request {
            mode, count, lease_ms, session_ms, claim_ms, grace_ms, request_id: id, is_once, notify, ask, ..
        } = *request;
        let waits = matches!(ask, Ask::Wait { .. });
        // A new, different wait is searched for circles at once, and also by the timer. It is
        // undefined whether that happens before or after the answers about another lock.
        let is_other = |one: &InLine| one.owner == owner && (one.wish.mode, one.wish.count) != (mode, count);
        let waits_anew = matches!(&self.spec, Spec::Plain(oracles) if waits && oracles[key].line.iter().any(is_other));
        if waits_anew {
            self.run_timer();
        }
        let client = self.client(owner);
        let acquired = self.world.on(&[name(key)], Some(client), |engine, tx| engine.acquire(tx, &[owner], request));
        self.world.note(acquired.clone());
        let told = match acquired {
            Ok(Acquired::Granted(_)) => Told::Granted,
            Ok(Acquired::Denied) => Told::Nil,
            Ok(Acquired::Waiting(ticket)) => {
                self.tickets.push(Ticket { ticket, key, owner, is_granted: false });
                Told::Waits
            }
            Err(refusal) => refused(&refusal),
        };
        let expected = match &mut self.spec {
            Spec::Plain(oracles) => {
                let wait_ms = waits.then_some(span_ms);
                let is_notified = notify.is_some();
                let wish = Wish { mode, count, lease_ms, wait_ms, claim_ms, session_ms, id, is_once, is_notified };
                acquire(oracles, key, owner, wish, LIMITS.max_waiters, now_ms)
            }
            Spec::Fair(oracle) => {
                let stay = match ask {
                    Ask::Wait { .. } => Stay::Connected(span_ms),
                    Ask::Queue { .. } => Stay::Polled(span_ms),
                    Ask::Try => Stay::No,
                };
                oracle.acquire(owner, FairWish { lease_ms, claim_ms, grace_ms, stay, id }, now_ms)
            }
        };
        assert_eq!(told, expected, "the answer to ACQUIRE");
        if waits_anew {
            self.run_timer();
        }
    }

    fn drain(&mut self, owner: u8, lease_ms: u64) {
        let request = Request {
            verb: Verb::Acquire,
            kind: Kind::Semaphore,
            mode: Mode::Permits,
            count: 1,
            lease_ms,
            request_id: None,
            session_ms: None,
            claim_ms: None,
            grace_ms: None,
            is_once: false,
            is_timed: false,
            notify: None,
            ask: Ask::Try,
        };
        let (client, now_ms) = (self.client(owner), self.now_ms());
        let taken =
            self.world.on(&[name(2)], Some(client), |engine, tx| engine.drain_semaphore(tx, &[owner], &request));
        let told = taken.map_or_else(|refusal| refused(&refusal), |taken| Told::Free(taken.into()));
        if let Spec::Plain(oracles) = &mut self.spec {
            assert_eq!(told, oracles[2].drain(owner, lease_ms, now_ms), "the answer to DRAIN");
        }
    }

    /// The TOKEN option, and if there is one, whether a hold may have that token.
    fn meant(&self, key: usize, owner: u8, mode: Mode, how: u8) -> (Vec<u64>, Option<bool>) {
        let lock = self.world.values.get(name(key).name.as_slice());
        let held = lock.and_then(|lock| {
            let mut live = live(lock, self.world.now);
            live.find(|hold| hold.owner().as_slice() == [owner] && hold.mode() == mode)
        });
        match (how >> 6, held) {
            (0 | 1, _) => (Vec::new(), None),
            (2, Some(hold)) => (vec![hold.token()], Some(true)),
            (_, held) => (vec![held.map_or(1, |hold| hold.token() - 1)], Some(false)),
        }
    }

    /// Closes the connection of an owner that is blocked or may not have received its grant.
    /// Skipped if a wait is over and not answered yet, because it is undefined whether nil comes
    /// first.
    fn leave(&mut self, key: usize, owner: u8) {
        let is_of_owner = |ticket: &Ticket| (ticket.key, ticket.owner) == (key, owner);
        if self.is_over(key, owner) || !self.tickets.iter().any(is_of_owner) {
            return;
        }
        for Ticket { ticket, .. } in self.tickets.extract_if(.., |ticket| is_of_owner(ticket)) {
            self.world.hang_up(ticket);
        }
        match &mut self.spec {
            Spec::Plain(oracles) => oracles[key].leave(owner),
            Spec::Fair(oracle) => oracle.leave(owner),
        }
    }

    fn is_over(&self, key: usize, owner: u8) -> bool {
        let now_ms = self.now_ms();
        match &self.spec {
            Spec::Plain(oracles) => oracles[key].line.iter().any(|one| one.owner == owner && one.until_ms <= now_ms),
            Spec::Fair(oracle) => {
                oracle.line.iter().any(|one| one.owner == owner && one.is_connected && one.until_ms <= now_ms)
            }
        }
    }

    /// Closes the connection of an owner, with all its waits and sessions.
    fn close(&mut self, owner: u8) {
        let Spec::Plain(oracles) = &self.spec else { return };
        if (0..oracles.len()).any(|key| self.is_over(key, owner)) {
            return;
        }
        for Ticket { ticket, .. } in self.tickets.extract_if(.., |ticket| ticket.owner == owner) {
            if !self.is_notified {
                self.world.hang_up(ticket);
            }
        }
        self.world.close(self.client(owner));
        self.closed[usize::from(owner)] += 1;
        let Spec::Plain(oracles) = &mut self.spec else { return };
        oracles.iter_mut().for_each(|oracle| oracle.close(owner));
    }

    /// Delivers the answers of this turn by writing or publishing them. With `is_heard` false, no
    /// client listens to the channels.
    fn hear(&mut self, is_heard: bool) {
        let is_heard = is_heard || !self.is_notified;
        if !self.is_notified {
            self.world.engine.confirm_grants(|_| true);
        } else if self.world.has_unpublished() {
            self.world.publish(is_heard);
        } else {
            return;
        }
        self.tickets.retain(|ticket| !ticket.is_granted);
        match &mut self.spec {
            Spec::Plain(oracles) if is_heard => oracles.iter_mut().for_each(Oracle::hear_all),
            Spec::Plain(oracles) => oracles.iter_mut().for_each(Oracle::nobody_hears),
            Spec::Fair(oracle) => oracle.hear_all(),
        }
    }

    /// Removes a value, as DEL does, or creates a semaphore that does not exist. Skips fair locks,
    /// whose queue would go with the value.
    fn delete(&mut self, key: usize) {
        let now_ms = self.now_ms();
        let Spec::Plain(oracles) = &mut self.spec else { return };
        let name = name(key);
        if !self.world.values.contains_key(name.name.as_slice()) {
            if key == 2 {
                let idle_ms = Some(IDLE_MS);
                let made = self.world.on(&[name], None, |engine, tx| engine.init_semaphore(tx, PERMITS, idle_ms));
                assert_eq!(made, Ok(true), "cannot create a semaphore");
                oracles[key].init(PERMITS, idle_ms, now_ms);
            }
            return;
        }
        self.world.delete(&name);
        self.world.engine.value_changed(name.borrow());
        oracles[key].delete();
    }

    /// Promotes this server, which all clients are connected to.
    fn promote(&mut self) {
        self.world.engine.promoted();
        match &mut self.spec {
            Spec::Plain(oracles) => oracles.iter_mut().for_each(Oracle::promote),
            Spec::Fair(oracle) => oracle.promote(),
        }
    }

    fn run_timer(&mut self) {
        let now_ms = self.now_ms();
        self.world.run_timer();
        loop {
            let next_ms = match &mut self.spec {
                Spec::Plain(oracles) => {
                    run_timers(oracles, now_ms);
                    oracles.iter().filter_map(Oracle::next_ms).min()
                }
                Spec::Fair(oracle) => {
                    oracle.run_timer(now_ms);
                    oracle.next_ms()
                }
            };
            if next_ms.is_none_or(|next_ms| next_ms > now_ms) {
                return;
            }
        }
    }

    fn compare(&mut self) {
        let mut told: Vec<((usize, u8), Told)> = Vec::new();
        for (ticket, answer) in std::mem::take(&mut self.world.answers) {
            let Some(at) = self.tickets.iter().position(|known| known.ticket == ticket) else { continue };
            let (key, owner) = (self.tickets[at].key, self.tickets[at].owner);
            self.tickets[at].is_granted = matches!(answer, Answer::Granted(_));
            if !self.tickets[at].is_granted {
                self.tickets.remove(at);
            }
            told.push((
                (key, owner),
                match answer {
                    Answer::Granted(_) => Told::Granted,
                    Answer::TimedOut => Told::Nil,
                    Answer::Superseded => Told::Superseded,
                    Answer::Cancelled => Told::Cancelled,
                    Answer::Refused(refusal) => refused(&refusal),
                    // Published to no client, or to one that has gone.
                    Answer::Continued | Answer::Closed | Answer::Ended | Answer::Demoted | Answer::Moved => continue,
                },
            ));
        }
        let (now, now_ms) = (self.world.now, self.now_ms());
        let (mut expected_told, mut expected) = (Vec::new(), Vec::new());
        match &mut self.spec {
            Spec::Plain(oracles) => {
                for (key, oracle) in oracles.iter_mut().enumerate() {
                    expected_told
                        .extend(std::mem::take(&mut oracle.answers).into_iter().map(|(of, told)| ((key, of), told)));
                    expected.push(plain(oracle, now_ms));
                }
            }
            Spec::Fair(oracle) => {
                expected_told.extend(std::mem::take(&mut oracle.answers).into_iter().map(|(of, told)| ((0, of), told)));
                expected.push(fair(oracle, now_ms));
            }
        }
        accept_what_is_open(&mut told, &expected_told);
        told.sort();
        expected_told.sort();
        assert_eq!(told, expected_told, "the answers to the waiters");
        for (key, expected) in expected.into_iter().enumerate() {
            let name = name(key);
            let lock = self.world.values.get(name.name.as_slice());
            let mut seen: Vec<Seen> = lock
                .into_iter()
                .flat_map(|lock| live(lock, now))
                .map(|hold| (0, hold.owner().as_slice()[0], hold.mode(), hold.count(), hold.deadline_us() / US_PER_MS))
                .collect();
            seen.sort();
            let kept = lock.and_then(|lock| lock.kept(now));
            seen.extend(
                kept.map(|hold| (2, hold.owner().as_slice()[0], hold.mode(), 0, hold.deadline_us() / US_PER_MS)),
            );
            if let Some(queue) = lock.and_then(Lock::queue) {
                let live = queue.iter().filter(|place| place.stay.until_us().is_none_or(|at_us| at_us > now.mono_us));
                seen.extend(live.map(|place| {
                    let until_ms = place.stay.until_us().map_or(u64::MAX, |at_us| at_us / US_PER_MS);
                    (1, place.owner[0], Mode::Exclusive, 1, until_ms)
                }));
            } else {
                let waiters = self.world.engine.first_waiters(name.borrow(), now, usize::MAX);
                seen.extend(waiters.map(|waiter| (1, waiter.owner[0], waiter.mode, waiter.count, 0)));
            }
            assert_eq!(seen, expected, "the holders and waiters of key {key}");
        }
    }
}

/// A hold (0), a waiter (1), or a kept lock (2): owner, mode, count, and end.
type Seen = (u8, u8, Mode, u32, u64);

fn seen_kept(kept: Option<Kept>, now_ms: u64) -> Option<Seen> {
    let kept = kept.filter(|kept| kept.until_ms > now_ms);
    kept.map(|kept| (2, kept.owner, Mode::Exclusive, 0, kept.until_ms))
}

fn plain(oracle: &Oracle, now_ms: u64) -> Vec<Seen> {
    let mut seen: Vec<Seen> =
        oracle.live(now_ms).map(|held| (0, held.owner, held.mode, held.count, held.until_ms)).collect();
    seen.sort();
    seen.extend(seen_kept(oracle.kept, now_ms));
    let line = oracle.line.iter().filter(|one| one.until_ms > now_ms);
    seen.extend(line.map(|one| (1, one.owner, one.wish.mode, one.wish.count, 0)));
    seen
}

fn fair(oracle: &FairOracle, now_ms: u64) -> Vec<Seen> {
    let held = oracle.holder.filter(|(_, _, until_ms)| *until_ms > now_ms);
    let mut seen: Vec<Seen> =
        held.map(|(owner, count, until_ms)| (0, owner, Mode::Exclusive, count, until_ms)).into_iter().collect();
    seen.extend(seen_kept(oracle.kept, now_ms));
    let until_ms = |place: &Place| if place.is_connected { u64::MAX } else { place.until_ms };
    let line = oracle.line.iter().filter(|place| until_ms(place) > now_ms);
    seen.extend(line.map(|place| (1, place.owner, Mode::Exclusive, 1, until_ms(place))));
    seen
}

fn refused(refusal: &Refusal) -> Told {
    match refusal {
        Refusal::NotOwner { .. } => Told::NotOwner,
        Refusal::Deadlock(_) => Told::Deadlock,
        Refusal::Stale { .. } => Told::Stale,
        _ => Told::Refused,
    }
}

fn name(number: usize) -> Key {
    Key { name: [b"mrs"[number]].as_slice().into(), db: 0 }
}

fn channel(owner: u8) -> Channel {
    Channel(NonZeroU32::MIN.saturating_add(owner.into()))
}
