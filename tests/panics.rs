//! A panic of the engine loses no change that was made before it. The module has no panic to show
//! this with, so the test runs with a patched module: `make test-patched`.

use std::time::Duration;

use crate::support::{Server, eventually};

const SOON: Duration = Duration::from_secs(20);

fn is_patched() -> bool {
    std::env::var_os("RLOCK_PATCH").is_some_and(|patch| patch == "panic-after-commit")
}

const CAUGHT: &str = "internal error in rlock";

#[test]
fn change_before_a_panic_is_propagated_and_its_waiter_gets_a_reply() {
    if !is_patched() {
        return;
    }
    let mut primary = Server::with(&["appendonly yes", "appendfsync always"]);
    let mut replica = Server::replica_of(&primary, &[]);
    primary.forgive_panics();
    replica.forgive_panics();
    let mut client = primary.client();
    client.acquire("panic a PX 60000");
    let mut waiter = primary.client();
    waiter.send("RLOCK.ACQUIRE panic b PX 60000 BLOCK 0");
    eventually(SOON, || client.waiting_owners("panic") == ["b"]);
    assert!(client.call("RLOCK.RELEASE panic a").expect_error("ERR").contains(CAUGHT));
    waiter.reply().int();
    replica.catch_up_with(&primary);
    for server in [&primary, &replica] {
        assert_eq!(server.client().holder("panic").expect("a holder").owner, "b");
    }
    primary.kill();
    primary.restart();
    assert_eq!(primary.client().holder("panic").expect("a holder").owner, "b");
}
