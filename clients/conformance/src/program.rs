//! A program of one language: requests on its standard input, answers and events on its standard output.

use std::collections::{HashMap, HashSet, VecDeque};
use std::process::Stdio;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::{mpsc, oneshot, watch};

use crate::broken::{Broken, ensure};
use crate::clock::now_us;

/// A JVM on a busy machine takes some seconds.
const START_DEADLINE: Duration = Duration::from_secs(60);

pub struct Program {
    child: Mutex<Child>,
    pub pid: i32,
    input: mpsc::UnboundedSender<String>,
    state: Arc<State>,
    next: AtomicU64,
    pub hello: Value,
}

#[derive(Default)]
struct State {
    pending: Mutex<HashMap<u64, oneshot::Sender<Value>>>,
    events: Mutex<Vec<Value>>,
    /// The number of events so far.
    heard: watch::Sender<usize>,
    errors: Mutex<VecDeque<String>>,
    /// When its output ended, or the driver killed it; 0 before.
    ended_us: AtomicI64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The answer of a program.
#[derive(Clone, Debug)]
pub enum Answer {
    Ok(Value),
    Error {
        name: String,
        code: String,
        message: String,
        /// The error that caused this one, if there is one.
        cause: String,
    },
}

/// A request that may be outstanding.
pub struct Call {
    pub id: u64,
    pub what: String,
    pub sent_us: i64,
    answer: oneshot::Receiver<Value>,
    state: Arc<State>,
}

impl Program {
    pub async fn start(command: &str) -> Result<Arc<Program>, Broken> {
        // `exec` replaces the shell, so the id of the child is that of the program.
        let mut child = Command::new("/bin/sh")
            .args(["-c", &format!("exec {command}")])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| Broken::new("driver", format!("cannot run {command}: {error}")))?;
        let state = Arc::new(State::default());
        let (input, mut lines) = mpsc::unbounded_channel::<String>();
        let mut stdin = child.stdin.take().expect("it is piped");
        tokio::spawn(async move {
            while let Some(line) = lines.recv().await {
                if stdin.write_all(line.as_bytes()).await.is_err() {
                    break;
                }
            }
        });
        let (heard, mut output) = (state.clone(), BufReader::new(child.stdout.take().expect("it is piped")).lines());
        tokio::spawn(async move {
            while let Ok(Some(line)) = output.next_line().await {
                heard.hear(&line);
            }
            // Pending calls fail at once.
            let mut pending = lock(&heard.pending);
            heard.end();
            pending.clear();
        });
        let (heard, mut errors) = (state.clone(), BufReader::new(child.stderr.take().expect("it is piped")).lines());
        tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                let mut errors = lock(&heard.errors);
                errors.push_back(line);
                if errors.len() > 12 {
                    errors.pop_front();
                }
            }
        });
        let pid = child.id().and_then(|id| i32::try_from(id).ok()).unwrap_or(0);
        let mut program =
            Program { child: Mutex::new(child), pid, input, state, next: AtomicU64::new(1), hello: Value::Null };
        program.hello = program.call("hello", json!({})).ok(START_DEADLINE).await?;
        Ok(Arc::new(program))
    }

    pub fn features(&self) -> HashSet<String> {
        let features = self.hello["features"].as_array().into_iter().flatten();
        features.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    pub fn has(&self, feature: &str) -> bool {
        self.features().contains(feature)
    }

    pub fn language(&self) -> &str {
        self.hello["language"].as_str().unwrap_or("?")
    }

    /// Sends a request. The returned value waits for the answer.
    pub fn call(&self, what: &str, fields: Value) -> Call {
        let id = self.next.fetch_add(1, Ordering::Relaxed);
        let (answered, answer) = oneshot::channel();
        let mut pending = lock(&self.state.pending);
        if self.ended_us().is_none() {
            pending.insert(id, answered);
        }
        drop(pending);
        let mut request = fields;
        request["id"] = id.into();
        request["do"] = what.into();
        let call = Call { id, what: what.to_owned(), sent_us: now_us(), answer, state: self.state.clone() };
        let _ = self.input.send(format!("{request}\n"));
        call
    }

    /// Removes the events so far, and returns them.
    pub fn take_events(&self) -> Vec<Value> {
        std::mem::take(&mut lock(&self.state.events))
    }

    /// Clears the events, for the next scenario.
    pub fn forget(&self) {
        lock(&self.state.events).clear();
    }

    pub fn events(&self, name: &str) -> Vec<Value> {
        lock(&self.state.events).iter().filter(|event| event["event"] == name).cloned().collect()
    }

    /// Waits for an event about a hold.
    pub async fn event(&self, name: &str, hold: &str, within: Duration) -> Option<Value> {
        let mut heard = self.state.heard.subscribe();
        let search = || self.events(name).into_iter().find(|event| event["hold"] == hold);
        let waits = async {
            loop {
                if let Some(event) = search() {
                    return Some(event);
                }
                heard.changed().await.ok()?;
            }
        };
        tokio::time::timeout(within, waits).await.ok().flatten()
    }

    fn signal(&self, signal: Signal) {
        if let Some(pid) = Pid::from_raw(self.pid) {
            let _ = kill_process(pid, signal);
        }
    }

    /// Stops all threads of the program, as if its machine slept. They have stopped when this returns.
    pub async fn stop(&self) {
        self.signal(Signal::STOP);
        let is_stopped = |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
        let all_stopped = || {
            let mut threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).ok()?;
            let stopped = threads.all(|thread| {
                let stat = thread.and_then(|thread| std::fs::read_to_string(thread.path().join("stat")));
                stat.map_or(true, is_stopped)
            });
            Some(stopped)
        };
        while all_stopped() == Some(false) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    pub fn go_on(&self) {
        self.signal(Signal::CONT);
    }

    /// When the program ended, if it has.
    pub fn ended_us(&self) -> Option<i64> {
        Some(self.state.ended_us.load(Ordering::Relaxed)).filter(|at| *at > 0)
    }

    pub fn kill(&self) {
        self.state.end();
        let _ = lock(&self.child).start_kill();
    }

    /// Waits until the program has ended, and returns its status.
    pub async fn ended(&self, within: Duration) -> Result<i32, Broken> {
        let deadline = now_us() + within.as_micros() as i64;
        loop {
            if let Some(status) = lock(&self.child).try_wait().expect("a child") {
                return Ok(status.code().unwrap_or(-1));
            }
            ensure!(now_us() < deadline, "B24", "the program has not ended within {within:?}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        self.go_on();
        self.kill();
    }
}

impl State {
    fn end(&self) {
        let _ = self.ended_us.compare_exchange(0, now_us(), Ordering::Relaxed, Ordering::Relaxed);
    }

    fn hear(&self, line: &str) {
        let Ok(said) = serde_json::from_str::<Value>(line) else {
            lock(&self.errors).push_back(format!("not JSON: {line}"));
            return;
        };
        if said.get("event").is_some() {
            lock(&self.events).push(said);
            self.heard.send_modify(|heard| *heard += 1);
        } else if let Some(pending) = said["id"].as_u64().and_then(|id| lock(&self.pending).remove(&id)) {
            let _ = pending.send(said);
        }
    }
}

impl Call {
    /// The answer.
    pub async fn answer(self, within: Duration) -> Result<Answer, Broken> {
        self.answer_or("", within).await
    }

    pub async fn answer_or(mut self, rules: &str, within: Duration) -> Result<Answer, Broken> {
        let said = match tokio::time::timeout(within, &mut self.answer).await {
            Err(_) => return Err(Broken::new(rules, format!("no answer to {} within {within:?}", self.what))),
            Ok(Err(_)) => {
                let errors: Vec<_> = lock(&self.state.errors).iter().cloned().collect();
                return Err(Broken::new(
                    rules,
                    format!("the program ended during {}: {}", self.what, errors.join(" | ")),
                ));
            }
            Ok(Ok(said)) => said,
        };
        if let Some(ok) = said.get("ok") {
            return Ok(Answer::Ok(ok.clone()));
        }
        let text = |field: &str| said[field].as_str().unwrap_or_default().to_owned();
        Ok(Answer::Error { name: text("error"), code: text("code"), message: text("message"), cause: text("cause") })
    }

    /// The answer; an error fails the scenario.
    pub async fn ok(self, within: Duration) -> Result<Value, Broken> {
        let what = self.what.clone();
        match self.answer(within).await? {
            Answer::Ok(value) => Ok(value),
            error => Err(Broken::new("", format!("answer to {what}: {error}"))),
        }
    }
}

impl std::fmt::Display for Answer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Answer::Ok(value) => write!(f, "{value}"),
            Answer::Error { name, code, message, cause } => {
                write!(f, "{name}")?;
                let named = [(" ", code), (": ", message), (", caused by: ", cause)];
                named.iter().filter(|(_, text)| !text.is_empty()).try_for_each(|(word, text)| write!(f, "{word}{text}"))
            }
        }
    }
}
