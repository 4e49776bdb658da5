//! What happens to all locks of a database at once, in a step that does not depend on how many there are.
//!
//! A database has a *generation*, which a promotion, the end of a load and SWAPDB raise; a value remembers the one in
//! which it was last settled. One that is behind has come by other means than our commands, whatever its name: it is
//! settled as such when a command or its alarm touches it, or when the sweep comes by, which visits every alarm a few
//! at a time.
//!
//! Alarms name a database by a number that stays: SWAPDB changes which database that is.

use ahash::RandomState;
use hashbrown::HashMap;

use crate::bytes::{Key, KeyRef};

pub(super) struct Databases {
    /// By database: the number that alarms use. One that is not in here is its own.
    lasting: HashMap<u32, u32, RandomState>,
    /// The other way round.
    current: HashMap<u32, u32, RandomState>,
    /// Generations that are not the general one.
    generations: HashMap<u32, u32, RandomState>,
    general: u32,
    newest: u32,
}

/// The slot of an alarm at which the sweep goes on, and the generation that started it.
#[derive(Clone, Copy)]
pub(super) struct Sweep {
    pub(super) slot: u32,
    generation: u32,
}

impl Databases {
    pub(super) fn new(hasher: RandomState) -> Self {
        Self {
            lasting: HashMap::with_hasher(hasher.clone()),
            current: HashMap::with_hasher(hasher.clone()),
            generations: HashMap::with_hasher(hasher),
            // A value that was just loaded is behind any generation.
            general: 1,
            newest: 1,
        }
    }

    /// The generation of a database.
    pub(super) fn generation(&self, db: u32) -> u32 {
        if self.generations.is_empty() {
            return self.general;
        }
        self.generations.get(&db).copied().unwrap_or(self.general)
    }

    /// Every value everywhere is to be settled. A sweep has to follow.
    pub(super) fn renew_all(&mut self) -> Sweep {
        self.newest = self.newest.saturating_add(1);
        self.general = self.newest;
        self.generations.clear();
        Sweep { slot: 0, generation: self.newest }
    }

    /// Two databases change places, and their values are to be settled. A sweep has to follow.
    pub(super) fn swap(&mut self, first: u32, second: u32) -> Sweep {
        let (lasting_first, lasting_second) = (self.lasting(first), self.lasting(second));
        for (db, lasting) in [(first, lasting_second), (second, lasting_first)] {
            self.lasting.insert(db, lasting);
            self.current.insert(lasting, db);
        }
        self.newest = self.newest.saturating_add(1);
        for db in [first, second] {
            self.generations.insert(db, self.newest);
        }
        Sweep { slot: 0, generation: self.newest }
    }

    /// A sweep for all that two are for.
    pub(super) fn join(running: Option<Sweep>, new: Sweep) -> Sweep {
        let generation = running.map_or(new.generation, |running| running.generation.min(new.generation));
        Sweep { generation, ..new }
    }

    /// Whether a sweep is for the values of a database.
    pub(super) fn concerns(&self, sweep: Sweep, db: u32) -> bool {
        self.generation(db) >= sweep.generation
    }

    fn lasting(&self, db: u32) -> u32 {
        if self.lasting.is_empty() { db } else { self.lasting.get(&db).copied().unwrap_or(db) }
    }

    /// The number of a database now, by the one that stays.
    pub(super) fn current(&self, lasting: u32) -> u32 {
        if self.current.is_empty() { lasting } else { self.current.get(&lasting).copied().unwrap_or(lasting) }
    }

    /// A key as alarms name it.
    pub(super) fn to_lasting(&self, key: KeyRef<'_>) -> Key {
        KeyRef { db: self.lasting(key.db), ..key }.to_key()
    }

    /// The key that an alarm names.
    pub(super) fn to_current(&self, key: Key) -> Key {
        Key { db: self.current(key.db), ..key }
    }
}
