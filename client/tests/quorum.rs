//! A lock on several independent servers.

use std::time::Duration;

use rlock_client::{Client, Error, Quorum, QuorumGuard};

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::Server;
use crate::{PATIENCE, command_stat, eventually, url};

fn quorum(servers: &[Server]) -> Quorum {
    let urls: Vec<_> = servers.iter().map(url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let options = Client::builder();
    Quorum::connect(&options, &urls).expect("addresses")
}

fn holders(servers: &[Server]) -> usize {
    servers.iter().filter(|server| server.client().holder("k").is_some()).count()
}

/// Waits until the guard has the grants of all servers. A server grants before the guard hears of it.
async fn has_all(guard: &QuorumGuard, servers: &[Server]) {
    eventually(|| format!("{guard:?}").matches("Held {").count() == servers.len()).await;
}

#[tokio::test]
async fn quorum_has_one_holder_and_is_released_everywhere() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let (one, other) = (quorum(&servers), quorum(&servers));
    let guard = one.lock("k").acquire().await.expect("free");
    assert!(guard.is_held());
    eventually(|| holders(&servers) == 3).await;
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
async fn quorum_survives_a_minority_but_not_a_majority_down() {
    let mut servers: Vec<_> = (0..5).map(|_| Server::start()).collect();
    let quorum = quorum(&servers);
    let lock = quorum.lock("k").lease(Duration::from_secs(2));
    let guard = lock.acquire().await.expect("free");
    for server in &mut servers[..2] {
        server.kill();
    }
    // Time itself: a hold that is not renewed expires within it.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(guard.is_held(), "three of five servers still hold");
    guard.release().await.expect("it was held");
    let guard = lock.acquire().await.expect("free");
    servers[2].kill();
    tokio::time::timeout(PATIENCE, guard.lost()).await.expect("no majority is left");
    assert!(!guard.is_held());
    let refused = quorum.lock("k2").try_acquire().await;
    assert!(matches!(refused, Err(Error::NoQuorum { servers: 5, .. })), "{refused:?}");
    for server in &mut servers[..3] {
        server.restart();
    }
}

#[tokio::test]
async fn quorum_has_many_readers_or_one_writer() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let (one, other) = (quorum(&servers).rw_lock("k"), quorum(&servers).rw_lock("k"));
    let first = one.read().acquire().await.expect("free");
    let second = other.read().acquire().await.expect("readers are together");
    assert!(other.write().try_acquire().await.expect("an answer").is_none());
    first.release().await.expect("it was held");
    assert!(other.write().try_acquire().await.expect("an answer").is_none(), "one reader is left");
    second.release().await.expect("it was held");
    let writer = other.write().acquire_timeout(PATIENCE).await.expect("free");
    assert!(writer.token() > 0);
    assert!(one.read().try_acquire().await.expect("an answer").is_none());
    writer.release().await.expect("it was held");
    eventually(|| holders(&servers) == 0).await;
}

/// A refused request does not wait for the hanging server either.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_of_three_servers_decide_while_the_third_hangs() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let urls: Vec<_> = servers.iter().map(url).collect();
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let long = PATIENCE * 2;
    let options = Client::builder().command_timeout(long);
    let lock = Quorum::connect(&options, &urls).expect("addresses").lock("k").server_timeout(long);
    lock.acquire().await.expect("free").release().await.expect("it was held");
    // This includes the server that granted last.
    eventually(|| servers.iter().all(|server| command_stat(server, "RLOCK.RELEASE", "calls") == 1)).await;
    tokio::task::block_in_place(|| {
        servers[1].while_stopped(|| {
            let deciding = async {
                let guard = lock.acquire().await.expect("two of three are free");
                assert!(lock.try_acquire().await.expect("two servers answered").is_none());
                guard.release().await.expect("it was held");
            };
            let decided = tokio::runtime::Handle::current().block_on(tokio::time::timeout(PATIENCE, deciding));
            decided.expect("the third server is not awaited");
        });
    });
}

/// Two servers answer and decide. The third grants later, and makes up for the loss of one of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_grant_makes_up_for_a_lost_server() {
    let mut servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let quorum = quorum(&servers);
    quorum.lock("k").acquire().await.expect("free").release().await.expect("it was held");
    eventually(|| holders(&servers) == 0).await;
    let lease = Duration::from_secs(8);
    let lock = quorum.lock("k").lease(lease).server_timeout(PATIENCE);
    let (guard, mut lost) = tokio::task::block_in_place(|| {
        let mut begun = None;
        servers[1].while_stopped(|| {
            let guard = tokio::runtime::Handle::current().block_on(lock.acquire()).expect("two of three are free");
            let mut lost = Box::pin(guard.lost());
            let mut looking = std::task::Context::from_waker(std::task::Waker::noop());
            assert!(lost.as_mut().poll(&mut looking).is_pending(), "two servers still hold, so the guard is not lost");
            begun = Some((guard, lost));
        });
        begun.expect("it was granted")
    });
    has_all(&guard, &servers).await;
    servers[0].kill();
    // Without the third server, the guard would be lost when its lease on the first one expires.
    let early = tokio::time::timeout(lease + Duration::from_secs(1), &mut lost).await;
    assert!(early.is_err() && guard.is_held(), "two of three servers still hold");
    servers[2].kill();
    tokio::time::timeout(PATIENCE, lost).await.expect("no majority is left");
    servers[0].restart();
    servers[2].restart();
}

/// Another owner has held the lock meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn late_grant_does_not_revive_a_lost_guard() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let proxy = Proxy::before(&servers[2]).await;
    let urls = [url(&servers[0]), url(&servers[1]), proxy.url()];
    let urls: Vec<_> = urls.iter().map(String::as_str).collect();
    let (mine, theirs) = (Quorum::connect(&Client::builder(), &urls).expect("addresses"), quorum(&servers));
    for quorum in [&mine, &theirs] {
        quorum.lock("k").acquire().await.expect("free").release().await.expect("it was held");
        eventually(|| holders(&servers) == 0).await;
    }
    proxy.set(|direction, _| if direction == Direction::ToServer { Fate::Stall } else { Fate::Pass });
    let guard = mine.lock("k").server_timeout(PATIENCE).acquire().await.expect("two of three are free");
    assert_eq!(servers[0].client().call("RLOCK.FORCERELEASE k"), 1);
    assert!(matches!(guard.renew().await, Err(Error::Lost)));
    assert!(!guard.is_held());
    let other = theirs.lock("k").acquire_timeout(PATIENCE).await.expect("two of three are free");
    assert!(other.token() > guard.token());
    other.release().await.expect("it was held");
    eventually(|| servers[2].client().holder("k").is_none()).await;
    let asked = command_stat(&servers[2], "RLOCK.ACQUIRE", "calls");
    proxy.clear();
    eventually(|| command_stat(&servers[2], "RLOCK.ACQUIRE", "calls") > asked).await;
    eventually(|| servers[2].client().holder("k").is_none()).await;
    assert!(!guard.is_held(), "it was lost");
}

/// The servers accept connections, and do not answer.
#[tokio::test]
async fn acquisition_waits_no_longer_than_its_timeout_for_hung_servers() {
    let hung = [0, 1].map(|_| std::net::TcpListener::bind("127.0.0.1:0").expect("a port"));
    let urls = hung.each_ref().map(|hung| format!("redis://{}/", hung.local_addr().expect("an address")));
    let options = Client::builder().command_timeout(PATIENCE * 2);
    let quorum = Quorum::connect(&options, &urls.each_ref().map(String::as_str)).expect("addresses");
    let lock = quorum.lock("k").server_timeout(PATIENCE * 2);
    let acquired = tokio::time::timeout(PATIENCE, lock.acquire_timeout(Duration::from_millis(100))).await;
    let refused = acquired.expect("it ends").expect_err("no server answers");
    assert_eq!(refused, Error::NoQuorum { granted: 0, servers: 2 });
}

#[tokio::test]
async fn quorum_of_servers_that_cannot_grant_reports_why() {
    let mut servers: Vec<_> = (0..2).map(|_| Server::without_module(&[])).collect();
    servers.push(Server::start());
    let outcome = quorum(&servers).lock("k").try_acquire().await;
    assert!(matches!(outcome, Err(Error::ModuleMissing(_))), "{outcome:?}");
    servers.push(Server::start());
    servers.push(Server::start());
    quorum(&servers).lock("k").acquire().await.expect("three of five grant").release().await.expect("it was held");
}

/// `close` finishes the releases that did not wait for their answers.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn close_waits_for_servers_outside_the_majority() {
    let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(Client::connect(&url(server)).await.expect("a server"));
    }
    let quorum = Quorum::new(clients.clone()).expect("three");
    let guard = quorum.lock("k").acquire().await.expect("free");
    has_all(&guard, &servers).await;
    let closing = tokio::task::block_in_place(|| {
        let mut closing = None;
        servers[1].while_stopped(|| {
            let runtime = tokio::runtime::Handle::current();
            runtime.block_on(guard.release()).expect("two of three are a majority");
            let client = clients[1].clone();
            closing = Some(runtime.spawn(async move { client.close().await }));
            // Time itself: a close that does not wait would finish within it.
            std::thread::sleep(Duration::from_millis(100));
            assert!(closing.as_ref().is_some_and(|closing| !closing.is_finished()), "one server has not answered");
        });
        closing.expect("it was begun")
    });
    closing.await.expect("no panic").expect("all servers have released");
    assert_eq!(holders(&servers), 0);
}

#[tokio::test]
async fn release_without_a_majority_reports_why() {
    let mut servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
    let quorum = quorum(&servers);
    let guard = quorum.lock("k").acquire().await.expect("free");
    eventually(|| holders(&servers) == 3).await;
    for server in &servers {
        server.client().call("RLOCK.FORCERELEASE k");
    }
    assert!(matches!(guard.renew().await, Err(Error::Lost)));
    assert!(matches!(guard.release().await, Err(Error::Lost)));
    let guard = quorum.lock("k").acquire().await.expect("free");
    servers[0].kill();
    servers[1].kill();
    let unknown = guard.release().await;
    assert!(matches!(unknown, Err(Error::Unavailable { .. })), "{unknown:?}");
    servers[0].restart();
    servers[1].restart();
}

/// One server has granted the lock, one has not, and one is silent.
#[tokio::test]
async fn closed_client_takes_no_part_in_a_quorum() {
    let servers = [Server::start(), Server::start(), Server::start()];
    servers[1].client().call("RLOCK.ACQUIRE k stranger PX 600000");
    let proxy = Proxy::before(&servers[2]).await;
    let urls = [url(&servers[0]), url(&servers[1]), proxy.url()];
    let mut clients = Vec::new();
    for url in &urls {
        clients.push(Client::builder().command_timeout(Duration::from_secs(1)).connect(url).await.expect("a server"));
    }
    let quorum = Quorum::new(clients.clone()).expect("three");
    proxy.set(|_, _| Fate::Stall);
    let waiting = tokio::spawn(async move {
        quorum.lock("k").fixed_lease(Duration::from_secs(600)).server_timeout(PATIENCE).try_acquire().await
    });
    eventually(|| servers[0].client().holder("k").is_some()).await;
    // The grant arrives before this answer.
    clients[0].observe("k").holders().await.expect("an answer");
    let is_left = clients[0].close().await.is_ok() && servers[0].client().holder("k").is_some();
    proxy.clear();
    let outcome = waiting.await.expect("no panic");
    let is_handed_out = matches!(&outcome, Ok(Some(guard)) if guard.is_held());
    assert!(!is_left && !is_handed_out, "left: {is_left}, handed out: {is_handed_out}");
}
