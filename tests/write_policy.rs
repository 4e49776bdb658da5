//! While the server takes no writes, nothing is granted by the module either: without its replicas another server may give the locks, and what is in no
//! file is gone after a restart. Waits come to their end meanwhile.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::assert_still_waiting;
use crate::support::{Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(30);

/// The module looks at the server's files that often, and then some.
const LOOKED_AT: Duration = Duration::from_secs(1);

/// A lease and a session end while the only replica is silent, with one waiter each, blocked or not.
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
    nothing_is_granted_without_replicas(&Server::start());
}

/// The module cannot read how many are needed, and takes it for one.
#[test]
fn a_master_without_its_replicas_grants_nothing_where_config_is_renamed() {
    let lines = ["min-replicas-max-lag 1", "min-replicas-to-write 1", r#"rename-command CONFIG """#];
    nothing_is_granted_without_replicas(&Server::with(&lines));
}

/// One replica is there, and two are needed.
#[test]
fn a_master_that_lacks_one_of_two_replicas_grants_nothing() {
    let master = Server::with(&["min-replicas-max-lag 10"]);
    let _replica = Server::replica_of(&master, &[]);
    let (mut client, mut holder) = (master.client(), master.client());
    holder.acquire("job a PX 60000 SESSION 0");
    let mut waiter = master.blocked_waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    client.call("CONFIG SET min-replicas-to-write 2");
    client.call("RLOCK.ACQUIRE other c PX 1").expect_error("NOREPLICAS");
    drop(holder);
    assert_still_waiting(&mut waiter);
    client.call("CONFIG SET min-replicas-to-write 1");
    assert!(waiter.reply().int() > 0);
}

/// However they wait.
#[test]
fn waits_end_in_their_time_while_replicas_lack() {
    let master = Server::with(&["min-replicas-max-lag 1", "min-replicas-to-write 1"]);
    let replica = Server::replica_of(&master, &[]);
    let is_refused = || {
        let answer = master.client().call("RLOCK.ACQUIRE other c PX 1");
        matches!(answer, Reply::Error(line) if line.starts_with("NOREPLICAS"))
    };
    eventually(SOON, || !is_refused());
    master.client().acquire("job a PX 600000");
    loop {
        let begun = Instant::now();
        let mut notified = master.notified_waiter("RLOCK.ACQUIRE job b PX 600000 BLOCK 4000");
        let mut blocked = master.blocked_waiter("RLOCK.ACQUIRE job c PX 600000 BLOCK 4000");
        let mut is_in_time = false;
        replica.while_stopped(|| {
            eventually(SOON, is_refused);
            is_in_time = begun.elapsed() < Duration::from_millis(4000);
            assert_eq!(notified.reply(), Reply::Nil, "of the one that is answered on a channel");
            assert_eq!(blocked.reply(), Reply::Nil, "and of the one that blocks");
            assert!(is_refused(), "all that time");
        });
        if is_in_time {
            return;
        }
        // The machine is so busy that the waits were over before the server noticed what it lacks.
        eventually(SOON, || !is_refused());
    }
}

/// How a disk fails, and what makes it work again.
struct Disk {
    fails: fn(&Server),
    works: fn(&Server),
}

/// The server cannot put a snapshot into its place.
const NO_SNAPSHOTS: Disk = Disk {
    fails: |server| {
        fs::create_dir_all(server.folder().join("dump.rdb/full")).expect("a folder");
        server.client().call("BGSAVE");
    },
    works: |server| {
        fs::remove_dir_all(server.folder().join("dump.rdb")).expect("it is there");
        server.client().call("BGSAVE");
    },
};

/// The append-only file may not grow.
const NO_APPENDING: Disk = Disk {
    fails: |server| {
        server.fill_disk();
        server.client().call("SET k v");
    },
    works: Server::empty_disk,
};

/// A lease ends while the disk fails, with a waiter; and another wait comes to its end.
fn nothing_is_granted_without_a_disk(server: &Server, disk: &Disk) {
    let is_refused = || {
        let answer = server.client().call("RLOCK.ACQUIRE other c PX 1");
        matches!(answer, Reply::Error(line) if line.starts_with("MISCONF"))
    };
    loop {
        server.client().acquire("job a PX 4000");
        let lapses_at = Instant::now() + Duration::from_millis(4000);
        let mut waits = server.blocked_waiter("RLOCK.ACQUIRE job b PX 600000 BLOCK 0");
        let mut gives_up = server.blocked_waiter("RLOCK.ACQUIRE job c PX 600000 BLOCK 4100");
        (disk.fails)(server);
        eventually(SOON, is_refused);
        let is_in_time = Instant::now() + LOOKED_AT < lapses_at;
        if is_in_time {
            // Time itself: the lease is over then.
            assert_eq!(gives_up.reply(), Reply::Nil);
            assert_still_waiting(&mut waits);
        }
        (disk.works)(server);
        eventually(SOON, || !is_refused());
        assert!(waits.reply().int() > 0);
        if is_in_time {
            return;
        }
        // The machine is so busy that the lease was over before the server noticed what it lacks.
        server.client().call("RLOCK.FORCERELEASE job");
    }
}

#[test]
fn a_server_whose_snapshots_fail_grants_nothing() {
    nothing_is_granted_without_a_disk(&Server::with(&["save 3600 1000"]), &NO_SNAPSHOTS);
}

#[test]
fn a_server_whose_append_only_file_cannot_grow_grants_nothing() {
    nothing_is_granted_without_a_disk(&Server::with_aof(&["appendfsync everysec"]), &NO_APPENDING);
}

/// The end of a session is written as well. It is done when writes are taken again, and its time counts from then on.
#[test]
fn a_session_that_closes_while_the_disk_fails_ends_when_that_works_again() {
    const SESSION: Duration = Duration::from_secs(3_600);
    let server = Server::with_aof(&["appendfsync everysec"]);
    let mut holder = server.client();
    holder.acquire("job a PX 36000000 SESSION 3600000");
    let left = || Duration::from_millis(u64::try_from(server.client().call("RLOCK.PTTL job").int()).expect("it holds"));
    (NO_APPENDING.fails)(&server);
    eventually(SOON, || matches!(server.client().call("SET k v"), Reply::Error(line) if line.starts_with("MISCONF")));
    // Time itself: the module looks at the server's files only now and then.
    thread::sleep(LOOKED_AT);
    drop(holder);
    thread::sleep(LOOKED_AT);
    assert!(left() > SESSION, "nothing is written yet");
    let begun = Instant::now();
    (NO_APPENDING.works)(&server);
    eventually(SOON, || left() <= SESSION);
    let until = left();
    assert!(until + begun.elapsed() >= SESSION, "{until:?} are left");
}

/// The module cannot read whether snapshots count, and finds out when one has failed.
#[test]
fn a_server_whose_snapshots_fail_grants_nothing_where_config_is_renamed() {
    let lines = ["save 3600 1000", r#"rename-command CONFIG """#];
    nothing_is_granted_without_a_disk(&Server::with(&lines), &NO_SNAPSHOTS);
}

/// Where the server goes on without a disk, the module does as well.
fn a_lock_goes_on_though_a_snapshot_has_failed(server: &Server) {
    (NO_SNAPSHOTS.fails)(server);
    eventually(SOON, || server.client().call("INFO persistence").text().contains("rdb_last_bgsave_status:err"));
    // The module has looked by then.
    thread::sleep(LOOKED_AT);
    server.client().acquire("job a PX 100");
    assert!(server.client().call("RLOCK.ACQUIRE job b PX 600000 BLOCK 60000").int() > 0);
}

#[test]
fn a_server_that_does_not_mind_failing_snapshots_grants() {
    a_lock_goes_on_though_a_snapshot_has_failed(&Server::with(&["save 3600 1000", "stop-writes-on-bgsave-error no"]));
}

/// The module tries whether the server takes writes: that touches no key, and is no error to INFO.
#[test]
fn a_server_that_does_not_mind_failing_snapshots_grants_where_config_is_renamed() {
    for lines in [&[r#"save """#][..], &["save 3600 1000", "stop-writes-on-bgsave-error no"]] {
        let server = Server::with(&[lines, &[r#"rename-command CONFIG """#]].concat());
        a_lock_goes_on_though_a_snapshot_has_failed(&server);
        assert_eq!(server.client().call("DBSIZE"), 1);
        assert!(server.client().call("INFO stats").text().contains("total_error_replies:0"));
        assert!(!server.client().call("INFO errorstats").text().contains("errorstat_ERR"));
    }
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
    assert_eq!(asker.call(request), "WAITING");
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
