//! What follows the loss of a hold.

use serde_json::{Value, json};

use super::scenarios;
use super::waiting::warm_up;
use crate::broken::{Broken, Under, ensure};
use crate::clock::now_us;
use crate::program::{Answer, Call};
use crate::world::{Client, Hold, PATIENCE, World, merged, ms, pause};

scenarios! {
    short "loss-then-acquire", "B32", ["B32"], then_acquire;
    short "loss-then-acquire-renewed", "B32", ["B32"], then_acquire_renewed;
    short "loss-inner-release", "B32", ["B32"], inner_release;
    short "reentry-closed-twice", "B32", ["B32"], closed_twice;
    short "loss-first", "B22", [], loss_first;
    short "loss-first-forced", "B22", [], forced;
    short "loss-overwritten", "B21", [], overwritten;
    short "loss-overwritten-run", "B21", [], overwritten_run;
}

/// Fails unless the release of a lost hold says so.
async fn reports_loss(hold: &Hold, options: Value, rules: &str, why: &str) -> Result<(), Broken> {
    let answer = hold.releasing(options).answer(PATIENCE).await.under(rules)?;
    let is_loss = match &answer {
        Answer::Ok(ok) => ok["released"] == false,
        Answer::Error { name, .. } => name == "LockLost",
    };
    ensure!(is_loss, rules, "{why}: its release answered {answer}");
    Ok(())
}

/// The options of one owner: the thread or task, or a name.
fn owners() -> [(&'static str, Value); 2] {
    [("task", json!({"task": "owner"})), ("named", json!({"task": "named", "owner": "alice"}))]
}

/// A fixed lease ends without a release. Then the same owner acquires again.
async fn then_acquire(w: &World) -> Result<(), Broken> {
    let (c, other) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    for (who, owner) in owners() {
        for kind in ["mutex", "fair", "write"] {
            let why = format!("{who}, {kind}");
            let with = |options: Value| merged(options, &owner);
            let first = c.acquire(kind, kind, with(json!({"wait_ms": 0, "fixed_lease_ms": 500}))).await?;
            first.lost(ms(4000)).await?;
            let taken = other.acquire(kind, kind, json!({"wait_ms": 5000})).await?;
            c.is_refused(kind, kind, with(json!({"wait_ms": 0}))).await.under("B32").during(&why)?;
            let waits = c.begin(kind, kind, with(json!({"wait_ms": 10_000, "lease_ms": 10_000})));
            w.server.until_waiting(1).await.under("B32").during(&why)?;
            taken.release().await?;
            let second = waits.acquired(PATIENCE).await.under("B32").during(&why)?;
            ensure!(second.token() > taken.token(), "B32", "{why}: an older token: {:?}", second.tokens);
            ensure!(!first.held().await?.0, "B32", "{why}: the lost hold is believed again");
            second.is_held("B32", &why).await?;
            // Where the owner releases, its newest hold comes first.
            second.release_with(owner.clone()).await.under("B32").during(&why)?;
            reports_loss(&first, owner.clone(), "B32", &why).await?;
            c.acquire(kind, kind, with(json!({"wait_ms": 0}))).await.under("B32")?.release_with(owner.clone()).await?;
            w.server.is_clean(ms(3000)).await?;
        }
    }
    Ok(())
}

/// The server still has the hold that the client has lost. The next acquisition of the owner gets another one.
async fn then_acquire_renewed(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    warm_up(&c).await?;
    for (who, owner) in owners() {
        let first = c.acquire("mutex", who, merged(json!({"wait_ms": 5000, "lease_ms": 900}), &owner)).await?;
        proxy.stall_replies();
        first.lost(ms(5000)).await?;
        let again = merged(json!({"wait_ms": 10_000, "lease_ms": 900}), &owner);
        let acquires = c.begin("mutex", who, again);
        pause(100).await;
        proxy.flow();
        let second = acquires.acquired(PATIENCE).await.under("B32").during(who)?;
        ensure!(second.token() > first.token(), "B32", "{who}: the lost hold was acquired again");
        // Time itself: the release of the lost hold, and some renewals.
        pause(1500).await;
        second.is_held("B32", who).await?;
        let left = w.server.lease_left(&second.keys[0], second.token()).await?;
        ensure!(left > 0, "B32", "{who}: the release of the lost hold ended the new one");
        second.release_with(owner.clone()).await?;
        reports_loss(&first, owner, "B32", who).await?;
        w.server.is_clean(ms(3000)).await?;
    }
    Ok(())
}

/// Acquires twice for one owner.
async fn entered_twice(c: &Client, lease: &str, lease_ms: u32) -> Result<(Hold, Hold, Value), Broken> {
    let owner = json!({"task": "alice", "owner": "alice"});
    let mut options = merged(json!({"wait_ms": 20_000}), &owner);
    options[lease] = json!(lease_ms);
    let outer = c.acquire("mutex", "k", options.clone()).await?;
    let inner = c.acquire("mutex", "k", options).await?;
    ensure!(inner.token() == outer.token(), "B3", "a re-entry has another token");
    Ok((outer, inner, owner))
}

async fn inner_release(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let (outer, inner, owner) = entered_twice(&c, "fixed_lease_ms", 900).await?;
    outer.lost(ms(4000)).await?;
    reports_loss(&inner, owner.clone(), "B32", "an inner re-entry after the loss").await?;
    reports_loss(&outer, owner.clone(), "B32", "the outermost acquisition after the loss").await?;
    let again = c.acquire("mutex", "k", merged(json!({"wait_ms": 0}), &owner)).await.under("B32")?;
    again.release_with(owner).await?;
    w.server.is_clean(ms(3000)).await
}

async fn closed_twice(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let (outer, inner, owner) = entered_twice(&c, "lease_ms", 10_000).await?;
    inner.release_with(owner.clone()).await?;
    // It may fail as misuse, or do nothing.
    inner.releasing(owner.clone()).answer(PATIENCE).await?;
    outer.is_held("B32", "its inner re-entry was released twice").await?;
    let left = w.server.lease_left("k", outer.token()).await?;
    ensure!(left > 0, "B32", "an inner re-entry that was released twice has freed the lock");
    outer.release_with(owner).await?;
    w.server.is_clean(ms(3000)).await
}

/// Waits until the work of `run` has begun.
async fn until_held(w: &World, holds: i64) -> Result<(), Broken> {
    let deadline = now_us() + 20_000_000;
    while w.server.gauge("rlock_held").await? < holds {
        ensure!(now_us() < deadline, "B5", "run does not acquire");
        pause(2).await;
    }
    Ok(())
}

async fn ends_lost(call: Call, rules: &str, why: &str) -> Result<(), Broken> {
    let answer = call.answer(PATIENCE).await?;
    let is_lost = matches!(&answer, Answer::Error { name, .. } if name == "LockLost");
    ensure!(is_lost, rules, "{why}, and `run` answered {answer}");
    Ok(())
}

/// The process stalls at work until its lease and its work are over. The loss comes first.
async fn loss_first(w: &World) -> Result<(), Broken> {
    let sleeper = w.another_program().await?;
    let c = w.client_with(&sleeper, json!({"url": w.server.url()})).await?;
    warm_up(&c).await?;
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("write", "w"), ("many", "a b")] {
        let hold = format!("stalled-{kind}");
        let keys: Vec<_> = keys.split_whitespace().collect();
        let fields =
            json!({"hold": hold, "kind": kind, "keys": keys, "wait_ms": 5000, "lease_ms": 1000, "work_ms": 1500});
        let runs = c.call("run", fields);
        until_held(w, keys.len() as i64).await?;
        // The answer arrives, and the work begins.
        pause(300).await;
        sleeper.stop().await;
        pause(2000).await;
        ensure!(w.server.gauge("rlock_held").await? == 0, "driver", "the lease of a stopped process has not ended");
        sleeper.go_on();
        ends_lost(runs, "B22", "its process stalled until the lease was over").await.during(kind)?;
        let steps = sleeper.event("step", &hold, ms(300)).await.is_some();
        ensure!(!(steps && sleeper.has("stops-work")), "B22", "{kind}: the work took a step under a lost lock");
    }
    w.server.is_clean(ms(3000)).await
}

/// An operator ends the hold, and the work ends before the client can know.
async fn forced(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let fields =
        json!({"hold": "forced", "kind": "mutex", "keys": ["k"], "wait_ms": 5000, "lease_ms": 30_000, "work_ms": 500});
    let runs = c.call("run", fields);
    until_held(w, 1).await?;
    w.server.ask("RLOCK.FORCERELEASE k").await?;
    ends_lost(runs, "B22", "its hold was ended by force during the work").await?;
    w.server.is_clean(ms(3000)).await
}

const KINDS: [(&str, &str); 6] =
    [("mutex", "m"), ("fair", "f"), ("read", "r"), ("write", "w"), ("many", "a b"), ("semaphore", "s")];

/// What another program may do to a key.
const DEEDS: [&str; 2] = ["SET", "DEL"];

async fn deed(w: &World, deed: &str, key: &str) -> Result<(), Broken> {
    let text = if deed == "SET" { "text" } else { "" };
    w.server.ask(&format!("{deed} {key} {text}")).await.map(drop)
}

/// The key is overwritten or deleted, and then released.
async fn overwritten(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    for (kind, keys) in KINDS {
        let key = keys.split(' ').next_back().unwrap_or_default();
        for what in DEEDS {
            for keep in [json!({}), json!({"keep_ms": 1000})] {
                let is_kept = keep.get("keep_ms").is_some();
                if is_kept && !matches!(kind, "mutex" | "fair") {
                    continue;
                }
                if kind == "semaphore" {
                    c.init(key, 2).await?;
                }
                let hold = c.acquire(kind, keys, json!({"wait_ms": 0, "lease_ms": 30_000})).await?;
                deed(w, what, key).await?;
                reports_loss(&hold, keep, "B21", &format!("{kind}, {what}, kept: {is_kept}")).await?;
                deed(w, "DEL", key).await?;
            }
        }
    }
    w.server.is_clean(ms(3000)).await
}

async fn overwritten_run(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    for (kind, keys) in KINDS {
        let key = keys.split(' ').next_back().unwrap_or_default();
        for what in DEEDS {
            if kind == "semaphore" {
                c.init(key, 2).await?;
            }
            let keys: Vec<_> = keys.split(' ').collect();
            let fields = json!({"hold": format!("{kind}-{what}"), "kind": kind, "keys": keys, "wait_ms": 5000, "lease_ms": 30_000, "work_ms": 400});
            let runs = c.call("run", fields);
            until_held(w, keys.len() as i64).await?;
            // Its answer arrives.
            pause(100).await;
            deed(w, what, key).await?;
            ends_lost(runs, "B21", &format!("{kind}, {what}")).await?;
            deed(w, "DEL", key).await?;
        }
    }
    w.server.is_clean(ms(3000)).await
}
