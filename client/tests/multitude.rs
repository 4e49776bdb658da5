//! Very many tasks of one process wait over one connection, each in the server's queue, and each is
//! served.

use std::time::Duration;

use tokio::task::JoinSet;

use crate::support::{Server, at_length};
use crate::{command_stat, connect, connections, eventually};

/// Each lock has a hundred waiters.
const WAITERS_OF_EACH: usize = 100;

/// The number of tasks. `make client-faults` runs the long form.
fn tasks() -> usize {
    at_length(10_000, 100_000)
}

fn key(number: usize) -> String {
    format!("k{}", number / WAITERS_OF_EACH)
}

/// No lease expires while other tasks start.
const LEASE_MS: u64 = 3_600_000;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn very_many_tasks_wait_over_one_connection_with_one_request_each() {
    let server = Server::start();
    let mut holder = server.client();
    for first in (0..tasks()).step_by(WAITERS_OF_EACH) {
        holder.call(format!("RLOCK.ACQUIRE {} other PX {LEASE_MS}", key(first)));
    }
    let client = connect(&server).await;
    let mut waiting = JoinSet::new();
    for number in 0..tasks() {
        let lock = client.lock(key(number)).fixed_lease(Duration::from_millis(LEASE_MS));
        waiting.spawn(async move {
            let guard = lock.acquire().await.expect("a grant");
            guard.release().await.expect("it was held");
        });
    }
    let expected = i64::try_from(tasks()).expect("a number");
    let deadline = tokio::time::Instant::now() + Duration::from_secs(120);
    while server.client().info_number("rlock_waiting") < expected {
        assert!(tokio::time::Instant::now() < deadline, "not all wait");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(connections(&server), 3, "the client's two, and the holder's");
    for first in (0..tasks()).step_by(WAITERS_OF_EACH) {
        assert_eq!(holder.call(format!("RLOCK.RELEASE {} other", key(first))), 0);
    }
    while let Some(served) = waiting.join_next().await {
        served.expect("no panic");
    }
    let of_holder = expected / i64::try_from(WAITERS_OF_EACH).expect("a number");
    assert_eq!(command_stat(&server, "RLOCK.ACQUIRE", "calls"), expected + of_holder, "each task sent one request");
    eventually(|| server.client().call("DBSIZE") == 0).await;
    // Afterwards the client still works as usual.
    connect(&server).await.lock("k0").acquire().await.expect("free").release().await.expect("it was held");
}
