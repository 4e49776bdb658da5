//! Permits that are returned in parts, and drains with a lease or other terms.

use std::time::Duration;

use rlock_client::{Client, Error};

use crate::support::Server;
use crate::{PATIENCE, command_stat, connect, eventually, kill_connections};

#[tokio::test]
async fn permits_are_released_in_parts() {
    let server = Server::start();
    let client = connect(&server).await;
    let semaphore = client.semaphore("s");
    semaphore.init(5).await.expect("an answer");
    let five = semaphore.permits(5).acquire().await.expect("all are free");
    assert_eq!(five.permits(), 5);
    for wrong in [0, 5, 6] {
        assert!(matches!(five.release_some(wrong).await, Err(Error::Argument(_))), "{wrong}");
    }
    let waiter = tokio::spawn({
        let three = semaphore.permits(3);
        async move { three.acquire().await }
    });
    eventually(|| server.client().info_number("rlock_waiting") == 1).await;
    five.release_some(2).await.expect("it is held");
    assert_eq!((five.permits(), semaphore.available_permits().await.expect("an answer")), (3, Some(2)));
    five.release_some(1).await.expect("it is held");
    let three = waiter.await.expect("no panic").expect("a grant");
    five.renew().await.expect("two are held");
    // Releases the rest, which is fewer than the number acquired.
    five.release().await.expect("two were held");
    assert_eq!(semaphore.available_permits().await.expect("an answer"), Some(2));
    drop(three);
    let all = semaphore.permits(5).acquire_timeout(PATIENCE).await.expect("all permits are free again");
    server.client().call("RSEMAPHORE.FORCERELEASE s");
    assert!(all.is_held(), "the guard has not noticed the loss yet");
    assert!(matches!(all.release_some(1).await, Err(Error::Lost)));
    assert!(!all.is_held(), "the guard learned of the loss from the server");
}

/// A caller that stops waiting for the answer does not lose count, and a lost connection does not
/// return permits twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn partial_release_is_done_exactly_once() {
    let server = Server::start();
    let client = connect(&server).await;
    let semaphore = client.semaphore("s");
    semaphore.init(40).await.expect("an answer");
    let guard = semaphore.permits(40).acquire().await.expect("all are free");
    for round in 0..30 {
        if round % 2 == 0 {
            // The future is dropped wherever it is.
            drop(tokio::time::timeout(Duration::from_micros(round * 20), guard.release_some(1)).await);
        } else {
            let (given, ()) = tokio::join!(guard.release_some(1), async { kill_connections(&server) });
            given.expect("it is held");
        }
    }
    eventually(|| guard.permits() == 10).await;
    assert_eq!(semaphore.available_permits().await.expect("an answer"), Some(30));
    guard.release().await.expect("ten were held");
    assert_eq!(semaphore.available_permits().await.expect("an answer"), Some(40));
}

/// No caller waits for the first answer. The release of the rest is sent after it, with the right
/// number of permits.
#[tokio::test]
async fn release_after_a_dropped_partial_release_frees_the_rest() {
    let server = Server::start();
    let client = connect(&server).await;
    let semaphore = client.semaphore("s");
    semaphore.init(3).await.expect("an answer");
    for is_dropped in [false, true] {
        let guard = semaphore.permits(3).acquire().await.expect("all are free");
        server.client().call("CLIENT PAUSE 500 ALL");
        let part = tokio::time::timeout(Duration::from_millis(100), guard.release_some(1)).await;
        assert!(part.is_err(), "the server does not answer yet");
        match is_dropped {
            true => drop(guard),
            false => guard.release().await.expect("two were held"),
        }
        let all =
            semaphore.permits(3).acquire_timeout(Duration::from_secs(5)).await.expect("all permits are free again");
        all.release().await.expect("it was held");
    }
}

/// When the lease has expired, the client does not try to return these permits.
#[tokio::test]
async fn partial_release_is_not_retried_after_the_lease() {
    let mut server = Server::start();
    let client = connect(&server).await;
    let semaphore = client.semaphore("s");
    semaphore.init(3).await.expect("an answer");
    let guard = semaphore.permits(3).fixed_lease(Duration::from_secs(1)).acquire().await.expect("all are free");
    server.kill();
    let outcome = tokio::time::timeout(PATIENCE, guard.release_some(1)).await.expect("it ends");
    assert!(matches!(outcome, Err(Error::Lost)), "{outcome:?}");
    client.close().await.expect("nothing is left to be done");
    server.restart();
}

#[tokio::test]
async fn drain_takes_a_lease_and_other_terms() {
    let server = Server::start();
    let client = connect(&server).await;
    let semaphore = client.semaphore("s");
    semaphore.init(2).await.expect("an answer");
    let lease = Duration::from_secs(60);
    let (permits, guard) =
        semaphore.draining().fixed_lease(lease).take().await.expect("an answer").expect("two are free");
    assert_eq!((permits, guard.permits()), (2, 2));
    assert!(guard.valid_for() > lease / 2);
    guard.release_some(1).await.expect("it is held");
    guard.release().await.expect("one was held");
    assert!(matches!(semaphore.draining().fixed_lease(Duration::ZERO).take().await, Err(Error::Argument(_))));
    let short = semaphore.draining().fixed_lease(Duration::from_millis(300));
    let (_, guard) = short.take().await.expect("an answer").expect("two are free");
    guard.lost().await;
    // The server's lease lasts a little longer than the client's.
    drop(guard.release().await);
    assert_eq!(command_stat(&server, "RSEMAPHORE.RENEW", "calls"), 0, "a fixed lease is not renewed");
    let (_, guard) =
        semaphore.draining().max_hold(Duration::from_millis(300)).take().await.expect("an answer").expect("two");
    guard.lost().await;
}

#[tokio::test]
async fn drain_that_cannot_read_its_permits_releases_them() {
    let server = Server::start();
    let client = connect(&server).await;
    let semaphore = client.semaphore("s");
    semaphore.init(5).await.expect("an answer");
    let user = "ACL SETUSER blind on >secret ~* &* +@all -rsemaphore.info";
    assert_eq!(server.client().call(user), "OK");
    let url = format!("redis://blind:secret@127.0.0.1:{}/", server.port());
    let blind = Client::connect(&url).await.expect("the server takes connections");
    let outcome = blind.semaphore("s").drain().await;
    assert!(matches!(&outcome, Err(Error::Refused { .. })), "{outcome:?}");
    assert_eq!(command_stat(&server, "RSEMAPHORE.DRAIN", "calls"), 1);
    blind.close().await.expect("the client releases the permits");
    assert_eq!(semaphore.available_permits().await.expect("an answer"), Some(5));
}

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
