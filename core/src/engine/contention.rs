//! Which locks are waited for most, and how long by now. Nothing is kept for that: those who ask look at the names that are waited for,
//! at so many as cost a millisecond or three. Where there are more, the next who asks begins behind them.

use alloc::vec::Vec;

use super::Engine;
use crate::bytes::{Key, Owner};
use crate::kind::Kind;
use crate::registry::NameId;
use crate::time::{Now, US_PER_MS};

/// What looking at a name that is waited for costs, against passing over a free slot.
const NAME: u32 = 20;
/// About 1000 names.
const FOR_ALL: u32 = 20_000;
/// About 5000 names.
const FOR_TOP: u32 = 100_000;

/// A lock that is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contended {
    /// Where it lies.
    pub key: Key,
    /// What the first in line waits for.
    pub kind: Kind,
    /// How many clients wait.
    pub waiters: usize,
    /// For how long the one has waited that waits longest.
    pub oldest_wait_ms: u64,
    /// Who has held it longest: the owner, the token, and for how long.
    pub holder: Option<(Owner, u64, u64)>,
}

/// The longest times of this moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Longest {
    /// For how long the waiter has waited that waits longest.
    pub wait_ms: u64,
    /// For how long a lock has been held that somebody waits for.
    pub hold_ms: u64,
}

impl Engine {
    /// The longest wait and hold of the locks that are waited for.
    pub fn longest(&mut self, now: Now) -> Longest {
        let mut longest = Longest::default();
        for name in self.look_at_names(FOR_ALL) {
            longest.wait_ms = longest.wait_ms.max(self.oldest_wait_ms(name, now));
            longest.hold_ms = longest.hold_ms.max(self.oldest_holder(name, now).map_or(0, |(_, _, held_ms)| held_ms));
        }
        longest
    }

    /// The locks that most clients wait for, the most contended one first, `limit` of them at most.
    pub fn most_contended(&mut self, limit: usize, now: Now) -> Vec<Contended> {
        let names = self.look_at_names(FOR_TOP);
        let mut lengths: Vec<(usize, u64, NameId)> = names
            .into_iter()
            .map(|name| (self.registry.len_under(name), self.oldest_wait_ms(name, now), name))
            .collect();
        lengths.sort_unstable_by(|a, b| b.cmp(a));
        lengths.truncate(limit);
        let describe = |(waiters, oldest_wait_ms, name)| {
            let (_, first) = self.registry.first(name)?;
            let holder = self.oldest_holder(name, now);
            let holder = holder.map(|(owner, token, held_ms)| (Owner::from(owner), token, held_ms));
            let key = self.registry.key(name)?.to_key();
            Some(Contended { key, kind: first.request().kind, waiters, oldest_wait_ms, holder })
        };
        lengths.into_iter().filter_map(describe).collect()
    }

    /// Names that are waited for, each once, from where the last look ended.
    fn look_at_names(&mut self, mut allowance: u32) -> Vec<NameId> {
        let begin = self.next_look;
        let (mut slot, mut has_wrapped) = (begin, false);
        let mut names = Vec::new();
        while allowance > 0 && !(has_wrapped && slot >= begin) {
            allowance = allowance.saturating_sub(1);
            let Some(name) = self.registry.in_slot(slot) else {
                if has_wrapped {
                    break;
                }
                (slot, has_wrapped) = (0, true);
                continue;
            };
            if let Some(name) = name.filter(|name| self.registry.len_under(*name) > 0) {
                names.push(name);
                allowance = allowance.saturating_sub(NAME);
            }
            slot = slot.saturating_add(1);
        }
        self.next_look = slot;
        names
    }

    /// For how long the waiter under a name has waited that waits longest. A reader that asks for WRITE may have come later
    /// than the one behind it.
    fn oldest_wait_ms(&self, name: NameId, now: Now) -> u64 {
        let heads = self.registry.in_order(name).take(2);
        let waits = heads.map(|(_, waiter)| now.mono_us.saturating_sub(waiter.since_us()) / US_PER_MS);
        waits.max().unwrap_or(0)
    }

    /// Who has held a lock longest that is waited for: a token is the time of its grant, nearly always.
    fn oldest_holder(&self, name: NameId, now: Now) -> Option<(&[u8], u64, u64)> {
        let (owner, token) = self.registry.oldest_holder(name)?;
        Some((owner, token, now.wall_us.saturating_sub(token) / US_PER_MS))
    }
}
