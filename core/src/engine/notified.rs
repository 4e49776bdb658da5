//! Requests that wait without a blocked connection (`NOTIFY`): what ends their waits, and what becomes of their grants.
//!
//! Such a request waits as any other does. But the server knows nothing of it, so what the server does for a blocked connection
//! is done here: the wait ends with the connection that asked, with a demotion, and when its channel goes to another node of the
//! cluster. There may be very many, so they are *cut off*, all in one step, and ended a few at a time; one that is cut off is
//! granted nothing any more.
//!
//! A grant to such a request is undelivered until [`Engine::published`].

use alloc::collections::BTreeSet;
use alloc::vec::Vec;
use core::ops::Bound;

use super::dirty::Gone;
use super::state::{Engine, count};
use super::wait_queues::Waiter;
use super::work::ANSWER;
use crate::kind::Kind;
use crate::outbox::{Answer, Outbox};
use crate::request::Channel;

/// The connection that asked, and the ticket.
type Wait = (u64, u64);

/// Who waits without a blocked connection, and which of them are cut off.
#[derive(Default)]
pub(super) struct Notified {
    waits: BTreeSet<Wait>,
    /// Connections that have closed, with waits that have not ended yet.
    closed: BTreeSet<u64>,
    /// Channels that went away; and up to where the waits were looked at.
    gone: Vec<(Channel, Option<Wait>)>,
    /// This server is no master any more.
    is_demoted: bool,
}

impl Notified {
    pub(super) fn enter(&mut self, client: u64, ticket: u64) {
        self.waits.insert((client, ticket));
    }

    pub(super) fn leave(&mut self, client: u64, ticket: u64) {
        self.waits.remove(&(client, ticket));
    }

    /// Why a waiter is cut off, if it is.
    pub(super) fn cut_off(&self, waiter: &Waiter) -> Option<Answer> {
        let channel = waiter.request.notify?;
        if self.is_demoted {
            Some(Answer::Demoted)
        } else if waiter.client.is_none_or(|client| self.closed.contains(&client)) {
            Some(Answer::Closed)
        } else if self.gone.iter().any(|(gone, _)| *gone == channel) {
            Some(Answer::Moved)
        } else {
            None
        }
    }

    pub(super) fn first_of(&self, client: u64) -> Option<u64> {
        let (of, ticket) = self.waits.range((client, 0)..).next()?;
        (*of == client).then_some(*ticket)
    }

    /// The next ticket to look at: it may be cut off.
    fn next(&mut self) -> Option<u64> {
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
        while let Some((_, after)) = self.gone.last_mut() {
            let from = after.map_or(Bound::Unbounded, Bound::Excluded);
            if let Some(wait) = self.waits.range((from, Bound::Unbounded)).next() {
                *after = Some(*wait);
                return Some(wait.1);
            }
            self.gone.pop();
        }
        None
    }

    fn has_work(&self) -> bool {
        self.is_demoted || !self.closed.is_empty() || !self.gone.is_empty()
    }

    /// How many wait.
    pub(super) fn len(&self) -> usize {
        self.waits.len()
    }
}

impl Engine {
    /// A connection closed: its waits are over.
    pub(super) fn cut_off_client(&mut self, client: u64) {
        if self.queues.notified.first_of(client).is_some() {
            self.queues.notified.closed.insert(client);
        }
    }

    /// A channel was taken away, because its slot is served by another node of the cluster: the waits that are to be answered on
    /// it are over.
    pub fn channel_gone(&mut self, channel: Channel) {
        let notified = &mut self.queues.notified;
        if !notified.gone.iter().any(|(gone, after)| *gone == channel && after.is_none()) {
            notified.gone.push((channel, None));
        }
    }

    /// This server became a replica: nobody waits here any more.
    pub fn demoted(&mut self) {
        self.queues.notified.is_demoted = true;
    }

    /// Ends waits that are cut off, as far as the allowance goes. The timer does it too; on a replica only this does.
    pub fn end_cut_off(&mut self, out: &mut Outbox) {
        self.work.begin_timer();
        while self.end_next_cut_off(out) {}
    }

    /// Whether waits are cut off that have not ended yet.
    #[must_use]
    pub fn has_cut_off(&self) -> bool {
        self.queues.notified.has_work()
    }

    pub(super) fn end_next_cut_off(&mut self, out: &mut Outbox) -> bool {
        if !self.has_cut_off() || !self.work.take(ANSWER) {
            return false;
        }
        let Some(ticket) = self.queues.notified.next() else {
            return false;
        };
        let Some(waiter) = self.queues.get(ticket) else {
            return true;
        };
        let Some(answer) = self.queues.notified.cut_off(waiter) else {
            return true;
        };
        let gone = (waiter.request.kind == Kind::Fair)
            .then(|| Gone { owner: self.queues.owner_of(waiter).into(), gave_up: false });
        let Some(waiter) = self.remove(ticket) else {
            return true;
        };
        count(&mut self.stats.disconnected);
        out.answer(ticket, waiter.notice(), answer);
        if let Some(name) = waiter.names.first() {
            self.mark(*name, |dirty| dirty.gone.extend(gone));
        }
        true
    }

    /// Nobody listened to what there was to be told to a ticket: what it was granted is taken back.
    pub fn unheard(&mut self, ticket: u64) {
        count(&mut self.stats.unheard);
        self.waiter_left(ticket, false);
    }

    /// The answer to a ticket was published to somebody: what was granted stays granted.
    pub fn published(&mut self, ticket: u64) {
        self.confirm_ticket(ticket);
    }
}
