//! While the server refuses writes, the module grants nothing either: without its replicas another
//! server may grant the locks, and changes that are in no file are lost after a restart. Waits
//! still time out.

use std::fs;
use std::thread;
use std::time::{Duration, Instant};

use crate::cluster::assert_still_waiting;
use crate::support::{Reply, Server, eventually};

const SOON: Duration = Duration::from_secs(30);

/// Longer than the interval at which the module checks the server's files.
const CHECKED: Duration = Duration::from_secs(1);

/// A lease expires and a session ends while the only replica is silent. A notified client waits for
/// the first lock, a blocked client for the second.
fn nothing_is_granted_without_replicas(master: &Server) {
    let replica = Server::replica_of(master, &[]);
    for setting in ["min-replicas-max-lag 1", "min-replicas-to-write 1"] {
        // If CONFIG is renamed, the settings are in the configuration file.
        master.client().call(format!("CONFIG SET {setting}"));
    }
    let is_refused = || {
        let answer = master.client().call("RLOCK.ACQUIRE other c PX 1");
        matches!(answer, Reply::Error(line) if line.starts_with("NOREPLICAS"))
    };
    eventually(SOON, || !is_refused());
    let (mut client, mut holder) = (master.client(), Some(master.client()));
    holder.as_mut().expect("a holder").acquire("closes a PX 600000 SESSION 0");
    let mut closes = master.blocked_waiter("RLOCK.ACQUIRE closes b PX 600000 BLOCK 0");
    // Repeat if the machine was so busy that the lease expired before the server noticed the
    // missing replica.
    let mut expires = loop {
        client.acquire("expires a PX 3000");
        let expires_at = Instant::now() + Duration::from_millis(3000);
        let mut expires = master.notified_waiter("RLOCK.ACQUIRE expires b PX 600000 BLOCK 0");
        replica.while_stopped(|| {
            eventually(SOON, is_refused);
            if Instant::now() < expires_at {
                drop(holder.take());
                // Wait until the lease has expired.
                thread::sleep(expires_at.saturating_duration_since(Instant::now()));
                assert_still_waiting(&mut expires);
                assert_still_waiting(&mut closes);
            }
        });
        if holder.is_none() {
            break expires;
        }
        eventually(SOON, || !is_refused());
        client.call("RLOCK.FORCERELEASE expires");
        expires.reply();
        client.call("RLOCK.FORCERELEASE expires");
    };
    assert!(expires.reply().int() > 0 && closes.reply().int() > 0);
}

#[test]
fn primary_without_replicas_grants_nothing() {
    nothing_is_granted_without_replicas(&Server::start());
}

/// The module cannot read how many replicas are needed, and assumes one.
#[test]
fn primary_without_replicas_grants_nothing_with_config_renamed() {
    let lines = ["min-replicas-max-lag 1", "min-replicas-to-write 1", r#"rename-command CONFIG """#];
    nothing_is_granted_without_replicas(&Server::with(&lines));
}

/// One replica is connected, and two are needed.
#[test]
fn primary_with_one_of_two_replicas_grants_nothing() {
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

/// Both blocked and notified waits.
#[test]
fn waits_time_out_while_replicas_are_missing() {
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
            assert_eq!(notified.reply(), Reply::Nil, "the notified wait times out");
            assert_eq!(blocked.reply(), Reply::Nil, "the blocked wait times out");
            assert!(is_refused(), "writes are still refused");
        });
        if is_in_time {
            return;
        }
        // The machine was so busy that the waits ended before the server noticed the missing
        // replica.
        eventually(SOON, || !is_refused());
    }
}

/// How a disk fails, and how it is repaired.
struct Disk {
    fails: fn(&Server),
    works: fn(&Server),
}

/// The server cannot rename its snapshot to the final name.
const NO_SNAPSHOTS: Disk = Disk {
    fails: |server| {
        fs::create_dir_all(server.folder().join("dump.rdb/full")).expect("a folder");
        server.client().call("BGSAVE");
    },
    works: |server| {
        fs::remove_dir_all(server.folder().join("dump.rdb")).expect("the folder");
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

/// While the disk fails, a lease with a waiter expires, and another wait times out.
fn nothing_is_granted_without_a_disk(server: &Server, disk: &Disk) {
    let is_refused = || {
        let answer = server.client().call("RLOCK.ACQUIRE other c PX 1");
        matches!(answer, Reply::Error(line) if line.starts_with("MISCONF"))
    };
    loop {
        server.client().acquire("job a PX 4000");
        let expires_at = Instant::now() + Duration::from_millis(4000);
        let mut waits = server.blocked_waiter("RLOCK.ACQUIRE job b PX 600000 BLOCK 0");
        let mut gives_up = server.blocked_waiter("RLOCK.ACQUIRE job c PX 600000 BLOCK 4100");
        (disk.fails)(server);
        eventually(SOON, is_refused);
        let is_in_time = Instant::now() + CHECKED < expires_at;
        if is_in_time {
            // By then the lease has expired.
            assert_eq!(gives_up.reply(), Reply::Nil);
            assert_still_waiting(&mut waits);
        }
        (disk.works)(server);
        eventually(SOON, || !is_refused());
        assert!(waits.reply().int() > 0);
        if is_in_time {
            return;
        }
        // The machine was so busy that the lease expired before the server noticed the failure.
        server.client().call("RLOCK.FORCERELEASE job");
    }
}

#[test]
fn server_with_failing_snapshots_grants_nothing() {
    nothing_is_granted_without_a_disk(&Server::with(&["save 3600 1000"]), &NO_SNAPSHOTS);
}

#[test]
fn server_with_a_full_disk_grants_nothing() {
    nothing_is_granted_without_a_disk(&Server::with_aof(&["appendfsync everysec"]), &NO_APPENDING);
}

/// The end of a session is a write, too. It happens when writes are accepted again, and the grace
/// counts from then on.
#[test]
fn session_closed_while_the_disk_fails_ends_after_the_repair() {
    const SESSION: Duration = Duration::from_secs(3_600);
    let server = Server::with_aof(&["appendfsync everysec"]);
    let mut holder = server.client();
    holder.acquire("job a PX 36000000 SESSION 3600000");
    let left = || Duration::from_millis(u64::try_from(server.client().call("RLOCK.PTTL job").int()).expect("a hold"));
    (NO_APPENDING.fails)(&server);
    eventually(SOON, || matches!(server.client().call("SET k v"), Reply::Error(line) if line.starts_with("MISCONF")));
    // The module checks the server's files only from time to time.
    thread::sleep(CHECKED);
    drop(holder);
    thread::sleep(CHECKED);
    assert!(left() > SESSION, "the end of the session is not written yet");
    let begun = Instant::now();
    (NO_APPENDING.works)(&server);
    eventually(SOON, || left() <= SESSION);
    let until = left();
    assert!(until + begun.elapsed() >= SESSION, "{until:?} left");
}

/// The module cannot read whether failed snapshots stop writes, and finds out when one fails.
#[test]
fn server_with_failing_snapshots_grants_nothing_with_config_renamed() {
    let lines = ["save 3600 1000", r#"rename-command CONFIG """#];
    nothing_is_granted_without_a_disk(&Server::with(&lines), &NO_SNAPSHOTS);
}

/// If the server continues without a disk, so does the module.
fn assert_grants_after_a_failed_snapshot(server: &Server) {
    (NO_SNAPSHOTS.fails)(server);
    eventually(SOON, || server.client().call("INFO persistence").text().contains("rdb_last_bgsave_status:err"));
    // By then the module has checked the files.
    thread::sleep(CHECKED);
    server.client().acquire("job a PX 100");
    assert!(server.client().call("RLOCK.ACQUIRE job b PX 600000 BLOCK 60000").int() > 0);
}

#[test]
fn server_that_ignores_failing_snapshots_grants() {
    assert_grants_after_a_failed_snapshot(&Server::with(&["save 3600 1000", "stop-writes-on-bgsave-error no"]));
}

/// The module tests whether the server accepts writes. The test touches no key and does not count
/// as an error in INFO.
#[test]
fn server_that_ignores_failing_snapshots_grants_with_config_renamed() {
    for lines in [&[r#"save """#][..], &["save 3600 1000", "stop-writes-on-bgsave-error no"]] {
        let server = Server::with(&[lines, &[r#"rename-command CONFIG """#]].concat());
        assert_grants_after_a_failed_snapshot(&server);
        assert_eq!(server.client().call("DBSIZE"), 1);
        assert!(server.client().call("INFO stats").text().contains("total_error_replies:0"));
        assert!(!server.client().call("INFO errorstats").text().contains("errorstat_ERR"));
    }
}

/// The server's WAIT covers the last write of its own connection, which was before the grant. So
/// the request has to be repeated.
#[test]
fn wait_after_a_repeated_request_covers_the_grant_by_message() {
    let master = Server::start();
    let replica = Server::replica_of(&master, &[]);
    let mut holder = master.client();
    holder.acquire("k a PX 600000");
    let (mut asker, mut listener) = (master.client(), master.client());
    let request = "RLOCK.ACQUIRE k b PX 600000 BLOCK 0 NOTIFY answers REQ 1";
    listener.call("SUBSCRIBE answers");
    assert_eq!(asker.call(request), "WAITING");
    assert_eq!(asker.call("WAIT 1 10000"), 1);
    replica.while_stopped(|| {
        assert_eq!(holder.call("RLOCK.RELEASE k a"), 0);
        listener.reply();
        assert_eq!(asker.call("WAIT 1 100"), 1, "WAIT does not cover the grant yet");
        assert!(asker.call(request).int() > 0);
        assert_eq!(asker.call("WAIT 1 100"), 0, "the replica does not have the grant yet");
    });
    assert_eq!(asker.call("WAIT 1 10000"), 1);
}
