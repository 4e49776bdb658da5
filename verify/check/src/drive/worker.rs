//! One client: a seed decides what it does, and the results are recorded.
//!
//! Each acquisition has an owner of its own, so the record of one owner is one story: it asks, is
//! granted, changes its hold, and releases it.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use anyhow::Result;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::campaign::Limits;
use super::subscriber::{Subscriber, Subscribes};
use super::wire::{Connection, as_grant, now_us};
use crate::history::{Call, Key, Kind, Mode, Operation, Outcome};

/// A lease that is not meant to expire during a hold.
pub(super) const LONG_LEASE_MS: u64 = 60_000;
/// A wait that is not meant to run out.
pub(super) const LONG_WAIT_MS: u64 = 8_000;

/// How many owners that have released their hold are remembered, and how often one of them checks
/// whether it holds again.
const REMEMBERED: usize = 8;
const LOOKS_BACK: f64 = 0.2;

/// How often a step is about the kept lock.
const KEEPS: f64 = 0.05;

/// See the head of this file.
pub struct Worker {
    pub(super) connection: Connection,
    pub(super) address: SocketAddr,
    pub(super) keys: Arc<[Key]>,
    pub(super) random: StdRng,
    /// The recorded operations. Until the server's order is known, `order` is the number of the
    /// request among those of its owner.
    pub operations: Vec<Operation>,
    next_owner: u64,
    /// A key that only this client uses.
    pub(super) own_key: usize,
    limits: Limits,
    pub(super) survives: bool,
    /// The server is always up, a master, and able to write, so it undoes undeliverable grants at
    /// once.
    pub(super) server_is_steady: bool,
    /// The state of the connection is unknown, so it must be replaced.
    is_confused: bool,
    /// The last owners that received the answer that they released their whole hold.
    released: VecDeque<Party>,
    /// An owner whose session ended with its connection, or that was killed in the turn of its
    /// grant, and the time by which the server must have noticed.
    pub(super) closed: Option<(Party, u64)>,
    /// The lock that it holds beside everything else, and since when.
    pub(super) kept: Option<(Party, u64)>,
    /// The key of that lock, which only this client uses.
    pub(super) kept_key: usize,
    /// Listens for answers on this client's own channel.
    pub(super) subscriber: Option<Subscriber>,
    /// How it subscribes.
    pub(super) subscribes: Subscribes,
}

/// An owner, with its key and mode.
#[derive(Clone, Copy)]
pub(super) struct Party {
    pub(super) owner: u64,
    pub(super) key: usize,
    pub(super) mode: Mode,
    /// How many requests it has sent.
    pub(super) asked: u64,
}

/// The options of an ACQUIRE.
#[derive(Clone, Copy)]
pub(super) struct Wish {
    pub(super) count: u32,
    pub(super) lease_ms: u64,
    pub(super) block_ms: Option<u64>,
    pub(super) request_id: Option<u64>,
    pub(super) session_ms: Option<u64>,
    pub(super) queue_ms: Option<u64>,
    pub(super) claim_ms: Option<u64>,
    pub(super) is_once: bool,
}

impl Wish {
    pub(super) const WAIT: Self = Self {
        count: 1,
        lease_ms: LONG_LEASE_MS,
        block_ms: Some(LONG_WAIT_MS),
        request_id: None,
        session_ms: None,
        queue_ms: None,
        claim_ms: None,
        is_once: false,
    };
    pub(super) const TRY: Self = Self { block_ms: None, ..Self::WAIT };

    /// The options as they apply after a wait: the hold lasts as long as the claim.
    pub(super) fn after_wait(self) -> Self {
        Self { lease_ms: self.claim_ms.unwrap_or(self.lease_ms), ..self }
    }

    pub(super) fn call(self) -> Call {
        let Self { count, lease_ms, block_ms, request_id, queue_ms, is_once, .. } = self;
        Call::Acquire { count, lease_ms, block_ms, request_id, keeps_place: queue_ms.is_some(), is_once }
    }
}

/// The number before the first owner of a client. It contains the seed, so the rounds of a soak
/// never reuse a name. If the server kept data per name, its memory would grow.
const fn first_owner(number: u64, seed: u64) -> u64 {
    (number << 40) + ((seed & 0xf_ffff) << 20)
}

impl Worker {
    /// Creates a client with a number. `own_key` and `kept_key` are the positions of its own keys.
    ///
    /// # Errors
    ///
    /// If the server does not accept a connection.
    pub fn new(
        address: SocketAddr,
        keys: Arc<[Key]>,
        [own_key, kept_key]: [usize; 2],
        number: u64,
        seed: u64,
    ) -> Result<Self> {
        Ok(Self {
            limits: Limits { lease_ms: LONG_LEASE_MS, wait_ms: LONG_WAIT_MS },
            survives: false,
            server_is_steady: false,
            is_confused: false,
            released: VecDeque::new(),
            closed: None,
            kept: None,
            kept_key,
            subscriber: None,
            subscribes: Subscribes::ToServer,
            connection: Connection::insist(address)?,
            address,
            keys,
            random: StdRng::seed_from_u64(seed ^ number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
            operations: Vec::new(),
            next_owner: first_owner(number, seed),
            own_key,
        })
    }

    /// For servers and connections that fail: the client continues after a failure. Its leases and
    /// waits are at most `limits`, so that other clients can continue when it loses a hold.
    #[must_use]
    pub(super) fn among_crashes(self, limits: Limits) -> Self {
        Self { limits, survives: true, ..self }
    }

    /// For a server that is always up, a master, and able to write.
    #[must_use]
    pub(super) fn with_steady_server(self) -> Self {
        Self { server_is_steady: true, ..self }
    }

    /// For a cluster: the client listens to a channel of a shard.
    #[must_use]
    pub fn in_cluster(self) -> Self {
        Self { subscribes: Subscribes::ToShard, ..self }
    }

    /// Works until a moment of the steady clock.
    ///
    /// # Errors
    ///
    /// If an operation fails although no fault is expected.
    pub fn work(&mut self, until_us: u64) -> Result<()> {
        while now_us() < until_us {
            if let Err(error) = self.take_step() {
                if !self.survives {
                    return Err(error);
                }
                // The connection may be in the middle of a transaction.
                self.is_confused = true;
                thread::sleep(Duration::from_millis(10));
            }
        }
        // The kept lock must not be left over at the end.
        if let Some((party, _)) = self.kept.take() {
            self.release(&party, 1, None);
        }
        Ok(())
    }

    fn take_step(&mut self) -> Result<()> {
        if self.connection.is_lost() || self.is_confused {
            self.connection = Connection::open(self.address)?;
            self.is_confused = false;
        }
        if self.random.random_bool(LOOKS_BACK) {
            self.look_back();
        }
        if self.random.random_bool(KEEPS) {
            self.keep();
        }
        match self.random.random_range(0..100) {
            0..13 => self.hold_once(),
            13..16 => self.keep_closed()?,
            16..19 => self.claim()?,
            19..21 => self.ask_alone(),
            21..23 => self.come_back_late(),
            23..25 => self.drain()?,
            25..27 => self.be_ended_by_another()?,
            27..31 => self.send_again()?,
            31..35 => self.use_an_earlier_token(),
            35..39 => self.cancel_wait()?,
            // Among crashes it is unknown when the server notices a closed connection.
            39..40 if !self.survives => self.close_while_waiting()?,
            40..48 => self.be_notified()?,
            48..50 => self.wait_without_a_subscriber()?,
            50..58 => self.hold_twice(),
            58..66 => self.hold_many()?,
            66..74 => self.repeat(),
            74..78 => self.wait_briefly(),
            78..81 => self.renew_for_less(),
            81..82 => self.renew_for_more(),
            82..86 => self.change_mode(),
            // Among crashes a place might be lost while its owner cannot come for it.
            86..90 if !self.survives => self.poll(),
            90..91 => self.abandon(),
            91..92 => self.lapse()?,
            92..94 => self.be_taken_over()?,
            94..97 => self.close_session()?,
            97..99 => self.be_killed_in_turn()?,
            99..100 => self.quit_when_granted()?,
            _ => self.hold_once(),
        }
        Ok(())
    }

    /// A new owner of a random key for which `fits` is true.
    pub(super) fn party(&mut self, fits: impl Fn(Kind) -> bool) -> Party {
        loop {
            let key = self.random.random_range(0..self.keys.len());
            let Some(Key { kind, name, .. }) = self.keys.get(key) else { continue };
            if !fits(*kind) || name.starts_with("own") {
                continue;
            }
            let mode = match kind {
                Kind::Mutex | Kind::Fair => Mode::Exclusive,
                Kind::RwLock if self.random.random_bool(0.7) => Mode::Read,
                Kind::RwLock => Mode::Write,
                Kind::Semaphore => Mode::Permits,
            };
            return self.party_of(key, mode);
        }
    }

    pub(super) fn party_of(&mut self, key: usize, mode: Mode) -> Party {
        self.next_owner += 1;
        Party { owner: self.next_owner, key, mode, asked: 0 }
    }

    /// A new owner of this client's own key.
    pub(super) fn own_party(&mut self) -> Party {
        self.party_of(self.own_key, Mode::Exclusive)
    }

    /// The name of this client's own key. In a cluster, channels whose names contain it are on the
    /// node of the key.
    pub(super) fn own_name(&self) -> String {
        self.keys.get(self.own_key).map(|key| key.name.clone()).unwrap_or_default()
    }

    /// `FAMILY.VERB key owner [MODE]`.
    pub(super) fn words(&self, party: &Party, verb: &str) -> String {
        let (name, kind) = self.keys.get(party.key).map_or(("", Kind::Mutex), |key| (key.name.as_str(), key.kind));
        let family = match kind {
            Kind::Mutex => "RLOCK",
            Kind::Fair => "RFAIRLOCK",
            Kind::RwLock => "RRWLOCK",
            Kind::Semaphore => "RSEMAPHORE",
        };
        let mode = match party.mode {
            Mode::Read => " READ",
            Mode::Write => " WRITE",
            Mode::Exclusive | Mode::Permits => "",
        };
        format!("{family}.{verb} {name} o{}{mode}", party.owner)
    }

    /// Limits the lease and the wait.
    pub(super) fn limit(&self, wish: Wish) -> Wish {
        let Limits { lease_ms, wait_ms } = self.limits;
        let block_ms = wish.block_ms.map(|block_ms| block_ms.min(wait_ms));
        Wish { lease_ms: wish.lease_ms.min(lease_ms), block_ms, ..wish }
    }

    pub(super) fn wish(&self, party: &Party, wish: Wish) -> String {
        let permits = Self::permits(party, wish.count);
        let option = |name: &str, value: Option<u64>| value.map(|value| format!(" {name} {value}")).unwrap_or_default();
        let Wish { lease_ms, block_ms, request_id, session_ms, queue_ms, claim_ms, is_once, .. } = wish;
        let words = self.words(party, "ACQUIRE");
        let (block, queue) = (option("BLOCK", block_ms), option("QUEUE", queue_ms));
        let (request, session) = (option("REQ", request_id), option("SESSION", session_ms));
        let claim = option("CLAIM", claim_ms);
        let once = if is_once { " ONCE" } else { "" };
        format!("{words}{permits} PX {lease_ms}{block}{queue}{claim}{request}{session}{once}")
    }

    /// The PERMITS option.
    pub(super) fn permits(party: &Party, count: u32) -> String {
        if party.mode == Mode::Permits { format!(" PERMITS {count}") } else { String::new() }
    }

    pub(super) fn record(&mut self, party: &Party, sent_us: u64, answered_us: u64, call: Call, outcome: Outcome) {
        let Party { owner, key, mode, asked } = *party;
        let order = if matches!(call, Call::Acquire { .. }) { asked } else { 0 };
        let key = u32::try_from(key).unwrap_or(u32::MAX);
        self.operations.push(Operation { key, owner, mode, sent_us, answered_us, order, call, outcome });
    }

    /// Sends a command over this client's own connection, and records its result.
    pub(super) fn ask(&mut self, party: &Party, words: &str, call: Call) -> Outcome {
        let outcome = self.connection.call(words);
        let sent_us = self.connection.sent_us();
        let outcome = if matches!(call, Call::Acquire { .. }) { as_grant(outcome) } else { outcome };
        self.record(party, sent_us, now_us(), call, outcome);
        outcome
    }

    pub(super) fn acquire(&mut self, party: &mut Party, wish: Wish) -> bool {
        self.acquire_token(party, wish).is_some()
    }

    pub(super) fn acquire_token(&mut self, party: &mut Party, wish: Wish) -> Option<u64> {
        party.asked += 1;
        let wish = self.limit(wish);
        let words = self.wish(party, wish);
        match self.ask(party, &words, wish.call()) {
            Outcome::Granted(token) => Some(token),
            Outcome::Refused if self.survives => {
                // The server refuses requests for a while: an immediate retry would show nothing
                // new.
                thread::sleep(Duration::from_millis(2));
                None
            }
            _ => None,
        }
    }

    pub(super) fn release(&mut self, party: &Party, count: u32, request_id: Option<u64>) {
        self.give_up(party, count, request_id);
    }

    fn give_up(&mut self, party: &Party, count: u32, request_id: Option<u64>) -> Outcome {
        let permits = Self::permits(party, count);
        let request = request_id.map(|id| format!(" REQ {id}")).unwrap_or_default();
        let words = format!("{}{permits}{request}", self.words(party, "RELEASE"));
        self.ask(party, &words, Call::Release { count, token: None, request_id })
    }

    /// `RELEASE … KEEP ms`.
    pub(super) fn release_and_keep(&mut self, party: &Party, keep_ms: u64) -> Outcome {
        let words = format!("{} KEEP {keep_ms}", self.words(party, "RELEASE"));
        self.ask(party, &words, Call::Keep { keep_ms })
    }

    pub(super) fn renew(&mut self, party: &Party, lease_ms: u64) {
        let words = format!("{} PX {lease_ms}", self.words(party, "RENEW"));
        self.ask(party, &words, Call::Renew { lease_ms, token: None });
    }

    pub(super) fn look(&mut self, party: &Party) {
        let words = self.words(party, "HOLDS");
        self.ask(party, &words, Call::Look);
    }

    pub(super) fn pause(&mut self, most_us: u64) {
        let pause_us = self.random.random_range(0..=most_us);
        thread::sleep(Duration::from_micros(pause_us));
    }

    pub(super) fn wait_or_try(&mut self, party: &Party) -> Wish {
        let count = if party.mode == Mode::Permits { self.random.random_range(1..=3) } else { 1 };
        let wish = if self.random.random_bool(0.75) { Wish::WAIT } else { Wish::TRY };
        // Among crashes, a lock may be lost with its holder.
        let is_unlimited = !self.survives && wish.block_ms.is_some() && self.random.random_bool(0.2);
        Wish { count, block_ms: if is_unlimited { Some(0) } else { wish.block_ms }, ..wish }
    }

    fn hold_once(&mut self) {
        let mut party = self.party(|_| true);
        let wish = self.wait_or_try(&party);
        if self.acquire(&mut party, wish) {
            if self.random.random_bool(0.3) {
                self.pause(300);
            }
            self.release_and_remember(party, wish.count);
        }
    }

    pub(super) fn release_and_remember(&mut self, party: Party, count: u32) {
        if self.give_up(&party, count, None) == Outcome::Number(0) {
            self.released.truncate(REMEMBERED - 1);
            self.released.push_front(party);
        }
    }

    /// Checks that a released hold does not come back, whatever has happened to the server.
    fn look_back(&mut self) {
        if let Some((party, _)) = self.closed.take_if(|(_, known_us)| *known_us < now_us()) {
            self.look(&party);
        }
        // The lock of the last owner is the least likely to have been granted since.
        let one = if self.random.random_bool(0.5) { 0 } else { self.random.random_range(0..REMEMBERED) };
        if let Some(party) = self.released.get(one).copied() {
            self.look(&party);
        }
    }

    /// Holds twice, and releases one after the other; on a semaphore, if permits are left.
    fn hold_twice(&mut self) {
        let mut party = self.party(|_| true);
        if !self.acquire(&mut party, Wish::WAIT) {
            return;
        }
        let has_two = self.acquire(&mut party, Wish::TRY);
        self.look(&party);
        if has_two {
            self.release(&party, 1, None);
        }
        self.release(&party, 1, None);
    }

    /// Sends each request twice, as if the answer had been lost.
    fn repeat(&mut self) {
        let mut party = self.party(|_| true);
        let wish = Wish { request_id: Some(1), ..self.wait_or_try(&party) };
        if !self.acquire(&mut party, wish) {
            return;
        }
        self.acquire(&mut party, wish);
        if self.acquire(&mut party, Wish { request_id: Some(2), ..Wish::TRY }) {
            self.release(&party, 1, Some(3));
            self.release(&party, 1, Some(3));
        }
        self.release(&party, wish.count, Some(4));
    }

    /// Waits only briefly, and checks that the lock was not granted after nil.
    fn wait_briefly(&mut self) {
        let mut party = self.party(|_| true);
        let block_ms = Some(self.random.random_range(1..30));
        if self.acquire(&mut party, Wish { block_ms, ..Wish::WAIT }) {
            self.pause(2_000);
            self.release(&party, 1, None);
        } else {
            self.pause(5_000);
            self.look(&party);
        }
    }

    /// A writer becomes a reader, or a reader tries to become a writer.
    fn change_mode(&mut self) {
        let mut party = self.party(|kind| kind == Kind::RwLock);
        if !self.acquire(&mut party, Wish::WAIT) {
            return;
        }
        let mode = if party.mode == Mode::Read { Mode::Write } else { Mode::Read };
        let mut other = Party { mode, ..party };
        let changes = self.acquire(&mut other, Wish::TRY);
        self.pause(200);
        self.release(&party, 1, None);
        if changes {
            self.release(&other, 1, None);
        }
    }

    /// Asks for a place, and comes back for the grant.
    fn poll(&mut self) {
        let mut party = self.party(|kind| kind == Kind::Fair);
        let wish = Wish { queue_ms: Some(LONG_LEASE_MS), ..Wish::TRY };
        for _ in 0..1_000 {
            if self.acquire(&mut party, wish) {
                self.pause(200);
                self.release(&party, 1, None);
                return;
            }
            thread::sleep(Duration::from_millis(2));
        }
        let words = self.words(&party, "CANCEL");
        self.ask(&party, &words, Call::Cancel { is_waiting: false });
    }
}
