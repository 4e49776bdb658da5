//! Owners named by the user: a hold of one life is not mistaken for that of another.

use std::time::Duration;

use rlock_client::{Client, Error};

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::Server;
use crate::thief::holds;
use crate::{
    PATIENCE, command_stat, connect, connections, connections_to, eventually, is_granted, kill_connections, url,
};

/// The number of commands of this name that the server has answered, including those that it
/// refused.
fn answered(server: &Server, command: &str) -> i64 {
    command_stat(server, command, "calls") + command_stat(server, command, "rejected_calls")
}

/// The lease expires before the client gets an answer to its release. Another owner may have held
/// the lock by the time the release is repeated.
#[tokio::test]
async fn repeated_release_after_the_lease_reports_the_loss() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let options = Client::builder().command_timeout(Duration::from_secs(1));
    let client = options.connect(&proxy.url()).await.expect("a server");
    let guard = client.lock("k").fixed_lease(Duration::from_millis(700)).acquire().await.expect("a free lock");
    let mut is_first = true;
    proxy.set(move |direction, _| match direction == Direction::ToServer && std::mem::take(&mut is_first) {
        true => Fate::Swallow,
        false => Fate::Pass,
    });
    let release = tokio::spawn(guard.release());
    eventually(|| is_granted(&server.client().call("RLOCK.ACQUIRE k other"))).await;
    server.client().call("RLOCK.RELEASE k other");
    let outcome = release.await.expect("no panic");
    assert!(matches!(outcome, Err(Error::Lost | Error::Unavailable { .. })), "{outcome:?}");
}

/// The server remembers only the last request of an owner, so the cleanup must come before the next
/// one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_of_an_owner_waits_for_the_cleanup_of_a_dropped_one() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.lock("k").owner("me");
    lock.acquire().await.expect("free").release().await.expect("it was held");
    let (asked, cancelled) = (answered(&server, "RLOCK.ACQUIRE"), answered(&server, "RLOCK.CANCEL"));
    tokio::task::block_in_place(|| {
        server.while_stopped(|| {
            tokio::runtime::Handle::current().block_on(async {
                for _ in 0..2 {
                    drop(tokio::time::timeout(Duration::from_millis(100), lock.try_acquire()).await);
                }
            });
        });
    });
    eventually(|| answered(&server, "RLOCK.CANCEL") > cancelled).await;
    assert_eq!(answered(&server, "RLOCK.ACQUIRE"), asked + 1, "the second request was sent before the cleanup ended");
}

/// Two clients of one process may use one owner. The first one learns nothing of the refusal of its
/// request, and cleans up after the second one has acquired the lock.
#[tokio::test]
async fn late_cleanup_does_not_end_the_hold_that_its_owner_has_by_another_client() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let (late, next) = (proxy.client().await, connect(&server).await);
    for keys in [&["k"] as &[&str], &["j", "k"]] {
        let acquire = if keys.len() == 1 { "RLOCK.ACQUIRE" } else { "RLOCK.MACQUIRE" };
        server.client().acquire("k stranger");
        let asked = answered(&server, acquire);
        proxy.set(|direction, _| if direction == Direction::ToClient { Fate::Stall } else { Fate::Pass });
        let lock = late.multi_lock(keys).owner("me");
        let asking = tokio::spawn(async move { lock.try_acquire().await.map(drop) });
        eventually(|| answered(&server, acquire) > asked).await;
        server.client().call("RLOCK.RELEASE k stranger");
        let guard = next.lock("k").owner("me").acquire().await.expect("free");
        asking.abort();
        drop(asking.await);
        proxy.clear();
        // It waits for the cleanup.
        drop(late.rw_lock("k").read().owner("me").try_acquire().await);
        assert_eq!(holds(&server), 1, "{keys:?}");
        guard.release().await.expect("it was held");
    }
}

/// A request that waits for its connection is newer than those that other clients of the process
/// send meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn request_id_is_drawn_when_the_request_is_sent() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let (late, next) = (proxy.client().await, connect(&server).await);
    for waits in [false, true] {
        proxy.set(|direction, _| if direction == Direction::ToServer { Fate::Stall } else { Fate::Pass });
        kill_connections(&server);
        // Otherwise the request goes over the closed connection first, and its repeat has the same id.
        eventually(|| connections_to(proxy.port()).is_empty()).await;
        let lock = late.lock("k").shared_owner("me");
        let asking =
            tokio::spawn(async move { if waits { lock.acquire().await.map(Some) } else { lock.try_acquire().await } });
        // The request opens a connection.
        eventually(|| connections(&server) == 1).await;
        let guard = next.lock("k").shared_owner("me").acquire().await.expect("free");
        proxy.clear();
        let late = asking.await.expect("no panic").expect("the owner holds the lock");
        assert_eq!(holds(&server), 2, "waits: {waits}");
        late.expect("a grant").release().await.expect("it was held");
        guard.release().await.expect("it was held");
    }
}

/// A release ends what its owner has, unless the owner says that others count on it.
#[tokio::test]
async fn only_a_shared_owner_has_a_hold_per_client() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    for (is_shared, counted) in [(false, 1), (true, 2)] {
        let lock = |client: &Client| match is_shared {
            true => client.lock("k").shared_owner("me"),
            false => client.lock("k").owner("me"),
        };
        let first = lock(&one).acquire().await.expect("free");
        let second = lock(&other).try_acquire().await.expect("an answer").expect("the owner holds the lock");
        assert_eq!((holds(&server), first.token()), (counted, second.token()));
        first.release().await.expect("it was held");
        assert_eq!(second.release().await, if is_shared { Ok(()) } else { Err(Error::Lost) });
    }
}

/// The second task asks when the first one has its permit. By the time of its turn, that permit is
/// being released: it must not wait for a permit that its own owner has.
#[tokio::test]
async fn tasks_of_one_owner_use_one_permit_one_after_the_other() {
    let server = Server::start();
    let client = connect(&server).await;
    client.semaphore("s").init(1).await.expect("an answer");
    let lock = client.semaphore("s").permits(1).owner("me");
    let uses = || async { lock.acquire().await.expect("a permit").release().await };
    let both = tokio::time::timeout(PATIENCE, async { tokio::join!(uses(), uses()) });
    assert_eq!(both.await.expect("both end"), (Ok(()), Ok(())));
}

#[tokio::test]
async fn reader_with_a_lost_hold_cannot_upgrade() {
    let server = Server::start();
    let client = connect(&server).await;
    let reader = client.rw_lock("k").read().acquire().await.expect("a free lock");
    // Another owner may have written in between.
    server.client().call("RRWLOCK.FORCERELEASE k");
    let outcome = reader.upgrade().await;
    assert!(matches!(outcome, Err(Error::Lost)), "{outcome:?}");
    drop(outcome);
    eventually(|| server.client().call("EXISTS k") == 0).await;
}

#[tokio::test]
async fn replicas_apply_to_upgrade_and_downgrade_too() {
    let server = Server::start();
    let client = connect(&server).await;
    let replica = Server::replica_of(&server, &[]);
    replica.catch_up_with(&server);
    let patience = Duration::from_millis(500);
    let reader = client.rw_lock("rw").read().replicas(1, PATIENCE).acquire().await.expect("a replica has it");
    let writer = client.rw_lock("w").write().replicas(1, patience).acquire().await.expect("a replica has it");
    replica.client().call("REPLICAOF NO ONE");
    let asked = async {
        let upgraded = reader.upgrade().await.map(drop);
        let downgraded = writer.downgrade().await.map(drop);
        [upgraded, downgraded]
    };
    for outcome in tokio::time::timeout(PATIENCE * 3, asked).await.expect("it ends") {
        assert!(matches!(outcome, Err(Error::Replicas { .. })), "{outcome:?}");
    }
}

/// A request id far in the future affects only the lock on which it was used.
#[tokio::test]
async fn foreign_request_id_does_not_affect_other_locks() {
    let server = Server::start();
    let client = connect(&server).await;
    server.client().call(format!("RLOCK.ACQUIRE k me REQ {}", i64::MAX));
    let refused = client.lock("k").owner("me").try_acquire().await;
    assert!(matches!(&refused, Err(Error::Refused { code, .. }) if code == "STALE"), "{refused:?}");
    client.lock("other").acquire().await.expect("a free lock").release().await.expect("it was held");
}

/// An owner stands for one thread of control, so if two requests wait under its name, one must
/// fail. Its error gives the reason.
#[tokio::test]
async fn two_clients_cannot_both_wait_under_one_name() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    server.client().call("RLOCK.ACQUIRE k stranger");
    let wait = |client: &Client| {
        tokio::spawn({
            let lock = client.lock("k").owner("me");
            async move { lock.acquire().await }
        })
    };
    let earlier = wait(&one);
    eventually(|| server.client().waiting_owners("k").len() == 1).await;
    let later = wait(&other);
    let outcome = tokio::time::timeout(PATIENCE, earlier).await.expect("it ends").expect("no panic");
    assert!(matches!(outcome, Err(Error::Superseded)), "{outcome:?}");
    server.client().call("RLOCK.RELEASE k stranger");
    later.await.expect("no panic").expect("a grant").release().await.expect("it was held");
}

/// Otherwise the two clients would supersede each other forever.
#[tokio::test]
async fn earlier_of_two_waiting_clients_with_one_name_stops_retrying() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let commands = ["RLOCK.ACQUIRE", "RFAIRLOCK.ACQUIRE", "RLOCK.CANCEL", "RFAIRLOCK.CANCEL"];
    let requests = || commands.iter().map(|command| answered(&server, command)).sum::<i64>();
    for (key, family) in [("k", "RLOCK"), ("f", "RFAIRLOCK")] {
        server.client().call(format!("{family}.ACQUIRE {key} stranger"));
        let before = requests();
        let wait = |client: &Client| {
            let (mutex, fair) = (client.lock(key).owner("me"), client.fair_lock(key).owner("me"));
            tokio::spawn(async move {
                match family {
                    "RLOCK" => mutex.acquire().await.map(drop),
                    _ => fair.acquire().await.map(drop),
                }
            })
        };
        let earlier = wait(&one);
        eventually(|| server.client().waiting_owners(key).len() == 1).await;
        let later = wait(&other);
        tokio::time::sleep(Duration::from_secs(5)).await;
        let made = requests() - before;
        assert!(made < 10, "{made} requests in 5 s");
        assert!(earlier.is_finished() && !later.is_finished());
        assert!(matches!(earlier.await.expect("no panic"), Err(Error::Superseded)));
        server.client().call(format!("{family}.RELEASE {key} stranger"));
        later.await.expect("no panic").expect("a grant");
    }
}

/// The same key in two databases is two locks.
#[tokio::test]
async fn databases_of_one_server_are_two_places() {
    let server = Server::start();
    let database = |number: u32| format!("{}{number}", url(&server));
    let zero = Client::connect(&database(0)).await.expect("a server");
    let one = Client::connect(&database(1)).await.expect("a server");
    let guard = zero.multi_lock(["a", "both"]).and(&one, ["b", "both"]).acquire().await.expect("free");
    let mut look = server.client();
    let held = |look: &mut crate::support::Client, key: &str| look.holder(key).is_some();
    assert_eq!(["a", "b", "both"].map(|key| held(&mut look, key)), [true, false, true]);
    look.call("SELECT 1");
    assert_eq!(["a", "b", "both"].map(|key| held(&mut look, key)), [false, true, true]);
    guard.release().await.expect("it was held");
}

/// Otherwise the two would wait for each other, or the server would report a deadlock.
#[tokio::test]
async fn dropped_lock_is_free_while_its_owner_waits_for_several() {
    let server = Server::start();
    let (client, other) = (connect(&server).await, connect(&server).await);
    let mine = client.lock("k").owner("me").acquire().await.expect("free");
    let theirs = other.lock("j").owner("they").acquire().await.expect("free");
    let next = tokio::spawn(async move {
        let next = other.lock("k").owner("they").acquire_timeout(PATIENCE).await;
        drop(theirs);
        next.map(drop)
    });
    eventually(|| server.client().waiting_owners("k").len() == 1).await;
    drop(mine);
    let all = client.multi_lock(["j", "k"]).owner("me").acquire_timeout(PATIENCE).await;
    let next = next.await.expect("no panic");
    assert!(all.is_ok() && next.is_ok(), "{:?} {next:?}", all.map(drop));
}
