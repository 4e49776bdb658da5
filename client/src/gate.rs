//! What the requests of one owner share: their order, ids that rise, and the session of its hold.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use tokio::sync::OwnedMutexGuard;

use crate::Error;
use crate::identity::next_request_id;
use crate::wire::Family;

/// An owner has one numbered request at a time for each of these.
pub(crate) type GateKey = (Family, Arc<[Vec<u8>]>, Arc<[u8]>);

/// What an owner holds of one key.
type HoldKey = (Family, Vec<u8>, Arc<[u8]>);

/// How long a hold outlives the connection, if it does not outlive it by its lease. At the server a hold has one session, whichever of its
/// counts named it last: what another handle named would end the hold under guards that do not know of it. So the first one counts for all.
type Grace = Option<Duration>;

/// The turn of a request. It ends when this is dropped.
pub(crate) struct Turn {
    _here: OwnedMutexGuard<()>,
    _at_each_key: Vec<OwnedMutexGuard<()>>,
}

/// Where the requests of an owner pass one at a time, with ids that rise, and with the same session grace.
#[derive(Default)]
pub(crate) struct Gate {
    pub(crate) session_grace: Grace,
    turn: Arc<tokio::sync::Mutex<()>>,
    /// Where the owner's requests for one of several keys pass, in the order of the keys, which all have sorted. A request for several passes there
    /// as well: the server remembers one id for each owner and key. None if nobody else knows the owner.
    at_each_key: Vec<Arc<Self>>,
    last_id: AtomicU64,
    /// Whether other handles of its owner find it. Nobody else knows a unique owner, so its gate need not be found before its name is told.
    can_be_found: AtomicBool,
    /// The sessions of its holds, once it can be found. They are known as long as it lives.
    sessions: OnceLock<Vec<Arc<Grace>>>,
}

impl Gate {
    pub(crate) fn new(session_grace: Grace) -> Arc<Self> {
        Arc::new(Self { session_grace, ..Self::default() })
    }

    /// Waits for the turn of a request. Who waits for one key keeps no turn of another one: a request of that one alone would wait as well.
    pub(crate) async fn pass(&self) -> Turn {
        let here = self.turn.clone().lock_owned().await;
        let mut waited_for = None;
        loop {
            match self.try_pass_at_each_key(waited_for.take()) {
                Ok(at_each_key) => return Turn { _here: here, _at_each_key: at_each_key },
                Err(busy) => waited_for = Some((busy, busy.turn.clone().lock_owned().await)),
            }
        }
    }

    /// The turn at each key, if they have come already; one of them may have been waited for. Errors: the first gate that is busy.
    fn try_pass_at_each_key(
        &self,
        mut waited_for: Option<(&Arc<Self>, OwnedMutexGuard<()>)>,
    ) -> Result<Vec<OwnedMutexGuard<()>>, &Arc<Self>> {
        let turn_at = |gate| match waited_for.take_if(|(passed, _)| Arc::ptr_eq(passed, gate)) {
            Some((_, turn)) => Ok(turn),
            None => gate.turn.clone().try_lock_owned().map_err(|_| gate),
        };
        self.at_each_key.iter().map(turn_at).collect()
    }

    /// Takes its place behind those who wait for their turn, now and not when the future is first looked at: what the owner asks for next comes behind.
    pub(crate) fn pass_from_now_on(self: &Arc<Self>) -> impl Future<Output = Turn> + Send + use<> {
        let begun = self.try_pass().ok_or_else(|| {
            let gate = self.clone();
            Box::pin(tokio::task::unconstrained(async move { gate.pass().await }))
        });
        let begun = begun.or_else(|mut passing| match passing.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(turn) => Ok(turn),
            Poll::Pending => Err(passing),
        });
        async move {
            match begun {
                Ok(turn) => turn,
                Err(passing) => passing.await,
            }
        }
    }

    /// The turn of a request, if it has come already.
    pub(crate) fn try_pass(&self) -> Option<Turn> {
        let here = self.turn.clone().try_lock_owned().ok()?;
        let at_each_key = self.try_pass_at_each_key(None).ok()?;
        Some(Turn { _here: here, _at_each_key: at_each_key })
    }

    /// An id above all that went through here, and all that this process has used before. Whoever asks for it has the turn.
    pub(crate) fn next_id(&self) -> u64 {
        for gate in &self.at_each_key {
            self.raise_above(gate.last_id.load(Ordering::Relaxed));
        }
        let id = next_request_id();
        let above = |last: u64| id.max(last.saturating_add(1));
        // The closure never declines, so there is always a previous value.
        let last = self.last_id.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(above(last)));
        let id = above(last.unwrap_or_default());
        for gate in &self.at_each_key {
            gate.raise_above(id);
        }
        id
    }

    /// Whether other requests of its owner may wait for their turn.
    pub(crate) fn can_be_found(&self) -> bool {
        self.can_be_found.load(Ordering::Relaxed)
    }

    /// Goes on above an id that the server has seen from this owner, which another process must have used: its clock may be ahead. No other
    /// lock's ids rise with it.
    pub(crate) fn raise_above(&self, seen: u64) {
        self.last_id.fetch_max(seen, Ordering::Relaxed);
    }
}

/// The gates that several handles may find.
#[derive(Default)]
pub(crate) struct Gates(Mutex<Found>);

#[derive(Default)]
struct Found {
    gates: HashMap<GateKey, Weak<Gate>>,
    sessions: HashMap<HoldKey, Weak<Grace>>,
}

impl Gates {
    fn found(&self) -> MutexGuard<'_, Found> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The gate of an owner. If there is none, it is one with this session grace, or with that of what the owner holds already.
    ///
    /// Errors: of some of the keys it holds with one grace, of others with another one.
    pub(crate) fn of(&self, key: GateKey, session_grace: Grace) -> Result<Arc<Gate>, Error> {
        let mut found = self.found();
        if let Some(gate) = found.gate(&key) {
            return Ok(gate);
        }
        let session_grace = found.grace_of(&key)?.unwrap_or(session_grace);
        let (family, keys, owner) = &key;
        let at_each_key = match family {
            Family::Many => keys.iter().map(|key| found.gate_of_key(key, owner, session_grace)).collect(),
            _ => Vec::new(),
        };
        let gate = Arc::new(Gate { session_grace, at_each_key, ..Gate::default() });
        found.add(key, &gate);
        Ok(gate)
    }

    /// Lets other handles of an owner find its gate.
    pub(crate) fn let_be_found(&self, key: GateKey, gate: &Arc<Gate>) {
        if gate.can_be_found() {
            return;
        }
        let mut found = self.found();
        if found.gate(&key).is_none() {
            found.add(key, gate);
        }
    }
}

/// What a gate is about, hold by hold: a mutex is the same hold, whether it was taken alone or among several.
fn holds_of((family, keys, owner): &GateKey) -> impl Iterator<Item = HoldKey> {
    let family = if *family == Family::Many { Family::Mutex } else { *family };
    keys.iter().map(move |key| (family, key.clone(), owner.clone()))
}

impl Found {
    fn gate(&self, key: &GateKey) -> Option<Arc<Gate>> {
        self.gates.get(key).and_then(Weak::upgrade)
    }

    /// The gate of a mutex. All holds of the owner have this grace.
    fn gate_of_key(&mut self, key: &[u8], owner: &Arc<[u8]>, session_grace: Grace) -> Arc<Gate> {
        let key = (Family::Mutex, Arc::from([key.to_vec()]), owner.clone());
        self.gate(&key).unwrap_or_else(|| {
            let gate = Gate::new(session_grace);
            self.add(key, &gate);
            gate
        })
    }

    fn session(&self, hold: &HoldKey) -> Option<Arc<Grace>> {
        self.sessions.get(hold).and_then(Weak::upgrade)
    }

    /// The grace of what an owner holds already of these keys, through other gates.
    fn grace_of(&self, key: &GateKey) -> Result<Option<Grace>, Error> {
        let mut graces = holds_of(key).filter_map(|hold| self.session(&hold));
        let Some(first) = graces.next() else { return Ok(None) };
        if graces.any(|other| other != first) {
            let what = "session_grace: this owner holds some of the keys with one grace, and others with another one";
            return Err(Error::Argument(what.to_owned()));
        }
        Ok(Some(*first))
    }

    fn add(&mut self, key: GateKey, gate: &Arc<Gate>) {
        // As many as are in use at most double before those that are not are removed.
        if self.gates.len() == self.gates.capacity() {
            self.gates.retain(|_, gate| gate.strong_count() > 0);
        }
        if self.sessions.len() == self.sessions.capacity() {
            self.sessions.retain(|_, session| session.strong_count() > 0);
        }
        let sessions = holds_of(&key).map(|hold| {
            self.session(&hold).unwrap_or_else(|| {
                let session = Arc::new(gate.session_grace);
                self.sessions.insert(hold, Arc::downgrade(&session));
                session
            })
        });
        let sessions = sessions.collect();
        // Only who adds it sets them, and each gate is added once.
        drop(gate.sessions.set(sessions));
        gate.can_be_found.store(true, Ordering::Relaxed);
        self.gates.insert(key, Arc::downgrade(gate));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(family: Family, keys: &[&str]) -> GateKey {
        (family, keys.iter().map(|key| key.as_bytes().to_vec()).collect(), Arc::from(b"me".as_slice()))
    }

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

    #[tokio::test]
    async fn a_request_for_several_keys_has_the_turn_of_each_and_an_id_above_theirs() {
        let gates = Gates::default();
        let gate_of = |family, keys: &[&str]| gates.of(key(family, keys), None).expect("of one grace");
        let (several, others) = (gate_of(Family::Many, &["a", "b"]), gate_of(Family::Many, &["b", "c"]));
        let [a, b, c] = ["a", "b", "c"].map(|name| gate_of(Family::Mutex, &[name]));
        let turn = several.pass().await;
        let are_open = || [&a, &b, &c, &several, &others].map(|gate| gate.try_pass().is_some());
        assert_eq!(are_open(), [false, false, true, false, false]);
        drop(turn);
        assert_eq!(are_open(), [true; 5], "nothing is left locked by those that did not pass");
        let one = b.try_pass();
        assert_eq!(are_open(), [true, false, true, false, false]);
        drop(one);

        let far = a.next_id() + 1_000_000_000_000;
        a.raise_above(far);
        let id = several.next_id();
        assert!(id > far && b.next_id() > id && others.next_id() > id && a.next_id() > id);
        assert!(c.next_id() > far, "it is a key of the others, whose request came last");
    }

    #[test]
    fn what_an_owner_holds_of_a_key_has_one_session_alone_and_among_several() {
        let (gates, grace) = (Gates::default(), Some(Duration::from_secs(1)));
        let gate_of = |family, keys: &[&str], grace| gates.of(key(family, keys), grace);
        let alone = gate_of(Family::Mutex, &["a"], None).expect("the first");
        let several = gate_of(Family::Many, &["a", "b"], grace).expect("as the first");
        assert_eq!((alone.session_grace, several.session_grace), (None, None));
        let other = gate_of(Family::Mutex, &["c"], grace).expect("another key");
        assert_eq!(gate_of(Family::Read, &["a"], grace).expect("another hold").session_grace, grace);
        assert!(matches!(gate_of(Family::Many, &["b", "c"], None), Err(Error::Argument(_))), "they differ");
        drop((alone, several));
        assert_eq!(gate_of(Family::Many, &["a", "b", "c"], None).expect("as the last").session_grace, grace);
        drop(other);
        assert_eq!(gate_of(Family::Mutex, &["b"], None).expect("nobody holds any more").session_grace, None);
    }

    #[test]
    fn a_gate_can_be_found_when_others_know_its_owner() {
        let gates = Gates::default();
        let of = |name: &str| gates.of(key(Family::Mutex, &[name]), None).expect("one key");
        assert!(of("named").can_be_found());
        let unique = Gate::new(None);
        assert!(!unique.can_be_found(), "nobody has been told its owner");
        gates.let_be_found(key(Family::Mutex, &["told"]), &unique);
        assert!(unique.can_be_found() && Arc::ptr_eq(&of("told"), &unique));
    }

    #[test]
    fn a_gate_is_found_as_long_as_somebody_has_it_and_does_not_take_room_for_longer() {
        let gates = Gates::default();
        let of = |name: &str| gates.of(key(Family::Mutex, &[name]), None).expect("one key");
        let kept = of("kept");
        for number in 0..1000 {
            drop(of(&number.to_string()));
        }
        assert!(Arc::ptr_eq(&of("kept"), &kept));
        let found = gates.found();
        assert!(found.gates.len() < 100 && found.sessions.len() < 100);
    }
}
