//! Owners that the user has named: a hold of one life is not that of another.

use std::time::Duration;

use rlock_client::{Client, Error};

use crate::proxy::{Direction, Fate, Proxy};
use crate::support::Server;
use crate::thief::give_up_when;
use crate::{PATIENCE, command_stat, connect, eventually, is_granted, url};

/// How many commands of this name the server has answered, those that it refused included.
fn answered(server: &Server, command: &str) -> i64 {
    command_stat(server, command, "calls") + command_stat(server, command, "rejected_calls")
}

fn token_at(server: &Server) -> Option<u64> {
    server.client().holder("k").and_then(|holder| u64::try_from(holder.token).ok())
}

#[tokio::test]
async fn a_guard_that_was_lost_leaves_its_successor_alone() {
    let server = Server::start();
    let client = connect(&server).await;
    let lock = client.lock("k").owner("worker-7");
    for is_dropped in [true, false] {
        let lost = lock.acquire().await.expect("a free lock");
        server.client().call("RLOCK.FORCERELEASE k");
        let successor = lock.acquire().await.expect("a free lock");
        assert!(matches!(lost.renew().await, Err(Error::NotHeld)), "the hold that it had is gone");
        let before = answered(&server, "RLOCK.RELEASE");
        match is_dropped {
            true => drop(lost),
            false => assert!(matches!(lost.release().await, Err(Error::NotHeld))),
        }
        eventually(|| answered(&server, "RLOCK.RELEASE") > before).await;
        assert_eq!(token_at(&server), Some(successor.token()));
        successor.release().await.expect("it was held");
    }
}

/// The lease ends while nobody has heard of the release: another owner may have held when it is sent again.
#[tokio::test]
async fn a_release_that_came_after_the_lease_says_so_also_when_it_was_repeated() {
    let server = Server::start();
    let proxy = Proxy::before(&server).await;
    let options = Client::builder().response_timeout(Duration::from_secs(1));
    let client = options.connect(&proxy.url()).await.expect("a server");
    let guard = client.lock("k").lease(Duration::from_millis(700)).acquire().await.expect("a free lock");
    let mut is_first = true;
    proxy.set(move |direction, _| match direction == Direction::ToServer && std::mem::take(&mut is_first) {
        true => Fate::Swallow,
        false => Fate::Pass,
    });
    let release = tokio::spawn(guard.release());
    eventually(|| is_granted(&server.client().call("RLOCK.ACQUIRE k other"))).await;
    server.client().call("RLOCK.RELEASE k other");
    let outcome = release.await.expect("no panic");
    assert!(matches!(outcome, Err(Error::NotHeld)), "{outcome:?}");
}

#[tokio::test]
async fn a_reader_whose_hold_was_lost_does_not_become_the_writer() {
    let server = Server::start();
    let client = connect(&server).await;
    let reader = client.rw_lock("k").read().acquire().await.expect("a free lock");
    // Somebody else may have written in between.
    server.client().call("RRWLOCK.FORCERELEASE k");
    let outcome = reader.upgrade().await;
    assert!(matches!(outcome, Err(Error::NotHeld)), "{outcome:?}");
    drop(outcome);
    eventually(|| server.client().call("EXISTS k") == 0).await;
}

#[tokio::test]
async fn whoever_asks_for_replicas_gets_them_for_re_entry_upgrade_and_downgrade_too() {
    let server = Server::start();
    let client = connect(&server).await;
    let replica = Server::replica_of(&server, &[]);
    replica.catch_up_with(&server);
    let patience = Duration::from_millis(500);
    let guard = client.lock("k").replicas(1, PATIENCE).acquire().await.expect("a replica has it");
    let reader = client.rw_lock("rw").read().replicas(1, PATIENCE).acquire().await.expect("a replica has it");
    let writer = client.rw_lock("w").write().replicas(1, patience).acquire().await.expect("a replica has it");
    replica.client().call("REPLICAOF NO ONE");
    let asked = async {
        let again = guard.reenter().await.map(drop);
        let upgraded = reader.upgrade().await.map(drop);
        let downgraded = writer.downgrade().await.map(drop);
        [again, upgraded, downgraded]
    };
    for outcome in tokio::time::timeout(PATIENCE * 3, asked).await.expect("it ends") {
        assert!(matches!(outcome, Err(Error::Replicas { .. })), "{outcome:?}");
    }
}

/// A request id that no clock explains is the matter of this one lock.
#[tokio::test]
async fn the_ids_of_a_stranger_do_no_harm_to_other_locks() {
    let server = Server::start();
    let client = connect(&server).await;
    server.client().call(format!("RLOCK.ACQUIRE k me REQ {}", i64::MAX));
    let refused = client.lock("k").owner("me").try_acquire().await;
    assert!(matches!(&refused, Err(Error::Server { code, .. }) if code == "STALE"), "{refused:?}");
    client.lock("other").acquire().await.expect("a free lock").release().await.expect("it was held");
}

/// Another process of the same owner, whose clock is ahead, has used higher ids since.
#[tokio::test]
async fn a_release_goes_on_above_the_ids_of_another_process() {
    let server = Server::start();
    let client = connect(&server).await;
    let ahead = i64::MAX / 2;
    for is_dropped in [false, true] {
        let guard = client.lock("k").owner("me").acquire().await.expect("a free lock");
        server.client().call(format!("RLOCK.ACQUIRE k me REQ {ahead}"));
        server.client().call(format!("RLOCK.RELEASE k me REQ {}", ahead + 1));
        match is_dropped {
            true => drop(guard),
            false => guard.release().await.expect("it was held"),
        }
        eventually(|| server.client().holder("k").is_none()).await;
    }
    assert_eq!(answered(&server, "RLOCK.RELEASE"), 2 * 3, "that of the other process, and each of ours with two ids");
}

/// Its request has arrived at the server, and nobody waits for the answer any more.
async fn drop_unanswered(server: &Server, request: impl Future) {
    server.client().call("CLIENT PAUSE 500 ALL");
    let outcome = tokio::time::timeout(Duration::from_millis(100), request).await;
    assert!(outcome.is_err(), "the server does not answer yet");
}

/// How many counts a holder has.
fn holds(server: &Server, key: &str) -> Option<i64> {
    server.client().holder(key).map(|holder| holder.holds)
}

/// The background sends it once more. Another handle of the owner may have asked for something since.
#[tokio::test]
async fn a_release_that_was_dropped_is_done_once_whichever_handle_its_owner_uses_next() {
    let server = Server::start();
    let client = connect(&server).await;
    let first = client.lock("k").acquire().await.expect("a free lock");
    let second = client.lock("k").owner(first.owner()).acquire().await.expect("a re-entry");
    drop_unanswered(&server, first.release()).await;
    let third = second.reenter().await.expect("a re-entry");
    third.release().await.expect("it was held");

    let first = client.rw_lock("rw").read().acquire().await.expect("a free lock");
    let writer = first.upgrade().await.expect("the only reader");
    let reader = writer.downgrade().await.expect("it was held");
    drop_unanswered(&server, first.release()).await;
    let third = reader.reenter().await.expect("a re-entry");
    third.release().await.expect("it was held");

    client.close().await.expect("nothing is left to be done");
    assert!(second.is_held() && reader.is_held());
    assert_eq!((holds(&server, "k"), holds(&server, "rw")), (Some(1), Some(1)));
    second.release().await.expect("it was held");
    reader.release().await.expect("it was held");
    assert_eq!(server.client().call("DBSIZE"), 0);
}

/// The requests for several keys and for one of them do not know of each other, and have ids of the same owner.
#[tokio::test]
async fn a_release_that_may_have_been_done_is_not_done_with_another_id() {
    let server = Server::start();
    let client = connect(&server).await;
    let (all, one) = (client.multi_lock(["a", "b"]).owner("me"), client.lock("a").owner("me"));
    let outer = all.acquire().await.expect("free");
    let inner = all.acquire().await.expect("a re-entry");
    let single = one.acquire().await.expect("a re-entry");
    drop_unanswered(&server, inner.release()).await;
    let again = single.reenter().await.expect("a re-entry");
    client.close().await.expect("nothing is left to be done");
    assert!(outer.is_held());
    assert_eq!((holds(&server, "a"), holds(&server, "b")), (Some(3), Some(1)));
    outer.release().await.expect("it was held");
    single.release().await.expect("it was held");
    again.release().await.expect("it was held");
    assert_eq!(server.client().call("DBSIZE"), 0);
}

/// Nobody has heard that the first copy was done, and the second one is refused: another process of the owner has used a higher id. Done above that,
/// it would be a second release.
#[tokio::test]
async fn a_release_that_was_dropped_is_not_done_once_more_above_the_ids_of_another_process() {
    let server = Server::start();
    let client = connect(&server).await;
    let outer = client.lock("k").owner("me").acquire().await.expect("a free lock");
    let inner = outer.reenter().await.expect("a re-entry");
    give_up_when(inner.release(), || holds(&server, "k") == Some(1)).await;
    // The background has had no time to send the second copy.
    assert!(is_granted(&server.client().call(format!("RLOCK.ACQUIRE k me REQ {}", i64::MAX / 2))));
    client.close().await.expect("nothing is left to be done");
    assert_eq!(holds(&server, "k"), Some(2), "that of the guard, and that of the other process");
    assert_eq!(answered(&server, "RLOCK.RELEASE"), 2, "both copies");
    outer.release().await.expect("it was held");
    assert_eq!(holds(&server, "k"), Some(1));
}

/// An owner stands for one thread of control, so one of two that wait in its name has to go. It is told why.
#[tokio::test]
async fn two_clients_that_wait_in_one_name_do_not_both_wait() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    server.client().call("RLOCK.ACQUIRE k somebody");
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
    server.client().call("RLOCK.RELEASE k somebody");
    later.await.expect("no panic").expect("a grant").release().await.expect("it was held");
}

/// Two clients that supersede each other by turns would do nothing else.
#[tokio::test]
async fn of_two_clients_that_wait_in_one_name_the_earlier_asks_no_more() {
    let server = Server::start();
    let (one, other) = (connect(&server).await, connect(&server).await);
    let commands = ["RLOCK.ACQUIRE", "RFAIRLOCK.ACQUIRE", "RLOCK.CANCEL", "RFAIRLOCK.CANCEL"];
    let requests = || commands.iter().map(|command| answered(&server, command)).sum::<i64>();
    for (key, family) in [("k", "RLOCK"), ("f", "RFAIRLOCK")] {
        server.client().call(format!("{family}.ACQUIRE {key} somebody"));
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
        server.client().call(format!("{family}.RELEASE {key} somebody"));
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

/// Two owners that go on above the same id of strangers. That their ids meet is nothing that the connection of all would have to end for.
#[tokio::test]
async fn ids_that_meet_do_not_end_the_connection() {
    let server = Server::start();
    let client = connect(&server).await;
    let (keys, ahead) = (["a", "b", "c"], i64::MAX / 2);
    let mut strangers = Vec::new();
    for key in keys {
        server.client().call(format!("RLOCK.ACQUIRE {key} other"));
        strangers.push(server.blocked_waiter(format!("RLOCK.ACQUIRE {key} me REQ {ahead} BLOCK 0")));
    }
    let connection = || server.client().call("CLIENT LIST TYPE pubsub").text().split(' ').next().map(str::to_owned);
    let mut waiting = Vec::new();
    let mut first = None;
    for (key, stranger) in keys.iter().zip(&strangers) {
        let lock = client.lock(key).owner("me");
        waiting.push(tokio::spawn(async move { lock.acquire().await }));
        // Its place is taken by who goes on above its id.
        let still_waits = || {
            let line = server.client().call(format!("CLIENT LIST ID {}", stranger.id())).text();
            line.split(' ').any(|word| word.strip_prefix("flags=").is_some_and(|flags| flags.contains('b')))
        };
        eventually(|| !still_waits()).await;
        assert_eq!(first.get_or_insert_with(connection), &connection(), "the same connection as before");
    }
    for (key, waiting) in keys.iter().zip(waiting) {
        server.client().call(format!("RLOCK.RELEASE {key} other"));
        let outcome = tokio::time::timeout(PATIENCE, waiting).await.expect("it does not hang").expect("no panic");
        outcome.expect("a grant").release().await.expect("it was held");
    }
    assert_eq!(first, Some(connection()), "the same connection as before");
}

/// Otherwise the two would wait for each other, or be told so.
#[tokio::test]
async fn a_lock_that_was_dropped_is_not_held_while_its_owner_waits_for_several() {
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

/// A release of two keys waits for one of them, and is not in the way of a release of the other one.
#[tokio::test]
async fn what_an_owner_does_not_wait_for_can_be_released() {
    let server = Server::start();
    let client = Client::builder().retry_for(Duration::from_secs(2)).connect(&url(&server)).await.expect("a server");
    server.client().call("RLOCK.ACQUIRE c stranger PX 600000");
    let both = client.multi_lock(["a", "b"]).owner("me").acquire().await.expect("free");
    let one = client.lock("a").owner("me").acquire().await.expect("mine");
    let all = client.multi_lock(["b", "c"]).owner("me");
    let waiting = tokio::spawn(async move { all.acquire().await.map(drop) });
    eventually(|| server.client().waiting_owners("c").len() == 1).await;
    drop(both);
    tokio::task::yield_now().await;
    one.release().await.expect("it was held");
    waiting.abort();
}
