//! Requests for several locks of which nobody knows what became, or which nobody wants any more: none of the locks is kept, whatever one of them says.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rlock_client::{Client, Error};

use crate::support::{Server, Stopwatch};
use crate::thief::{Thief, give_up_when, holds, use_once};
use crate::{command_stat, eventually};

/// The next answer is lost, and then `l`, which a stranger has.
fn lose_one_with_the_next_answer(thief: &Thief, server: &Server) {
    let mut operator = server.client();
    thief.steal_next_and(move || {
        operator.call("RLOCK.FORCERELEASE l");
        operator.call("RLOCK.ACQUIRE l stranger PX 600000");
    });
}

/// The repetition leaves those alone that the first copy was granted, and is answered nil, or waits for the one that is gone.
#[tokio::test]
async fn several_locks_of_which_one_is_lost_with_the_answer_are_not_kept() {
    for ends_by in ["nil", "a message", "nobody who waits"] {
        let server = Server::start();
        let thief = Thief::before(&server).await;
        let client = thief.client().await;
        let outer = client.lock("k").owner("me").acquire().await.expect("free");
        let all = client.multi_lock(["k", "l"]).owner("me").lease(Duration::from_secs(3600));
        lose_one_with_the_next_answer(&thief, &server);
        match ends_by {
            "nil" => assert!(all.try_acquire().await.expect("an answer").is_none()),
            "a message" => {
                let outcome = all.acquire_timeout(Duration::from_millis(300)).await;
                assert!(matches!(outcome, Err(Error::Timeout)), "{outcome:?}");
            }
            _ => {
                let waiting = tokio::spawn(async move { all.acquire().await.map(drop) });
                eventually(|| server.client().waiting_owners("l").len() == 1).await;
                assert_eq!(holds(&server), 2);
                waiting.abort();
            }
        }
        assert!(thief.has_stolen());
        eventually(|| holds(&server) == 1).await;
        assert!(server.client().waiting_owners("l").is_empty());
        outer.release().await.expect("it was held");
    }
}

/// The release has to wait until it is known what the request was granted: the server remembers one id for an owner and a key.
#[tokio::test]
async fn several_locks_that_are_given_up_before_their_owner_releases_one_leave_the_others_free() {
    let server = Server::start();
    let client = crate::connect(&server).await;
    let outer = client.lock("k").owner("me").acquire().await.expect("free");
    let all = client.multi_lock(["k", "l"]).owner("me").lease(Duration::from_secs(3600));
    give_up_when(all.try_acquire(), || holds(&server) == 2).await;
    outer.release().await.expect("it was held");
    client.close().await.expect("it is tidied up");
    assert!(server.client().holder("l").is_none());
    assert_eq!(holds(&server), 0);
}

#[tokio::test]
async fn several_locks_that_are_given_up_before_their_owner_acquires_one_leave_it_free_in_the_end() {
    let server = Server::start();
    let client = crate::connect(&server).await;
    use_once(&client).await;
    let all = client.multi_lock(["k", "l"]).owner("me").lease(Duration::from_secs(3600));
    give_up_when(all.try_acquire(), || holds(&server) == 1).await;
    client.lock("k").owner("me").acquire().await.expect("it is mine").release().await.expect("it was held");
    client.close().await.expect("it is tidied up");
    assert!(server.client().holder("l").is_none());
    assert_eq!(holds(&server), 0);
}

/// Another process of the owner asks between the two copies, of which the first was granted.
#[tokio::test]
async fn several_locks_that_are_asked_for_twice_around_another_request_of_their_owner_are_not_kept() {
    for way in ["try", "wait"] {
        let server = Server::start();
        let thief = Thief::before(&server).await;
        let client = thief.client().await;
        let outer = client.lock("k").owner("me").acquire().await.expect("free");
        let all = client.multi_lock(["k", "l"]).owner("me").lease(Duration::from_secs(3600));
        let (mut operator, token) = (server.client(), outer.token());
        thief.steal_next_and(move || {
            assert!(operator.holder("l").is_some(), "the first copy was granted");
            let id = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_micros();
            assert_eq!(operator.call(format!("RLOCK.RELEASE k me REQ {id} TOKEN {token}")), 1);
        });
        match way {
            "try" => drop(all.try_acquire().await.expect("an answer").expect("it is mine")),
            _ => {
                let outcome = all.acquire().await;
                assert!(matches!(outcome, Err(Error::Superseded)), "{outcome:?}");
            }
        }
        assert!(thief.has_stolen());
        drop(outer);
        client.close().await.expect("it is tidied up");
        assert_eq!((holds(&server), server.client().holder("l").map(|holder| holder.holds)), (0, None), "{way}");
    }
}

/// One of them is no lock any more when it is asked for again, or may not be asked for.
#[tokio::test]
async fn several_locks_of_which_one_is_written_over_or_forbidden_meanwhile_are_not_kept() {
    for deed in ["SET l x", "ACL SETUSER default resetkeys ~k"] {
        for way in ["try", "wait"] {
            let server = Server::start();
            let thief = Thief::before(&server).await;
            let client = thief.client().await;
            use_once(&client).await;
            let all = client.multi_lock(["k", "l"]).lease(Duration::from_secs(3600));
            let mut operator = server.client();
            thief.steal_next_and(move || {
                assert!(operator.holder("k").is_some(), "the first copy was granted");
                assert_eq!(operator.call(deed), "OK");
            });
            let outcome = match way {
                "try" => all.try_acquire().await.map(drop),
                _ => all.acquire().await.map(drop),
            };
            let is_refused = match &outcome {
                Err(Error::Server { code, .. }) => code == "WRONGTYPE",
                other => matches!(other, Err(Error::Permission(_))),
            };
            assert!(is_refused, "{deed}, {way}: {outcome:?}");
            client.close().await.expect("it is tidied up");
            assert_eq!(holds(&server), 0, "{deed}, {way}");
        }
    }
}

#[tokio::test]
async fn several_locks_of_which_one_is_forbidden_or_written_over_are_released() {
    for deed in ["ACL SETUSER default resetkeys ~k", "SET l x"] {
        let server = Server::start();
        let client = crate::connect(&server).await;
        let guard = client.multi_lock(["k", "l"]).lease(Duration::from_secs(3600)).acquire().await.expect("free");
        assert_eq!(server.client().call(deed), "OK");
        let outcome = guard.release().await;
        assert!(matches!(outcome, Err(Error::Permission(_) | Error::NotHeld)), "{deed}: {outcome:?}");
        client.close().await.expect("it is tidied up");
        assert_eq!(holds(&server), 0, "{deed}");
    }
}

/// One is lost with the answer, and then the memory is full, so that the other one cannot be asked for.
#[tokio::test]
async fn several_locks_that_are_taken_back_one_by_one_outlast_a_full_memory() {
    let server = Server::start();
    let thief = Thief::before(&server).await;
    let client = thief.client().await;
    use_once(&client).await;
    let all = client.multi_lock(["k", "l"]).lease(Duration::from_secs(3600));
    lose_one_with_the_next_answer(&thief, &server);
    let waiting = tokio::spawn(async move { all.acquire().await.map(drop) });
    eventually(|| server.client().waiting_owners("l").len() == 1).await;
    let asked = || command_stat(&server, "RLOCK.MACQUIRE", "rejected_calls");
    assert_eq!(server.client().call("CONFIG SET maxmemory 1"), "OK");
    waiting.abort();
    eventually(|| asked() > 0).await;
    server.client().call("CONFIG SET maxmemory 0");
    client.close().await.expect("it is tidied up");
    assert_eq!(holds(&server), 0);
}

/// While the memory is full it cannot be found out what a request was granted; the owner's release must not wait for that.
#[tokio::test]
async fn timed_an_owner_whose_request_is_taken_back_can_release_though_the_memory_is_full() {
    let server = Server::start();
    let response_timeout = Duration::from_millis(500);
    let builder = Client::builder().response_timeout(response_timeout).retry_for(Duration::from_secs(10));
    let client = builder.connect(&crate::url(&server)).await.expect("a server");
    let lock = client.lock("k").owner("me").lease(Duration::from_secs(3600));
    let several = client.multi_lock(["k", "l1", "l2", "l3", "l4", "l5"]).owner("me").lease(Duration::from_secs(3600));
    for attempt in ["one", "several"] {
        let guard = lock.acquire().await.expect("free");
        assert_eq!(server.client().call("CONFIG SET maxmemory 1"), "OK");
        let verb = match attempt {
            "one" => {
                give_up_when(lock.try_acquire(), || true).await;
                "RLOCK.ACQUIRE"
            }
            _ => {
                give_up_when(several.try_acquire(), || true).await;
                "RLOCK.MACQUIRE"
            }
        };
        eventually(|| command_stat(&server, verb, "rejected_calls") > 0).await;
        let watch = Stopwatch::start();
        guard.release().await.expect("it was held");
        watch.assert_took_ms(0..2_000, "one response timeout, and what the last pause takes");
        assert_eq!(holds(&server), 0, "{attempt}");
        assert_eq!(server.client().call("CONFIG SET maxmemory 0"), "OK");
    }
}
