//! Notified waiters (`NOTIFY`): requests that wait without a blocked connection, by the connection
//! that asked.
//!
//! They wait as any other request does. But the server does not know them, so the engine does what
//! the server does for a blocked connection: it ends the wait when that connection closes, when
//! this server is demoted, and when the shard channel for the answer has lost its listeners. There
//! may be very many such waits, so they are *cut off* in one step and ended in parts (`end_cut_off`
//! in `waits.rs`). A cut-off waiter is granted nothing any longer.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Bound;

use super::waiter::Waiter;
use crate::collections::bytes_in_set;
use crate::outbox::Answer;
use crate::request::Channel;

/// The connection that asked, and the ticket.
type Wait = (u64, u64);

/// The notified waiters, and which of them are cut off.
#[derive(Default)]
#[cfg_attr(test, derive(Clone))]
pub(crate) struct Notified {
    waits: BTreeSet<Wait>,
    /// The waits from before this server was demoted and promoted again, all of them cut off: one
    /// set for each former term as a master, none empty. Separate sets make a promotion a single
    /// step.
    former: Vec<BTreeSet<Wait>>,
    /// The number of the current term as a master. A promotion begins another term, unless all
    /// waits of the former one have ended and [`Notified::next`] has noticed that. Waits that began
    /// in another term are cut off.
    term: u16,
    /// Closed connections with waits that have not ended yet.
    closed: BTreeSet<u64>,
    /// Channels that have lost their listeners. One scan of all waits finds those on any of them.
    gone: BTreeSet<Channel>,
    /// The last wait that the scan has visited.
    looked_at: Option<Wait>,
    /// Channels that have lost their listeners since the scan began: another scan follows.
    gone_since: BTreeSet<Channel>,
    /// This server is no longer a master.
    is_demoted: bool,
}

impl Notified {
    pub(super) fn enter(&mut self, client: u64, ticket: u64) {
        self.waits.insert((client, ticket));
    }

    pub(super) fn leave(&mut self, client: u64, ticket: u64) {
        let wait = (client, ticket);
        if !self.waits.remove(&wait) && self.former.iter_mut().any(|waits| waits.remove(&wait)) {
            self.former.retain(|waits| !waits.is_empty());
        }
    }

    /// The answer that ends a cut-off waiter's wait; `None` if it is not cut off.
    pub(crate) fn cut_off(&self, waiter: &Waiter) -> Option<Answer> {
        let channel = waiter.request().notify?;
        if self.is_demoted || waiter.term != self.term {
            Some(Answer::Demoted)
        } else if waiter.client().is_none_or(|client| self.closed.contains(&client)) {
            Some(Answer::Closed)
        } else if self.gone.contains(&channel) || self.gone_since.contains(&channel) {
            Some(Answer::Moved)
        } else {
            None
        }
    }

    pub(crate) fn first_of(&self, client: u64) -> Option<u64> {
        let (of, ticket) = self.waits.range((client, 0)..).next()?;
        (*of == client).then_some(*ticket)
    }

    /// A connection closed: cuts off its waits.
    pub(crate) fn client_closed(&mut self, client: u64) {
        if self.first_of(client).is_some() {
            self.closed.insert(client);
        }
    }

    /// This server is no longer a master.
    pub(crate) fn demoted(&mut self) {
        self.is_demoted = true;
    }

    pub(super) fn term(&self) -> u16 {
        self.term
    }

    /// This server is a master again: earlier waits stay cut off, new ones are not.
    pub(crate) fn promoted(&mut self) {
        if core::mem::take(&mut self.is_demoted) {
            if !self.waits.is_empty() {
                self.former.push(core::mem::take(&mut self.waits));
            }
            self.term = self.term.wrapping_add(1);
        }
    }

    /// The next ticket that may be cut off.
    pub(crate) fn next(&mut self) -> Option<u64> {
        if let Some((_, ticket)) = self.former.last().and_then(BTreeSet::first) {
            return Some(*ticket);
        }
        if self.is_demoted {
            if let Some((_, ticket)) = self.waits.first() {
                return Some(*ticket);
            }
            self.is_demoted = false;
        }
        while let Some(client) = self.closed.first().copied() {
            if let Some(ticket) = self.first_of(client) {
                return Some(ticket);
            }
            self.closed.pop_first();
        }
        while !self.gone.is_empty() {
            let from = self.looked_at.map_or(Bound::Unbounded, Bound::Excluded);
            self.looked_at = self.waits.range((from, Bound::Unbounded)).next().copied();
            if let Some((_, ticket)) = self.looked_at {
                return Some(ticket);
            }
            self.gone = core::mem::take(&mut self.gone_since);
        }
        None
    }

    /// A channel has lost its listeners: cuts off the waits on it.
    pub(crate) fn channel_gone(&mut self, channel: Channel) {
        if self.looked_at.is_none() {
            self.gone.insert(channel);
        } else {
            self.gone_since.insert(channel);
        }
    }

    pub(crate) fn has_work(&self) -> bool {
        self.is_demoted || !self.former.is_empty() || !self.closed.is_empty() || !self.gone.is_empty()
    }

    /// The approximate heap bytes.
    pub(super) fn heap_bytes(&self) -> usize {
        bytes_in_set::<Wait>(self.len())
    }

    /// The number of waits.
    pub(crate) fn len(&self) -> usize {
        self.former.iter().map(BTreeSet::len).fold(self.waits.len(), usize::saturating_add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The server does nothing else during a promotion.
    #[test]
    #[cfg_attr(miri, ignore = "thousands of waits")]
    fn promotion_is_one_step_with_waits_of_earlier_terms() {
        const WAITS: u64 = 10_000;
        let mut notified = Notified::default();
        for term in 0..3 {
            (0..WAITS).for_each(|number| notified.enter(number, term * WAITS + number));
            notified.is_demoted = true;
            let taken = allocation_counter::measure(|| notified.promoted());
            assert!(taken.bytes_total < 1024, "{taken:?}");
        }
        notified.enter(0, 3 * WAITS);
        assert_eq!(notified.len() as u64, 3 * WAITS + 1);
        for term in [1, 0, 2] {
            assert!(notified.has_work(), "waits of a former term remain");
            (0..WAITS).for_each(|number| notified.leave(number, term * WAITS + number));
        }
        assert_eq!((notified.len(), notified.has_work(), notified.next()), (1, false, None));
    }
}
