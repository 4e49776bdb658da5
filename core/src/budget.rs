//! How much may be done in one go: the server's only thread does nothing else meanwhile.
//!
//! Each command may do a little of what it finds to be done (a lease that ended, a waiter to serve). What is more comes out
//! of an allowance that all commands of one turn of the server's event loop share, and then is left to the timer, which has
//! an allowance of its own each time. Leaving it is always safe: a lease that is over has no effect, whoever waits is not
//! passed, and a grant that is to be taken back only lasts a little longer.

/// What one command may do for each of its keys, beyond what was asked of it.
const OWN_UNITS: u32 = 8;

/// What all commands of one turn may do in addition, and the same again for the timer, which goes off in the same turn if they leave
/// something to it. Both together, and the server's part of it, take a few milliseconds.
const SHARED_UNITS: u32 = 1_000;

/// What an answer costs: the server has to write it, after the module's own part is done.
pub(crate) const ANSWER: u32 = 6;

/// What any other change costs.
pub(crate) const CHANGE: u32 = 1;

/// How many steps all searches for deadlocks of one turn may take.
const SEARCH_STEPS: u32 = 20_000;

/// How many slots the sweep passes over, leftovers are given back, or holds of a value that went away are looked at, at once.
const PARTS: u32 = 256;

/// How many parts cost as much as a change.
pub(crate) const PARTS_PER_CHANGE: u32 = 8;

/// How many bindings of a connection that closed, or of a value that went away, are looked at at once.
const BINDINGS: usize = 64;

/// The allowances.
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

/// Allowances so small that work stops in the middle of everything that can be left to the timer.
#[cfg(test)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scarcity {
    pub(crate) own: u32,
    /// At least 1. What costs more than all of it costs all of it, so that each turn gets somewhere.
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
    /// A turn of the event loop begins, or a run of the timer.
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

    /// A command on so many keys begins.
    pub(crate) fn begin_command(&mut self, keys: usize) {
        #[cfg(test)]
        if let Some(Scarcity { own, .. }) = self.scarcity {
            self.own = own;
            return;
        }
        self.own = u32::try_from(keys).unwrap_or(u32::MAX).saturating_mul(OWN_UNITS);
    }

    /// The timer goes on with something: it has the shared allowance only.
    pub(crate) fn begin_timer(&mut self) {
        self.own = 0;
    }

    /// Takes from the allowances what something costs. `false` if they are used up.
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

    /// How many steps the searches for deadlocks of this turn may still take.
    pub(crate) fn search_steps(&self) -> u32 {
        self.search_steps
    }

    /// A search for deadlocks has taken so many steps.
    pub(crate) fn take_search_steps(&mut self, steps: u32) {
        self.search_steps = self.search_steps.saturating_sub(steps);
    }

    /// How many slots, leftovers or holds are one step.
    pub(crate) fn parts(&self) -> u32 {
        self.parts
    }

    /// How many bindings are one step.
    pub(crate) fn bindings(&self) -> usize {
        self.bindings
    }

    /// Takes what one step over [`Budget::parts`] costs.
    pub(crate) fn take_parts(&mut self) -> bool {
        self.take(self.parts.div_ceil(PARTS_PER_CHANGE))
    }

    /// The same for what cannot be divided. If there is not enough left for it, the turn has done enough, and the next one begins
    /// with it.
    pub(crate) fn take_or_end_turn(&mut self, units: u32) -> bool {
        let is_enough = self.take(units);
        if !is_enough {
            self.shared = 0;
        }
        is_enough
    }

    /// Whether nothing is left that the timer could do something with.
    pub(crate) fn is_used_up(&self) -> bool {
        #[cfg(test)]
        if let Some(scarcity) = self.scarcity {
            return self.shared < ANSWER.min(scarcity.shared);
        }
        self.shared < ANSWER
    }

    /// What was taken from the shared allowance of this turn.
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
