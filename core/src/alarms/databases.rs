//! Changes to all locks of a database in one step, without visiting each.
//!
//! Each database has a *generation*, which a promotion, the end of a load, SWAPDB and a flush
//! raise. The alarm of a value and the record of a name store the generation in which they were
//! last reconciled. A value or name with a lower generation may have changed without one of our
//! commands. It is reconciled when a command or its alarm opens the key, or when the sweep, which
//! visits everything in parts, reaches it.
//!
//! Alarms identify a database by a stable id. SWAPDB exchanges the stable ids of two database
//! numbers, so an id stays with its data.

use ahash::RandomState;
use hashbrown::HashMap;

/// See the module documentation.
#[cfg_attr(test, derive(Clone))]
pub(super) struct Databases {
    /// The stable ids of databases. A database without an entry is its own id.
    stable: HashMap<u32, u32, RandomState>,
    /// The inverse of `stable`.
    current: HashMap<u32, u32, RandomState>,
    /// By database number: the generations that differ from `general`.
    generations: HashMap<u32, u32, RandomState>,
    general: u32,
    newest: u32,
    /// By stable id: the generation in which the database was last flushed.
    flushed: HashMap<u32, u32, RandomState>,
    all_flushed: u32,
}

impl Databases {
    pub(super) fn new(hasher: &RandomState) -> Self {
        let map = || HashMap::with_hasher(hasher.clone());
        Self {
            stable: map(),
            current: map(),
            generations: map(),
            general: 1,
            newest: 1,
            flushed: map(),
            // Lower than any generation: nothing was flushed yet.
            all_flushed: 0,
        }
    }

    /// The generation of a database.
    pub(super) fn generation(&self, db: u32) -> u32 {
        if self.generations.is_empty() {
            return self.general;
        }
        self.generations.get(&db).copied().unwrap_or(self.general)
    }

    fn next(&mut self) -> u32 {
        self.newest = self.newest.saturating_add(1);
        self.newest
    }

    fn renew(&mut self, db: u32) {
        let generation = self.next();
        self.generations.insert(db, generation);
    }

    /// Marks everything as not reconciled.
    pub(super) fn renew_all(&mut self) {
        self.general = self.next();
        self.generations.clear();
    }

    /// All values of a database were removed.
    pub(super) fn flush(&mut self, db: u32) {
        self.renew(db);
        self.flushed.insert(self.stable(db), self.newest);
    }

    /// All values were removed.
    pub(super) fn flush_all(&mut self) {
        self.renew_all();
        self.flushed.clear();
        self.all_flushed = self.newest;
    }

    /// Whether a later flush of the database with this stable id removed a value that was last
    /// reconciled in `generation`.
    pub(super) fn was_flushed(&self, stable: u32, generation: u32) -> bool {
        let flushed_in = self.flushed.get(&stable).copied().unwrap_or(0);
        generation < flushed_in.max(self.all_flushed)
    }

    /// Two databases were swapped, and their values need reconciliation.
    pub(super) fn swap(&mut self, first: u32, second: u32) {
        let (of_first, of_second) = (self.stable(first), self.stable(second));
        for (db, stable) in [(first, of_second), (second, of_first)] {
            self.stable.insert(db, stable);
            self.current.insert(stable, db);
        }
        self.renew(first);
        self.renew(second);
    }

    /// The stable id of a database.
    pub(super) fn stable(&self, db: u32) -> u32 {
        if self.stable.is_empty() { db } else { self.stable.get(&db).copied().unwrap_or(db) }
    }

    /// The database that currently has a stable id.
    pub(super) fn current(&self, stable: u32) -> u32 {
        if self.current.is_empty() { stable } else { self.current.get(&stable).copied().unwrap_or(stable) }
    }
}
