//! One task per client detects losses and renews holds. Renewals that are due together share one
//! pipeline per server. The task awaits no answer, so a slow server or hold does not delay the
//! others.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::clock::Moment;
use crate::node::{Node, Servers};
use crate::sync::lock;
use crate::transport::{Common, Link};

/// How often the task reads the clock while there are holds: timers stand still while the machine
/// is suspended, and tests move the clock.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// A hold, as the renewal task sees it.
pub(crate) trait Renewed: Send + Sync {
    /// Ends an expired hold, or returns the renewal to send and its time limit.
    fn look(self: Arc<Self>, now: Moment) -> Option<(Cmd, Duration)>;

    /// A connection has closed that this hold may be bound to.
    fn look_if_bound(self: Arc<Self>);

    /// The client is closed.
    fn close(self: Arc<Self>);

    fn slot(&self) -> Option<u16>;

    fn servers(&self) -> &dyn Servers;

    /// Handles the answer to a RENEW.
    fn renewed(self: Arc<Self>, sent: Moment, link: Option<&Arc<Link>>, said: Result<Value, Error>);

    /// Renews this hold by a request of its own, in the background.
    fn renew_alone(self: Arc<Self>, command: Cmd, within: Duration);
}

/// The position of a hold in the schedule.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    at: Moment,
    number: u64,
}

/// The schedule of a client's holds, by the moment of their next check.
pub(crate) struct Renewals {
    due: Mutex<Due>,
    sooner: Notify,
}

struct Due {
    holds: BTreeMap<Place, Arc<dyn Renewed>>,
    last_number: u64,
    /// When the task wakes.
    planned: Moment,
}

impl Default for Renewals {
    fn default() -> Self {
        let due = Due { holds: BTreeMap::new(), last_number: 0, planned: Moment::NEVER };
        Self { due: Mutex::new(due), sooner: Notify::new() }
    }
}

impl Renewals {
    /// A position for a new hold, not scheduled yet.
    pub(crate) fn place(&self) -> Place {
        let mut due = lock(&self.due);
        due.last_number += 1;
        Place { at: Moment::NEVER, number: due.last_number }
    }

    /// Schedules the next check of the hold. Like `forget`, it is called with the state of the hold
    /// locked.
    pub(crate) fn look_at(&self, hold: Arc<dyn Renewed>, place: &mut Place, at: Moment) {
        let mut due = lock(&self.due);
        due.holds.remove(place);
        place.at = at;
        due.holds.insert(*place, hold);
        if at < due.planned {
            due.planned = at;
            self.sooner.notify_one();
        }
    }

    pub(crate) fn forget(&self, place: &Place) {
        // The hold may own the last reference to the client, so drop it after unlocking.
        let hold = lock(&self.due).holds.remove(place);
        drop(hold);
    }

    fn all(&self) -> Vec<Arc<dyn Renewed>> {
        lock(&self.due).holds.values().cloned().collect()
    }

    /// Checks the holds that are bound to connections, after one has closed.
    pub(crate) fn connection_closed(&self) {
        for hold in self.all() {
            hold.look_if_bound();
        }
    }

    /// Ends all holds, because the client is closed.
    pub(crate) fn end_all(&self) {
        for hold in self.all() {
            hold.close();
        }
    }

    /// Checks holds until the client ends.
    pub(crate) async fn run(self: Arc<Self>, common: Arc<Common>) {
        loop {
            let now = common.clock.now();
            let due = {
                let mut due = lock(&self.due);
                let later = due.holds.split_off(&Place { at: now.after(Duration::from_micros(1)), number: 0 });
                std::mem::replace(&mut due.holds, later)
            };
            let mut groups = HashMap::new();
            for hold in due.into_values() {
                // Reporting a loss may panic in the application's code, which must not stop the
                // renewals of other holds.
                let renewal = catch_unwind(AssertUnwindSafe(|| hold.clone().look(now)));
                if let Some((command, attempt)) = renewal.ok().flatten() {
                    let node = hold.servers().known(hold.slot());
                    // Attempts with similar time limits share a pipeline.
                    let length = attempt.as_micros().checked_ilog2();
                    let slot = if node.is_some() { None } else { hold.slot() };
                    let group = (node.as_ref().map(|node| Arc::as_ptr(node).addr()), slot, length);
                    let (.., within, holds) = groups.entry(group).or_insert((node, attempt, Vec::new()));
                    *within = attempt.min(*within);
                    holds.push((hold, command));
                }
            }
            for (node, within, holds) in groups.into_values() {
                tokio::spawn(renew(common.clone(), node, within.min(common.command_timeout), holds));
            }
            let nap = {
                let mut due = lock(&self.due);
                let first = due.holds.first_key_value().map(|(place, _)| place.at);
                due.planned = first.map_or(Moment::NEVER, |first| first.min(now.after(LONGEST_NAP)));
                first.map(|_| common.clock.now().until(due.planned))
            };
            tokio::select! {
                () = common.ended.cancelled() => return,
                () = self.sooner.notified() => {}
                () = async { sleep(nap.unwrap_or_default()).await }, if nap.is_some() => {}
            }
        }
    }
}

/// Makes one attempt to renew.
async fn renew(common: Arc<Common>, node: Option<Arc<Node>>, within: Duration, holds: Vec<(Arc<dyn Renewed>, Cmd)>) {
    if let (Some(node), true) = (node, holds.len() > 1) {
        let mut pipeline = Pipeline::with_capacity(holds.len());
        for (_, command) in &holds {
            pipeline.add_command(command.clone());
        }
        let asking = async {
            let link = node.link().await?;
            let sent = common.clock.now();
            let answers = link.ask_all(&pipeline, within).await.inspect_err(|_| {
                if link.is_silent_since(sent) {
                    node.abandon(&link);
                }
            })?;
            Ok((link, sent, answers))
        };
        match timeout(within, asking).await.unwrap_or_else(|_| Err(Error::unavailable("no connection in time"))) {
            Ok((link, sent, answers)) => {
                for ((hold, command), answer) in holds.into_iter().zip(answers) {
                    if answer.as_ref().is_err_and(|error| hold.servers().redirected(error, &link).is_some()) {
                        hold.renew_alone(command, within);
                        continue;
                    }
                    if let Err(error) = &answer {
                        node.heed(error, &link);
                    }
                    hold.renewed(sent, Some(&link), answer);
                }
            }
            Err(error) => {
                let now = common.clock.now();
                holds.into_iter().for_each(|(hold, _)| hold.renewed(now, None, Err(error.clone())));
            }
        }
        return;
    }
    for (hold, command) in holds {
        hold.renew_alone(command, within);
    }
}
