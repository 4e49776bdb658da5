//! The requests of owners, and the beliefs that the answers give them.

use super::SESSION;
use super::action::Ask;
use super::beliefs::Claim;
use super::fault::Fault;
use super::server::Waiting;
use super::turns::Purpose;
use super::world::{World, at};
use crate::engine::Acquired;
use crate::engine::tests::keyspace::Value;
use crate::kind::Mode;
use crate::outbox::Grant;
use crate::request::{Ask as How, Release, Renew, Request, Verb};

impl World<'_> {
    /// An owner gains a belief by an answer of this server.
    pub(super) fn note_belief(&mut self, number: usize) {
        let newest = self.newest_term();
        self.answered[usize::from(self.servers[number].term == newest)] = true;
        self.shown.under_both |= newest > 0 && self.answered == [true, true];
    }

    pub(super) fn ask(&mut self, owner: u8, number: usize, key: usize, ask: Ask) -> bool {
        // Owners are interchangeable, so only the first one sends the first request.
        if owner > 0 && self.setup.are_owners_alike && !self.has_begun {
            return false;
        }
        self.has_begun = true;
        match ask {
            Ask::Leave => return self.leave(owner, number),
            Ask::Close => return self.close(owner, number),
            Ask::Renew(mode) => return self.renew(owner, number, key, mode),
            Ask::Release(mode) => {
                let Some(token) = self.owners[usize::from(owner)].of(key, mode).map(|claim| claim.token) else {
                    return false;
                };
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
                    tokens: &[token],
                    keep_ms: None,
                    is_each: false,
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
    pub(super) fn count_held(&self, owner: u8, number: usize, key: usize, mode: Mode) -> u32 {
        self.hold(owner, number, key, mode).map_or(1, |(_, count)| count)
    }

    pub(super) fn hold(&self, owner: u8, number: usize, key: usize, mode: Mode) -> Option<(u64, u32)> {
        match self.servers[number].values.0.get(&at(key)) {
            Some(Value::Lock(lock)) => {
                lock.live_hold(&[owner], mode, self.now_of(number)).map(|hold| (hold.token(), hold.count()))
            }
            _ => None,
        }
    }

    pub(super) fn request(&self, number: usize, ask: Ask, mode: Mode, count: u32) -> Request {
        let waits = matches!(ask, Ask::Wait(..));
        Request {
            verb: if ask == Ask::TryBoth { Verb::AcquireMany } else { Verb::Acquire },
            kind: self.setup.kind,
            mode,
            count,
            lease_ms: self.lease(number),
            request_id: waits.then_some(1),
            session_ms: self.setup.has_sessions.then_some(SESSION),
            claim_ms: None,
            grace_ms: None,
            is_once: matches!(ask, Ask::Once(..)),
            is_timed: waits,
            notify: None,
            ask: if waits { How::Wait { until_us: None } } else { How::Try },
        }
    }

    pub(super) fn attempt(&self, owner: u8, number: usize, keys: &[usize], ask: Ask, mode: Mode) -> Purpose {
        let holds = |mode: Mode| keys.iter().any(|key| self.hold(owner, number, *key, mode).is_some());
        let holds_other = [Mode::Read, Mode::Write].into_iter().filter(|other| *other != mode).any(holds);
        Purpose::Attempt { ask, holds: holds(mode), holds_other }
    }

    pub(super) fn acquire(&mut self, owner: u8, number: usize, keys: &[usize], ask: Ask, mode: Mode, count: u32) {
        self.begin_turn(number);
        let (request, client) =
            (self.request(number, ask, mode, count), self.servers[number].connections[usize::from(owner)]);
        let purpose = self.attempt(owner, number, keys, ask, mode);
        let lease = self.lease(number);
        let acquired =
            self.transact(number, keys, Some(client), purpose, |engine, tx| engine.acquire(tx, &[owner], &request));
        match acquired {
            Ok(Acquired::Granted(Grant { tokens, .. })) => {
                for (key, token) in keys.iter().zip(tokens) {
                    self.owners[usize::from(owner)].granted(*key, mode, count, token, lease, self.now, self.now);
                }
                self.note_belief(number);
                self.note_grant(number);
            }
            Ok(Acquired::Waiting(ticket)) => {
                let waiting = Waiting { ticket, owner, key: keys[0], ask, sent: self.now, granted: None };
                self.server(number).waiting.push(waiting);
            }
            Ok(Acquired::Denied) | Err(_) => {}
        }
    }

    pub(super) fn drain(&mut self, owner: u8, number: usize, ask: Ask) {
        self.begin_turn(number);
        let (request, lease) = (self.request(number, ask, Mode::Permits, 1), self.lease(number));
        let purpose = Purpose::Attempt { ask, holds: false, holds_other: false };
        let taken =
            self.transact(number, &[0], None, purpose, |engine, tx| engine.drain_semaphore(tx, &[owner], &request));
        if let Ok(count @ 1..) = taken
            && let Some((token, _)) = self.hold(owner, number, 0, Mode::Permits)
        {
            self.owners[usize::from(owner)].granted(0, Mode::Permits, count, token, lease, self.now, self.now);
            self.note_belief(number);
            self.note_grant(number);
        }
    }

    pub(super) fn renew(&mut self, owner: u8, number: usize, key: usize, mode: Mode) -> bool {
        let claim = self.owners[usize::from(owner)].of(key, mode);
        let asks = |claim: &&Claim| claim.until() > self.now || self.fault == Fault::RenewsLater;
        let Some(token) = claim.filter(asks).map(|claim| claim.token) else {
            return false;
        };
        self.begin_turn(number);
        let (who, kind, client) = ([owner], self.setup.kind, self.servers[number].connections[usize::from(owner)]);
        let lease = self.lease(number);
        let (tokens, lease_ms) = (&[token], Some(lease));
        let request = Renew { kind, owner: &who, mode, lease_ms, tokens, is_each: false };
        let renewed =
            self.transact(number, &[key], Some(client), Purpose::Renewal, |engine, tx| engine.renew(tx, &request));
        if renewed.is_ok() {
            self.owners[usize::from(owner)].renewed(key, mode, lease, self.now);
            self.note_belief(number);
        }
        self.take_offers(number);
        true
    }

    /// Closes the connection of a wait, or of a grant of the last turn.
    pub(super) fn leave(&mut self, owner: u8, number: usize) -> bool {
        let waiting = &mut self.server(number).waiting;
        let Some(at) = waiting.iter().position(|waiting| waiting.owner == owner) else { return false };
        let ticket = waiting.remove(at).ticket;
        self.server(number).engine.waiter_left(ticket, false);
        true
    }

    /// Closes the connection that an owner's holds are bound to.
    pub(super) fn close(&mut self, owner: u8, number: usize) -> bool {
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
}
