//! Events for replicas and the append-only file: `RLOCK.APPLY key facts [owner] [note]`.
//!
//! The facts are one short line of words and numbers. So the file is readable, and the hot path
//! builds one argument instead of ten:
//!
//! ```text
//! granted <kind> <mode> <token> <terms>                                           (and the owner)
//! reentered|renewed|partly-released|session-ended|released-kept <token> <terms>
//! released|expired|forced|undone <token>
//! sized <permits>
//! unused <idle-ms> <until-unix-ms>
//! removed
//! queued <stay> <arrival> <request-id> tail|head [<grace-ms>]                     (and the owner)
//! kept <stay> <request-id> [<grace-ms>]                                           (and the owner)
//! left cancelled|timed-out|lapsed|missed                                          (and the owner)
//! cleared released|expired|forced|undone                                 (and the excluded owner)
//! queue-lapsed
//! reserved <until-unix-ms>                                                        (and the owner)
//! detached <until-unix-ms> [<at-unix-ms>]
//! ```
//!
//! Terms are `<count> <deadline-unix-ms> <lease-ms> <request> <session-ms>`, followed by
//! `unclaimed` or `kept` in these phases: see [`Phase`]. A final word `noted` means that the last
//! argument is the hold's note.
//!
//! A stay is `connected`, `polled:<until-unix-ms>` or `grace:<until-unix-ms>`.
//!
//! A request is its id followed by `a` (ACQUIRE), `r` (RELEASE), `A` (MACQUIRE) or `R` (MRELEASE).
//! `-` stands for an absent value.

mod parse;

use core::ops::Deref;

use crate::bytes::Owner;
use crate::event::{Event, Phase, Terms};
use crate::place::Stay;
use crate::request::{RequestMark, Verb};
use crate::time::Now;

pub use parse::parse_effect;

/// The invalid part of an effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EffectError(pub &'static str);

/// The longest text: a grant with the longest numbers.
const LONGEST: usize = 168;

/// The text of an effect.
#[derive(Debug)]
pub struct Facts {
    bytes: [u8; LONGEST],
    len: usize,
}

impl Default for Facts {
    fn default() -> Self {
        Self { bytes: [0; LONGEST], len: 0 }
    }
}

impl Deref for Facts {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

impl Facts {
    #[inline]
    fn push(&mut self, text: &[u8]) {
        let end = self.len.saturating_add(text.len());
        // It always fits: see `LONGEST`.
        if let Some(place) = self.bytes.get_mut(self.len..end) {
            place.copy_from_slice(text);
            self.len = end;
        }
    }
}

const UNCLAIMED: &str = "unclaimed";
const KEPT: &str = "kept";
const NOTED: &str = "noted";

/// The arguments of an effect besides the facts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Arguments<'e> {
    /// The owner, if the event names one.
    pub owner: Option<&'e [u8]>,
    /// The note of the hold, if it has one.
    pub note: Option<&'e [u8]>,
}

impl<'e> Arguments<'e> {
    /// The arguments in order.
    #[must_use]
    pub fn in_order(self) -> [Option<&'e [u8]>; 2] {
        if self.owner.is_some() { [self.owner, self.note] } else { [self.note, None] }
    }
}

/// Writes the facts of `event` into `facts` (cleared first) and returns the other arguments.
pub fn write_effect<'e>(event: &'e Event, now: Now, facts: &mut Facts) -> Arguments<'e> {
    let owner = write_facts(event, now, facts).map(Owner::as_slice);
    let note = match event {
        Event::Granted { terms, .. } | Event::Changed { terms, .. } => terms.note.as_deref(),
        _ => None,
    };
    Arguments { owner, note }
}

fn write_facts<'e>(event: &'e Event, now: Now, facts: &mut Facts) -> Option<&'e Owner> {
    facts.len = 0;
    match event {
        Event::Granted { kind, owner, mode, token, terms } => {
            facts.push(b"granted");
            push_word(facts, kind.name());
            push_word(facts, mode.name());
            push_number(facts, *token);
            push_terms(facts, terms, now);
            Some(owner)
        }
        Event::Changed { token, cause, terms } => {
            facts.push(cause.name().as_bytes());
            push_number(facts, *token);
            push_terms(facts, terms, now);
            None
        }
        Event::Ended { token, cause } => {
            facts.push(cause.name().as_bytes());
            push_number(facts, *token);
            None
        }
        Event::Sized { permits } => {
            facts.push(b"sized");
            push_number(facts, u64::from(*permits));
            None
        }
        Event::Unused { idle_ms, until_us } => {
            facts.push(b"unused");
            push_number(facts, *idle_ms);
            push_number(facts, now.to_unix_ms(*until_us));
            None
        }
        Event::Removed => {
            facts.push(b"removed");
            None
        }
        Event::Queued { owner, stay, arrival, request_id, grace_ms, at_head } => {
            facts.push(b"queued");
            push_stay(facts, *stay, now);
            push_number(facts, *arrival);
            push_optional(facts, *request_id);
            push_word(facts, if *at_head { "head" } else { "tail" });
            push_last(facts, *grace_ms);
            Some(owner)
        }
        Event::Kept { owner, stay, request_id, grace_ms } => {
            facts.push(b"kept");
            push_stay(facts, *stay, now);
            push_optional(facts, *request_id);
            push_last(facts, *grace_ms);
            Some(owner)
        }
        Event::Left { owner, cause } => {
            facts.push(b"left");
            push_word(facts, cause.name());
            Some(owner)
        }
        Event::Cleared { cause, except } => {
            facts.push(b"cleared");
            push_word(facts, cause.name());
            except.as_ref()
        }
        Event::QueueExpired => {
            facts.push(b"queue-lapsed");
            None
        }
        Event::Reserved { owner, until_us } => {
            facts.push(b"reserved");
            push_number(facts, now.to_unix_ms(*until_us));
            Some(owner)
        }
        Event::Detached { until_us, at_us } => {
            facts.push(b"detached");
            push_number(facts, now.to_unix_ms(*until_us));
            push_last(facts, at_us.map(|at_us| now.to_unix_ms(at_us)));
            None
        }
    }
}

fn push_stay(facts: &mut Facts, stay: Stay, now: Now) {
    let (word, until_us) = match stay {
        Stay::Connected => return push_word(facts, "connected"),
        Stay::Polled { until_us } => ("polled:", until_us),
        Stay::Grace { until_us } => ("grace:", until_us),
    };
    push_word(facts, word);
    facts.push(itoa::Buffer::new().format(now.to_unix_ms(until_us)).as_bytes());
}

fn push_word(facts: &mut Facts, word: &str) {
    facts.push(b" ");
    facts.push(word.as_bytes());
}

fn push_number(facts: &mut Facts, number: u64) {
    facts.push(b" ");
    facts.push(itoa::Buffer::new().format(number).as_bytes());
}

fn push_terms(facts: &mut Facts, terms: &Terms, now: Now) {
    push_number(facts, u64::from(terms.count));
    push_number(facts, now.to_unix_ms(terms.deadline_us));
    push_number(facts, terms.lease_ms);
    match terms.request {
        Some(RequestMark { id, verb, added }) => {
            push_number(facts, id);
            facts.push(match verb {
                Verb::Acquire => b"a",
                Verb::Release => b"r",
                Verb::AcquireMany => b"A",
                Verb::ReleaseMany => b"R",
                Verb::Cancel => b"c",
            });
            if verb.acquires() && added != 1 {
                facts.push(itoa::Buffer::new().format(added).as_bytes());
            }
        }
        None => push_word(facts, "-"),
    }
    push_optional(facts, terms.session_ms);
    match terms.phase {
        Phase::Held => {}
        Phase::Unclaimed => push_word(facts, UNCLAIMED),
        Phase::Kept => push_word(facts, KEPT),
    }
    if terms.note.is_some() {
        push_word(facts, NOTED);
    }
}

fn push_optional(facts: &mut Facts, number: Option<u64>) {
    match number {
        Some(number) => push_number(facts, number),
        None => push_word(facts, "-"),
    }
}

/// Writes an optional last number; an absent one takes no space.
fn push_last(facts: &mut Facts, number: Option<u64>) {
    if let Some(number) = number {
        push_number(facts, number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kind::{Kind, Mode};
    use crate::strategies;
    use alloc::vec::Vec;
    use proptest::prelude::*;

    const NOW: Now = Now { mono_us: 5_000_000, wall_us: 1_700_000_000_000_000 };

    #[test]
    fn the_text_of_a_grant() {
        let event = Event::Granted {
            kind: Kind::Mutex,
            owner: (&b"worker 1"[..]).into(),
            mode: Mode::Exclusive,
            token: 1_700_000_000_000_001,
            terms: Terms {
                count: 1,
                deadline_us: NOW.after_ms(30_000),
                lease_ms: 30_000,
                request: Some(RequestMark { id: 7, verb: Verb::Acquire, added: 1 }),
                session_ms: None,
                phase: Phase::Held,
                note: Some((&b"host 1"[..]).into()),
            },
        };
        let mut facts = Facts::default();
        let arguments = write_effect(&event, NOW, &mut facts);
        let text = "granted mutex exclusive 1700000000000001 1 1700000030000 30000 7a - noted";
        assert_eq!(str::from_utf8(&facts), Ok(text));
        assert_eq!(arguments.in_order(), [Some(&b"worker 1"[..]), Some(&b"host 1"[..])]);
    }

    /// The effects of `tests/data/0.1.0/effects.aof`, one of each sort: no claim, KEEP, note or
    /// `GRACE` of a place. Version 0.1.0 must be able to read them, because a replica may still run
    /// it.
    #[test]
    fn an_effect_without_new_fields_is_written_with_the_text_of_0_1_0() {
        const THEN: Now = Now { mono_us: 5_000_000, wall_us: 1_795_290_949_000_000 };
        for (text, owner) in [
            ("granted mutex exclusive 1795290949782901 1 1795291009783 60000 1a -", true),
            ("reentered 1795290949782901 2 1821210949784 25920000000 2a -", false),
            ("renewed 1795290949782901 2 1821210949785 25920000000 2a -", false),
            ("queued polled:1821210949790 1795290949789191 7 tail", true),
            ("left cancelled", true),
            ("reserved 1821210949801", true),
            ("granted rwlock read 1795290949812205 1 1821210949813 25920000000 - 31536000000", true),
            ("sized 7", false),
            ("partly-released 1795290949832896 2 1821210949833 25920000000 2r -", false),
            ("forced 1795290949844730", false),
            ("expired 1795290949849257", false),
            ("released 1795290949796866", false),
        ] {
            let owner = owner.then_some(&b"a"[..]);
            let event = parse_effect(text.as_bytes(), [owner, None], THEN).expect(text);
            let mut facts = Facts::default();
            let arguments = write_effect(&event, THEN, &mut facts);
            assert_eq!((str::from_utf8(&facts), arguments.owner), (Ok(text), owner));
            assert_eq!(arguments.note, None, "{text}");
        }
    }

    #[test]
    fn longest_text_fits() {
        const WIDEST: Now = Now { mono_us: 0, wall_us: u64::MAX };
        let terms = Terms {
            count: u32::MAX,
            deadline_us: u64::MAX,
            lease_ms: u64::MAX,
            request: Some(RequestMark { id: u64::MAX, verb: Verb::Acquire, added: u32::MAX }),
            session_ms: Some(u64::MAX),
            phase: Phase::Unclaimed,
            note: Some((&b"n"[..]).into()),
        };
        let (kind, mode) = (Kind::Semaphore, Mode::Exclusive);
        let granted = Event::Granted { kind, owner: (&b"o"[..]).into(), mode, token: u64::MAX, terms };
        let mut facts = Facts::default();
        write_effect(&granted, WIDEST, &mut facts);
        let text = "granted semaphore exclusive 18446744073709551615 4294967295 18446744073709552 \
                    18446744073709551615 18446744073709551615a4294967295 18446744073709551615 unclaimed noted";
        assert_eq!(str::from_utf8(&facts), Ok(text));
    }

    proptest! {
        #[test]
        fn event_round_trips_with_deadlines_in_whole_milliseconds(event in strategies::event(NOW)) {
            let mut facts = Facts::default();
            let arguments = write_effect(&event, NOW, &mut facts).in_order();
            let back = parse_effect(&facts, arguments, NOW);
            prop_assert_eq!(back.as_ref(), Ok(&event));
        }

        /// Replaces one word of an effect by a word of another event, or by anything.
        #[test]
        fn accepted_mutated_effect_round_trips(
            [event, other] in prop::array::uniform2(strategies::event(NOW)),
            [at, of_other] in any::<[prop::sample::Index; 2]>(),
            anything in any::<Option<Vec<u8>>>(),
        ) {
            let written = |event: &Event| {
                let mut facts = Facts::default();
                let arguments = write_effect(event, NOW, &mut facts).in_order();
                (facts.to_vec(), arguments.map(|argument| argument.map(<[u8]>::to_vec)))
            };
            let words = |facts: &[u8]| facts.split(|byte| *byte == b' ').map(<[u8]>::to_vec).collect::<Vec<_>>();
            let read = |facts: &[u8], arguments: &[Option<Vec<u8>>; 2]| {
                parse_effect(facts, arguments.each_ref().map(Option::as_deref), NOW)
            };
            let ((facts, arguments), (facts_of_other, _)) = (written(&event), written(&other));
            let (mut text, others) = (words(&facts), words(&facts_of_other));
            *at.get_mut(&mut text) = anything.unwrap_or_else(|| of_other.get(&others).clone());
            if let Ok(taken) = read(&text.join(&b' '), &arguments) {
                let (facts, arguments) = written(&taken);
                prop_assert_eq!(read(&facts, &arguments), Ok(taken));
            }
        }
    }

    #[test]
    fn invalid_effect_is_refused_with_its_invalid_part() {
        let cases: [(&str, &str); 16] = [
            ("", "unknown event"),
            ("granted mutex read 5 1 1 1 - -", "mode does not fit the kind"),
            ("granted mutex exclusive 0 1 1 1 - -", "token"),
            ("granted mutex exclusive 5 0 1 1 - -", "count"),
            ("granted mutex exclusive 5 1 1 0 - -", "lease"),
            ("granted mutex exclusive 5 1 1 1 0a -", "request id"),
            ("granted mutex exclusive 5 1 1 1 7 -", "request"),
            ("renewed 5 1 1 1 - x", "session"),
            ("released 5 6", "too many facts"),
            ("queued never 1 - tail", "stay"),
            ("queued polled:x 1 - tail", "stay"),
            ("queued connected 1 - middle", "end of the queue"),
            ("kept connected 0", "request id"),
            ("left home", "cause"),
            ("reserved soon", "until"),
            ("cleared away", "cause"),
        ];
        for (facts, wrong) in cases {
            assert_eq!(parse_effect(facts.as_bytes(), [Some(b"o"), None], NOW), Err(EffectError(wrong)), "{facts}");
        }
        let granted = b"granted mutex exclusive 5 1 1 1 - -";
        for owner in [None, Some(&b""[..]), Some(&[b'o'; 513][..])] {
            assert_eq!(parse_effect(granted, [owner, None], NOW), Err(EffectError("owner")));
        }
        let noted = b"granted mutex exclusive 5 1 1 1 - - noted";
        assert_eq!(parse_effect(noted, [None, None], NOW), Err(EffectError("note")));
        for note in [Some(&b""[..]), Some(&[b'n'; 257][..])] {
            assert_eq!(parse_effect(noted, [Some(b"o"), note], NOW), Err(EffectError("note")));
        }
        assert_eq!(parse_effect(granted, [Some(b"o"), Some(b"n")], NOW), Err(EffectError("too many arguments")));
        assert_eq!(parse_effect(b"released 5 noted", [Some(b"n"), None], NOW), Err(EffectError("note")));
    }
}
