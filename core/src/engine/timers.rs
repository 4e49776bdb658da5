//! The timer: all work that no command does, and when it is due.
//!
//! The module asks for the next job, opens its key, and lets the engine run it. In between, the
//! engine does the work that needs no key.

use super::Engine;
use super::job::{Job, TimerStep};
use super::transaction::Transaction;
use super::waits::PlaceAfter;
use crate::budget::{ANSWER, CHANGE};
use crate::keyspace::Keyspace;
use crate::outbox::{Answer, Outbox};
use crate::registry::Outcome;
use crate::request::Refusal;
use crate::time::Now;

/// The sources of work. The timer serves them in turn, so that a flood of one delays none of the
/// others.
#[derive(Clone, Copy, Debug)]
enum Timer {
    /// Dirty names, and names with work beyond a budget.
    Dirty,
    /// Loaded values.
    Loaded,
    /// Expiring leases, places and reservations.
    Lease,
    /// Waiters that timed out.
    Timeout,
    /// Waiters that may close a cycle.
    Suspect,
    /// Holds that were bound to closed connections.
    Closed,
    /// Notified waits that were cut off.
    CutOff,
    /// Memory of large tables that became empty.
    Retired,
    /// Everything, after a promotion, a load, a flush, SWAPDB or a pause of grants.
    Sweep,
    /// Keys that another node of the cluster serves, or that currently no node serves.
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
        Self::Retired,
        Self::Sweep,
        Self::Postponed,
    ];

    /// The sources that a replica works on, see [`Engine::next_to_observe`].
    const ON_REPLICA: [Self; 5] = [Self::Dirty, Self::Loaded, Self::CutOff, Self::Retired, Self::Sweep];
}

impl Engine {
    /// A turn of the server's event loop, or a run of the timer, begins: see `budget.rs`.
    pub fn begin_turn(&mut self) {
        self.budget.begin_turn();
    }

    /// When the next work is due; `None` if never.
    #[must_use]
    pub fn next_timeout_us(&self) -> Option<u64> {
        if self.has_offers() {
            return Some(0);
        }
        Timer::ALL.into_iter().filter_map(|timer| self.due_us(timer)).min()
    }

    /// Whether a replica has work now: leftovers from its time as a master, and work from the data
    /// that it has received since. All other work waits for a promotion.
    pub(super) fn has_work_on_replica(&self) -> bool {
        Timer::ON_REPLICA.into_iter().any(|timer| self.due_us(timer).is_some())
    }

    /// When a source next has work. The match is exhaustive: the module would never ask for the
    /// work of a forgotten source.
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
            Timer::Retired => now_if(self.has_retired()),
            Timer::Sweep => now_if(self.backlog.sweep().is_some()),
            Timer::Postponed => self.backlog.postponed_until_us(),
        }
    }

    /// The next key with work, for [`Engine::run_job`]. In between, it does the work that needs no
    /// key, such as answering waiters that timed out. `None` also if the budget of this turn is
    /// used up: then [`Engine::next_timeout_us`] returns a time that is due.
    pub fn next_job(&mut self, now: Now, out: &mut Outbox) -> Option<Job> {
        self.budget.begin_timer();
        while !self.budget.is_used_up() {
            match self.run_next_source(now, out) {
                TimerStep::Nothing => return None,
                TimerStep::Done => {}
                TimerStep::Job(job) => return Some(job),
            }
        }
        None
    }

    /// Answers waiters that timed out or were cut off, as far as the budget goes. This is all that
    /// may be done while the server takes no writes: it changes no value, and [`Engine::next_job`]
    /// does the rest later. Returns whether there may be more waits to end.
    #[must_use]
    pub fn end_waits(&mut self, now: Now, out: &mut Outbox) -> bool {
        self.budget.begin_timer();
        while matches!(self.time_out_next(now, out), TimerStep::Done) || self.end_next_cut_off(out) {}
        self.budget.is_used_up()
    }

    /// Asks each source of work once, beginning after the one that last had work.
    fn run_next_source(&mut self, now: Now, out: &mut Outbox) -> TimerStep {
        let in_turn = Timer::ALL.into_iter().enumerate().cycle().skip(self.next_timer).take(Timer::ALL.len());
        for (at, timer) in in_turn {
            let step = self.run_source(timer, now, out);
            if !matches!(step, TimerStep::Nothing) {
                self.next_timer = at.saturating_add(1);
                return step;
            }
        }
        TimerStep::Nothing
    }

    fn run_source(&mut self, timer: Timer, now: Now, out: &mut Outbox) -> TimerStep {
        match timer {
            Timer::Dirty => TimerStep::on(self.registry.next_dirty()),
            Timer::Loaded => TimerStep::on(self.backlog.next_loaded()),
            Timer::Lease => self.fire_next_alarm(now),
            Timer::Timeout => self.time_out_next(now, out),
            Timer::Suspect => self.check_suspect(now, out),
            Timer::Closed => self.process_closed(),
            Timer::CutOff => {
                if self.end_next_cut_off(out) {
                    TimerStep::Done
                } else {
                    TimerStep::Nothing
                }
            }
            Timer::Retired => self.clean_up(),
            Timer::Sweep => self.continue_sweep(),
            Timer::Postponed => self.retry_postponed(now),
        }
    }

    /// Does the work on a key.
    pub fn run_job(&mut self, tx: &mut Transaction<'_, impl Keyspace>, job: &Job) {
        self.budget.begin_timer();
        for id in tx.ids() {
            self.reconcile(&mut tx.at(id), false);
            self.remove_unused(&mut tx.at(id));
            // After `reconcile`, because adopting a value that returned to its name unbinds its
            // holds from all connections.
            self.verify_bindings(&tx.at(id));
        }
        self.close(tx);
        if let Some(fired) = job.fired {
            self.alarms.forget_if_fired(fired);
        }
    }

    fn fire_next_alarm(&mut self, now: Now) -> TimerStep {
        match self.alarms.fire_due(now) {
            Some((alarm, Some(key))) => TimerStep::Job(Job { key, fired: Some(alarm) }),
            Some((_, None)) => TimerStep::Done,
            None => TimerStep::Nothing,
        }
    }

    /// Answers a waiter that timed out.
    fn time_out_next(&mut self, now: Now, out: &mut Outbox) -> TimerStep {
        let Some(ticket) = self.registry.next_timed_out(now) else {
            return TimerStep::Nothing;
        };
        if !self.budget.take(ANSWER) {
            return TimerStep::Nothing;
        }
        self.answer_with(out, ticket, Answer::TimedOut, PlaceAfter::GivenUp);
        TimerStep::Done
    }

    /// Refuses a waiter that closes a cycle.
    fn check_suspect(&mut self, now: Now, out: &mut Outbox) -> TimerStep {
        if self.backlog.sweep().is_some() || self.registry.has_dirty() {
            // After a promotion or a swap, the holders of a name are unknown until its key is
            // reconciled.
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
            self.answer_with(out, ticket, refused, PlaceAfter::GivenUp);
        }
        self.budget.take(CHANGE);
        TimerStep::Done
    }

    fn process_closed(&mut self) -> TimerStep {
        if self.sessions.has_closed() && self.budget.take(CHANGE) && self.end_next_binding() {
            return TimerStep::Done;
        }
        if self.drop_bindings() { TimerStep::Done } else { TimerStep::Nothing }
    }

    /// Frees some memory of dropped bindings. `false` if none are left, or the budget of this turn
    /// is used up.
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

    /// Frees memory of large tables that became empty.
    pub(super) fn clean_up(&mut self) -> TimerStep {
        if !self.has_retired() || !self.budget.take_parts() {
            return TimerStep::Nothing;
        }
        self.alarms.free_some();
        self.registry.free_some();
        TimerStep::Done
    }

    /// Postpones a job about whose key this server may not decide now, because another node of the
    /// cluster or no node serves it. An alarm that has just fired fires again: the server may
    /// remove the value without an event, and then the alarm must be forgotten.
    pub fn postpone(&mut self, job: Job, now: Now) {
        if let Some(alarm) = job.fired {
            self.alarms.hasten(alarm, now.after_ms(REFIRE_MS));
        }
        self.backlog.postpone(job.key, now);
    }

    fn retry_postponed(&mut self, now: Now) -> TimerStep {
        match self.backlog.next_postponed(now) {
            Some(key) => {
                self.value_changed(key.borrow());
                TimerStep::Done
            }
            None => TimerStep::Nothing,
        }
    }
}

/// The delay after which the alarm of a postponed key fires again. The key itself is retried much
/// earlier.
const REFIRE_MS: u64 = 1000;
