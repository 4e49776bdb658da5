//! Waits that end while no server answers, or while it refuses.

use serde_json::json;

use super::faults::{PASSING, code, refuse};
use super::scenarios;
use super::waiting::{ends_in_time, warm_up};
use crate::broken::{Broken, Under, ensure};
use crate::program::Answer;
use crate::world::{Acquiring, Outcome, World, ms, pause};

scenarios! {
    short "outage-unreachable", "B33", [], unreachable;
    short "outage-refused", "B33", [], refused;
    short "outage-silent", "B33", [], silent;
    short "outage-accepted", "B33", [], accepted;
    short "outage-over", "B33", [], over;
}

const KINDS: [(&str, &str); 3] = [("mutex", "m"), ("fair", "f"), ("many", "a b")];

/// Fails unless a wait ends with its timeout as an outage, whose text has this word.
async fn is_outage(acquiring: Acquiring, wait_ms: i64, word: &str) -> Result<(), Broken> {
    let outcome = ends_in_time(acquiring, wait_ms).await?;
    let is_it = outcome.is_outage() && outcome.to_string().contains(word);
    ensure!(is_it, "B33", "a wait ended in an outage {word} with: {outcome}");
    Ok(())
}

/// The connections are cut, and new ones are refused; then by a client that has never reached a server.
async fn unreachable(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    warm_up(&c).await?;
    proxy.refuse(true);
    proxy.cut();
    for (kind, keys) in KINDS {
        is_outage(c.begin(kind, keys, json!({"wait_ms": 700})), 700, "").await.during(kind)?;
    }
    // Some libraries connect at once, and fail or try for ever. This process ends with the scenario.
    let other = w.another_program().await?;
    let mut fields = json!({"url": proxy.url()});
    let connecting = tokio::time::timeout(ms(7000), w.try_client(&other, &mut fields)).await;
    if let Ok(Ok((fresh, Answer::Ok(_)))) = connecting {
        // On a busy machine a shorter first wait may end before the first connection has failed.
        is_outage(fresh.begin("mutex", "k", json!({"wait_ms": 2500})), 2500, "").await?;
    }
    proxy.refuse(false);
    w.server.is_clean(ms(6000)).await
}

async fn refused(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    warm_up(&c).await?;
    refuse(&proxy, "ACQUIRE", usize::MAX, &PASSING);
    let begun: Vec<_> =
        PASSING.iter().map(|error| (code(error), c.begin("mutex", code(error), json!({"wait_ms": 800})))).collect();
    for (code, waits) in begun {
        is_outage(waits, 800, code).await?;
    }
    proxy.clear();
    w.server.is_clean(ms(3000)).await
}

/// The server is silent before the request.
async fn silent(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    warm_up(&c).await?;
    proxy.stall();
    for (kind, keys) in KINDS {
        is_outage(c.begin(kind, keys, json!({"wait_ms": 700})), 700, "").await.during(kind)?;
    }
    proxy.flow();
    w.server.is_clean(ms(6000)).await
}

/// The server has accepted the wait, and says nothing when its time is over.
async fn accepted(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&proxy.url()).await?);
    warm_up(&c).await?;
    let hold = holder.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    let waits = c.begin("mutex", "k", json!({"wait_ms": 1500}));
    w.server.until_waiting(1).await?;
    // The answer arrives.
    pause(100).await;
    proxy.stall();
    is_outage(waits, 1500, "").await?;
    proxy.flow();
    hold.release().await?;
    w.server.is_clean(ms(6000)).await
}

/// An outage that is over before the wait ends: the lock is held by another client.
async fn over(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&proxy.url()).await?);
    warm_up(&c).await?;
    let hold = holder.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    proxy.refuse(true);
    proxy.cut();
    let waits = c.begin("mutex", "k", json!({"wait_ms": 5000}));
    pause(300).await;
    proxy.refuse(false);
    let outcome = ends_in_time(waits, 5000).await?;
    ensure!(matches!(outcome, Outcome::NotAcquired), "B33", "another client held the lock to the end: {outcome}");
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}
