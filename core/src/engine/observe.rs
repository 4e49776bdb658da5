//! What a server does about keys on which it decides nothing: a replica, and a master with a key of a slot that another node has.

use super::positions::NameId;
use super::state::Engine;
use super::sweep::TimerStep;
use crate::bytes::Key;
use crate::keyspace::{KeyId, Keyspace};

impl Engine {
    /// The next key that a replica has been told of, for [`Engine::observe`]. What was flushed is forgotten on the way, and what
    /// is left of locks that ended all at once.
    pub fn next_to_observe(&mut self) -> Option<Key> {
        self.work.begin_timer();
        // What is behind is so until a promotion, which sweeps again.
        while !matches!(self.sweep_on(), TimerStep::Nothing) {}
        while !matches!(self.clean_up(), TimerStep::Nothing) {}
        while self.drop_bindings() {}
        self.next_dirty().or_else(|| self.next_loaded())
    }

    /// Whether a replica has yet to look at something.
    #[must_use]
    pub fn has_to_observe(&self) -> bool {
        self.has_cut_off()
            || self.sweep.is_some()
            || !self.dirty.is_empty()
            || !self.loaded.is_empty()
            || !self.leftovers.is_empty()
            || self.has_retired()
            || self.connections.has_stale()
    }

    /// Looks at a key without deciding anything, to keep its alarm: what a replica does with what it was told, and a master
    /// with a key of a slot that another node has now.
    pub fn observe(&mut self, keys: &mut impl Keyspace, id: KeyId) {
        if let Some(name) = self.queues.names.find(keys.key(id)) {
            self.forget_dirty(name);
        }
        self.set_alarm(keys, id);
        let ringing = self.ringing.take();
        self.forget_if_rung(ringing);
    }

    /// Forgets what is dirty of a name. Of owners that are gone there may be very many: of these a part, and the others when it is looked at again.
    fn forget_dirty(&mut self, name: NameId) {
        let parts = self.work.parts;
        let dirty = self.queues.names.get_mut(name).and_then(|record| record.dirty.as_mut());
        let has_more = dirty.is_some_and(|dirty| (0..parts).all(|_| dirty.gone.pop_first().is_some()));
        if has_more {
            self.mark(name, |_| {});
        } else if let Some(record) = self.queues.names.get_mut(name) {
            record.dirty = None;
        }
        self.queues.names.tidy(name);
    }
}
