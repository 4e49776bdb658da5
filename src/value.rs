//! The value in RDB files, DUMP payloads and rewritten append-only files.

use rlock_core::{
    Event, Facts, Hold, Kind, MAX_LEASE_MS, Place, Places, Stored, TOKEN_AHEAD_LIMIT_US, decode, encode, write_effect,
};

use crate::clock;
use crate::ffi::{Arg, Digest, Load, Save, log_warning};
use crate::state;
use crate::timer;

/// The version of the payload. A newer one is refused.
pub(crate) const PAYLOAD_VERSION: i32 = 1;

/// Reads a value. `None` refuses it: the server then fails the command or the load.
pub(crate) fn load(load: &Load, version: i32) -> Option<Stored> {
    if version != PAYLOAD_VERSION {
        log_warning(&format!(
            "a lock was saved by a newer rlock (payload version {version}, this one reads {PAYLOAD_VERSION})"
        ));
        return None;
    }
    let now = clock::now();
    let lock = match load.bytes(|bytes| decode(bytes, now))? {
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
    if flags.is_master() && !flags.is_loading() {
        // A payload that somebody made by hand must not use up the tokens, nor hold a lock for ever.
        let token_limit = now.wall_us.saturating_add(TOKEN_AHEAD_LIMIT_US);
        let deadline_limit = now.after_ms(MAX_LEASE_MS);
        let far_hold = |hold: &Hold| hold.token() > token_limit || hold.deadline_us() > deadline_limit;
        let far_place = |place: Place<'_>| {
            place.arrival > token_limit || place.stay.until_us().is_some_and(|until_us| until_us > deadline_limit)
        };
        if lock.holds().iter().any(far_hold) || lock.places().into_iter().flat_map(Places::iter).any(far_place) {
            log_warning("the payload of a lock has a token or a lease too far in the future");
            return None;
        }
    }
    for hold in lock.holds() {
        state::note_token(hold.token());
    }
    for place in lock.places().into_iter().flat_map(Places::iter) {
        state::note_token(place.arrival);
    }
    // What comes by RESTORE has an event of its own once it is there; a load has none.
    if flags.is_loading()
        && let (Some(name), Some(db)) = (load.key(), load.db())
    {
        state::note_loaded(rlock_core::Key { name: name.bytes().into(), db });
        timer::arm_soon();
    }
    Some(Stored::new(lock))
}

pub(crate) fn save(save: &Save, stored: &Stored) {
    let mut bytes = Vec::with_capacity(128);
    encode(&stored.lock, clock::now(), &mut bytes);
    save.bytes(&bytes);
}

/// Writes the effects that make the value anew.
pub(crate) fn rewrite(save: &Save, key: Arg<'_>, stored: &Stored) {
    let now = clock::now();
    let mut facts = Facts::new();
    if stored.lock.kind() == Kind::Semaphore {
        write_effect(&Event::Sized { permits: stored.lock.permits() }, now, &mut facts);
        save.emit_effect(key, &facts, None);
    }
    for hold in stored.lock.holds() {
        let granted = Event::Granted {
            kind: stored.lock.kind(),
            owner: hold.owner().clone(),
            mode: hold.mode(),
            token: hold.token(),
            terms: hold.terms(),
        };
        if let Some(owner) = write_effect(&granted, now, &mut facts) {
            save.emit_effect(key, &facts, Some(owner.as_slice()));
        }
    }
    let Some(places) = stored.lock.places() else {
        return;
    };
    for place in places.iter() {
        let owner = place.owner.into();
        let Place { stay, arrival, request_id, .. } = place;
        let queued = Event::Queued { owner, stay, arrival, request_id, at_head: false };
        write_effect(&queued, now, &mut facts);
        save.emit_effect(key, &facts, Some(place.owner));
    }
    if let (Some(until_us), Some(head)) = (places.turn_until_us(), places.first()) {
        write_effect(&Event::Turn { owner: head.owner.into(), until_us }, now, &mut facts);
        save.emit_effect(key, &facts, Some(head.owner));
    }
}

pub(crate) fn memory_usage(stored: &Stored) -> usize {
    size_of::<Stored>().saturating_add(stored.lock.heap_bytes())
}

/// What two servers with the same lock agree on: everything but the deadlines.
pub(crate) fn digest(digest: &Digest, stored: &Stored) {
    let lock = &stored.lock;
    digest.add(&[lock.kind().name().as_bytes(), &lock.permits().to_le_bytes()]);
    for hold in lock.holds() {
        let terms = hold.terms();
        let request = format!("{:?} {:?}", terms.request, terms.session_ms);
        digest.add(&[
            hold.owner().as_slice(),
            hold.mode().name().as_bytes(),
            &hold.token().to_le_bytes(),
            &terms.count.to_le_bytes(),
            &terms.lease_ms.to_le_bytes(),
            request.as_bytes(),
        ]);
    }
    for place in lock.places().into_iter().flat_map(Places::iter) {
        let request_id = place.request_id.unwrap_or(0);
        digest.add(&[place.owner, &place.arrival.to_le_bytes(), &request_id.to_le_bytes()]);
    }
}

/// Writes what an RDB file has beside the keys: the last token.
pub(crate) fn save_aux(save: &Save) {
    save.number(state::peek_engine(rlock_core::Engine::last_token).unwrap_or(0));
}

/// The same for servers that leave out what is empty (Redis 7.2): a file of a server on which no lock was ever taken
/// can be loaded without the module.
pub(crate) fn save_aux_if_any(save: &Save) {
    if state::peek_engine(rlock_core::Engine::last_token) != Some(0) {
        save_aux(save);
    }
}

pub(crate) fn load_aux(load: &Load, version: i32) -> bool {
    if version != PAYLOAD_VERSION {
        return false;
    }
    match load.number() {
        Some(token) => {
            state::note_token(token);
            true
        }
        None => false,
    }
}
