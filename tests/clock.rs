//! Steps of the wall clock, which move no deadline and repeat no token.

use std::time::Duration;

use crate::support::{
    Client, Command, Reply, Server, Stopwatch, WallClock, calling_module, eventually, skipped_here,
    snapshots_may_have_the_last_token,
};

const HOUR: Duration = Duration::from_secs(3600);

const SOON: Duration = Duration::from_secs(5);

/// The server's wall clock, in seconds.
#[track_caller]
fn server_seconds(client: &mut Client) -> i64 {
    client.call("TIME").array()[0].text().parse().expect("a number")
}

/// Steps the clock during leases and waits, which have to end as if it had not stepped.
#[track_caller]
fn assert_a_step_moves_no_deadline(step: impl FnOnce(&WallClock), expected_seconds: i64) {
    let clock = WallClock::new();
    let server = Server::with_wall_clock(&clock, &[]);
    let mut client = server.client();
    let before = server_seconds(&mut client);
    let watch = Stopwatch::start();
    client.acquire("long a PX 60000");
    client.acquire("short a PX 700");
    let mut next = server.waiter("RLOCK.ACQUIRE short b PX 60000 BLOCK 0");
    let mut impatient = server.waiter("RLOCK.ACQUIRE long b BLOCK 500");
    step(&clock);
    // Some servers read the wall clock only in their regular tick.
    eventually(SOON, || (server_seconds(&mut client) - before - expected_seconds).abs() < 5);

    let left = client.call("RLOCK.PTTL long").int();
    assert!((50_000..=60_000).contains(&left), "{left}");
    assert_eq!(impatient.reply(), Reply::Nil);
    watch.assert_took_ms(499..1000, "BLOCK 500");
    next.reply().int();
    watch.assert_took_ms(699..1200, "a lease of 700 ms");
    assert_eq!(client.call("RLOCK.HOLDS long a"), 1);

    // Leases that begin after the step have their usual length.
    let watch = Stopwatch::start();
    client.acquire("after a PX 300");
    client.acquire("after b BLOCK 0");
    watch.assert_took_ms(299..800, "a lease of 300 ms");
}

#[test]
fn timed_clock_step_one_hour_ahead_ends_no_lease_early() {
    assert_a_step_moves_no_deadline(|clock| clock.step_forward(HOUR), 3600);
}

#[test]
fn timed_clock_step_one_hour_back_ends_no_lease_late() {
    assert_a_step_moves_no_deadline(|clock| clock.step_back(HOUR), -3600);
}

/// The server sleeps until the timer that it considers the next one, and does not notice that the
/// clock has stepped.
#[test]
fn timed_clock_step_past_the_timer_of_another_module_delays_nothing() {
    let clock = WallClock::new();
    let server = Server::with_wall_clock(&clock, &[&format!("loadmodule {}", calling_module().display())]);
    let mut client = server.client();
    let before = server_seconds(&mut client);
    client.call("CALLER.TIMER");
    clock.step_forward(2 * HOUR);
    eventually(SOON, || server_seconds(&mut client) > before + 7000);
    let watch = Stopwatch::start();
    client.acquire("job a PX 300");
    let mut next = server.waiter("RLOCK.ACQUIRE job b BLOCK 0");
    next.reply_within(SOON).expect("the lock is granted").int();
    watch.assert_took_ms(299..800, "a lease of 300 ms");
}

/// The server's timers run on the wall clock: after the step a timer that is due at once would fire
/// an hour later.
#[test]
fn clock_step_back_does_not_delay_a_timer_that_is_due_at_once() {
    // The step has to come while the server sleeps. On a busy machine the server may not sleep yet,
    // or no longer. Such a try shows nothing.
    const TRIES: usize = 10;
    assert!((0..TRIES).any(|_| is_granted_after_a_step_during_sleep()), "no clock step came during a sleep");
}

/// Returns whether the clock stepped while the server slept.
fn is_granted_after_a_step_during_sleep() -> bool {
    let clock = WallClock::new();
    let server = Server::with_wall_clock(&clock, &[]);
    let mut client = server.client();
    client.acquire("job a PX 60000");
    let mut next = server.waiter("RLOCK.ACQUIRE job b PX 60000 BLOCK 0");
    // DEBUG SLEEP in the same step as the deletion keeps the server from its timers.
    let before = server_seconds(&mut client);
    let step = ["DEL job", "TIME", "DEBUG SLEEP 2"].map(Command::from);
    client.try_send(&step).expect("the server accepts the commands");
    std::thread::sleep(Duration::from_millis(200));
    clock.step_back(HOUR);
    // The replies arrive when the server wakes.
    let has_not_woken = client.reply_within(Duration::from_millis(20)).is_err();
    next.reply_within(SOON).expect("the lock is granted").int();
    if has_not_woken {
        client.reply();
    }
    let had_begun = client.reply().array()[0].text().parse::<i64>().expect("a number") >= before;
    has_not_woken && had_begun
}

/// The server reads the wall clock once and then runs all timers that are due by that reading. If
/// the clock steps back meanwhile, a timer that is started in this loop is due at once by the old
/// reading. So a timer that restarts itself would never end.
#[test]
fn clock_step_back_during_the_timer_stalls_nothing() {
    const LOCKS: usize = 40_000;
    let clock = WallClock::new();
    let server = Server::with_wall_clock(&clock, &[]);
    let mut client = server.client();
    client.acquire("long a PX 60000");
    for part in 0..LOCKS / 1000 {
        let locks: Vec<_> =
            (0..1000).map(|lock| Command::from(&*format!("RLOCK.ACQUIRE {part}-{lock} a PX 2000"))).collect();
        client.call_in_one_step(&locks);
    }
    eventually(SOON, || client.call("DBSIZE").int() < LOCKS as i64);
    let mut behind = Duration::ZERO;
    eventually(4 * SOON, || {
        behind += HOUR;
        clock.step_back(behind);
        client.call("DBSIZE") == 1
    });
    assert_eq!(client.call("RLOCK.HOLDS long a"), 1);
}

#[test]
fn tokens_rise_when_the_clock_goes_back() {
    let clock = WallClock::new();
    let server = Server::with_wall_clock(&clock, &[]);
    let mut client = server.client();
    let mut last = client.acquire("job a");
    clock.step_back(HOUR);
    for _ in 0..10 {
        client.call("RLOCK.RELEASE job a");
        let token = client.acquire("job a");
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    clock.step_forward(HOUR);
    client.call("RLOCK.RELEASE job a");
    let token = client.acquire("job a");
    assert!(token > last + 3_000_000_000, "tokens follow the clock again: {token} after {last}");
}

/// The state of a server whose last token was granted while its clock was ahead.
#[derive(Clone, Copy, Debug)]
enum Left {
    /// Another lock with an earlier token. The clock is still ahead.
    EarlierLock,
    /// No lock, and the clock was set right before the file was written.
    NoLockAndRightClock,
    /// No lock, and the clock is still ahead.
    NoLock,
}

/// Saves, kills the server, and restarts it with the right time.
#[track_caller]
fn assert_the_last_token_is_saved(left: Left, lines: &[&str], save: fn(&mut Client)) {
    eprintln!("{left:?} {lines:?}");
    let clock = WallClock::new();
    let mut server = Server::with_wall_clock(&clock, lines);
    let mut client = server.client();
    if matches!(left, Left::EarlierLock) {
        client.acquire("earlier a PX 36000000");
    }
    clock.step_forward(HOUR);
    let last = client.acquire("job a");
    assert_eq!(client.call("RLOCK.RELEASE job a"), 0);
    if matches!(left, Left::NoLockAndRightClock) {
        clock.step_forward(Duration::ZERO);
    }
    save(&mut client);
    server.kill();
    clock.step_forward(Duration::ZERO);
    server.restart();
    let token = server.client().acquire("job a");
    assert!(token > last, "{token} after {last}");
}

const AOF: [&str; 2] = ["appendonly yes", "appendfsync always"];

#[test]
fn tokens_rise_when_the_clock_goes_back_over_a_restart() {
    // The effects contain every token.
    assert_the_last_token_is_saved(Left::NoLock, &AOF, |_| {});
    assert_the_last_token_is_saved(Left::NoLock, &["aof-use-rdb-preamble no", AOF[0], AOF[1]], |_| {});
    if !snapshots_may_have_the_last_token(&mut Server::start().client()) {
        return skipped_here("no snapshot has the last token");
    }
    for left in [Left::EarlierLock, Left::NoLockAndRightClock] {
        assert_the_last_token_is_saved(left, &[], |client| assert_eq!(client.call("SAVE"), "OK"));
        assert_the_last_token_is_saved(left, &AOF, Client::rewrite_append_only_file);
    }
}

#[test]
fn tokens_rise_above_those_in_a_snapshot_when_the_clock_goes_back() {
    let clock = WallClock::new();
    clock.step_forward(HOUR);
    let mut server = Server::with_wall_clock(&clock, &[]);
    let mut client = server.client();
    let last = client.acquire("job a PX 36000000");
    assert_eq!(client.call("SAVE"), "OK");
    server.kill();
    clock.step_forward(Duration::ZERO);
    server.restart();
    assert_eq!(server.client().acquire("other a"), last + 1);
}

#[test]
fn tokens_rise_when_the_clock_of_a_promoted_replica_is_behind() {
    let clock = WallClock::new();
    clock.step_forward(HOUR);
    let primary = Server::with_wall_clock(&clock, &[]);
    let mut on_primary = primary.client();
    let mut last = on_primary.acquire("early a EX 36000");
    for replica_sees_the_token_in_the_stream in [false, true] {
        let replica = Server::replica_of(&primary, &[]);
        if replica_sees_the_token_in_the_stream {
            last = on_primary.acquire("late a EX 36000");
            on_primary.call("RLOCK.RELEASE late a");
            replica.catch_up_with(&primary);
        }
        let mut promoted = replica.client();
        promoted.call("REPLICAOF NO ONE");
        let token = promoted.acquire("new a");
        assert!(token > last, "{token} after {last}");
    }
}
