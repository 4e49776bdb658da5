//! A reply is lost with its connection: the server executed the request, and the client does not
//! know.

use std::time::Duration;

use rlock_client::Error;

use crate::eventually;
use crate::keeping::is_kept;
use crate::proxy::{Direction, Fate, Proxy};
use crate::support::Server;
use crate::thief::{Thief, holds, use_once};

#[tokio::test]
async fn acquisition_with_a_lost_reply_is_counted_once_and_released() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let lock = client.lock("k");
    for _ in 0..10 {
        thief.steal_next();
        let guard = lock.try_acquire().await.expect("an answer").expect("a free lock");
        assert!(thief.has_stolen());
        assert_eq!(holds(&server), 1);

        thief.steal_next();
        guard.release().await.expect("it was held");
        assert!(thief.has_stolen());
        assert_eq!(holds(&server), 0);
    }
}

#[tokio::test]
async fn repeated_release_does_not_close_the_lock_again() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let guard = client.lock("k").acquire().await.expect("free");
    thief.steal_next();
    guard.release_and_keep(Duration::from_secs(600)).await.expect("it was held");
    assert!(thief.has_stolen());
    assert!(is_kept(&server, "k"));
    assert_eq!(server.client().call("RLOCK.FORCERELEASE k"), 1);

    // The lock opens and is granted to the next owner before the request is repeated.
    let guard = client.lock("k").acquire().await.expect("free");
    let mut next = server.client();
    thief.steal_next_and(move || {
        next.call("RLOCK.ACQUIRE k next PX 600000 BLOCK 0").int();
    });
    guard.release_and_keep(Duration::from_millis(1)).await.expect("it was held");
    assert!(thief.has_stolen());
    assert_eq!(server.client().holder("k").map(|holder| holder.owner), Some("next".to_owned()));
}

#[tokio::test]
async fn waiter_recovers_a_lost_grant_and_counts_it_once() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    for _ in 0..10 {
        server.client().acquire("k other");
        let waiter = tokio::spawn({
            let lock = client.lock("k");
            async move { lock.acquire().await }
        });
        eventually(|| server.client().waiting_owners("k").len() == 1).await;
        thief.steal_next();
        server.client().call("RLOCK.RELEASE k other");
        let guard = waiter.await.expect("no panic").expect("a grant");
        assert!(thief.has_stolen());
        assert_eq!(holds(&server), 1);
        guard.release().await.expect("it was held");
        assert_eq!(holds(&server), 0);
    }
}

#[tokio::test]
async fn permits_and_several_keys_are_counted_once() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let semaphore = client.semaphore("s");
    semaphore.init(6).await.expect("an answer");
    thief.steal_next();
    let guard = semaphore.permits(2).acquire().await.expect("six are free");
    assert_eq!(semaphore.resize(6).await.expect("an answer"), 4);
    thief.steal_next();
    let rest = semaphore.permits(4).acquire().await.expect("four are left");
    thief.steal_next();
    guard.release().await.expect("it was held");
    assert_eq!(semaphore.resize(6).await.expect("an answer"), 2);
    rest.release().await.expect("it was held");

    thief.steal_next();
    let all = client.multi_lock(["k", "l"]).acquire().await.expect("free");
    assert_eq!(holds(&server), 1);
    thief.steal_next();
    all.release().await.expect("it was held");
    assert!(thief.has_stolen());
    assert_eq!(server.client().call("EXISTS k l"), 0);
}

/// The lease counts from when the request was sent, so it has expired when the reply arrives. A
/// caller that waits for the lock keeps waiting.
#[tokio::test]
async fn grant_that_arrives_after_its_lease_is_requested_again() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let lease = Duration::from_millis(500);
    let lock = client.lock("k").fixed_lease(lease);
    // After this, no other answer is pending before the next request.
    lock.acquire().await.expect("a free lock").release().await.expect("it was held");
    let next_is_late = || next_is_late(&proxy, lease * 2);
    next_is_late();
    let guard = lock.acquire().await.expect("a grant");
    assert!(guard.is_held());
    assert_eq!(holds(&server), 1);
    guard.release().await.expect("it was held");
}

/// The next data to the client arrives late.
fn next_is_late(proxy: &Proxy, late_by: Duration) {
    let mut is_late = false;
    proxy.set(move |direction, _| match direction == Direction::ToClient && !std::mem::replace(&mut is_late, true) {
        true => Fate::Delay(late_by),
        false => Fate::Pass,
    });
}

/// The same holds for a renewal, whether manual or automatic: a late answer does not make the lease
/// last longer.
#[tokio::test]
async fn late_renewal_counts_from_when_it_was_sent() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let client = proxy.client().await;
    let (lease, late_by) = (Duration::from_secs(4), Duration::from_millis(400));
    let renewed = client.lock("k").lease(lease).acquire().await.expect("a free lock");
    let plain = client.lock("l").fixed_lease(lease).acquire().await.expect("a free lock");
    proxy.set(move |direction, _| match direction {
        Direction::ToClient => Fate::Delay(late_by),
        Direction::ToServer => Fate::Pass,
    });
    plain.renew_for(lease * 2).await.expect("it is held");
    assert!(plain.valid_for() <= lease * 2 - late_by, "{:?}", plain.valid_for());

    let mut valid_for = renewed.valid_for();
    eventually(|| {
        let before = std::mem::replace(&mut valid_for, renewed.valid_for());
        valid_for > before
    })
    .await;
    assert!(valid_for <= lease - late_by, "{valid_for:?}");
}

/// The first reply is that of INFO, which names the kind of the lock.
#[tokio::test]
async fn forced_release_ends_one_hold_only() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let first = server.client().acquire("k first PX 600000");
    let _waiters = ["second", "third"].map(|owner| {
        let waiter = server.waiter(format!("RLOCK.ACQUIRE k {owner} PX 600000 BLOCK 0"));
        assert!(server.client().waiting_owners("k").contains(&owner.to_owned()));
        waiter
    });
    let holder = || server.client().holder("k").map(|holder| (holder.owner, holder.token));
    thief.steal(3);
    assert!(
        client.observe("k").force_release_of(first as u64).await.expect("an answer"),
        "the hold existed and was ended"
    );
    assert!(thief.has_stolen());
    let (owner, second) = holder().expect("a waiter was served");
    assert_eq!(owner, "second");
    assert!(!client.observe("k").force_release_of(first as u64).await.expect("an answer"), "the hold had ended");
    thief.steal(3);
    assert!(
        !client.observe("k").force_release_of(first as u64).await.expect("an answer"),
        "the request was sent twice and the hold had ended"
    );
    assert!(thief.has_stolen());

    thief.steal(2);
    let outcome = client.observe("k").force_release().await;
    assert!(matches!(outcome, Err(Error::Unavailable { .. })), "{outcome:?}");
    assert!(thief.has_stolen());
    let (owner, third) = holder().expect("a waiter was served");
    assert!(owner == "third" && third > second);
}

/// A server with full memory refuses the repeated request without checking what it granted.
#[tokio::test]
async fn grant_from_before_the_memory_was_full_is_undone() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    let lease = Duration::from_secs(600);
    let lock = client.lock("k").fixed_lease(lease);
    for way in ["try", "wait"] {
        use_once(&client).await;
        let mut control = server.client();
        thief.steal_next_and(move || {
            assert!(control.holder("k").is_some(), "it was granted");
            assert_eq!(control.call("CONFIG SET maxmemory 1"), "OK");
        });
        let outcome = match way {
            "try" => lock.try_acquire().await.map(drop),
            // Waits continue while the memory is full.
            _ => lock.acquire_timeout(Duration::from_secs(1)).await.map(drop),
        };
        assert!(matches!(&outcome, Err(error) if error.code() == "OOM"), "{way}: {outcome:?}");
        server.client().call("CONFIG SET maxmemory 0");
        eventually(|| holds(&server) == 0).await;
    }
}
