//! Several `run` at once: mutual exclusion, semaphores, order.

use crate::commands::{Desk, Running, status, wait_for_holder, wait_for_waiters};
use crate::eventually;
use crate::support::Server;

#[test]
fn twenty_runs_count_to_twenty() {
    let (server, desk) = (Server::start(), Desk::new());
    let count = desk.path("count");
    std::fs::write(&count, "0\n").expect("a file");
    let line = format!("run counter -- n=$(cat {count}); sleep 0.02; echo $((n + 1)) > {count}");
    let mut runs: Vec<_> = (0..20).map(|_| Running::start(&server, &line)).collect();
    for run in &mut runs {
        assert_eq!(run.status(), 0);
    }
    assert_eq!(desk.read("count"), "20\n");
    assert_eq!(server.client().holder("counter"), None);
}

/// The most commands that ran at once, from a journal with a + for each begin and a - for each end.
fn most_at_once(journal: &str) -> usize {
    let mut inside = 0usize;
    let counts = journal.lines().map(|line| {
        inside = if line == "+" { inside + 1 } else { inside - 1 };
        inside
    });
    counts.max().unwrap_or(0)
}

#[test]
fn semaphore_of_three_runs_three_commands_at_once() {
    let (server, desk) = (Server::start(), Desk::new());
    let journal = desk.path("journal");
    // No command ends before three are running, so a smaller limit would make them wait forever.
    let line = format!(
        "run pool --semaphore 3 -- echo + >> {journal}; while test $(grep -c + {journal}) -lt 3; do sleep 0.01; done; \
         sleep 0.05; echo - >> {journal}"
    );
    let mut runs: Vec<_> = (0..9).map(|_| Running::start(&server, &line)).collect();
    for run in &mut runs {
        assert_eq!(run.status(), 0);
    }
    assert_eq!(desk.read("journal").lines().count(), 18);
    assert_eq!(most_at_once(&desk.read("journal")), 3);
    assert_eq!(server.client().call("RSEMAPHORE.INFO pool").field("available"), 3);
}

#[test]
fn semaphore_of_another_size_is_refused() {
    let server = Server::start();
    server.client().call("RSEMAPHORE.INIT pool 5");
    assert_eq!(status(&server, "run pool --semaphore 3 -- true"), 122);
    assert_eq!(status(&server, "run pool --semaphore 5 -- true"), 0);
}

#[test]
fn fair_lock_serves_in_order_of_arrival() {
    let (server, desk) = (Server::start(), Desk::new());
    server.client().acquire_fair("queue first PX 600000");
    let mut runs = Vec::new();
    for number in 1..=5 {
        let line = format!("run queue --fair -- echo {number} >> {}", desk.path("order"));
        runs.push(Running::start(&server, &line));
        wait_for_waiters(&server, "queue", number);
    }
    server.client().call("RFAIRLOCK.RELEASE queue first");
    for run in &mut runs {
        assert_eq!(run.status(), 0);
    }
    assert_eq!(desk.read("order"), "1\n2\n3\n4\n5\n");
}

#[test]
fn readers_share_and_writer_does_not() {
    let (server, desk) = (Server::start(), Desk::new());
    let journal = desk.path("journal");
    let line = format!(
        "run doc --read -- echo + >> {journal}; while test $(grep -c + {journal}) -lt 2; do sleep 0.01; done; \
         while ! test -e {}; do sleep 0.01; done",
        desk.path("go")
    );
    let mut readers = [Running::start(&server, &line), Running::start(&server, &line)];
    eventually(|| desk.read("journal").lines().count() == 2);
    assert_eq!(status(&server, "run doc --write --wait 0 -- true"), 124);
    std::fs::write(desk.path("go"), "").expect("a file");
    for reader in &mut readers {
        assert_eq!(reader.status(), 0);
    }
    let mut writer = Running::start(&server, "run doc --write -- sleep 600");
    wait_for_holder(&server, "doc");
    assert_eq!(status(&server, "run doc --read --wait 0 -- true"), 124);
    writer.signal(libc::SIGTERM);
    assert_eq!(writer.status(), 143);
}
