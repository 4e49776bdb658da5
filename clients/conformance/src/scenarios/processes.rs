//! Processes that sleep, exit, or are killed.

use serde_json::json;

use super::scenarios;
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, slack_us, us};
use crate::world::{PATIENCE, World, ms, pause};

scenarios! {
    short "sleep-past-lease", "B13 B15", [], sleep_past_lease;
    short "sleep-at-work", "B13 B15", [], sleep_at_work;
    short "sleep-while-waiting", "B9", [], sleep_while_waiting;
    short "killed-with-session", "B13", [], |w| gone(w, true);
    short "exit-with-session", "B13", [], |w| gone(w, false);
}

/// The process sleeps past its lease, and another client acquires the lock meanwhile.
async fn sleep_past_lease(w: &World) -> Result<(), Broken> {
    let sleeper = w.another_program().await?;
    let c = w.client_with(&sleeper, json!({"url": w.server.url()})).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 700})).await?;
    hold.held().await?;
    sleeper.stop().await;
    let next = w.client(&w.server.url()).await?.acquire("mutex", "k", json!({"wait_ms": 10_000})).await?;
    // The first thing that the process does after it wakes is to check its hold.
    let asks = sleeper.call("held", json!({"hold": hold.name}));
    pause(50).await;
    sleeper.go_on();
    let said = asks.ok(PATIENCE).await?;
    ensure!(said["held"] == false, "B13 B15", "after it has slept past its lease `held` is {}", said["held"]);
    hold.lost(ms(3000)).await?;
    next.release().await?;
    w.server.is_clean(ms(2000)).await
}

/// Two processes compete for one lock, and one of them sleeps now and then. Their intervals do not overlap.
async fn sleep_at_work(w: &World) -> Result<(), Broken> {
    let sleeper = w.another_program().await?;
    let one = w.client_with(&sleeper, json!({"url": w.server.url()})).await?;
    let other = w.client(&w.server.url()).await?;
    // The sleeper has one task and holds for longer, so that most sleeps begin in a hold and the
    // server then grants the lock to the other process.
    let work = |hold_ms: u32| json!({"for_ms": 4500, "hold_ms": hold_ms, "wait_ms": 5000, "lease_ms": 600});
    let calls = [one.work("mutex", "k", work(100)), other.work("mutex", "k", work(20))];
    for _ in 0..3 {
        pause(rand::random_range(100..300)).await;
        sleeper.stop().await;
        pause(900).await;
        sleeper.go_on();
    }
    let mut done = 0;
    for call in calls {
        done += call.ok(PATIENCE).await?["done"].as_i64().unwrap_or(0);
    }
    ensure!(done >= 10, "B9", "only {done} holds in 4.5 s");
    // Without intervals there would be nothing to compare.
    ensure!(w.program.events("interval").len() >= 5, "driver", "no intervals");
    w.server.is_clean(ms(5000)).await
}

/// The server grants the lock while the process sleeps, and the claim expires before it wakes.
async fn sleep_while_waiting(w: &World) -> Result<(), Broken> {
    let sleeper = w.another_program().await?;
    let c = w.client_with(&sleeper, json!({"url": w.server.url()})).await?;
    w.server.ask("RLOCK.ACQUIRE k driver PX 60000").await?;
    let waits = c.begin("mutex", "k", json!({"wait_ms": 30_000, "lease_ms": 1000}));
    w.server.until_waiting(1).await?;
    sleeper.stop().await;
    w.server.ask("RLOCK.RELEASE k driver").await?;
    // The driver is granted the lock when the claim has expired.
    let taken = w.server.ask("RLOCK.ACQUIRE k driver PX 60000 BLOCK 8000").await?;
    ensure!(matches!(taken, redis::Value::Int(_)), "driver", "the claim of a sleeper does not end: {taken:?}");
    let began = now_us();
    sleeper.go_on();
    pause(1200).await;
    let released = now_us();
    w.server.ask("RLOCK.RELEASE k driver").await?;
    let hold = waits.acquired(PATIENCE).await.under("B9")?;
    ensure!(
        hold.at_us >= released,
        "B9",
        "it entered {} ms after it woke, with a grant that was over",
        (hold.at_us - began) / 1000
    );
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

/// With a session the next waiter is granted the lock soon after a process has ended.
async fn gone(w: &World, is_killed: bool) -> Result<(), Broken> {
    let mortal = w.another_program().await?;
    let c = w.client_with(&mortal, json!({"url": w.server.url()})).await?;
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("write", "w"), ("many", "a b")] {
        c.acquire(kind, keys, json!({"wait_ms": 0, "lease_ms": 60_000, "session_ms": 500})).await?;
    }
    let next = w.client(&w.server.url()).await?;
    let waits = next.begin("mutex", "m", json!({"wait_ms": 15_000}));
    w.server.until_waiting(1).await?;
    if is_killed {
        mortal.kill();
    } else {
        drop(mortal.call("exit", json!({})));
    }
    let began = now_us();
    let status = mortal.ended(ms(10_000)).await?;
    ensure!(is_killed || status == 0, "B24", "exit ended with status {status}");
    let hold = waits.acquired(PATIENCE).await?;
    let took = now_us() - began;
    ensure!(
        took <= us(1500) + slack_us(began),
        "B13",
        "the next one waited for {} ms with a grace of 500 ms",
        took / 1000
    );
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}
