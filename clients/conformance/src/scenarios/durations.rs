//! Durations at the ends of what a language can express: each is misuse, or means what the package documents.

use std::pin::pin;

use serde_json::{Value, json};

use super::scenarios;
use super::waiting::warm_up;
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, us};
use crate::program::Answer;
use crate::world::{Client, Outcome, PATIENCE, TYPED, World, ms};

scenarios! {
    short "duration-lease", "B31", [], leases;
    short "duration-wait-free", "B31", [], waits_for_a_free_lock;
    short "duration-wait-held", "B31", [], waits_for_a_held_lock;
    short "duration-release", "B31", [], releases;
}

fn extremes() -> Vec<Value> {
    vec![json!("inf"), json!("-inf"), json!("nan"), json!("max"), json!("min"), json!(-1), json!(0), json!(0.4)]
}

/// Whether the value is misuse, or the language cannot express it. Fails for an error of the server or the wait.
fn is_misuse(what: &str, name: &str, text: impl std::fmt::Display) -> Result<(), Broken> {
    ensure!(!TYPED.contains(&name), "B31", "{what} is neither misuse nor accepted: {text}");
    Ok(())
}

/// The client still works.
async fn works(w: &World, c: &Client) -> Result<(), Broken> {
    let hold = c.acquire("mutex", "afterwards", json!({"wait_ms": 5000, "lease_ms": 600})).await?;
    // A renewal or two.
    tokio::time::sleep(ms(1000)).await;
    hold.is_held("B31", "the client renews nothing after such durations").await?;
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

async fn leases(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    warm_up(&c).await?;
    let fields = [("mutex", "lease_ms"), ("mutex", "fixed_lease_ms"), ("mutex", "session_ms"), ("fair", "grace_ms")];
    for (kind, field) in fields {
        for value in extremes() {
            let what = format!("{field} of {value}");
            let key = format!("{field}:{value}").replace('"', "");
            let mut options = json!({"wait_ms": 2000});
            options[field] = value.clone();
            let outcome = c.begin(kind, &key, options).outcome(ms(5000)).await.under("B31").during(&what)?;
            let hold = match outcome {
                Outcome::Acquired(hold) => hold,
                Outcome::Error { name, .. } if !TYPED.contains(&name.as_str()) => continue,
                other => return Err(Broken::new("B31", format!("{what} is neither misuse nor accepted: {other}"))),
            };
            let (_, until_us) = hold.held().await?;
            let left = w.server.lease_left(&key, hold.token()).await?;
            ensure!(until_us <= now_us() + us(left.max(0) + 1), "B13 B31", "{what}: it outlasts the server's hold");
            // A tiny one is lost by now.
            match hold.releasing(json!({})).answer(ms(5000)).await.under("B31").during(&what)? {
                Answer::Error { name, .. } if name != "LockLost" => {
                    return Err(Broken::new("B31", format!("{what}: the release failed with {name}")));
                }
                _ => {}
            }
        }
    }
    works(w, &c).await
}

async fn waits_for_a_free_lock(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    warm_up(&c).await?;
    for value in extremes() {
        let what = format!("wait_ms of {value}");
        match c.begin("mutex", "k", json!({"wait_ms": value})).outcome(ms(5000)).await.under("B31").during(&what)? {
            Outcome::Acquired(hold) => hold.release().await?,
            // A wait that is over at once may end without an answer.
            Outcome::NotAcquired => {}
            Outcome::Error { name, .. } if name == "Unavailable" && value.as_f64().is_some() => {}
            Outcome::Error { name, message, .. } => is_misuse(&what, &name, message)?,
        }
    }
    works(w, &c).await
}

/// Waits without an end are granted like others, and the others end at once.
async fn waits_for_a_held_lock(w: &World) -> Result<(), Broken> {
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    warm_up(&c).await?;
    for value in extremes() {
        let what = format!("wait_ms of {value}");
        let hold = holder.acquire("mutex", "k", json!({"wait_ms": 5000})).await?;
        let mut outcome = pin!(c.begin("mutex", "k", json!({"wait_ms": value})).outcome(PATIENCE));
        let (outcome, waited) = tokio::select! {
            outcome = &mut outcome => (outcome, false),
            waiting = w.server.until_waiting(1) => {
                waiting.under("B31").during(&what)?;
                hold.release().await?;
                (outcome.await, true)
            }
        };
        match outcome.under("B31").during(&what)? {
            Outcome::Acquired(other) if waited => other.release().await?,
            Outcome::NotAcquired => {}
            Outcome::Acquired(_) => return Err(Broken::new("B31", format!("{what}: a held lock was acquired"))),
            Outcome::Error { name, .. } if name == "Unavailable" && value.as_f64().is_some() => {}
            Outcome::Error { name, message, .. } => is_misuse(&what, &name, message)?,
        }
        if !waited {
            hold.release().await?;
        }
        w.server.is_clean(ms(3000)).await.during(&what)?;
    }
    works(w, &c).await
}

async fn releases(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    warm_up(&c).await?;
    for value in extremes() {
        let what = format!("keep_ms of {value}");
        let hold = c.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
        let released = hold.releasing(json!({"keep_ms": value})).answer(ms(5000)).await.under("B31").during(&what)?;
        if let Answer::Error { name, .. } = &released {
            is_misuse(&what, name, &released)?;
        }
        // Misuse may leave the hold, and another value may keep the lock closed.
        w.server.ask("RLOCK.FORCERELEASE k").await?;
        let what = format!("idle_ms of {value}");
        let init = c.call("init", json!({"keys": ["s"], "permits": 1, "idle_ms": value}));
        let made = init.answer(ms(5000)).await.under("B31").during(&what)?;
        if let Answer::Error { name, .. } = &made {
            is_misuse(&what, name, &made)?;
        }
        w.server.ask("DEL s").await?;
    }
    works(w, &c).await
}
