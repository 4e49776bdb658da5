//! Payloads from RESTORE or a snapshot. They are refused, or decoded into a lock that survives
//! being written and decoded again, and that a server can work with.

#![no_main]

use libfuzzer_sys::fuzz_target;
use rlock_core::{MAX_LEASE_MS, decode, encode};
use rlock_fuzz::{NOW, World, check_exclusion, key};

fuzz_target!(|bytes: &[u8]| {
    let Ok(mut lock) = decode(bytes, NOW) else {
        return;
    };
    check_exclusion(&lock, NOW);
    let mut again = Vec::new();
    encode(&lock, NOW, &mut again);
    assert_eq!(decode(&again, NOW).as_ref(), Ok(&lock), "the lock changes when it is encoded and decoded again");
    if lock.is_disposable() {
        return;
    }
    lock.shorten_leases(NOW, MAX_LEASE_MS);
    let mut world = World::default();
    world.arrive(&key(0), &lock);
    world.run_timer();
    world.pass(60_000);
    world.run_timer();
    world.delete(&key(0));
    world.run_timer();
    assert_eq!(world.engine.held(), 0, "a removed lock is still held");
});
