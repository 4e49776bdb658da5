//! While the server takes no writes, for lack of replicas, nothing is granted by the module either: another server may give the locks.

use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::assert_still_waiting;
use crate::support::{Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(30);

/// A lease and a session end while the only replica is silent, with one waiter each, blocked or not.
fn nothing_is_granted_without_replicas(set: impl FnOnce(&Server)) {
    let master = Server::start();
    let replica = Server::replica_of(&master, &[]);
    set(&master);
    let is_refused = || {
        let answer = master.client().call("RLOCK.ACQUIRE other c PX 1");
        matches!(answer, Reply::Error(line) if line.starts_with("NOREPLICAS"))
    };
    eventually(SOON, || !is_refused());
    let (mut client, mut holder) = (master.client(), Some(master.client()));
    holder.as_mut().expect("it is there").acquire("closes a PX 600000 SESSION 0");
    let mut closes = master.blocked_waiter("RLOCK.ACQUIRE closes b PX 600000 BLOCK 0");
    // Once more if the machine is so busy that the lease was over before the server noticed what it lacks.
    let mut lapses = loop {
        client.acquire("lapses a PX 3000");
        let lapses_at = Instant::now() + Duration::from_millis(3000);
        let mut lapses = master.notified_waiter("RLOCK.ACQUIRE lapses b PX 600000 BLOCK 0");
        replica.while_stopped(|| {
            eventually(SOON, is_refused);
            if Instant::now() < lapses_at {
                drop(holder.take());
                // Time itself: the lease is over then.
                thread::sleep(lapses_at.saturating_duration_since(Instant::now()));
                assert_still_waiting(&mut lapses);
                assert_still_waiting(&mut closes);
            }
        });
        if holder.is_none() {
            break lapses;
        }
        eventually(SOON, || !is_refused());
        client.call("RLOCK.FORCERELEASE lapses");
        lapses.reply();
        client.call("RLOCK.FORCERELEASE lapses");
    };
    assert!(lapses.reply().int() > 0 && closes.reply().int() > 0);
}

#[test]
fn a_master_without_its_replicas_grants_nothing() {
    nothing_is_granted_without_replicas(|master| {
        for setting in ["min-replicas-max-lag 1", "min-replicas-to-write 1"] {
            assert_eq!(master.client().call(format!("CONFIG SET {setting}")), "OK");
        }
    });
}
