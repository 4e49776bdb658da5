//! Fair locks: the order of a long queue, and how much waiters that never return delay the others.

use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};

use crate::support::{Client, Command, Events, Reply, Server, Stopwatch, eventually, seed};

const SOON: Duration = Duration::from_secs(5);
const WAITERS: usize = 1000;

/// Upper bound for the overhead of commands and timers in a measured time.
const NOISE_MS: u64 = 700;

fn start_with_grace_ms(grace_ms: u64) -> Server {
    Server::with(&[&format!("rlock.fair-grace-ms {grace_ms}")])
}

fn soon_after_ms(ms: u64) -> Range<u64> {
    ms..ms + NOISE_MS
}

/// A connection that waits for `job`. If it is closed right after its grant, `SESSION 0` ends the
/// hold.
#[track_caller]
fn waiter(server: &Server, owner: &str) -> Client {
    server.blocked_waiter(format!("RFAIRLOCK.ACQUIRE job {owner} PX 60000 SESSION 0 BLOCK 0"))
}

#[test]
fn one_thousand_waiters_are_served_in_order_of_arrival() {
    let server = Server::start();
    let mut client = server.client();
    let mut tokens = vec![client.acquire_fair("job first PX 60000")];
    let mut waiters: Vec<_> = (0..WAITERS)
        .map(|number| {
            let mut waiter = waiter(&server, &format!("w{number}"));
            // The server reads this as soon as the wait ends, so the lock passes down the queue
            // without the test.
            waiter.send(format!("RFAIRLOCK.RELEASE job w{number}"));
            waiter
        })
        .collect();
    assert_eq!(client.call("RFAIRLOCK.RELEASE job first"), 0);
    for waiter in &mut waiters {
        tokens.push(waiter.reply().int());
        assert_eq!(waiter.reply(), 0);
    }
    assert_eq!(tokens.windows(2).filter(|pair| pair[0] >= pair[1]).count(), 0, "inversions in {tokens:?}");
    assert_eq!(client.call("EXISTS job"), 0);
}

/// Ways to leave a queue. The first two leave a place behind.
const WAYS: [Leave; 4] = [
    |_, _, leaver| drop(leaver),
    |client, _, leaver| assert_eq!(client.call(format!("CLIENT KILL ID {}", leaver.id())), 1),
    |client, owner, mut leaver| {
        assert_eq!(client.call(format!("RFAIRLOCK.CANCEL job {owner}")), 1);
        leaver.reply().expect_error("UNBLOCKED");
    },
    |client, owner, mut leaver| {
        assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE job {owner} BLOCK 1")), Reply::Nil);
        leaver.reply().expect_error("SUPERSEDED");
    },
];

type Leave = fn(&mut Client, &str, Client);

#[test]
fn leaving_waiters_do_not_change_the_order_of_the_others() {
    let grace_ms = 200;
    let mut random = StdRng::seed_from_u64(seed());
    let server = start_with_grace_ms(grace_ms);
    let mut client = server.client();
    let mut last = client.acquire_fair("job first PX 60000");
    // Keeps the holder's connection open, because closing it ends the hold.
    let mut holder = ("first".to_owned(), server.client());
    let mut waiting: VecDeque<_> = (0..WAITERS)
        .map(|number| {
            let owner = format!("w{number}");
            let waiter = waiter(&server, &owner);
            (owner, waiter)
        })
        .collect();

    let (mut served, mut left) = (0, 0);
    while let Some((owner, mut waiter)) = waiting.pop_front() {
        let watch = Stopwatch::start();
        assert_eq!(client.call(format!("RFAIRLOCK.RELEASE job {}", holder.0)), 0);
        let token = waiter.reply().int();
        // The dead waiters died before this release. So even several in a row are skipped within
        // one grace.
        watch.assert_took_ms(0..grace_ms + NOISE_MS, "a wait behind dead waiters");
        assert!(token > last, "tokens rise in the order of the holds");
        (holder, last) = ((owner, waiter), token);
        served += 1;
        // The ratio 3 to 7 makes 300 of 1000 waiters leave.
        while left * 7 < served * 3 && !waiting.is_empty() {
            let at = random.random_range(0..waiting.len());
            let (owner, leaver) = waiting.remove(at).expect("a waiter");
            WAYS[random.random_range(0..WAYS.len())](&mut client, &owner, leaver);
            left += 1;
        }
    }
    assert_eq!((served, left), (700, 300));
    assert_eq!(client.call(format!("RFAIRLOCK.RELEASE job {}", holder.0)), 0);
    eventually(SOON, || client.call("EXISTS job") == 0);
    assert_eq!(client.info_number("rlock_waiting"), 0);
}

#[test]
fn dead_waiters_after_their_grace_cause_no_delay() {
    let server = start_with_grace_ms(300);
    let mut client = server.client();
    client.acquire_fair("job first PX 60000");
    let (mut living, mut dead) = (Vec::new(), Vec::new());
    for number in 0..100 {
        let waiter = waiter(&server, &format!("w{number}"));
        if number % 10 == 9 { living.push((format!("w{number}"), waiter)) } else { dead.push(waiter) }
    }
    drop(dead);
    eventually(SOON, || client.places("job").len() == living.len());

    let mut holder = "first";
    for (owner, waiter) in &mut living {
        // No time is measured: the step that frees the lock also grants it.
        let release = format!("RFAIRLOCK.RELEASE job {holder}").into();
        let holds = format!("RFAIRLOCK.HOLDS job {owner}").into();
        assert_eq!(client.call_in_one_step(&[release, holds]), [Reply::Int(0), Reply::Int(1)]);
        waiter.reply().int();
        holder = owner;
    }
}

#[test]
fn timed_waiters_that_died_together_delay_by_one_grace() {
    let grace_ms = 500;
    let server = start_with_grace_ms(grace_ms);
    let mut client = server.client();
    client.acquire_fair("job first PX 60000");
    let dead: Vec<_> = (0..50).map(|number| waiter(&server, &format!("w{number}"))).collect();
    let mut next = waiter(&server, "next");
    let watch = Stopwatch::start();
    drop(dead);
    eventually(SOON, || client.places("job").iter().filter(|place| place.ends_with("detached")).count() == 50);
    assert_eq!(client.call("RFAIRLOCK.RELEASE job first"), 0);
    next.reply().int();
    watch.assert_took_ms(soon_after_ms(grace_ms), "one grace for all");
}

#[test]
fn timed_each_poller_that_never_returns_delays_by_its_grace() {
    let grace_ms = 300;
    let server = start_with_grace_ms(grace_ms);
    let mut client = server.client();
    client.acquire_fair("job first PX 60000");
    for owner in ["p", "q", "r"] {
        assert_eq!(client.call(format!("RFAIRLOCK.ACQUIRE job {owner} QUEUE 60000")), Reply::Nil);
    }
    let mut next = waiter(&server, "next");
    let mut events = Events::subscribe(&server);
    let watch = Stopwatch::start();
    assert_eq!(client.call("RFAIRLOCK.RELEASE job first"), 0);
    next.reply().int();
    watch.assert_took_ms(soon_after_ms(grace_ms * 3), "three graces");
    let turn = "rlock.turn job";
    assert_eq!(events.so_far(), ["rlock.release job", turn, turn, turn, "rlock.acquire job"]);
}

#[test]
fn timed_poller_whose_place_expires_in_its_turn_delays_only_until_then() {
    let server = start_with_grace_ms(60_000);
    let mut client = server.client();
    client.acquire_fair("job first PX 60000");
    let watch = Stopwatch::start();
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job p QUEUE 300"), Reply::Nil);
    let mut next = waiter(&server, "next");
    assert_eq!(client.call("RFAIRLOCK.RELEASE job first"), 0);
    next.reply().int();
    watch.assert_took_ms(soon_after_ms(300), "the QUEUE time of the place");
}

#[test]
fn polling_and_blocking_owners_are_served_in_one_order() {
    let mut random = StdRng::seed_from_u64(seed());
    let server = Server::start();
    let mut client = server.client();
    let mut last = client.acquire_fair("job first PX 60000");
    let mut polls = [true, false].repeat(100);
    polls.shuffle(&mut random);
    let mut queue: Vec<_> = (0..)
        .zip(polls)
        .map(|(number, polls)| {
            let owner = format!("w{number}");
            if polls {
                let queue = format!("RFAIRLOCK.ACQUIRE job {owner} PX 60000 QUEUE 60000");
                assert_eq!(client.call(queue), Reply::Nil);
            }
            let connection = (!polls).then(|| waiter(&server, &owner));
            (owner, connection)
        })
        .collect();

    let mut events = Events::subscribe(&server);
    let mut holder = "first";
    for (owner, connection) in &mut queue {
        assert_eq!(client.call(format!("RFAIRLOCK.RELEASE job {holder}")), 0);
        assert_eq!(events.next(), "rlock.release job");
        let token = match connection {
            Some(connection) => connection.reply().int(),
            None => {
                assert_eq!(events.next(), "rlock.turn job");
                let whose = client.call("RFAIRLOCK.WAITERS job COUNT 1");
                assert_eq!(whose.array().len(), 1);
                assert_eq!(whose.array()[0].field("owner"), owner.as_str());
                client.acquire_fair(&format!("job {owner} PX 60000"))
            }
        };
        assert_eq!(events.next(), "rlock.acquire job");
        assert!(token > last, "tokens rise in the order of the holds");
        (holder, last) = (owner, token);
    }
    assert_eq!(client.places("job"), [""; 0]);
}

#[test]
fn newcomer_does_not_pass_the_owner_whose_turn_it_is() {
    let server = Server::start();
    let mut client = server.client();
    for behind in ["RFAIRLOCK.ACQUIRE job c", "RFAIRLOCK.ACQUIRE job c QUEUE 60000"] {
        client.acquire_fair("job a PX 60000");
        assert_eq!(client.call("RFAIRLOCK.ACQUIRE job b QUEUE 60000"), Reply::Nil);
        let step = ["RFAIRLOCK.RELEASE job a", behind, "RFAIRLOCK.PTTL job"].map(Command::from);
        assert_eq!(client.call_in_one_step(&step), [Reply::Int(0), Reply::Nil, Reply::Int(-2)]);
        assert_eq!(client.places("job")[0], "b detached");
        client.acquire_fair("job b PX 60000");
        client.call("DEL job");
    }
}
