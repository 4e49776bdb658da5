//! Server events of a lock: a closed connection, a removed value, a promotion. The oracle records
//! them, and processes them with the next request for the lock, the next use of a hold, or the
//! timer.

use super::Oracle;

impl Oracle {
    /// Processes recorded events before a hold is used.
    pub(super) fn act_on_what_was_told(&mut self, now_ms: u64) {
        if self.is_told {
            self.settle(now_ms);
        }
    }

    /// The connection of a waiter, or of an unconfirmed grant, closed. A lock gets no event for
    /// other connections.
    pub(crate) fn leave(&mut self, owner: u8) {
        let is_unheard = self.unheard.iter().any(|one| one.owner == owner) || self.over.contains(&owner);
        if !is_unheard && !self.line.iter().any(|one| one.owner == owner) {
            return;
        }
        self.leave_line(owner);
        self.over.retain(|of| *of != owner);
        self.undone.extend(self.unheard.extract_if(.., |one| one.owner == owner));
        self.is_told = true;
    }

    /// The value was removed; waiters stay until the event is processed.
    pub(crate) fn delete(&mut self) {
        self.holds.clear();
        self.kept = None;
        self.unmake();
        (self.is_told, self.is_gone) = (true, true);
    }

    /// This server was promoted: its waiters stay, and nothing is bound to a connection.
    pub(crate) fn promote(&mut self) {
        self.close_all();
        (self.is_told, self.is_gone) = (true, true);
    }

    /// Another server was promoted: it has no connections.
    pub(crate) fn fail_over(&mut self) {
        self.line.clear();
        self.close_all();
        self.hear_all();
        self.undone.clear();
        self.is_told = true;
    }
}
