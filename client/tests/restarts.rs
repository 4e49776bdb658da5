//! The server is killed and restarted while tasks hold and wait.

use std::time::Duration;

use crate::crowd::{Crowd, End, HOLDERS, WAITERS};
use crate::support::Server;
use crate::{connect, eventually};

fn waiting(server: &Server) -> i64 {
    server.client().info_number("rlock_waiting")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn holders_and_waiters_survive_a_restart_with_data() {
    let mut server = Server::with(&["appendonly yes", "appendfsync always"]);
    let client = connect(&server).await;
    let lease = Duration::from_secs(3);
    let mut crowd = Crowd::of(&client, lease);
    crowd.hold(HOLDERS).await;
    crowd.wait(|| waiting(&server)).await;
    server.kill_and_restart_on_its_port();
    // A hold that is not renewed has expired by then.
    tokio::time::sleep(lease * 2).await;
    assert_eq!((crowd.heard(), crowd.served()), (0, 0));
    assert_eq!(crowd.disperse().await, [End::Released; HOLDERS]);
    eventually(|| server.client().call("DBSIZE") == 0).await;
    assert_eq!(waiting(&server), 0);
}

/// The server grants nothing for the length of a lease. So no client acquires a lock whose former
/// holder has not noticed its loss.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn restart_without_data_ends_holds_but_not_waits() {
    let mut server = Server::with(&["rlock.max-lease-ms 3000", "rlock.exclusion restart"]);
    let client = connect(&server).await;
    let mut crowd = Crowd::of(&client, Duration::from_secs(3));
    crowd.hold(HOLDERS).await;
    crowd.wait(|| waiting(&server)).await;
    server.kill_and_restart_on_its_port();
    eventually(|| crowd.heard() == HOLDERS).await;
    eventually(|| crowd.served() == WAITERS).await;
    assert_eq!(crowd.disperse().await, [End::Lost; HOLDERS]);
    eventually(|| server.client().call("DBSIZE") == 0).await;
    assert_eq!(waiting(&server), 0);
}
