//! The server and the program of one scenario, and a record of the holds that the program believed in.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use crate::broken::{Broken, Under, ensure};
use crate::clock::{now_us, us};
use crate::program::{Answer, Call, Program};
use crate::proxy::Proxy;
use crate::servers::{Programs, Server};

/// The limit for steps whose duration the rules do not limit, on a busy machine.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The names of B28. Any other name is misuse, `Cancelled` or `Unsupported`.
pub const TYPED: [&str; 10] = [
    "LockError",
    "LockTimeout",
    "LockLost",
    "Deadlock",
    "Superseded",
    "ModuleMissing",
    "ModuleTooOld",
    "Closed",
    "Unavailable",
    "Refused",
];

pub fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

pub async fn pause(ms: u64) {
    tokio::time::sleep(Duration::from_millis(ms)).await;
}

/// A span in which a program believed that it holds a key, as far as the driver knows.
#[derive(Clone, Debug)]
struct Belief {
    /// The process.
    pid: i32,
    hold: String,
    key: String,
    token: i64,
    from_us: i64,
    /// The latest deadline that the program has reported.
    until_us: i64,
    /// When the driver sent the release, or the program reported the loss.
    ended_us: i64,
    /// When the program had answered the release.
    released_us: i64,
    /// Whether other owners may hold the key at the same time.
    is_shared: bool,
}

impl Belief {
    fn end_us(&self) -> i64 {
        self.until_us.min(self.ended_us)
    }
}

#[derive(Default)]
struct Record {
    beliefs: Vec<Belief>,
    /// Keys of `work` that several owners may hold at the same time; their intervals are not compared.
    uncompared: HashSet<String>,
    programs: Vec<Arc<Program>>,
    clients: Vec<Client>,
}

pub struct World {
    pub programs: Arc<Programs>,
    command: String,
    driver: Option<String>,
    /// The program under test.
    pub program: Arc<Program>,
    /// The server of this scenario.
    pub server: Server,
    record: Arc<Mutex<Record>>,
    name: String,
    next: Arc<AtomicU64>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl World {
    pub async fn new(
        name: &str,
        programs: Arc<Programs>,
        command: &str,
        driver: Option<String>,
        program: Arc<Program>,
    ) -> Result<World, Broken> {
        let server = Server::start(&programs, &[]).await?;
        program.forget();
        let record = Record { programs: vec![program.clone()], ..Record::default() };
        let (record, next) = (Arc::new(Mutex::new(record)), Arc::new(AtomicU64::new(1)));
        Ok(World {
            programs,
            command: command.to_owned(),
            driver,
            program,
            server,
            record,
            name: name.to_owned(),
            next,
        })
    }

    /// Starts another process of the same program, which the scenario may stop or kill.
    pub async fn another_program(&self) -> Result<Arc<Program>, Broken> {
        let program = Program::start(&self.command).await?;
        lock(&self.record).programs.push(program.clone());
        Ok(program)
    }

    /// An owner that several clients share. A program without that option sends each name unchanged.
    pub fn shared(&self, owner: &str) -> Value {
        if self.program.has("shared-owner") { json!({"shared_owner": owner}) } else { json!({"owner": owner}) }
    }

    pub async fn another_server(&self, lines: &[&str]) -> Result<Server, Broken> {
        Server::start(&self.programs, lines).await
    }

    pub async fn proxy(&self) -> Proxy {
        Proxy::before(self.server.port).await
    }

    /// A client of the program, connected to this URL.
    pub async fn client(&self, url: &str) -> Result<Client, Broken> {
        self.client_with(&self.program, json!({"url": url})).await
    }

    /// A client in any program, connected with these fields of `connect`.
    pub async fn client_with(&self, program: &Arc<Program>, mut fields: Value) -> Result<Client, Broken> {
        match self.try_client(program, &mut fields).await? {
            (client, Answer::Ok(_)) => Ok(client),
            // A missing ability of the library is not a failure.
            (_, Answer::Error { name, message, .. }) if name == "Unsupported" => Err(Broken::lacking(message)),
            (_, answer) => Err(Broken::new("B25", format!("answer to connect {fields}: {answer}"))),
        }
    }

    pub async fn try_client(&self, program: &Arc<Program>, fields: &mut Value) -> Result<(Client, Answer), Broken> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let name = format!("{}-{number}", self.name);
        fields["client"] = json!(name);
        if let Some(driver) = &self.driver {
            fields["driver"] = json!(driver);
        }
        let answer = program.call("connect", fields.clone()).answer(PATIENCE).await?;
        let client = Client { program: program.clone(), name, record: self.record.clone(), next: self.next.clone() };
        lock(&self.record).clients.push(client.clone());
        Ok((client, answer))
    }

    /// Whether no two programs believed to hold the same key at the same time, and tokens rose.
    pub fn check_exclusion(&self) -> Result<(), Broken> {
        let record = lock(&self.record);
        let mut beliefs = record.beliefs.clone();
        for program in &record.programs {
            let mut told = HashSet::new();
            for lost in program.events("lost") {
                let (hold, at_us) =
                    (lost["hold"].as_str().unwrap_or_default(), lost["at_us"].as_i64().unwrap_or(i64::MAX));
                ensure!(told.insert(hold.to_owned()), "B15", "the loss of {hold} was reported twice");
                for belief in beliefs.iter_mut().filter(|belief| belief.hold == hold) {
                    belief.ended_us = belief.ended_us.min(at_us);
                    ensure!(
                        at_us <= belief.released_us,
                        "B15 B21",
                        "the loss of {hold} was reported after its release"
                    );
                }
            }
            if let Some(at) = program.ended_us() {
                beliefs.iter_mut().filter(|belief| belief.pid == program.pid).for_each(|belief| {
                    belief.ended_us = belief.ended_us.min(at);
                });
            }
            for interval in program.events("interval") {
                let number = |field: &str| interval[field].as_i64().unwrap_or_default();
                let key = interval["key"].as_str().unwrap_or_default().to_owned();
                if record.uncompared.contains(&key) {
                    continue;
                }
                let (from_us, until_us, token) = (number("from_us"), number("to_us"), number("token"));
                let (pid, hold, ended_us, is_shared) = (program.pid, "work".to_owned(), until_us, false);
                let released_us = i64::MAX;
                beliefs.push(Belief { pid, hold, key, token, from_us, until_us, ended_us, released_us, is_shared });
            }
        }
        beliefs.sort_by(|one, other| (&one.key, one.from_us).cmp(&(&other.key, other.from_us)));
        // For each key, the shared and the exclusive hold with the latest end so far.
        let mut latest: HashMap<(&str, bool), &Belief> = HashMap::new();
        for belief in &beliefs {
            let key = belief.key.as_str();
            for is_shared in [false, true] {
                let Some(earlier) = latest.get(&(key, is_shared)) else { continue };
                if is_shared && belief.is_shared || earlier.token == belief.token {
                    continue;
                }
                let (both_us, one, other) = (earlier.end_us() - belief.from_us, earlier.token, belief.token);
                let (first, second) = (&earlier.hold, &belief.hold);
                let what =
                    format!("two held {key:?} for {both_us} us: {first} with token {one}, {second} with token {other}");
                ensure!(both_us <= 0, "B13 B15", "{what}");
                ensure!(one < other, "B26", "{key:?}: token {other} came after {one}");
            }
            let longest = latest.entry((key, belief.is_shared)).or_insert(belief);
            if belief.end_us() >= longest.end_us() {
                *longest = belief;
            }
        }
        Ok(())
    }

    /// Closes the clients of this scenario that are still there.
    pub async fn close_clients(&self) -> Result<(), Broken> {
        let clients = std::mem::take(&mut lock(&self.record).clients);
        let calls: Vec<_> = clients.iter().map(|client| client.call("close", json!({}))).collect();
        for (call, client) in calls.into_iter().zip(&clients) {
            // The scenario may have killed other programs.
            let answer = call.answer(ms(10_000)).await;
            if Arc::ptr_eq(&client.program, &self.program) {
                answer.under("B24")?;
            }
        }
        Ok(())
    }
}

#[derive(Clone)]
pub struct Client {
    pub program: Arc<Program>,
    pub name: String,
    record: Arc<Mutex<Record>>,
    next: Arc<AtomicU64>,
}

/// How an acquisition ended.
pub enum Outcome {
    Acquired(Hold),
    NotAcquired,
    /// A `LockTimeout` is one only if it has a cause.
    Error {
        name: String,
        code: String,
        message: String,
    },
}

impl Outcome {
    /// Whether it says that the server did not answer, or refused for now.
    pub fn is_outage(&self) -> bool {
        matches!(self, Outcome::Error { name, .. } if name == "Unavailable" || name == "LockTimeout")
    }
}

impl std::fmt::Display for Outcome {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Outcome::Acquired(hold) => write!(f, "acquired with tokens {:?}", hold.tokens),
            Outcome::NotAcquired => write!(f, "not acquired"),
            Outcome::Error { name, code, message } => write!(f, "{name} {code} ({message})"),
        }
    }
}

/// An acquisition that may be outstanding.
pub struct Acquiring {
    pub call: Call,
    has_timeout: bool,
    client: Client,
    hold: String,
    kind: String,
    keys: Vec<String>,
}

/// A hold of a program.
#[derive(Clone)]
pub struct Hold {
    client: Client,
    pub name: String,
    pub keys: Vec<String>,
    pub tokens: Vec<i64>,
    pub at_us: i64,
    /// The deadline that the program reported, if it did.
    pub until_us: Option<i64>,
}

pub fn merged(mut fields: Value, more: &Value) -> Value {
    if let (Some(fields), Some(more)) = (fields.as_object_mut(), more.as_object()) {
        fields.extend(more.clone());
    }
    fields
}

fn until(value: &Value) -> Option<i64> {
    let (at, valid) = (value["at_us"].as_i64()?, value["valid_ms"].as_f64()?);
    Some(at + (valid * 1000.0) as i64)
}

impl Client {
    pub fn call(&self, what: &str, fields: Value) -> Call {
        self.program.call(what, merged(fields, &json!({"client": self.name})))
    }

    /// Begins to acquire. `keys` are separated by spaces.
    pub fn begin(&self, kind: &str, keys: &str, options: Value) -> Acquiring {
        let hold = format!("{}-hold-{}", self.name, self.next.fetch_add(1, Ordering::Relaxed));
        let keys: Vec<_> = keys.split_whitespace().map(str::to_owned).collect();
        let fields = merged(json!({"hold": hold, "kind": kind, "keys": keys}), &options);
        let has_timeout = fields.get("wait_ms").is_some();
        Acquiring {
            call: self.call("acquire", fields),
            has_timeout,
            client: self.clone(),
            hold,
            kind: kind.to_owned(),
            keys,
        }
    }

    /// Acquires a lock that is available. Fails if that takes longer than `PATIENCE`.
    pub async fn acquire(&self, kind: &str, keys: &str, options: Value) -> Result<Hold, Broken> {
        self.begin(kind, keys, options).acquired(PATIENCE).await
    }

    /// How an acquisition ends.
    pub async fn outcome(&self, kind: &str, keys: &str, options: Value) -> Result<Outcome, Broken> {
        self.begin(kind, keys, options).outcome(PATIENCE).await
    }

    /// Fails if it is acquired.
    pub async fn is_refused(&self, kind: &str, keys: &str, options: Value) -> Result<(), Broken> {
        let text = options.to_string();
        match self.outcome(kind, keys, options).await? {
            Outcome::NotAcquired => Ok(()),
            outcome => {
                Err(Broken::new("B5", format!("{kind} {keys:?} with {text}, which is held by another: {outcome}")))
            }
        }
    }

    pub async fn init(&self, key: &str, permits: u32) -> Result<bool, Broken> {
        let made = self.call("init", json!({"keys": [key], "permits": permits})).ok(PATIENCE).await?;
        Ok(made["made"] == true)
    }

    /// Begins `work`. Its intervals count as holds.
    pub fn work(&self, kind: &str, keys: &str, options: Value) -> Call {
        let keys: Vec<_> = keys.split_whitespace().collect();
        if kind == "read" || kind == "semaphore" {
            lock(&self.record).uncompared.extend(keys.iter().map(|key| (*key).to_owned()));
        }
        self.call("work", merged(json!({"kind": kind, "keys": keys}), &options))
    }

    pub async fn close(&self) -> Result<(), Broken> {
        let call = self.call("close", json!({}));
        let prefix = format!("{}-hold-", self.name);
        for belief in lock(&self.record).beliefs.iter_mut().filter(|belief| belief.hold.starts_with(&prefix)) {
            belief.ended_us = belief.ended_us.min(call.sent_us);
        }
        let answer = call.ok(ms(8_000)).await;
        answer.map(|_| ()).under("B24")
    }
}

impl Acquiring {
    pub async fn outcome(self, within: Duration) -> Result<Outcome, Broken> {
        let Acquiring { call, has_timeout, client, hold, kind, keys } = self;
        let said = match call.answer_or(if has_timeout { "B5" } else { "" }, within).await? {
            Answer::Ok(said) => said,
            Answer::Error { name, cause, .. } if name == "LockTimeout" && cause.is_empty() => {
                return Ok(Outcome::NotAcquired);
            }
            Answer::Error { name, code, message, cause } => {
                let message = if cause.is_empty() { message } else { format!("{message}, caused by: {cause}") };
                return Ok(Outcome::Error { name, code, message });
            }
        };
        let listed = said["tokens"].as_array();
        let listed = listed.ok_or_else(|| Broken::new("B26", format!("no tokens in {said}")))?;
        if listed.is_empty() {
            return Ok(Outcome::NotAcquired);
        }
        let tokens: Vec<_> = listed.iter().filter_map(Value::as_i64).filter(|token| *token > 0).collect();
        ensure!(tokens.len() == keys.len(), "B26", "tokens are {} for {keys:?}", said["tokens"]);
        let at_us = said["at_us"].as_i64().ok_or_else(|| Broken::new("driver", format!("no at_us in {said}")))?;
        let hold = Hold { client, name: hold, keys, tokens, at_us, until_us: until(&said) };
        let mut record = lock(&hold.client.record);
        // The permits of a semaphore are not counted.
        for (key, token) in hold.keys.iter().zip(&hold.tokens).filter(|_| kind != "semaphore") {
            record.beliefs.push(Belief {
                pid: hold.client.program.pid,
                hold: hold.name.clone(),
                key: key.clone(),
                token: *token,
                from_us: at_us,
                until_us: hold.until_us.unwrap_or(at_us),
                ended_us: i64::MAX,
                released_us: i64::MAX,
                is_shared: kind == "read",
            });
        }
        drop(record);
        Ok(Outcome::Acquired(hold))
    }

    pub async fn acquired(self, within: Duration) -> Result<Hold, Broken> {
        let keys = self.keys.join(" ");
        match self.outcome(within).await? {
            Outcome::Acquired(hold) => Ok(hold),
            outcome => Err(Broken::new("", format!("{keys:?} was available, and acquiring it ended with: {outcome}"))),
        }
    }

    /// Fails unless it ends with an error of this name, and of this code if one is given.
    pub async fn fails(self, within: Duration, rules: &str, name: &str, code: &str) -> Result<(), Broken> {
        let outcome = self.outcome(within).await.under(rules)?;
        let is_it =
            matches!(&outcome, Outcome::Error { name: n, code: c, .. } if n == name && (code.is_empty() || c == code));
        ensure!(is_it, rules, "expected {name} {code}, not: {outcome}");
        Ok(())
    }

    /// Cancels the acquisition, and returns its outcome.
    pub async fn cancelled(self) -> Result<Outcome, Broken> {
        let cancel = self.client.program.call("cancel", json!({"request": self.call.id}));
        let outcome = self.outcome(PATIENCE).await.under("B11");
        cancel.answer(PATIENCE).await?;
        outcome
    }
}

impl Hold {
    pub fn token(&self) -> i64 {
        self.tokens.first().copied().unwrap_or_default()
    }

    pub async fn release(&self) -> Result<(), Broken> {
        self.release_with(json!({})).await
    }

    pub async fn release_with(&self, options: Value) -> Result<(), Broken> {
        self.releasing(options).ok(PATIENCE).await?;
        self.record(|belief| belief.released_us = now_us());
        Ok(())
    }

    pub fn releasing(&self, options: Value) -> Call {
        let call = self.client.program.call("release", merged(json!({"hold": self.name}), &options));
        self.record(|belief| belief.ended_us = belief.ended_us.min(call.sent_us));
        call
    }

    /// Makes a fixed lease end this long from now. A package without that lacks it.
    pub async fn extend(&self, lease_ms: u32) -> Result<(), Broken> {
        let call = self.client.program.call("extend", json!({"hold": self.name, "lease_ms": lease_ms}));
        match call.answer(PATIENCE).await? {
            Answer::Ok(_) => Ok(()),
            Answer::Error { name, message, .. } if name == "Unsupported" => Err(Broken::lacking(message)),
            error => Err(Broken::new("", format!("a fixed lease was not extended: {error}"))),
        }
    }

    fn record(&self, change: impl FnMut(&mut Belief)) {
        lock(&self.client.record).beliefs.iter_mut().filter(|belief| belief.hold == self.name).for_each(change);
    }

    /// Waits until the client has claimed it, so that it has its lease of more than 5 s.
    pub async fn is_claimed(&self, server: &Server) -> Result<(), Broken> {
        let deadline = now_us() + us(5000);
        while server.lease_left(&self.keys[0], self.token()).await? < 5000 {
            ensure!(now_us() < deadline, "B16", "{:?} was not claimed", self.keys);
            pause(5).await;
        }
        // The answer arrives.
        pause(100).await;
        Ok(())
    }

    /// Whether the program believes to hold it, and until when.
    pub async fn held(&self) -> Result<(bool, i64), Broken> {
        let said = self.client.program.call("held", json!({"hold": self.name})).ok(PATIENCE).await?;
        let (held, at_us) = (said["held"] == true, said["at_us"].as_i64().unwrap_or_default());
        let until_us = until(&said).unwrap_or(at_us);
        self.record(|belief| {
            if held {
                belief.until_us = belief.until_us.max(until_us);
            } else {
                belief.ended_us = belief.ended_us.min(at_us);
            }
        });
        Ok((held, until_us))
    }

    /// Fails unless the program believes to hold it.
    pub async fn is_held(&self, rules: &str, why: &str) -> Result<(), Broken> {
        let lost = self.client.program.events("lost").into_iter().any(|lost| lost["hold"] == self.name.as_str());
        ensure!(self.held().await?.0 && !lost, rules, "the client gave the hold up: {why}");
        Ok(())
    }

    /// Waits for the event `lost`, and returns its `at_us`.
    pub async fn lost(&self, within: Duration) -> Result<i64, Broken> {
        let lost = self.client.program.event("lost", &self.name, within).await;
        let lost = lost.ok_or_else(|| Broken::new("B15", format!("the loss was not reported within {within:?}")))?;
        let (held, _) = self.held().await?;
        ensure!(!held, "B15", "the loss was reported, and `held` is still true");
        lost["at_us"].as_i64().ok_or_else(|| Broken::new("driver", "no at_us in the event lost"))
    }

    /// Fails unless the program reports the loss before `deadline_us`, the earliest moment at which the server ends the hold.
    pub async fn lost_before(&self, deadline_us: i64) -> Result<i64, Broken> {
        let wait = Duration::from_micros((deadline_us - now_us()).max(0) as u64) + ms(4000);
        let at_us = self.lost(wait).await?;
        let slack = crate::clock::slack_us(deadline_us - us(200));
        let late = at_us - deadline_us;
        ensure!(
            late <= slack,
            "B13 B15",
            "the loss was reported {} ms after the server may have ended the hold",
            late / 1000
        );
        Ok(at_us)
    }

    /// Fails if the program believes in the hold for longer than the server keeps it.
    pub async fn is_within_lease(&self, server: &Server) -> Result<(), Broken> {
        let (_, held_until_us) = self.held().await?;
        let until_us = self.until_us.unwrap_or(held_until_us).max(held_until_us);
        let left = server.lease_left(&self.keys[0], self.token()).await?;
        // A renewal in between makes the server's deadline later, never earlier.
        let ends_us = now_us() + us(left + 1);
        ensure!(
            until_us <= ends_us,
            "B13",
            "it believes for {} ms longer than the server",
            (until_us - ends_us) / 1000
        );
        Ok(())
    }
}
