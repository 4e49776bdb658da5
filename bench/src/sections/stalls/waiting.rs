//! Thousands of waiting connections, and one step that affects all of them.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::Result;
use rlock_bench::clock;
use rlock_bench::resp;
use rlock_bench::server::Server;

use super::Case;
use super::stage::{
    Crowd, FOREVER, HOLDER, LOCK, LONG_LEASE_MS, Stage, acquire, is_integer, is_nil, pipeline, release,
    wait_for_waiting,
};
use crate::names;

const WAITERS: usize = 8000;
const KILLED: usize = 4000;
/// When waits time out together, all of them have begun within this time.
const TIME_TO_ASK: Duration = Duration::from_secs(6);
/// How long the place of a connection that closed stays in a fair queue.
const FAIR_GRACE_MS: u64 = 100;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("wait-wrongtype", format!("{WAITERS} wait for a lock, and SET puts a string there"), wrong_type),
        Case::new("wait-nosemaphore", format!("{WAITERS} wait for a semaphore, and DEL removes it"), no_semaphore),
        Case::new(
            "wait-resize-up",
            format!("{WAITERS} wait for a semaphore, and RESIZE makes room for all"),
            resize_up,
        ),
        Case::new("wait-resize-down", format!("{WAITERS} wait for 2 permits, and RESIZE leaves 1"), resize_down),
        Case::new("wait-readers", format!("{WAITERS} readers wait for a writer, and it releases"), readers),
        Case::peer("wait-readers-peer", format!("server alone: PUBLISH to {WAITERS}"), publish),
        Case::new("wait-close", format!("{WAITERS} wait for a lock, and their connections close"), close),
        Case::new(
            "wait-close-fair",
            format!("{WAITERS} wait for a fair lock, and their connections close"),
            close_fair,
        ),
        Case::peer(
            "wait-close-peer",
            format!("server alone: {WAITERS} in BLPOP, and their connections close"),
            close_blpop,
        ),
        Case::new("wait-timeout", format!("{WAITERS} waits end in one millisecond"), time_out),
        Case::new(
            "wait-timeout-release",
            format!("{WAITERS} waits end in one millisecond, and the holder releases"),
            time_out_and_release,
        ),
        Case::peer(
            "wait-timeout-peer",
            format!("server alone: {WAITERS} in BLPOP that end in one millisecond"),
            time_out_blpop,
        ),
        Case::new("wait-kill", format!("EXEC grants {KILLED} readers and kills their connections"), kill),
        Case::peer("wait-kill-peer", format!("server alone: EXEC kills {KILLED} connections"), kill_idle),
        Case::new("wait-flush", format!("{WAITERS} locks with a waiter each, and FLUSHALL"), flush),
    ]
}

fn wait_for_mutex(owner: usize) -> Vec<u8> {
    acquire("RLOCK", LOCK, owner, &FOREVER)
}

fn wait_for_reading(owner: usize) -> Vec<u8> {
    acquire("RRWLOCK", LOCK, owner, &[&[b"READ".as_slice()], &FOREVER[..]].concat())
}

/// Acquires the lock for the holder, and lets a crowd wait for it.
fn crowd_that_waits(
    stage: &mut Stage,
    size: usize,
    (kind, more): (&str, &[&[u8]]),
    request: impl Fn(usize) -> Vec<u8>,
) -> Result<Crowd> {
    stage.hold(kind, LOCK, more)?;
    let mut crowd = Crowd::connect(stage, size)?;
    crowd.wait(&mut stage.server, request)?;
    Ok(crowd)
}

fn wrong_type(stage: &mut Stage) -> Result<()> {
    let mut crowd = crowd_that_waits(stage, WAITERS, ("RLOCK", &[]), wait_for_mutex)?;
    stage.watch(|server| {
        server.control().call(&[b"SET", LOCK, b"string"])?.expect(b"+OK\r\n")?;
        crowd.hear(|reply| reply.expect_error("WRONGTYPE"))
    })
}

/// Makes a semaphore whose permits are all held, and a crowd whose members wait for `permits` each.
fn crowd_at_semaphore(stage: &mut Stage, permits: &[u8]) -> Result<Crowd> {
    stage.server.control().call(&[b"RSEMAPHORE.INIT", LOCK, permits])?.expect(b":1\r\n")?;
    let more: [&[u8]; 2] = [b"PERMITS", permits];
    let request = |owner| acquire("RSEMAPHORE", LOCK, owner, &[&more[..], &FOREVER[..]].concat());
    crowd_that_waits(stage, WAITERS, ("RSEMAPHORE", &more), request)
}

fn no_semaphore(stage: &mut Stage) -> Result<()> {
    let mut crowd = crowd_at_semaphore(stage, b"1")?;
    stage.watch(|server| {
        server.control().call(&[b"DEL", LOCK])?.expect(b":1\r\n")?;
        crowd.hear(|reply| reply.expect_error("NOSEMAPHORE"))
    })
}

fn resize_up(stage: &mut Stage) -> Result<()> {
    let mut crowd = crowd_at_semaphore(stage, b"1")?;
    let permits = (WAITERS + 1).to_string();
    stage.watch(|server| {
        server.control().call(&[b"RSEMAPHORE.RESIZE", LOCK, permits.as_bytes()])?.integer()?;
        crowd.hear(is_integer)
    })
}

fn resize_down(stage: &mut Stage) -> Result<()> {
    let mut crowd = crowd_at_semaphore(stage, b"2")?;
    stage.watch(|server| {
        server.control().call(&[b"RSEMAPHORE.RESIZE", LOCK, b"1"])?.integer()?;
        crowd.hear(|reply| reply.expect_error("ERR"))
    })
}

fn readers(stage: &mut Stage) -> Result<()> {
    let mut crowd = crowd_that_waits(stage, WAITERS, ("RRWLOCK", &[b"WRITE"]), wait_for_reading)?;
    stage.watch(|server| {
        release(server, "RRWLOCK", LOCK, &[b"WRITE"])?;
        crowd.hear(is_integer)
    })
}

fn publish(stage: &mut Stage) -> Result<()> {
    let mut crowd = Crowd::connect(stage, WAITERS)?;
    crowd.ask(|_| resp::command(&[b"SUBSCRIBE", b"channel"]))?;
    crowd.hear(|reply| reply.expect_array(3))?;
    stage.watch(|server| {
        server.control().call(&[b"PUBLISH", b"channel", b"free"])?.integer()?;
        crowd.hear(|reply| reply.expect_array(3))
    })
}

fn close_and_wait(server: &mut Server, crowd: &mut Crowd) -> Result<()> {
    let others = server.info_number("connected_clients")? - WAITERS as u64;
    crowd.close_all();
    server.wait_for_info("connected_clients", others, Duration::from_secs(60))?;
    wait_for_waiting(server, 0)
}

fn close(stage: &mut Stage) -> Result<()> {
    let mut crowd = crowd_that_waits(stage, WAITERS, ("RLOCK", &[]), wait_for_mutex)?;
    stage.watch(|server| close_and_wait(server, &mut crowd))
}

fn close_fair(stage: &mut Stage) -> Result<()> {
    let grace_ms = FAIR_GRACE_MS.to_string();
    let set: [&[u8]; 4] = [b"CONFIG", b"SET", b"rlock.fair-grace-ms", grace_ms.as_bytes()];
    stage.server.control().call(&set)?.expect(b"+OK\r\n")?;
    let request = |owner| acquire("RFAIRLOCK", LOCK, owner, &FOREVER);
    let mut crowd = crowd_that_waits(stage, WAITERS, ("RFAIRLOCK", &[]), request)?;
    stage.watch(|server| {
        close_and_wait(server, &mut crowd)?;
        // Their places expire together.
        thread::sleep(Duration::from_millis(2 * FAIR_GRACE_MS));
        server.control().call(&[b"RFAIRLOCK.WAITERS", LOCK, b"COUNT", b"1"])?.expect_array(0)
    })
}

fn close_blpop(stage: &mut Stage) -> Result<()> {
    let mut crowd = Crowd::connect(stage, WAITERS)?;
    crowd.ask(|_| resp::command(&[b"BLPOP", LOCK, b"0"]))?;
    stage.server.wait_for_info("blocked_clients", WAITERS as u64, TIME_TO_ASK)?;
    stage.watch(|server| close_and_wait(server, &mut crowd))
}

fn ms_until(end: Instant) -> u64 {
    end.saturating_duration_since(clock::now()).as_millis() as u64
}

/// Lets a crowd wait until the returned moment.
fn crowd_until(stage: &mut Stage) -> Result<(Crowd, Instant)> {
    let end = clock::now() + TIME_TO_ASK;
    let request = |owner| {
        let block_ms = ms_until(end).to_string();
        acquire("RLOCK", LOCK, owner, &[b"PX", LONG_LEASE_MS, b"BLOCK", block_ms.as_bytes()])
    };
    Ok((crowd_that_waits(stage, WAITERS, ("RLOCK", &[]), request)?, end))
}

fn time_out(stage: &mut Stage) -> Result<()> {
    let (mut crowd, _) = crowd_until(stage)?;
    stage.watch(|_| crowd.hear(is_nil))
}

fn time_out_and_release(stage: &mut Stage) -> Result<()> {
    let (mut crowd, end) = crowd_until(stage)?;
    stage.watch(|server| {
        clock::sleep_until(end);
        release(server, "RLOCK", LOCK, &[])?;
        // A few may be granted at the last moment.
        crowd.hear(|reply| is_nil(reply).or_else(|_| is_integer(reply)))
    })
}

fn time_out_blpop(stage: &mut Stage) -> Result<()> {
    let end = clock::now() + TIME_TO_ASK;
    let mut crowd = Crowd::connect(stage, WAITERS)?;
    crowd.ask(|_| {
        let timeout_s = (ms_until(end) as f64 / 1e3).to_string();
        resp::command(&[b"BLPOP", LOCK, timeout_s.as_bytes()])
    })?;
    stage.server.wait_for_info("blocked_clients", WAITERS as u64, TIME_TO_ASK)?;
    stage.watch(|_| crowd.hear(|reply| reply.expect(b"*-1\r\n")))
}

/// Authenticates all connections of a crowd as the user `crowd`, so that one CLIENT KILL ends all
/// of them.
fn make_one_user(stage: &mut Stage, crowd: &mut Crowd) -> Result<()> {
    let user: [&[u8]; 8] = [b"ACL", b"SETUSER", b"crowd", b"on", b"nopass", b"~*", b"&*", b"+@all"];
    stage.server.control().call(&user)?.expect(b"+OK\r\n")?;
    crowd.ask(|_| resp::command(&[b"AUTH", b"crowd", b"any"]))?;
    crowd.hear(|reply| reply.expect(b"+OK\r\n"))
}

/// Runs `first` and kills the crowd in one transaction.
fn exec_and_kill(server: &mut Server, first: &[&[u8]]) -> Result<()> {
    let control = server.control();
    control.call(&[b"MULTI"])?.expect(b"+OK\r\n")?;
    control.call(first)?.expect(b"+QUEUED\r\n")?;
    control.call(&[b"CLIENT", b"KILL", b"USER", b"crowd"])?.expect(b"+QUEUED\r\n")?;
    let expected = format!("*2\r\n:0\r\n:{KILLED}\r\n");
    control.call(&[b"EXEC"])?.expect(expected.as_bytes())
}

fn kill(stage: &mut Stage) -> Result<()> {
    let mut crowd = Crowd::connect(stage, KILLED)?;
    make_one_user(stage, &mut crowd)?;
    let holder = names::owner_id(HOLDER);
    stage.hold("RRWLOCK", LOCK, &[b"WRITE"])?;
    crowd.wait(&mut stage.server, wait_for_reading)?;
    stage.watch(|server| {
        exec_and_kill(server, &[b"RRWLOCK.RELEASE", LOCK, holder.as_bytes(), b"WRITE"])?;
        server.wait_for_info("connected_clients", 2, Duration::from_secs(60))?;
        // No waiter has received its grant, so none keeps it.
        server.control().call(&[b"RRWLOCK.PTTL", LOCK])?.expect(b":-2\r\n")
    })
}

fn kill_idle(stage: &mut Stage) -> Result<()> {
    let mut crowd = Crowd::connect(stage, KILLED)?;
    make_one_user(stage, &mut crowd)?;
    stage.watch(|server| {
        exec_and_kill(server, &[b"DEL", LOCK])?;
        server.wait_for_info("connected_clients", 2, Duration::from_secs(60))
    })
}

fn flush(stage: &mut Stage) -> Result<()> {
    let lock = |index: usize| names::lock_key(index);
    let hold = |out: &mut Vec<u8>, index: usize| {
        out.extend_from_slice(&acquire("RLOCK", lock(index).as_bytes(), HOLDER, &[b"PX", LONG_LEASE_MS]));
    };
    pipeline(stage.server.control(), WAITERS, hold, is_integer)?;
    let mut crowd = Crowd::connect(stage, WAITERS)?;
    crowd.wait(&mut stage.server, |index| acquire("RLOCK", lock(index).as_bytes(), index, &FOREVER))?;
    stage.watch(|server| {
        server.control().call(&[b"FLUSHALL"])?.expect(b"+OK\r\n")?;
        crowd.hear(is_integer)
    })
}
