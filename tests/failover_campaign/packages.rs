//! Processes of the packages of five languages as workers. Each is stopped now and then (SIGSTOP),
//! often for longer than its leases.
//!
//! The programs speak the protocol of clients/conformance/PROTOCOL.md, and say themselves when
//! their applications held a lock. Each has one client for each server, like applications of which
//! some do not know of a failover.

use std::env;
use std::fmt::Display;
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Value, json};

use super::beliefs::Belief;
use super::workers::{End, KEY_OF_FAULTS, Load};
use crate::support::{OwnedProcess, monotonic_us, seed};

/// The commands of the programs, one per line, as `NAME=COMMAND`. `make test-failover` builds them.
pub const PROGRAMS: &str = "RLOCK_PROGRAMS";

/// The beginning of the names of locks. A number follows.
const NAME: &str = "packages-";
/// The longest time between two stops of a program.
const RUNS_FOR: Duration = Duration::from_secs(8);
/// The number of the next belief.
static NEXT: AtomicUsize = AtomicUsize::new(0);
const A_DAY: Duration = Duration::from_secs(24 * 3600);

/// Returns the commands of the programs; none if the environment names none.
pub fn commands() -> Vec<String> {
    let programs = env::var(PROGRAMS).unwrap_or_default();
    programs.lines().filter_map(|line| Some(line.split_once('=')?.1.to_owned())).collect()
}

/// Runs all programs until the returned value is dropped.
#[must_use]
pub fn begin<'s>(scope: &'s thread::Scope<'s, '_>, load: &'s Load) -> End<'s> {
    let began = (Instant::now(), monotonic_us());
    for (number, command) in (0..).zip(commands()) {
        let random = StdRng::seed_from_u64(seed().wrapping_add(number));
        scope.spawn(move || work(scope, load, began, &command, random));
    }
    End(load)
}

fn work<'s>(
    scope: &'s thread::Scope<'s, '_>,
    load: &'s Load,
    began: (Instant, u64),
    command: &str,
    mut random: StdRng,
) {
    let mut shell = Command::new("/bin/sh");
    // `exec` replaces the shell, so the signals are for the program.
    shell.args(["-c", &format!("exec {command}")]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = shell.spawn().expect("a shell");
    let (input, output) = (child.stdin.take().expect("a pipe"), child.stdout.take().expect("a pipe"));
    let program = OwnedProcess::new(child);
    // It lives as long as the program, which ends without it.
    let input = Arc::new(Mutex::new(input));
    let send = move |request: Value| writeln!(lock(&input), "{request}").expect("the program reads");
    for port in load.ports() {
        send(json!({"id": port, "do": "connect", "client": client(port), "url": format!("redis://127.0.0.1:{port}")}));
    }
    let answer = send.clone();
    scope.spawn(move || {
        for line in BufReader::new(output).lines() {
            let line = line.expect("a line");
            let said: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(said.get("error").is_none(), "{line}");
            if said["event"] == "interval" {
                let belief = belief(began, &said).unwrap_or_else(|| panic!("no interval: {line}"));
                // A hold that was lost before its program continued was never believed.
                if belief.from < belief.until {
                    load.note(belief);
                }
            } else if let Some(port) = said["id"].as_u64() {
                work_at(port, load.lease()).into_iter().for_each(&answer);
            }
        }
    });
    while !load.is_over() {
        thread::sleep(RUNS_FOR.mul_f64(random.random_range(0.0..1.0)));
        program.stop();
        thread::sleep(load.lease().mul_f64(random.random_range(0.05..1.2)));
        program.go_on();
    }
}

/// The name of the client for the server with this port.
fn client(port: impl Display) -> String {
    format!("of-{port}")
}

/// The requests to a connected client, which are never answered: it holds some locks for
/// milliseconds, and others for longer than the longest lease.
fn work_at(port: u64, longest: Duration) -> [Value; 2] {
    let ms = |time: Duration| u64::try_from(time.as_millis()).expect("a short time");
    [(1, Duration::from_millis(30), longest / 8, 4), (2, longest.mul_f64(1.5), longest, 2)].map(
        |(group, hold, lease, spread)| {
            json!({
                "id": 10 * (1 << 16) + 10 * port + group, "do": "work", "client": client(port), "kind": "mutex",
                "keys": [format!("{NAME}{group}")], "tasks": spread, "spread": spread, "for_ms": ms(A_DAY),
                "hold_ms": ms(hold), "lease_ms": ms(lease), "wait_ms": 2000,
            })
        },
    )
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The interval of a hold as a belief. Each hold counts as one of another worker, because no owner
/// acquires a lock that it holds.
fn belief((began, began_us): (Instant, u64), said: &Value) -> Option<Belief> {
    let at = |field: &str| Some(began + Duration::from_micros(said[field].as_u64()?.checked_sub(began_us)?));
    let key = KEY_OF_FAULTS + said["key"].as_str()?.strip_prefix(NAME)?.parse::<usize>().ok()?;
    let token = said["token"].as_i64()?;
    let worker = NEXT.fetch_add(1, Ordering::Relaxed);
    Some(Belief { key, worker, token, sent: at("asked_us")?, from: at("from_us")?, until: at("to_us")? })
}

#[test]
fn interval_of_a_program_is_a_belief() {
    let began = Instant::now();
    let said = json!({"key": "packages-12", "token": 9, "asked_us": 5_000, "from_us": 6_000, "to_us": 8_000});
    let belief = belief((began, 4_000), &said).expect("a belief");
    assert_eq!((belief.key, belief.token), (KEY_OF_FAULTS + 12, 9));
    let times = [belief.sent, belief.from, belief.until].map(|at| (at - began).as_micros());
    assert_eq!(times, [1_000, 2_000, 4_000]);
}
