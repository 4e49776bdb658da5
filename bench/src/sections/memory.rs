//! The memory of a held lock, against the same strings under SET NX PX.

use anyhow::Result;
use rlock_bench::server::Server;

use super::fill::{self, Taking};
use crate::names;
use crate::report::{Aim, Figure, Line, Series, Statistic, Unit};

/// No lease ends during a round, however slow the machine.
const LEASE_MS: u64 = 24 * 3_600_000;

/// The number of locks with short names. It is smaller, so that the server's own tables have
/// another share.
const SHORT_NAMED: usize = 200_000;

/// The lengths of the names of locks and owners.
#[derive(Clone, Copy)]
enum Names {
    /// Those of the other sections: 18 and 36 bytes.
    Usual,
    /// 12 and 38 bytes.
    Short,
}

impl Names {
    fn of(self, index: usize) -> (String, String) {
        match self {
            Self::Usual => (names::lock_key(index), names::owner_id(index)),
            Self::Short => (format!("lock:{index:07}"), format!("o-{}", names::owner_id(index))),
        }
    }
}

/// Bytes per lock.
#[derive(Default)]
struct Rounds {
    used: Series,
    resident: Series,
    left: Series,
}

impl Rounds {
    /// Fills an empty server, empties it again, and records the memory that each lock took and left
    /// behind.
    fn push_round(&mut self, server: &mut Server, taking: Taking, names: Names, locks: usize) -> Result<()> {
        let per_lock = |bytes: u64, before: u64| (bytes as f64 - before as f64) / locks as f64;
        let used_before = fill::settled_memory_bytes(server)?;
        let resident_before = server.info_number("used_memory_rss")?;
        fill::fill_named(server, taking, locks, |index| names.of(index), |_| LEASE_MS)?;
        let used = fill::settled_memory_bytes(server)?;
        let resident = server.info_number("used_memory_rss")?;
        fill::flush(server)?;
        let used_after = fill::settled_memory_bytes(server)?;
        self.used.push(per_lock(used, used_before));
        self.left.push(per_lock(used_after, used_before));
        // The allocator keeps the pages of the first fill for the later ones.
        if self.resident.len() == 0 {
            self.resident.push(per_lock(resident, resident_before));
        }
        Ok(())
    }
}

/// Measures used_memory per lock. The first fill also measures the resident memory, which includes
/// allocations outside the server's own allocator.
pub fn measure(server: &mut Server, rounds: usize, locks: usize) -> Result<Vec<Line>> {
    let (mut acquire, mut set) = (Rounds::default(), Rounds::default());
    let (mut short_acquire, mut short_set) = (Rounds::default(), Rounds::default());
    for _ in 0..rounds {
        acquire.push_round(server, Taking::Acquire, Names::Usual, locks)?;
        set.push_round(server, Taking::SetNxPx, Names::Usual, locks)?;
        short_acquire.push_round(server, Taking::Acquire, Names::Short, SHORT_NAMED)?;
        short_set.push_round(server, Taking::SetNxPx, Names::Short, SHORT_NAMED)?;
    }
    Ok(vec![
        Line::ratio(
            format!("used_memory per lock, {locks} held"),
            Figure::new("ACQUIRE", Unit::Bytes, &acquire.used),
            Figure::new("SET NX PX", Unit::Bytes, &set.used),
        )
        .aim(Aim::AtMost(1.4))
        .figure(Figure::new("resident after the first fill, ACQUIRE", Unit::Bytes, &acquire.resident)),
        Line::ratio(
            format!("used_memory per lock, {SHORT_NAMED} held, names of 12 bytes, owners of 38"),
            Figure::new("ACQUIRE", Unit::Bytes, &short_acquire.used),
            Figure::new("SET NX PX", Unit::Bytes, &short_set.used),
        )
        .aim(Aim::AtMost(1.75)),
        Line::value("used_memory left per lock after FLUSHALL SYNC", Statistic::Max, Unit::Bytes, acquire.left)
            .figure(Figure::of(Statistic::Max, "SET NX PX", Unit::Bytes, &set.left)),
    ])
}
