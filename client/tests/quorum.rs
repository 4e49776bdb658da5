//! A lock on several independent servers.

use std::time::Duration;

use rlock_client::{Client, Error, Quorum};

use crate::support::Server;
use crate::{PATIENCE, eventually, url};

fn quorum(servers: &[Server]) -> Quorum {
    let urls: Vec<_> = servers.iter().map(url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let options = Client::builder().retry_for(Duration::from_secs(2));
    Quorum::connect(&options, &urls).expect("addresses")
}

fn holders(servers: &[Server]) -> usize {
    servers.iter().filter(|server| server.client().holder("k").is_some()).count()
}

#[tokio::test]
async fn a_quorum_is_held_by_one_at_a_time_and_released_everywhere() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let (one, other) = (quorum(&servers), quorum(&servers));
    let guard = one.lock("k").acquire().await.expect("free");
    assert!(guard.is_held());
    assert_eq!(holders(&servers), 3);
    assert!(other.lock("k").try_acquire().await.expect("an answer").is_none());
    let token = guard.token();
    guard.renew().await.expect("it is held");
    guard.release().await.expect("it was held");
    let next = other.lock("k").acquire_timeout(PATIENCE).await.expect("free");
    assert!(next.token() > token);
    drop(next);
    eventually(|| holders(&servers) == 0).await;
}

#[tokio::test]
async fn a_minority_may_be_down_and_a_majority_may_not() {
    let mut servers: Vec<_> = (0..5).map(|_| Server::start()).collect();
    let quorum = quorum(&servers);
    let lock = quorum.lock("k").lease(Duration::from_secs(2)).renewing(true);
    let guard = lock.acquire().await.expect("free");
    for server in &mut servers[..2] {
        server.kill();
    }
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(guard.is_held(), "three of five go on");
    guard.release().await.expect("it was held");
    let guard = lock.acquire().await.expect("free");
    servers[2].kill();
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("no majority is left");
    let refused = quorum.lock("k2").try_acquire().await;
    assert!(matches!(refused, Err(Error::NoQuorum { granted: 2, servers: 5 })), "{refused:?}");
    for server in &mut servers[..3] {
        server.restart();
    }
}
