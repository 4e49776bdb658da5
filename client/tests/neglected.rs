//! A future that is polled a few times and then left alone is in nobody's way: its owner is busy with something else, and will come back to it.

use std::pin::Pin;
use std::task::{Context, Waker};
use std::time::Duration;

use rlock_client::Client;

use crate::support::Server;
use crate::{PATIENCE, connect};

/// How often a future is polled before it is left alone: further than its first steps nobody waits for it.
const POLLS: usize = 4;

/// Polls a future so often, with time in between for what it waits for.
async fn neglect<F: Future>(future: &mut Pin<Box<F>>, polls: usize) {
    for _ in 0..polls {
        if future.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Begins something with a client, and leaves it after some polls: whoever wants another lock by the same client is granted it.
async fn holds_up_nobody<F: Future>(server: &Server, begin: impl Fn(Client) -> F) {
    for polls in 1..=POLLS {
        // Whoever is the first to want something of a connection prepares it for all.
        let client = connect(server).await;
        let mut begun = Box::pin(begin(client.clone()));
        neglect(&mut begun, polls).await;
        let other = client.lock("other").acquire_timeout(PATIENCE).await.expect("it is free");
        other.release().await.expect("it was held");
    }
}

#[tokio::test]
async fn an_acquisition_of_which_nobody_hears() {
    let server = Server::start();
    holds_up_nobody(&server, |client| async move { client.lock("k").acquire().await }).await;
}

#[tokio::test]
async fn events_that_nobody_begins_to_follow() {
    let server = Server::start();
    server.client().call("CONFIG SET notify-keyspace-events Kd");
    holds_up_nobody(&server, |client| async move { client.observe("k").events().await }).await;
}

/// The hold goes on to be renewed by itself.
#[tokio::test]
async fn a_renewal_of_which_nobody_hears() {
    let server = Server::start();
    let client = connect(&server).await;
    let lease = Duration::from_secs(1);
    let guard = client.lock("k").lease(lease).acquire().await.expect("a free lock");
    let mut renewing = Box::pin(guard.renew());
    neglect(&mut renewing, 1).await;
    // Time itself: a hold that nobody renews is over by then.
    tokio::time::sleep(lease * 2).await;
    assert!(guard.is_held());
}
