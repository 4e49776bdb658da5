//! Measures each collection against the ordinary one that would replace it: `make
//! bench-collections`.

use alloc::collections::BTreeSet;
use std::{
    println,
    time::{Duration, Instant},
};

use hashbrown::HashTable;

use super::super::*;

const ROUNDS: usize = 5;
const MANY: u32 = 1_000_000;

/// The longest of the steps.
fn longest(steps: u32, mut step: impl FnMut(u32)) -> f64 {
    let mut longest = Duration::ZERO;
    for number in 0..steps {
        let begin = Instant::now();
        step(number);
        longest = longest.max(begin.elapsed());
    }
    longest.as_secs_f64() * 1e6
}

/// The mean time of a step in µs.
fn mean(steps: u32, mut step: impl FnMut(u32)) -> f64 {
    let begin = Instant::now();
    for number in 0..steps {
        step(number);
    }
    begin.elapsed().as_secs_f64() * 1e6 / f64::from(steps)
}

/// Scatters numbers as hashes do.
fn scattered(number: u32) -> u64 {
    u64::from(number).wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// Prints a row of the table: the smallest figure of each, from rounds in turns, since other
/// programs on the machine only add to a time.
fn compare(what: &str, ordinary_one: &str, mut ours: impl FnMut() -> f64, mut ordinary: impl FnMut() -> f64) {
    let (mut least, mut least_ordinary) = (f64::MAX, f64::MAX);
    for _ in 0..ROUNDS {
        least = least.min(ours());
        least_ordinary = least_ordinary.min(ordinary());
    }
    let digits = |figure: f64| if figure > 0.0 && figure < 10.0 { 3 } else { 0 };
    println!("| {what} | {least:.*} | {ordinary_one} | {least_ordinary:.*} |", digits(least), digits(least_ordinary));
}

#[test]
#[ignore = "measures, and takes a minute: make bench-collections"]
fn measure() {
    compare(
        "`Chunked`: longest of a million pushes, µs",
        "`Vec`",
        || {
            let mut numbers = Chunked::default();
            longest(MANY, |number| numbers.push(u64::from(number)))
        },
        || {
            let mut numbers = Vec::new();
            longest(MANY, |number| numbers.push(u64::from(number)))
        },
    );
    compare(
        "`Slots`: longest of a million insertions of 64 bytes, µs",
        "`Vec`",
        || {
            let mut slots = Slots::default();
            longest(MANY, |number| _ = slots.insert([u64::from(number); 8]))
        },
        || {
            let mut slots = Vec::new();
            longest(MANY, |number| slots.push(Some([u64::from(number); 8])))
        },
    );
    compare(
        "`Deadlines`: set and remove the latest of 100,000, µs",
        "`BTreeSet` beside `Slots`",
        || {
            let mut deadlines = Deadlines::default();
            for number in 0..100_000 {
                deadlines.insert(u64::from(number), number);
            }
            mean(MANY, |number| {
                let alarm = deadlines.insert(u64::from(number) + 100_000, number);
                assert_eq!(deadlines.remove(alarm), Some(number));
            })
        },
        || {
            let (mut order, mut slots) = (BTreeSet::new(), Slots::default());
            for number in 0..100_000 {
                order.insert((u64::from(number), slots.insert((u64::from(number), number))));
            }
            mean(MANY, |number| {
                let at_us = u64::from(number) + 100_000;
                let slot = slots.insert((at_us, number));
                order.insert((at_us, slot));
                assert_eq!(slots.remove(slot), Some((at_us, number)));
                assert!(order.remove(&(at_us, slot)));
            })
        },
    );
    compare(
        "`NameTable`: longest of a million insertions, µs",
        "`HashTable`",
        || {
            let mut names = NameTable::default();
            longest(MANY, |number| names.insert(scattered(number), number))
        },
        || {
            let mut names = HashTable::new();
            longest(MANY, |number| {
                _ = names.insert_unique(scattered(number), (scattered(number), number), |entry| entry.0)
            })
        },
    );
    compare(
        "`SmallSet`: bytes allocated for one element",
        "`BTreeSet`",
        || {
            let allocated = allocation_counter::measure(|| {
                let mut set = SmallSet::default();
                set.insert(1u64);
            });
            allocated.bytes_total as f64
        },
        || {
            let allocated = allocation_counter::measure(|| {
                let mut set = BTreeSet::new();
                set.insert(1u64);
            });
            allocated.bytes_total as f64
        },
    );
    compare("`Optional`: bytes", "`Option<u64>`", || size_of::<Optional>() as f64, || size_of::<Option<u64>>() as f64);
}
