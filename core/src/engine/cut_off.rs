//! Ends the waits of requests without a blocked connection for which nobody waits any more: see `notified.rs`.

use super::end_wait::PlaceAfter;
use super::state::Engine;
use super::work::{ANSWER, PARTS_PER_CHANGE};
use crate::outbox::Outbox;
use crate::request::Channel;

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
        self.queues.notified.channel_gone(channel);
    }

    /// This server became a replica: nobody waits here any more. What is bound to its connections counts as closed at a promotion, and no replica is told
    /// when they close.
    pub fn demoted(&mut self) {
        self.connections.forget_bindings();
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
        // Most of those that are looked at for a channel are for other ones: only what it has passed over counts.
        let mut looks = ANSWER.saturating_mul(PARTS_PER_CHANGE);
        let (ticket, answer) = loop {
            let Some(ticket) = self.queues.notified.next() else {
                return false;
            };
            let waiter = self.queues.get(ticket);
            if let Some(answer) = waiter.and_then(|waiter| self.queues.notified.cut_off(waiter)) {
                break (ticket, answer);
            }
            looks = looks.saturating_sub(1);
            if looks == 0 {
                return true;
            }
        };
        self.answer_unopened(out, ticket, answer, PlaceAfter::Kept);
        true
    }
}
