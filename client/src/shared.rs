//! What all handles and guards of a client share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::home::Home;
use crate::identity::next_request_id;
use crate::keeper::Keeper;
use crate::metrics::{Meter, Metrics};
use crate::servers::Servers;
use crate::slots::slot_of;
use crate::wire::Family;

/// What a client is told once.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) response_timeout: Duration,
    pub(crate) retry_for: Duration,
    pub(crate) ping_after: Duration,
    pub(crate) name: Option<String>,
    pub(crate) meter: Meter,
}

pub(crate) struct Shared {
    pub(crate) servers: Servers,
    pub(crate) settings: Settings,
    pub(crate) home: Arc<Home>,
    pub(crate) keeper: Keeper,
    gates: Mutex<HashMap<GateKey, Weak<Gate>>>,
}

/// An owner has one numbered request at a time for each of these.
type GateKey = (Family, Arc<[Vec<u8>]>, Arc<[u8]>);

/// Where the requests of an owner pass one at a time, with ids that rise, and with the same session grace.
#[derive(Default)]
pub(crate) struct Gate {
    /// How long its hold outlives the connection. At the server a hold has one session, whichever of its counts named it last: what another handle
    /// named would end the hold under guards that do not know of it. So the first one counts.
    pub(crate) session_grace: Option<Duration>,
    turn: Arc<tokio::sync::Mutex<()>>,
    last_id: AtomicU64,
    /// Whether other handles of its owner find it. Nobody else knows a unique owner, so its gate need not be found before its name is told.
    can_be_found: AtomicBool,
}

impl Gate {
    pub(crate) fn new(session_grace: Option<Duration>) -> Arc<Self> {
        Arc::new(Self { session_grace, ..Self::default() })
    }

    /// Waits for the turn of a request.
    pub(crate) async fn pass(&self) -> OwnedMutexGuard<()> {
        self.turn.clone().lock_owned().await
    }

    /// An id above all that went through here, and all that this process has used before.
    pub(crate) fn next_id(&self) -> u64 {
        let id = next_request_id();
        let above = |last: u64| id.max(last.saturating_add(1));
        // The closure never declines, so there is always a previous value.
        let last = self.last_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(above(last)));
        above(last.unwrap_or_default())
    }

    /// Goes on above an id that the server has seen from this owner, which another process must have used: its clock may be ahead. No other
    /// lock's ids rise with it.
    pub(crate) fn raise_above(&self, seen: u64) {
        self.last_id.fetch_max(seen, Ordering::Relaxed);
    }
}

impl Shared {
    pub(crate) fn new(servers: Servers, settings: Settings, home: Arc<Home>) -> Arc<Self> {
        let keeper = Keeper::new(home.clone());
        Arc::new(Self { servers, settings, home, keeper, gates: Mutex::default() })
    }

    /// Who counts what happens.
    pub(crate) fn metrics(&self) -> &dyn Metrics {
        &*self.settings.meter.0
    }

    /// The slot of keys that are asked for together, in a cluster.
    pub(crate) fn slot_of(&self, keys: &[Vec<u8>]) -> Option<u16> {
        self.servers.is_cluster().then(|| slot_of(keys.first().map_or(&[], Vec::as_slice)))
    }

    /// The gate of an owner that several handles may use. If there is none, it is one with this session grace.
    pub(crate) fn gate_of(&self, key: GateKey, session_grace: Option<Duration>) -> Arc<Gate> {
        self.found_or(key, || Gate::new(session_grace))
    }

    /// Lets other handles of an owner find its gate.
    pub(crate) fn let_be_found(&self, key: GateKey, gate: &Arc<Gate>) {
        if !gate.can_be_found.load(Ordering::Relaxed) {
            self.found_or(key, || gate.clone());
        }
    }

    fn found_or(&self, key: GateKey, new: impl FnOnce() -> Arc<Gate>) -> Arc<Gate> {
        let mut gates = self.gates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = gates.get(&key).and_then(Weak::upgrade) {
            return gate;
        }
        // As many as are in use at most double before those that are not are removed.
        if gates.len() == gates.capacity() {
            gates.retain(|_, gate| gate.strong_count() > 0);
        }
        let gate = new();
        gate.can_be_found.store(true, Ordering::Relaxed);
        gates.insert(key, Arc::downgrade(&gate));
        gate
    }

    /// A name of the place where the locks are, the same in every process, and the place's own. Two places may have been given the same name.
    pub(crate) fn place(&self) -> (String, String) {
        let own = self.servers.name();
        (self.settings.name.clone().unwrap_or_else(|| own.clone()), own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_above_those_of_a_stranger_and_only_at_that_gate() {
        let (gate, other) = (Gate::default(), Gate::default());
        let first = gate.next_id();
        assert!(gate.next_id() > first);
        let seen = first + 1_000_000_000_000;
        gate.raise_above(seen);
        let next = gate.next_id();
        assert!(next > seen && gate.next_id() > next);
        assert!(other.next_id() < seen);
    }
}
