//! Waits: timeouts, grants, cancellation, and their traces on the server.

use serde_json::json;

use super::scenarios;
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, slack_us, us};
use crate::proxy::Fate;
use crate::world::{Acquiring, Client, Outcome, PATIENCE, World, merged, ms, pause};

scenarios! {
    short "wait-timeout", "B5", [], timeouts;
    short "wait-timeout-server-stopped", "B5 B11", [], server_stopped;
    short "wait-timeout-stalled", "B5 B11", [], stalled;
    short "wait-timeout-replies-stalled", "B5 B11", [], replies_stalled;
    short "wait-timeout-no-server", "B5 B11", [], no_server;
    short "wait-fair-order", "B6", [], fair_order;
    short "wait-fair-grace", "B6", [], fair_grace;
    short "wait-keeps-place", "B8", [], keeps_place;
    short "wait-try-stalled", "B12", [], try_stalled;
    short "wait-one-subscriber", "B6 B7", [], one_subscriber;
    short "wait-message-cut", "B8 B9", [], message_cut;
    long "wait-message-lost", "B8 B9", [], message_lost;
    short "wait-owner-deadlock", "B12 B28", [], deadlock;
    short "wait-owner-superseded", "B12 B28", [], superseded;
    short "cancel-while-waiting", "B11", [], cancel_while_waiting;
    short "cancel-at-each-await", "B11", [], cancel_at_each_await;
    short "cancel-while-stalled", "B11", [], cancel_while_stalled;
    long "wait-thousand", "B6 B7", [], thousand;
}

/// A JVM loads its classes.
pub(super) async fn warm_up(c: &Client) -> Result<(), Broken> {
    c.acquire("mutex", "before", json!({"wait_ms": 20_000})).await?.release().await
}

/// Fails if the wait lasts longer than its timeout + 1 s.
pub(super) async fn ends_in_time(acquiring: Acquiring, wait_ms: i64) -> Result<Outcome, Broken> {
    let sent_us = acquiring.call.sent_us;
    let outcome = acquiring.outcome(ms(wait_ms as u64 + 10_000)).await?;
    let over = now_us() - sent_us - us(wait_ms);
    ensure!(over <= us(1000) + slack_us(sent_us), "B5", "a wait of {wait_ms} ms took {} ms longer", over / 1000);
    Ok(outcome)
}

async fn timeouts(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    for kind in ["mutex", "fair", "write", "many"] {
        let hold = c.acquire(kind, kind, json!({"wait_ms": 0})).await?;
        for wait_ms in [60, 500] {
            let acquiring = c.begin(kind, kind, json!({"wait_ms": wait_ms}));
            let sent_us = acquiring.call.sent_us;
            let outcome = ends_in_time(acquiring, wait_ms).await?;
            ensure!(matches!(outcome, Outcome::NotAcquired), "B5 B28", "a timeout was reported as {outcome}");
            let early = us(wait_ms) - (now_us() - sent_us);
            ensure!(early <= us(5), "B5", "a wait of {wait_ms} ms ended {} ms too early", early / 1000);
        }
        hold.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}

async fn server_stopped(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    c.acquire("mutex", "k", json!({"wait_ms": 0})).await?.release().await?;
    w.server.stop();
    let [one, other] = ["k", "l"].map(|key| c.begin("mutex", key, json!({"wait_ms": 700})));
    let outcomes = (ends_in_time(one, 700).await, ends_in_time(other, 700).await);
    w.server.go_on();
    nothing_acquired(outcomes.0?)?;
    nothing_acquired(outcomes.1?)?;
    w.server.is_clean(ms(6000)).await
}

fn nothing_acquired(outcome: Outcome) -> Result<(), Broken> {
    ensure!(!matches!(outcome, Outcome::Acquired(_)), "B5", "acquired without a server that answers");
    Ok(())
}

async fn stalled(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (c, fresh) = (w.client(&proxy.url()).await?, w.client(&proxy.url()).await?);
    let holder = w.client(&w.server.url()).await?;
    let hold = holder.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    let waits = c.begin("mutex", "k", json!({"wait_ms": 1200}));
    w.server.until_waiting(1).await?;
    proxy.stall();
    let later = c.begin("mutex", "l", json!({"wait_ms": 500}));
    // This client has never waited, so it has to subscribe first.
    let fresh = fresh.begin("mutex", "l", json!({"wait_ms": 500}));
    nothing_acquired(ends_in_time(later, 500).await?)?;
    nothing_acquired(ends_in_time(fresh, 500).await?)?;
    nothing_acquired(ends_in_time(waits, 1200).await?)?;
    hold.release().await?;
    proxy.flow();
    w.server.is_clean(ms(6000)).await
}

/// The server grants the lock, and the client never receives an answer.
async fn replies_stalled(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client_with(&w.program, json!({"url": proxy.url(), "command_timeout_ms": 1000})).await?;
    // Makes the subscriber.
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    let waits = c.begin("mutex", "k", json!({"wait_ms": 5000}));
    w.server.until_waiting(1).await?;
    hold.release().await?;
    waits.acquired(PATIENCE).await?.release().await?;
    for wait_ms in [700, 0] {
        proxy.stall_replies();
        let acquiring = c.begin("mutex", "k", json!({"wait_ms": wait_ms, "lease_ms": 30_000}));
        nothing_acquired(ends_in_time(acquiring, wait_ms.max(1000)).await?)?;
        proxy.flow();
        w.server.is_clean(ms(6000)).await.during(&format!("wait_ms {wait_ms}"))?;
    }
    Ok(())
}

async fn no_server(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    c.acquire("mutex", "k", json!({"wait_ms": 0})).await?.release().await?;
    proxy.refuse(true);
    proxy.cut();
    let gone = c.begin("mutex", "k", json!({"wait_ms": 600}));
    nothing_acquired(ends_in_time(gone, 600).await?)?;
    // The server becomes reachable within the timeout of the next wait.
    let back = c.begin("mutex", "k", json!({"wait_ms": 10_000}));
    pause(300).await;
    proxy.refuse(false);
    let hold = back.acquired(PATIENCE).await.under("B12")?;
    hold.release().await?;
    w.server.is_clean(ms(6000)).await
}

async fn fair_order(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let first = c.acquire("fair", "f", json!({"wait_ms": 0})).await?;
    let mut waits = Vec::new();
    for place in 0..5 {
        waits.push(c.begin("fair", "f", json!({"wait_ms": 15_000})));
        w.server.until_waiting(place + 1).await?;
    }
    first.release().await?;
    for waits in waits {
        waits.acquired(PATIENCE).await?.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}

/// The server keeps the place of a killed waiter for the grace that the waiter named, instead of its default of 5 s.
async fn fair_grace(w: &World) -> Result<(), Broken> {
    let mortal = w.another_program().await?;
    let (c, next) = (w.client_with(&mortal, json!({"url": w.server.url()})).await?, w.client(&w.server.url()).await?);
    let hold = next.acquire("fair", "f", json!({"wait_ms": 0})).await?;
    let waits = c.begin("fair", "f", json!({"wait_ms": 30_000, "grace_ms": 300}));
    if w.server.until_waiting(1).await.is_err() {
        let outcome = waits.outcome(ms(100)).await?;
        return Err(Broken::new("B6", format!("a wait for a fair lock with a grace ended with {outcome}")));
    }
    let behind = next.begin("fair", "f", json!({"wait_ms": 20_000}));
    w.server.until_waiting(2).await?;
    mortal.kill();
    mortal.ended(PATIENCE).await?;
    w.server.until_waiting(1).await?;
    let began = now_us();
    hold.release().await?;
    let hold = behind.acquired(PATIENCE).await?;
    let took = now_us() - began;
    ensure!(took <= us(2000) + slack_us(began), "B6", "the grace of 300 ms took {} ms", took / 1000);
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

/// A waiter whose connections are cut asks again and keeps its place in the queue of a fair lock.
async fn keeps_place(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (c, other) = (w.client(&proxy.url()).await?, w.client(&w.server.url()).await?);
    let hold = other.acquire("fair", "f", json!({"wait_ms": 0})).await?;
    let first = c.begin("fair", "f", json!({"wait_ms": 20_000}));
    w.server.until_waiting(1).await?;
    let second = other.begin("fair", "f", json!({"wait_ms": 20_000}));
    w.server.until_waiting(2).await?;
    let asked = proxy.seen_of("ACQUIRE").len();
    proxy.cut();
    let deadline = now_us() + us(4000);
    while proxy.seen_of("ACQUIRE").len() == asked {
        ensure!(now_us() < deadline, "B8", "4 s after its connections were cut it has not asked again");
        pause(5).await;
    }
    w.server.until_waiting(2).await?;
    hold.release().await?;
    let (first, at_us) = (first.acquired(PATIENCE).await.under("B8")?, now_us());
    first.release().await?;
    let second = second.acquired(PATIENCE).await?;
    ensure!(first.token() < second.token(), "B8", "it lost its place, {} ms", (now_us() - at_us) / 1000);
    second.release().await?;
    w.server.is_clean(ms(3000)).await
}

/// A try ends soon after its command timeout.
async fn try_stalled(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client_with(&w.program, json!({"url": proxy.url(), "command_timeout_ms": 800})).await?;
    c.acquire("mutex", "k", json!({"wait_ms": 0})).await?.release().await?;
    proxy.stall();
    let tries = c.begin("mutex", "k", json!({"wait_ms": 0, "lease_ms": 20_000}));
    let sent_us = tries.call.sent_us;
    tries.fails(ms(8000), "B12 B28", "Unavailable", "").await?;
    let over = now_us() - sent_us - us(800);
    ensure!(
        over <= us(1200) + slack_us(sent_us),
        "B12",
        "a try with a timeout of 800 ms took {} ms longer",
        over / 1000
    );
    proxy.flow();
    w.server.is_clean(ms(6000)).await
}

/// Each of them is granted the lock, and releases it.
pub(super) async fn one_after_another(waits: Vec<Acquiring>) -> Result<(), Broken> {
    let mut running = tokio::task::JoinSet::new();
    for wait in waits {
        running.spawn(async move { wait.acquired(PATIENCE).await?.release().await });
    }
    while let Some(done) = running.join_next().await {
        done.map_err(|error| Broken::new("driver", error.to_string()))??;
    }
    Ok(())
}

async fn one_subscriber(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    let waits: Vec<_> = (0..30).map(|_| c.begin("mutex", "k", json!({"wait_ms": 20_000}))).collect();
    w.server.until_waiting(30).await?;
    let list = w.server.text("CLIENT LIST").await?;
    let field = |line: &str, name: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(name)).unwrap_or_default().to_owned()
    };
    let blocked = list.lines().filter(|line| field(line, "flags=").contains('b')).count();
    let subscribers =
        list.lines().filter(|line| field(line, "sub=") != "0" || !matches!(field(line, "ssub=").as_str(), "0" | ""));
    ensure!(blocked == 0, "B6", "{blocked} connections block");
    ensure!(subscribers.clone().count() == 1, "B7", "{} connections are subscribed", subscribers.count());
    hold.release().await?;
    one_after_another(waits).await?;
    w.server.is_clean(ms(3000)).await
}

/// The connection of the subscriber is cut when the message arrives.
async fn message_cut(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&proxy.url()).await?);
    let hold = holder.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    let waits = c.begin("mutex", "k", json!({"wait_ms": 15_000, "lease_ms": 30_000}));
    w.server.until_waiting(1).await?;
    let mut is_first = true;
    proxy.on_message(move |_| if std::mem::take(&mut is_first) { Fate::Cut } else { Fate::Pass });
    hold.release().await?;
    let hold = waits.acquired(ms(6000)).await.under("B8")?;
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

/// The message is lost, and the connections stay.
async fn message_lost(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&proxy.url()).await?);
    let hold = holder.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    let waits = c.begin("mutex", "k", json!({"wait_ms": 60_000}));
    w.server.until_waiting(1).await?;
    let mut is_first = true;
    proxy.on_message(move |_| if std::mem::take(&mut is_first) { Fate::Drop } else { Fate::Pass });
    hold.release().await?;
    // The unclaimed grant expires, so the next waiter is granted the lock.
    let other = holder.acquire("mutex", "k", json!({"wait_ms": 10_000})).await;
    let other = other.during("a lost message costs more than the claim").under("B6")?;
    other.release().await?;
    let hold = waits.acquired(ms(36_000)).await.under("B8")?;
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

async fn deadlock(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let of = |owner: &str, wait_ms: u64| json!({"owner": owner, "task": owner, "wait_ms": wait_ms});
    let a = c.acquire("mutex", "a", of("alice", 0)).await?;
    let b = c.acquire("mutex", "b", of("bob", 0)).await?;
    let waits = c.begin("mutex", "b", of("alice", 10_000));
    w.server.until_waiting(1).await?;
    c.begin("mutex", "a", of("bob", 10_000)).fails(PATIENCE, "B12 B28", "Deadlock", "DEADLOCK").await?;
    b.release_with(json!({"task": "bob"})).await?;
    waits.acquired(PATIENCE).await?.release_with(json!({"task": "alice"})).await?;
    a.release_with(json!({"task": "alice"})).await?;
    w.server.is_clean(ms(3000)).await
}

/// Two clients wait in the name of one owner. The first one fails with `Superseded`.
async fn superseded(w: &World) -> Result<(), Broken> {
    let (one, other) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    let hold = one.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    let of_bob = |task: &str| merged(json!({"wait_ms": 10_000, "task": task}), &w.shared("bob"));
    let first = one.begin("mutex", "k", of_bob("one"));
    w.server.until_waiting(1).await?;
    let second = other.begin("mutex", "k", of_bob("other"));
    first.fails(PATIENCE, "B12 B28", "Superseded", "").await?;
    // The first one must not cancel the wait of the second.
    pause(200).await;
    w.server.until_waiting(1).await?;
    hold.release().await?;
    second.acquired(PATIENCE).await?.release_with(json!({"task": "other"})).await?;
    w.server.is_clean(ms(3000)).await
}

async fn cancel_while_waiting(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    for kind in ["mutex", "fair", "read", "many"] {
        let held = if kind == "read" { "write" } else { kind };
        let hold = c.acquire(held, kind, json!({"wait_ms": 0})).await?;
        let waits = c.begin(kind, kind, json!({}));
        w.server.until_waiting(1).await?;
        let began = now_us();
        is_cancelled(waits.cancelled().await?)?;
        let took = now_us() - began;
        ensure!(
            took <= us(500) + slack_us(began),
            "B11",
            "the caller goes on {} ms after it was cancelled",
            took / 1000
        );
        w.server.until_waiting(0).await?;
        hold.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}

/// Fails unless a cancelled acquisition ended by that.
pub(super) fn is_cancelled(outcome: Outcome) -> Result<(), Broken> {
    let cancelled = matches!(&outcome, Outcome::Error { name, .. } if name == "Cancelled");
    ensure!(cancelled, "B11", "a cancelled wait ended with: {outcome}");
    Ok(())
}

/// Cancels acquisitions at each of their steps, on a slow network.
async fn cancel_at_each_await(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&proxy.url()).await?);
    // The first round also makes the subscriber.
    proxy.delay(10);
    for is_free in [false, true] {
        for (round, after) in [0, 1, 2, 5, 10, 15, 20, 25, 30, 40, 50, 60, 80, 100].into_iter().enumerate() {
            let key = format!("{is_free}-{round}");
            let hold = if is_free { None } else { Some(holder.acquire("mutex", &key, json!({"wait_ms": 0})).await?) };
            let acquiring = c.begin("mutex", &key, json!({"lease_ms": 30_000}));
            pause(after).await;
            if let Some(hold) = &hold
                && round % 2 == 1
            {
                // The grant and the cancellation cross each other.
                hold.release().await?;
            }
            match acquiring.cancelled().await? {
                Outcome::Acquired(hold) => hold.release().await?,
                other => is_cancelled(other)?,
            }
            if let Some(hold) = hold
                && round % 2 == 0
            {
                hold.release().await?;
            }
        }
    }
    w.server.is_clean(ms(5000)).await
}

async fn cancel_while_stalled(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    c.acquire("mutex", "k", json!({"wait_ms": 0})).await?.release().await?;
    // The request arrives, and its answer is lost.
    proxy.next("ACQUIRE", 1, Fate::Drop);
    let acquiring = c.begin("mutex", "k", json!({"lease_ms": 30_000}));
    while proxy.seen_of("ACQUIRE").len() < 2 {
        pause(2).await;
    }
    proxy.stall();
    let began = now_us();
    is_cancelled(acquiring.cancelled().await?)?;
    let took = now_us() - began;
    ensure!(took <= us(1000) + slack_us(began), "B11", "the caller goes on {} ms after it was cancelled", took / 1000);
    proxy.clear();
    proxy.cut();
    w.server.is_clean(ms(8000)).await
}

async fn thousand(w: &World) -> Result<(), Broken> {
    let c: Client = w.client(&w.server.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    let work = c.work("mutex", "k", json!({"tasks": 1000, "times": 1, "hold_ms": 0}));
    w.server.until_waiting(1000).await?;
    let clients = w.server.text("CLIENT LIST").await?.lines().count();
    ensure!(clients <= 40, "B6 B7", "{clients} connections for 1000 waits");
    hold.release().await?;
    let said = work.ok(ms(60_000)).await?;
    ensure!(said["done"] == 1000, "B9", "of 1000 waits: {said}");
    w.server.is_clean(ms(3000)).await
}
