//! Databases, users, TLS, key prefixes, decoded replies and pools of the application's client, and closing.

use serde_json::{Value, json};

use super::scenarios;
use super::waiting::one_after_another;
use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, slack_us, us};
use crate::world::{Client, Outcome, PATIENCE, World, ms};

scenarios! {
    short "connection-database", "B25", [], database;
    short "connection-user", "B25", [], user;
    short "connection-tls", "B25", ["tls"], tls;
    short "connection-key-prefix", "B25", [], key_prefix;
    short "connection-decoded", "B26", [], decoded;
    short "connection-numbers-as-strings", "B26", [], strings;
    short "connection-pool-of-one", "B6 B16", [], pool_of_one;
    short "close", "B24 B28", [], close;
    short "close-at-each-await", "B11 B24", [], close_at_each_await;
    short "close-frees-everything", "B24", [], close_frees_everything;
    short "close-server-stopped", "B24", [], close_server_stopped;
}

/// Tries, waits, renewals and releases of each kind, over unusual connections.
async fn everything(w: &World, one: &Client, other: &Client) -> Result<(), Broken> {
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("read", "r"), ("write", "w"), ("many", "a b")] {
        let held = if kind == "read" { "write" } else { kind };
        let first = one.acquire(held, keys, json!({"wait_ms": 0, "lease_ms": 900})).await?;
        other.is_refused(kind, keys, json!({"wait_ms": 0})).await?;
        // Long enough for the first connection of a subscriber, with TLS, on a busy machine.
        other.is_refused(kind, keys, json!({"wait_ms": 500})).await?;
        let waits = other.begin(kind, keys, json!({"wait_ms": 15_000, "lease_ms": 900}));
        w.server.until_waiting(1).await?;
        tokio::time::sleep(ms(700)).await;
        first.is_held("B16", "it is renewed").await?;
        first.release().await?;
        let second = waits.acquired(ms(5000)).await?;
        second.release().await?;
    }
    w.server.is_clean(ms(3000)).await
}

async fn database(w: &World) -> Result<(), Broken> {
    let url = format!("redis://127.0.0.1:{}/3", w.server.port);
    let c = w.client(&url).await?;
    // A lock of the same name in database 0 must not matter.
    w.server.ask("RLOCK.ACQUIRE k other PX 60000").await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 3000})).await?;
    let waits = c.begin("mutex", "k", json!({"wait_ms": 15_000}));
    w.server.until_waiting(1).await?;
    hold.release().await?;
    waits.acquired(ms(5000)).await?.release().await?;
    w.server.ask("RLOCK.RELEASE k other").await?;
    everything(w, &c, &w.client(&url).await?).await
}

async fn user(w: &World) -> Result<(), Broken> {
    w.server.ask("ACL SETUSER app on >secret ~* &* +@all").await?;
    // The driver's connection stays authenticated.
    w.server.ask("PING").await?;
    w.server.ask("ACL SETUSER default resetpass >other").await?;
    let url = format!("redis://app:secret@127.0.0.1:{}/2", w.server.port);
    let c = w.client(&url).await?;
    everything(w, &c, &w.client(&url).await?).await?;
    // Missing permissions end a wait.
    w.server.ask("ACL SETUSER app resetkeys ~allowed*").await?;
    c.begin("mutex", "forbidden", json!({"wait_ms": 4000})).fails(ms(3000), "B12 B28", "Refused", "NOPERM").await
}

async fn tls(w: &World) -> Result<(), Broken> {
    let authority = rcgen::generate_simple_self_signed(vec!["localhost".to_owned(), "127.0.0.1".to_owned()]);
    let authority = authority.map_err(|error| Broken::new("driver", error.to_string()))?;
    let folder = tempfile::tempdir().expect("a folder");
    let file = |name: &str, text: String| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("a file");
        path.display().to_string()
    };
    let (certificate, key) = (file("crt", authority.cert.pem()), file("key", authority.signing_key.serialize_pem()));
    let port = crate::servers::free_port();
    for setting in [
        format!(
            "tls-cert-file {certificate} tls-key-file {key} tls-ca-cert-file {certificate} tls-auth-clients no tls-port {port}"
        ),
        format!("tls-port {port}"),
    ] {
        w.server.ask(&format!("CONFIG SET {setting}")).await?;
    }
    let connect = || json!({"url": format!("rediss://127.0.0.1:{port}/1"), "ca_file": certificate});
    let (one, other) = (w.client_with(&w.program, connect()).await?, w.client_with(&w.program, connect()).await?);
    everything(w, &one, &other).await
}

/// A client with an option that some libraries do not have.
async fn special(w: &World, mut fields: Value) -> Result<Client, Broken> {
    fields["url"] = json!(w.server.url());
    w.client_with(&w.program, fields).await
}

async fn key_prefix(w: &World) -> Result<(), Broken> {
    let c = special(w, json!({"key_prefix": "app:"})).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 3000})).await?;
    let count = (w.server.field("app:k", "holders-count").await?, w.server.field("k", "holders-count").await?);
    ensure!(count == (1, 0), "B25", "app:k and k have {count:?} holders");
    hold.release().await?;
    let many = c.acquire("many", "a b", json!({"wait_ms": 0})).await?;
    let count = (w.server.field("app:a", "holders-count").await?, w.server.field("app:b", "holders-count").await?);
    ensure!(count == (1, 1), "B25", "app:a and app:b have {count:?} holders");
    many.release().await?;
    everything(w, &c, &special(w, json!({"key_prefix": "app:"})).await?).await
}

async fn decoded(w: &World) -> Result<(), Broken> {
    let one = special(w, json!({"decode": true})).await?;
    everything(w, &one, &special(w, json!({"decode": true})).await?).await
}

async fn strings(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    proxy.stringify();
    let one = w.client(&proxy.url()).await?;
    everything(w, &one, &w.client(&proxy.url()).await?).await
}

/// Waits do not occupy the connections of the pool, so renewals get through.
async fn pool_of_one(w: &World) -> Result<(), Broken> {
    let c = special(w, json!({"pool": 1})).await?;
    let hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 1200})).await?;
    let waits: Vec<_> = (0..5).map(|_| c.begin("mutex", "k", json!({"wait_ms": 15_000}))).collect();
    w.server.until_waiting(5).await?;
    tokio::time::sleep(ms(2000)).await;
    hold.is_held("B16", "five waits share its pool of one connection").await?;
    hold.release().await?;
    one_after_another(waits).await?;
    w.server.is_clean(ms(3000)).await
}

async fn close(w: &World) -> Result<(), Broken> {
    let (c, other) = (w.client(&w.server.url()).await?, w.client(&w.server.url()).await?);
    let foreign = other.acquire("mutex", "foreign", json!({"wait_ms": 0})).await?;
    for (kind, keys) in [("mutex", "m"), ("fair", "f"), ("read", "r"), ("many", "a b")] {
        c.acquire(kind, keys, json!({"wait_ms": 0, "lease_ms": 30_000})).await?;
    }
    let waits: Vec<_> = (0..3).map(|_| c.begin("mutex", "foreign", json!({"lease_ms": 30_000}))).collect();
    w.server.until_waiting(3).await?;
    c.close().await?;
    for waits in waits {
        waits.fails(ms(3000), "B24 B28", "Closed", "").await?;
    }
    w.server.until_waiting(0).await?;
    ensure!(
        w.server.gauge("rlock_held").await? == 1,
        "B24",
        "{} holds are left",
        w.server.gauge("rlock_held").await? - 1
    );
    foreign.is_held("B24", "another client was closed").await?;
    foreign.release().await?;
    let deadline = now_us() + us(3000);
    other.close().await?;
    loop {
        let list = w.server.text("CLIENT LIST").await?;
        let left = list.lines().filter(|line| !line.contains(" sub=0 ") || line.contains(" ssub=1 ")).count();
        if left == 0 {
            break;
        }
        ensure!(now_us() < deadline, "B24", "{left} subscribers are left");
        tokio::time::sleep(ms(20)).await;
    }
    w.server.is_clean(ms(3000)).await
}

/// Closes the client at each step of an acquisition, on a slow network.
async fn close_at_each_await(w: &World) -> Result<(), Broken> {
    let proxy = w.proxy().await;
    let holder = w.client(&w.server.url()).await?;
    let hold = holder.acquire("mutex", "held", json!({"wait_ms": 0})).await?;
    proxy.delay(10);
    for after in [0, 5, 15, 25, 40, 60, 90] {
        let c = w.client(&proxy.url()).await?;
        let acquiring = ["free", "held"].map(|key| c.begin("mutex", key, json!({"lease_ms": 30_000})));
        tokio::time::sleep(ms(after)).await;
        c.close().await?;
        for acquiring in acquiring {
            // An acquisition that succeeded just before returns its hold, which closing releases.
            let outcome = acquiring.outcome(ms(6000)).await.under("B24")?;
            let is_closed = matches!(&outcome, Outcome::Error { name, .. } if name == "Closed");
            ensure!(is_closed || matches!(outcome, Outcome::Acquired(_)), "B24 B28", "closed meanwhile: {outcome}");
            if let Outcome::Acquired(hold) = outcome {
                ensure!(!hold.held().await?.0, "B24", "a hold is believed after its client was closed");
            }
        }
    }
    hold.release().await?;
    w.server.is_clean(ms(5000)).await
}

/// Closed clients leave no threads, tasks or connections.
async fn close_frees_everything(w: &World) -> Result<(), Broken> {
    let program = w.another_program().await?;
    let mut before = None;
    for round in 0..25 {
        let c = w.client_with(&program, json!({"url": w.server.url()})).await?;
        let hold = c.acquire("mutex", "k", json!({"wait_ms": 0})).await?;
        let waits = c.begin("mutex", "k", json!({"wait_ms": 10_000}));
        w.server.until_waiting(1).await?;
        hold.release().await?;
        waits.acquired(PATIENCE).await?;
        c.close().await?;
        w.server.is_clean(ms(3000)).await?;
        // The first rounds start pools and threads that a process has once.
        if round == 4 {
            before = Some(program.call("stats", json!({})).ok(PATIENCE).await?);
        }
    }
    let before = before.unwrap_or_default();
    let deadline = now_us() + us(5000);
    loop {
        let after = program.call("stats", json!({})).ok(PATIENCE).await?;
        let grown = |field: &str| after[field].as_i64().unwrap_or(0) - before[field].as_i64().unwrap_or(0);
        if grown("handles") < 10 && grown("tasks") < 10 {
            return Ok(());
        }
        let (handles, tasks) = (grown("handles"), grown("tasks"));
        ensure!(
            now_us() < deadline,
            "B24",
            "after 20 clients that were closed there are {handles} handles and {tasks} tasks more"
        );
        tokio::time::sleep(ms(100)).await;
    }
}

/// Closing ends within its time although the server does not answer.
async fn close_server_stopped(w: &World) -> Result<(), Broken> {
    let c = w.client(&w.server.url()).await?;
    let _hold = c.acquire("mutex", "k", json!({"wait_ms": 0, "lease_ms": 2000})).await?;
    let waits = c.begin("mutex", "k", json!({}));
    w.server.until_waiting(1).await?;
    w.server.stop();
    let began = now_us();
    let closed = c.call("close", json!({})).answer(ms(20_000)).await;
    let took = now_us() - began;
    let outcome = waits.outcome(ms(3000)).await;
    w.server.go_on();
    closed.under("B24")?;
    ensure!(took <= us(6000) + slack_us(began), "B24", "close took {} ms", took / 1000);
    ensure!(!matches!(outcome?, Outcome::Acquired(_)), "B24", "acquired after close");
    w.server.is_clean(ms(5000)).await
}
