//! The value in RDB files, DUMP payloads and rewritten append-only files.

use std::sync::atomic::{AtomicU64, Ordering};

use rlock_core::{
    Event, Facts, FairQueue, Hold, Idle, Kind, Lock, MAX_LEASE_MS, MAX_TOKEN, Now, Place, TOKEN_AHEAD_LIMIT_US,
    TOKEN_CLOCK_END_US, decode, encode, write_effect,
};

use crate::clock;
use crate::exclusion;
use crate::ffi::{self, Arg, Digest, Load, Save, log_warning};
use crate::state;
use crate::timer;

/// The version of the payload format. The module refuses newer versions.
pub(crate) const PAYLOAD_VERSION: i32 = 1;

/// Whether this version of the module can read a payload; if not, the log says so.
fn is_readable(version: i32) -> bool {
    if version != PAYLOAD_VERSION {
        log_warning(&format!(
            "the data was saved by a newer rlock (payload version {version}, this one reads {PAYLOAD_VERSION})"
        ));
    }
    version == PAYLOAD_VERSION
}

/// Reads a value. With `None` the server fails the command or the load.
pub(crate) fn load(load: &Load, version: i32) -> Option<Lock> {
    if !is_readable(version) {
        return None;
    }
    let now = clock::now();
    let mut lock = match load.bytes(|bytes| decode(bytes, now))? {
        Ok(lock) => lock,
        Err(error) => {
            log_warning(&format!("the payload of a lock is malformed: {}", error.0));
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
    lock.shorten_leases(now, exclusion::longest_lease_ms());
    // After a RESTORE the server sends a keyspace event for the key. After a load it sends none.
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

/// How far in the future a lease may end in a payload of RESTORE: the longest lease plus a day. A
/// payload made by hand must not hold a lock forever. The day allows for a saving server whose
/// clock is ahead; the module shortens such a lease.
const DEADLINE_LIMIT_MS: u64 = MAX_LEASE_MS + 24 * 60 * 60 * 1000;

/// The highest token in a payload of RESTORE. A payload made by hand must not use up the tokens.
///
/// In a cluster the limit is far higher, because a refused lock may be lost: Redis 8.4 and newer
/// continue the migration of a slot after an error of the target node. There a token may be ahead
/// by as much as the clock of the slot's former node was, and may exceed [`TOKEN_CLOCK_END_US`].
/// The limit still leaves half of the tokens above that value, more than a server can use.
fn token_limit(is_cluster: bool, now: Now) -> u64 {
    if is_cluster { TOKEN_CLOCK_END_US.midpoint(MAX_TOKEN) } else { now.wall_us.saturating_add(TOKEN_AHEAD_LIMIT_US) }
}

/// The number of values saved in the current RDB file. A child that writes a file has its own
/// count.
static SAVED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn save(save: &Save, lock: &Lock) {
    SAVED.fetch_add(1, Ordering::Relaxed);
    let mut bytes = Vec::with_capacity(128);
    encode(lock, clock::now(), &mut bytes);
    save.bytes(&bytes);
}

/// Writes the effects that recreate the value.
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

/// Adds everything but the deadlines to the digest, so that the digest of a lock is equal on two
/// servers.
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

/// Called before the server writes an RDB file.
pub(crate) fn begin_file() {
    SAVED.store(0, Ordering::Relaxed);
}

/// Called at the end of an RDB file: writes the last token if it is needed.
///
/// A server without the module cannot load a file that has the token. So a file without locks has
/// it only if the token is ahead of the clock; in any other case the clock of the loading server
/// gives higher tokens. A file with locks needs the module anyway, and always has the token. So does
/// a snapshot for a replica whose vote will count (`rlock.exclusion failover`): without the module
/// it would drop each change of a lock, and nothing here would show that.
pub(crate) fn end_file(save: &Save) {
    let last = state::with_engine(|engine| engine.last_token()).unwrap_or(0);
    let has_locks = SAVED.load(Ordering::Relaxed) > 0;
    if (last > 0 && (has_locks || last > clock::now().wall_us))
        || (exclusion::proves_the_module() && ffi::is_snapshot_wanted())
    {
        save.number(last);
    }
}

/// Reads the last token of a file. Files of older versions always have one.
pub(crate) fn load_aux(load: &Load, version: i32) -> bool {
    if !is_readable(version) {
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
        None => {
            log_warning("the file is cut short or damaged within the last token");
            false
        }
    }
}
