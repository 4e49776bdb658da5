//! The value in RDB files, DUMP payloads and rewritten append-only files.

use std::sync::atomic::{AtomicU64, Ordering};

use rlock_core::{
    Event, Facts, FairQueue, Hold, Idle, Kind, Lock, MAX_LEASE_MS, MAX_TOKEN, Now, Place, TOKEN_AHEAD_LIMIT_US,
    TOKEN_CLOCK_END_US, decode, encode, write_effect,
};

use crate::clock;
use crate::ffi::{Arg, Digest, Load, Save, log_warning};
use crate::state;
use crate::timer;

/// The version of the payload. A newer one is refused.
pub(crate) const PAYLOAD_VERSION: i32 = 1;

/// Reads a value. `None` refuses it: the server then fails the command or the load.
pub(crate) fn load(load: &Load, version: i32) -> Option<Lock> {
    if version != PAYLOAD_VERSION {
        log_warning(&format!(
            "a lock was saved by a newer rlock (payload version {version}, this one reads {PAYLOAD_VERSION})"
        ));
        return None;
    }
    let now = clock::now();
    let mut lock = match load.bytes(|bytes| decode(bytes, now))? {
        Ok(lock) => lock,
        Err(error) => {
            log_warning(&format!("the payload of a lock is broken: {}", error.0));
            return None;
        }
    };
    let flags = load.ctx().flags();
    if !flags.is_loading() && lock.is_disposable() {
        log_warning("the payload of a lock has neither a holder nor a place");
        return None;
    }
    let tokens = lock.holds().iter().map(Hold::token);
    let arrivals = lock.queue().into_iter().flat_map(FairQueue::iter).map(|place| place.arrival);
    let newest = tokens.chain(arrivals).max().unwrap_or(0);
    if flags.is_master() && !flags.is_loading() {
        let ends = lock.queue().into_iter().flat_map(FairQueue::iter).filter_map(|place| place.stay.until_us());
        let last_end_us = lock.holds().iter().map(Hold::deadline_us).chain(ends).max().unwrap_or(0);
        if newest > token_limit(flags.is_cluster(), now) || last_end_us > now.after_ms(DEADLINE_LIMIT_MS) {
            log_warning("the payload of a lock has a token or a lease too far in the future");
            return None;
        }
    }
    lock.shorten_leases(now);
    // What comes by RESTORE has an event of its own once it is there; a load has none.
    let loaded = match (flags.is_loading(), load.key(), load.db()) {
        (true, Some(name), Some(db)) => Some(rlock_core::Key { name: name.bytes().into(), db }),
        _ => None,
    };
    state::tell(|engine| {
        engine.raise_token(newest);
        if let Some(key) = loaded {
            engine.value_loaded(key);
        }
    });
    timer::arm_soon();
    Some(lock)
}

/// How far ahead a lease may end in a payload that comes by RESTORE: one that somebody made by hand must not hold a lock for ever. The clock of the
/// server that saved it may be ahead of this one by some time, and the lease is shortened then.
const DEADLINE_LIMIT_MS: u64 = MAX_LEASE_MS + 24 * 60 * 60 * 1000;

/// The highest token that a payload may have which comes by RESTORE: one that somebody made by hand must not use up the tokens. In a cluster a lock that is
/// refused may be lost, because Redis 8.4 and newer goes on with the move of a slot over errors of the node that it moves to. There a token may be
/// as far ahead as the clock of that slot's last node was, and further than tokens follow the clock: half of those that are left behind that are more than
/// anybody uses.
fn token_limit(is_cluster: bool, now: Now) -> u64 {
    if is_cluster { TOKEN_CLOCK_END_US.midpoint(MAX_TOKEN) } else { now.wall_us.saturating_add(TOKEN_AHEAD_LIMIT_US) }
}

/// How many values were saved since the file that is being written was begun. A child that writes a file counts for itself.
static SAVED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn save(save: &Save, lock: &Lock) {
    SAVED.fetch_add(1, Ordering::Relaxed);
    let mut bytes = Vec::with_capacity(128);
    encode(lock, clock::now(), &mut bytes);
    save.bytes(&bytes);
}

/// Writes the effects that make the value anew.
pub(crate) fn rewrite(save: &Save, key: Arg<'_>, lock: &Lock) {
    let now = clock::now();
    let mut facts = Facts::default();
    let mut emit = |event: Event| {
        let arguments = write_effect(&event, now, &mut facts);
        save.emit_effect(key, &facts, arguments);
    };
    if lock.kind() == Kind::Semaphore {
        emit(Event::Sized { permits: lock.permits() });
        if let Some(Idle { idle_ms, until_us }) = lock.idle() {
            emit(Event::Unused { idle_ms, until_us });
        }
    }
    for hold in lock.holds().iter() {
        emit(Event::Granted {
            kind: lock.kind(),
            owner: hold.owner().clone(),
            mode: hold.mode(),
            token: hold.token(),
            terms: hold.terms(),
        });
    }
    let Some(queue) = lock.queue() else {
        return;
    };
    for place in queue.iter() {
        let owner = place.owner.into();
        let Place { stay, arrival, request_id, grace_ms, .. } = place;
        emit(Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head: false });
    }
    if let (Some(until_us), Some(head)) = (queue.reserved_until_us(), queue.first()) {
        emit(Event::Reserved { owner: head.owner.into(), until_us });
    }
}

pub(crate) fn memory_usage(lock: &Lock) -> usize {
    size_of::<Lock>().saturating_add(lock.heap_bytes())
}

pub(crate) fn free_effort(lock: &Lock) -> usize {
    lock.holds().len().saturating_add(lock.queue().map_or(0, FairQueue::len)).max(1)
}

/// What two servers with the same lock agree on: everything but the deadlines.
pub(crate) fn digest(digest: &Digest, lock: &Lock) {
    let idle_ms = lock.idle().map_or(0, |idle| idle.idle_ms);
    digest.add(&[lock.kind().name().as_bytes(), &lock.permits().to_le_bytes(), &idle_ms.to_le_bytes()]);
    for hold in lock.holds().iter() {
        let terms = hold.terms();
        let request = format!("{:?} {:?} {:?}", terms.request, terms.session_ms, terms.phase);
        digest.add(&[
            hold.owner().as_slice(),
            hold.mode().name().as_bytes(),
            &hold.token().to_le_bytes(),
            &terms.count.to_le_bytes(),
            &terms.lease_ms.to_le_bytes(),
            request.as_bytes(),
            hold.note().unwrap_or_default(),
        ]);
    }
    for place in lock.queue().into_iter().flat_map(FairQueue::iter) {
        let request = format!("{:?} {:?}", place.request_id, place.grace_ms);
        digest.add(&[place.owner, &place.arrival.to_le_bytes(), request.as_bytes()]);
    }
}

/// An RDB file is about to be written.
pub(crate) fn begin_file() {
    SAVED.store(0, Ordering::Relaxed);
}

/// The end of an RDB file: writes the last token, where it costs nothing or says something. A file that has it cannot be loaded
/// without the module, and neither can one that has a lock. Without a lock, the clock of whoever loads the file says as
/// much as the last token, if that one followed the clock.
pub(crate) fn end_file(save: &Save) {
    let last = state::with_engine(|engine| engine.last_token()).unwrap_or(0);
    let has_locks = SAVED.load(Ordering::Relaxed) > 0;
    if last > 0 && (has_locks || last > clock::now().wall_us) {
        save.number(last);
    }
}

/// Reads the last token, if a file has it: those of older versions always do.
pub(crate) fn load_aux(load: &Load, version: i32) -> bool {
    if version != PAYLOAD_VERSION {
        return false;
    }
    match load.number() {
        Some(token) if token <= MAX_TOKEN => {
            state::tell(|engine| engine.raise_token(token));
            true
        }
        Some(token) => {
            log_warning(&format!(
                "the last token in the file is {token}, beyond {MAX_TOKEN}: it was not written by rlock"
            ));
            false
        }
        None => false,
    }
}
