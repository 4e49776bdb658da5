//! An owner acquires again before the settlement of its earlier acquisition has arrived.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::scenarios;
use super::waiting::is_cancelled;
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, us};
use crate::proxy::{Fate, Proxy, is, option, owner, settles};
use crate::world::{Acquiring, Client, Hold, Outcome, PATIENCE, World, ms, pause};

scenarios! {
    short "settle-then-acquire", "B3 B4 B11", [], settle_then_acquire;
    short "settle-then-acquire-two-clients", "B3 B4 B11", [], two_clients;
    short "settle-then-acquire-semaphore", "B3 B4 B11", [], semaphore;
    short "settle-then-acquire-superseded", "B4 B11", [], superseded;
    short "settle-then-acquire-lost-reply", "B3 B4 B11", [], lost_reply;
    short "settle-then-acquire-refused", "B3 B4 B11", [], refused;
}

const KINDS: [(&str, &str); 4] = [("mutex", "m"), ("fair", "f"), ("write", "w"), ("many", "a b")];

const READONLY: &str = "READONLY You can't write against a read only replica.";

fn numbered(keys: &str, number: usize) -> String {
    keys.split(' ').map(|key| format!("{key}{number}")).collect::<Vec<_>>().join(" ")
}

fn of(owner: &str) -> Value {
    json!({"owner": owner, "wait_ms": 10_000, "lease_ms": 20_000})
}

/// A client that has its connections.
async fn ready(w: &World, url: &str) -> Result<Client, Broken> {
    let c = w.client(url).await?;
    c.acquire("mutex", "ready", json!({"wait_ms": 20_000})).await?.release().await?;
    Ok(c)
}

/// Waits until it is so, or this number of milliseconds has passed.
async fn until(within_ms: i64, is_so: impl Fn() -> bool) {
    let deadline = now_us() + us(within_ms);
    while now_us() < deadline && !is_so() {
        pause(2).await;
    }
}

/// Fails unless each of these owners sends a request.
async fn until_asked(proxy: &Proxy, owners: &[String]) -> Result<(), Broken> {
    until(10_000, || fewest(proxy, owners) > 0).await;
    ensure!(fewest(proxy, owners) > 0, "B4", "no request with REQ of each of {owners:?} within 10 s");
    Ok(())
}

/// How many requests with different ids each of these owners has sent, at least.
fn fewest(proxy: &Proxy, owners: &[String]) -> usize {
    let asked = proxy.seen_of("ACQUIRE");
    let ids = |name: &String| {
        let own = asked.iter().filter(|seen| seen.owner() == Some(name));
        own.filter_map(|seen| seen.option("REQ")).collect::<std::collections::HashSet<_>>().len()
    };
    owners.iter().map(ids).min().unwrap_or(0)
}

/// Fails unless the later hold of the owner still stands. Its release leaves no second hold behind.
async fn stands(w: &World, kind: &str, hold: &Hold, other: &Client) -> Result<(), Broken> {
    let keys = hold.keys.join(" ");
    for (key, token) in hold.keys.iter().zip(&hold.tokens) {
        let left = w.server.lease_left(key, *token).await?;
        ensure!(left > 0, "B4 B11", "{kind} {key:?}: the settlement of an earlier acquisition has ended the hold");
    }
    hold.is_held("B11", "an earlier acquisition of its owner was settled").await?;
    other.is_refused(kind, &keys, json!({"wait_ms": 0})).await?;
    hold.release().await?;
    // A hold that was left behind would stay for its lease.
    match other.outcome(kind, &keys, json!({"wait_ms": 1500})).await? {
        Outcome::Acquired(next) => next.release().await,
        outcome => Err(Broken::new("B3 B11", format!("{kind} {keys:?} is held after its release: {outcome}"))),
    }
}

/// The first acquisition is cancelled at several of its steps, on a slow network. The second one begins after
/// that, or before.
async fn settle_then_acquire(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (c, other) = (ready(w, &proxy.url()).await?, w.client(&w.server.url()).await?);
    for begins_before in [false, true] {
        proxy.delay(60);
        let flow = async |(kind, keys): (&'static str, &str), after| {
            let owner = format!("{kind}-{begins_before}");
            let begin = || c.begin(kind, keys, of(&owner));
            let first = begin();
            pause(after).await;
            let before = begins_before.then(begin);
            let outcome = first.cancelled().await?;
            let second = before.unwrap_or_else(begin).acquired(PATIENCE).await?;
            Ok(alone(kind, outcome, second).await)
        };
        let [one, two, three, four] = KINDS;
        let holds = tokio::try_join!(flow(one, 0), flow(two, 20), flow(three, 50), flow(four, 80))?;
        pause(200).await;
        proxy.delay(0);
        let what = format!("begins before the cancellation: {begins_before}");
        all_stand(w, holds.into(), &other).await.during(&what)?;
    }
    w.server.is_clean(ms(3000)).await
}

/// The second hold; none if the machine was too busy, so that both acquisitions were granted and share a hold.
async fn alone(kind: &'static str, first: Outcome, second: Hold) -> Option<(&'static str, Hold)> {
    let Outcome::Acquired(first) = first else { return Some((kind, second)) };
    first.release().await.ok();
    second.release().await.ok();
    None
}

async fn all_stand(w: &World, holds: [Option<(&str, Hold)>; 4], other: &Client) -> Result<(), Broken> {
    for (kind, hold) in holds.iter().flatten() {
        stands(w, kind, hold, other).await?;
    }
    Ok(())
}

/// Two clients of a process have the same owner. The request of the first one arrives late, or its reply does.
async fn two_clients(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (slow, quick) = (ready(w, &proxy.url()).await?, w.client(&w.server.url()).await?);
    let other = w.client(&w.server.url()).await?;
    for fate in [Fate::Late(300), Fate::LateReply(300)] {
        let what = format!("{fate:?}");
        let is_reply = matches!(fate, Fate::LateReply(_));
        proxy.forget();
        proxy.on_command(move |words| if is(words, "ACQUIRE") { fate.clone() } else { Fate::Pass });
        let flow = async |(kind, keys): (&'static str, &str)| {
            let owner = format!("{what}-{kind}");
            let first = slow.begin(kind, keys, of(&owner));
            until_asked(&proxy, std::slice::from_ref(&owner)).await?;
            let deadline = now_us() + us(10_000);
            while is_reply && w.server.field(&keys[..1], "holders-count").await? == 0 && now_us() < deadline {
                pause(2).await;
            }
            let second = quick.acquire(kind, keys, of(&owner)).await?;
            Ok::<_, Broken>(alone(kind, first.cancelled().await?, second).await)
        };
        let [one, two, three, four] = KINDS;
        let holds = tokio::try_join!(flow(one), flow(two), flow(three), flow(four))?;
        until(1500, || proxy.settled().len() == KINDS.len()).await;
        pause(400).await;
        all_stand(w, holds.into(), &other).await.during(&what)?;
    }
    w.server.is_clean(ms(3000)).await
}

/// As with two clients, with permits. A client may give each acquisition an owner of its own.
async fn semaphore(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (slow, quick) = (ready(w, &proxy.url()).await?, w.client(&w.server.url()).await?);
    quick.init("s", 2).await?;
    proxy.on_command(|words| if is(words, "ACQUIRE") { Fate::LateReply(300) } else { Fate::Pass });
    let first = slow.begin("semaphore", "s", of("alice"));
    let deadline = now_us() + us(10_000);
    while w.server.field("s", "holders-count").await? == 0 {
        ensure!(now_us() < deadline, "B5", "no permit was acquired within 10 s");
        pause(2).await;
    }
    let second = quick.acquire("semaphore", "s", of("alice")).await?;
    let Some((_, second)) = alone("semaphore", first.cancelled().await?, second).await else { return Ok(()) };
    until(1500, || !proxy.settled().is_empty()).await;
    pause(400).await;
    let left = w.server.lease_left("s", second.token()).await?;
    ensure!(left > 0, "B4 B11", "the settlement of an earlier acquisition has ended the hold of a permit");
    second.is_held("B11", "an earlier acquisition of its owner was settled").await?;
    second.release().await?;
    w.server.is_clean(ms(1500)).await
}

/// The second request of the owner takes over the place of the first one, which does not hear of it.
async fn superseded(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (one, beside) = (ready(w, &proxy.url()).await?, w.client(&w.server.url()).await?);
    let other = w.client(&w.server.url()).await?;
    let mut holds = Vec::new();
    for (kind, keys) in KINDS {
        let before = other.acquire(kind, keys, json!({"wait_ms": 0})).await?;
        let first = one.begin(kind, keys, of(kind));
        w.server.until_waiting(1).await?;
        let is_superseded = Arc::new(AtomicBool::new(false));
        let told = is_superseded.clone();
        proxy.on_message(move |_| {
            told.store(true, Ordering::Relaxed);
            Fate::Drop
        });
        let second = beside.begin(kind, keys, of(kind));
        until(10_000, || is_superseded.load(Ordering::Relaxed)).await;
        before.release().await?;
        let second = second.acquired(PATIENCE).await?;
        first.cancelled().await?;
        holds.push((kind, second));
    }
    until(1500, || proxy.settled().len() == KINDS.len()).await;
    pause(50).await;
    for (kind, hold) in &holds {
        stands(w, kind, hold, &other).await?;
    }
    w.server.is_clean(ms(3000)).await
}

/// Which commands reach the server.
#[derive(Default)]
struct Gates {
    /// Repeats of a request whose reply was lost.
    requests: AtomicBool,
    /// Settlements, which are refused with READONLY until then.
    settlements: AtomicBool,
}

/// The first request of each owner, or the reply to it, is lost. Until the gate opens, its repeats have this
/// fate, and with `all` also the owner's later requests.
fn first_is_lost(proxy: &Proxy, fate: Fate, all: bool) -> Arc<Gates> {
    let gates = Arc::new(Gates::default());
    let (opened, mut lost) = (gates.clone(), HashMap::new());
    proxy.on_command(move |words| {
        let closed = |gate: &AtomicBool, fate: Fate| if gate.load(Ordering::Relaxed) { Fate::Pass } else { fate };
        if settles(words) {
            return closed(&opened.settlements, Fate::error(READONLY));
        }
        let (Some(name), Some(id), true) = (owner(words), option(words, "REQ"), is(words, "ACQUIRE")) else {
            return Fate::Pass;
        };
        match lost.get(name) {
            None => {
                lost.insert(name.to_owned(), id.to_owned());
                if lost.len() % 2 == 1 { Fate::LoseReply } else { Fate::Cut }
            }
            Some(first) if all || first == id => closed(&opened.requests, fate.clone()),
            Some(_) => Fate::Pass,
        }
    });
    gates
}

/// The reply to the first acquisition is lost; then the caller cancels it, or its timeout ends it. The server
/// refuses the settlement at first.
async fn lost_reply(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (c, beside) = (ready(w, &proxy.url()).await?, w.client(&w.server.url()).await?);
    let other = w.client(&w.server.url()).await?;
    let gates = first_is_lost(&proxy, Fate::Cut, false);
    let mut begun = Vec::new();
    for (number, (kind, keys)) in KINDS.into_iter().enumerate() {
        for place in 0..2 {
            let (owner, keys) = (format!("{kind}-{place}"), numbered(keys, place));
            let has_timeout = (number + place) % 2 == 0;
            let mut options = of(&owner);
            if has_timeout {
                options["wait_ms"] = json!(300);
            }
            begun.push((kind, keys.clone(), owner, place, has_timeout, c.begin(kind, &keys, options)));
        }
    }
    let owners: Vec<_> = begun.iter().map(|(_, _, owner, ..)| owner.clone()).collect();
    // On a busy machine the timeout may come before the request is sent.
    let cancelled = begun.iter().filter(|(.., has_timeout, _)| !has_timeout);
    until_asked(&proxy, &cancelled.map(|(_, _, owner, ..)| owner.clone()).collect::<Vec<_>>()).await?;
    until(200, || fewest(&proxy, &owners) > 0).await;
    pause(50).await;
    // In another client the second one begins before the first one ends, in the same client after that.
    let begin_before = |(kind, keys, owner, place, ..): &(&str, String, String, _, _, _)| {
        (*place == 1).then(|| beside.begin(kind, keys, of(owner)))
    };
    let before: Vec<_> = begun.iter().map(begin_before).collect();
    let mut flows = tokio::task::JoinSet::new();
    for ((kind, keys, owner, _, has_timeout, first), before) in begun.into_iter().zip(before) {
        let c = c.clone();
        flows.spawn(async move {
            if has_timeout {
                let outcome = first.outcome(PATIENCE).await?;
                let is_over = matches!(outcome, Outcome::NotAcquired) || outcome.is_outage();
                ensure!(is_over, "B10 B33", "{kind} {keys:?}: after a lost reply a wait ended with: {outcome}");
            } else {
                is_cancelled(first.cancelled().await?)?;
            }
            Ok((kind, before.unwrap_or_else(|| c.begin(kind, &keys, of(&owner)))))
        });
    }
    let seconds = flows.join_all().await.into_iter().collect::<Result<_, Broken>>()?;
    gates.requests.store(true, Ordering::Relaxed);
    pause(200).await;
    proxy.forget();
    gates.settlements.store(true, Ordering::Relaxed);
    stand_after(w, &proxy, seconds, owners.len(), &other).await
}

/// Three acquisitions of one owner, in one client or in three, are refused. The first two are cancelled.
async fn refused(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let clients = [ready(w, &proxy.url()).await?, ready(w, &proxy.url()).await?, ready(w, &proxy.url()).await?];
    let other = w.client(&w.server.url()).await?;
    let gates = first_is_lost(&proxy, Fate::error(READONLY), true);
    let flows: Vec<_> =
        KINDS.into_iter().flat_map(|(kind, keys)| [0, 1].map(|place| (kind, numbered(keys, place), place))).collect();
    let owners: Vec<_> = flows.iter().map(|(kind, _, place)| format!("{kind}-{place}")).collect();
    let mut begun: Vec<Vec<Acquiring>> = Vec::new();
    for (number, client) in clients.iter().enumerate() {
        let begin = |((kind, keys, place), owner): (&(&str, String, usize), &String)| {
            let client = if *place == 0 { &clients[0] } else { client };
            client.begin(kind, keys, of(owner))
        };
        begun.push(flows.iter().zip(&owners).map(begin).collect());
        until_asked(&proxy, &owners).await?;
        // A client may let the requests of one owner wait for each other.
        until(200, || fewest(&proxy, &owners) > number).await;
    }
    let last = begun.pop().unwrap_or_default();
    for first in begun.into_iter().flatten() {
        is_cancelled(first.cancelled().await?)?;
    }
    gates.requests.store(true, Ordering::Relaxed);
    pause(200).await;
    proxy.forget();
    gates.settlements.store(true, Ordering::Relaxed);
    let last = flows.iter().map(|(kind, ..)| *kind).zip(last).collect();
    stand_after(w, &proxy, last, owners.len(), &other).await
}

/// The later acquisitions are granted, and stand when the settlements have arrived.
async fn stand_after(
    w: &World,
    proxy: &Proxy,
    later: Vec<(&str, Acquiring)>,
    owners: usize,
    other: &Client,
) -> Result<(), Broken> {
    let mut holds = Vec::new();
    for (kind, acquiring) in later {
        holds.push((kind, acquiring.acquired(PATIENCE).await?));
    }
    // A refused settlement is repeated after 1 s at the latest.
    until(1200, || proxy.settled().len() == owners).await;
    pause(50).await;
    for (kind, hold) in &holds {
        stands(w, kind, hold, other).await?;
    }
    w.server.is_clean(ms(3000)).await
}
