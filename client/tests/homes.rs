//! The runtime on which a client was created is its home. These tests show what happens to locks
//! when it ends or stalls.

use std::time::Duration;

use rlock_client::{Client, Error, Quorum, blocking};
use tokio::runtime::{Builder, Runtime};

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::{Server, Stopwatch};
use crate::{connect, eventually, kill_connections, support, url};

fn home() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A guard without a renewal task would report a lock as held that is not renewed.
#[test]
fn client_without_its_home_returns_no_guards() {
    let server = Server::start();
    let gone = home();
    let client = gone.block_on(connect(&server));
    let lock = client.lock("k");
    gone.shutdown_background();
    let refused = home().block_on(async { tokio::time::timeout(Duration::from_secs(5), lock.acquire()).await });
    let refused = refused.expect("at once");
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
}

/// It also stops retrying, which it would not do for servers that are down. A minority that is gone
/// counts as down.
#[test]
fn quorum_without_homes_returns_no_guards() {
    let servers: Vec<_> = (0..5).map(|_| Server::start()).collect();
    let (gone, stays) = (home(), home());
    let connect_all = |homes: [&Runtime; 5]| {
        let clients = homes.iter().zip(&servers).map(|(home, server)| home.block_on(connect(server)));
        Quorum::new(clients.collect::<Vec<_>>()).expect("five")
    };
    let most = connect_all([&gone, &stays, &gone, &stays, &gone]);
    let few = connect_all([&stays, &gone, &stays, &gone, &stays]);
    gone.shutdown_background();
    let refused =
        stays.block_on(async { tokio::time::timeout(Duration::from_secs(10), most.lock("k").acquire()).await });
    let refused = refused.expect("at once");
    assert!(matches!(refused, Err(Error::Closed)), "{refused:?}");
    let guard = stays.block_on(few.lock("k").acquire()).expect("a majority is there");
    stays.block_on(guard.release()).expect("it was held");
}

#[test]
fn guard_without_its_home_reports_the_end_of_its_lease() {
    let server = Server::start();
    let gone = home();
    let lease = Duration::from_secs(2);
    let guard =
        gone.block_on(async { connect(&server).await.lock("k").lease(lease).acquire().await.expect("a free lock") });
    let lost = guard.lost();
    gone.shutdown_background();
    let watch = std::time::Instant::now();
    home().block_on(async {
        tokio::time::timeout(lease * 10, lost).await.expect("the guard is lost when its lease expires")
    });
    assert!(watch.elapsed() < lease * 5, "the guard woke the task when the lease expired");
    assert!(!guard.is_held());
}

/// A blocking client whose threads have ended is useless, even if it is part of another client's
/// lock. The last handle to it may be that lock, and later the guard.
#[test]
fn blocking_client_lives_as_long_as_the_locks_and_guards_that_use_it() {
    let server = Server::start();
    let client = blocking::Client::connect(&url(&server)).expect("a server");
    let sibling = blocking::Client::connect(&format!("{}1", url(&server))).expect("a server");
    let lock = client.multi_lock(["a"]).and(&sibling, ["b"]);
    drop(sibling);
    let guard = lock.acquire().expect("both are free");
    drop(lock);
    guard.renew().expect("both are held");
    guard.release().expect("both were held");
    let mut other_db = server.client();
    assert_eq!(other_db.call("SELECT 1"), "OK");
    assert!(other_db.is_free("b"));
}

/// A client used from another runtime makes a connection for all its users. The connection does not
/// depend on that runtime.
#[test]
fn timed_stalled_guest_runtime_does_not_block_others() {
    let server = Server::start();
    let home = home();
    let client = home.block_on(connect(&server));
    kill_connections(&server);
    let guest = Builder::new_current_thread().enable_all().build().expect("a runtime");
    drop(guest.block_on(client.lock("k").try_acquire()).expect("an answer"));
    // From here on the guest runtime does not run.
    let watch = Stopwatch::start();
    drop(home.block_on(client.lock("l").acquire()).expect("a free lock"));
    watch.assert_took_ms(0..2000, "an acquisition without the guest");
    drop(guest);
}

#[test]
fn dropping_a_blocking_guard_waits_for_its_release() {
    let server = Server::start();
    for _ in 0..20 {
        let client = blocking::Client::connect(&url(&server)).expect("a server");
        let guard = client.lock("k").acquire().expect("a free lock");
        drop(guard);
        drop(client);
        assert!(server.client().holder("k").is_none());
    }
}

/// An async task must not block, so the release finishes in the background.
#[tokio::test]
async fn blocking_guard_may_be_dropped_in_an_async_task() {
    let server = Server::start();
    let url = url(&server);
    let acquire = move || {
        let client = blocking::Client::connect(&url).expect("a server");
        (client.lock("k").acquire().expect("a free lock"), client)
    };
    let (guard, client) = tokio::task::spawn_blocking(acquire).await.expect("no panic");
    drop(guard);
    eventually(|| server.client().holder("k").is_none()).await;
    drop(client);
}

#[test]
fn close_releases_dropped_guards() {
    let server = Server::start();
    for _ in 0..20 {
        home().block_on(async {
            let client = connect(&server).await;
            drop(client.lock("k").acquire().await.expect("a free lock"));
            client.close().await.expect("every request is settled");
        });
        assert!(server.client().holder("k").is_none());
    }
}

/// Closing takes no longer than the timeout of one answer, and reports what it has left.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_with_a_hung_server_reports_pending_requests() {
    let server = Server::start();
    let client = Client::builder().command_timeout(Duration::from_millis(500)).connect(&url(&server)).await;
    let client = client.expect("a server");
    let guard = client.lock("k").acquire().await.expect("a free lock");
    tokio::task::block_in_place(|| {
        server.while_stopped(|| {
            drop(guard);
            let closed =
                tokio::runtime::Handle::current().block_on(tokio::time::timeout(crate::PATIENCE, client.close()));
            assert!(matches!(closed, Ok(Err(Error::LeftBehind { requests: 1 }))), "{closed:?}");
        });
    });
    eventually(|| server.client().holder("k").is_none()).await;
}

#[tokio::test]
async fn closing_a_client_ends_waits_and_releases_holds() {
    let server = Server::start();
    let client = connect(&server).await;
    let guard = client.lock("k").acquire().await.expect("a free lock");
    let waiter = tokio::spawn({
        let lock = client.lock("k");
        async move { lock.acquire().await }
    });
    eventually(|| server.client().waiting_owners("k").len() == 1).await;
    client.close().await.expect("every request is settled");
    assert!(matches!(waiter.await.expect("no panic"), Err(Error::Closed)));
    assert!(server.client().waiting_owners("k").is_empty());
    assert!(matches!(client.lock("l").try_acquire().await, Err(Error::Closed)));
    assert!(!guard.is_held() && server.client().holder("k").is_none());
    assert!(matches!(guard.release().await, Err(Error::Closed)));
}

/// Three servers, one of which is far away.
fn with_one_far_away(network: &Runtime) -> ([Server; 3], Proxy, Vec<String>) {
    let servers = [Server::start(), Server::start(), Server::start()];
    let proxy = network.block_on(Proxy::before(&servers[2]));
    proxy.set(|_, _| Fate::Delay(Duration::from_millis(200)));
    let urls = vec![url(&servers[0]), url(&servers[1]), proxy.url()];
    (servers, proxy, urls)
}

/// A release does not wait for a server that never grants, and waits a limited time for one that
/// has died since.
#[test]
fn timed_blocking_quorum_guard_does_not_wait_for_dead_servers() {
    let mut servers = [Server::start(), Server::start(), Server::start()];
    let urls: Vec<_> = servers.iter().map(url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let quorum = blocking::Quorum::connect(&Client::builder(), &urls).expect("addresses");
    let lock = quorum.lock("k").server_timeout(Duration::from_secs(5));
    let guard = lock.acquire().expect("free");
    support::eventually(crate::PATIENCE, || servers.iter().all(|server| server.client().holder("k").is_some()));
    // Time itself: the answers of all servers arrive within it.
    std::thread::sleep(Duration::from_millis(300));
    servers[2].kill();
    let watch = Stopwatch::start();
    guard.release().expect("two of three are a majority");
    watch.assert_took_ms(0..6500, "a release with one dead server");
    let watch = Stopwatch::start();
    drop(lock.acquire().expect("two of three are free"));
    watch.assert_took_ms(0..2000, "a hold without the dead server");
    servers[2].restart();
}

#[test]
fn quorum_close_releases_on_servers_outside_the_majority() {
    let network = home();
    let (servers, _proxy, urls) = with_one_far_away(&network);
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    home().block_on(async {
        let quorum = Quorum::connect(&Client::builder(), &urls).expect("addresses");
        let guard = quorum.lock("k").server_timeout(Duration::from_secs(5)).acquire().await.expect("free");
        eventually(|| servers[2].client().holder("k").is_some()).await;
        guard.release().await.expect("it was held");
        quorum.close().await.expect("every request is settled");
        assert!(matches!(quorum.lock("k").try_acquire().await, Err(Error::Closed)));
    });
    assert!(servers.iter().all(|server| server.client().holder("k").is_none()));
}

/// All clients close at once, so this takes no longer than closing one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn timed_quorum_close_with_hung_servers_reports_pending_requests() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let urls: Vec<_> = servers.iter().map(url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let options = Client::builder().command_timeout(Duration::from_millis(700));
    let quorum = Quorum::connect(&options, &urls).expect("addresses");
    let guard = quorum.lock("k").acquire().await.expect("free");
    eventually(|| servers.iter().all(|server| server.client().holder("k").is_some())).await;
    // Time itself: the third server's answer arrives within it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    tokio::task::block_in_place(|| {
        servers[0].while_stopped(|| {
            servers[1].while_stopped(|| {
                drop(guard);
                let watch = Stopwatch::start();
                let closed = tokio::runtime::Handle::current().block_on(quorum.close());
                assert!(matches!(closed, Err(Error::LeftBehind { requests: 2 })), "{closed:?}");
                watch.assert_took_ms(700..1300, "one response timeout");
            });
        });
    });
    eventually(|| servers.iter().all(|server| server.client().holder("k").is_none())).await;
}

/// The home's connections end with it, but no task there reports that.
#[test]
fn waiter_on_another_runtime_notices_the_end_of_the_home() {
    let server = Server::with(&["notify-keyspace-events Kd"]);
    server.client().call("RLOCK.ACQUIRE k stranger PX 600000");
    let (gone, here) = (home(), home());
    let client = gone.block_on(connect(&server));
    let waiting = here.spawn({
        let lock = client.lock("k");
        async move { lock.acquire().await }
    });
    let mut events = here.block_on(client.observe("l").events()).expect("the server sends events");
    let following = here.spawn(async move { events.next().await });
    support::eventually(crate::PATIENCE, || server.client().waiting_owners("k").len() == 1);
    gone.shutdown_background();
    let end = |outcome| here.block_on(async { tokio::time::timeout(crate::PATIENCE, outcome).await });
    let outcome = end(waiting).expect("it ends").expect("no panic");
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
    let followed = here.block_on(async { tokio::time::timeout(crate::PATIENCE, following).await });
    assert!(matches!(followed.expect("it ends").expect("no panic"), Err(Error::Closed)));
}

#[tokio::test]
async fn close_waits_for_an_attempt_and_releases_its_grant() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = Client::connect(&proxy.url()).await.expect("a server");
    proxy.set(|direction, _| match direction {
        Direction::ToClient => Fate::Delay(Duration::from_millis(300)),
        Direction::ToServer => Fate::Pass,
    });
    let attempt = tokio::spawn({
        let lock = client.lock("k").fixed_lease(Duration::from_secs(3600));
        async move { lock.try_acquire().await }
    });
    eventually(|| server.client().holder("k").is_some()).await;
    client.close().await.expect("every request is settled");
    assert!(server.client().holder("k").is_none());
    let outcome = attempt.await.expect("no panic");
    assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
}

/// The grant has arrived, and no task has polled it yet.
#[tokio::test]
async fn close_releases_a_grant_that_was_never_polled() {
    let server = Server::start();
    for places in [1, 2] {
        let client = connect(&server).await;
        let mut other = server.client();
        other.call("RLOCK.ACQUIRE k stranger PX 600000");
        let (one, all) = (client.lock("k"), client.multi_lock(["k"]));
        let mut waiting = std::pin::pin!(async {
            match places {
                1 => one.fixed_lease(Duration::from_secs(3600)).acquire().await.map(drop),
                _ => all.fixed_lease(Duration::from_secs(3600)).acquire().await.map(drop),
            }
        });
        tokio::select! {
            _ = &mut waiting => panic!("it is not free"),
            () = eventually(|| other.waiting_owners("k").len() == 1) => {}
        }
        other.call("RLOCK.RELEASE k stranger");
        eventually(|| other.holder("k").is_some()).await;
        // The server sends the grant's message after the grant itself. A round trip leaves time
        // for it.
        client.observe("k").holders().await.expect("an answer");
        let (closed, outcome) = tokio::join!(client.close(), waiting);
        closed.expect("every request is settled");
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
        assert!(other.holder("k").is_none());
    }
}

/// It does not matter which place is acquired first.
#[tokio::test]
async fn closing_one_of_several_places_ends_the_whole_wait() {
    let servers = [Server::start(), Server::start()];
    for stranger_at in [0, 1] {
        let (free, taken) = (&servers[1 - stranger_at], &servers[stranger_at]);
        let (first, second) = (connect(free).await, connect(taken).await);
        taken.client().call("RLOCK.ACQUIRE b stranger PX 600000");
        let waiting = tokio::spawn({
            let all = first.multi_lock(["a"]).and(&second, ["b"]).fixed_lease(Duration::from_secs(3600));
            async move { all.acquire().await }
        });
        eventually(|| taken.client().waiting_owners("b").len() == 1).await;
        first.close().await.expect("every request is settled");
        assert!(free.client().holder("a").is_none());
        eventually(|| taken.client().waiting_owners("b").is_empty()).await;
        let outcome = tokio::time::timeout(crate::PATIENCE, waiting).await.expect("it ends").expect("no panic");
        assert!(matches!(outcome, Err(Error::Closed)), "{outcome:?}");
        taken.client().call("RLOCK.FORCERELEASE b");
    }
}
