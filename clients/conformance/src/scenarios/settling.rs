//! An acquisition that ends without a hold: its CANCEL, what that leaves, and the owner's next acquisition.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::scenarios;
use super::waiting::{is_cancelled, warm_up};
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, us};
use crate::proxy::{Fate, Proxy, Seen, is, option, owner};
use crate::world::{Client, Hold, Outcome, PATIENCE, World, merged, ms, pause};

scenarios! {
    short "settle-once", "B11", ["timed"], once;
    short "settle-then-late-copy", "B6", ["timed"], late_copy;
    short "settle-then-acquire", "B3 B11", [], settle_then_acquire;
    short "settle-then-acquire-two-clients", "B4 B11", [], two_clients;
    short "settle-then-acquire-superseded", "B11", [], superseded;
    short "settle-then-acquire-lost-reply", "B3 B11", [], lost_reply;
}

const KINDS: [(&str, &str); 4] = [("mutex", "m"), ("fair", "f"), ("write", "w"), ("many", "a b")];

fn patient() -> Value {
    json!({"wait_ms": 10_000, "lease_ms": 20_000})
}

fn of(owner: &str) -> Value {
    merged(patient(), &json!({"owner": owner}))
}

/// A client that has its connections.
async fn ready(w: &World, url: &str) -> Result<Client, Broken> {
    let c = w.client(url).await?;
    warm_up(&c).await?;
    Ok(c)
}

/// Waits until it is so, or this number of milliseconds has passed.
async fn until(within_ms: i64, is_so: impl Fn() -> bool) {
    let deadline = now_us() + us(within_ms);
    while now_us() < deadline && !is_so() {
        pause(2).await;
    }
}

/// How an acquisition ends without a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Cancelled,
    /// The server has granted it, and its message is on the way.
    Granted,
    /// Its timeout, and the message of the server is lost.
    TimedOut,
}

/// One CANCEL with the id of the request ends a wait, and also the hold that it was granted.
async fn once(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, ready(w, &proxy.url()).await?);
    holder.init("s", 1).await?;
    let kinds = KINDS.into_iter().chain([("semaphore", "s")]);
    for (end, (kind, keys)) in
        kinds.flat_map(|kind| [End::Cancelled, End::Granted, End::TimedOut].map(|end| (end, kind)))
    {
        let what = format!("{kind}, {end:?}");
        let hold = holder.acquire(kind, keys, json!({"wait_ms": 5000})).await?;
        proxy.forget();
        let mut options = json!({"lease_ms": 30_000});
        if end == End::TimedOut {
            options["wait_ms"] = json!(200);
            proxy.on_message(|_| Fate::Drop);
        }
        let waits = c.begin(kind, keys, options);
        w.server.until_waiting(1).await?;
        // The answer arrives.
        pause(30).await;
        if end == End::Granted {
            proxy.on_message(|_| Fate::Late(400));
            hold.release().await?;
            pause(30).await;
        }
        match end {
            End::TimedOut => {
                waits.outcome(PATIENCE).await?;
            }
            _ => is_cancelled(waits.cancelled().await?).during(&what)?,
        }
        until(1000, || !proxy.seen_of("CANCEL").is_empty()).await;
        // No more follows.
        pause(100).await;
        if end != End::Granted {
            hold.release().await?;
        }
        // The claim would last for 2 s.
        w.server.is_clean(ms(1000)).await.during(&what).under("B11")?;
        let ids =
            |verb| proxy.seen_of(verb).iter().map(|seen| seen.option("REQ").map(str::to_owned)).collect::<Vec<_>>();
        let (asked, cancelled) = (ids("ACQUIRE"), ids("CANCEL"));
        let is_one = cancelled.len() == 1 && cancelled[0].is_some() && asked.contains(&cancelled[0]);
        ensure!(is_one, "B11", "{what}: requests with the ids {asked:?}, and CANCEL with {cancelled:?}");
        let releases = proxy.seen_of("RELEASE");
        ensure!(releases.is_empty(), "B11", "{what}: a RELEASE of a cancelled request: {releases:?}");
        proxy.clear();
    }
    Ok(())
}

/// A copy of a request arrives after its acquisition was cancelled, or its hold released. It costs the claim.
async fn late_copy(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, ready(w, &proxy.url()).await?);
    proxy.forget();
    for (number, (kind, keys)) in KINDS.into_iter().enumerate() {
        if number % 2 == 0 {
            c.acquire(kind, keys, json!({"wait_ms": 0, "lease_ms": 30_000})).await?.release().await?;
            continue;
        }
        let hold = holder.acquire(kind, keys, json!({"wait_ms": 0})).await?;
        let waits = c.begin(kind, keys, json!({"lease_ms": 30_000}));
        w.server.until_waiting(1).await?;
        is_cancelled(waits.cancelled().await?)?;
        hold.release().await?;
    }
    w.server.is_clean(ms(3000)).await?;
    for Seen { words, .. } in proxy.seen_of("ACQUIRE") {
        let words: Vec<_> = words.iter().map(String::as_str).collect();
        w.server.try_ask(&words).await.map_err(|error| Broken::new("driver", format!("{words:?}: {error}")))?;
    }
    ensure!(w.server.gauge("rlock_held").await? > 0, "driver", "the copies were not granted");
    w.server.is_clean(ms(4000)).await.under("B6")
}

/// Fails unless the later hold of the owner still stands. Its release leaves no second hold behind.
async fn stands(w: &World, kind: &str, hold: &Hold, other: &Client) -> Result<(), Broken> {
    let keys = hold.keys.join(" ");
    for (key, token) in hold.keys.iter().zip(&hold.tokens) {
        let left = w.server.lease_left(key, *token).await?;
        ensure!(left > 0, "B11", "{kind} {key:?}: the settlement of an earlier acquisition has ended the hold");
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

async fn all_stand(w: &World, holds: &[Option<(&str, Hold)>], other: &Client) -> Result<(), Broken> {
    for (kind, hold) in holds.iter().flatten() {
        stands(w, kind, hold, other).await?;
    }
    Ok(())
}

/// The second hold; none if the machine was too busy, so that both acquisitions were granted and share a hold.
async fn alone(kind: &'static str, first: Outcome, second: Hold) -> Option<(&'static str, Hold)> {
    let Outcome::Acquired(first) = first else { return Some((kind, second)) };
    first.release().await.ok();
    second.release().await.ok();
    None
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
        all_stand(w, &<[_; 4]>::from(holds), &other).await.during(&what)?;
    }
    w.server.is_clean(ms(3000)).await
}

/// Two clients of a process share an owner. The request of the first one arrives late, when the second one holds.
async fn two_clients(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (slow, quick) = (ready(w, &proxy.url()).await?, w.client(&w.server.url()).await?);
    let other = w.client(&w.server.url()).await?;
    proxy.forget();
    proxy.on_command(|words| if is(words, "ACQUIRE") { Fate::Late(300) } else { Fate::Pass });
    let flow = async |(kind, keys): (&'static str, &str)| {
        let first = slow.begin(kind, keys, merged(patient(), &w.shared(kind)));
        until_asked(&proxy, kind).await?;
        let second = quick.acquire(kind, keys, merged(patient(), &w.shared(kind))).await?;
        Ok::<_, Broken>(alone(kind, first.cancelled().await?, second).await)
    };
    let [one, two, three, four] = KINDS;
    let holds = tokio::try_join!(flow(one), flow(two), flow(three), flow(four))?;
    until(1500, || proxy.settled().len() == KINDS.len()).await;
    pause(400).await;
    all_stand(w, &<[_; 4]>::from(holds), &other).await?;
    w.server.is_clean(ms(3000)).await
}

/// The requests with REQ of this owner, whose name may follow the id of its client.
fn asked(proxy: &Proxy, owner: &str) -> usize {
    let is_own = |seen: &Seen| seen.option("REQ").is_some() && seen.owner().is_some_and(|name| name.ends_with(owner));
    proxy.seen_of("ACQUIRE").into_iter().filter(is_own).count()
}

async fn until_asked(proxy: &Proxy, owner: &str) -> Result<(), Broken> {
    until(10_000, || asked(proxy, owner) > 0).await;
    ensure!(asked(proxy, owner) > 0, "B4", "no request with REQ of {owner:?} within 10 s");
    Ok(())
}

/// The second request of a shared owner takes over the place of the first one, which does not hear of it.
async fn superseded(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (one, beside) = (ready(w, &proxy.url()).await?, w.client(&w.server.url()).await?);
    let other = w.client(&w.server.url()).await?;
    let mut holds = Vec::new();
    for (kind, keys) in KINDS {
        let before = other.acquire(kind, keys, json!({"wait_ms": 0})).await?;
        let first = one.begin(kind, keys, merged(patient(), &w.shared(kind)));
        w.server.until_waiting(1).await?;
        let is_superseded = Arc::new(AtomicBool::new(false));
        let told = is_superseded.clone();
        proxy.on_message(move |_| {
            told.store(true, Ordering::Relaxed);
            Fate::Drop
        });
        let second = beside.begin(kind, keys, merged(patient(), &w.shared(kind)));
        until(10_000, || is_superseded.load(Ordering::Relaxed)).await;
        before.release().await?;
        let second = second.acquired(PATIENCE).await?;
        first.cancelled().await?;
        holds.push(Some((kind, second)));
    }
    until(1500, || proxy.settled().len() == KINDS.len()).await;
    pause(50).await;
    all_stand(w, &holds, &other).await?;
    w.server.is_clean(ms(3000)).await
}

/// The reply to the first acquisition is lost; then the caller cancels it, or its timeout ends it. The server
/// refuses CANCEL at first, so the second acquisition of the owner has to follow.
async fn lost_reply(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (c, other) = (ready(w, &proxy.url()).await?, w.client(&w.server.url()).await?);
    let is_open = Arc::new(AtomicBool::new(false));
    let (opened, mut lost) = (is_open.clone(), HashMap::new());
    proxy.on_command(move |words| {
        if is(words, "CANCEL") && !opened.load(Ordering::Relaxed) {
            return Fate::error("READONLY You can't write against a read only replica.");
        }
        let (Some(name), Some(id), true) = (owner(words), option(words, "REQ"), is(words, "ACQUIRE")) else {
            return Fate::Pass;
        };
        match lost.get(name) {
            None => {
                lost.insert(name.to_owned(), id.to_owned());
                if lost.len() % 2 == 1 { Fate::LoseReply } else { Fate::Cut }
            }
            Some(first) if first == id && !opened.load(Ordering::Relaxed) => Fate::Cut,
            Some(_) => Fate::Pass,
        }
    });
    let begin = |number: usize| {
        let (kind, keys) = KINDS[number];
        let mut options = of(kind);
        if number.is_multiple_of(2) {
            options["wait_ms"] = json!(300);
        }
        c.begin(kind, keys, options)
    };
    let firsts = [begin(0), begin(1), begin(2), begin(3)];
    until_asked(&proxy, KINDS[1].0).await?;
    until_asked(&proxy, KINDS[3].0).await?;
    pause(50).await;
    let mut seconds = Vec::new();
    for (first, (number, (kind, keys))) in firsts.into_iter().zip(KINDS.into_iter().enumerate()) {
        if number % 2 == 0 {
            let outcome = first.outcome(PATIENCE).await?;
            let is_over = matches!(outcome, Outcome::NotAcquired) || outcome.is_outage();
            ensure!(is_over, "B8 B33", "{kind} {keys:?}: after a lost reply a wait ended with: {outcome}");
        } else {
            is_cancelled(first.cancelled().await?)?;
        }
        seconds.push((kind, c.begin(kind, keys, of(kind))));
    }
    pause(200).await;
    is_open.store(true, Ordering::Relaxed);
    let mut holds = Vec::new();
    for (kind, second) in seconds {
        holds.push(Some((kind, second.acquired(PATIENCE).await?)));
    }
    // A refused settlement is repeated after 1 s at the latest.
    pause(1200).await;
    all_stand(w, &holds, &other).await?;
    w.server.is_clean(ms(3000)).await
}
