//! One task for each client tells losses and renews what is due: asynchronously, and what is due together in one pipeline for each server.
//! It awaits no answer, so no slow server or hold delays another one.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::{Cmd, Pipeline, Value};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::Error;
use crate::clock::Moment;
use crate::node::{Node, Servers};
use crate::transport::{Common, Link};

/// Timers stand still while the machine is suspended, and tests move the clock: so often the task looks at it while there are holds.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// What is looked at when it is due: a hold.
pub(crate) trait Renewed: Send + Sync {
    /// Ends the belief, or asks for a renewal, and for how long that may take.
    fn look(self: Arc<Self>, now: Moment) -> Option<(Cmd, Duration)>;

    /// A connection has closed, to which it may be bound.
    fn look_if_bound(self: Arc<Self>);

    /// Its client is closed.
    fn close(self: Arc<Self>);

    fn slot(&self) -> Option<u16>;

    fn servers(&self) -> &dyn Servers;

    /// Takes the answer to a RENEW.
    fn renewed(self: Arc<Self>, sent: Moment, link: Option<&Arc<Link>>, said: Result<Value, Error>);

    /// Makes an attempt of its own, in the background.
    fn renew_alone(self: Arc<Self>, command: Cmd, within: Duration);
}

/// Where a hold stands among those that are looked at.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    at: Moment,
    number: u64,
}

/// The holds of a client by the moment at which they are looked at.
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
    fn lock(&self) -> MutexGuard<'_, Due> {
        self.due.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a new hold, which is not looked at yet.
    pub(crate) fn place(&self) -> Place {
        let mut due = self.lock();
        due.last_number += 1;
        Place { at: Moment::NEVER, number: due.last_number }
    }

    /// From now on the hold is looked at at this moment. Called with the hold's state locked, as `forget` is.
    pub(crate) fn look_at(&self, hold: Arc<dyn Renewed>, place: &mut Place, at: Moment) {
        let mut due = self.lock();
        due.holds.remove(place);
        place.at = at;
        due.holds.insert(*place, hold);
        if at < due.planned {
            due.planned = at;
            self.sooner.notify_one();
        }
    }

    pub(crate) fn forget(&self, place: &Place) {
        // The hold may be the last to know the client.
        let hold = self.lock().holds.remove(place);
        drop(hold);
    }

    fn all(&self) -> Vec<Arc<dyn Renewed>> {
        self.lock().holds.values().cloned().collect()
    }

    /// Looks at the holds that are bound to a connection: one has closed.
    pub(crate) fn connection_closed(&self) {
        for hold in self.all() {
            hold.look_if_bound();
        }
    }

    /// The client is closed.
    pub(crate) fn end_all(&self) {
        for hold in self.all() {
            hold.close();
        }
    }

    /// Looks at holds until the client ends.
    pub(crate) async fn run(self: Arc<Self>, common: Arc<Common>) {
        loop {
            let now = common.clock.now();
            let due = {
                let mut due = self.lock();
                let later = due.holds.split_off(&Place { at: now.after(Duration::from_micros(1)), number: 0 });
                std::mem::replace(&mut due.holds, later)
            };
            let mut groups = HashMap::new();
            for hold in due.into_values() {
                // Whoever is told of a loss may panic. That must not end the renewals of the others.
                let renewal = catch_unwind(AssertUnwindSafe(|| hold.clone().look(now)));
                if let Some((command, attempt)) = renewal.ok().flatten() {
                    let node = hold.servers().known(hold.slot());
                    // Attempts that may take about as long share a pipeline.
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
                let mut due = self.lock();
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
