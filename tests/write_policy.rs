//! While the server takes no writes, for lack of replicas, nothing is granted by the module either: another server may give the locks.

use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::assert_still_waiting;
use crate::support::{Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(30);

/// A lease and a session end while the only replica is silent, with one waiter each, blocked or not; and a wait comes to its end.
fn nothing_is_granted_without_replicas(master: &Server) {
    let replica = Server::replica_of(master, &[]);
    for setting in ["min-replicas-max-lag 1", "min-replicas-to-write 1"] {
        // Where CONFIG is renamed it stands in the file already.
        master.client().call(format!("CONFIG SET {setting}"));
    }
    let is_refused = || {
        let answer = master.client().call("RLOCK.ACQUIRE other c PX 1");
        matches!(answer, Reply::Error(line) if line.starts_with("NOREPLICAS"))
    };
    eventually(SOON, || !is_refused());
    let (mut client, mut holder) = (master.client(), Some(master.client()));
    holder.as_mut().expect("it is there").acquire("closes a PX 600000 SESSION 0");
    let mut closes = master.blocked_waiter("RLOCK.ACQUIRE closes b PX 600000 BLOCK 0");
    let mut gives_up = master.notified_waiter("RLOCK.ACQUIRE closes c PX 600000 BLOCK 2000");
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
                assert_still_waiting(&mut gives_up);
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
    assert_eq!(gives_up.reply(), Reply::Nil, "its time is over");
}

#[test]
fn a_master_without_its_replicas_grants_nothing() {
    nothing_is_granted_without_replicas(&Server::start());
}

/// The module cannot read how many are needed, and takes it for one.
#[test]
fn a_master_without_its_replicas_grants_nothing_where_config_is_renamed() {
    let lines = ["min-replicas-max-lag 1", "min-replicas-to-write 1", r#"rename-command CONFIG """#];
    nothing_is_granted_without_replicas(&Server::with(&lines));
}

/// The server's WAIT asks for what its connection wrote last, and that was before the grant: the request is sent once more.
#[test]
fn whether_a_replica_has_what_was_granted_by_message_is_told_behind_the_request_sent_again() {
    let master = Server::start();
    let replica = Server::replica_of(&master, &[]);
    let mut holder = master.client();
    holder.acquire("k a PX 600000");
    let (mut asker, mut listener) = (master.client(), master.client());
    let request = "RLOCK.ACQUIRE k b PX 600000 BLOCK 0 NOTIFY told REQ 1";
    listener.call("SUBSCRIBE told");
    assert_eq!(asker.call(request), 0);
    assert_eq!(asker.call("WAIT 1 10000"), 1);
    replica.while_stopped(|| {
        assert_eq!(holder.call("RLOCK.RELEASE k a"), 0);
        listener.reply();
        assert_eq!(asker.call("WAIT 1 100"), 1, "of the grant it knows nothing");
        assert!(asker.call(request).int() > 0);
        assert_eq!(asker.call("WAIT 1 100"), 0, "the replica has not heard of it");
    });
    assert_eq!(asker.call("WAIT 1 10000"), 1);
}
