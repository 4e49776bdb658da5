//! Grants that arrive as messages: what they cost, for how long they are believed, and when they are claimed.

use std::sync::{Arc, Mutex};

use serde_json::json;

use super::holding::ends_at;
use super::scenarios;
use super::waiting::warm_up;
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, slack_us, us};
use crate::proxy::{Fate, Proxy, is};
use crate::world::{Client, PATIENCE, World, ms, pause};

scenarios! {
    short "grant-one-round-trip", "B9 B16", ["timed"], one_round_trip;
    short "grant-longer-than-claim", "B9 B13", ["timed"], longer_than_claim;
    short "grant-on-its-way", "B9 B13", ["timed"], on_its_way;
    short "grant-unanswered-copy", "B9", ["timed"], unanswered_copy;
    short "grant-lost-copy", "B8 B9", ["timed"], lost_copy;
    short "grant-with-session", "B9", ["timed"], with_session;
    short "grant-claimed", "B16", ["timed"], claimed;
}

/// A holder, and a client behind a proxy that has its connections and its subscriber.
async fn ready(w: &World) -> Result<(Proxy, Client, Client), Broken> {
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&proxy.url()).await?);
    warm_up(&c).await?;
    let hold = holder.acquire("mutex", "before", json!({"wait_ms": 5000})).await?;
    let waits = c.begin("mutex", "before", json!({"wait_ms": 20_000}));
    w.server.until_waiting(1).await?;
    hold.release().await?;
    waits.acquired(PATIENCE).await?.release().await?;
    Ok((proxy, holder, c))
}

/// Waits until this number of requests wait, and the answers that say so have arrived.
async fn until_waiting(w: &World, count: i64) -> Result<(), Broken> {
    w.server.until_waiting(count).await?;
    pause(100).await;
    Ok(())
}

/// After a message the client only releases.
async fn one_round_trip(w: &World) -> Result<(), Broken> {
    let (proxy, holder, c) = ready(w).await?;
    holder.init("s", 1).await?;
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("write", "w"), ("many", "a b"), ("semaphore", "s")] {
        let hold = holder.acquire(kind, keys, json!({"wait_ms": 5000})).await?;
        let works = c.work(kind, keys, json!({"tasks": 4, "times": 1, "hold_ms": 0, "wait_ms": 15_000}));
        until_waiting(w, 4).await?;
        proxy.forget();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let heard = messages.clone();
        proxy.on_message(move |words| {
            heard.lock().unwrap().push((now_us(), words.last().cloned().unwrap_or_default()));
            Fate::Pass
        });
        hold.release().await?;
        let said = works.ok(PATIENCE).await?;
        ensure!(said["done"] == 4, "B9", "{kind}: of 4 waits: {said}");
        for seen in proxy.seen() {
            let token = seen.option("TOKENS").or(seen.option("TOKEN")).unwrap_or_default();
            let messages = messages.lock().unwrap();
            let granted = messages.iter().find(|(_, text)| text.split(' ').any(|word| word == token));
            // On a busy machine a hold may last so long that it is claimed.
            let after = granted.map_or(0, |(at_us, _)| seen.at_us - at_us);
            let is_late_claim = seen.is("RENEW") && after > us(40);
            let text = seen.words.join(" ");
            ensure!(seen.is("RELEASE") || is_late_claim, "B9", "{after} us after its message it sent {text}");
        }
        proxy.clear();
    }
    w.server.is_clean(ms(3000)).await
}

/// The message arrives when its claim has ended and the next waiter holds the lock.
async fn longer_than_claim(w: &World) -> Result<(), Broken> {
    let (proxy, holder, c) = ready(w).await?;
    for (kind, keys) in [("mutex", "m"), ("many", "a b")] {
        let hold = holder.acquire(kind, keys, json!({"wait_ms": 5000})).await?;
        proxy.forget();
        let waits = c.begin(kind, keys, json!({"wait_ms": 20_000, "lease_ms": 1000}));
        w.server.until_waiting(1).await?;
        let next = holder.begin(kind, keys, json!({"wait_ms": 20_000}));
        until_waiting(w, 2).await?;
        let mut is_first = true;
        proxy.on_message(move |_| if std::mem::take(&mut is_first) { Fate::Late(1500) } else { Fate::Pass });
        hold.release().await?;
        let next = next.acquired(PATIENCE).await.during("the claim of a waiter that hears nothing")?;
        let asked = || proxy.seen_of("ACQUIRE");
        let deadline = now_us() + us(5000);
        while asked().len() < 2 {
            ensure!(
                now_us() < deadline,
                "B9",
                "{kind}: its message was too late, and it did not send its request again"
            );
            pause(5).await;
        }
        pause(100).await;
        next.release().await?;
        let late = waits.acquired(PATIENCE).await.under("B9")?;
        ensure!(late.token() > next.token(), "B9 B13", "it entered with a grant that had expired");
        let ids: Vec<_> = asked().iter().map(|seen| seen.option("REQ").map(str::to_owned)).collect();
        ensure!(ids.windows(2).all(|pair| pair[0] == pair[1]), "B8 B9", "it asked again with another id: {ids:?}");
        late.release().await?;
        proxy.clear();
    }
    w.server.is_clean(ms(3000)).await
}

/// The message is on its way for a part of the claim. The client enters at once, and its belief ends with the claim.
async fn on_its_way(w: &World) -> Result<(), Broken> {
    let (proxy, holder, c) = ready(w).await?;
    let (mut before, mut waits) = (Vec::new(), Vec::new());
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("many", "a b")] {
        before.push(holder.acquire(kind, keys, json!({"wait_ms": 5000})).await?);
        waits.push(c.begin(kind, keys, json!({"wait_ms": 20_000, "lease_ms": 1800})));
    }
    until_waiting(w, 3).await?;
    proxy.forget();
    proxy.on_command(|words| match is(words, "RENEW") {
        true => Fate::error("BUSY Redis is busy running a script."),
        false => Fate::Pass,
    });
    proxy.on_message(|_| Fate::Late(600));
    for hold in before {
        hold.release().await?;
    }
    let mut holds = Vec::new();
    for waits in waits {
        let hold = waits.acquired(PATIENCE).await?;
        hold.is_within_lease(&w.server).await?;
        holds.push((ends_at(w, &hold).await?, hold));
    }
    let asked = proxy.seen_of("ACQUIRE");
    ensure!(asked.is_empty(), "B9", "600 ms of a claim of 1.8 s had passed, and it asked again: {asked:?}");
    for (ends_us, hold) in holds {
        hold.lost_before(ends_us).await?;
    }
    proxy.clear();
    w.server.is_clean(ms(3000)).await
}

/// The message overtakes the answer to the request.
async fn unanswered_copy(w: &World) -> Result<(), Broken> {
    const LATE_MS: i64 = 700;
    let (proxy, holder, c) = ready(w).await?;
    for (kind, keys) in [("mutex", "m"), ("many", "a b")] {
        let hold = holder.acquire(kind, keys, json!({"wait_ms": 5000})).await?;
        proxy.forget();
        proxy.next("ACQUIRE", 1, Fate::LateReply(LATE_MS as u64));
        let waits = c.begin(kind, keys, json!({"wait_ms": 15_000, "lease_ms": 20_000}));
        w.server.until_waiting(1).await?;
        hold.release().await?;
        let hold = waits.acquired(PATIENCE).await?;
        let asked = proxy.seen_of("ACQUIRE");
        let first_us = asked.first().map_or(0, |seen| seen.at_us);
        // A client that reads the message after the answer need not ask again.
        let is_sure = asked.len() > 1 || hold.at_us - first_us >= us(LATE_MS);
        ensure!(is_sure, "B9", "{kind}: it entered while its request was unanswered");
        ensure!(asked.iter().all(|seen| seen.option("REQ") == asked[0].option("REQ")), "B9", "two ids: {asked:?}");
        hold.is_within_lease(&w.server).await?;
        hold.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}

/// The connection of the first request is lost before its answer. The server answers the second one.
async fn lost_copy(w: &World) -> Result<(), Broken> {
    let (proxy, holder, c) = ready(w).await?;
    for fate in [Fate::LoseReply, Fate::Cut] {
        let hold = holder.acquire("mutex", "k", json!({"wait_ms": 5000})).await?;
        proxy.next("ACQUIRE", 1, fate.clone());
        let waits = c.begin("mutex", "k", json!({"wait_ms": 15_000, "lease_ms": 20_000}));
        let deadline = now_us() + us(5000);
        while proxy.seen_of("ACQUIRE").len() < 2 {
            ensure!(now_us() < deadline, "B8", "{fate:?}: its request was not sent again");
            pause(5).await;
        }
        // A subscription that was lost as well is made anew.
        pause(500).await;
        until_waiting(w, 1).await?;
        proxy.forget();
        hold.release().await?;
        let hold = waits.acquired(PATIENCE).await?;
        let asked = proxy.seen_of("ACQUIRE").len();
        ensure!(asked == 1, "B9", "{fate:?}: with a copy unanswered it entered after {asked} more requests");
        hold.release().await?;
        proxy.forget();
    }
    w.server.is_clean(ms(3000)).await
}

/// The session belongs to the connection of the last request, so the client asks again.
async fn with_session(w: &World) -> Result<(), Broken> {
    let (proxy, holder, c) = ready(w).await?;
    let hold = holder.acquire("mutex", "k", json!({"wait_ms": 5000})).await?;
    proxy.forget();
    let waits = c.begin("mutex", "k", json!({"wait_ms": 15_000, "lease_ms": 20_000, "session_ms": 3000}));
    until_waiting(w, 1).await?;
    hold.release().await?;
    let hold = waits.acquired(PATIENCE).await?;
    let asked = proxy.seen_of("ACQUIRE");
    ensure!(asked.len() == 2, "B9", "it entered after {} requests", asked.len());
    ensure!(asked[0].option("REQ") == asked[1].option("REQ"), "B9", "it asked again with another id: {asked:?}");
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

/// Each hold that lasts is claimed, all of a client together, on a slow network.
async fn claimed(w: &World) -> Result<(), Broken> {
    let (proxy, holder, c) = ready(w).await?;
    let keys: Vec<_> = (0..10).map(|number| format!("k{number}")).collect();
    let (mut before, mut waits) = (Vec::new(), Vec::new());
    for key in &keys {
        before.push(holder.acquire("mutex", key, json!({"wait_ms": 5000})).await?);
        waits.push(c.begin("mutex", key, json!({"wait_ms": 15_000, "lease_ms": 20_000})));
    }
    before.push(holder.acquire("many", "a b", json!({"wait_ms": 5000})).await?);
    waits.push(c.begin("many", "a b", json!({"wait_ms": 15_000, "fixed_lease_ms": 20_000})));
    until_waiting(w, 11).await?;
    proxy.delay(40);
    proxy.forget();
    let releases: Vec<_> = before.iter().map(|hold| hold.releasing(json!({}))).collect();
    let mut holds = Vec::new();
    for waits in waits {
        holds.push(waits.acquired(PATIENCE).await?);
    }
    let granted_us = now_us();
    for release in releases {
        release.ok(PATIENCE).await?;
    }
    // It needs no message, and gets the claim too.
    holds.push(c.acquire("mutex", "direct", json!({"wait_ms": 0, "lease_ms": 20_000})).await?);
    // The holds become older than 50 ms.
    pause(600).await;
    for hold in &holds {
        let left = w.server.lease_left(&hold.keys[0], hold.token()).await?;
        ensure!(left > 10_000, "B16", "{:?} is not claimed: {left} ms are left", hold.keys);
    }
    let fixed = proxy.seen_of("RENEW").into_iter().find(|seen| seen.words[0] == "RLOCK.MRENEW");
    if let Some(seen) = fixed {
        let left = seen.option("PX").and_then(|px| px.parse::<u32>().ok());
        ensure!(left.is_some_and(|left| left < 19_970), "B29", "a fixed lease of 20 s was claimed with {left:?} ms");
    }
    let renewed = proxy.seen_of("RENEW").into_iter().filter(|seen| seen.words[1].starts_with('k'));
    let times: Vec<_> = renewed.map(|seen| seen.at_us).collect();
    let took = times.last().unwrap_or(&0) - times.first().unwrap_or(&0);
    // One after another they would take 10 times 80 ms.
    ensure!(took <= us(300) + slack_us(granted_us), "B16", "claiming 10 holds took {} ms", took / 1000);
    proxy.delay(0);
    for hold in holds {
        hold.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}
