//! Requests for many keys. While such a request waits for a key that is held, other requests wait
//! behind it for keys that are free.

use std::collections::{HashMap, HashSet};

use super::owner::{Circumstances, Owner};
use super::{Possible, Timeline};
use crate::history::{Call, Operation};

/// Spans of time on each key, sorted and disjoint.
type Spans = HashMap<u32, Vec<Possible>>;

/// A request for many keys.
struct Asked {
    span: Possible,
    keys: Vec<u32>,
}

/// When each key counts as held because a request at the head of its queue waited for another key,
/// which may have been held then, or itself counted as held. The operations are sorted by key.
pub(super) fn excuses(operations: &[Operation], of_many: &HashSet<u64>, circumstances: Circumstances<'_>) -> Spans {
    let asked = requests_for_many(operations, of_many);
    let their_keys: HashSet<u32> = asked.iter().flat_map(|one| one.keys.iter().copied()).collect();
    let mut held: Spans = operations
        .chunk_by(|a, b| a.key == b.key)
        .filter_map(|of_key| Some((of_key.first()?.key, of_key)))
        .filter(|(key, _)| their_keys.contains(key))
        .map(|(key, of_key)| (key, merged(possibly_held(of_key, circumstances))))
        .collect();
    let mut excused = Spans::new();
    loop {
        let mut found = Spans::new();
        for Asked { span, keys } in &asked {
            for key in keys {
                let others = keys.iter().filter(|other| *other != key).filter_map(|other| held.get(other));
                found.entry(*key).or_default().extend(others.flat_map(|spans| within(spans, *span)));
            }
        }
        let mut has_grown = false;
        for (key, spans) in found {
            let before = held.entry(key).or_default();
            let after = merged([before.as_slice(), spans.as_slice()].concat());
            has_grown |= after != *before;
            *before = after;
            excused.insert(key, spans);
        }
        if !has_grown {
            return excused;
        }
    }
}

/// The parts of one request have the same owner and were sent at the same time.
fn requests_for_many(operations: &[Operation], of_many: &HashSet<u64>) -> Vec<Asked> {
    let mut asked: HashMap<(u64, u64), Asked> = HashMap::new();
    let is_asked = |one: &&Operation| of_many.contains(&one.owner) && matches!(one.call, Call::Acquire { .. });
    for one in operations.iter().filter(is_asked) {
        let span = Possible { from_us: one.sent_us, until_us: one.answered_us };
        asked.entry((one.owner, one.sent_us)).or_insert(Asked { span, keys: Vec::new() }).keys.push(one.key);
    }
    asked.into_values().filter(|one| one.keys.len() > 1).collect()
}

/// When a key may have been held. Violations are ignored here.
fn possibly_held(of_key: &[Operation], circumstances: Circumstances<'_>) -> Vec<Possible> {
    let (mut timeline, mut unsaid) = (Timeline::default(), Vec::new());
    for of_owner in of_key.chunk_by(|a, b| a.owner == b.owner) {
        let mut owner = Owner::new(of_owner, false, circumstances);
        of_owner.iter().for_each(|one| owner.take(one, &mut timeline, &mut unsaid));
        owner.end(of_owner, &mut timeline);
    }
    timeline.possible
}

fn merged(mut spans: Vec<Possible>) -> Vec<Possible> {
    spans.sort_unstable_by_key(|span| span.from_us);
    let mut apart: Vec<Possible> = Vec::new();
    for span in spans {
        match apart.last_mut().filter(|last| span.from_us <= last.until_us) {
            Some(last) => last.until_us = last.until_us.max(span.until_us),
            None => apart.push(span),
        }
    }
    apart
}

/// The parts of the spans that lie within `whole`.
fn within(spans: &[Possible], whole: Possible) -> impl Iterator<Item = Possible> {
    let first = spans.partition_point(|span| span.until_us <= whole.from_us);
    let inside = spans.get(first..).unwrap_or_default().iter().take_while(move |span| span.from_us < whole.until_us);
    inside.map(move |span| Possible {
        from_us: span.from_us.max(whole.from_us),
        until_us: span.until_us.min(whole.until_us),
    })
}
