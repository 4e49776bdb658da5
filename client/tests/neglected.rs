//! A future that is polled a few times and then left alone does not block other callers: its task
//! is busy with something else, and will poll it again later.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use rlock_client::Client;

use crate::support::Server;
use crate::{PATIENCE, connect};

/// How often a future is polled before it is left alone. Other callers do not wait for it once it
/// is past its first steps.
const POLLS: usize = 4;

/// Polls a future this many times, with pauses in which its I/O can make progress.
async fn neglect<F: Future>(future: &mut Pin<Box<F>>, polls: usize) {
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Starts an operation with a client and abandons it after a few polls. Another lock of the same
/// client must still be granted.
async fn blocks_no_other_caller<F: Future>(server: &Server, begin: impl Fn(Client) -> F) {
    for polls in 1..=POLLS {
        // The first caller that needs a connection prepares it for all.
        let client = connect(server).await;
        let mut begun = Box::pin(begin(client.clone()));
        neglect(&mut begun, polls).await;
        let other = client.lock("other").acquire_timeout(PATIENCE).await.expect("it is free");
        other.release().await.expect("it was held");
    }
}

#[tokio::test]
async fn unpolled_acquisition_does_not_block_other_callers() {
    let server = Server::start();
    blocks_no_other_caller(&server, |client| async move { client.lock("k").acquire().await }).await;
}

#[tokio::test]
async fn unpolled_subscription_does_not_block_other_callers() {
    let server = Server::start();
    server.client().call("CONFIG SET notify-keyspace-events Kd");
    blocks_no_other_caller(&server, |client| async move { client.observe("k").events().await }).await;
}

/// The hold is still renewed automatically.
#[tokio::test]
async fn unpolled_renewal_does_not_block_other_callers() {
    let server = Server::start();
    let client = connect(&server).await;
    let lease = Duration::from_secs(1);
    let guard = client.lock("k").lease(lease).acquire().await.expect("a free lock");
    let mut renewing = Box::pin(guard.renew());
    neglect(&mut renewing, 1).await;
    // Time itself: without renewal the hold would have expired by then.
    tokio::time::sleep(lease * 2).await;
    assert!(guard.is_held());
}
