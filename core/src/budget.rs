//! The budget of one step, because the server's only thread does nothing else meanwhile.
//!
//! Each command may do a little of the work that it finds (an expired lease, a waiter to serve).
//! More work uses a shared budget of all commands in one turn of the server's event loop. The
//! timer, which has its own budget in each run, does the rest. Deferring work is always safe: an
//! expired lease has no effect, no request passes a waiter, and a grant to be undone only lasts a
//! little longer.

/// What one command may do for each of its keys, beyond the request itself.
const OWN_UNITS: u32 = 8;

/// The budget that all commands of one turn share. A run of the timer has the same budget again,
/// and happens in the same turn if the commands leave work. Both together, with the server's part,
/// take a few milliseconds.
const SHARED_UNITS: u32 = 1_000;

/// The cost of an answer, which the server writes after the module has finished.
pub(crate) const ANSWER: u32 = 6;

/// The cost of any other change.
pub(crate) const CHANGE: u32 = 1;

/// The most steps of all deadlock searches in one turn.
const SEARCH_STEPS: u32 = 20_000;

/// One step does at most this many small units of work: slots that the sweep skips, leftovers that
/// the timer frees, or holds of a removed value that the engine visits.
const PARTS: u32 = 256;

/// How many parts cost as much as a change.
pub(crate) const PARTS_PER_CHANGE: u32 = 8;

/// How many bindings of a closed connection, or of a removed value, one step visits.
const BINDINGS: usize = 64;

/// The budget of the current turn.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    own: u32,
    shared: u32,
    search_steps: u32,
    parts: u32,
    bindings: usize,
    #[cfg(test)]
    scarcity: Option<Scarcity>,
}

/// Budgets so small that all deferrable work stops in the middle.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scarcity {
    pub(crate) own: u32,
    /// At least 1. Work that costs more takes all of it, so that each turn makes progress.
    pub(crate) shared: u32,
    pub(crate) search_steps: u32,
    pub(crate) parts: u32,
    pub(crate) bindings: usize,
}

impl Default for Budget {
    fn default() -> Self {
        Self {
            own: 0,
            shared: SHARED_UNITS,
            search_steps: SEARCH_STEPS,
            parts: PARTS,
            bindings: BINDINGS,
            #[cfg(test)]
            scarcity: None,
        }
    }
}

impl Budget {
    /// Begins a turn of the event loop, or a run of the timer.
    pub(crate) fn begin_turn(&mut self) {
        #[cfg(test)]
        if let Some(Scarcity { shared, search_steps, parts, bindings, .. }) = self.scarcity {
            *self = Self { own: 0, shared, search_steps, parts, bindings, ..*self };
            return;
        }
        *self = Self::default();
    }

    #[cfg(test)]
    pub(crate) fn make_scarce(&mut self, scarcity: Scarcity) {
        self.scarcity = Some(scarcity);
        self.begin_turn();
    }

    /// Begins a command on `keys` keys.
    pub(crate) fn begin_command(&mut self, keys: usize) {
        #[cfg(test)]
        if let Some(Scarcity { own, .. }) = self.scarcity {
            self.own = own;
            return;
        }
        self.own = u32::try_from(keys).unwrap_or(u32::MAX).saturating_mul(OWN_UNITS);
    }

    /// Begins a step of the timer, which has only the shared budget.
    pub(crate) fn begin_timer(&mut self) {
        self.own = 0;
    }

    /// Takes `units` from the budget. `false` if there are not enough left.
    pub(crate) fn take(&mut self, units: u32) -> bool {
        #[cfg(test)]
        let units = self.scarcity.map_or(units, |scarcity| units.min(scarcity.shared));
        if let Some(left) = self.own.checked_sub(units) {
            self.own = left;
            return true;
        }
        match self.shared.checked_sub(units) {
            Some(left) => {
                self.shared = left;
                true
            }
            None => false,
        }
    }

    /// How many steps the deadlock searches of this turn have left.
    pub(crate) fn search_steps(&self) -> u32 {
        self.search_steps
    }

    /// Takes the steps of a deadlock search.
    pub(crate) fn take_search_steps(&mut self, steps: u32) {
        self.search_steps = self.search_steps.saturating_sub(steps);
    }

    /// How many slots, leftovers or holds one step visits.
    pub(crate) fn parts(&self) -> u32 {
        self.parts
    }

    /// How many bindings one step visits.
    pub(crate) fn bindings(&self) -> usize {
        self.bindings
    }

    /// Takes the cost of one step that handles up to [`Budget::parts`] units.
    pub(crate) fn take_parts(&mut self) -> bool {
        self.take(self.parts.div_ceil(PARTS_PER_CHANGE))
    }

    /// Takes `units` for work that cannot be divided. If there are not enough left, the turn ends,
    /// and the next one begins with this work.
    pub(crate) fn take_or_end_turn(&mut self, units: u32) -> bool {
        let is_enough = self.take(units);
        if !is_enough {
            self.shared = 0;
        }
        is_enough
    }

    /// Whether too little is left for any work of the timer.
    pub(crate) fn is_used_up(&self) -> bool {
        #[cfg(test)]
        if let Some(scarcity) = self.scarcity {
            return self.shared < ANSWER.min(scarcity.shared);
        }
        self.shared < ANSWER
    }

    /// The units taken from the shared budget of this turn.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u32 {
        SHARED_UNITS.saturating_sub(self.shared)
    }

    /// The steps that the searches of this turn have taken.
    #[cfg(test)]
    pub(crate) fn searched(&self) -> u32 {
        SEARCH_STEPS.saturating_sub(self.search_steps)
    }
}
