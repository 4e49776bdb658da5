//! Two states are equal if no later step can distinguish them. Of tokens, arrival numbers and
//! connection numbers only the order counts, and of times only the distance from now. Tickets do
//! not count.

use std::collections::BTreeMap;
use std::hash::{BuildHasher, Hasher};
use std::vec::Vec;

use ahash::RandomState;

use crate::bytes::{Key, KeyRef};
use crate::engine::Engine;
use crate::engine::tests::keyspace::Value;
use crate::engine::tests::world::World;
use crate::event::Terms;
use crate::lock::Lock;
use crate::outbox::Notice;
use crate::pending_grants::PendingGrant;
use crate::place::Stay;
use crate::registry::NameView;
use crate::registry::Position;
use crate::registry::{Dirty, Stage};
use crate::request::{Ask, RequestMark};

/// A hash of the relevant state of a world, in which the owners have these connections now.
pub(super) fn hash(world: &World, connections: &[u64]) -> u64 {
    let server = OneServer {
        engine: &world.engine,
        values: &world.values,
        unpublished: &world.unpublished,
        now_us: world.now.mono_us,
    };
    let mut seen = Seen::new(server);
    for connection in connections {
        seen.client(Some(*connection));
    }
    seen.see();
    seen.finish()
}

/// The parts of one server.
#[derive(Clone, Copy)]
pub(super) struct OneServer<'w> {
    pub(super) engine: &'w Engine,
    pub(super) values: &'w BTreeMap<(u32, Vec<u8>), Value>,
    pub(super) unpublished: &'w [(u64, Notice)],
    pub(super) now_us: u64,
}

/// The words that describe one server, or several.
pub(super) struct Seen<'w> {
    pub(super) of: OneServer<'w>,
    words: Vec<u64>,
    /// Tokens and arrival numbers, with the index in `words` for their rank.
    numbers: Vec<(u64, usize)>,
    /// The same for connections.
    clients: Vec<(u64, usize)>,
}

impl<'w> Seen<'w> {
    pub(super) fn new(of: OneServer<'w>) -> Self {
        Self { of, words: Vec::with_capacity(256), numbers: Vec::new(), clients: Vec::new() }
    }

    /// Adds the state of the server.
    pub(super) fn see(&mut self) {
        self.values();
        self.names();
        self.lists();
    }

    pub(super) fn word(&mut self, word: impl Into<u64>) {
        self.words.push(word.into());
    }

    pub(super) fn number(&mut self, number: u64) {
        self.numbers.push((number, self.words.len()));
        self.words.push(0);
    }

    pub(super) fn client(&mut self, client: Option<u64>) {
        self.clients.extend(client.map(|client| (client, self.words.len())));
        self.words.push(0);
    }

    pub(super) fn time(&mut self, at_us: Option<u64>) {
        let distance = at_us.map_or(u64::MAX, |at_us| at_us.wrapping_sub(self.of.now_us));
        self.words.push(distance);
    }

    fn option(&mut self, value: Option<u64>) {
        self.words.push(value.map_or(u64::MAX, |value| value));
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.words.push(bytes.len() as u64);
        for part in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..part.len()].copy_from_slice(part);
            self.words.push(u64::from_le_bytes(word));
        }
    }

    fn key(&mut self, key: KeyRef<'_>) {
        self.word(key.db);
        self.bytes(key.name);
    }

    fn mark(&mut self, mark: Option<RequestMark>) {
        self.option(mark.map(|mark| mark.id));
        self.option(mark.map(|mark| mark.verb as u64));
        self.option(mark.map(|mark| mark.added.into()));
    }

    fn terms(&mut self, terms: &Terms) {
        self.word(terms.count);
        self.time(Some(terms.deadline_us));
        self.word(terms.lease_ms);
        self.mark(terms.request);
        self.option(terms.session_ms);
        self.word(terms.phase as u64);
    }

    fn values(&mut self) {
        for ((db, name), value) in self.of.values {
            let key = KeyRef { db: *db, name };
            self.key(key);
            match value {
                Value::Foreign => self.word(99_u64),
                Value::Lock(lock) => self.lock(key, lock),
            }
        }
    }

    fn lock(&mut self, key: KeyRef<'_>, lock: &Lock) {
        let engine = self.of.engine;
        self.word(lock.kind() as u64);
        self.word(lock.permits());
        self.option(lock.idle().map(|idle| idle.idle_ms));
        self.time(lock.idle().map(|idle| idle.until_us));
        for hold in lock.holds().iter() {
            self.bytes(hold.owner().as_slice());
            self.word(hold.mode() as u64);
            self.number(hold.token());
            self.terms(&hold.terms());
            for client in lock.clients(hold.token()) {
                self.client(Some(*client));
            }
        }
        let alarm = lock.alarm();
        let is_set = engine.alarms.is_of(alarm, key);
        self.time(if is_set { engine.alarms.at_us(alarm) } else { None });
        self.word(engine.alarms.is_behind(alarm, key));
        if let Some(queue) = lock.queue() {
            self.word(queue.len() as u64);
            self.time(queue.reserved_until_us());
            for place in queue.iter() {
                self.bytes(place.owner);
                self.word(matches!(place.stay, Stay::Polled { .. }));
                self.time(place.stay.until_us());
                self.number(place.arrival);
                self.option(place.request_id);
                self.option(place.grace_ms);
            }
        }
    }

    fn names(&mut self) {
        let mut names: Vec<NameView<'_>> = self.of.engine.registry.views().collect();
        names.sort_by(|a, b| (a.key.db, a.key.name).cmp(&(b.key.db, b.key.name)));
        for name in &names {
            self.name(name);
        }
    }

    fn name(&mut self, name: &NameView<'_>) {
        let engine = self.of.engine;
        self.key(name.key);
        let flags = [name.knows_holders, name.is_rejoining, name.is_listed, name.is_behind, name.dirty.is_some()];
        self.words.extend(flags.map(u64::from));
        for position in name.queue.iter().copied() {
            let waiter = engine.registry.get(position.ticket).expect("a waiter");
            self.position(Some(position));
            self.bytes(engine.registry.owner_of(waiter));
            let request = waiter.request();
            self.words.extend([request.verb as u64, request.kind as u64, request.mode as u64]);
            self.words.extend([u64::from(request.count), request.lease_ms, u64::from(waiter.is_suspected())]);
            self.option(request.request_id);
            self.option(request.session_ms);
            self.option(request.claim_ms);
            self.option(request.grace_ms);
            self.time(if let Ask::Wait { until_us } = request.ask { until_us } else { None });
            self.client(waiter.client());
            self.word(request.is_once);
            self.option(request.notify.map(|channel| channel.0.get().into()));
            self.word(waiter.blocked_by() as u64);
        }
        for (token, grant) in engine.pending.under(name.id) {
            self.number(token);
            self.pending(grant);
        }
        if let Some(dirty) = name.dirty {
            self.dirty(dirty);
        }
    }

    fn position(&mut self, position: Option<Position>) {
        if let Some(position) = position {
            self.word(position.rank() as u64);
            self.number(position.arrival());
        }
    }

    fn dirty(&mut self, dirty: &Dirty) {
        self.words.extend([dirty.imported, dirty.replaced, dirty.review.is_some()].map(u64::from));
        if let Some(review) = dirty.review {
            self.word(review.imported);
            match review.stage {
                Stage::Unservable(position) | Stage::Holders(position) | Stage::Places(position) => {
                    self.position(position)
                }
                Stage::Sessions(below) => self.word(below as u64),
            }
        }
        for (token, ticket) in &dirty.undone {
            self.number(*token);
            self.number(*ticket);
        }
        for (token, client) in &dirty.unbound {
            self.number(*token);
            self.client(Some(*client));
        }
        for (owner, timed_out) in &dirty.gone {
            self.bytes(owner);
            self.word(timed_out.is_some());
            self.number(timed_out.unwrap_or(0));
        }
        self.word(dirty.offers.len() as u64);
    }

    fn pending(&mut self, grant: &PendingGrant) {
        if let Some(before) = &grant.before {
            self.terms(before);
        }
        self.number(grant.ticket);
        self.number(grant.arrival);
        self.option(grant.grace_ms);
        self.word(grant.count);
        self.client(grant.has_bound);
        self.words.extend([grant.has_request, grant.has_session, grant.has_note].map(u64::from));
    }

    fn lists(&mut self) {
        let engine = self.of.engine;
        let key_of = |name| engine.registry.key(name).map(KeyRef::to_key);
        for key in engine.registry.dirty_names().filter_map(key_of).collect::<Vec<Key>>() {
            self.key(key.borrow());
        }
        for key in (0..engine.backlog.loaded().len()).filter_map(|at| engine.backlog.loaded().get(at)) {
            self.key(key.borrow());
        }
        for ticket in engine.pending.unsent() {
            self.number(*ticket);
            for (name, token) in engine.pending.holds(*ticket) {
                self.option(key_of(*name).map(|key| u64::from(key.db)));
                self.number(*token);
            }
        }
        for (ticket, notice) in self.of.unpublished {
            self.words.extend([notice.channel.0.get().into(), notice.id]);
            self.client(Some(notice.client));
            self.number(*ticket);
            for (name, token) in engine.pending.holds(*ticket) {
                self.option(key_of(*name).map(|key| u64::from(key.db)));
                self.number(*token);
            }
        }
        let waiting = |ticket: &u64| engine.registry.get(*ticket).map(|waiter| waiter.arrival());
        for arrival in engine.backlog.offers().iter().filter_map(|offer| waiting(&offer.ticket)) {
            self.number(arrival);
        }
        for arrival in engine.backlog.suspects().iter().filter_map(waiting) {
            self.number(arrival);
        }
        for binding in engine.sessions.bindings() {
            self.client(Some(binding.client));
            self.number(binding.token);
            self.key(binding.key.borrow());
        }
        self.words.extend([engine.sessions.has_closed(), engine.backlog.sweep().is_some()].map(u64::from));
    }

    pub(super) fn finish(mut self) -> u64 {
        for numbers in [&mut self.numbers, &mut self.clients] {
            numbers.sort_unstable();
            let (mut rank, mut last) = (0, None);
            for (number, at) in numbers {
                if last.replace(*number) != Some(*number) {
                    rank += 1;
                }
                self.words[*at] = rank;
            }
        }
        let mut hasher = RandomState::with_seeds(1, 2, 3, 4).build_hasher();
        for word in &self.words {
            hasher.write_u64(*word);
        }
        hasher.finish()
    }
}

mod tests {
    use super::super::action::Action;
    use super::super::search::{PLAIN, Setup};
    use super::super::small_world::SmallWorld;
    use super::*;

    static SETUP: Setup = Setup { is_mixed: true, ..PLAIN };

    fn after(steps: &[Action]) -> u64 {
        let mut world = SmallWorld::new(&SETUP);
        steps.iter().for_each(|step| assert!(world.act(*step)));
        hash(&world.world, &world.connections)
    }

    #[test]
    fn only_the_order_of_connections_counts() {
        let [first, second, third] = [0, 1, 2].map(|owner| Action::Close { owner });
        assert_eq!(after(&[first, second, third]), after(&[]), "all have other numbers, in the same order");
        assert_eq!(after(&[first, first]), after(&[first]));
        assert_ne!(after(&[first]), after(&[]), "the first owner's is the newest");
    }
}
