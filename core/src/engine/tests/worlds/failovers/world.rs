//! Servers that replicate, owners that send requests, and time. One step at a time.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::vec::Vec;

use super::Setup;
use super::action::{Action, Ask};
use super::beliefs::{Beliefs, overlap};
use super::fault::Fault;
use super::server::{Server, Values};
use crate::bytes::KeyRef;
use crate::engine::tests::keyspace::{Open, Value};
use crate::engine::tests::world::key;
use crate::kind::Kind;
use crate::limits::MayGrant;
use crate::lock::Lock;
use crate::time::{Now, US_PER_MS};

/// A tick is a millisecond, so nothing is rounded on the way to a replica.
pub(super) const TICK_US: u64 = US_PER_MS;

/// The moment at which a world begins.
const BEGIN: u64 = 100;

pub(super) static BARRED: BTreeSet<u64> = BTreeSet::new();

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
    /// The new master has granted after its quarantine.
    pub(super) granted_after: bool,
}

#[derive(Clone)]
pub(super) struct World<'s> {
    pub(super) setup: &'s Setup,
    pub(super) fault: Fault,
    pub(super) now: u64,
    pub(super) servers: Vec<Rc<Server>>,
    pub(super) owners: [Beliefs; 2],
    /// An owner has sent a request.
    pub(super) has_begun: bool,
    /// Whether some step gave an owner a belief by an answer of a former master, and of a new one.
    pub(super) answered: [bool; 2],
    pub(super) shown: Shown,
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
        // All servers have run for long, and the first one has had its quarantine.
        for number in 0..setup.servers {
            let settings = setup.settings(false);
            let exclusion = &mut world.server(number).exclusion;
            exclusion.on_settings(settings, 0);
            exclusion.on_started(true, true, 0);
        }
        if setup.replicas > 0 {
            world.act(Action::Gain(0));
            world.now += setup.longest_lease();
            world.act(Action::Gain(0));
            let may_grant = world.servers[0].exclusion.clone().may_grant(world.now * TICK_US);
            assert_eq!(may_grant, MayGrant::Yes, "the first master has the right");
        }
        for action in &setup.begins_with {
            assert!(world.act(*action), "{action}");
        }
        world
    }

    pub(super) fn server(&mut self, number: usize) -> &mut Server {
        Rc::make_mut(&mut self.servers[number])
    }

    pub(super) fn now_of(&self, server: usize) -> Now {
        let wall = self.now + 1000 + self.setup.clocks_ahead[server];
        Now { mono_us: self.now * TICK_US, wall_us: wall * TICK_US }
    }

    /// The longest lease that a server grants.
    pub(super) fn lease(&self, server: usize) -> u64 {
        self.servers[server].exclusion.max_lease_ms()
    }

    /// The settings of a server change.
    fn change(&mut self, number: usize) {
        let (settings, now_us, fault) = (self.setup.settings(true), self.now * TICK_US, self.fault);
        let server = self.server(number);
        server.is_changed = true;
        server.exclusion.on_settings(settings, now_us);
        if fault == Fault::ChangesAtOnce {
            server.exclusion.settings.forget_earlier();
            server.exclusion.on_settings(settings, now_us);
        }
    }

    pub(super) fn is_master(&self, server: usize) -> bool {
        self.servers.get(server).is_some_and(|server| server.is_master())
    }

    pub(super) fn replicas_of(&self, master: usize) -> Vec<usize> {
        (0..self.servers.len()).filter(|replica| self.servers[*replica].follows == Some(master)).collect()
    }

    pub(super) fn newest_term(&self) -> u64 {
        self.servers.iter().map(|server| server.term).max().unwrap_or(0)
    }

    /// Whether two owners hold beliefs that exclude each other.
    pub(super) fn overlaps(&self) -> bool {
        overlap(&self.owners, self.setup.permits, self.now)
    }

    /// Takes a step. Returns `false` and does nothing if it is not possible now.
    pub(super) fn act(&mut self, action: Action) -> bool {
        self.shown = Shown::default();
        if !matches!(action, Action::Ask(_, _, _, Ask::Leave)) {
            (0..self.servers.len()).for_each(|number| self.send_answers(number));
        }
        match action {
            Action::Pass(ticks) => self.now += ticks,
            Action::Tick(server) if self.is_master(server) => self.tick(server),
            Action::SlowTick(server, late)
                if server == 0 && self.is_master(server) && self.is_replica_of(1, server) =>
            {
                self.slow_tick(server, late);
            }
            Action::Receive(replica) if self.follows_master(replica) => self.receive(replica),
            Action::Follow(master) if self.is_master(master) && !self.replicas_of(master).is_empty() => {
                self.let_follow(master);
            }
            Action::Gain(master) if self.is_master(master) && !self.replicas_of(master).is_empty() => {
                self.let_follow(master);
                self.now += self.setup.longest_lag();
                self.let_follow(master);
            }
            Action::Promote(server) if self.may_promote(server) => self.promote(server),
            Action::FailOver(server) if self.may_promote(server) => self.fail_over(server),
            Action::Attach(server, master) if self.may_attach(server, master) => self.follow(server, master),
            Action::Return(server, master) if self.may_return(server, master) => self.follow(server, master),
            Action::Notice(master) if self.is_master(master) => return self.notice(master),
            Action::Twin(master) if self.is_master(master) => self.server(master).has_twins = true,
            Action::Forge(master) if self.is_master(master) && !self.servers[master].has_forged => self.forge(master),
            Action::Change(server) if !self.servers[server].is_changed => self.change(server),
            Action::Restart(server) => self.restart(server, true),
            Action::Lose(server) => self.restart(server, false),
            Action::Ask(owner, server, key, ask) if self.is_master(server) => return self.ask(owner, server, key, ask),
            _ => return false,
        }
        true
    }

    /// A replica of a server that is a replica itself receives nothing: chains are not modelled.
    pub(super) fn follows_master(&self, replica: usize) -> bool {
        self.servers.get(replica).and_then(|server| server.follows).is_some_and(|master| self.is_master(master))
    }

    pub(super) fn is_replica_of(&self, replica: usize, master: usize) -> bool {
        self.servers[replica].follows == Some(master)
    }

    /// The replicas of the first master are interchangeable, so the first promotion is always that
    /// of the second server.
    pub(super) fn may_promote(&self, server: usize) -> bool {
        self.servers[server].follows.is_some() && (server == 1 || self.newest_term() > 0)
    }

    pub(super) fn may_return(&self, server: usize, master: usize) -> bool {
        server != master && self.is_master(master) && self.servers[server].follows != Some(master)
    }

    /// A server never attaches to a master that it knows to be replaced.
    pub(super) fn may_attach(&self, server: usize, master: usize) -> bool {
        server != master && self.is_master(master) && self.servers[master].term > self.servers[server].term
    }
}

pub(super) const NAMES: [&str; 2] = ["first", "second"];

pub(super) fn at(number: usize) -> (u32, Vec<u8>) {
    (0, NAMES[number].as_bytes().to_vec())
}

pub(super) fn number_of(key: KeyRef<'_>) -> usize {
    NAMES.iter().position(|name| name.as_bytes() == key.name).expect("a known key")
}

pub(super) fn open<'w>(values: &'w mut Values, keys: &[usize], client: Option<u64>) -> Open<'w> {
    let open = keys.iter().map(|number| key(NAMES[*number])).collect();
    Open { open, client, barred: &BARRED, values: &mut values.0 }
}
