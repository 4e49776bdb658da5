//! What happens to all locks of a database at once, without a visit to each.
//!
//! A database has a *generation*, which a promotion, the end of a load, SWAPDB and a flush raise. The timer of a value
//! remembers the one in which the value was last reconciled, and so does the record of a name. What is behind has come or
//! gone by other means than our commands, whatever its name: it is reconciled as such when a command or its timer touches
//! it, or when the sweep comes by, which visits everything a little at a time.
//!
//! Timers name a database by a stable id: SWAPDB changes which database has it.

use ahash::RandomState;
use hashbrown::HashMap;

/// See the head of this file.
pub(super) struct Databases {
    /// By database: its stable id. One that is not in here is its own.
    stable: HashMap<u32, u32, RandomState>,
    /// The other way round.
    current: HashMap<u32, u32, RandomState>,
    /// Generations that are not the general one.
    generations: HashMap<u32, u32, RandomState>,
    general: u32,
    newest: u32,
    /// By stable id: in which generation the values of a database were last deleted all at once.
    flushed: HashMap<u32, u32, RandomState>,
    all_flushed: u32,
}

impl Databases {
    pub(super) fn new(hasher: &RandomState) -> Self {
        let map = || HashMap::with_hasher(hasher.clone());
        // 0 is behind any generation.
        Self {
            stable: map(),
            current: map(),
            generations: map(),
            general: 1,
            newest: 1,
            flushed: map(),
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

    /// Everything everywhere is to be reconciled.
    pub(super) fn renew_all(&mut self) {
        self.general = self.next();
        self.generations.clear();
    }

    /// Every value of a database went away.
    pub(super) fn flush(&mut self, db: u32) {
        self.renew(db);
        self.flushed.insert(self.stable(db), self.newest);
    }

    /// Every value went away.
    pub(super) fn flush_all(&mut self) {
        self.renew_all();
        self.flushed.clear();
        self.all_flushed = self.newest;
    }

    /// Whether what was reconciled in a generation went away with a flush of its database, which is named by its stable id.
    pub(super) fn was_flushed(&self, stable: u32, generation: u32) -> bool {
        let flushed_in = self.flushed.get(&stable).copied().unwrap_or(0);
        generation < flushed_in.max(self.all_flushed)
    }

    /// Two databases change places, and their values are to be reconciled.
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

    /// The database that has a stable id now.
    pub(super) fn current(&self, stable: u32) -> u32 {
        if self.current.is_empty() { stable } else { self.current.get(&stable).copied().unwrap_or(stable) }
    }
}
