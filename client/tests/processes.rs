//! Holders whose process is killed or stopped. The processes are the examples.

use std::time::Duration;

use tempfile::TempDir;

use crate::child::Child;
use crate::support::{Server, Stopwatch, eventually};
use crate::{PATIENCE, url};

/// The session grace of the candidates. A leader that the machine keeps from running for this long
/// resigns, which is not what these tests check.
const GRACE: Duration = Duration::from_millis(600);

/// The next candidate leads within this time after a death, plus the lateness of the machine.
const FELT_WITHIN: Duration = Duration::from_millis(700);

const DEATHS: u32 = 6;

/// A term or a step that does not end before the test does.
const VERY_LONG_MS: &str = "600000";

#[track_caller]
fn wait_for_waiter(server: &Server, key: &str) {
    eventually(PATIENCE, || server.client().waiting_owners(key).len() == 1);
}

#[test]
fn timed_session_is_handed_over_soon_after_its_process_is_killed() {
    let server = Server::start();
    let grace_ms = GRACE.as_millis().to_string();
    let candidate =
        |number: u32| Child::run("leader_election", &[&url(&server), &number.to_string(), VERY_LONG_MS, &grace_ms]);
    let mut leader = candidate(0);
    leader.wait_for("leads");
    let mut took = Vec::new();
    for number in 1..=DEATHS {
        let mut next = candidate(number);
        wait_for_waiter(&server, "example:leader");
        let watch = Stopwatch::start();
        leader.kill();
        next.wait_for("leads");
        took.push((watch.elapsed(), watch.lateness()));
        leader = next;
    }
    eprintln!("the time to the next holder, and the lateness of the machine: {took:?}");
    // The grace counts from the end of the connection, which comes after the kill.
    assert!(took.iter().all(|(time, _)| *time >= GRACE), "{took:?}");
    // Some take longer, so it is enough if one is in time.
    assert!(took.iter().any(|(time, lateness)| *time < FELT_WITHIN + *lateness), "{took:?}");
    // The lease of 30 s would end between 20 s and 30 s later.
    assert!(took.iter().all(|(time, lateness)| *time < Duration::from_secs(5) + *lateness), "{took:?}");
}

/// A server, and a folder for the store of the workers.
struct Workplace {
    server: Server,
    folder: TempDir,
}

impl Workplace {
    fn new() -> Workplace {
        Workplace { server: Server::start(), folder: tempfile::tempdir().expect("a folder") }
    }

    /// A worker with fencing and a lease of 1 s, which the client renews.
    fn worker(&self, step_ms: &str) -> Child {
        Child::run("fencing", &[&url(&self.server), self.folder.path().to_str().expect("a name"), step_ms])
    }

    /// The tokens of the writes in the store.
    fn tokens_in_store(&self) -> Vec<u64> {
        let results = std::fs::read_to_string(self.folder.path().join("results")).unwrap_or_default();
        let token = |line: &str| line.split(':').next().and_then(|token| token.parse().ok()).expect("a token");
        results.lines().map(token).collect()
    }
}

fn token_in(line: &str) -> u64 {
    line.rsplit(' ').next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{line}"))
}

#[test]
fn timed_lock_without_a_session_is_handed_over_when_the_lease_expires() {
    let place = Workplace::new();
    let mut holder = place.worker(VERY_LONG_MS);
    holder.wait_for("computing");
    let mut next = place.worker("0");
    wait_for_waiter(&place.server, "example:fencing");
    let watch = Stopwatch::start();
    let left_ms = place.server.client().holder("example:fencing").expect("it is held").lease_ms.unsigned_abs();
    holder.kill();
    next.wait_for("holds");
    // The server reports the remaining time in whole milliseconds. The last renewal may have been
    // in progress.
    watch.assert_took_ms(left_ms.saturating_sub(2)..3000, "what was left of the lease");
    next.wait_for_end();
}

/// The CPU time that a process uses within a span.
#[track_caller]
fn used_within(span: Duration, process: &Child) -> Duration {
    let before = process.processor_time();
    // Time itself: the process has nothing to do meanwhile.
    std::thread::sleep(span);
    process.processor_time() - before
}

#[test]
fn idle_holder_uses_no_cpu() {
    // The server publishes keyspace events, and a hold that is 1 s old subscribes to those of its
    // key.
    let server = Server::with(&["notify-keyspace-events KA"]);
    let mut leader = Child::run("leader_election", &[&url(&server), "0", VERY_LONG_MS]);
    leader.wait_for("leads");
    std::thread::sleep(Duration::from_millis(1500));
    let used = used_within(Duration::from_secs(1), &leader);
    assert!(used < Duration::from_millis(150), "{used:?} of a second");
}

#[test]
fn holder_with_an_unanswered_renewal_uses_no_cpu() {
    let place = Workplace::new();
    let mut worker = place.worker(VERY_LONG_MS);
    worker.wait_for("computing");
    let mut used = Duration::ZERO;
    place.server.while_stopped(|| used = used_within(Duration::from_millis(900), &worker));
    assert!(used < Duration::from_millis(150), "{used:?} of 900 ms, of which two thirds were a renewal");
}

/// Stops a worker when it prints these words, lets another worker do all its work, and resumes the
/// first. Returns what the first prints then, and the token of the other.
#[track_caller]
fn overtaken_at(words: &str) -> (Vec<String>, u64) {
    let place = Workplace::new();
    let mut first = place.worker("1000");
    let token = token_in(&first.wait_for("holds"));
    first.wait_for(words);
    first.stop();
    let mut second = place.worker("0");
    let later_token = token_in(&second.wait_for("holds"));
    assert!(later_token > token);
    assert_eq!(second.wait_for_end().last().map(String::as_str), Some("released"));
    first.go_on();
    let lines = first.wait_for_end();
    assert_eq!(place.tokens_in_store(), [later_token; 3], "no late write reached the store");
    (lines, later_token)
}

#[test]
fn stopped_holder_notices_its_loss_when_it_resumes() {
    let (lines, _) = overtaken_at("step 1: computing");
    assert_eq!(lines.last().map(String::as_str), Some("step 1: the lock was lost, nothing is written"), "{lines:?}");
}

#[test]
fn late_write_of_a_stopped_holder_is_refused() {
    let (lines, later_token) = overtaken_at("step 1: writing");
    let refusal = format!("step 1: refused, the store has seen token {later_token}");
    assert_eq!(lines.last(), Some(&refusal), "{lines:?}");
}
