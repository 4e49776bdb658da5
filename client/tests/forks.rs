//! A process that forks, as a preforking server does. The child gets a copy of the parent's random
//! state and of its requests in progress.

use std::env;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::Command;
use std::time::{Duration, Instant};

use rlock_client::blocking::Client;

use crate::support::Server;
use crate::{PATIENCE, url};

/// Tells the process that forks where the server is.
const FORKS: &str = "RLOCK_TESTS_FORK";

/// A lease that must be renewed while the lock is held.
const LEASE: Duration = Duration::from_secs(1);

/// A separate process forks, because many tests run in this one.
#[test]
fn timed_one_process_gets_and_keeps_the_lock_after_a_fork() {
    if let Ok(url) = env::var(FORKS) {
        return use_a_client_and_fork(&url);
    }
    let server = Server::start();
    let mut forking = Command::new(env::current_exe().expect("the path of this test"));
    forking.args(["--exact", "forks::timed_one_process_gets_and_keeps_the_lock_after_a_fork", "--nocapture"]);
    let output = forking.env(FORKS, url(&server)).output().expect("this test runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let mut outcomes: Vec<&str> = said.lines().filter_map(|line| line.strip_prefix("process: ")).collect();
    outcomes.sort_unstable();
    assert_eq!(outcomes, ["held and kept", "not free"], "{said}");
}

fn use_a_client_and_fork(url: &str) {
    let client = Client::connect(url).expect("a server");
    client.lock("before").acquire().expect("free").release().expect("it was held");
    drop(client);
    let children = [fork(|| hold(url)), fork(|| hold(url))];
    // Ends the line that the test harness has begun.
    println!();
    for child in children {
        let mut status = 0;
        // SAFETY: `status` lives.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        let outcomes = ["not free", "held and lost", "held and kept", "panicked"];
        println!("process: {}", outcomes[usize::try_from(libc::WEXITSTATUS(status)).expect("a small number")]);
    }
}

/// The same for a process that forks while its other threads sleep, wake and wait.
const FORKS_BUSILY: &str = "RLOCK_TESTS_FORK_BUSY";

/// Enough forks for one of them to happen while another thread has locked the shared state.
const FORKS_COUNT: usize = 400;

#[test]
fn process_forked_while_threads_use_timers_can_wait() {
    if let Ok(url) = env::var(FORKS_BUSILY) {
        return fork_busily(&url);
    }
    let server = Server::start();
    let mut forking = Command::new(env::current_exe().expect("the path of this test"));
    forking.args(["--exact", "forks::process_forked_while_threads_use_timers_can_wait", "--nocapture"]);
    let output = forking.env(FORKS_BUSILY, url(&server)).output().expect("this test runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn fork_busily(url: &str) {
    let client = Client::connect(url).expect("a server");
    for number in 0..3 {
        let lock = client.lock(format!("busy{number}"));
        std::thread::spawn(move || {
            loop {
                drop(lock.acquire_timeout(PATIENCE).map(|guard| guard.release()));
            }
        });
    }
    for number in 0..FORKS_COUNT {
        let child = fork(|| {
            let client = Client::connect(url).expect("a server");
            let guard = client.lock(format!("child{number}")).acquire_timeout(PATIENCE);
            let code = i32::from(guard.is_err());
            std::mem::forget(guard);
            code
        });
        let (mut status, began) = (0, Instant::now());
        // SAFETY: `status` lives.
        while unsafe { libc::waitpid(child, &raw mut status, libc::WNOHANG) } != child {
            if began.elapsed() > 2 * PATIENCE {
                // SAFETY: the child has not been waited for yet, so its id is valid.
                unsafe { libc::kill(child, libc::SIGKILL) };
                panic!("the process of fork {number} hangs");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(status, 0, "fork {number}");
    }
}

/// Runs `work` in a copy of this process, which exits with the number that `work` returns.
fn fork(work: impl Fn() -> i32) -> libc::pid_t {
    // SAFETY: the child does only what a program with threads may do after a fork: the C library
    // unlocks its own locks there, and this crate is what is tested.
    match unsafe { libc::fork() } {
        0 => {
            let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(3);
            // SAFETY: the child must not run the parent's exit handlers.
            unsafe { libc::_exit(code) }
        }
        child => child,
    }
}

/// Holds the lock for longer than a lease, if it is free.
fn hold(url: &str) -> i32 {
    let client = Client::connect(url).expect("a server");
    let Some(guard) = client.lock("k").lease(LEASE).try_acquire().expect("an answer") else { return 0 };
    std::thread::sleep(LEASE * 2 + LEASE / 2);
    if guard.is_held() { 2 } else { 1 }
}
