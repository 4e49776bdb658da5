//! Sessions: a hold bound to its owner's connection ends soon after the connection closed, unless
//! it is bound again before that is processed, or its lease expires first. Here an owner has one
//! connection at a time.

use super::Oracle;
use super::holds::Held;

/// The session of a hold: how long it lasts after its connection closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    ms: u64,
    connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    Open,
    /// It has closed, and the event is not processed yet.
    Closed,
    Gone,
}

impl Held {
    /// The owner uses the hold over its connection, and may set another time. A hold without a
    /// session gets one only this way.
    pub(super) fn bind(&mut self, ms: Option<u64>) {
        let ms = ms.or(self.session.map(|session| session.ms));
        self.session = ms.map(|ms| Session { ms, connection: Connection::Open });
    }

    pub(super) fn is_bound(&self) -> bool {
        self.session.is_some_and(|session| session.connection == Connection::Open)
    }

    pub(super) fn session_ms(&self) -> Option<u64> {
        self.session.map(|session| session.ms)
    }

    /// Sets another time, or removes the session. The bindings stay.
    pub(super) fn set_session_ms(&mut self, ms: Option<u64>) {
        let connection = self.session.map_or(Connection::Gone, |session| session.connection);
        self.session = ms.map(|ms| Session { ms, connection });
    }

    pub(super) fn unbind(&mut self) {
        if let Some(session) = &mut self.session {
            session.connection = Connection::Gone;
        }
    }

    /// Shortens the hold to its session time.
    pub(super) fn end_session(&mut self, now_ms: u64) {
        if let Some(ms) = self.session_ms() {
            self.until_ms = self.until_ms.min(now_ms + ms);
        }
    }

    fn lose_connection(&mut self) -> bool {
        let session = self.session.as_mut().filter(|session| session.connection == Connection::Open);
        session.is_some_and(|session| {
            session.connection = Connection::Closed;
            true
        })
    }
}

impl Oracle {
    /// Closes the connection of an owner, with all its waits.
    pub(crate) fn close(&mut self, owner: u8) {
        self.leave(owner);
        for held in self.holds.iter_mut().filter(|held| held.owner == owner) {
            self.is_told |= held.lose_connection();
        }
    }

    /// Connections of the former server do not exist on this one.
    pub(super) fn close_all(&mut self) {
        self.holds.iter_mut().for_each(|held| _ = held.lose_connection());
    }

    /// Shortens the holds that are bound only to closed connections to their session time.
    pub(super) fn end_sessions(&mut self, now_ms: u64) {
        for held in &mut self.holds {
            if held.session.is_some_and(|session| session.connection == Connection::Closed) {
                held.unbind();
                held.end_session(now_ms);
            }
        }
    }
}
