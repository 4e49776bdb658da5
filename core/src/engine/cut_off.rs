//! Ends the waits of requests without a blocked connection for which nobody waits any more: see `notified.rs`.

use super::dirty::Gone;
use super::state::Engine;
use super::statistics::count;
use super::work::ANSWER;
use crate::kind::Kind;
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
        count(&mut self.stats.of(waiter.request.kind).disconnected);
        out.answer(ticket, waiter.notice(), answer);
        if let Some(name) = waiter.names.first() {
            self.mark(*name, |dirty| dirty.gone.extend(gone));
        }
        true
    }
}
