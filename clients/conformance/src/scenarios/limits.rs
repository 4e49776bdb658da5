//! Leases that the server shortens or limits.

use serde_json::json;

use super::holding::ends_at;
use super::scenarios;
use super::waiting::warm_up;
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, slack_us, us};
use crate::world::{Hold, PATIENCE, World, ms, pause};

scenarios! {
    short "limit-fixed-lease", "B29", ["B29"], fixed_lease;
    short "limit-fixed-lease-extended", "B29", ["B29"], fixed_lease_extended;
    short "limit-fixed-lease-killed", "B29", ["B29"], fixed_lease_killed;
    short "limit-lowered-acquire", "B6 B13", ["timed"], lowered_acquire;
    short "limit-expire", "B13", ["timed"], expire;
    short "limit-lowered", "B13", ["timed"], lowered;
}

async fn lower(w: &World, limit_ms: u64) -> Result<(), Broken> {
    w.server.ask(&format!("CONFIG SET rlock.max-lease-ms {limit_ms}")).await.map(drop)
}

/// Fails if the program believes for longer than the server now keeps the hold.
async fn follows_the_server(w: &World, hold: &Hold) -> Result<(), Broken> {
    let (_, until_us) = hold.held().await?;
    let left = w.server.lease_left(&hold.keys[0], hold.token()).await?;
    let longer = until_us - now_us() - us(left + 1);
    ensure!(longer <= 0, "B13", "{:?} is believed for {} ms longer than the server keeps it", hold.keys, longer / 1000);
    Ok(())
}

/// A fixed lease longer than the server allows lasts to its end, and no longer.
async fn fixed_lease(w: &World) -> Result<(), Broken> {
    lower(w, 1500).await?;
    let c = w.client(&w.server.url()).await?;
    warm_up(&c).await?;
    let (mut holds, began) = (Vec::new(), now_us());
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("read", "r"), ("many", "a b")] {
        let hold = c.acquire(kind, keys, json!({"wait_ms": 0, "fixed_lease_ms": 4500})).await.under("B29")?;
        holds.push((hold, now_us()));
    }
    pause(3000).await;
    for (hold, _) in &holds {
        hold.is_held("B29", "3 s of a fixed lease of 4.5 s have passed, where the server allows 1.5 s").await?;
        let left = w.server.lease_left(&hold.keys[0], hold.token()).await?;
        ensure!((1..=1500).contains(&left), "B29", "the server has {:?} for {left} ms", hold.keys);
    }
    for (hold, acquired_us) in &holds {
        let told = hold.lost_before(acquired_us + us(4500)).await.under("B29")?;
        ensure!(
            told >= began + us(3700),
            "B29",
            "{:?} ended {} ms after the request",
            hold.keys,
            (told - began) / 1000
        );
    }
    w.server.is_clean(ms(3000)).await
}

async fn fixed_lease_extended(w: &World) -> Result<(), Broken> {
    lower(w, 1500).await?;
    let c = w.client(&w.server.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "fixed_lease_ms": 1200})).await?;
    hold.extend(4000).await?;
    let extended_us = now_us();
    pause(2800).await;
    hold.is_held("B29", "2.8 s ago its fixed lease was extended to 4 s, where the server allows 1.5 s").await?;
    hold.lost_before(extended_us + us(4000)).await.under("B29")?;
    w.server.is_clean(ms(3000)).await
}

/// After a crash the lock is free as soon as what the server allowed has passed.
async fn fixed_lease_killed(w: &World) -> Result<(), Broken> {
    lower(w, 1500).await?;
    let mortal = w.another_program().await?;
    let c = w.client_with(&mortal, json!({"url": w.server.url()})).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "fixed_lease_ms": 60_000})).await?;
    pause(2000).await;
    hold.is_held("B29", "2 s of a fixed lease of 60 s have passed, where the server allows 1.5 s").await?;
    let next = w.client(&w.server.url()).await?;
    let waits = next.begin("mutex", "k", json!({"wait_ms": 10_000}));
    w.server.until_waiting(1).await?;
    mortal.kill();
    let began = now_us();
    let hold = waits.acquired(PATIENCE).await.under("B29")?;
    let took = now_us() - began;
    ensure!(took <= us(2500) + slack_us(began), "B29", "the next one waited for {} ms", took / 1000);
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

/// The client asks for a lease that the server no longer allows, once, and the server shortens it.
async fn lowered_acquire(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let lease = |wait_ms: u32| json!({"wait_ms": wait_ms, "lease_ms": 60_000});
    c.acquire("mutex", "k", lease(0)).await?.release().await?;
    lower(w, 3000).await?;
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("read", "r"), ("many", "a b")] {
        for wait_ms in [0, 5000] {
            proxy.forget();
            let hold = c.acquire(kind, keys, lease(wait_ms)).await.under("B6")?;
            let asked: Vec<_> =
                proxy.seen_of("ACQUIRE").iter().map(|seen| seen.option("PX").map(str::to_owned)).collect();
            ensure!(asked == [Some("60000".to_owned())], "B6", "for a lease of 60 s it asked for {asked:?}");
            follows_the_server(w, &hold).await?;
            hold.release().await?;
        }
    }
    w.server.is_clean(ms(3000)).await
}

/// The server answers a renewal with less time than the program believed in before.
async fn expire(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let mut holds = Vec::new();
    for (kind, key) in [("mutex", "m"), ("fair", "f"), ("write", "w")] {
        holds.push(c.acquire(kind, key, json!({"wait_ms": 0, "lease_ms": 6000})).await?);
    }
    for hold in &holds {
        hold.is_claimed(&w.server).await?;
    }
    proxy.forget();
    for hold in &holds {
        w.server.ask(&format!("PEXPIRE {} 4000", hold.keys[0])).await?;
    }
    let deadline = now_us() + us(3500);
    while proxy.seen_of("RENEW").len() < holds.len() {
        ensure!(now_us() < deadline, "B16", "a lease of 6 s was not renewed for 3.5 s");
        pause(5).await;
    }
    // The answers arrive.
    pause(150).await;
    let mut ends = Vec::new();
    for hold in &holds {
        follows_the_server(w, hold).await?;
        ends.push(ends_at(w, hold).await?);
    }
    for (hold, ends_us) in holds.iter().zip(ends) {
        hold.lost_before(ends_us).await.under("B13")?;
    }
    w.server.is_clean(ms(3000)).await
}

/// The longest lease is lowered while the client holds one lock and waits for another.
async fn lowered(w: &World) -> Result<(), Broken> {
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    let lease = |wait_ms: u32| json!({"wait_ms": wait_ms, "lease_ms": 60_000});
    let before = c.acquire("mutex", "before", lease(0)).await?;
    let hold = holder.acquire("mutex", "waited", json!({"wait_ms": 0})).await?;
    let waits = c.begin("mutex", "waited", lease(20_000));
    w.server.until_waiting(1).await?;
    lower(w, 3000).await?;
    hold.release().await?;
    let waited = waits.acquired(PATIENCE).await.under("B13")?;
    follows_the_server(w, &waited).await?;
    pause(4000).await;
    for hold in [before, waited] {
        hold.is_held("B16", "it is renewed with what the server allows").await?;
        follows_the_server(w, &hold).await?;
        hold.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}
