//! The basic use of a lock: many tasks increment a counter without losing a step, over few
//! connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::support::Server;
use crate::{connect, connections, url};

const TASKS: u64 = 10_000;
const THREADS: u64 = 1000;
/// The commands that one task sends: an acquisition, a renewal after the wait, and a release. One
/// more is allowed for a retry on a busy machine; polling would take far more.
const COMMANDS_PER_TASK: u64 = 4;

/// The most connections that one client may use.
const MOST_CONNECTIONS: usize = 2;

/// A counter that is wrong unless its users take turns: each reads it, and writes it a moment
/// later.
#[derive(Default)]
struct Counter {
    value: AtomicU64,
    last_token: AtomicU64,
}

impl Counter {
    fn check(&self, token: u64) {
        let last = self.last_token.swap(token, Ordering::Relaxed);
        assert!(token > last, "tokens rise from holder to holder");
    }
}

/// The number of lock commands that the server has received. The test's own commands are not
/// counted.
fn lock_commands(server: &Server) -> u64 {
    let stats = server.client().call("INFO commandstats").text();
    let calls = |line: &str| -> Option<u64> {
        let (_, counts) = line.strip_prefix("cmdstat_RLOCK.")?.split_once(":calls=")?;
        counts.split(',').next()?.parse().ok()
    };
    stats.lines().filter_map(calls).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_tasks_count_over_few_connections() {
    let server = Server::start();
    let client = connect(&server).await;
    let counter = Arc::new(Counter::default());
    let tasks: Vec<_> = (0..TASKS)
        .map(|_| {
            let (lock, counter) = (client.lock("k"), counter.clone());
            tokio::spawn(async move {
                let guard = lock.acquire().await.expect("a grant");
                let value = counter.value.load(Ordering::Relaxed);
                tokio::task::yield_now().await;
                counter.value.store(value + 1, Ordering::Relaxed);
                counter.check(guard.token());
                guard.release().await.expect("it was held");
            })
        })
        .collect();
    let mut most_connections = 0;
    for (number, task) in tasks.into_iter().enumerate() {
        task.await.expect("no panic");
        if number % 1000 == 0 {
            most_connections = most_connections.max(connections(&server));
        }
    }
    assert_eq!(counter.value.load(Ordering::Relaxed), TASKS);
    let most_connections = most_connections.max(connections(&server));
    assert!(most_connections <= MOST_CONNECTIONS, "{most_connections} connections");
    let commands = lock_commands(&server);
    assert!((2 * TASKS..=COMMANDS_PER_TASK * TASKS).contains(&commands), "{commands} commands");
    assert_eq!(server.client().info_number("rlock_waiting"), 0);
    assert_eq!(server.client().call("EXISTS k"), 0);
}

#[test]
fn thousand_threads_count_over_few_connections() {
    let server = Server::start();
    let client = rlock_client::blocking::Client::connect(&url(&server)).expect("a server");
    let counter = Counter::default();
    thread::scope(|scope| {
        for _ in 0..THREADS {
            let count_one_up = || {
                let guard = client.lock("k").acquire().expect("a grant");
                let value = counter.value.load(Ordering::Relaxed);
                thread::yield_now();
                counter.value.store(value + 1, Ordering::Relaxed);
                counter.check(guard.token());
                guard.release().expect("it was held");
            };
            // A thousand stacks of the usual size would take 2 GB.
            thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, count_one_up).expect("a thread");
        }
    });
    assert_eq!(counter.value.load(Ordering::Relaxed), THREADS);
    assert!(connections(&server) <= MOST_CONNECTIONS);
    assert_eq!(server.client().info_number("rlock_waiting"), 0);
    assert_eq!(server.client().call("EXISTS k"), 0);
}
