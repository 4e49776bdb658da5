//! Renewal, and losses that the program must report in time.

use serde_json::json;

use super::scenarios;
use crate::broken::{Broken, ensure};
use crate::clock::{now_us, slack_us, us};
use crate::world::{Hold, Outcome, PATIENCE, World, ms, pause};

scenarios! {
    short "hold-renewed", "B16", [], renewed;
    short "hold-slow-network", "B13", [], slow_network;
    short "hold-slower-than-lease", "B9 B13", [], slower_than_lease;
    short "hold-fixed-lease", "B29", [], fixed_lease;
    short "hold-stalled", "B13 B15 B17", [], |w| lost_by(w, Trouble::Stalled);
    short "hold-server-stopped", "B13 B15 B17", [], |w| lost_by(w, Trouble::Stopped);
    short "hold-cut-off", "B13 B15 B17", [], |w| lost_by(w, Trouble::CutOff);
    short "hold-short-stall", "B16 B17", [], short_stall;
    short "hold-forced", "B15 B17", [], forced;
    short "hold-reentry-after-loss", "B3 B32", [], reentry_after_loss;
    short "hold-sixty-at-200ms", "B16", [], sixty;
    short "hold-two-servers", "B16", [], two_servers;
    short "hold-session-cut", "B13 B16", [], session_cut;
    short "hold-session-lost", "B13 B15", [], session_lost;
    short "hold-session-end-unseen", "B13 B15", [], session_end_unseen;
    short "hold-session-slow-answer", "B13", [], session_slow_answer;
    short "hold-clock-jump", "B13 B15", ["clock"], clock_jump;
}

async fn renewed(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let mut holds = Vec::new();
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("read", "r"), ("write", "w"), ("many", "a b")] {
        holds.push(c.acquire(kind, keys, json!({"wait_ms": 0, "lease_ms": 900})).await?);
    }
    c.init("s", 2).await?;
    holds.push(c.acquire("semaphore", "s", json!({"wait_ms": 0, "lease_ms": 900})).await?);
    pause(2500).await;
    for hold in &holds {
        hold.is_held("B16", &format!("{:?} was to be renewed", hold.keys)).await?;
        let left = w.server.lease_left(&hold.keys[0], hold.token()).await?;
        ensure!(left > 0, "B16", "{:?} is over at the server, and still believed", hold.keys);
        hold.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}

/// The lease counts from the moment before the request was sent.
async fn slow_network(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (c, direct) = (w.client(&proxy.url()).await?, w.client(&w.server.url()).await?);
    for (kind, keys) in [("mutex", "m"), ("write", "w"), ("many", "a b")] {
        proxy.delay(150);
        let hold = c.acquire(kind, keys, json!({"wait_ms": 0, "lease_ms": 3000})).await?;
        hold.is_within_lease(&w.server).await?;
        // The same after some renewals.
        pause(1600).await;
        hold.is_within_lease(&w.server).await?;
        proxy.delay(0);
        hold.release().await?;
        // The same after a grant that arrived as a message.
        let before = direct.acquire(kind, keys, json!({"wait_ms": 0})).await?;
        proxy.delay(150);
        let waits = c.begin(kind, keys, json!({"wait_ms": 10_000, "lease_ms": 3000}));
        w.server.until_waiting(1).await?;
        before.release().await?;
        let hold = waits.acquired(PATIENCE).await?;
        hold.is_within_lease(&w.server).await?;
        proxy.delay(0);
        hold.release().await?;
    }
    w.server.is_clean(ms(2000)).await
}

/// The network is slower than the lease is long, so each grant has expired when its answer arrives.
async fn slower_than_lease(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client_with(&w.program, json!({"url": proxy.url(), "command_timeout_ms": 2000})).await?;
    c.acquire("mutex", "k", json!({"wait_ms": 0})).await?.release().await?;
    proxy.delay(300);
    for wait_ms in [0, 2000] {
        let outcome = c.outcome("mutex", "k", json!({"wait_ms": wait_ms, "lease_ms": 300})).await?;
        ensure!(!matches!(outcome, Outcome::Acquired(_)), "B9 B13", "the client entered with a grant that had expired");
    }
    proxy.clear();
    w.server.is_clean(ms(4000)).await
}

async fn fixed_lease(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let began = now_us();
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "fixed_lease_ms": 800})).await?;
    let at_us = hold.lost_before(ends_at(w, &hold).await?).await?;
    ensure!(
        at_us >= began + us(700),
        "B29",
        "the client gave the hold up {} ms after the request",
        (at_us - began) / 1000
    );
    w.server.is_clean(ms(2000)).await
}

/// The earliest moment at which the server ends the hold if no further renewal arrives.
pub(super) async fn ends_at(w: &World, hold: &Hold) -> Result<i64, Broken> {
    let asked = now_us();
    let left = w.server.lease_left(&hold.keys[0], hold.token()).await?;
    ensure!(left > 0, "B16", "the hold is over at the server");
    // A reply in whole milliseconds, rounded either way.
    Ok(asked + us(left + 1).max(0) + (now_us() - asked))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Trouble {
    Stalled,
    Stopped,
    CutOff,
}

/// The server stops answering. The program reports the loss by its clock: in time, not early, and finally.
async fn lost_by(w: &World, trouble: Trouble) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let mut holds = Vec::new();
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("read", "r"), ("many", "a b")] {
        holds.push(c.acquire(kind, keys, json!({"wait_ms": 0, "lease_ms": 1500})).await?);
    }
    pause(700).await;
    let mut deadlines = Vec::new();
    match trouble {
        Trouble::Stalled => proxy.stall(),
        Trouble::Stopped => {}
        Trouble::CutOff => {
            proxy.refuse(true);
            proxy.cut();
        }
    }
    let since = now_us();
    if trouble == Trouble::Stopped {
        w.server.stop();
        // No renewal was later than this.
        deadlines.extend(holds.iter().map(|_| now_us() + us(1500)));
    } else {
        // Requests that were under way have arrived.
        pause(20).await;
        for hold in &holds {
            deadlines.push(ends_at(w, hold).await?);
        }
    }
    for (hold, deadline_us) in holds.iter().zip(deadlines) {
        let told = hold.lost_before(deadline_us).await;
        if trouble == Trouble::Stopped && told.is_err() {
            w.server.go_on();
        }
        let told = told?;
        let early = since + us(900) - slack_us(since) - told;
        ensure!(early <= 0, "B17", "the client gave the hold up {} ms after the trouble began", (told - since) / 1000);
    }
    if trouble == Trouble::Stopped {
        w.server.go_on();
    }
    proxy.clear();
    pause(400).await;
    for hold in &holds {
        ensure!(!hold.held().await?.0, "B13", "an answer after the deadline revived a hold");
    }
    w.server.is_clean(ms(4000)).await
}

async fn short_stall(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 3000})).await?;
    for is_cut in [false, true] {
        pause(400).await;
        proxy.stall();
        pause(1200).await;
        if is_cut {
            proxy.cut();
        }
        proxy.flow();
        pause(2500).await;
        hold.is_held("B16 B17", &format!("a stall of 1.2 s with a lease of 3 s, connection cut: {is_cut}")).await?;
    }
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

async fn forced(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 3000})).await?;
    w.server.ask("RLOCK.FORCERELEASE k").await?;
    let began = now_us();
    let told = hold.lost(ms(5000)).await?;
    let took = told - began;
    ensure!(
        took <= us(1300) + slack_us(began),
        "B16 B17",
        "NOTOWNER of a renewal was reported after {} ms",
        took / 1000
    );
    w.server.is_clean(ms(1000)).await
}

async fn reentry_after_loss(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let named = |fixed: bool| {
        let lease = if fixed { "fixed_lease_ms" } else { "lease_ms" };
        json!({"wait_ms": 0, "owner": "alice", "task": "alice", lease: 500})
    };
    let outer = c.acquire("mutex", "k", named(true)).await?;
    outer.lost(ms(4000)).await?;
    pause(100).await;
    // B32 replaces the error by a new hold.
    match c.outcome("mutex", "k", named(false)).await? {
        Outcome::Error { name, .. } if name == "LockLost" => {}
        Outcome::Acquired(hold) if hold.token() > outer.token() => hold.release_with(json!({"task": "alice"})).await?,
        outcome => return Err(Broken::new("B3 B32", format!("after a loss its owner acquires again: {outcome}"))),
    }
    w.server.is_clean(ms(2000)).await
}

async fn sixty(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    proxy.delay(100);
    let keys: Vec<_> = (0..60).map(|number| format!("k{number}")).collect();
    let begun: Vec<_> = keys.iter().map(|key| c.begin("mutex", key, json!({"wait_ms": 0, "lease_ms": 3000}))).collect();
    let mut holds = Vec::new();
    for acquiring in begun {
        holds.push(acquiring.acquired(PATIENCE).await?);
    }
    pause(5000).await;
    for hold in &holds {
        hold.is_within_lease(&w.server).await?;
        hold.is_held("B16", "60 locks at 200 ms there and back, with leases of 3 s").await?;
    }
    let releases: Vec<_> = holds.iter().map(|hold| hold.releasing(json!({}))).collect();
    for release in releases {
        release.ok(PATIENCE).await?;
    }
    proxy.clear();
    w.server.is_clean(ms(3000)).await
}

/// Two clients on two servers: a stall of one server does not harm the holds on the other.
async fn two_servers(w: &World) -> Result<(), Broken> {
    let second = w.another_server(&[]).await?;
    let proxy = w.proxy().await;
    let (sick, well) = (w.client(&proxy.url()).await?, w.client(&second.url()).await?);
    let lease = || json!({"wait_ms": 0, "lease_ms": 1200});
    let lost = sick.acquire("mutex", "sick", lease()).await?;
    let kept = well.acquire("mutex", "well", lease()).await?;
    proxy.stall();
    // A pending request to the stalled server must not delay renewals to the other.
    let hangs = sick.begin("mutex", "sick2", json!({"wait_ms": 2500}));
    lost.lost(ms(4000)).await?;
    pause(1500).await;
    kept.is_held("B16", "its server was well all the time").await?;
    kept.release().await?;
    let outcome = hangs.outcome(PATIENCE).await?;
    ensure!(!matches!(outcome, Outcome::Acquired(_)), "B5", "acquired without an answer");
    proxy.flow();
    second.is_clean(ms(2000)).await?;
    w.server.is_clean(ms(6000)).await
}

/// A session survives a lost connection that the client replaces within the grace.
async fn session_cut(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 30_000, "session_ms": 1500})).await?;
    let long = c.acquire("mutex", "long", json!({"wait_ms": 0, "lease_ms": 30_000, "session_ms": 12_000})).await?;
    for _ in 0..2 {
        let renewals = || proxy.seen_of("RENEW").iter().filter(|seen| seen.words[1] == "long").count();
        let before = renewals();
        proxy.cut();
        pause(2200).await;
        ensure!(renewals() > before, "B16", "2.2 s after its connection was cut no RENEW was sent");
        hold.is_held("B16", "its connection was made anew within the grace").await?;
        let left = w.server.lease_left("k", hold.token()).await?;
        ensure!(left > 0, "B13 B16", "the server has ended it, and it is believed");
    }
    hold.release().await?;
    long.release().await?;
    w.server.is_clean(ms(2000)).await
}

/// The grace runs from the moment at which the server sees the connection close.
async fn session_lost(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 30_000, "session_ms": 1000})).await?;
    pause(300).await;
    proxy.refuse(true);
    let cut = now_us();
    proxy.cut();
    hold.lost_before(cut + us(1000)).await?;
    proxy.refuse(false);
    w.server.is_clean(ms(3000)).await
}

/// The server sees the connection close, and the client does not.
async fn session_end_unseen(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 30_000, "session_ms": 1000})).await?;
    pause(1500).await;
    hold.is_held("B16", "its session is renewed").await?;
    proxy.stall();
    let closed = now_us();
    w.server.ask("CLIENT KILL TYPE normal").await?;
    hold.lost_before(closed + us(1000)).await?;
    // A renewal that arrives before the end of the session would extend it.
    w.server.is_clean(ms(1500)).await?;
    proxy.flow();
    w.server.is_clean(ms(3000)).await
}

/// An answer that takes longer than the grace does not say that the session still exists.
async fn session_slow_answer(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    c.acquire("mutex", "before", json!({"wait_ms": 0})).await?.release().await?;
    proxy.delay(700);
    let session = json!({"wait_ms": 8000, "lease_ms": 30_000, "session_ms": 1000});
    let outcome = c.begin("mutex", "k", session).outcome(PATIENCE).await?;
    ensure!(!matches!(outcome, Outcome::Acquired(_)), "B13", "a session of 1 s, and answers that take 1.4 s");
    proxy.delay(0);
    w.server.is_clean(ms(5000)).await
}

async fn clock_jump(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 30_000})).await?;
    hold.is_claimed(&w.server).await?;
    // Renewals cannot arrive, so only the clock counts.
    proxy.stall();
    c.call("clock", json!({"advance_ms": 10_000})).ok(PATIENCE).await?;
    hold.is_held("B13", "10 s of a lease of 30 s have passed").await?;
    c.call("clock", json!({"advance_ms": 25_000})).ok(PATIENCE).await?;
    let (held, _) = hold.held().await?;
    ensure!(!held, "B13 B15", "35 s of a lease of 30 s have passed, and `held` is true");
    hold.lost(ms(3000)).await?;
    proxy.flow();
    Ok(())
}
