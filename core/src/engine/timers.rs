//! What is to be done next, and when: everything that no command does.
//!
//! The module asks for the next job, opens the key that it is about, and lets the engine do it. What needs no key is done on
//! the way.

use super::Engine;
use super::sweep::TimerStep;
use super::transaction::Transaction;
use super::waits::PlaceAfter;
use crate::budget::{ANSWER, CHANGE};
use crate::bytes::{Key, KeyRef};
use crate::keyspace::Keyspace;
use crate::outbox::{Answer, Outbox};
use crate::registry::Outcome;
use crate::request::Refusal;
use crate::sessions::Binding;
use crate::time::Now;

/// Where something to do comes from. They are served in turn, so that a flood of one kind keeps none of the others waiting.
#[derive(Clone, Copy, Debug)]
enum Timer {
    /// Names that the server has told something about, or that there was too much to do about in one go.
    Dirty,
    /// Values that were loaded.
    Loaded,
    /// Leases, lives of places, and reservations that end.
    Lease,
    /// Waiters whose time is over.
    Timeout,
    /// Waiters that may close a circle.
    Suspect,
    /// Connections that closed, with the holds that were bound to them.
    Closed,
    /// Waits without a blocked connection that are over.
    CutOff,
    /// What is left of locks that ended all at once.
    Leftovers,
    /// Everything in a database that was swapped, flushed or loaded, or of a server that was promoted.
    Sweep,
    /// Keys that another node of the cluster serves, or none at the moment.
    Postponed,
}

impl Timer {
    const ALL: [Self; 10] = [
        Self::Dirty,
        Self::Loaded,
        Self::Lease,
        Self::Timeout,
        Self::Suspect,
        Self::Closed,
        Self::CutOff,
        Self::Leftovers,
        Self::Sweep,
        Self::Postponed,
    ];
}

impl Engine {
    /// A turn of the server's event loop begins, or a run of the timer: see `work.rs`.
    pub fn begin_turn(&mut self) {
        self.budget.begin_turn();
    }

    /// When there is something to do next; `None` if nothing is ever due.
    #[must_use]
    pub fn next_timeout_us(&self) -> Option<u64> {
        if self.has_offers() {
            return Some(0);
        }
        Timer::ALL.into_iter().filter_map(|timer| self.due_us(timer)).min()
    }

    /// When a source has something to do next. A source that is forgotten here does not compile: without a time the module would not ask for it.
    fn due_us(&self, timer: Timer) -> Option<u64> {
        let now_if = |has_work: bool| has_work.then_some(0);
        match timer {
            Timer::Dirty => now_if(self.registry.has_dirty()),
            Timer::Loaded => now_if(self.backlog.has_loaded()),
            Timer::Lease => self.alarms.next_us(),
            Timer::Timeout => self.registry.next_timeout_us(),
            Timer::Suspect => now_if(self.backlog.first_suspect().is_some()),
            Timer::Closed => now_if(self.sessions.has_work()),
            Timer::CutOff => now_if(self.has_cut_off()),
            Timer::Leftovers => now_if(self.backlog.has_leftovers() || self.has_retired()),
            Timer::Sweep => now_if(self.backlog.sweep().is_some()),
            Timer::Postponed => self.backlog.postponed_until_us(),
        }
    }

    /// The next key with something to do about it, for [`Engine::run_job`]. What needs no key is done on the way; waiters whose
    /// time is over are answered. `None` also if enough was done for this turn: [`Engine::next_timeout_us`] tells.
    pub fn next_job(&mut self, now: Now, out: &mut Outbox) -> Option<Key> {
        self.budget.begin_timer();
        self.backlog.set_ringing(None);
        while !self.budget.is_used_up() {
            match self.ring_next(now, out) {
                TimerStep::Nothing => return None,
                TimerStep::Done => {}
                TimerStep::Key(key) => return Some(key),
            }
        }
        None
    }

    /// Answers waiters whose time is over, or for whom nobody waits any more, as far as the allowance goes. It is all that may be done while nothing
    /// may be written: it changes no value, and what follows from it is done by [`Engine::next_job`] later. Returns whether there may be more to end.
    #[must_use]
    pub fn end_waits(&mut self, now: Now, out: &mut Outbox) -> bool {
        self.budget.begin_timer();
        while matches!(self.time_out_next(now, out), TimerStep::Done) || self.end_next_cut_off(out) {}
        self.budget.is_used_up()
    }

    /// Asks each source of work once, beginning with the one after that which had something last.
    fn ring_next(&mut self, now: Now, out: &mut Outbox) -> TimerStep {
        let in_turn = Timer::ALL.into_iter().enumerate().cycle().skip(self.next_timer).take(Timer::ALL.len());
        for (at, timer) in in_turn {
            let rang = self.ring(timer, now, out);
            if !matches!(rang, TimerStep::Nothing) {
                self.next_timer = at.saturating_add(1);
                return rang;
            }
        }
        TimerStep::Nothing
    }

    fn ring(&mut self, timer: Timer, now: Now, out: &mut Outbox) -> TimerStep {
        match timer {
            Timer::Dirty => self.registry.next_dirty().map_or(TimerStep::Nothing, TimerStep::Key),
            Timer::Loaded => self.next_loaded().map_or(TimerStep::Nothing, TimerStep::Key),
            Timer::Lease => self.ring_lease(now),
            Timer::Timeout => self.time_out_next(now, out),
            Timer::Suspect => self.check_suspect(now, out),
            Timer::Closed => self.look_at_closed(),
            Timer::CutOff => {
                if self.end_next_cut_off(out) {
                    TimerStep::Done
                } else {
                    TimerStep::Nothing
                }
            }
            Timer::Leftovers => self.clean_up(),
            Timer::Sweep => self.sweep_on(),
            Timer::Postponed => self.ring_postponed(now),
        }
    }

    /// Does what there is to do about a key.
    pub fn run_job(&mut self, tx: &mut Transaction<'_, impl Keyspace>) {
        self.budget.begin_timer();
        let ringing = self.backlog.take_ringing();
        for id in tx.ids() {
            self.reconcile(&mut tx.at(id), false);
            self.remove_unused(&mut tx.at(id));
            // Only now: a value that came back to its name is bound to no connection any more when it has been taken in.
            self.verify_bindings(&tx.at(id));
        }
        self.close(tx);
        if let Some(ringing) = ringing {
            self.alarms.forget_if_rung(ringing);
        }
    }

    pub(super) fn next_loaded(&mut self) -> Option<Key> {
        let Key { name, db: stable } = self.backlog.next_loaded()?;
        Some(Key { name, db: self.alarms.current(stable) })
    }

    fn ring_lease(&mut self, now: Now) -> TimerStep {
        let Some(alarm) = self.alarms.ring(now) else {
            return TimerStep::Nothing;
        };
        match self.alarms.key(alarm) {
            Some(key) => {
                self.backlog.set_ringing(Some(alarm));
                TimerStep::Key(key)
            }
            None => {
                self.alarms.remove(alarm);
                TimerStep::Done
            }
        }
    }

    /// Answers a waiter whose time is over.
    fn time_out_next(&mut self, now: Now, out: &mut Outbox) -> TimerStep {
        let Some(ticket) = self.registry.next_over(now) else {
            return TimerStep::Nothing;
        };
        if !self.budget.take(ANSWER) {
            return TimerStep::Nothing;
        }
        self.answer_with(out, ticket, Answer::TimedOut, PlaceAfter::GivenUp);
        TimerStep::Done
    }

    /// Answers a waiter that closes a circle.
    fn check_suspect(&mut self, now: Now, out: &mut Outbox) -> TimerStep {
        if self.backlog.sweep().is_some() || self.registry.has_dirty() {
            // After a promotion or a swap the holders of a name are known when its key is reconciled.
            return TimerStep::Nothing;
        }
        let Some(ticket) = self.backlog.first_suspect() else {
            return TimerStep::Nothing;
        };
        let outcome = self.search_deadlock(ticket, &[], now);
        if matches!(outcome, Outcome::NotNow) {
            return TimerStep::Nothing;
        }
        self.backlog.pop_suspect();
        self.registry.set_suspected(ticket, false);
        if let Outcome::Cycle(cycle) = outcome {
            let refused = Answer::Refused(Refusal::Deadlock(cycle));
            self.answer_with(out, ticket, refused, PlaceAfter::Kept);
        }
        self.budget.take(CHANGE);
        TimerStep::Done
    }

    fn look_at_closed(&mut self) -> TimerStep {
        if self.sessions.has_closed() && self.budget.take(CHANGE) && self.end_next_binding() {
            return TimerStep::Done;
        }
        if self.drop_bindings() { TimerStep::Done } else { TimerStep::Nothing }
    }

    /// Gives back some memory of bindings that went away all at once. `false` if there is none, or enough was done for this turn.
    pub(super) fn drop_bindings(&mut self) -> bool {
        let is_to_do = self.sessions.has_stale() && self.budget.take_parts();
        if is_to_do {
            self.sessions.drop_some(self.budget.parts() as usize);
        }
        is_to_do
    }

    pub(super) fn has_retired(&self) -> bool {
        self.alarms.has_retired() || self.registry.has_retired()
    }

    /// Cleans up after holds and places that ended all at once, and after the last of a great many locks or waiters.
    pub(super) fn clean_up(&mut self) -> TimerStep {
        if self.has_retired() && self.budget.take_parts() {
            self.alarms.give_back();
            self.registry.give_back();
            return TimerStep::Done;
        }
        let Some((key, mut leftovers)) = self.backlog.pop_leftovers() else {
            return TimerStep::Nothing;
        };
        if !self.budget.take_parts() {
            self.backlog.push_leftovers(key, leftovers);
            return TimerStep::Nothing;
        }
        for _ in 0..self.budget.parts() {
            let Some(hold) = leftovers.holds.pop() else {
                break;
            };
            for client in hold.clients(leftovers.bindings) {
                let binding = Binding { client: *client, token: hold.token(), key: key.clone() };
                self.sessions.unbind(&binding);
            }
        }
        let has_places = leftovers.queue.as_mut().is_some_and(|queue| queue.drop_some(self.budget.parts() as usize));
        let has_index = leftovers.index.as_mut().is_some_and(|index| index.drop_some(self.budget.parts() as usize));
        if has_places || has_index || !leftovers.holds.is_empty() {
            self.backlog.push_leftovers(key, leftovers);
        }
        TimerStep::Done
    }

    /// Leaves a key alone for a while, about which nothing may be decided now: another node of the cluster serves it, or none. If its alarm has just gone
    /// off, it does so again: the value may go away meanwhile without a word, and then the alarm has to be forgotten.
    pub fn postpone(&mut self, key: KeyRef<'_>, now: Now) {
        if let Some(alarm) = self.backlog.take_ringing() {
            self.alarms.hasten(alarm, now.after_ms(RINGS_AGAIN_MS));
        }
        self.backlog.postpone(key.to_key(), now);
    }

    fn ring_postponed(&mut self, now: Now) -> TimerStep {
        match self.backlog.next_postponed(now) {
            Some(key) => {
                self.value_changed(key.borrow());
                TimerStep::Done
            }
            None => TimerStep::Nothing,
        }
    }
}

/// After so long an alarm goes off again whose key was postponed. The key itself is looked at again much earlier.
const RINGS_AGAIN_MS: u64 = 1000;
