//! A client with the usual faults of hand-written lock code. Tests run it to see scenarios fail.
//!
//! It waits on a blocked connection without database and user, renews all holds one after another, stops renewing at the first error,
//! has no clock, repeats nothing, and settles nothing.

#![allow(missing_docs, reason = "a program")]
#![allow(clippy::cast_possible_truncation, reason = "times of a test")]

use std::collections::HashMap;
use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::task::AbortHandle;

#[derive(Clone)]
struct Client {
    url: String,
    shared: MultiplexedConnection,
}

#[derive(Clone)]
struct Hold {
    client: Client,
    family: &'static str,
    /// Keys, owner and mode.
    subject: Vec<String>,
    lease_ms: u64,
}

#[derive(Default)]
struct Program {
    clients: Mutex<HashMap<String, Client>>,
    holds: Mutex<HashMap<String, Hold>>,
    renewed: Mutex<Vec<String>>,
    running: Mutex<HashMap<u64, AbortHandle>>,
}

fn now_us() -> i64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec * 1_000_000 + now.tv_nsec / 1000
}

fn say(line: &Value) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

type Answer = Result<Value, redis::RedisError>;

async fn connect(url: &str) -> Result<MultiplexedConnection, redis::RedisError> {
    let patient = redis::AsyncConnectionConfig::new().set_response_timeout(None);
    redis::Client::open(url)?.get_multiplexed_async_connection_with_config(&patient).await
}

#[tokio::main]
async fn main() {
    let program = Arc::new(Program::default());
    tokio::spawn(renew(program.clone()));
    let mut lines = BufReader::new(tokio::io::stdin()).lines();
    while let Ok(Some(line)) = lines.next_line().await {
        let Ok(request) = serde_json::from_str::<Value>(&line) else { continue };
        let (id, served) = (request["id"].as_u64().unwrap_or(0), program.clone());
        let task = tokio::spawn(async move {
            let answer = served.serve(&request).await;
            served.running.lock().unwrap().remove(&id);
            say(&match answer {
                Ok(ok) => json!({"id": id, "ok": ok}),
                Err(error) => {
                    json!({"id": id, "error": "Unavailable", "code": error.code(), "message": error.to_string()})
                }
            });
        });
        program.running.lock().unwrap().insert(id, task.abort_handle());
    }
}

/// Renews one hold after another, and waits for each answer.
async fn renew(program: Arc<Program>) {
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        let names = program.renewed.lock().unwrap().clone();
        for name in names {
            let Some(hold) = program.holds.lock().unwrap().get(&name).cloned() else { continue };
            let mut connection = hold.client.shared.clone();
            let renewal =
                redis::cmd(&format!("{}RENEW", hold.family)).arg(&hold.subject).arg("PX").arg(hold.lease_ms).to_owned();
            if renewal.query_async::<redis::Value>(&mut connection).await.is_err() {
                program.renewed.lock().unwrap().retain(|renewed| *renewed != name);
            }
        }
    }
}

impl Program {
    async fn serve(&self, request: &Value) -> Answer {
        let text = |field: &str| request[field].as_str().unwrap_or_default().to_owned();
        let client = self.clients.lock().unwrap().get(&text("client")).cloned();
        match (text("do").as_str(), client) {
            ("hello", _) => {
                let mut features = vec!["timed", "B29", "B32"];
                if std::env::var_os("RLOCK_CONFORMANCE_FAULT").is_some_and(|fault| fault == "declares-none") {
                    features.clear();
                }
                Ok(json!({"language": "naive", "package": "none", "features": features}))
            }
            ("connect", _) => {
                let client = Client { url: text("url"), shared: connect(&text("url")).await? };
                self.clients.lock().unwrap().insert(text("client"), client);
                Ok(json!({}))
            }
            ("acquire", Some(client)) => self.acquire(client, request).await,
            ("release", _) => self.release(&text("hold")).await,
            ("held", _) => {
                let is_there = self.holds.lock().unwrap().contains_key(&text("hold"));
                Ok(json!({"held": is_there, "at_us": now_us(), "valid_ms": 1000}))
            }
            ("work", Some(client)) => self.work(client, request).await,
            ("run", Some(client)) => {
                self.acquire(client, request).await?;
                tokio::time::sleep(Duration::from_millis(request["work_ms"].as_u64().unwrap_or(0))).await;
                self.release(&text("hold")).await?;
                Ok(json!({"result": "done"}))
            }
            ("init", Some(mut client)) => {
                let permits = request["permits"].as_u64();
                let init = redis::cmd("RSEMAPHORE.INIT").arg(request["keys"][0].as_str()).arg(permits).to_owned();
                Ok(json!({"made": init.query_async::<i64>(&mut client.shared).await? == 1}))
            }
            ("cancel", _) => {
                let id = request["request"].as_u64().unwrap_or(0);
                if let Some(task) = self.running.lock().unwrap().remove(&id) {
                    task.abort();
                    say(&json!({"id": id, "error": "Cancelled", "code": "", "message": ""}));
                }
                Ok(json!({}))
            }
            ("exit", _) => std::process::exit(0),
            _ => Ok(json!({})),
        }
    }

    async fn acquire(&self, client: Client, request: &Value) -> Answer {
        let keys: Vec<_> = request["keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let owner = request["owner"].as_str().map_or_else(|| rand::random::<u64>().to_string(), str::to_owned);
        let (family, mode) = match request["kind"].as_str().unwrap_or_default() {
            "fair" => ("RFAIRLOCK.", None),
            "read" => ("RRWLOCK.", Some("READ")),
            "write" => ("RRWLOCK.", Some("WRITE")),
            "semaphore" => ("RSEMAPHORE.", None),
            "many" => ("RLOCK.M", None),
            _ => ("RLOCK.", None),
        };
        let mut subject = Vec::new();
        if family == "RLOCK.M" {
            subject.push(keys.len().to_string());
        }
        subject.extend(keys.iter().map(|key| (*key).to_owned()));
        subject.push(owner);
        subject.extend(mode.map(str::to_owned));
        let lease_ms = request["fixed_lease_ms"].as_u64().or(request["lease_ms"].as_u64()).unwrap_or(30_000);
        let mut acquire = redis::cmd(&format!("{family}ACQUIRE")).arg(&subject).arg("PX").arg(lease_ms).to_owned();
        let wait_ms = request["wait_ms"].as_u64();
        let granted = if wait_ms == Some(0) {
            acquire.query_async(&mut client.shared.clone()).await?
        } else {
            acquire.arg("BLOCK").arg(wait_ms.unwrap_or(0));
            let server =
                client.url.rsplit_once('@').map_or(client.url.clone(), |(_, server)| format!("redis://{server}"));
            let server = server.rsplit_once('/').map_or(server.clone(), |(server, _)| server.to_owned());
            acquire.query_async(&mut connect(&server).await?).await?
        };
        let tokens = match granted {
            redis::Value::Int(token) => vec![token],
            redis::Value::Array(tokens) => {
                tokens.iter().filter_map(|token| redis::from_redis_value_ref(token).ok()).collect()
            }
            _ => return Ok(json!({"tokens": [], "at_us": now_us()})),
        };
        let name = request["hold"].as_str().unwrap_or_default().to_owned();
        self.holds.lock().unwrap().insert(name.clone(), Hold { client, family, subject, lease_ms });
        if request["fixed_lease_ms"].is_null() {
            self.renewed.lock().unwrap().push(name);
        }
        Ok(json!({"tokens": tokens, "at_us": now_us(), "valid_ms": lease_ms}))
    }

    async fn release(&self, name: &str) -> Answer {
        self.renewed.lock().unwrap().retain(|renewed| renewed != name);
        let hold = self.holds.lock().unwrap().remove(name);
        if let Some(mut hold) = hold {
            let release = redis::cmd(&format!("{}RELEASE", hold.family)).arg(&hold.subject).to_owned();
            release.query_async::<redis::Value>(&mut hold.client.shared).await?;
        }
        Ok(json!({}))
    }

    async fn work(&self, client: Client, request: &Value) -> Answer {
        let until = now_us() + request["for_ms"].as_i64().unwrap_or(0) * 1000;
        let times = request["times"].as_u64().unwrap_or(u64::MAX);
        let (mut done, mut named) = (0, request.clone());
        named["hold"] = json!(format!("work-{}", rand::random::<u64>()));
        while done < times && (request["for_ms"].is_null() || now_us() < until) {
            let Ok(acquired) = self.acquire(client.clone(), &named).await else { continue };
            let from_us = now_us();
            tokio::time::sleep(Duration::from_millis(request["hold_ms"].as_u64().unwrap_or(0))).await;
            let (key, token) = (&request["keys"][0], &acquired["tokens"][0]);
            if token.is_number() {
                say(&json!({"event": "interval", "key": key, "token": token, "from_us": from_us, "to_us": now_us()}));
                done += 1;
            }
            let _ = self.release(named["hold"].as_str().unwrap_or_default()).await;
        }
        Ok(json!({"done": done, "not_acquired": 0, "lost": 0, "errors": {}}))
    }
}
