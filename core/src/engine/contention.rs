//! The most contended locks, and how long their waiters have waited. The engine keeps no data for
//! this: each call scans the contended names, for about 1 to 3 ms. The next call continues where
//! the scan stopped.

use alloc::vec::Vec;

use super::Engine;
use crate::bytes::{Key, Owner};
use crate::kind::Kind;
use crate::registry::{NameId, Registry};
use crate::time::{Now, US_PER_MS};

/// The cost of a contended name, relative to an empty slot.
const NAME: u32 = 20;
/// About 1,000 names.
const FOR_ALL: u32 = 20_000;
/// About 5,000 names.
const FOR_TOP: u32 = 100_000;

/// A lock with waiters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contended {
    /// Its key.
    pub key: Key,
    /// The kind that the first waiter waits for.
    pub kind: Kind,
    /// The number of waiters.
    pub waiters: usize,
    /// How long the longest waiter has waited.
    pub oldest_wait_ms: u64,
    /// The oldest hold: its owner, its token, and its age in milliseconds.
    pub holder: Option<(Owner, u64, u64)>,
}

/// The longest current wait and hold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    /// How long the longest waiter has waited.
    pub wait_ms: u64,
    /// How long the longest holder of a lock with waiters has held it.
    pub hold_ms: u64,
}

impl Engine {
    /// The longest wait and hold of the locks with waiters.
    pub fn longest(&mut self, now: Now) -> Longest {
        let mut longest = Longest::default();
        for name in self.scan_names(FOR_ALL) {
            longest.wait_ms = longest.wait_ms.max(oldest_wait_ms(&self.registry, name, now));
            longest.hold_ms =
                longest.hold_ms.max(oldest_holder(&self.registry, name, now).map_or(0, |(_, _, held_ms)| held_ms));
        }
        longest
    }

    /// Up to `limit` locks with the most waiters, the most contended first.
    pub fn most_contended(&mut self, limit: usize, now: Now) -> Vec<Contended> {
        let names = self.scan_names(FOR_TOP);
        let mut lengths: Vec<(usize, u64, NameId)> = names
            .into_iter()
            .map(|name| (self.registry.len_under(name), oldest_wait_ms(&self.registry, name, now), name))
            .collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.truncate(limit);
        let describe = |(waiters, oldest_wait_ms, name)| {
            let (_, first) = self.registry.first(name)?;
            let holder = oldest_holder(&self.registry, name, now);
            let holder = holder.map(|(owner, token, held_ms)| (Owner::from(owner), token, held_ms));
            let key = self.registry.key(name)?.to_key();
            Some(Contended { key, kind: first.request().kind, waiters, oldest_wait_ms, holder })
        };
        lengths.into_iter().filter_map(describe).collect()
    }

    /// Names with waiters, each once, from where the last scan stopped.
    fn scan_names(&mut self, mut units: u32) -> Vec<NameId> {
        let begin = self.next_scan;
        let (mut slot, mut has_wrapped) = (begin, false);
        let mut names = Vec::new();
        while units > 0 && !(has_wrapped && slot >= begin) {
            units = units.saturating_sub(1);
            let Some(name) = self.registry.in_slot(slot) else {
                if has_wrapped {
                    break;
                }
                (slot, has_wrapped) = (0, true);
                continue;
            };
            if let Some(name) = name.filter(|name| self.registry.len_under(*name) > 0) {
                names.push(name);
                units = units.saturating_sub(NAME);
            }
            slot = slot.saturating_add(1);
        }
        self.next_scan = slot;
        names
    }
}

/// How long the longest waiter under a name has waited. An upgrading reader is first in the queue,
/// but may have arrived after the waiter behind it.
fn oldest_wait_ms(registry: &Registry, name: NameId, now: Now) -> u64 {
    let heads = registry.in_order(name).take(2);
    let waits = heads.map(|(_, waiter)| now.mono_us.saturating_sub(waiter.since_us()) / US_PER_MS);
    waits.max().unwrap_or(0)
}

/// The owner, the token and the age of the oldest hold of a lock with waiters. The token is nearly
/// always the wall-clock time of the grant in microseconds.
fn oldest_holder(registry: &Registry, name: NameId, now: Now) -> Option<(&[u8], u64, u64)> {
    let (owner, token) = registry.oldest_holder(name)?;
    Some((owner, token, now.wall_us.saturating_sub(token) / US_PER_MS))
}
