//! Provokes the usual faults of locks, and checks that lock.rs survives them. `make test-examples`
//! runs it.

mod lock;

use std::env;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use redis::{Client, FromRedisValue, Value, cmd};

use lock::{acquire, acquire_as};

const LEASE: Duration = Duration::from_secs(30);
const SECOND: Duration = Duration::from_secs(1);

fn client(port: &str) -> Client {
    let port = env::var(port).expect("make test-examples sets the ports");
    Client::open(format!("redis://127.0.0.1:{port}/")).expect("an address")
}

/// Sends a command directly to the server.
fn ask<T: FromRedisValue>(line: &str) -> T {
    let mut words = line.split(' ');
    let mut command = cmd(words.next().expect("a command"));
    words.for_each(|word| {
        command.arg(word);
    });
    command.query(&mut client("PORT").get_connection().expect("a connection")).expect("an answer")
}

/// Checks that no hold and no waiter is left.
fn assert_free(key: &str) {
    assert!(ask::<Vec<Value>>(&format!("RLOCK.WAITERS {key}")).is_empty());
    assert_eq!(ask::<i64>(&format!("RLOCK.PTTL {key}")), -2);
}

/// The number of lock requests that the server received.
fn requests() -> u64 {
    let stats = ask::<String>("INFO commandstats").to_lowercase();
    let calls = ["acquire", "cancel", "release"].map(|verb| {
        let start = format!("cmdstat_rlock.{verb}:calls=");
        let calls = stats.lines().find_map(|line| line.strip_prefix(&start)?.split(',').next());
        calls.map_or(0, |calls| calls.parse().expect("a number"))
    });
    calls.iter().sum()
}

fn two_waiters_in_one_name() {
    ask::<i64>("RLOCK.ACQUIRE in-one-name holder");
    let before = requests();
    let wait = || thread::spawn(|| acquire_as("one-owner".into(), &client("PORT"), "in-one-name", LEASE, SECOND * 20));
    let older = wait();
    while ask::<Vec<Value>>("RLOCK.WAITERS in-one-name").is_empty() {
        thread::sleep(SECOND / 100);
    }
    let newer = wait();
    thread::sleep(SECOND * 5);
    let made = requests() - before;
    assert!(made < 10, "{made} requests in 5 s");
    let refusal = older.join().expect("no panic").err().expect("it was refused");
    assert_eq!(refusal.code(), Some("SUPERSEDED"));
    ask::<i64>("RLOCK.RELEASE in-one-name holder");
    drop(newer.join().expect("no panic").expect("an answer").expect("it was freed"));
    assert_free("in-one-name");
    println!("ok  redis-rs: of two waiters with the same owner name the newer goes on, and the older stops asking");
}

/// Sends a signal to the server.
fn signal(name: &str) {
    let info = ask::<String>("INFO server");
    let pid = info.lines().find_map(|line| line.strip_prefix("process_id:")).expect("a process").to_owned();
    let sent = Command::new("kill").args([format!("-{name}"), pid.clone()]).status();
    assert!(sent.expect("the program kill").success());
    if name == "STOP" {
        // Otherwise it would stay stopped if the check fails.
        thread::spawn(move || {
            thread::sleep(SECOND * 8);
            let _ = Command::new("kill").args(["-CONT", &pid]).status();
        });
    }
}

/// The loss comes by the clock, while a renewal has no answer.
fn stopped_server(client: &Client) {
    let lease = SECOND * 3;
    let hold = acquire(client, "silent", lease, SECOND).expect("an answer").expect("it is free");
    thread::sleep(SECOND * 3 / 2);
    let (asked, left) = (Instant::now(), ask::<u64>("RLOCK.PTTL silent"));
    signal("STOP");
    assert!(!hold.is_lost());
    while !hold.is_lost() {
        thread::sleep(SECOND / 100);
    }
    let spare = (asked + Duration::from_millis(left)).checked_duration_since(Instant::now()).unwrap_or_default();
    assert!(spare > lease / 20, "the loss was noticed {spare:?} before the lease ended");
    drop(hold);
    while ask::<i64>("RLOCK.PTTL silent") != -2 {
        thread::sleep(SECOND / 100);
    }
    println!("ok  redis-rs: notices the loss before the lease ends, while the server is stopped");
}

fn main() {
    let (direct, losing) = (client("PORT"), client("LOSING_PORT"));
    for _ in 0..20 {
        let hold = acquire(&losing, "cut:rust", LEASE, SECOND * 20).expect("an answer").expect("it is free");
        assert_eq!(ask::<i64>(&format!("RLOCK.HOLDS cut:rust {}", hold.owner)), 1);
        drop(hold);
        assert_free("cut:rust");
    }
    println!("ok  redis-rs: 20 rounds with both replies lost: one hold, one RELEASE frees it");

    let first = acquire(&direct, "job", SECOND * 3 / 2, SECOND).expect("an answer").expect("it is free");
    let started = Instant::now();
    assert!(acquire(&direct, "job", LEASE, SECOND / 2).expect("an answer").is_none());
    assert!(started.elapsed() < SECOND * 3 / 2);
    let waiting = thread::spawn(move || acquire(&losing, "job", LEASE, SECOND * 10).expect("an answer"));
    thread::sleep(SECOND / 2);
    ask::<i64>("CLIENT KILL TYPE normal SKIPME yes");
    thread::sleep(SECOND * 5 / 2);
    assert!(!first.is_lost());
    drop(first);
    let second = waiting.join().expect("no panic").expect("it was freed");
    println!("ok  redis-rs: waits end in time, and go on after a cut connection; a hold outlasts its lease");

    two_waiters_in_one_name();
    stopped_server(&direct);
    ask::<i64>("RLOCK.FORCERELEASE job");
    drop(second);
    let renewed = acquire(&direct, "job", SECOND, SECOND).expect("an answer").expect("it is free");
    ask::<i64>(&format!("RLOCK.FORCERELEASE job TOKEN {}", renewed.token));
    thread::sleep(SECOND);
    assert!(renewed.is_lost());
    assert_free(&renewed.key);
    println!("ok  redis-rs: notices the loss of the lock");
}
