//! Permits of owners that drop and acquire them again.

use rlock_client::Error;

use crate::support::Server;
use crate::{PATIENCE, connect};

/// The release of a dropped guard is sent before the owner's next request. Otherwise the owner
/// would wait for itself.
#[tokio::test]
async fn owner_can_reacquire_dropped_permits() {
    let server = Server::start();
    let client = connect(&server).await;
    let semaphore = client.semaphore("s");
    semaphore.init(3).await.expect("an answer");
    let take = async |permits| semaphore.permits(permits).owner("worker").acquire_timeout(PATIENCE).await;
    for _ in 0..3 {
        let all = take(3).await;
        drop(all.expect("those before were dropped"));
    }
    let guards = [take(1).await.expect("free"), take(1).await.expect("free"), take(1).await.expect("free")];
    drop(guards);
    drop(take(3).await.expect("they were dropped"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn workers_that_drop_and_reacquire_permits_make_progress() {
    let server = Server::start();
    let client = connect(&server).await;
    client.semaphore("s").init(2).await.expect("an answer");
    let worker = |name: &'static str| {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..10 {
                let lock = client.semaphore("s").permits(1).owner(name);
                let _permit = lock.acquire_timeout(PATIENCE).await?;
                tokio::task::yield_now().await;
            }
            Ok::<(), Error>(())
        })
    };
    for worker in ["a", "b"].map(worker) {
        worker.await.expect("no panic").expect("there is a permit for each worker");
    }
}
