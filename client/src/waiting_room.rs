//! Where the requests of this process wait: in a line per lock, and on a bounded number of connections.
//!
//! A blocked request needs a connection of its own. Only the first in the line of a lock asks the server; the others wait behind it
//! here, in order. That adds no edge to the graph of who waits for whom, because at the server they would stand behind it too. And
//! no number of waiters for one lock keeps the waiters for another from a connection.
//!
//! The exception is an owner that the user has named. It may hold other locks, and the server can refuse a circle of owners only if it sees all
//! that wait; so it waits at the server whenever a connection is free.
//!
//! Waiters for many different locks can still use all connections up. Then the first in line of each further lock asks from time to time
//! over the shared connection until it gets one, so that nothing depends on a connection coming free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redis::{ConnectionInfo, RedisError};
use tokio::sync::{OwnedMutexGuard, OwnedSemaphorePermit, Semaphore};

use crate::link::Link;
use crate::servers::Servers;

/// What a line is for: the keys that are wanted together.
type Wanted = Arc<[Vec<u8>]>;

/// The lines and connections of a client.
pub(crate) struct WaitingRoom {
    lines: Mutex<HashMap<Wanted, Arc<tokio::sync::Mutex<()>>>>,
    free: Arc<Semaphore>,
    size: usize,
    /// Connections that nobody waits on.
    idle: Mutex<Vec<Arc<Link>>>,
}

/// The first place in the line of a lock. The next one moves up when it is dropped.
pub(crate) struct FirstInLine {
    room: Arc<WaitingRoom>,
    wanted: Wanted,
    turn: Option<OwnedMutexGuard<()>>,
}

/// The right to one waiting connection.
pub(crate) struct Seat {
    room: Arc<WaitingRoom>,
    _permit: OwnedSemaphorePermit,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl WaitingRoom {
    /// A room with so many connections at most.
    pub(crate) fn new(size: usize) -> Arc<Self> {
        let (lines, idle) = (Mutex::default(), Mutex::default());
        Arc::new(Self { lines, free: Arc::new(Semaphore::new(size)), size, idle })
    }

    /// Whether somebody of this process waits for the same already.
    pub(crate) fn has_line(&self, wanted: &[Vec<u8>]) -> bool {
        lock(&self.lines).contains_key(wanted)
    }

    /// Waits for the first place in a line, first come, first served.
    pub(crate) async fn line_up(self: &Arc<Self>, wanted: &Wanted) -> FirstInLine {
        let line = lock(&self.lines).entry(wanted.clone()).or_default().clone();
        // Made first, so that the line is removed also when this wait is dropped.
        let mut place = FirstInLine { room: self.clone(), wanted: wanted.clone(), turn: None };
        place.turn = Some(line.lock_owned().await);
        place
    }

    /// Takes a connection if one is free.
    pub(crate) fn try_sit_down(self: &Arc<Self>) -> Option<Seat> {
        let permit = self.free.clone().try_acquire_owned().ok()?;
        Some(Seat { room: self.clone(), _permit: permit })
    }

    /// Waits for a free connection, first come, first served.
    pub(crate) async fn sit_down(self: Arc<Self>) -> Option<Seat> {
        let permit = self.free.clone().acquire_owned().await.ok()?;
        Some(Seat { room: self, _permit: permit })
    }
}

impl Drop for FirstInLine {
    fn drop(&mut self) {
        let mut lines = lock(&self.room.lines);
        self.turn = None;
        // One reference is the map's; each that waits has another. None can be added while the map is locked.
        if lines.get(&self.wanted).is_some_and(|line| Arc::strong_count(line) == 1) {
            lines.remove(&self.wanted);
        }
    }
}

impl Seat {
    /// A connection to where `info` leads: an idle one, or a new one.
    pub(crate) async fn connection(&self, servers: &Servers, info: &ConnectionInfo) -> Result<Arc<Link>, RedisError> {
        let found = {
            let mut idle = lock(&self.room.idle);
            idle.retain(|link| !link.is_closed());
            let same_place = |link: &Arc<Link>| link.info().addr() == info.addr();
            match idle.iter().position(same_place) {
                Some(at) => Some(idle.swap_remove(at)),
                None => {
                    // Idle ones to other places make room, so that there are never more than the room's size.
                    let in_use = self.room.size - self.room.free.available_permits();
                    idle.truncate(self.room.size - in_use);
                    None
                }
            }
        };
        match found {
            Some(link) => Ok(link),
            None => servers.connect(info.clone()).await,
        }
    }

    /// Gives a connection back on which nothing is pending.
    pub(crate) fn put_back(&self, link: Arc<Link>) {
        if !link.is_closed() {
            lock(&self.room.idle).push(link);
        }
    }
}
