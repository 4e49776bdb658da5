//! Read-write locks: shared readers, a single writer, upgrades and downgrades.

use std::time::Duration;

use crate::support::{Client, Command, Reply, Server, Stopwatch, eventually};

const SOON: Duration = Duration::from_secs(5);

#[track_caller]
fn read(client: &mut Client, owner_and_options: &str) -> i64 {
    acquire(client, "READ", owner_and_options).int()
}

#[track_caller]
fn write(client: &mut Client, owner_and_options: &str) -> i64 {
    acquire(client, "WRITE", owner_and_options).int()
}

/// Sends an ACQUIRE for `job`. The first word is the owner.
#[track_caller]
fn acquire(client: &mut Client, mode: &str, owner_and_options: &str) -> Reply {
    let (owner, options) = owner_and_options.split_once(' ').unwrap_or((owner_and_options, ""));
    client.call(format!("RRWLOCK.ACQUIRE job {owner} {mode} {options}"))
}

#[track_caller]
fn waiter(server: &Server, owner: &str, mode: &str) -> Client {
    server.waiter(format!("RRWLOCK.ACQUIRE job {owner} {mode} PX 60000 BLOCK 0"))
}

/// The holders as "owner mode count", sorted.
#[track_caller]
fn holders(client: &mut Client) -> Vec<String> {
    let info = client.call("RLOCK.INFO job");
    if info == Reply::Nil {
        return Vec::new();
    }
    let show = |holder: &Reply| {
        let (owner, mode) = (holder.field("owner").text(), holder.field("mode").text());
        format!("{owner} {mode} {}", holder.field("holds").int())
    };
    let mut holders: Vec<_> = info.field("holders").array().iter().map(show).collect();
    holders.sort();
    holders
}

#[test]
fn readers_share_the_lock_and_a_writer_is_alone() {
    let server = Server::start();
    let mut client = server.client();
    let (a, b) = (read(&mut client, "a"), read(&mut client, "b"));
    assert!(b > a, "each reader has its own token");
    assert_eq!(acquire(&mut client, "WRITE", "c"), Reply::Nil);
    client.call("RRWLOCK.RELEASE job a READ");
    client.call("RRWLOCK.RELEASE job b READ");
    assert!(write(&mut client, "c") > b);
    assert_eq!(acquire(&mut client, "READ", "a"), Reply::Nil);
    assert_eq!(acquire(&mut client, "WRITE", "a"), Reply::Nil);
    assert_eq!(holders(&mut client), ["c write 1"]);
}

#[test]
fn twenty_waiting_readers_are_granted_together_after_the_writer() {
    let server = Server::start();
    let mut client = server.client();
    write(&mut client, "w PX 60000");
    let mut readers: Vec<_> = (0..20).map(|number| waiter(&server, &format!("r{number}"), "READ")).collect();
    let mut behind = waiter(&server, "next", "WRITE");
    // The step that frees the lock grants them all: no timer runs between these two commands.
    let step = ["RRWLOCK.RELEASE job w WRITE", "RLOCK.INFO job"].map(Command::from);
    let answers = client.call_in_one_step(&step);
    assert_eq!(answers[1].field("holders").array().len(), 20);
    assert_eq!(answers[1].field("waiters"), 1);
    for reader in &mut readers {
        reader.reply().int();
    }
    for number in 0..20 {
        behind.assert_waits();
        client.call(format!("RRWLOCK.RELEASE job r{number} READ"));
    }
    behind.reply().int();
}

#[test]
fn later_readers_do_not_pass_a_waiting_writer() {
    let server = Server::start();
    let mut client = server.client();
    read(&mut client, "a PX 60000");
    let mut writer = waiter(&server, "w", "WRITE");
    assert_eq!(acquire(&mut client, "READ", "b"), Reply::Nil);
    let mut reader = waiter(&server, "c", "READ");
    assert_eq!(client.waiting_owners("job"), ["w", "c"]);
    client.call("RRWLOCK.RELEASE job a READ");
    writer.reply().int();
    reader.assert_waits();
    assert_eq!(holders(&mut client), ["w write 1"]);
    client.call("RRWLOCK.RELEASE job w WRITE");
    reader.reply().int();
}

#[test]
fn reader_may_reenter_while_a_writer_waits() {
    let server = Server::start();
    let mut client = server.client();
    let token = read(&mut client, "a PX 60000");
    let mut writer = waiter(&server, "w", "WRITE");
    assert_eq!(read(&mut client, "a"), token);
    assert_eq!(holders(&mut client), ["a read 2"]);
    client.call("RRWLOCK.RELEASE job a READ");
    writer.assert_waits();
    client.call("RRWLOCK.RELEASE job a READ");
    writer.reply().int();
}

#[test]
fn timed_expired_lease_of_a_reader_ends_only_that_reader() {
    for (first_ms, second_ms) in [(800, 300), (300, 800)] {
        let server = Server::start();
        let mut client = server.client();
        let watch = Stopwatch::start();
        read(&mut client, &format!("a PX {first_ms}"));
        read(&mut client, &format!("b PX {second_ms}"));
        let mut writer = waiter(&server, "w", "WRITE");
        eventually(SOON, || holders(&mut client).len() == 1);
        watch.assert_took_ms(299..800, "the shorter lease");
        writer.reply().int();
        watch.assert_took_ms(799..1400, "the longer lease");
    }
}

#[test]
fn release_by_one_reader_does_not_change_the_lease_of_another() {
    let server = Server::start();
    let mut client = server.client();
    read(&mut client, "a PX 60000");
    read(&mut client, "b PX 20000");
    client.call("RRWLOCK.RELEASE job a READ");
    assert!((1..=20_000).contains(&client.call("RRWLOCK.PTTL job").int()));
    read(&mut client, "a PX 60000");
    client.call("RRWLOCK.RELEASE job b READ");
    assert!(client.call("RRWLOCK.PTTL job").int() > 50_000);
}

#[test]
fn downgrading_writer_lets_waiting_readers_in() {
    let server = Server::start();
    let mut client = server.client();
    let written = write(&mut client, "w PX 60000");
    let mut reader = waiter(&server, "r", "READ");
    let mut writer = waiter(&server, "x", "WRITE");
    // The holder passes the queue, because the queue waits for it.
    assert!(read(&mut client, "w PX 60000") > written);
    assert_eq!(holders(&mut client), ["w read 1", "w write 1"]);
    reader.assert_waits();
    assert_eq!(client.call("RRWLOCK.RELEASE job w WRITE"), 0);
    reader.reply().int();
    assert_eq!(holders(&mut client), ["r read 1", "w read 1"]);
    writer.assert_waits();
    client.call("RRWLOCK.RELEASE job r READ");
    client.call("RRWLOCK.RELEASE job w READ");
    writer.reply().int();
}

#[test]
fn single_reader_is_upgraded_at_once() {
    let server = Server::start();
    let mut client = server.client();
    read(&mut client, "a PX 60000");
    let mut behind = waiter(&server, "w", "WRITE");
    // Without BLOCK, and ahead of the writer that waits for this reader.
    write(&mut client, "a PX 60000");
    assert_eq!(holders(&mut client), ["a read 1", "a write 1"]);
    client.call("RRWLOCK.RELEASE job a READ");
    behind.assert_waits();
    client.call("RRWLOCK.RELEASE job a WRITE");
    behind.reply().int();
}

#[test]
fn upgrade_among_readers_waits_ahead_of_the_queue() {
    let server = Server::start();
    let mut client = server.client();
    read(&mut client, "a PX 60000");
    read(&mut client, "b PX 60000");
    let mut writer = waiter(&server, "w", "WRITE");
    assert_eq!(acquire(&mut client, "WRITE", "a"), Reply::Nil);
    let mut upgrade = waiter(&server, "a", "WRITE");
    assert_eq!(client.waiting_owners("job"), ["a", "w"]);
    client.call("RRWLOCK.RELEASE job b READ");
    upgrade.reply().int();
    assert_eq!(holders(&mut client), ["a read 1", "a write 1"]);
    writer.assert_waits();
}

#[test]
fn of_two_upgrades_one_waits_and_the_other_is_refused() {
    let server = Server::start();
    let mut client = server.client();
    read(&mut client, "a PX 60000");
    read(&mut client, "b PX 60000");
    let mut upgrade = waiter(&server, "a", "WRITE");
    acquire(&mut client, "WRITE", "b BLOCK 0").expect_error("DEADLOCK");
    assert_eq!(acquire(&mut client, "WRITE", "b"), Reply::Nil);
    assert_eq!(holders(&mut client), ["a read 1", "b read 1"]);
    client.call("RRWLOCK.RELEASE job b READ");
    upgrade.reply().int();
}

#[test]
fn upgrade_keeps_its_place_when_its_read_lease_expires() {
    let server = Server::start();
    let mut client = server.client();
    read(&mut client, "b PX 60000");
    read(&mut client, "a PX 1000");
    let mut writer = waiter(&server, "w", "WRITE");
    let mut upgrade = waiter(&server, "a", "WRITE");
    eventually(SOON, || holders(&mut client) == ["b read 1"]);
    assert_eq!(client.waiting_owners("job"), ["a", "w"]);
    acquire(&mut client, "WRITE", "b BLOCK 0").expect_error("DEADLOCK");
    assert_eq!(acquire(&mut client, "WRITE", "b"), Reply::Nil);
    client.call("RRWLOCK.RELEASE job b READ");
    upgrade.reply().int();
    assert_eq!(holders(&mut client), ["a write 1"]);
    writer.assert_waits();
}

#[test]
fn each_mode_has_its_own_count_token_lease_session_and_request_id() {
    let server = Server::start();
    let (mut bound, mut client) = (server.client(), server.client());
    let written = write(&mut client, "a PX 60000 REQ 9");
    let reading = read(&mut bound, "a PX 30000 SESSION 0 REQ 3");
    assert!(reading > written);
    assert_eq!(read(&mut client, "a PX 30000 REQ 4"), reading);
    acquire(&mut client, "READ", "a REQ 3").expect_error("STALE");
    assert_eq!(write(&mut client, "a REQ 9"), written, "a repeat");
    assert_eq!(holders(&mut client), ["a read 2", "a write 1"]);
    assert_eq!(client.call("RRWLOCK.HOLDS job a READ"), 2);
    assert_eq!(client.call("RRWLOCK.HOLDS job a WRITE"), 1);
    assert!(client.call("RRWLOCK.PTTL job").int() > 50_000, "the longest lease");
    // The connection that repeated READ joined the session as well.
    drop(bound);
    client.call(format!("RRWLOCK.FORCERELEASE job TOKEN {reading}"));
    assert_eq!(holders(&mut client), ["a write 1"]);
    client.call("RRWLOCK.RELEASE job a READ").expect_error("NOTOWNER");
    client.call("RRWLOCK.RENEW job a READ").expect_error("NOTOWNER");
    assert!(client.call("RRWLOCK.RENEW job a WRITE PX 90000").int() > 80_000);
}

#[test]
fn closing_the_connection_of_a_reader_ends_only_that_reader() {
    let server = Server::start();
    let (mut bound, mut client) = (server.client(), server.client());
    read(&mut bound, "a PX 60000 SESSION 0");
    read(&mut client, "b PX 60000 SESSION 0");
    drop(bound);
    eventually(SOON, || holders(&mut client) == ["b read 1"]);
    assert!(client.call("RRWLOCK.PTTL job").int() > 50_000);
}

#[test]
fn forcerelease_ends_every_hold_and_grants_the_next_waiter_once() {
    let server = Server::start();
    let mut client = server.client();
    for owner in ["a", "b", "c"] {
        read(&mut client, &format!("{owner} PX 60000"));
    }
    let mut writer = waiter(&server, "w", "WRITE");
    assert_eq!(client.call("RRWLOCK.FORCERELEASE job"), 1);
    writer.reply().int();
    assert_eq!(holders(&mut client), ["w write 1"]);
}

#[test]
fn leaving_writer_lets_readers_behind_it_in() {
    let server = Server::start();
    let mut client = server.client();
    read(&mut client, "a PX 60000");
    let writer = waiter(&server, "w", "WRITE");
    let mut behind = waiter(&server, "b", "READ");
    // The writer that the reader waited for gives up.
    drop(writer);
    behind.reply().int();
    assert_eq!(holders(&mut client), ["a read 1", "b read 1"]);
}

#[test]
fn mode_must_be_read_or_write() {
    let server = Server::start();
    let mut client = server.client();
    assert!(client.call("RRWLOCK.ACQUIRE job a read").int() > 0);
    assert_eq!(client.call("RRWLOCK.HOLDS job a Read"), 1);
    for wrong in ["RRWLOCK.ACQUIRE job a EXCLUSIVE", "RRWLOCK.ACQUIRE job a PX 100", "RRWLOCK.RELEASE job a READ WRITE"]
    {
        client.call(wrong).expect_error("ERR");
    }
    client.call("RRWLOCK.ACQUIRE job a").expect_error("ERR");
    client.call("RRWLOCK.ACQUIRE job a READ PERMITS 2").expect_error("ERR");
    assert_eq!(holders(&mut client), ["a read 1"]);
}

#[test]
fn readers_survive_a_restart_unchanged() {
    for preamble in ["yes", "no"] {
        let mut server = Server::with_aof(&[&format!("aof-use-rdb-preamble {preamble}")]);
        let mut client = server.client();
        for owner in ["a", "b", "c"] {
            read(&mut client, &format!("{owner} PX 60000"));
        }
        read(&mut client, "b");
        let before = client.call("RLOCK.INFO job");
        let tokens = |info: &Reply| {
            let holders = info.field("holders");
            let mut tokens: Vec<_> = holders.array().iter().map(|holder| holder.field("token").int()).collect();
            tokens.sort_unstable();
            tokens
        };
        for rewritten in [false, true] {
            if rewritten {
                client.rewrite_append_only_file();
            }
            server.kill_and_restart();
            client = server.client();
            assert_eq!(holders(&mut client), ["a read 1", "b read 2", "c read 1"]);
            assert_eq!(tokens(&client.call("RLOCK.INFO job")), tokens(&before));
        }
    }
}
