//! Each kind of lock without faults.

use std::collections::{HashMap, HashSet};

use serde_json::json;

use super::scenarios;
use super::waiting::warm_up;
use crate::broken::{Broken, Under, ensure};
use crate::clock::now_us;
use crate::program::Answer;
use crate::world::{Outcome, PATIENCE, TYPED, World, ms, pause};

scenarios! {
    short "kind-mutex", "B5 B6 B13 B26", [], |w| exclusive(w, "mutex", "m");
    short "kind-fair", "B5 B6 B13 B26", [], |w| exclusive(w, "fair", "f");
    short "kind-write", "B5 B6 B13 B26", [], |w| exclusive(w, "write", "w");
    short "kind-many", "B5 B6 B13 B26", [], |w| exclusive(w, "many", "m1 m2 m3");
    short "kind-read-write", "B5 B6", [], readers_and_writer;
    short "kind-semaphore", "B5 B6 B12", [], semaphore;
    short "reentry-default-owner", "B1 B3", [], default_owner;
    short "reentry-named-owner", "B3", [], named_owner;
    short "reentry-some-keys", "B3 B28", [], some_keys;
    short "run-keeps-result", "B22", [], run_keeps_result;
    short "lead", "B15 B21", [], lead;
    short "lead-again", "B15", [], lead_again;
    short "run-cancelled", "B11 B22", [], run_cancelled;
    short "owners", "B1 B4", [], owners;
    short "keep", "B21", [], keep;
    short "note", "B6", [], note;
    short "words-on-the-wire", "B1 B4 B6 B7 B11 B16 B21", ["timed"], words_on_the_wire;
    short "shared-owner", "B1 B3", ["shared-owner"], shared_owner;
}

async fn exclusive(w: &World, kind: &str, keys: &str) -> Result<(), Broken> {
    let (one, other) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    let first = one.acquire(kind, keys, json!({"wait_ms": 0, "lease_ms": 10_000})).await?;
    first.is_within_lease(&w.server).await?;
    first.is_held("B15", "nothing has happened").await?;
    other.is_refused(kind, keys, json!({"wait_ms": 0})).await?;
    other.is_refused(kind, keys, json!({"wait_ms": 150})).await?;
    let waits = other.begin(kind, keys, json!({"lease_ms": 10_000}));
    w.server.until_waiting(1).await?;
    first.release().await?;
    ensure!(!first.held().await?.0, "B21", "a hold is believed after its release");
    let left = w.server.lease_left(&first.keys[0], first.token()).await?;
    ensure!(left < 0, "B21", "the server has it for {left} ms after its release");
    let second = waits.acquired(PATIENCE).await?;
    ensure!(second.token() > first.token(), "B26", "tokens {:?}, then {:?}", first.tokens, second.tokens);
    second.is_within_lease(&w.server).await?;
    second.release().await?;
    let third = other.acquire(kind, keys, json!({"wait_ms": 5000, "fixed_lease_ms": 10_000})).await?;
    third.release().await?;
    w.server.is_clean(ms(3000)).await
}

async fn readers_and_writer(w: &World) -> Result<(), Broken> {
    let (one, other) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    let reader = one.acquire("read", "k", json!({"wait_ms": 0})).await?;
    let beside = other.acquire("read", "k", json!({"wait_ms": 0})).await?;
    other.is_refused("write", "k", json!({"wait_ms": 0})).await?;
    let writes = other.begin("write", "k", json!({"wait_ms": 10_000}));
    w.server.until_waiting(1).await?;
    reader.release().await?;
    beside.release().await?;
    let writer = writes.acquired(PATIENCE).await?;
    one.is_refused("read", "k", json!({"wait_ms": 0})).await?;
    writer.release().await?;
    w.server.is_clean(ms(3000)).await
}

async fn semaphore(w: &World) -> Result<(), Broken> {
    let (one, other) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    let unmade = one.begin("semaphore", "s", json!({"wait_ms": 1000}));
    unmade.fails(PATIENCE, "B12 B28", "Refused", "NOSEMAPHORE").await?;
    ensure!(one.init("s", 3).await?, "B28", "init of a new semaphore says that it was there");
    ensure!(!one.init("s", 3).await?, "B28", "init of a semaphore that is there says that it was made");
    let two = one.acquire("semaphore", "s", json!({"permits": 2, "wait_ms": 0})).await?;
    let single = other.acquire("semaphore", "s", json!({"wait_ms": 0})).await?;
    other.is_refused("semaphore", "s", json!({"wait_ms": 0})).await?;
    let waits = other.begin("semaphore", "s", json!({"permits": 2, "wait_ms": 10_000}));
    w.server.until_waiting(1).await?;
    two.release().await?;
    let two = waits.acquired(PATIENCE).await?;
    ensure!(w.server.field("s", "holders-count").await? == 2, "B21", "not two owners have permits");
    two.release().await?;
    single.release().await?;
    w.server.is_clean(ms(3000)).await
}

/// In Java and Python a thread or task is an owner. In other languages each acquisition has its own owner by default.
async fn default_owner(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let in_task = |task: &str| json!({"wait_ms": 0, "task": task, "lease_ms": 10_000});
    let outer = c.acquire("mutex", "k", in_task("t1")).await?;
    c.is_refused("mutex", "k", in_task("t2")).await.under("B1")?;
    if !matches!(w.program.language(), "java" | "python") {
        c.is_refused("mutex", "k", in_task("t1")).await.under("B1")?;
        outer.release().await?;
        return w.server.is_clean(ms(3000)).await;
    }
    let inner = c.acquire("mutex", "k", in_task("t1")).await.under("B1 B3")?;
    ensure!(inner.token() == outer.token(), "B3", "a re-entry has another token");
    inner.release_with(json!({"task": "t1"})).await?;
    c.is_refused("mutex", "k", in_task("t2")).await.under("B1")?;
    outer.is_held("B3", "an inner release is not the last").await?;
    outer.release_with(json!({"task": "t1"})).await?;
    w.server.is_clean(ms(3000)).await
}

async fn named_owner(w: &World) -> Result<(), Broken> {
    for kind in ["mutex", "fair", "write"] {
        let c = w.client(&w.server.url()).await?;
        let named = || json!({"wait_ms": 0, "owner": "alice", "task": "alice", "lease_ms": 10_000});
        let outer = c.acquire(kind, kind, named()).await?;
        let inner = c.acquire(kind, kind, named()).await?;
        ensure!(inner.token() == outer.token(), "B3", "a re-entry has another token");
        let told = w.server.info(kind).await?;
        ensure!(told.contains("alice"), "B1", "the server does not know the named owner: {told}");
        inner.release_with(json!({"task": "alice"})).await?;
        w.client(&w.server.url()).await?.is_refused(kind, kind, json!({"wait_ms": 0})).await?;
        outer.release_with(json!({"task": "alice"})).await?;
        w.server.is_clean(ms(3000)).await?;
    }
    Ok(())
}

/// An owner that holds some of several keys, but not all, asks for them.
async fn some_keys(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let named = |wait_ms| json!({"wait_ms": wait_ms, "owner": "alice", "task": "alice", "lease_ms": 10_000});
    for (kind, keys, asked, missing) in [("mutex", "a", "a b", "b"), ("many", "a b", "b c", "c")] {
        let hold = c.acquire(kind, keys, named(0)).await?;
        let sent = proxy.seen().len();
        for wait_ms in [0, 1000] {
            let outcome = c.outcome("many", asked, named(wait_ms)).await?;
            let is_misuse = matches!(&outcome, Outcome::Error { name, .. } if !TYPED.contains(&name.as_str()));
            ensure!(is_misuse, "B3 B28", "the owner of {keys:?} asked for {asked:?}: {outcome}");
        }
        let count = w.server.field(missing, "holders-count").await?;
        ensure!(count == 0, "B3", "{missing:?} is held after misuse");
        let seen = proxy.seen().split_off(sent);
        let changes = |seen: &crate::proxy::Seen| seen.is("ACQUIRE") || seen.is("RELEASE") || seen.is("CANCEL");
        ensure!(!seen.iter().any(changes), "B3", "misuse was sent to the server: {seen:?}");
        hold.is_held("B3", "its owner asked for more keys").await?;
        let left = w.server.lease_left(&hold.keys[0], hold.token()).await?;
        ensure!(left > 0, "B3", "the server has ended the hold of {keys:?} after misuse");
        hold.release_with(json!({"task": "alice"})).await?;
        w.server.is_clean(ms(2000)).await?;
    }
    Ok(())
}

async fn run_keeps_result(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let run = |hold: &str, more: serde_json::Value| {
        let mut fields = json!({"hold": hold, "kind": "mutex", "keys": [hold], "wait_ms": 5000, "lease_ms": 600});
        fields.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        c.call("run", fields)
    };
    let done = run("done", json!({"work_ms": 50})).ok(PATIENCE).await?;
    ensure!(done["result"] == "done", "B22", "the result of the work is {done}");
    let is_failure = |answer: &Answer| answer.to_string().contains("boom 42");
    let failed = run("fails", json!({"work_ms": 50, "fails": "boom 42"})).answer(PATIENCE).await?;
    ensure!(is_failure(&failed), "B22", "the work's own error became {failed}");
    // An operator ends the hold during the work.
    for (hold, more) in [("lost", json!({})), ("lost-fails", json!({"fails": "boom 42"}))] {
        let mut fields = json!({"work_ms": 700, "fixed_lease_ms": 10_000, "lease_ms": null});
        fields.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        fields.as_object_mut().expect("an object").retain(|_, value| !value.is_null());
        let call = run(hold, fields);
        let deadline = now_us() + 10_000_000;
        while w.server.number(&format!("RLOCK.FORCERELEASE {hold}")).await? == 0 {
            ensure!(now_us() < deadline, "B5", "run does not acquire");
            pause(2).await;
        }
        let answer = call.answer(PATIENCE).await?;
        if hold == "lost" {
            // A function form returns the result of the work; a scoped form fails with `LockLost`.
            let is_fair = matches!(&answer, Answer::Ok(ok) if ok["result"] == "done")
                || matches!(&answer, Answer::Error { name, .. } if name == "LockLost");
            ensure!(is_fair, "B22", "work whose hold was lost ended with {answer}");
        } else {
            let is_lost = matches!(&answer, Answer::Error { name, .. } if name == "LockLost");
            ensure!(is_failure(&answer) || is_lost, "B22", "the work's own error became {answer}");
        }
    }
    w.server.is_clean(ms(3000)).await
}

async fn lead(w: &World) -> Result<(), Broken> {
    let (one, other) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    let lead = |client: &crate::world::Client, hold: &str| {
        client.call("lead", json!({"hold": hold, "keys": ["leader"], "lease_ms": 2000}))
    };
    let first = lead(&one, "first");
    if w.program.event("elected", "first", ms(5000)).await.is_none() {
        let answer = first.answer_or("B15", ms(10)).await?;
        return Err(Broken::new("B28", format!("no leader was elected; answer to lead: {answer}")));
    }
    let second = lead(&other, "second");
    w.server.until_waiting(1).await?;
    ensure!(w.program.event("elected", "second", ms(0)).await.is_none(), "B15", "there are two leaders");
    w.program.call("cancel", json!({"request": first.id})).answer(PATIENCE).await?;
    first.answer_or("B24", PATIENCE).await?;
    let elected = w.program.event("elected", "second", PATIENCE).await;
    ensure!(elected.is_some(), "B21", "no leader was elected after the first one stopped");
    w.program.call("cancel", json!({"request": second.id})).answer(PATIENCE).await?;
    second.answer_or("B24", PATIENCE).await?;
    w.server.is_clean(ms(3000)).await
}

/// A leader whose hold is ended by force reports the loss, and is elected again.
async fn lead_again(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let leads = c.call("lead", json!({"hold": "leader", "keys": ["leader"], "lease_ms": 900}));
    let elected = async |count: usize| {
        let deadline = now_us() + 10_000_000;
        loop {
            let events = w.program.events("elected");
            if let Some(event) = events.get(count - 1) {
                return Ok(event["at_us"].as_i64().unwrap_or_default());
            }
            ensure!(now_us() < deadline, "B15", "elected {} times, not {count}", events.len());
            pause(5).await;
        }
    };
    elected(1).await?;
    w.server.ask("RLOCK.FORCERELEASE leader").await?;
    let again = elected(2).await?;
    let lost = w.program.event("lost", "leader", ms(1000)).await;
    let lost = lost.ok_or_else(|| Broken::new("B15", "the end of the first term was not reported"))?;
    ensure!(
        lost["at_us"].as_i64() <= Some(again),
        "B15",
        "the end of the first term was reported after the second had begun"
    );
    w.program.call("cancel", json!({"request": leads.id})).answer(PATIENCE).await?;
    leads.answer_or("B24", PATIENCE).await?;
    w.program.forget();
    w.server.is_clean(ms(3000)).await
}

/// Cancelled work releases its lock, and work does not start if its wait was cancelled.
async fn run_cancelled(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let run = |hold: &str| {
        c.call("run", json!({"hold": hold, "kind": "mutex", "keys": ["k"], "wait_ms": 30_000, "lease_ms": 30_000, "work_ms": 2500}))
    };
    let (working, deadline) = (run("working"), now_us() + 10_000_000);
    while w.server.gauge("rlock_held").await? == 0 {
        ensure!(now_us() < deadline, "B5", "run does not acquire");
        pause(2).await;
    }
    let waiting = run("waiting");
    w.server.until_waiting(1).await?;
    for (call, is_at_work) in [(waiting, false), (working, true)] {
        w.program.call("cancel", json!({"request": call.id})).answer(PATIENCE).await?;
        let answer = call.answer_or("B11", ms(1500 + 5000 * u64::from(is_at_work))).await?;
        let is_cancelled = matches!(&answer, Answer::Error { name, .. } if name == "Cancelled");
        // Work that ignores the cancellation runs to its end.
        let is_done = is_at_work && matches!(&answer, Answer::Ok(_));
        ensure!(is_cancelled || is_done, "B11 B22", "cancelled work ended with {answer}");
    }
    w.server.is_clean(ms(3000)).await
}

/// Each task has its own owner, also a task that starts after another one has ended. Ids start at the clock and rise.
async fn owners(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let began = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    for number in 0..8 {
        let task = format!("owner-{number}");
        let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "task": task})).await?;
        hold.release_with(json!({"task": task})).await?;
    }
    let asked = proxy.seen_of("ACQUIRE");
    let names: std::collections::HashSet<_> = asked.iter().map(|seen| seen.words[2].clone()).collect();
    ensure!(names.len() == asked.len(), "B1", "{} tasks have {} owners: {names:?}", asked.len(), names.len());
    let ids: Vec<_> = asked.iter().filter_map(|seen| seen.option("REQ")?.parse::<u128>().ok()).collect();
    ensure!(ids.windows(2).all(|pair| pair[0] < pair[1]), "B4", "ids do not rise: {ids:?}");
    // The process may have started some minutes ago.
    let hour = 3_600_000_000;
    let is_near = |id: &u128| (began.as_micros() - hour..began.as_micros() + hour).contains(id);
    ensure!(ids.iter().all(is_near), "B4", "ids do not begin at the clock: {ids:?}");
    w.server.is_clean(ms(2000)).await
}

async fn keep(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 10_000})).await?;
    hold.release_with(json!({"keep_ms": 700})).await?;
    c.is_refused("mutex", "k", json!({"wait_ms": 0})).await?;
    let again = c.acquire("mutex", "k", json!({"wait_ms": 5000})).await?;
    let releases = proxy.seen_of("RELEASE");
    let plain = releases.iter().filter(|seen| seen.option("TOKEN") == Some(&hold.token().to_string()));
    ensure!(plain.clone().all(|seen| seen.option("KEEP").is_some()), "B21", "a RELEASE without KEEP followed");
    ensure!(again.token() > hold.token(), "B21", "the kept lock was not opened by its time");
    again.release().await?;
    w.server.is_clean(ms(3000)).await
}

async fn note(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    for (kind, key) in [("mutex", "m"), ("fair", "f"), ("read", "r"), ("write", "w"), ("many", "a b")] {
        let hold = c.acquire(kind, key, json!({"wait_ms": 0, "note": "build 7"})).await?;
        let info = w.server.info(&hold.keys[0]).await?;
        ensure!(info.contains("build 7"), "B6", "the note of a {kind} is not in INFO: {info}");
        hold.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}

/// The options that the rules demand of each command.
async fn words_on_the_wire(w: &World) -> Result<(), Broken> {
    const KINDS: [(&str, &str); 5] =
        [("mutex", "m"), ("fair", "f"), ("write", "w"), ("many", "a b"), ("semaphore", "s")];
    warm_up(&w.client(&w.server.url()).await?).await?;
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    c.init("s", 1).await?;
    for lease_ms in [1000, 9000] {
        for (kind, key) in KINDS {
            let first = c.acquire(kind, key, json!({"wait_ms": 5000, "lease_ms": lease_ms})).await?;
            let waits = c.begin(kind, key, json!({"wait_ms": 5000, "lease_ms": lease_ms}));
            w.server.until_waiting(1).await?;
            first.release().await?;
            let second = waits.acquired(PATIENCE).await?;
            // It is claimed.
            pause(70).await;
            second.release().await?;
        }
    }
    for (kind, key) in KINDS {
        let hold = c.acquire(kind, key, json!({"wait_ms": 0})).await?;
        let waits = c.begin(kind, key, json!({"wait_ms": 5000}));
        w.server.until_waiting(1).await?;
        waits.cancelled().await?;
        w.server.until_waiting(0).await?;
        hold.release().await?;
    }
    let deadline = now_us() + 2_000_000;
    while now_us() < deadline && proxy.settled().len() < KINDS.len() {
        pause(5).await;
    }
    // The client subscribes before it asks.
    let seen = proxy.seen();
    let first =
        |is_it: &dyn Fn(&crate::proxy::Seen) -> bool| seen.iter().find(|seen| is_it(seen)).map(|seen| seen.at_us);
    let listens = first(&|seen| seen.words[0].ends_with("SUBSCRIBE"));
    let asks = first(&|seen| seen.option("NOTIFY").is_some());
    ensure!(listens.is_some() && listens < asks, "B7", "it asks at {asks:?}, and subscribes at {listens:?}");
    let (mut ids, mut clients) = (HashMap::new(), HashSet::new());
    for seen in &seen {
        let Some(owner) = seen.owner().filter(|_| seen.words[0].starts_with('R') && !seen.words[0].ends_with(".INIT"))
        else {
            continue;
        };
        let text = seen.words.join(" ");
        let number = |name: &str| seen.option(name).and_then(|text| text.parse::<u64>().ok());
        let has = |option: &str| seen.words.iter().any(|word| word == option);
        let (id, is_many) = (number("REQ"), seen.words[0].starts_with("RLOCK.M"));
        let client: String = owner.chars().take(32).collect();
        if seen.is("ACQUIRE") {
            ensure!(id.is_some() && has("TIMED"), "B6", "no REQ or no TIMED: {text}");
            let claim = number("PX").map(|lease| lease.min(2000));
            ensure!(number("CLAIM") == claim, "B6", "CLAIM is not the smaller of 2 s and the lease: {text}");
            if let Some(block) = number("BLOCK") {
                ensure!((1..=5000).contains(&block), "B6", "BLOCK is not what is left of the timeout: {text}");
                let channel = seen.option("NOTIFY").unwrap_or_default();
                ensure!(channel.contains(&client), "B7", "the channel does not contain the id of the client: {text}");
            }
        } else if seen.is("CANCEL") {
            ensure!(ids.get(owner) == Some(&id), "B11", "CANCEL without the id of the request: {text}");
        } else {
            let rule = if seen.is("RENEW") { "B16" } else { "B21" };
            ensure!(has(if is_many { "TOKENS" } else { "TOKEN" }), rule, "no token: {text}");
            ensure!(!is_many || seen.is("RENEW") || has("EACH"), "B21", "no EACH: {text}");
        }
        ensure!(
            client.len() == 32 && client.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "B1",
            "no client id: {text}"
        );
        clients.insert(client);
        if id.is_some() {
            let last = ids.insert(owner, id);
            ensure!(last.is_none_or(|last| last <= id), "B4", "REQ went down: {text}");
        }
    }
    ensure!(clients.len() == 1, "B1", "one client has several ids: {clients:?}");
    ensure!(proxy.settled().len() == KINDS.len(), "B11", "of 5 cancelled waits, {} were", proxy.settled().len());
    Ok(())
}

/// A named owner belongs to one client. A shared owner has the same name in each client, and the server counts its holds.
async fn shared_owner(w: &World) -> Result<(), Broken> {
    let (one, other) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    let named = || json!({"wait_ms": 0, "owner": "alice", "lease_ms": 10_000});
    let hold = one.acquire("mutex", "k", named()).await?;
    other.is_refused("mutex", "k", named()).await.under("B1")?;
    hold.release().await?;
    let shared = || json!({"wait_ms": 0, "shared_owner": "bob", "lease_ms": 10_000});
    let first = one.acquire("mutex", "k", shared()).await?;
    let second = other.acquire("mutex", "k", shared()).await.under("B1")?;
    first.release().await?;
    let left = w.server.lease_left("k", second.token()).await?;
    ensure!(left > 0, "B3", "a release in one client has ended the hold of its owner in another");
    second.release().await?;
    w.server.is_clean(ms(2000)).await
}
