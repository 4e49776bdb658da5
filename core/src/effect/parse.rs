//! Reads the text of an effect back.

use core::str;

use super::{EffectError, KEPT, NOTED, UNCLAIMED};
use crate::bytes::Owner;
use crate::event::{ChangeCause, EndCause, Event, LeaveCause, Note, Phase, Terms};
use crate::kind::{Kind, Mode};
use crate::place::Stay;
use crate::request::{RequestMark, Verb};
use crate::time::{MAX_LEASE_MS, MAX_NOTE_BYTES, MAX_OWNER_BYTES, MAX_TOKEN, Now};

/// Parses an event. It checks everything, so an accepted event can be applied.
///
/// # Errors
///
/// [`EffectError`] names the invalid part.
pub fn parse_effect(facts: &[u8], arguments: [Option<&[u8]>; 2], now: Now) -> Result<Event, EffectError> {
    let facts = str::from_utf8(facts).map_err(|_| EffectError("facts are not text"))?;
    let (facts, has_note) = match facts.strip_suffix(NOTED).and_then(|facts| facts.strip_suffix(' ')) {
        Some(facts) => (facts, true),
        None => (facts, false),
    };
    let (owner, note) = match arguments {
        [first, None] if has_note => (None, first),
        [first, second] if has_note => (first, second),
        [owner, None] => (owner, None),
        [_, Some(_)] => return Err(EffectError("too many arguments")),
    };
    let note = if has_note { Some(valid_note(note)?) } else { None };
    let mut event = parse_facts(facts, owner, now)?;
    match &mut event {
        Event::Granted { terms, .. } | Event::Changed { terms, .. } => terms.note = note,
        _ if has_note => return Err(EffectError("note")),
        _ => {}
    }
    Ok(event)
}

fn valid_note(note: Option<&[u8]>) -> Result<Note, EffectError> {
    let note = note.filter(|note| (1..=MAX_NOTE_BYTES).contains(&note.len()));
    Ok(note.ok_or(EffectError("note"))?.into())
}

fn parse_facts(facts: &str, owner: Option<&[u8]>, now: Now) -> Result<Event, EffectError> {
    let mut words = facts.split(' ');
    let verb = words.next().unwrap_or_default();
    let event = match verb {
        "granted" => granted(&mut words, owner, now)?,
        "cleared" => {
            let except = owner.map(|owner| valid_owner(Some(owner))).transpose()?;
            Event::Cleared { cause: named(&mut words, EndCause::of_name, "cause")?, except }
        }
        "queue-lapsed" => Event::QueueExpired,
        "sized" => Event::Sized { permits: small_number(&mut words, "permits")? },
        "unused" => Event::Unused {
            idle_ms: number(&mut words, 0..=MAX_LEASE_MS, "idle time")?,
            until_us: now.within(moment(&mut words, now, "end of the idle time")?, MAX_LEASE_MS),
        },
        "removed" => Event::Removed,
        "queued" | "kept" | "left" | "reserved" | "detached" => place_event(verb, &mut words, owner, now)?,
        _ => hold_event(verb, &mut words, now)?,
    };
    match words.next() {
        None => Ok(event),
        Some(_) => Err(EffectError("too many facts")),
    }
}

fn granted(words: &mut Words<'_>, owner: Option<&[u8]>, now: Now) -> Result<Event, EffectError> {
    let kind = named(words, Kind::of_name, "kind")?;
    let mode = named(words, Mode::of_name, "mode")?;
    if !kind.has_mode(mode) {
        return Err(EffectError("mode does not fit the kind"));
    }
    let (owner, token) = (valid_owner(owner)?, token(words)?);
    Ok(Event::Granted { kind, owner, mode, token, terms: terms(words, now)? })
}

fn hold_event(verb: &str, words: &mut Words<'_>, now: Now) -> Result<Event, EffectError> {
    if let Some(cause) = ChangeCause::of_name(verb) {
        Ok(Event::Changed { token: token(words)?, cause, terms: terms(words, now)? })
    } else if let Some(cause) = EndCause::of_name(verb) {
        Ok(Event::Ended { token: token(words)?, cause })
    } else {
        Err(EffectError("unknown event"))
    }
}

fn place_event(verb: &str, words: &mut Words<'_>, owner: Option<&[u8]>, now: Now) -> Result<Event, EffectError> {
    Ok(match verb {
        "detached" => Event::Detached {
            until_us: moment(words, now, "until")?,
            at_us: last(words, 0..=u64::MAX, "moment")?.map(|unix_ms| now.from_unix_ms(unix_ms)),
        },
        "reserved" => Event::Reserved { owner: valid_owner(owner)?, until_us: moment(words, now, "until")? },
        "kept" => Event::Kept {
            owner: valid_owner(owner)?,
            stay: stay(words, now)?,
            request_id: request_id(words)?,
            grace_ms: grace(words)?,
        },
        "left" => Event::Left { owner: valid_owner(owner)?, cause: named(words, LeaveCause::of_name, "cause")? },
        _ => Event::Queued {
            owner: valid_owner(owner)?,
            stay: stay(words, now)?,
            arrival: number(words, 1..=MAX_TOKEN, "arrival")?,
            request_id: request_id(words)?,
            at_head: match words.next() {
                Some("head") => true,
                Some("tail") => false,
                _ => return Err(EffectError("end of the queue")),
            },
            grace_ms: grace(words)?,
        },
    })
}

fn valid_owner(owner: Option<&[u8]>) -> Result<Owner, EffectError> {
    let owner = owner.filter(|owner| (1..=MAX_OWNER_BYTES).contains(&owner.len()));
    Ok(owner.ok_or(EffectError("owner"))?.into())
}

fn moment(words: &mut Words<'_>, now: Now, what: &'static str) -> Result<u64, EffectError> {
    Ok(now.from_unix_ms(number(words, 0..=u64::MAX, what)?))
}

fn stay(words: &mut Words<'_>, now: Now) -> Result<Stay, EffectError> {
    let word = words.next().unwrap_or_default();
    let until_us = |unix_ms| Ok(now.from_unix_ms(parse_number(unix_ms, 0..=u64::MAX, "stay")?));
    match word.split_once(':') {
        None if word == "connected" => Ok(Stay::Connected),
        Some(("polled", unix_ms)) => Ok(Stay::Polled { until_us: until_us(unix_ms)? }),
        Some(("grace", unix_ms)) => Ok(Stay::Grace { until_us: until_us(unix_ms)? }),
        _ => Err(EffectError("stay")),
    }
}

type Words<'a> = str::Split<'a, char>;

fn named<T>(words: &mut Words<'_>, of_name: fn(&str) -> Option<T>, what: &'static str) -> Result<T, EffectError> {
    of_name(words.next().unwrap_or_default()).ok_or(EffectError(what))
}

fn number(
    words: &mut Words<'_>,
    range: core::ops::RangeInclusive<u64>,
    what: &'static str,
) -> Result<u64, EffectError> {
    parse_number(words.next().unwrap_or_default(), range, what)
}

fn parse_number(word: &str, range: core::ops::RangeInclusive<u64>, what: &'static str) -> Result<u64, EffectError> {
    word.parse().ok().filter(|number| range.contains(number)).ok_or(EffectError(what))
}

fn optional(
    words: &mut Words<'_>,
    range: core::ops::RangeInclusive<u64>,
    what: &'static str,
) -> Result<Option<u64>, EffectError> {
    match words.next() {
        Some("-") => Ok(None),
        word => parse_number(word.unwrap_or_default(), range, what).map(Some),
    }
}

/// Parses an optional last number.
fn last(
    words: &mut Words<'_>,
    range: core::ops::RangeInclusive<u64>,
    what: &'static str,
) -> Result<Option<u64>, EffectError> {
    words.next().map(|word| parse_number(word, range, what)).transpose()
}

fn grace(words: &mut Words<'_>) -> Result<Option<u64>, EffectError> {
    last(words, 0..=MAX_LEASE_MS, "grace")
}

fn request_id(words: &mut Words<'_>) -> Result<Option<u64>, EffectError> {
    optional(words, 1..=i64::MAX.unsigned_abs(), "request id")
}

fn small_number(words: &mut Words<'_>, what: &'static str) -> Result<u32, EffectError> {
    u32::try_from(number(words, 1..=u64::from(u32::MAX), what)?).map_err(|_| EffectError(what))
}

fn token(words: &mut Words<'_>) -> Result<u64, EffectError> {
    number(words, 1..=MAX_TOKEN, "token")
}

fn terms(words: &mut Words<'_>, now: Now) -> Result<Terms, EffectError> {
    Ok(Terms {
        count: small_number(words, "count")?,
        deadline_us: now.within(now.from_unix_ms(number(words, 0..=u64::MAX, "deadline")?), MAX_LEASE_MS),
        lease_ms: number(words, 1..=MAX_LEASE_MS, "lease")?,
        request: request(words.next().unwrap_or_default())?,
        session_ms: optional(words, 0..=MAX_LEASE_MS, "session")?,
        phase: match words.next() {
            None => Phase::Held,
            Some(UNCLAIMED) => Phase::Unclaimed,
            Some(KEPT) => Phase::Kept,
            Some(_) => return Err(EffectError("phase")),
        },
        note: None,
    })
}

fn request(word: &str) -> Result<Option<RequestMark>, EffectError> {
    if word == "-" {
        return Ok(None);
    }
    let (at, letter) =
        word.char_indices().find(|(_, letter)| letter.is_ascii_alphabetic()).ok_or(EffectError("request"))?;
    let (id, added) = (word.get(..at).unwrap_or_default(), word.get(at.saturating_add(1)..).unwrap_or_default());
    let verb = match letter {
        'a' => Verb::Acquire,
        'r' => Verb::Release,
        'A' => Verb::AcquireMany,
        'R' => Verb::ReleaseMany,
        'c' => Verb::Cancel,
        _ => return Err(EffectError("request")),
    };
    let id = parse_number(id, 1..=i64::MAX.unsigned_abs(), "request id")?;
    let added = match (verb.acquires(), added) {
        (true, "") => 1,
        (false, "") => 0,
        (true, added) => parse_number(added, 0..=u64::from(u32::MAX), "added count")?,
        (false, _) => return Err(EffectError("added count")),
    };
    Ok(Some(RequestMark { id, verb, added: u32::try_from(added).map_err(|_| EffectError("added count"))? }))
}
