//! Stories: `testdata/*.txt`, a command per step with its output. `REWRITE=1 cargo test -p
//! rlock-core` rewrites the output.

use std::collections::BTreeMap;
use std::format;
use std::string::{String, ToString};
use std::vec::Vec;

use super::keyspace::Value;
use super::world::{Output, World, key};
use crate::budget::Scarcity;
use crate::bytes::Key;
use crate::engine::Acquired;
use crate::event::{ChangeCause, Event, Phase, Terms};
use crate::keyspace::KeyId;
use crate::kind::{Kind, Mode};
use crate::limits::MayGrant;
use crate::lock::{FairQueue, Lock};
use crate::outbox::{Answer, Grant, Notice};
use crate::place::Stay;
use crate::request::{Ask, Cancel, Channel, Refusal, Release, Renew, Request, Verb};
use crate::time::US_PER_MS;

/// A test for each file of stories, and one that checks that no file is missing.
macro_rules! stories {
    ($($(#[$attribute:meta])* $name:ident)*) => {
        $(
            #[test]
            $(#[$attribute])*
            fn $name() {
                tell(concat!("testdata/", stringify!($name), ".txt"));
            }
        )*

        #[test]
        fn each_file_has_a_test() {
            let files = std::fs::read_dir("testdata").unwrap().map(|file| file.unwrap().file_name().into_string().unwrap());
            let mut files: Vec<String> = files.collect();
            files.sort();
            assert_eq!(files, [$(concat!(stringify!($name), ".txt")),*]);
        }
    };
}

stories! {
    cancel claim cut_short deadlock each fair keep kinds kinds_that_meet many may_grant mutex names notified once requests rwlock semaphore server sessions timed token tokens undone
    #[cfg_attr(miri, ignore = "thousands of holds")]
    very_many_over
    waiting
}

fn tell(path: &str) {
    datadriven::walk(path, |file| {
        let mut world = World::new();
        file.run(|case| {
            if case.directive == "new" {
                world = World::new();
                return String::new();
            }
            let mut told = String::new();
            for line in case.input.lines() {
                for answer in step(&mut world, line) {
                    told.push_str(&answer);
                    told.push('\n');
                }
            }
            told
        });
    });
}

/// The words of a command: positional ones, then `name=value`.
struct Words<'a> {
    positional: Vec<&'a str>,
    named: BTreeMap<&'a str, &'a str>,
    /// `tokens=1,2`.
    tokens: Vec<u64>,
}

impl<'a> Words<'a> {
    fn of(line: &'a str) -> Self {
        let (named, positional): (Vec<_>, Vec<_>) = line.split_whitespace().partition(|word| word.contains('='));
        let named: BTreeMap<_, _> = named.into_iter().filter_map(|word| word.split_once('=')).collect();
        let tokens = named.get("tokens").into_iter().flat_map(|tokens| tokens.split(','));
        let tokens = tokens.map(|token| token.parse().unwrap()).collect();
        Self { positional, named, tokens }
    }

    fn at(&self, index: usize) -> &'a str {
        self.positional[index]
    }

    fn number(&self, name: &str) -> Option<u64> {
        self.named.get(name).map(|value| value.parse().unwrap())
    }

    fn kind(&self) -> (Kind, Mode) {
        match self.named.get("as").copied().unwrap_or("mutex") {
            "mutex" => (Kind::Mutex, Mode::Exclusive),
            "fair" => (Kind::Fair, Mode::Exclusive),
            "read" => (Kind::RwLock, Mode::Read),
            "write" => (Kind::RwLock, Mode::Write),
            "permits" => (Kind::Semaphore, Mode::Permits),
            other => panic!("no kind {other}"),
        }
    }

    fn count(&self) -> u32 {
        self.number("n").map_or(1, |n| u32::try_from(n).unwrap())
    }
}

fn step(world: &mut World, line: &str) -> Vec<String> {
    let words = Words::of(line);
    let mut told = Vec::new();
    match words.at(0) {
        "acquire" => told.push(acquire(world, &words, Verb::Acquire)),
        "release" => told.push(release(world, &words)),
        "renew" => told.push(renew(world, &words)),
        "force" => {
            let token = words.number("token");
            let forced =
                world.on_key(&key(words.at(1)), |engine, tx| engine.force_release(tx, Some(words.kind().0), token));
            told.push(forced.map_or_else(refused, |was_held| format!("Ok({was_held})")));
        }
        "clock" => world.now.wall_us = words.at(1).parse().unwrap(),
        "bar" => {
            world.barred.insert(words.at(1).parse().unwrap());
        }
        "seen" => world.engine.raise_token(words.at(1).parse().unwrap()),
        "advance" => world.advance(words.at(1).parse().unwrap()),
        "pause" => world.pause(words.at(1).parse().unwrap()),
        "timer" => world.run_timer(),
        "refused-timer" => drop(world.end_waits()),
        "closes" => world.client_closes(words.at(1).parse().unwrap(), false),
        "quits" => world.client_closes(words.at(1).parse().unwrap(), true),
        "publish" => world.publish(true),
        "publish-to-nobody" => world.publish(false),
        "demote" => world.demote(),
        // The earlier waits have not ended yet.
        "demoted" => world.engine.demoted(),
        "gone" => world.engine.channel_gone(Channel(words.at(1).parse().unwrap())),
        "leaves" => world.waiter_left(words.at(1).parse().unwrap(), false),
        "unblocked" => world.waiter_left(words.at(1).parse().unwrap(), true),
        "cancel" | "mcancel" => {
            let (kind, _) = words.kind();
            let request = Cancel { kind, owner: words.at(2).as_bytes(), request_id: words.number("req") };
            let ended = world.on_keys(&keys(&words), |engine, tx| engine.cancel(tx, &request));
            told.push(ended.map_or_else(refused, |ended| format!("{} ended", u8::from(ended))));
        }
        "promote" => world.engine.promoted(),
        // All grants, or those of one waiter.
        "sent" => {
            let sent = words.positional.get(1).map(|number| world.ticket(number.parse().unwrap()));
            world.engine.confirm_grants(|ticket| sent.is_none_or(|sent| sent == Some(ticket)));
        }
        "del" => {
            world.unlink(&key(words.at(1)));
        }
        "set" => world.arrive(&key(words.at(1)), Value::Foreign),
        "rename" => {
            let value = world.unlink(&key(words.at(1))).unwrap();
            world.arrive(&key(words.at(2)), value);
        }
        "copy" => {
            let lock = world.lock(&key(words.at(1))).unwrap().clone();
            world.arrive(&key(words.at(2)), Value::Lock(lock));
        }
        "init" => {
            let made = world
                .on_key(&key(words.at(1)), |engine, tx| engine.init_semaphore(tx, words.count(), words.number("idle")));
            told.push(made.map_or_else(refused, |made| format!("{made}")));
        }
        "resize" => {
            let free = world.on_key(&key(words.at(1)), |engine, tx| engine.resize_semaphore(tx, words.count()));
            told.push(free.map_or_else(refused, |free| format!("{free} free")));
        }
        "drain" => {
            let request = request(world, &Words::of(&format!("{line} as=permits")), Verb::Acquire);
            let owner = words.at(2).as_bytes();
            let taken = world.on_key(&key(words.at(1)), |engine, tx| engine.drain_semaphore(tx, owner, &request));
            told.push(taken.map_or_else(refused, |taken| format!("{taken} taken")));
        }
        "macquire" => told.push(acquire(world, &words, Verb::AcquireMany)),
        "mrelease" => {
            let request = Release { verb: Verb::ReleaseMany, ..release_request(&words) };
            let left = world.on_keys(&keys(&words), |engine, tx| engine.release(tx, &request));
            told.push(left.map_or_else(refused_of, |left| format!("left {}", in_key_order(&left))));
        }
        "mrenew" => {
            let request = renew_request(world, &words);
            let left_ms = world.on_keys(&keys(&words), |engine, tx| engine.renew(tx, &request));
            told.push(left_ms.map_or_else(refused_of, |left_ms| {
                if request.is_each {
                    format!("{} ms", in_key_order(&left_ms))
                } else {
                    format!("{} ms", left_ms.iter().flatten().min().unwrap())
                }
            }));
        }
        "many" => {
            for number in 0..words.at(2).parse::<u32>().unwrap() {
                let line = format!("{line} ").replace(words.at(2), &format!("holder-{number}"));
                acquire(world, &Words::of(&line), Verb::Acquire);
            }
            world.outputs.clear();
        }
        "preset" => preset_count(world, &words),
        "flush" => world.flush(),
        "flushdb" => world.flush_db(0),
        // A key that another node of the cluster serves, or no node.
        "postpone" => world.engine.postpone(key(words.at(1)).into(), world.now),
        // The waiter received another answer than its grant.
        "untold" => {
            let ticket = world.ticket(words.at(1).parse().unwrap()).unwrap();
            world.engine.undo_grants(ticket);
        }
        "swap" => world.swap(),
        "told" => {
            let ticket = world.ticket(words.at(1).parse().unwrap()).unwrap();
            told.push(if world.engine.may_tell(ticket) { "its holds exist" } else { "a hold has ended" }.to_string());
        }
        // The server may not grant: `may-not-grant no-replicas`, or 500 ms of a quarantine with
        // `may-not-grant 500`.
        "may-not-grant" => {
            world.limits.may_grant = match words.at(1) {
                "no-replicas" => MayGrant::NoReplicas,
                left_ms => MayGrant::Quarantine { left_ms: left_ms.parse().unwrap() },
            }
        }
        "may-grant" => {
            world.limits.may_grant = MayGrant::Yes;
            world.engine.grants_resumed(world.now);
        }
        "max-lease" => world.limits.max_lease_ms = words.at(1).parse().unwrap(),
        // From here on each turn makes one change, and leaves the rest to later turns.
        "scarce" => {
            let (search_steps, parts, bindings) = (100, 1, 1);
            world.engine.budget.make_scarce(Scarcity { own: 0, shared: 1, search_steps, parts, bindings });
        }
        "show" => told.extend(show(world, words.at(1))),
        other => panic!("no command {other}"),
    }
    let mut ends = 0;
    for (at_us, output) in std::mem::take(&mut world.outputs) {
        // Prints many ends as a number.
        let is_end = matches!(output, Output::Effect { event: Event::Ended { .. }, .. });
        ends = if is_end { ends + 1 } else { 0 };
        match ends {
            0..=SHOWN_ENDS => told.push(describe(world, at_us, &output)),
            _ => {
                if ends > SHOWN_ENDS + 1 {
                    told.pop();
                }
                told.push(format!("  and {} more", ends - SHOWN_ENDS));
            }
        }
    }
    told
}

const SHOWN_ENDS: usize = 9;

/// The keys of a request for several: `a,b,c`.
fn keys(words: &Words<'_>) -> Vec<Key> {
    words.at(1).split(',').map(key).collect()
}

fn in_key_order<T: std::fmt::Display>(of_keys: &[Option<T>]) -> String {
    let of_keys: Vec<String> = of_keys.iter().map(|one| one.as_ref().map_or("nil".into(), T::to_string)).collect();
    format!("[{}]", of_keys.join(", "))
}

fn request(world: &mut World, words: &Words<'_>, verb: Verb) -> Request {
    let now = world.now;
    let (kind, mode) = words.kind();
    world.client = words.number("client");
    Request {
        verb,
        kind,
        mode,
        count: words.count(),
        lease_ms: words.number("px").unwrap_or(1000),
        request_id: words.number("req"),
        session_ms: words.number("session"),
        claim_ms: words.number("claim"),
        grace_ms: words.number("grace"),
        is_once: words.positional.contains(&"once"),
        is_timed: words.positional.contains(&"timed"),
        notify: words.number("notify").map(|channel| Channel(u32::try_from(channel).unwrap().try_into().unwrap())),
        ask: match (words.number("block"), words.number("queue")) {
            (Some(block_ms), _) => Ask::Wait { until_us: (block_ms != 0).then(|| now.after_ms(block_ms)) },
            (None, Some(life_ms)) => Ask::Queue { life_ms },
            (None, None) => Ask::Try,
        },
    }
}

fn acquire(world: &mut World, words: &Words<'_>, verb: Verb) -> String {
    let request = request(world, words, verb);
    let owner = words.at(2).as_bytes();
    let acquired = world.on_keys(&keys(words), |engine, tx| engine.acquire(tx, owner, &request));
    match acquired {
        Ok(Acquired::Granted(grant)) => describe_grant(&grant),
        Ok(Acquired::Denied) => "nil".to_string(),
        Ok(Acquired::Waiting(ticket)) => format!("waits as {}", world.expect_answer(ticket)),
        Err(refusal) => refused(refusal),
    }
}

fn release_request<'a>(words: &'a Words<'a>) -> Release<'a> {
    let (kind, mode) = words.kind();
    let (owner, request_id) = (words.at(2).as_bytes(), words.number("req"));
    Release {
        verb: Verb::Release,
        kind,
        owner,
        mode,
        count: words.count(),
        request_id,
        tokens: &words.tokens,
        keep_ms: words.number("keep"),
        is_each: words.positional.contains(&"each"),
    }
}

fn release(world: &mut World, words: &Words<'_>) -> String {
    let request = release_request(words);
    let left = world.on_key(&key(words.at(1)), |engine, tx| engine.release(tx, &request));
    left.map_or_else(refused, |left| format!("left {}", left[0].unwrap()))
}

fn renew_request<'a>(world: &mut World, words: &'a Words<'a>) -> Renew<'a> {
    let (kind, mode) = words.kind();
    world.client = words.number("client");
    let is_each = words.positional.contains(&"each");
    Renew { kind, owner: words.at(2).as_bytes(), mode, lease_ms: words.number("px"), tokens: &words.tokens, is_each }
}

fn renew(world: &mut World, words: &Words<'_>) -> String {
    let request = renew_request(world, words);
    let left_ms = world.on_key(&key(words.at(1)), |engine, tx| engine.renew(tx, &request));
    left_ms.map_or_else(refused, |left_ms| format!("{} ms", left_ms[0].unwrap()))
}

/// The key of a command for many keys that an error refers to.
fn refused_of(refusal: Refusal) -> String {
    match refusal {
        Refusal::NotOwner { position } => format!("error NotOwnerOf {{ position: {position} }}"),
        refusal => refused(refusal),
    }
}

fn refused(refusal: Refusal) -> String {
    match refusal {
        Refusal::NotOwner { .. } => return "error NotOwner".to_string(),
        Refusal::WrongType { .. } => return "error WrongType".to_string(),
        _ => {}
    }
    let Refusal::Deadlock(cycle) = &refusal else {
        return format!("error {refusal:?}");
    };
    let edges: Vec<String> = cycle
        .iter()
        .map(|edge| {
            let name = String::from_utf8_lossy(edge.key.name.as_slice()).into_owned();
            let how = if edge.is_held { "held by" } else { "behind" };
            format!("{:?} waits for {name} {how} {:?}", edge.waiter, edge.ahead)
        })
        .collect();
    format!("deadlock: {}", edges.join(", "))
}

/// Sets the count of the hold under a key, for counts that no test can reach one by one.
fn preset_count(world: &mut World, words: &Words<'_>) {
    let hold = world.lock(&key(words.at(1))).unwrap().holds().first().unwrap().clone();
    let event = Event::Changed {
        token: hold.token(),
        cause: ChangeCause::Reentered,
        terms: Terms { count: words.count(), ..hold.terms() },
    };
    world.on_key(&key(words.at(1)), |engine, tx| {
        engine.apply_effect(tx.keys, KeyId(0), &event).unwrap();
        tx.out.effect(KeyId(0), &event, false);
    });
    world.outputs.clear();
}

fn show(world: &World, name: &str) -> Vec<String> {
    let mut lines = Vec::new();
    match world.lock(&key(name)) {
        None => lines.push("no lock".to_string()),
        Some(lock) => lines.extend(lock.holds().iter().map(|hold| {
            format!(
                "{} {} {} x{} token {} for {} ms",
                String::from_utf8_lossy(hold.owner().as_slice()),
                match hold.phase() {
                    Phase::Held => "holds",
                    Phase::Unclaimed => "has not claimed",
                    Phase::Kept => "keeps closed",
                },
                hold.mode().name(),
                hold.count(),
                hold.token(),
                hold.lease_left_ms(world.now)
            )
        })),
    }
    for place in world.lock(&key(name)).and_then(Lock::queue).into_iter().flat_map(FairQueue::iter) {
        lines.push(format!("{} has a place, {}", String::from_utf8_lossy(place.owner), stays(place.stay)));
    }
    for waiter in world.engine.waiters(key(name).borrow(), world.now) {
        let owner = String::from_utf8_lossy(waiter.owner);
        lines.push(format!("{owner} has waited {} ms", waiter.waited_ms));
    }
    lines
}

fn describe(world: &World, now_us: u64, output: &Output) -> String {
    match output {
        Output::Answer { ticket, answer, notice } => {
            let ticket = world.number_of(*ticket);
            match notice {
                None => format!("  {ticket} <- {}", describe_answer(answer)),
                Some(Notice { channel, id, client, .. }) => {
                    let answer = describe_answer(answer);
                    format!("  {ticket} <- channel {} of client {client}: id {id} {answer}", channel.0)
                }
            }
        }
        Output::Effect { key, event } => describe_event(now_us, &String::from_utf8_lossy(key.name.as_slice()), event),
    }
}

fn describe_grant(Grant { tokens, is_many, belief }: &Grant) -> String {
    let tokens = if *is_many { format!("{tokens:?}") } else { tokens[0].to_string() };
    belief.map_or_else(|| format!("granted {tokens}"), |belief| format!("granted {tokens} for {} ms", belief.ms()))
}

fn describe_answer(answer: &Answer) -> String {
    match answer {
        Answer::Granted(grant) => describe_grant(grant),
        Answer::TimedOut => "nil".to_string(),
        Answer::Cancelled => "cancelled".to_string(),
        Answer::Superseded => "superseded".to_string(),
        Answer::Continued => "continued".to_string(),
        Answer::Closed => "closed".to_string(),
        Answer::Ended => "lapsed".to_string(),
        Answer::Demoted => "demoted".to_string(),
        Answer::Moved => "moved".to_string(),
        Answer::Refused(refusal) => refused(refusal.clone()),
    }
}

fn describe_event(now_us: u64, name: &str, event: &Event) -> String {
    let at_ms = |deadline_us: u64| deadline_us / US_PER_MS;
    match event {
        Event::Granted { owner, token, terms, .. } => {
            format!("  {name}: granted {owner:?} token {token} until {}", at_ms(terms.deadline_us))
        }
        Event::Changed { token, cause, terms } => {
            format!("  {name}: {cause:?} token {token} x{} until {}", terms.count, at_ms(terms.deadline_us))
        }
        Event::Ended { token, cause } => {
            let at = at_ms(now_us);
            format!("  {name}: {cause:?} token {token} at {at}")
        }
        Event::Cleared { cause, except } => {
            let at = at_ms(now_us);
            let but = except.as_ref().map(|owner| format!(" but those of {owner:?}")).unwrap_or_default();
            format!("  {name}: {cause:?} all holds{but} at {at}")
        }
        Event::Sized { permits } => format!("  {name}: sized {permits}"),
        Event::Unused { idle_ms: 0, .. } => format!("  {name}: no idle time"),
        Event::Unused { until_us, .. } => format!("  {name}: unused until {}", at_ms(*until_us)),
        Event::Removed => format!("  {name}: removed at {}", at_ms(now_us)),
        Event::Queued { owner, stay, at_head, .. } => {
            format!("  {name}: queued {owner:?} {}{}", stays(*stay), if *at_head { ", at the head" } else { "" })
        }
        Event::Kept { owner, stay, .. } => format!("  {name}: kept {owner:?} {}", stays(*stay)),
        Event::Left { owner, cause } => {
            format!("  {name}: left {owner:?} {cause:?} at {}", at_ms(now_us))
        }
        Event::QueueExpired => format!("  {name}: every place is over"),
        Event::Reserved { owner, until_us } => format!("  {name}: turn of {owner:?} until {}", at_ms(*until_us)),
        Event::Detached { until_us, .. } => format!("  {name}: all detached until {}", at_ms(*until_us)),
    }
}

fn stays(stay: Stay) -> String {
    match stay {
        Stay::Connected => "connected".to_string(),
        Stay::Polled { until_us } => format!("polled until {}", until_us / US_PER_MS),
        Stay::Grace { until_us } => format!("kept until {}", until_us / US_PER_MS),
    }
}
