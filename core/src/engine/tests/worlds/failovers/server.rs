//! One server: the real engine, the real rules of `quarantine.rs` and `right_to_grant.rs`, and its
//! end of the replication.

use std::collections::BTreeMap;
use std::vec::Vec;

use super::action::Ask;
use crate::engine::Engine;
use crate::engine::tests::keyspace::Value;
use crate::exclusion::{Exclusion, Replication};
use crate::lock::Lock;

/// The values of a server, by database and name.
#[derive(Default)]
pub(super) struct Values(pub(super) BTreeMap<(u32, Vec<u8>), Value>);

impl Clone for Values {
    /// An exact copy, with the alarms and bindings that a lock's own copy lacks.
    fn clone(&self) -> Self {
        let exact = |lock: &Lock| {
            let mut copy = lock.clone();
            copy.set_alarm(lock.alarm());
            for (client, token) in lock.bindings() {
                copy.bind(token, client);
            }
            copy
        };
        let copy = |value: &Value| match value {
            Value::Lock(lock) => Value::Lock(exact(lock)),
            Value::Foreign => Value::Foreign,
        };
        Self(self.0.iter().map(|(at, value)| (at.clone(), copy(value))).collect())
    }
}

/// An effect on its way to a replica: the key, the facts, the owner and the note.
#[derive(Clone)]
pub(super) struct Sent {
    pub(super) key: usize,
    pub(super) facts: Vec<u8>,
    pub(super) arguments: [Option<Vec<u8>>; 2],
}

/// A request that waits.
#[derive(Clone, Copy)]
pub(super) struct Waiting {
    pub(super) ticket: u64,
    pub(super) owner: u8,
    pub(super) key: usize,
    pub(super) ask: Ask,
    pub(super) sent: u64,
    /// It was granted, with this token, and may believe for this number of ticks.
    pub(super) granted: Option<(u64, u64)>,
}

/// A master's knowledge of a replica.
#[derive(Clone, Copy, Default)]
pub(super) struct Link {
    /// The offset that it has acknowledged; `None` if it never followed.
    pub(super) acknowledged: Option<u64>,
    /// The acknowledged offset in the master's socket, not read yet.
    pub(super) in_socket: Option<u64>,
    /// What it had acknowledged over an earlier connection, whose loss the master has not noticed.
    pub(super) lost: Option<u64>,
}

#[derive(Clone)]
pub(super) struct Server {
    pub(super) engine: Engine,
    pub(super) values: Values,
    pub(super) exclusion: Exclusion,
    /// The master of a replica.
    pub(super) follows: Option<usize>,
    /// Promotions are numbered. This is the number of the newest master that the server knows, or
    /// its own.
    pub(super) term: u64,
    /// The offset up to which it has written or received.
    pub(super) offset: u64,
    /// The effects that its master has written and this replica has not received.
    pub(super) on_the_way: Vec<Sent>,
    /// Whether its data is unrelated to the stream, so it needs a full copy.
    pub(super) needs_copy: bool,
    /// Its replicas, by number. A lost connection stays until the master notices the loss.
    pub(super) links: Vec<Link>,
    pub(super) waiting: Vec<Waiting>,
    /// The last connection of each owner.
    pub(super) connections: [u64; 2],
    /// It has the changed settings.
    pub(super) is_changed: bool,
    /// Each of its replicas has two connections.
    pub(super) has_twins: bool,
    /// A connection has acknowledged more than was written.
    pub(super) has_forged: bool,
}

impl Server {
    pub(super) fn new(servers: usize) -> Self {
        Self {
            engine: Engine::new([1, 2, 3, 4]),
            values: Values::default(),
            exclusion: Exclusion::without_margin(),
            follows: None,
            term: 0,
            offset: 0,
            on_the_way: Vec::new(),
            needs_copy: false,
            links: std::vec![Link::default(); servers],
            waiting: Vec::new(),
            connections: [1, 2],
            is_changed: false,
            has_twins: false,
            has_forged: false,
        }
    }

    pub(super) fn is_master(&self) -> bool {
        self.follows.is_none()
    }

    /// Reads the acknowledgements in its sockets.
    pub(super) fn read_acknowledgements(&mut self) {
        for link in &mut self.links {
            if let Some(offset) = link.in_socket.take() {
                link.acknowledged = Some(offset);
            }
        }
    }

    pub(super) fn replication(&self) -> Replication {
        let address = |number: usize| std::format!("{number}").into_boxed_str();
        let links = self.links.iter().enumerate();
        let connections = links.flat_map(|(number, link)| [link.lost, link.acknowledged].map(|by| (number, by)));
        let mut replicas: Vec<_> = connections.filter_map(|(number, by)| Some((address(number), by?))).collect();
        if self.has_twins {
            replicas.extend_from_within(..);
        }
        if self.has_forged {
            replicas.push((address(self.links.len()), u64::MAX));
        }
        Replication { offset: self.offset, replicas }
    }
}
