//! Requests for several locks whose outcome is unknown, or that the caller has given up. The client
//! keeps none of the locks, whatever happens to one of them.

use std::time::Duration;

use rlock_client::Error;

use crate::eventually;
use crate::support::Server;
use crate::thief::{Thief, give_up_when, holds, use_once};

#[tokio::test]
async fn abandoned_request_for_several_locks_leaves_none_held_after_the_next_request() {
    let server = Server::start();
    let client = crate::connect(&server).await;
    use_once(&client).await;
    let all = client.multi_lock(["k", "l"]).owner("me").fixed_lease(Duration::from_secs(3600));
    give_up_when(all.try_acquire(), || holds(&server) == 1).await;
    client.lock("k").owner("me").acquire().await.expect("a grant").release().await.expect("it was held");
    client.close().await.expect("every request is settled");
    assert!(server.client().holder("l").is_none());
    assert_eq!(holds(&server), 0);
}

/// By the time the request is repeated, one of the keys is not a lock, or the user has no access to
/// it.
#[tokio::test]
async fn several_locks_are_not_kept_if_one_becomes_unusable_before_the_retry() {
    for deed in ["SET l x", "ACL SETUSER default resetkeys ~k"] {
        for way in ["try", "wait"] {
            let server = Server::start();
            let thief = Thief::before(&server).await;
            let client = thief.client().await;
            use_once(&client).await;
            let all = client.multi_lock(["k", "l"]).fixed_lease(Duration::from_secs(3600));
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
                Err(Error::Refused { code, .. }) => ["WRONGTYPE", "NOPERM"].contains(&code.as_str()),
                _ => false,
            };
            assert!(is_refused, "{deed}, {way}: {outcome:?}");
            // The cancellation is refused, too; the claim ends the hold.
            eventually(|| holds(&server) == 0).await;
        }
    }
}

#[tokio::test]
async fn several_locks_are_released_if_one_is_forbidden_or_overwritten() {
    for deed in ["ACL SETUSER default resetkeys ~k", "SET l x"] {
        let server = Server::start();
        let client = crate::connect(&server).await;
        let guard = client.multi_lock(["k", "l"]).fixed_lease(Duration::from_secs(3600)).acquire().await.expect("free");
        assert_eq!(server.client().call(deed), "OK");
        let outcome = guard.release().await;
        assert!(matches!(outcome, Err(Error::Refused { .. } | Error::Lost)), "{deed}: {outcome:?}");
        client.close().await.expect("every request is settled");
        assert_eq!(holds(&server), 0, "{deed}");
    }
}
