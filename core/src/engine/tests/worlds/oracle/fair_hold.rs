//! What is done with a fair lock that is held: it is given back in parts, renewed, or taken away by force.

use super::Told;
use super::fair::FairOracle;

impl FairOracle {
    pub(crate) fn release(&mut self, owner: u8, is_meant: bool, now_ms: u64) -> Told {
        let Some((_, count, _)) = self.use_hold(owner, is_meant, now_ms) else { return Told::NotOwner };
        *count -= 1;
        let left = *count;
        if left == 0 {
            self.holder = None;
        }
        self.settle(now_ms);
        Told::Left(left)
    }

    pub(crate) fn renew(&mut self, owner: u8, is_meant: bool, lease_ms: u64, now_ms: u64) -> Told {
        let Some((_, count, until_ms)) = self.use_hold(owner, is_meant, now_ms) else { return Told::NotOwner };
        *until_ms = (*until_ms).max(now_ms + lease_ms);
        Told::Left(*count)
    }

    pub(crate) fn force(&mut self, now_ms: u64) {
        self.settle_if_told(now_ms);
        if self.holder.is_some_and(|(_, _, until_ms)| until_ms > now_ms) {
            self.holder = None;
            self.settle(now_ms);
        }
    }

    /// With a token that is not that of the hold (not `is_meant`), it is as if there were none.
    fn use_hold(&mut self, owner: u8, is_meant: bool, now_ms: u64) -> Option<&mut (u8, u32, u64)> {
        self.settle_if_told(now_ms);
        let is_its_own = self.holder.is_some_and(|(of, _, until_ms)| of == owner && until_ms > now_ms);
        if !is_meant || !is_its_own {
            return None;
        }
        self.hear();
        self.holder.as_mut()
    }
}
