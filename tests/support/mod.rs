//! Shared by all tests: servers that belong to one test, connections that show the raw protocol,
//! and helpers that wait for a condition instead of a fixed time.

mod client;
mod cluster;
mod console;
mod events;
mod family;
mod journal;
mod lock_commands;
mod lock_state;
mod messages;
mod namespaces;
mod notified;
mod pages;
mod process;
mod program;
mod propagation;
mod relay;
mod reply;
mod sentinel;
mod server;
mod shared_object;
mod stopwatch;
mod wall_clock;
mod writers;

use std::sync::OnceLock;
use std::time::{Duration, Instant};

pub use client::{Client, Command, in_script};
pub use cluster::{Cluster, two_nodes};
pub use console::run_every_session;
pub use events::Events;
pub use family::{ALL, BINARY, EXCLUSIVE, FAIR, Family, MUTEX, REENTRANT, TRANSIENT, WRITE};
pub use journal::{Journal, is_multi_or_exec, show};
pub use lock_commands::{LOCK_ERRORS, any_key, any_lock_command};
pub use lock_state::{describe_lock, describe_locks};
pub use messages::{assert_silent, message, subscriber};
pub use namespaces::Namespaces;
pub use notified::is_asked_for as waits_by_notify;
pub use pages::{CLIENT_PROMPT, TOOL_PROMPT, blocks, pages};
#[allow(unused_imports, reason = "the tests of the client use it")]
pub use process::{OwnedProcess, monotonic_us};
pub use program::{cli, server as server_program};
pub use propagation::propagated;
pub use relay::Relay;
pub use reply::Reply;
pub use sentinel::Sentinels;
pub use server::{Server, free_port, module_path};
#[allow(unused_imports, reason = "not all tests load a second module")]
pub use shared_object::calling_module;
pub use stopwatch::Stopwatch;
pub use wall_clock::WallClock;
pub use writers::{Scope, Writers};

/// Waits until the condition holds. Fails if it does not hold within `deadline`.
#[track_caller]
pub fn eventually(deadline: Duration, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < deadline, "the condition did not hold within {deadline:?}");
        // A pause between two checks. No test depends on its length.
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Picks the length of a campaign: `make test` runs the short form, `make campaigns` the long one.
pub fn at_length<T>(short: T, long: T) -> T {
    if std::env::var_os("RLOCK_LONG").is_some() { long } else { short }
}

/// Reports that the server under test cannot show something, and why. `make test-matrix` counts
/// these lines.
pub fn skipped_here(reason: &str) {
    eprintln!("skipped here: {reason}");
}

/// Whether MOVE, and COPY with DB, leave the connection in the target database, as they do on
/// Valkey 8.1.1. Replicas of such a server then apply later commands in the wrong database.
pub fn move_changes_the_database() -> bool {
    static CHANGES: OnceLock<bool> = OnceLock::new();
    *CHANGES.get_or_init(|| {
        let server = Server::start();
        let mut client = server.client();
        client.call("SET text here");
        assert_eq!(client.call("MOVE text 1"), 1);
        client.call("EXISTS text") == 1
    })
}

/// Returns the server's version, and whether it is a Valkey. A Valkey also reports the Redis
/// version that it is compatible with.
#[track_caller]
pub fn version_of(client: &mut Client) -> (bool, Vec<u32>) {
    let info = client.call("INFO server").text();
    let version = |field: &str| -> Option<Vec<u32>> {
        let version = info.lines().find_map(|line| line.strip_prefix(field))?;
        Some(version.split('.').map(|number| number.parse().expect("a number")).collect())
    };
    match version("valkey_version:") {
        Some(version) => (true, version),
        None => (false, version("redis_version:").expect("a version")),
    }
}

/// Whether a snapshot can hold the last token outside of the keys, as optional data. Servers can do
/// this since Redis 7.2.
pub fn snapshots_may_have_the_last_token(client: &mut Client) -> bool {
    !client.info("redis_version").starts_with("7.0.")
}

/// Returns the seed of a random test and prints it. RLOCK_SEED repeats a run with the same seed.
pub fn seed() -> u64 {
    let given = std::env::var("RLOCK_SEED").ok().map(|seed| seed.parse().expect("a number"));
    let seed = given.unwrap_or_else(rand::random);
    eprintln!("RLOCK_SEED={seed}");
    seed
}
