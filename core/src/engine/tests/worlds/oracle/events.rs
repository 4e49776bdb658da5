//! What the server tells a lock: a connection has closed, the value is gone, this server takes over. It is noted here, and acted upon when
//! somebody asks for the lock or uses a hold, or when the timer goes off.

use super::Oracle;

impl Oracle {
    /// Before somebody uses a hold.
    pub(super) fn act_on_what_was_told(&mut self, now_ms: u64) {
        if self.is_told {
            self.settle(now_ms);
        }
    }

    /// The connection of a waiter, or of a grant that was not heard of, is gone. Of the end of any other one the lock is told nothing.
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

    /// The value is gone; who waits stays, until that is acted upon.
    pub(crate) fn delete(&mut self) {
        self.holds.clear();
        self.kept = None;
        self.unmake();
        (self.is_told, self.is_gone) = (true, true);
    }

    /// This server takes over: who waits on it goes on, and nothing is bound to a connection.
    pub(crate) fn promote(&mut self) {
        self.close_all();
        (self.is_told, self.is_gone) = (true, true);
    }

    /// Another server takes over: nobody is connected to it.
    pub(crate) fn fail_over(&mut self) {
        self.line.clear();
        self.close_all();
        self.hear_all();
        self.undone.clear();
        self.is_told = true;
    }
}
