//! The conformance program of Rust: PROTOCOL.md on top of rlock-client.
//!
//! `RLOCK_CONFORMANCE_FAULT` makes it wrong on purpose, for the tests of the driver.

#![allow(missing_docs, reason = "a program")]
#![allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "times of a test")]

mod fault;
mod locks;

use std::collections::{BTreeMap, HashMap};
use std::io::Write;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Waker};
use std::time::Duration;

use rlock_client::{Client, Error, redis};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::sync::oneshot;

use crate::fault::Fault;
use crate::locks::{AnyGuard, AnyLock, Options, span};

/// Abilities, and the rules that the package keeps of those that are not kept everywhere yet.
const FEATURES: &[&str] =
    &["cluster", "sentinel", "tls", "clock", "stops-work", "timed", "B29", "B30", "B31", "B32", "B33", "B34", "B35"];

/// The error that answers a request.
struct Failure {
    name: String,
    code: String,
    message: String,
}

type Answer = Result<Value, Failure>;

fn failure(name: &str, message: impl Into<String>) -> Failure {
    Failure { name: name.to_owned(), code: String::new(), message: message.into() }
}

fn unsupported(what: &str) -> Failure {
    failure("Unsupported", what)
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let name = match &error {
            Error::Timeout => "LockTimeout",
            Error::Lost => "LockLost",
            Error::Deadlock(_) => "Deadlock",
            Error::Superseded => "Superseded",
            Error::ModuleMissing(_) => "ModuleMissing",
            Error::ModuleTooOld(_) => "ModuleTooOld",
            Error::Closed => "Closed",
            Error::Unavailable { .. } => "Unavailable",
            Error::Refused { .. } => "Refused",
            _ => "Other",
        };
        // The others have no code of the server's on the wire.
        let code = if matches!(error, Error::Lost) { "" } else { error.code() };
        Failure { name: name.to_owned(), code: code.to_owned(), message: error.to_string() }
    }
}

fn now_us() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

fn say(line: &Value) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Program {
    fault: Fault,
    clients: Mutex<HashMap<String, Client>>,
    urls: Mutex<HashMap<String, String>>,
    /// By how many milliseconds the clocks of the clients are ahead.
    clocks: Mutex<HashMap<String, Arc<AtomicU64>>>,
    holds: Mutex<HashMap<String, Arc<Hold>>>,
    outstanding: Mutex<HashMap<u64, oneshot::Sender<()>>>,
    /// Requests of one task run one after another.
    tasks: Mutex<HashMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

struct Hold {
    guard: Mutex<Option<AnyGuard>>,
    is_releasing: Mutex<bool>,
    /// The lease of the request.
    asked_ms: f64,
}

#[tokio::main]
async fn main() {
    let program = Arc::new(Program { fault: Fault::from_environment(), ..Program::default() });
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(request) = serde_json::from_str::<Value>(&line) else {
            eprintln!("not JSON: {line}");
            continue;
        };
        if request["do"] == "exit" {
            std::process::exit(0);
        }
        let id = request["id"].as_u64().unwrap_or(0);
        let (cancel, cancelled) = oneshot::channel();
        lock(&program.outstanding).insert(id, cancel);
        let program = program.clone();
        tokio::spawn(async move {
            let answer = tokio::select! {
                answer = program.clone().serve(&request) => answer,
                _ = cancelled => {
                    if program.fault == Fault::SettlesWithHighId {
                        tokio::spawn(program.clone().release_late(request));
                    }
                    Err(failure("Cancelled", ""))
                }
            };
            lock(&program.outstanding).remove(&id);
            say(&match answer {
                Ok(ok) => json!({"id": id, "ok": ok}),
                Err(Failure { name, code, message }) => {
                    json!({"id": id, "error": name, "code": code, "message": message})
                }
            });
        });
    }
}

impl Program {
    async fn serve(self: Arc<Self>, request: &Value) -> Answer {
        let task = request["task"].as_str().map(|name| lock(&self.tasks).entry(name.to_owned()).or_default().clone());
        let _turn = match &task {
            Some(task) => Some(task.lock().await),
            None => None,
        };
        if self.fault == Fault::HangsOnExtremes
            && ["lease_ms", "wait_ms", "keep_ms"].iter().any(|field| request[field] == "max")
        {
            std::future::pending::<()>().await;
        }
        match request["do"].as_str().unwrap_or_default() {
            "hello" => Ok(json!({
                "language": "rust", "package": format!("rlock-client {}", env!("CARGO_PKG_VERSION")),
                "features": FEATURES,
            })),
            "connect" => self.connect(request).await,
            "acquire" => self.acquire(request).await,
            "release" => self.release(request).await,
            "held" => self.held(request),
            "extend" => self.extend(request).await,
            "work" => self.work(request).await,
            "run" => self.run(request).await,
            "lead" => self.lead(request).await,
            "clock" => {
                let clock = lock(&self.clocks).get(request["client"].as_str().unwrap_or_default()).cloned();
                let clock = clock.ok_or_else(|| failure("Closed", "no such client"))?;
                clock.fetch_add(request["advance_ms"].as_u64().unwrap_or(0), Ordering::Relaxed);
                Ok(json!({}))
            }
            "init" => self.init(request).await,
            "cancel" => {
                let id = request["request"].as_u64().unwrap_or(0);
                if self.fault != Fault::IgnoresCancel
                    && let Some(cancel) = lock(&self.outstanding).remove(&id)
                {
                    let _ = cancel.send(());
                }
                Ok(json!({}))
            }
            "close" => self.close(request).await,
            "stats" => Ok(stats()),
            other => Err(unsupported(other)),
        }
    }

    fn client(&self, request: &Value) -> Result<Client, Failure> {
        let name = request["client"].as_str().unwrap_or_default();
        lock(&self.clients).get(name).cloned().ok_or_else(|| failure("Closed", format!("no client {name:?}")))
    }

    async fn connect(&self, request: &Value) -> Answer {
        if request["key_prefix"].as_str().is_some_and(|prefix| !prefix.is_empty()) {
            return Err(unsupported("redis-rs has no key prefix"));
        }
        for field in ["decode", "pool"] {
            if !request[field].is_null() {
                return Err(unsupported(field));
            }
        }
        let name = request["client"].as_str().unwrap_or_default().to_owned();
        let ahead_ms = lock(&self.clocks).entry(name.clone()).or_default().clone();
        let mut builder = Client::builder().clock(move || {
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
            let ahead = Duration::from_millis(ahead_ms.load(Ordering::Relaxed));
            Duration::new(now.tv_sec as u64, now.tv_nsec as u32) + ahead
        });
        if let Some(ms) = request["command_timeout_ms"].as_u64() {
            builder = builder.command_timeout(Duration::from_millis(ms));
        }
        if let Some(file) = request["ca_file"].as_str() {
            let root_cert = Some(std::fs::read(file).map_err(|error| failure("Other", error.to_string()))?);
            builder = builder.certificates(redis::TlsCertificates { client_tls: None, root_cert });
        }
        let url = request["url"].as_str().unwrap_or_default();
        let url = self.fault.url(url);
        let client = if request["cluster"] == true {
            builder.connect_cluster(&[&url]).await
        } else if let Some(nodes) = request["sentinel"]["nodes"].as_array() {
            let nodes: Vec<_> = nodes.iter().filter_map(Value::as_str).map(|node| format!("redis://{node}/")).collect();
            let nodes: Vec<_> = nodes.iter().map(String::as_str).collect();
            let settings = if url.is_empty() { "redis://127.0.0.1/" } else { &url };
            builder.connect_sentinel(&nodes, request["sentinel"]["master"].as_str().unwrap_or_default(), settings).await
        } else {
            builder.connect(&url).await
        };
        lock(&self.urls).insert(name.clone(), url);
        lock(&self.clients).insert(name, client?);
        Ok(json!({}))
    }

    async fn acquire(self: Arc<Self>, request: &Value) -> Answer {
        let lock_ = AnyLock::of(&self.client(request)?, request, self.fault)?;
        let options = Options::of(request)?;
        let guard = match self.fault {
            // The caller may be cancelled; the acquisition continues.
            Fault::LeavesWaiter => {
                let (granted, grant) = oneshot::channel();
                tokio::spawn(async move {
                    if let Err(unheard) = granted.send(lock_.acquire(options.wait).await) {
                        std::mem::forget(unheard);
                    }
                });
                grant.await.map_err(|error| failure("Other", error.to_string()))??
            }
            Fault::WaitsTooLong => lock_.acquire(options.wait.map(|wait| wait * 2 + Duration::from_secs(1))).await?,
            Fault::HidesOutage => match lock_.acquire(options.wait).await {
                Err(Failure { name, .. }) if name == "Unavailable" => None,
                outcome => outcome?,
            },
            Fault::BlamesServer => match lock_.acquire(options.wait).await? {
                None => return Err(failure("Unavailable", "it took too long")),
                guard => guard,
            },
            _ => lock_.acquire(options.wait).await?,
        };
        let Some(guard) = guard else { return Ok(json!({"tokens": [], "at_us": now_us()})) };
        let is_lost = |hold: &Arc<Hold>| lock(&hold.guard).as_ref().is_some_and(|guard| !guard.is_held());
        if self.fault == Fault::DeclaresAll && lock(&self.holds).values().any(is_lost) {
            return Err(failure("LockLost", "the owner has lost a hold"));
        }
        let (tokens, mut valid_ms) = (guard.tokens(), guard.valid_ms());
        let asked_ms = request["lease_ms"].as_f64().unwrap_or(30_000.0);
        if self.fault == Fault::BelievesWhatItAsked {
            valid_ms = asked_ms;
        }
        if self.fault == Fault::EntersLate {
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        let name = request["hold"].as_str().unwrap_or_default().to_owned();
        let lost = guard.lost();
        let hold = Arc::new(Hold { guard: Mutex::new(Some(guard)), is_releasing: Mutex::new(false), asked_ms });
        lock(&self.holds).insert(name.clone(), hold.clone());
        let at_us = now_us();
        self.clone().watch(name, hold, lost);
        Ok(json!({"tokens": tokens, "at_us": at_us, "valid_ms": valid_ms}))
    }

    /// Releases a mutex or permit without its token, until the owner has held it or a second has passed.
    async fn release_late(self: Arc<Self>, request: Value) {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let url = lock(&self.urls).get(&text(&request["client"])).cloned().unwrap_or_default();
        let family = if request["kind"] == "semaphore" { "RSEMAPHORE" } else { "RLOCK" };
        let release = redis::cmd(&format!("{family}.RELEASE"))
            .arg(text(&request["keys"][0]))
            .arg(text(&request["owner"]))
            .arg("REQ")
            .arg(i64::MAX)
            .to_owned();
        let Ok(client) = redis::Client::open(url) else { return };
        for _ in 0..20 {
            tokio::time::sleep(Duration::from_millis(50)).await;
            let Ok(mut connection) = client.get_multiplexed_async_connection().await else { continue };
            if release.query_async::<i64>(&mut connection).await.is_ok() {
                return;
            }
        }
    }

    /// Reports the loss.
    fn watch(self: Arc<Self>, name: String, hold: Arc<Hold>, lost: locks::Lost) {
        tokio::spawn(async move {
            match self.fault {
                Fault::BelievesAfterDeadline | Fault::TellsNothing => return,
                Fault::GivesUpAtFirstTrouble => tokio::select! {
                    () = lost => {}
                    () = suspected(&hold) => {}
                },
                Fault::TellsLate => {
                    lost.await;
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
                _ => lost.await,
            }
            if !*lock(&hold.is_releasing) {
                if self.fault == Fault::GivesUpAtFirstTrouble {
                    drop(lock(&hold.guard).take());
                }
                say(&json!({"event": "lost", "hold": name, "at_us": now_us()}));
            }
        });
    }

    fn hold(&self, request: &Value) -> Result<Arc<Hold>, Failure> {
        let name = request["hold"].as_str().unwrap_or_default();
        lock(&self.holds).get(name).cloned().ok_or_else(|| failure("LockLost", format!("no hold {name:?}")))
    }

    async fn release(&self, request: &Value) -> Answer {
        let hold = self.hold(request)?;
        *lock(&hold.is_releasing) = true;
        let guard = lock(&hold.guard).take();
        let Some(guard) = guard else {
            if self.fault == Fault::ClosesTwice {
                lock(&self.holds).values().for_each(|hold| drop(lock(&hold.guard).take()));
            }
            return Err(failure("LockLost", "released before"));
        };
        if self.fault == Fault::KeepsWhatItReleases {
            std::mem::forget(guard);
            return Ok(json!({}));
        }
        match guard.release(span(request, "keep_ms")?).await {
            Err(Failure { name, .. }) if name == "LockLost" && self.fault == Fault::HidesLoss => {}
            outcome => outcome?,
        }
        Ok(json!({}))
    }

    async fn extend(&self, request: &Value) -> Answer {
        let hold = self.hold(request)?;
        let guard = lock(&hold.guard).take().ok_or_else(|| failure("LockLost", "released before"))?;
        let extended = guard.extend(span(request, "lease_ms")?.unwrap_or_default()).await;
        *lock(&hold.guard) = Some(guard);
        extended.map(|()| json!({}))
    }

    fn held(&self, request: &Value) -> Answer {
        let hold = self.hold(request)?;
        let guard = lock(&hold.guard);
        let held = guard.as_ref().is_some_and(AnyGuard::is_held);
        let at_us = now_us();
        let valid_ms = guard.as_ref().map_or(0.0, AnyGuard::valid_ms);
        if self.fault == Fault::BelievesWhatItAsked && held {
            return Ok(json!({"held": true, "at_us": at_us, "valid_ms": hold.asked_ms * 2.0 / 3.0}));
        }
        if self.fault == Fault::BelievesAfterDeadline && guard.is_some() {
            return Ok(json!({"held": true, "at_us": at_us, "valid_ms": 1000}));
        }
        Ok(json!({"held": held, "at_us": at_us, "valid_ms": if held { valid_ms } else { 0.0 }}))
    }

    async fn work(self: Arc<Self>, request: &Value) -> Answer {
        let (client, options) = (self.client(request)?, Options::of(request)?);
        let number_of = |field: &str| request[field].as_u64();
        let (for_ms, over_ms, count) = (number_of("for_ms"), number_of("over_ms"), number_of("tasks").unwrap_or(1));
        let times = request["times"].as_u64().unwrap_or(if for_ms.is_some() { u64::MAX } else { 1 });
        let hold_for = Duration::from_millis(request["hold_ms"].as_u64().unwrap_or(0));
        let counts = Arc::new(Mutex::new((0u64, 0u64, 0u64, BTreeMap::<String, u64>::new())));
        let tasks: Result<Vec<_>, Failure> = (0..count)
            .map(|number| {
                let mut own = request.clone();
                if let Some(spread) = number_of("spread") {
                    own["keys"] =
                        json!([format!("{}{}", own["keys"][0].as_str().unwrap_or_default(), number % spread)]);
                }
                let lock_ = AnyLock::of(&client, &own, self.fault)?;
                let (counts, fault) = (counts.clone(), self.fault);
                Ok(AbortOnDrop(tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(over_ms.unwrap_or(0) * number / count)).await;
                    let until = for_ms.map(|ms| tokio::time::Instant::now() + Duration::from_millis(ms));
                    let mut done = 0;
                    while done < times && until.is_none_or(|until| tokio::time::Instant::now() < until) {
                        done += 1;
                        let ended = work_once(&lock_, options.wait, hold_for, until, fault).await;
                        let mut counts = lock(&counts);
                        match ended {
                            Ok(Ended::Done) => counts.0 += 1,
                            Ok(Ended::NotAcquired) => counts.1 += 1,
                            Ok(Ended::Lost) => counts.2 += 1,
                            Err(Failure { name, .. }) => *counts.3.entry(name).or_default() += 1,
                        }
                    }
                })))
            })
            .collect();
        for mut task in tasks? {
            let _ = (&mut task.0).await;
        }
        let (done, not_acquired, lost, errors) = lock(&counts).clone();
        Ok(json!({"done": done, "not_acquired": not_acquired, "lost": lost, "errors": errors}))
    }

    async fn run(&self, request: &Value) -> Answer {
        let client = self.client(request)?;
        let work = async || {
            tokio::time::sleep(Duration::from_millis(request["work_ms"].as_u64().unwrap_or(0))).await;
            say(&json!({"event": "step", "hold": request["hold"], "at_us": now_us()}));
            match request["fails"].as_str() {
                Some(text) => Err(failure("Work", text)),
                None => Ok(json!({"result": "done"})),
            }
        };
        let lock_ = AnyLock::of(&client, request, self.fault)?;
        if self.fault == Fault::IgnoresLoss {
            let guard = lock_.acquire(None).await?;
            let done = work().await;
            if let Some(guard) = guard {
                let _ = guard.release(None).await;
            }
            return done;
        }
        let outcome = lock_.run(work).await;
        if self.fault == Fault::StepsAfterLoss && outcome.is_err() {
            say(&json!({"event": "step", "hold": request["hold"], "at_us": now_us()}));
        }
        match (outcome, self.fault) {
            (Ok(_), Fault::HidesResult) => Err(failure("LockLost", "the release came first")),
            (outcome, _) => outcome?,
        }
    }

    async fn lead(&self, request: &Value) -> Answer {
        let client = self.client(request)?;
        let hold = &request["hold"];
        let term = |token: u64, lost: locks::Lost| async move {
            say(&json!({"event": "elected", "hold": hold, "token": token, "at_us": now_us()}));
            let _term = Term { hold, lost };
            std::future::pending::<()>().await;
        };
        AnyLock::of(&client, request, self.fault)?.lead(term).await?;
        Ok(json!({}))
    }

    async fn init(&self, request: &Value) -> Answer {
        let key = request["keys"][0].as_str().unwrap_or_default();
        let semaphore = self.client(request)?.semaphore(key);
        let permits = request["permits"].as_u64().unwrap_or(1) as u32;
        let made = match span(request, "idle_ms")? {
            Some(idle) => semaphore.init_with_idle(permits, idle).await?,
            None => semaphore.init(permits).await?,
        };
        Ok(json!({"made": made}))
    }

    async fn close(&self, request: &Value) -> Answer {
        let client = lock(&self.clients).remove(request["client"].as_str().unwrap_or_default());
        let Some(client) = client else { return Ok(json!({})) };
        if self.fault == Fault::ClosesNothing {
            std::mem::forget(client);
            return Ok(json!({}));
        }
        client.close().await?;
        Ok(json!({}))
    }
}

/// The helper drops the work of a leader at the loss, and also if it is cancelled.
struct Term<'a> {
    hold: &'a Value,
    lost: locks::Lost,
}

impl Drop for Term<'_> {
    fn drop(&mut self) {
        if self.lost.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            say(&json!({"event": "lost", "hold": self.hold, "at_us": now_us()}));
        }
    }
}

async fn suspected(hold: &Hold) {
    while !lock(&hold.guard).as_ref().is_some_and(AnyGuard::is_suspected) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

struct AbortOnDrop(tokio::task::JoinHandle<()>);

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

enum Ended {
    Done,
    NotAcquired,
    Lost,
}

async fn work_once(
    lock_: &AnyLock,
    wait: Option<Duration>,
    hold_for: Duration,
    until: Option<tokio::time::Instant>,
    fault: Fault,
) -> Result<Ended, Failure> {
    let asked_us = now_us();
    let Some(guard) = lock_.acquire(wait).await? else { return Ok(Ended::NotAcquired) };
    let from_us = now_us();
    let end = tokio::time::Instant::now() + hold_for;
    let is_done = tokio::select! {
        biased;
        () = guard.lost(), if fault != Fault::BelievesAfterDeadline => false,
        () = tokio::time::sleep_until(until.map_or(end, |until| end.min(until))) => true,
    };
    // After a stop of the process the deadline may have passed long ago.
    let now = now_us();
    let to_us = if guard.is_held() || fault == Fault::BelievesAfterDeadline { now } else { now.min(from_us) };
    for (key, token) in guard.keys() {
        let to_us = to_us.max(from_us);
        say(
            &json!({"event": "interval", "key": key, "token": token, "asked_us": asked_us, "from_us": from_us, "to_us": to_us}),
        );
    }
    if fault == Fault::KeepsWhatItReleases {
        std::mem::forget(guard);
        return Ok(Ended::Done);
    }
    let released = guard.release(None).await;
    Ok(if is_done && released.is_ok() { Ended::Done } else { Ended::Lost })
}

fn stats() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kilobytes = status
        .lines()
        .find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    let handles = std::fs::read_dir("/proc/self/fd").map_or(0, |files| files.count());
    let tasks = tokio::runtime::Handle::current().metrics().num_alive_tasks();
    json!({"memory_bytes": kilobytes.unwrap_or(0) * 1024, "handles": handles, "tasks": tasks})
}
