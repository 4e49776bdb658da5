//! Sessions: a hold that is bound to the connection of its owner ends soon after that has closed, unless it is bound anew before that is acted
//! upon or its lease ends first. Here an owner has one connection at a time.

use super::Oracle;
use super::holds::Held;

/// The session of a hold: how long it has when its connection has closed.
#[derive(Clone, Copy, Debug)]
pub(super) struct Session {
    ms: u64,
    connection: Connection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Connection {
    Open,
    /// It has closed, and that was not acted upon.
    Closed,
    Gone,
}

impl Held {
    /// Its owner uses the hold over its connection, and may name another time. A hold without a session gets one only by being given that.
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

    /// It has another time, or no session. To what it is bound stays.
    pub(super) fn set_session_ms(&mut self, ms: Option<u64>) {
        let connection = self.session.map_or(Connection::Gone, |session| session.connection);
        self.session = ms.map(|ms| Session { ms, connection });
    }

    pub(super) fn unbind(&mut self) {
        if let Some(session) = &mut self.session {
            session.connection = Connection::Gone;
        }
    }

    /// It has its time left and no more.
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
    /// The connection of an owner closes, with all that it waits for.
    pub(crate) fn close(&mut self, owner: u8) {
        self.leave(owner);
        for held in self.holds.iter_mut().filter(|held| held.owner == owner) {
            self.is_told |= held.lose_connection();
        }
    }

    /// No connection of the server before is one of this server.
    pub(super) fn close_all(&mut self) {
        self.holds.iter_mut().for_each(|held| _ = held.lose_connection());
    }

    /// What was bound to connections that have closed has so much time left.
    pub(super) fn end_sessions(&mut self, now_ms: u64) {
        for held in &mut self.holds {
            if held.session.is_some_and(|session| session.connection == Connection::Closed) {
                held.unbind();
                held.end_session(now_ms);
            }
        }
    }
}
