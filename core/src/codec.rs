//! The value as bytes, for RDB files and DUMP payloads.
//!
//! One string: a kind, a capacity, the holds and the places, with times as unix milliseconds.
//! Numbers are LEB128. The decoder trusts nothing: a payload that it accepts is a valid lock,
//! anything else is a [`DecodeError`]; it allocates only in proportion to the payload's size.

use alloc::vec::Vec;

use crate::bytes::Owner;
use crate::event::{Event, Phase, Terms};
use crate::kind::{Kind, Mode};
use crate::lock::{FairQueue, Hold, Idle, Lock};
use crate::place::{Place, Stay};
use crate::request::{RequestMark, Verb};
use crate::time::{MAX_LEASE_MS, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TOKEN, Now};

/// Why a payload is not a valid lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DecodeError(pub &'static str);

const HAS_REQUEST: u64 = 1;
const REQUEST_IS_RELEASE: u64 = 2;
const HAS_SESSION: u64 = 4;
const REQUEST_IS_MANY: u64 = 8;
const IS_UNCLAIMED: u64 = 16;
const IS_KEPT: u64 = 32;
const HAS_NOTE: u64 = 64;
const REQUEST_IS_CANCEL: u64 = 128;
/// The request has added more or less than 1.
const HAS_ADDED: u64 = 256;
const FLAGS: u64 = (HAS_ADDED << 1) - 1;

const CONNECTED: u64 = 0;
const POLLED: u64 = 1;
const GRACE: u64 = 2;
/// The place's own `GRACE` follows.
const HAS_GRACE: u64 = 4;

/// Added to the kind: an idle time follows the permits.
const HAS_IDLE: u64 = 4;

/// Appends `lock` to `bytes`.
pub fn encode(lock: &Lock, now: Now, bytes: &mut Vec<u8>) {
    let idle = lock.idle();
    push(bytes, kind_number(lock.kind()) | if idle.is_some() { HAS_IDLE } else { 0 });
    push(bytes, u64::from(lock.permits()));
    if let Some(Idle { idle_ms, until_us }) = idle {
        push(bytes, idle_ms);
        push(bytes, now.to_unix_ms(until_us));
    }
    push(bytes, lock.holds().len() as u64);
    for hold in lock.holds().iter() {
        encode_hold(hold, now, bytes);
    }
    push(bytes, lock.queue().map_or(0, FairQueue::len) as u64);
    if let Some(queue) = lock.queue() {
        for place in queue.iter() {
            encode_place(place, now, bytes);
        }
        push(bytes, queue.reserved_until_us().map_or(0, |until_us| now.to_unix_ms(until_us)));
    }
}

fn encode_place(place: Place<'_>, now: Now, bytes: &mut Vec<u8>) {
    push(bytes, place.owner.len() as u64);
    bytes.extend_from_slice(place.owner);
    push(bytes, place.arrival);
    push(bytes, place.request_id.unwrap_or(0));
    let stay = match place.stay {
        Stay::Connected => CONNECTED,
        Stay::Polled { .. } => POLLED,
        Stay::Grace { .. } => GRACE,
    };
    push(bytes, if place.grace_ms.is_some() { stay | HAS_GRACE } else { stay });
    if let Some(until_us) = place.stay.until_us() {
        push(bytes, now.to_unix_ms(until_us));
    }
    if let Some(grace_ms) = place.grace_ms {
        push(bytes, grace_ms);
    }
}

fn encode_hold(hold: &Hold, now: Now, bytes: &mut Vec<u8>) {
    let owner = hold.owner().as_slice();
    push(bytes, owner.len() as u64);
    bytes.extend_from_slice(owner);
    let terms = hold.terms();
    let mut flags = 0;
    if let Some(request) = terms.request {
        flags |= HAS_REQUEST;
        flags |= match request.verb {
            Verb::Acquire => 0,
            Verb::AcquireMany => REQUEST_IS_MANY,
            Verb::Release => REQUEST_IS_RELEASE,
            Verb::ReleaseMany => REQUEST_IS_RELEASE | REQUEST_IS_MANY,
            Verb::Cancel => REQUEST_IS_CANCEL,
        };
        if request.verb.acquires() && request.added != 1 {
            flags |= HAS_ADDED;
        }
    }
    if terms.session_ms.is_some() {
        flags |= HAS_SESSION;
    }
    flags |= match terms.phase {
        Phase::Held => 0,
        Phase::Unclaimed => IS_UNCLAIMED,
        Phase::Kept => IS_KEPT,
    };
    if terms.note.is_some() {
        flags |= HAS_NOTE;
    }
    push(bytes, mode_number(hold.mode()));
    push(bytes, hold.token());
    push(bytes, u64::from(terms.count));
    push(bytes, now.to_unix_ms(terms.deadline_us));
    push(bytes, terms.lease_ms);
    push(bytes, flags);
    if let Some(request) = terms.request {
        push(bytes, request.id);
        if flags & HAS_ADDED != 0 {
            push(bytes, u64::from(request.added));
        }
    }
    if let Some(session_ms) = terms.session_ms {
        push(bytes, session_ms);
    }
    if let Some(note) = terms.note {
        push(bytes, note.len() as u64);
        bytes.extend_from_slice(&note);
    }
}

/// Decodes a lock.
///
/// # Errors
///
/// [`DecodeError`] names the invalid part.
pub fn decode(bytes: &[u8], now: Now) -> Result<Lock, DecodeError> {
    let mut reader = Reader(bytes);
    let first = reader.number()?;
    let (kind, has_idle) = (kind_of(first & !HAS_IDLE)?, first & HAS_IDLE != 0);
    let permits = u32::try_from(reader.number()?).map_err(|_| DecodeError("permits"))?;
    if permits == 0 || (kind != Kind::Semaphore && permits != 1) {
        return Err(DecodeError("permits"));
    }
    let mut lock = Lock::new(kind, permits);
    if has_idle {
        let idle_ms = reader.number_in(1..=MAX_LEASE_MS, "idle time")?;
        let until_us = now.within(now.from_unix_ms(reader.number()?), MAX_LEASE_MS);
        apply(&mut lock, Event::Unused { idle_ms, until_us })?;
    }
    let holds = reader.number()?;
    let is_exclusive = matches!(kind, Kind::Mutex | Kind::Fair);
    if is_exclusive && holds > 1 {
        return Err(DecodeError("more than one holder"));
    }
    for _ in 0..holds {
        decode_hold(&mut reader, now, &mut lock)?;
    }
    // Applying an exclusive hold removes all others, so fewer are left than were decoded.
    if lock.holds().len() as u64 != holds {
        return Err(DecodeError("a writer that is not alone"));
    }
    decode_places(&mut reader, now, &mut lock)?;
    if reader.0.is_empty() { Ok(lock) } else { Err(DecodeError("bytes after the end")) }
}

/// Applies a decoded event, with the same checks as for an event of a master.
fn apply(lock: &mut Lock, event: Event) -> Result<(), DecodeError> {
    lock.check(&event).map_err(DecodeError)?;
    lock.apply(event);
    Ok(())
}

fn decode_places(reader: &mut Reader<'_>, now: Now, lock: &mut Lock) -> Result<(), DecodeError> {
    let places = reader.number()?;
    if places == 0 {
        return Ok(());
    }
    if lock.kind() != Kind::Fair {
        return Err(DecodeError("places"));
    }
    for _ in 0..places {
        let owner = Owner::from(reader.bytes(1..=MAX_OWNER_BYTES, "owner of a place")?);
        if lock.place(owner.as_slice()).is_some() {
            return Err(DecodeError("a place twice"));
        }
        let arrival = reader.number_in(1..=MAX_TOKEN, "arrival")?;
        let request_id = Some(reader.number_in(0..=i64::MAX.unsigned_abs(), "request id")?).filter(|id| *id != 0);
        let flags = reader.number()?;
        let stay = match flags & !HAS_GRACE {
            CONNECTED => Stay::Connected,
            POLLED => Stay::Polled { until_us: now.from_unix_ms(reader.number()?) },
            GRACE => Stay::Grace { until_us: now.from_unix_ms(reader.number()?) },
            _ => return Err(DecodeError("stay")),
        };
        let has_grace = flags & HAS_GRACE != 0;
        let grace_ms = if has_grace { Some(reader.number_in(0..=MAX_LEASE_MS, "grace")?) } else { None };
        apply(lock, Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head: false })?;
    }
    let reserved_until_unix_ms = reader.number()?;
    let head = lock.queue().and_then(FairQueue::first).map(|head| Owner::from(head.owner));
    if let Some(owner) = head.filter(|_| reserved_until_unix_ms != 0) {
        apply(lock, Event::Reserved { owner, until_us: now.from_unix_ms(reserved_until_unix_ms) })?;
    }
    Ok(())
}

fn decode_hold(reader: &mut Reader<'_>, now: Now, lock: &mut Lock) -> Result<(), DecodeError> {
    let owner = Owner::from(reader.bytes(1..=MAX_OWNER_BYTES, "owner")?);
    let mode = mode_of(reader.number()?)?;
    let token = reader.number_in(1..=MAX_TOKEN, "token")?;
    if lock.hold(owner.as_slice(), mode).is_some() {
        return Err(DecodeError("a hold twice"));
    }
    let count = reader.number_in(1..=u64::from(u32::MAX), "count")?;
    let deadline_unix_ms = reader.number()?;
    let lease_ms = reader.number_in(1..=MAX_LEASE_MS, "lease")?;
    let flags = reader.number_in(0..=FLAGS, "flags")?;
    let request = if flags & HAS_REQUEST == 0 { None } else { Some(decode_mark(reader, flags)?) };
    let session_ms = if flags & HAS_SESSION == 0 { None } else { Some(reader.number_in(0..=MAX_LEASE_MS, "session")?) };
    let note = if flags & HAS_NOTE == 0 { None } else { Some(reader.bytes(1..=MAX_NOTE_BYTES, "note")?.into()) };
    let granted = Event::Granted {
        kind: lock.kind(),
        owner,
        mode,
        token,
        terms: Terms {
            count: u32::try_from(count).map_err(|_| DecodeError("count"))?,
            deadline_us: now.from_unix_ms(deadline_unix_ms),
            lease_ms,
            request,
            session_ms,
            phase: match flags & (IS_UNCLAIMED | IS_KEPT) {
                0 => Phase::Held,
                IS_UNCLAIMED => Phase::Unclaimed,
                IS_KEPT if mode == Mode::Exclusive && count == 1 && session_ms.is_none() => Phase::Kept,
                _ => return Err(DecodeError("phase")),
            },
            note,
        },
    };
    apply(lock, granted)
}

fn decode_mark(reader: &mut Reader<'_>, flags: u64) -> Result<RequestMark, DecodeError> {
    let verb = match flags & (REQUEST_IS_RELEASE | REQUEST_IS_MANY | REQUEST_IS_CANCEL) {
        0 => Verb::Acquire,
        REQUEST_IS_MANY => Verb::AcquireMany,
        REQUEST_IS_RELEASE => Verb::Release,
        REQUEST_IS_CANCEL => Verb::Cancel,
        both if both == REQUEST_IS_RELEASE | REQUEST_IS_MANY => Verb::ReleaseMany,
        _ => return Err(DecodeError("request")),
    };
    let id = reader.number_in(1..=i64::MAX.unsigned_abs(), "request id")?;
    let added = match (verb.acquires(), flags & HAS_ADDED != 0) {
        (true, true) => reader.number_in(0..=u64::from(u32::MAX), "added count")?,
        (true, false) => 1,
        (false, false) => 0,
        (false, true) => return Err(DecodeError("added count")),
    };
    Ok(RequestMark { id, verb, added: u32::try_from(added).map_err(|_| DecodeError("added count"))? })
}

fn kind_number(kind: Kind) -> u64 {
    match kind {
        Kind::Mutex => 0,
        Kind::Fair => 1,
        Kind::RwLock => 2,
        Kind::Semaphore => 3,
    }
}

fn kind_of(number: u64) -> Result<Kind, DecodeError> {
    Kind::ALL.into_iter().find(|kind| kind_number(*kind) == number).ok_or(DecodeError("kind"))
}

fn mode_number(mode: Mode) -> u64 {
    match mode {
        Mode::Exclusive => 0,
        Mode::Read => 1,
        Mode::Write => 2,
        Mode::Permits => 3,
    }
}

fn mode_of(number: u64) -> Result<Mode, DecodeError> {
    Mode::ALL.into_iter().find(|mode| mode_number(*mode) == number).ok_or(DecodeError("mode"))
}

fn push(bytes: &mut Vec<u8>, mut number: u64) {
    loop {
        let low = number.to_le_bytes()[0] & 0x7f;
        number >>= 7;
        if number == 0 {
            bytes.push(low);
            return;
        }
        bytes.push(low | 0x80);
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn number(&mut self) -> Result<u64, DecodeError> {
        let mut number = 0u64;
        for shift in (0..64u32).step_by(7) {
            let (byte, rest) = self.0.split_first().ok_or(DecodeError("it is cut short"))?;
            self.0 = rest;
            let part = u64::from(byte & 0x7f);
            let placed = part << shift;
            if placed >> shift != part {
                return Err(DecodeError("a number is too large"));
            }
            number |= placed;
            if byte & 0x80 == 0 {
                return Ok(number);
            }
        }
        Err(DecodeError("a number is too long"))
    }

    fn number_in(&mut self, range: core::ops::RangeInclusive<u64>, what: &'static str) -> Result<u64, DecodeError> {
        let number = self.number()?;
        range.contains(&number).then_some(number).ok_or(DecodeError(what))
    }

    fn bytes(&mut self, range: core::ops::RangeInclusive<usize>, what: &'static str) -> Result<&'a [u8], DecodeError> {
        let len = usize::try_from(self.number()?).map_err(|_| DecodeError(what))?;
        if !range.contains(&len) {
            return Err(DecodeError(what));
        }
        let (bytes, rest) = self.0.split_at_checked(len).ok_or(DecodeError("it is cut short"))?;
        self.0 = rest;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategies;
    use alloc::vec;
    use proptest::prelude::*;

    const NOW: Now = Now { mono_us: 5_000_000, wall_us: 1_700_000_000_000_000 };

    proptest! {
        #[test]
        fn a_lock_comes_back(lock in strategies::lock(NOW)) {
            let mut bytes = Vec::new();
            encode(&lock, NOW, &mut bytes);
            prop_assert_eq!(decode(&bytes, NOW), Ok(lock));
        }

        #[test]
        fn a_payload_cut_short_is_refused(lock in strategies::lock(NOW), cut in any::<prop::sample::Index>()) {
            let mut bytes = Vec::new();
            encode(&lock, NOW, &mut bytes);
            bytes.truncate(cut.index(bytes.len()));
            prop_assert!(decode(&bytes, NOW).is_err());
        }

        /// A mutated payload that decodes is a lock that can be encoded and decoded again.
        #[test]
        fn a_mutated_payload_is_refused_or_a_valid_lock(
            lock in strategies::lock(NOW),
            flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        ) {
            let mut bytes = Vec::new();
            encode(&lock, NOW, &mut bytes);
            for (index, value) in flips {
                let index = index.index(bytes.len());
                bytes[index] = value;
            }
            if let Ok(lock) = decode(&bytes, NOW) {
                let mut again = Vec::new();
                encode(&lock, NOW, &mut again);
                prop_assert!(decode(&again, NOW).is_ok());
            }
        }
    }

    /// The values of `tests/data/0.1.0/snapshot.rdb`: no hold has a claim, KEEP or note, and no
    /// place its own `GRACE`.
    const WRITTEN_BY_0_1_0: [(&str, &str); 7] = [
        ("mutex", "000101016100f59ad2faeb9998030299f186c5803580a0cfc760010200"),
        (
            "fair",
            "010101016100aec9d2faeb999803019df186c5803580a0cfc7600002016287ccd2faeb99980307019ef186c580350164b9e8d2faeb999803\
             0001a1f186c5803500",
        ),
        ("queue", "010100010162a6a7d3faeb9998030001a9f186c58035a9f186c58035"),
        (
            "readers",
            "020102016101d0fbd3faeb99980301b4f186c5803580a0cfc76000016201edffd3faeb99980301b5f186c5803580a0cfc7600480d8c4bd\
             7500",
        ),
        (
            "writer",
            "020102016102eaa3d4faeb99980301b9f186c5803580a0cfc76000016101c5d4d4faeb99980301c0f186c5803580a0cfc7600000",
        ),
        (
            "semaphore",
            "030702016103c0a1d5faeb99980302c9f186c5803580a0cfc7600302016203d6abd5faeb99980301cbf186c5803580a0cfc7600000",
        ),
        ("idle", "03ffffffff0f0000"),
    ];

    /// Version 0.1.0 must be able to read such values, after a downgrade or on an older replica.
    #[test]
    fn a_value_without_new_fields_is_written_with_the_bytes_of_0_1_0() {
        for (name, written) in WRITTEN_BY_0_1_0 {
            let lock = decode(&from_hex(written), NOW).expect(name);
            let mut bytes = Vec::new();
            encode(&lock, NOW, &mut bytes);
            assert_eq!(bytes, from_hex(written), "{name}");
        }
    }

    fn from_hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.chars().filter_map(|digit| digit.to_digit(16)).map(|digit| digit as u8).collect();
        digits.chunks_exact(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    #[test]
    fn each_part_is_checked() {
        // kind, permits, holds, then owner, mode, token, count, deadline, lease, flags; places.
        let good = vec![0, 1, 1, 1, b'o', 0, 5, 1, 0, 1, 0, 0];
        assert!(decode(&good, NOW).is_ok());
        let cases: [(usize, u8, &str); 11] = [
            (0, 8, "kind"),
            (1, 0, "permits"),
            (1, 2, "permits"),
            (2, 2, "more than one holder"),
            (3, 0, "owner"),
            (5, 1, "the lock is of another kind"),
            (6, 0, "token"),
            (7, 0, "count"),
            (10, 48, "phase"),
            (10, 64, "note"),
            (11, 1, "places"),
        ];
        for (index, value, wrong) in cases {
            let mut bytes = good.clone();
            bytes[index] = value;
            assert_eq!(decode(&bytes, NOW), Err(DecodeError(wrong)), "byte {index}");
        }
        let unknown_flag = vec![0, 1, 1, 1, b'o', 0, 5, 1, 0, 1, 128, 4, 0];
        assert_eq!(decode(&unknown_flag, NOW), Err(DecodeError("flags")));
        // A mutex with an idle time; a semaphore with an idle time of 0.
        assert_eq!(decode(&[4, 1, 9, 9, 0, 0], NOW), Err(DecodeError("the lock is of another kind")));
        assert_eq!(decode(&[7, 1, 0, 9, 0, 0], NOW), Err(DecodeError("idle time")));
        assert!(decode(&[7, 1, 9, 9, 0, 0], NOW).is_ok());
        // A fair lock with two places: owner, arrival, request id, stay; then the reservation.
        let good = vec![1, 1, 0, 2, 1, b'o', 1, 0, 0, 1, b'p', 1, 7, 1, 9, 0];
        assert!(decode(&good, NOW).is_ok());
        for (index, value, wrong) in [(4, 0, "owner of a place"), (8, 3, "stay"), (10, b'o', "a place twice")] {
            let mut bytes = good.clone();
            bytes[index] = value;
            assert_eq!(decode(&bytes, NOW), Err(DecodeError(wrong)), "byte {index}");
        }
        let mut long = good.clone();
        long.push(0);
        assert_eq!(decode(&long, NOW), Err(DecodeError("bytes after the end")));
        assert_eq!(decode(&[0xff; 11], NOW), Err(DecodeError("a number is too large")));
    }
}
