//! A holder learns of its loss.

use std::time::Duration;

use rlock_client::Error;

use crate::proxy::{Direction, Fate, Proxy, cuts_all};
use crate::support::{Server, Stopwatch};
use crate::{PATIENCE, command_stat, connect, eventually, is_granted, kill_connections};

#[tokio::test]
async fn timed_forcibly_released_hold_is_lost_at_the_next_renewal() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.lock("k").lease(Duration::from_millis(900));
    let guard = lock.acquire().await.expect("a free lock");
    assert_eq!(server.client().call("RLOCK.FORCERELEASE k"), 1);
    let watch = Stopwatch::start();
    guard.lost().await;
    watch.assert_took_ms(0..700, "the time to the next renewal, which is before the lease expires");
    assert!(!guard.is_held());
    assert!(matches!(guard.release().await, Err(Error::Lost)));
}

/// The lease expires before any client can have received the grant. The test counts requests:
/// without pauses, there would be a thousand.
#[tokio::test]
async fn lease_that_always_expires_too_soon_is_requested_with_pauses() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    client.lock("k").acquire_timeout(Duration::from_secs(1)).await.expect("free").release().await.expect("it was held");
    let before = command_stat(&server, "RLOCK.ACQUIRE", "calls");
    proxy.set(|direction, _| match direction {
        Direction::ToServer => Fate::Pass,
        Direction::ToClient => Fate::Delay(Duration::from_millis(30)),
    });
    let lock = client.lock("k").fixed_lease(Duration::from_millis(10));
    let acquired = lock.acquire_timeout(Duration::from_secs(1)).await;
    assert!(matches!(acquired, Err(Error::Unavailable { .. })), "{acquired:?}");
    let asked = command_stat(&server, "RLOCK.ACQUIRE", "calls") - before;
    assert!((2..20).contains(&asked), "{asked} times");
}

#[tokio::test]
async fn timed_hold_without_a_server_is_lost_before_its_lease_expires() {
    let mut server = Server::start();
    let client = connect(&server).await;
    let lease = Duration::from_secs(3);
    let guard = client.lock("k").lease(lease).acquire().await.expect("a free lock");
    let watch = Stopwatch::start();
    server.kill();
    guard.lost().await;
    watch.assert_took_ms(0..3000, "the time that the guard counted as held");
    server.restart();
}

/// The server does not answer, and the connection stays open.
#[tokio::test]
async fn timed_hold_on_a_stopped_server_is_lost_in_time() {
    let server = Server::start();
    let client = connect(&server).await;
    let lease = Duration::from_millis(600);
    let guard = client.lock("k").lease(lease).acquire().await.expect("a free lock");
    let watch = Stopwatch::start();
    let lost = guard.lost();
    let server = tokio::task::spawn_blocking(move || {
        server.while_stopped(|| std::thread::sleep(Duration::from_millis(1200)));
        server
    });
    lost.await;
    watch.assert_took_ms(0..600, "the time that the guard counted as held");
    server.await.expect("no panic");
}

/// The guard is not dropped, because the application does not notice the loss.
#[tokio::test]
async fn lost_hold_that_a_late_renewal_has_extended_is_released() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let guard = client.lock("k").lease(Duration::from_secs(1)).acquire().await.expect("a free lock");
    proxy.set(|direction, _| if direction == Direction::ToClient { Fate::Stall } else { Fate::Pass });
    let outcome = guard.renew_for(Duration::from_secs(600)).await;
    assert!(matches!(outcome, Err(Error::Lost)), "{outcome:?}");
    assert!(server.client().call("RLOCK.PTTL k").int() > 10_000, "the server has renewed the hold");
    proxy.clear();
    eventually(|| server.client().holder("k").is_none()).await;
    assert!(matches!(guard.release().await, Err(Error::Lost)));
}

#[tokio::test]
async fn session_is_bound_to_the_next_connection() {
    let server = Server::start();
    let client = connect(&server).await;
    let grace = Duration::from_secs(2);
    let guard = client.lock("k").session_grace(grace).acquire().await.expect("a free lock");
    assert_eq!(server.client().holder("k").map(|holder| holder.session), Some(1));
    kill_connections(&server);
    eventually(|| server.client().holder("k").is_some_and(|holder| holder.session == 1)).await;
    tokio::time::sleep(grace * 2).await;
    assert!(guard.is_held());
    guard.release().await.expect("it was held");
}

/// A renewal binds the session to the next connection. It does not extend the lease.
#[tokio::test]
async fn timed_lost_connection_does_not_extend_a_fixed_lease() {
    let server = Server::start();
    let client = connect(&server).await;
    let (lease, grace) = (Duration::from_secs(3), Duration::from_secs(1));
    let watch = Stopwatch::start();
    let guard = client.lock("k").fixed_lease(lease).session_grace(grace).acquire().await.expect("a free lock");
    tokio::time::sleep(Duration::from_secs(2)).await;
    kill_connections(&server);
    eventually(|| server.client().holder("k").is_some_and(|holder| holder.session == 1)).await;
    assert!(guard.is_held(), "the session is bound to another connection");
    guard.lost().await;
    watch.assert_took_ms(2200..3000, "the time that the guard counted as held");
    eventually(|| server.client().holder("k").is_none()).await;
    watch.assert_took_ms(2900..3600, "the lease");
}

const GRACE: Duration = Duration::from_millis(200);

/// Stays cut off for longer than a session with this grace outlives its connection.
async fn stay_cut_off(server: &Server, proxy: &Proxy) {
    proxy.set(cuts_all);
    kill_connections(server);
    tokio::time::sleep(GRACE * 3).await;
}

/// A hold has one session. It also applies to guards that did not ask for one: those of a handle
/// for the same owner, and those that take over a hold that another client has left.
#[tokio::test]
async fn no_guard_outlives_the_session_of_another_handle() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let (client, other) = (proxy.client().await, proxy.client().await);
    let first = client.lock("a").session_grace(GRACE).acquire().await.expect("a free lock");
    let second = client.lock("a").owner(first.owner()).acquire().await.expect("a re-entry");
    let left = client.lock("b").session_grace(GRACE).acquire().await.expect("a free lock").detach().await;
    let attached = other.lock("b").attach(&left.expect("it is held")).await.expect("it is held");
    proxy.set(cuts_all);
    kill_connections(&server);
    for (key, guard) in [("a", &second), ("b", &attached)] {
        eventually(|| is_granted(&server.client().call(format!("RLOCK.ACQUIRE {key} another")))).await;
        assert!(!guard.is_held(), "{key}");
    }
    assert!(!first.is_held());
}

/// The earlier guard relies on its lease alone.
#[tokio::test]
async fn session_of_a_later_handle_does_not_end_an_earlier_guard() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let first = client.lock("k").owner("me").acquire().await.expect("a free lock");
    let second = client.lock("k").owner("me").session_grace(GRACE).acquire().await.expect("a re-entry");
    stay_cut_off(&server, &proxy).await;
    assert!(first.is_held() && second.is_held());
    assert_eq!(server.client().holder("k").map(|holder| holder.holds), Some(1));
    proxy.clear();
    second.release().await.expect("it was held");
    first.release().await.expect("it was held");
    let third = client.lock("k").owner("me").session_grace(GRACE).acquire().await.expect("a free lock");
    assert_eq!(
        server.client().holder("k").map(|holder| holder.session),
        Some(1),
        "a session applies once the guards without one have ended"
    );
    third.release().await.expect("it was held");
}

/// The demoted master keeps its connections and answers. At the new master the session counts as
/// closed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn session_at_a_demoted_master_is_lost_before_the_next_grant() {
    let master = Server::start();
    let replica = Server::replica_of(&master, &[]);
    let client = connect(&master).await;
    let guard = client.lock("k").session_grace(Duration::from_secs(2)).acquire().await.expect("a free lock");
    assert_eq!(master.client().call("FAILOVER"), "OK");
    eventually(|| replica.client().info("role") == "master").await;
    let mut other = replica.waiter("RLOCK.ACQUIRE k other BLOCK 0");
    let granted = tokio::task::spawn_blocking(move || other.reply());
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("the loss is reported");
    assert!(!granted.is_finished(), "the lock was granted to another owner before the loss was reported");
    assert!(granted.await.expect("no panic").int() > 0);
}
