//! The frame of every command: it has an allowance, meets keys that are up to date, and leaves them as they have to be.

use super::state::Engine;
use super::transaction::Transaction;
use crate::keyspace::Keyspace;
use crate::kind::Kind;

impl Engine {
    /// Runs a command that competes for a lock of a kind. What is left of a lock that is over goes, so that one of another kind
    /// can come.
    pub(super) fn run_competing<K: Keyspace, R>(
        &mut self,
        tx: &mut Transaction<'_, K>,
        kind: Kind,
        decide: impl FnOnce(&mut Self, &mut Transaction<'_, K>) -> R,
    ) -> R {
        self.work.begin_command(tx.keys.count());
        for id in tx.ids() {
            self.reconcile(&mut tx.at(id), false);
            self.make_room(&mut tx.at(id), kind);
        }
        let decided = decide(self, tx);
        self.close(tx);
        decided
    }

    /// Runs a command that does not compete for the lock: to it a lease that ended is just not there, and need not be removed first.
    pub(super) fn run_plain<K: Keyspace, R>(
        &mut self,
        tx: &mut Transaction<'_, K>,
        decide: impl FnOnce(&mut Self, &mut Transaction<'_, K>) -> R,
    ) -> R {
        self.work.begin_command(tx.keys.count());
        for id in tx.ids() {
            self.reconcile_if_dirty(&mut tx.at(id));
        }
        let decided = decide(self, tx);
        self.close(tx);
        decided
    }
}
