//! What a lock is for: many who count under it count right, over few connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use crate::support::Server;
use crate::{connect, connections, url};

const TASKS: u64 = 10_000;
const THREADS: u64 = 1000;
/// What one task asks of the server: a lock, its renewal after a wait, and a release. One that a busy machine makes late may ask
/// again; polling would be far more.
const COMMANDS_PER_TASK: u64 = 4;

/// All that one client may use.
const MOST_CONNECTIONS: usize = 2;

/// A counter that is wrong unless its users take turns: it is read, and written a moment later.
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

/// How many commands on locks the server has been given. What the test itself asks is not among them.
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
fn a_thousand_threads_count_over_few_connections() {
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
            // A thousand stacks of the usual size would be two gigabytes.
            thread::Builder::new().stack_size(256 * 1024).spawn_scoped(scope, count_one_up).expect("a thread");
        }
    });
    assert_eq!(counter.value.load(Ordering::Relaxed), THREADS);
    assert!(connections(&server) <= MOST_CONNECTIONS);
    assert_eq!(server.client().info_number("rlock_waiting"), 0);
    assert_eq!(server.client().call("EXISTS k"), 0);
}
