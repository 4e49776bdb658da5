//! Operations on the hold of a fair lock: partial release, renewal, and forced release.

use super::Told;
use super::fair::FairOracle;
use super::kept::Kept;
use super::repeats::{is_repeat, left_after_cancel};
use crate::request::Verb;

impl FairOracle {
    pub(crate) fn release(
        &mut self,
        owner: u8,
        id: Option<u64>,
        names_token: Option<bool>,
        keep_ms: Option<u64>,
        now_ms: u64,
    ) -> Told {
        self.settle_if_told(now_ms);
        if let Some(told) = Kept::release(&mut self.kept, owner, names_token, (id, keep_ms.is_some()), now_ms) {
            if matches!(told, Told::Left(_)) {
                self.settle(now_ms);
            }
            return told;
        }
        let Some((_, count, _)) = self.find_hold(owner, names_token != Some(false), now_ms) else {
            return Told::NotOwner;
        };
        let count = *count;
        let left = match is_repeat(self.mark, id, Verb::Release) {
            Err(stale) => return stale,
            Ok(true) => count,
            Ok(false) if keep_ms.is_some() && count > 1 => return Told::Refused,
            Ok(false) => {
                let left = self.give_back(id);
                self.kept = keep_ms.map(|keep_ms| Kept { owner, until_ms: now_ms + keep_ms, mark: self.mark });
                if self.kept.is_some() { 1 } else { left }
            }
        };
        self.settle(now_ms);
        Told::Left(left)
    }

    /// Releases once. Returns what is left.
    fn give_back(&mut self, id: Option<u64>) -> u32 {
        self.hear();
        self.mark = id.map(|id| (id, Verb::Release, 0)).or(self.mark);
        self.holder = self.holder.map(|(owner, count, until_ms)| (owner, count - 1, until_ms));
        self.holder = self.holder.filter(|(_, count, _)| *count > 0);
        self.holder.map_or(0, |(_, count, _)| count)
    }

    /// Takes back what a numbered request has added to its owner's hold.
    pub(super) fn cancel_hold(&mut self, owner: u8, id: Option<u64>) {
        let Some((_, count, until_ms)) = self.holder.filter(|(of, ..)| *of == owner) else { return };
        let Some(left) = left_after_cancel(self.mark, id, count) else { return };
        self.hear();
        self.mark = id.map(|id| (id, Verb::Cancel, 0));
        self.holder = (left > 0).then_some((owner, left, until_ms));
    }

    pub(crate) fn renew(&mut self, owner: u8, is_meant: bool, lease_ms: u64, now_ms: u64) -> Told {
        let Some((_, count, until_ms)) = self.find_hold(owner, is_meant, now_ms) else { return Told::NotOwner };
        *until_ms = (*until_ms).max(now_ms + lease_ms);
        let count = *count;
        self.hear();
        Told::Left(count)
    }

    pub(crate) fn force(&mut self, now_ms: u64) {
        self.settle_if_told(now_ms);
        let is_kept = Kept::at(self.kept, now_ms).is_some();
        if is_kept || self.holder.is_some_and(|(_, _, until_ms)| until_ms > now_ms) {
            (self.holder, self.kept) = (None, None);
            self.settle(now_ms);
        }
    }

    /// The owner's hold. With another token (not `is_meant`) as if there were none.
    fn find_hold(&mut self, owner: u8, is_meant: bool, now_ms: u64) -> Option<&mut (u8, u32, u64)> {
        self.settle_if_told(now_ms);
        let is_its_own = self.holder.is_some_and(|(of, _, until_ms)| of == owner && until_ms > now_ms);
        self.holder.as_mut().filter(|_| is_meant && is_its_own)
    }
}
