//! Lost replies, cut connections, and servers that answer with errors.

use serde_json::json;

use super::scenarios;
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, slack_us, us};
use crate::proxy::{Fate, Proxy, is};
use crate::servers::Server;
use crate::world::{Client, Outcome, PATIENCE, World, ms, pause};

scenarios! {
    short "lost-reply-try", "B8", [], |w| lost_acquire(w, 0);
    short "lost-reply-wait", "B8", [], |w| lost_acquire(w, 10_000);
    short "lost-reply-renew", "B16 B17", [], lost_renew;
    short "lost-reply-release", "B4 B21", [], lost_release;
    short "lost-reply-settlement", "B11", [], lost_settlement;
    short "lost-reply-refused-repeat", "B11", [], refused_repeat;
    short "cut-hand-over", "B8 B9", [], |w| hand_over(w, &[0, 1, 3, 7, 15, 30, 47, 60, 80]);
    long "cut-hand-over-each-byte", "B8 B9", [], hand_over_each_byte;
    short "refused-renewal", "B17", [], refused_renewal;
    short "refused-wait", "B12", [], refused_wait;
    short "refused-try", "B12 B28", [], refused_try;
    short "refused-release", "B21 B22", [], refused_release;
    short "refused-release-then-acquire", "B3 B21", [], refused_release_then_acquire;
    short "refused-for-good", "B12 B28", [], refused_for_good;
    short "wrong-type", "B12 B28", [], wrong_type;
    short "module-missing", "B28", [], module_missing;
    short "module-too-old", "B28", ["timed"], module_too_old;
    short "readonly-holding", "B16 B17", [], readonly_holding;
    short "readonly-until-lost", "B13 B15 B17", [], readonly_until_lost;
    short "readonly-waiting", "B12", [], readonly_waiting;
    short "restart-holding", "B16 B17", [], restart_holding;
    short "restart-waiting", "B8 B12", [], restart_waiting;
    long "server-busy", "B12 B17", [], server_busy;
    long "server-out-of-memory", "B12", [], out_of_memory;
    long "server-quarantine", "B12", [], quarantine;
    short "chaos", "B13 B15", [], |w| chaos(w, 4000);
    long "chaos-long", "B13 B15", [], |w| chaos(w, 40_000);
}

async fn lost_acquire(w: &World, wait_ms: u64) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("write", "w"), ("many", "a b")] {
        for fate in [Fate::LoseReply, Fate::Cut] {
            let before = proxy.seen_of("ACQUIRE").len();
            proxy.next("ACQUIRE", 1, fate.clone());
            let hold = c.acquire(kind, keys, json!({"wait_ms": wait_ms, "lease_ms": 20_000})).await;
            let hold = hold.during(&format!("{fate:?}")).under("B8")?;
            let asked = proxy.seen_of("ACQUIRE").split_off(before);
            let ids: Vec<_> = asked.iter().map(|seen| seen.option("REQ").map(str::to_owned)).collect();
            ensure!(
                ids.windows(2).all(|pair| pair[0] == pair[1]),
                "B8",
                "after a lost reply another id was sent: {ids:?}"
            );
            proxy.clear();
            let count = w.server.info(&hold.keys[0]).await?.matches("\"token\"").count();
            ensure!(count <= 1, "B3", "{count} holds");
            hold.release().await?;
            w.server.is_clean(ms(2000)).await?;
        }
    }
    Ok(())
}

async fn lost_renew(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    for fate in [Fate::LoseReply, Fate::Cut] {
        let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 1500})).await?;
        proxy.next("RENEW", 2, fate.clone());
        pause(2200).await;
        hold.is_held("B16 B17", &format!("two renewals with {fate:?}")).await?;
        hold.release().await?;
    }
    w.server.is_clean(ms(2000)).await
}

async fn lost_release(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    c.init("s", 1).await?;
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("read", "r"), ("many", "a b"), ("semaphore", "s")] {
        for fate in [Fate::LoseReply, Fate::Cut] {
            let hold = c.acquire(kind, keys, json!({"wait_ms": 0, "lease_ms": 30_000})).await?;
            proxy.next("RELEASE", 1, fate.clone());
            let said =
                hold.releasing(json!({})).ok(PATIENCE).await.during(&format!("{kind}, {fate:?}")).under("B21")?;
            ensure!(said["released"] != false, "B21", "{kind}, {fate:?}: its repeated release reported a loss");
            proxy.clear();
            w.server.is_clean(ms(2000)).await?;
        }
    }
    // One owner with two permits. A repeated release must not end the second one.
    c.init("two", 2).await?;
    let named = || json!({"wait_ms": 0, "owner": "alice", "lease_ms": 30_000});
    let first = c.acquire("semaphore", "two", named()).await?;
    // In Java that is misuse.
    let second = c.outcome("semaphore", "two", named()).await?;
    proxy.next("RELEASE", 1, Fate::LoseReply);
    first.release().await?;
    if let Outcome::Acquired(second) = second {
        let left = w.server.lease_left("two", second.token()).await?;
        ensure!(left > 0, "B4 B21", "a repeated release of one permit has released another one");
        second.release().await?;
    }
    w.server.is_clean(ms(2000)).await
}

/// The settlement of a cancelled acquisition is lost or refused at first.
async fn lost_settlement(w: &World) -> Result<(), Broken> {
    let readonly = || Fate::error(PASSING[0]);
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&proxy.url()).await?);
    let hold = holder.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
    for fate in [Fate::Cut, Fate::LoseReply, readonly()] {
        let waits = c.begin("mutex", "k", json!({"lease_ms": 30_000}));
        w.server.until_waiting(1).await?;
        proxy.next("CANCEL", 1, fate.clone());
        let began = now_us();
        waits.cancelled().await?;
        w.server.until_waiting(0).await.under("B11")?;
        let took = now_us() - began;
        ensure!(
            took <= us(3000) + slack_us(began),
            "B11",
            "{fate:?} at CANCEL: the waiter was left for {} ms",
            took / 1000
        );
    }
    hold.release().await?;
    for fate in [Fate::Cut, Fate::LoseReply, readonly()] {
        proxy.delay(100);
        let acquiring = c.begin("mutex", "k", json!({"lease_ms": 30_000}));
        pause(60).await;
        proxy.next("CANCEL", 1, fate.clone());
        if let Outcome::Acquired(hold) = acquiring.cancelled().await? {
            hold.release().await?;
        }
        proxy.delay(0);
        w.server.is_clean(ms(5000)).await.during(&format!("{fate:?} at CANCEL"))?;
    }
    Ok(())
}

/// A request is granted, its reply is lost, and its repeat is refused. Some libraries repeat it by themselves.
async fn refused_repeat(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    // A JVM loads its classes.
    c.acquire("mutex", "before", json!({"wait_ms": 20_000})).await?.release().await?;
    let mut is_first = true;
    proxy.on_command(move |words| match is(words, "ACQUIRE") {
        true if std::mem::take(&mut is_first) => Fate::LoseReply,
        true => Fate::error(PASSING[0]),
        false => Fate::Pass,
    });
    let acquiring = c.begin("mutex", "k", json!({"lease_ms": 20_000}));
    let deadline = now_us() + us(10_000);
    // With the one before.
    while proxy.seen_of("ACQUIRE").len() < 3 {
        ensure!(now_us() < deadline, "B8", "10 s after its reply was lost the request was not repeated");
        pause(2).await;
    }
    pause(100).await;
    acquiring.cancelled().await?;
    w.server.is_clean(ms(3000)).await
}

/// Cuts the connections of a waiter after a number of bytes that follow the release of the holder.
async fn hand_over(w: &World, cuts: &[usize]) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let (holder, c) = (w.client(&w.server.url()).await?, w.client(&proxy.url()).await?);
    for cut in cuts {
        let hold = holder.acquire("mutex", "k", json!({"wait_ms": 10_000})).await?;
        let waits = c.begin("mutex", "k", json!({"wait_ms": 15_000, "lease_ms": 20_000}));
        w.server.until_waiting(1).await?;
        proxy.cut_after(*cut);
        hold.release().await?;
        let hold = waits.acquired(ms(16_000)).await;
        let hold = hold.during(&format!("cut after {cut} bytes")).under("B8")?;
        hold.is_within_lease(&w.server).await?;
        hold.release().await?;
        proxy.clear();
        w.server.is_clean(ms(3000)).await.during(&format!("cut after {cut} bytes")).under("B21")?;
    }
    Ok(())
}

async fn hand_over_each_byte(w: &World) -> Result<(), Broken> {
    hand_over(w, &(0..130).collect::<Vec<_>>()).await
}

/// The second list of B12, as servers write them.
pub(super) const PASSING: [&str; 11] = [
    "READONLY You can't write against a read only replica.",
    "LOADING Redis is loading the dataset in memory",
    "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
    "MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
    "OOM command not allowed when used memory > 'maxmemory'.",
    "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
    "CLUSTERDOWN The cluster is down",
    "TRYAGAIN Multiple keys request during rehashing of slot",
    "QUARANTINE the server started without data; for 400 ms it grants nothing",
    "NOREPLICAS Not enough good replicas to write.",
    "UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)",
];

pub(super) fn code(error: &str) -> &str {
    error.split(' ').next().unwrap_or_default()
}

/// For each key that is named like the code of an error, answers the first `times` commands of a kind with that error.
pub(super) fn refuse(proxy: &Proxy, verb: &'static str, times: usize, errors: &'static [&'static str]) {
    let mut counts = vec![0; errors.len()];
    proxy.on_command(move |words| {
        let at = errors.iter().position(|error| is(words, verb) && words.get(1).is_some_and(|key| key == code(error)));
        match at {
            Some(at) if counts[at] < times => {
                counts[at] += 1;
                Fate::error(errors[at])
            }
            _ => Fate::Pass,
        }
    });
}

/// Renewals fail with each kind of error for a third of the lease.
async fn refused_renewal(w: &World) -> Result<(), Broken> {
    const ALL: [&str; 13] = {
        let mut all = [""; 13];
        let mut at = 0;
        while at < PASSING.len() {
            all[at] = PASSING[at];
            at += 1;
        }
        all[11] = "ERR an unknown failure";
        all[12] = "NOPERM this user has no permissions to run the 'rlock.renew' command";
        all
    };
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let mut holds = Vec::new();
    for error in &ALL {
        holds.push((code(error), c.acquire("mutex", code(error), json!({"wait_ms": 0, "lease_ms": 3600})).await?));
    }
    refuse(&proxy, "RENEW", usize::MAX, &ALL);
    pause(1300).await;
    proxy.clear();
    pause(2600).await;
    for (code, hold) in &holds {
        hold.is_held("B17", &format!("renewals were refused with {code} for 1.3 s of a lease of 3.6 s")).await?;
    }
    refuse(&proxy, "RENEW", usize::MAX, &ALL);
    for (code, hold) in &holds {
        let asked = now_us();
        let left = w.server.lease_left(code, hold.token()).await?;
        let told = hold.lost_before(asked + us(left + 1)).await;
        told.during(&format!("{code} at each renewal")).under("B15 B17")?;
    }
    proxy.clear();
    w.server.is_clean(ms(3000)).await
}

async fn refused_wait(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    refuse(&proxy, "ACQUIRE", 2, &PASSING);
    let begun: Vec<_> =
        PASSING.iter().map(|error| (code(error), c.begin("mutex", code(error), json!({"wait_ms": 10_000})))).collect();
    for (code, waits) in begun {
        let hold = waits.acquired(ms(12_000)).await;
        let hold = hold.during(&format!("{code} ended a wait")).under("B12")?;
        hold.release().await?;
    }
    // The server may have granted the request in the turn in which it stepped down.
    let asked = proxy.seen_of("ACQUIRE").into_iter().filter(|seen| seen.words[1] == "UNBLOCKED");
    let ids: Vec<_> = asked.map(|seen| seen.option("REQ").map(str::to_owned)).collect();
    ensure!(ids.windows(2).all(|pair| pair[0] == pair[1]), "B12", "after UNBLOCKED another id was sent: {ids:?}");
    // A wait keeps its timeout while all requests fail.
    refuse(&proxy, "ACQUIRE", usize::MAX, &PASSING);
    let began = now_us();
    let begun: Vec<_> =
        PASSING.iter().map(|error| (code(error), c.begin("mutex", code(error), json!({"wait_ms": 500})))).collect();
    for (code, waits) in begun {
        let outcome = waits.outcome(ms(10_000)).await?;
        ensure!(!matches!(outcome, Outcome::Acquired(_)), "B26", "{code} was taken for a grant");
        let over = now_us() - began - us(500);
        ensure!(over <= us(1000) + slack_us(began), "B5", "{code}: a wait of 500 ms took {} ms longer", over / 1000);
    }
    proxy.clear();
    w.server.is_clean(ms(3000)).await
}

async fn refused_try(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    // A JVM loads its classes.
    c.acquire("mutex", "k", json!({"wait_ms": 0})).await?.release().await?;
    refuse(&proxy, "ACQUIRE", usize::MAX, &PASSING);
    let begun: Vec<_> = PASSING
        .iter()
        .filter(|error| !error.starts_with("UNBLOCKED"))
        .map(|error| (code(error), c.begin("mutex", code(error), json!({"wait_ms": 0}))))
        .collect();
    for (code, tries) in begun {
        let sent_us = tries.call.sent_us;
        tries.fails(ms(8000), "B12 B28", "Unavailable", code).await?;
        let took = now_us() - sent_us;
        ensure!(took <= us(2000) + slack_us(sent_us), "B12", "a try that failed with {code} took {} ms", took / 1000);
    }
    proxy.clear();
    w.server.is_clean(ms(3000)).await
}

/// A failed release does not hide the result of the work, and leaves the hold to a retry or to its lease.
async fn refused_release(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    refuse(&proxy, "RELEASE", 1, &PASSING);
    for error in &PASSING {
        let fields = json!({"hold": code(error), "kind": "mutex", "keys": [code(error)], "wait_ms": 5000, "fixed_lease_ms": 2500, "work_ms": 5});
        let said = c.call("run", fields).answer(PATIENCE).await?;
        let is_done = matches!(&said, crate::program::Answer::Ok(ok) if ok["result"] == "done");
        ensure!(is_done, "B22", "a release that was refused with {} hid the result: {said}", code(error));
    }
    w.server.is_clean(ms(4000)).await
}

/// The owner acquires again before the server accepts its release. If the two share a hold, the second release ends it.
async fn refused_release_then_acquire(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("write", "w"), ("many", "a b")] {
        let options = || json!({"wait_ms": 5000, "lease_ms": 20_000, "owner": kind});
        let hold = c.acquire(kind, keys, options()).await?;
        proxy.on_command(|words| if is(words, "RELEASE") { Fate::error(PASSING[0]) } else { Fate::Pass });
        let refused = hold.releasing(json!({}));
        pause(300).await;
        let acquires = c.begin(kind, keys, options());
        pause(300).await;
        proxy.clear();
        refused.answer(PATIENCE).await?;
        acquires.acquired(PATIENCE).await.during("after a release that was refused")?.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}

async fn refused_for_good(w: &World) -> Result<(), Broken> {
    const FINAL: [(&str, &str); 11] = [
        ("DEADLOCK alice waits for bob", "Deadlock"),
        ("SUPERSEDED by a newer request", "Superseded"),
        ("STALE the id is lower than the last one", "Refused"),
        ("WRONGTYPE Operation against a key holding the wrong kind of value", "Refused"),
        ("NOSEMAPHORE there is no semaphore", "Refused"),
        ("MAXWAITERS too many", "Refused"),
        ("NOPERM this user has no permissions", "Refused"),
        ("NOAUTH Authentication required.", "Refused"),
        ("WRONGPASS invalid username-password pair or user is disabled.", "Refused"),
        ("ERR something is wrong", "Refused"),
        ("NOTOKENS the tokens are used up", "Refused"),
    ];
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    for (error, name) in FINAL.iter().take(10) {
        let error = *error;
        proxy.on_command(move |words| if is(words, "ACQUIRE") { Fate::error(error) } else { Fate::Pass });
        let waits = c.begin("mutex", "k", json!({"wait_ms": 6000}));
        waits.fails(ms(3000), "B12 B28", name, code(error)).await?;
    }
    proxy.clear();
    w.server.is_clean(ms(3000)).await
}

async fn wrong_type(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    w.server.ask("SET text here").await?;
    for wait_ms in [0, 5000] {
        c.begin("mutex", "text", json!({"wait_ms": wait_ms}))
            .fails(ms(3000), "B12 B28", "Refused", "WRONGTYPE")
            .await?;
    }
    // The same while the client waits.
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 30_000})).await?;
    let waits = c.begin("mutex", "k", json!({"wait_ms": 15_000}));
    w.server.until_waiting(1).await?;
    w.server.ask("SET k text").await?;
    waits.fails(ms(3000), "B12 B28", "Refused", "WRONGTYPE").await?;
    hold.release().await.ok();
    c.init("s", 1).await?;
    let hold = c.acquire("semaphore", "s", json!({"wait_ms": 0})).await?;
    let waits = c.begin("semaphore", "s", json!({"wait_ms": 15_000}));
    w.server.until_waiting(1).await?;
    w.server.ask("DEL s").await?;
    waits.fails(ms(3000), "B12 B28", "Refused", "NOSEMAPHORE").await?;
    hold.release().await.ok();
    w.server.is_clean(ms(3000)).await
}

async fn module_missing(w: &World) -> Result<(), Broken> {
    let bare = Server::start_bare(&w.programs, &[]).await?;
    let mut fields = json!({"url": bare.url()});
    let (c, answer) = w.try_client(&w.program, &mut fields).await?;
    if let crate::program::Answer::Error { name, .. } = &answer {
        ensure!(name == "ModuleMissing", "B28", "answer to connect: {answer}");
        return Ok(());
    }
    for wait_ms in [0, 5000] {
        c.begin("mutex", "k", json!({"wait_ms": wait_ms})).fails(ms(4000), "B28", "ModuleMissing", "").await?;
    }
    Ok(())
}

async fn module_too_old(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let c = w.client(&proxy.url()).await?;
    let unknown = "ERR unknown option 'TIMED'; expected PX, EX, BLOCK, NOTIFY, CLAIM, SESSION, REQ, ONCE, NOTE";
    // The other is a grant without ms.
    for fate in [Fate::error(unknown), Fate::Answer(":1000000\r\n".to_owned())] {
        let (what, answer) = (format!("{fate:?}"), fate.clone());
        proxy.on_command(move |words| if is(words, "ACQUIRE") { answer.clone() } else { Fate::Pass });
        for wait_ms in [0, 5000] {
            let acquires = c.begin("mutex", "k", json!({"wait_ms": wait_ms}));
            acquires.fails(ms(4000), "B28", "ModuleTooOld", "").await.during(&what)?;
        }
    }
    Ok(())
}

/// Makes a server the replica of an address where no server listens.
const NOWHERE: &str = "REPLICAOF 127.0.0.1 1";

async fn readonly_holding(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 4000})).await?;
    for _ in 0..2 {
        pause(400).await;
        w.server.ask(NOWHERE).await?;
        pause(1300).await;
        w.server.ask("REPLICAOF NO ONE").await?;
        pause(2000).await;
        hold.is_held("B17", "READONLY for 1.3 s of a lease of 4 s").await?;
        ensure!(
            w.server.lease_left("k", hold.token()).await? > 0,
            "B16",
            "the server has ended it, and it is believed"
        );
    }
    hold.release().await?;
    w.server.is_clean(ms(2000)).await
}

async fn readonly_until_lost(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 1500})).await?;
    pause(700).await;
    w.server.ask(NOWHERE).await?;
    let asked = now_us();
    let left = w.server.lease_left("k", hold.token()).await?;
    let told = hold.lost_before(asked + us(left + 1)).await?;
    ensure!(told >= asked + us(700), "B17", "READONLY ended it {} ms after it came", (told - asked) / 1000);
    w.server.ask("REPLICAOF NO ONE").await?;
    w.server.is_clean(ms(3000)).await
}

async fn readonly_waiting(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    for kind in ["mutex", "fair"] {
        w.server
            .ask(&format!(
                "{} {kind} other PX 60000",
                if kind == "fair" { "RFAIRLOCK.ACQUIRE" } else { "RLOCK.ACQUIRE" }
            ))
            .await?;
        let waits = c.begin(kind, kind, json!({"wait_ms": 15_000}));
        w.server.until_waiting(1).await?;
        w.server.ask(NOWHERE).await?;
        pause(500).await;
        w.server.ask("REPLICAOF NO ONE").await?;
        w.server.ask(&format!("RLOCK.FORCERELEASE {kind}")).await?;
        let hold = waits.acquired(ms(8000)).await.under("B12")?;
        hold.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}

const ON_DISK: [&str; 2] = ["appendonly yes", "appendfsync always"];

async fn restart_holding(w: &World) -> Result<(), Broken> {
    let server = w.another_server(&ON_DISK).await?;
    let c = w.client(&server.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 5000})).await?;
    server.kill().await;
    pause(300).await;
    server.start_again().await?;
    pause(3500).await;
    hold.is_held("B17", "the server came back in 0.3 s, with all that it had").await?;
    let left = server.lease_left("k", hold.token()).await?;
    ensure!(left > 2000, "B16", "it is not renewed after the restart: {left} ms are left");
    hold.release().await?;
    server.is_clean(ms(3000)).await
}

async fn restart_waiting(w: &World) -> Result<(), Broken> {
    let server = w.another_server(&ON_DISK).await?;
    let c = w.client(&server.url()).await?;
    for (kind, acquire) in [("mutex", "RLOCK.ACQUIRE"), ("fair", "RFAIRLOCK.ACQUIRE"), ("write", "RRWLOCK.ACQUIRE")] {
        let mode = if kind == "write" { "WRITE" } else { "" };
        server.ask(&format!("{acquire} {kind} other {mode} PX 60000")).await?;
        let waits = c.begin(kind, kind, json!({"wait_ms": 15_000}));
        server.until_waiting(1).await?;
        server.kill().await;
        pause(100).await;
        server.start_again().await?;
        server.ask(&format!("RLOCK.FORCERELEASE {kind}")).await?;
        let hold = waits.acquired(ms(10_000)).await.under("B8 B12")?;
        hold.release().await?;
    }
    server.is_clean(ms(3000)).await
}

async fn server_busy(w: &World) -> Result<(), Broken> {
    w.server.ask("CONFIG SET busy-reply-threshold 50").await?;
    let c = w.client(&w.server.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 4000})).await?;
    pause(500).await;
    let script = w.server.try_ask(&["EVAL", "local t=redis.call('TIME') local s=t[1]*1000+t[2]/1000 repeat t=redis.call('TIME') until t[1]*1000+t[2]/1000>s+1800", "0"]);
    let busy = async {
        pause(300).await;
        c.outcome("mutex", "other", json!({"wait_ms": 8000})).await
    };
    let (_, outcome) = tokio::join!(script, busy);
    match outcome? {
        Outcome::Acquired(other) => other.release().await?,
        outcome => return Err(Broken::new("B12", format!("BUSY ended a wait: {outcome}"))),
    }
    pause(2000).await;
    hold.is_held("B17", "BUSY for 1.8 s of a lease of 4 s").await?;
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

async fn out_of_memory(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 1500})).await?;
    w.server.ask("CONFIG SET maxmemory 1").await?;
    c.begin("mutex", "other", json!({"wait_ms": 0})).fails(PATIENCE, "B12 B28", "Unavailable", "OOM").await?;
    let waits = c.begin("mutex", "other", json!({"wait_ms": 15_000}));
    pause(2500).await;
    hold.is_held("B17", "only what acquires needs memory").await?;
    w.server.ask("CONFIG SET maxmemory 0").await?;
    waits.acquired(ms(5000)).await.under("B12")?.release().await?;
    hold.release().await?;
    w.server.is_clean(ms(3000)).await
}

async fn quarantine(w: &World) -> Result<(), Broken> {
    let server = w.another_server(&["rlock.max-lease-ms 2000", "rlock.exclusion restart"]).await?;
    let c = w.client(&server.url()).await?;
    c.begin("mutex", "k", json!({"wait_ms": 0})).fails(PATIENCE, "B12 B28", "Unavailable", "QUARANTINE").await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 10_000})).await.under("B12")?;
    hold.release().await?;
    server.is_clean(ms(3000)).await
}

/// Several clients compete for locks while their connections are cut, stalled and slow.
async fn chaos(w: &World, for_ms: u64) -> Result<(), Broken> {
    let proxies = [w.proxy().await, w.proxy().await, w.proxy().await];
    let mut clients = Vec::new();
    for proxy in &proxies {
        clients.push(w.client(&proxy.url()).await?);
    }
    bad_weather(w, &proxies, &clients, 5, for_ms).await.map(drop)
}

/// Lets clients compete, each behind its proxy. Returns how many holds they had to the end, and how many they lost.
pub async fn bad_weather(
    w: &World,
    proxies: &[Proxy],
    clients: &[Client],
    hold_ms: u64,
    for_ms: u64,
) -> Result<(i64, i64), Broken> {
    let mut calls = Vec::new();
    for c in clients {
        // The last one holds for longer than its lease.
        for (kind, key, tasks, hold_ms) in
            [("mutex", "m", 3, hold_ms), ("fair", "f", 3, hold_ms), ("mutex", "l", 1, 900)]
        {
            let options =
                json!({"tasks": tasks, "for_ms": for_ms, "hold_ms": hold_ms, "wait_ms": 1500, "lease_ms": 700});
            calls.push(c.work(kind, key, options));
        }
    }
    let until = now_us() + us(for_ms as i64);
    while now_us() < until {
        let proxy = &proxies[rand::random_range(0..proxies.len())];
        match rand::random_range(0..6) {
            0 => proxy.cut(),
            1 => {
                proxy.stall();
                pause(rand::random_range(10..1300)).await;
                proxy.flow();
            }
            2 => proxy.cut_after(rand::random_range(0..400)),
            3 => proxy.next("ACQUIRE", 1, Fate::LoseReply),
            4 => proxy.next("RELEASE", 1, Fate::LoseReply),
            _ => proxy.delay(rand::random_range(0..20)),
        }
        pause(rand::random_range(5..150)).await;
    }
    proxies.iter().for_each(Proxy::clear);
    let (mut done, mut lost) = (0, 0);
    for call in calls {
        let said = call.ok(PATIENCE).await?;
        done += said["done"].as_i64().unwrap_or(0);
        lost += said["lost"].as_i64().unwrap_or(0);
    }
    ensure!(done >= 10, "B8 B12", "only {done} holds in {for_ms} ms of bad weather");
    w.server.is_clean(ms(6000)).await?;
    Ok((done, lost))
}
