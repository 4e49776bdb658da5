//! Locks released with KEEP: no owner holds them and no request is granted before they open. The
//! former owner may repeat the release or free the lock.

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

impl Kept {
    /// The kept lock at a moment.
    pub(super) fn at(kept: Option<Self>, now_ms: u64) -> Option<Self> {
        kept.filter(|kept| kept.until_ms > now_ms)
    }

    /// The answer to a release of its former owner, with KEEP or without; `None` if the release
    /// does not refer to a kept lock. With TOKEN and without KEEP it frees the lock.
    pub(super) fn release(
        kept: &mut Option<Self>,
        owner: u8,
        names_token: Option<bool>,
        (id, keeps): (Option<u64>, bool),
        now_ms: u64,
    ) -> Option<Told> {
        let known = Self::at(*kept, now_ms).filter(|known| known.owner == owner && names_token != Some(false))?;
        Some(match is_repeat(known.mark, id, Verb::Release) {
            Err(stale) => stale,
            Ok(is_repeat) if is_repeat || keeps => Told::Left(1),
            Ok(_) if names_token.is_none() => Told::NotOwner,
            Ok(_) => {
                *kept = None;
                Told::Left(0)
            }
        })
    }
}
