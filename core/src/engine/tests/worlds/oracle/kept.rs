//! Locks released with KEEP: no owner holds them and no request is granted before they open. The former owner may repeat the
//! release or free the lock.

use super::Told;
use super::repeats::{Mark, is_repeat};
use crate::request::Verb;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Kept {
    pub(crate) owner: u8,
    pub(crate) until_ms: u64,
    /// The last numbered request of its former owner.
    pub(crate) mark: Mark,
}

/// The effect of a release on a kept lock.
pub(super) enum Freed {
    /// The lock stays kept; this is the answer.
    Stays(Told),
    Frees,
}

impl Kept {
    /// The lock as it is at a moment.
    pub(super) fn at(kept: Option<Self>, now_ms: u64) -> Option<Self> {
        kept.filter(|kept| kept.until_ms > now_ms)
    }

    /// Its former owner releases once more, with KEEP or without.
    pub(super) fn release(&self, id: Option<u64>, keeps: bool) -> Freed {
        match is_repeat(self.mark, id, Verb::Release) {
            Err(stale) => Freed::Stays(stale),
            Ok(true) => Freed::Stays(Told::Left(1)),
            Ok(false) if keeps => Freed::Stays(Told::Left(1)),
            Ok(false) => Freed::Frees,
        }
    }
}
