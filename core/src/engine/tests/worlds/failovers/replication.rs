//! Replication, promotions and restarts.

use std::vec::Vec;

use super::fault::Fault;
use super::server::{Link, Sent, Server, Values};
use super::turns::Plain;
use super::world::{BARRED, TICK_US, World, open};
use crate::bytes::Key;
use crate::codec::{decode, encode};
use crate::effect::parse_effect;
use crate::engine::Engine;
use crate::engine::tests::keyspace::{Open, Value};
use crate::exclusion::Replication;
use crate::keyspace::KeyId;
use crate::lock::Lock;

impl World<'_> {
    pub(super) fn replication(&self, server: usize) -> Replication {
        let mut replication = self.servers[server].replication();
        match self.fault {
            Fault::CountsConnected => replication.replicas.iter_mut().for_each(|(_, by)| *by = replication.offset),
            Fault::OneTooFew => {
                replication.replicas.insert(0, ("9".into(), replication.offset));
                replication.replicas.truncate(usize::try_from(self.setup.replicas).expect("few replicas"));
            }
            Fault::CountsForged => {
                replication.replicas.iter_mut().for_each(|(_, by)| *by = (*by).min(replication.offset));
            }
            Fault::CountsTwice => {
                for (number, (address, _)) in replication.replicas.iter_mut().enumerate() {
                    *address = std::format!("{number}{address}").into();
                }
            }
            _ => {}
        }
        replication
    }

    /// Writes to the stream, but no effect.
    pub(super) fn ping(&mut self, master: usize) {
        self.server(master).offset += 1;
    }

    pub(super) fn receive(&mut self, replica: usize) {
        let master = self.servers[replica].follows.expect("a replica");
        if self.servers[replica].needs_copy {
            self.copy(replica, master);
        }
        let (now, offset) = (self.now_of(replica), self.servers[master].offset);
        let server = self.server(replica);
        for Sent { key: number, facts, arguments } in std::mem::take(&mut server.on_the_way) {
            let [first, second] = &arguments;
            let mut event = parse_effect(&facts, [first.as_deref(), second.as_deref()], now).expect("a valid effect");
            event.shorten_lease(now, server.exclusion.longest_lease_ms());
            let mut open = open(&mut server.values, &[number], None);
            server.engine.apply_effect(&mut open, KeyId(0), &event).expect("a replica can apply it");
        }
        while server.engine.has_to_observe() {
            server.engine.begin_turn();
            while let Some(job) = server.engine.next_to_observe() {
                let mut open = Open {
                    open: [job.key.clone()].into(),
                    client: None,
                    barred: &BARRED,
                    values: &mut server.values.0,
                };
                server.engine.observe(&mut open, KeyId(0), &job);
            }
        }
        server.offset = offset;
        self.server(master).links[replica].in_socket = Some(offset);
        if self.setup.clocks_ahead == [0; 4] && self.fault == Fault::None {
            let locks = |server: usize| -> Vec<&Lock> {
                let values = self.servers[server].values.0.values();
                values.filter_map(|value| if let Value::Lock(lock) = value { Some(lock) } else { None }).collect()
            };
            assert_eq!(locks(replica), locks(master), "a replica has what its master has");
        }
    }

    /// A replica loads a copy of its master's data.
    pub(super) fn copy(&mut self, replica: usize, master: usize) {
        let (from, to) = (self.now_of(master), self.now_of(replica));
        let mut values = Values::default();
        let mut engine = Engine::new([1, 2, 3, 4]);
        for ((db, name), value) in &self.servers[master].values.0 {
            let Value::Lock(lock) = value else { continue };
            let mut bytes = Vec::new();
            encode(lock, from, &mut bytes);
            let mut lock = decode(&bytes, to).expect("a valid lock");
            lock.shorten_leases(to, self.servers[replica].exclusion.longest_lease_ms());
            values.0.insert((*db, name.clone()), Value::Lock(lock));
            engine.value_loaded(Key { db: *db, name: name.as_slice().into() });
        }
        engine.raise_token(self.servers[master].engine.last_token());
        let offset = self.servers[master].offset;
        let server = self.server(replica);
        engine.raise_token(server.engine.last_token());
        (server.engine, server.values, server.offset) = (engine, values, offset);
        server.on_the_way.clear();
        server.needs_copy = false;
    }

    /// A server becomes a replica of a master.
    pub(super) fn follow(&mut self, server: usize, master: usize) {
        let (term, servers) = (self.servers[master].term, self.servers.len());
        let replica = self.server(server);
        replica.engine.demoted();
        replica.waiting.clear();
        replica.follows = Some(master);
        replica.term = term;
        replica.links = std::vec![Link::default(); servers];
        for replica in self.replicas_of(server) {
            self.server(replica).needs_copy = true;
        }
        self.copy(server, master);
        self.connect(server, master);
        let (now_us, replication) = (self.now * TICK_US, self.replication(server));
        self.server(server).exclusion.on_tick(false, &mut Plain { now_us, replication: &replication });
    }

    /// The connection of a replica comes online. The master may not have noticed that an earlier one
    /// was lost.
    fn connect(&mut self, replica: usize, master: usize) {
        let link = &mut self.server(master).links[replica];
        *link = Link { acknowledged: Some(0), in_socket: None, lost: link.acknowledged.or(link.lost) };
        self.on_replicas(master, true);
    }

    fn on_replicas(&mut self, master: usize, has_new: bool) {
        let (now_us, replication) = (self.now * TICK_US, self.replication(master));
        let exclusion = &mut self.server(master).exclusion;
        exclusion.on_replicas(has_new, &mut Plain { now_us, replication: &replication });
    }

    /// A master notices that replicas have left, and that connections were lost.
    pub(super) fn notice(&mut self, master: usize) -> bool {
        let mut has_lost = false;
        for replica in 0..self.servers.len() {
            let follows = self.servers[replica].follows == Some(master);
            let link = &mut self.server(master).links[replica];
            let is_lost = link.lost.is_some() || (!follows && link.acknowledged.is_some());
            if is_lost {
                *link = if follows { Link { lost: None, ..*link } } else { Link::default() };
                self.on_replicas(master, false);
            }
            has_lost |= is_lost;
        }
        has_lost
    }

    /// A connection that claims to be a replica acknowledges more than was written.
    pub(super) fn forge(&mut self, master: usize) {
        self.server(master).has_forged = true;
        self.on_replicas(master, true);
    }

    pub(super) fn promote(&mut self, number: usize) {
        let (term, now_us) = (self.newest_term() + 1, self.now * TICK_US);
        let servers = self.servers.len();
        let server = self.server(number);
        let has_lost = !server.on_the_way.is_empty();
        server.on_the_way.clear();
        server.needs_copy = false;
        server.follows = None;
        server.term = term;
        server.links = std::vec![Link::default(); servers];
        server.exclusion.on_promoted(true, now_us);
        server.engine.promoted();
        self.shown.lost_suffix = has_lost;
        self.answered = [false, false];
    }

    pub(super) fn let_follow(&mut self, master: usize) {
        self.tick(master);
        for replica in self.replicas_of(master) {
            self.receive(replica);
        }
        self.tick(master);
    }

    pub(super) fn fail_over(&mut self, server: usize) {
        let others = self.servers[server].follows.map(|master| self.replicas_of(master)).unwrap_or_default();
        self.promote(server);
        let lost_suffix = self.shown.lost_suffix;
        for other in others.into_iter().filter(|other| *other != server) {
            self.follow(other, server);
        }
        self.let_follow(server);
        self.shown.lost_suffix = lost_suffix;
    }

    pub(super) fn restart(&mut self, number: usize, keeps: bool) {
        let servers = self.servers.len();
        let (now_us, master) = (self.now * TICK_US, self.servers[number].follows);
        for replica in self.replicas_of(number) {
            self.server(replica).needs_copy = true;
        }
        let settings = self.setup.settings(self.servers[number].is_changed);
        let server = self.server(number);
        let mut restarted = Server::new(servers);
        restarted.is_changed = server.is_changed;
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
        restarted.exclusion.on_settings(settings, now_us);
        restarted.exclusion.on_started(master.is_none(), !restarted.values.0.is_empty(), now_us);
        if restarted.follows.is_none() {
            restarted.engine.promoted();
        }
        *server = restarted;
        for replica in self.replicas_of(number) {
            self.connect(replica, number);
        }
        if let Some(master) = master.filter(|master| self.is_master(*master)) {
            self.connect(number, master);
        }
    }
}
