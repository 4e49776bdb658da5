//! Hashing of client-chosen names inside values.

use core::sync::atomic::{AtomicU64, Ordering};

use ahash::RandomState;

/// The seeds; see [`seed_hashing`].
static SEEDS: [AtomicU64; 4] = [AtomicU64::new(1), AtomicU64::new(2), AtomicU64::new(3), AtomicU64::new(4)];

/// Makes the hashing unpredictable. To be called once, before the first value is created. The seeds
/// are global, because values are created in many places.
pub fn seed_hashing(seeds: [u64; 4]) {
    for (place, seed) in SEEDS.iter().zip(seeds) {
        place.store(seed, Ordering::Relaxed);
    }
}

/// A hasher for client-chosen names in values.
pub(super) fn hasher() -> RandomState {
    let [a, b, c, d] = SEEDS.each_ref().map(|seed| seed.load(Ordering::Relaxed));
    RandomState::with_seeds(a, b, c, d)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hash_depends_on_the_seed() {
        let hash = || hasher().hash_one("name");
        let before = hash();
        seed_hashing([5, 6, 7, 8]);
        let after = hash();
        // Other tests may run concurrently: each table keeps the hasher that it was created with.
        seed_hashing([1, 2, 3, 4]);
        assert_eq!((hash(), after == before), (before, false));
    }
}
