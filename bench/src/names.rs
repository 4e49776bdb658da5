//! The names of locks and owners, as long as in real use.

/// The name of the lock number `index`: `lock:order:0000123`.
pub fn lock_key(index: usize) -> String {
    format!("lock:order:{index:07}")
}

/// The owner number `index`, as long and as random as the UUID that a client library would make.
pub fn owner_id(index: usize) -> String {
    let high = mix(2 * index as u64);
    let low = mix(2 * index as u64 + 1);
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// The finalizer of SplitMix64: spreads consecutive numbers over all 64 bits, one to one.
fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_the_length_that_the_benchmark_states() {
        for index in [0, 1, 999_999] {
            assert_eq!(lock_key(index).len(), 18);
            assert_eq!(owner_id(index).len(), 36);
        }
        assert_ne!(owner_id(1), owner_id(2));
    }
}
