//! Connections that send all kinds of lock commands, as fast as they can, until they are stopped.
//! They reconnect when a server closes the connection, and ignore the replies.

use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use super::client::{Client, Command, in_script};
use super::eventually;
use super::lock_commands::{any_key, any_lock_command};

/// Connections to each server.
const CLIENTS: usize = 2;

/// Commands in one write. A command that waits delays those behind it.
const BATCH: usize = 30;

/// Far longer than a healthy server needs, even for a failover.
const PATIENCE: Duration = Duration::from_secs(20);

/// The keys, databases and options that the writers use.
#[derive(Clone, Copy)]
pub struct Scope {
    pub keys: usize,
    pub databases: usize,
    /// Whether holds may be bound to their connection. Such holds end when their server dies; other
    /// holds survive it.
    pub sessions: bool,
}

pub struct Writers {
    stop: Arc<AtomicBool>,
    answered: Arc<AtomicUsize>,
    threads: Vec<JoinHandle<()>>,
}

impl Writers {
    /// Starts to write to the servers on these ports, until stopped or dropped.
    pub fn start(ports: &[u16], scope: Scope, seed: u64) -> Writers {
        let (stop, answered) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let connections = ports.iter().flat_map(|port| [*port; CLIENTS]).enumerate();
        let threads = connections
            .map(|(number, port)| {
                let (stop, answered) = (stop.clone(), answered.clone());
                let mut random = StdRng::seed_from_u64(seed.wrapping_mul(31).wrapping_add(number as u64));
                thread::spawn(move || {
                    while !stop.load(Ordering::Relaxed) {
                        // Wait before the next connection, because reconnecting faster does not
                        // help a server that is down.
                        if write(port, scope, &mut random, &stop, &answered).is_err() {
                            thread::sleep(Duration::from_millis(5));
                        }
                    }
                })
            })
            .collect();
        Writers { stop, answered, threads }
    }

    /// Waits until `commands` more commands have a reply.
    #[track_caller]
    pub fn wait_for(&self, commands: usize) {
        let goal = self.answered.load(Ordering::Relaxed) + commands;
        eventually(Duration::from_secs(20), || self.answered.load(Ordering::Relaxed) >= goal);
    }

    /// Stops the writers, and returns after the last reply.
    pub fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let joined = thread.join();
            // The thread has printed the reason. A test that fails already should not panic again.
            assert!(joined.is_ok() || thread::panicking(), "a writer failed");
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        self.end();
    }
}

fn write(port: u16, scope: Scope, random: &mut StdRng, stop: &AtomicBool, answered: &AtomicUsize) -> io::Result<()> {
    let mut client = Client::connect(port)?;
    while !stop.load(Ordering::Relaxed) {
        let batch: Vec<_> = (0..BATCH).flat_map(|_| step(random, scope)).collect();
        client.try_send(&batch)?;
        for _ in &batch {
            match client.reply_within(PATIENCE) {
                Err(error) if error.kind() == ErrorKind::TimedOut => {
                    panic!("no reply within {PATIENCE:?} from {port}")
                }
                answered => drop(answered?),
            }
        }
        answered.fetch_add(batch.len(), Ordering::Relaxed);
    }
    Ok(())
}

/// One command by itself or in a script, or several in a transaction.
fn step(random: &mut StdRng, scope: Scope) -> Vec<Command> {
    match random.random_range(0..20) {
        0 => vec![in_script(any(random, scope).into())],
        1 => {
            let inner = (0..3).map(|_| any(random, scope).into()).collect::<Vec<Command>>();
            [vec!["MULTI".into()], inner, vec!["EXEC".into()]].concat()
        }
        _ => vec![any(random, scope).into()],
    }
}

fn any(random: &mut StdRng, scope: Scope) -> String {
    let key = any_key(random, scope.keys);
    match random.random_range(0..1000) {
        0..10 => format!("DEL {key}"),
        10..20 => format!("RENAME {key} {}", any_key(random, scope.keys)),
        20..30 => format!("COPY {key} {} REPLACE", any_key(random, scope.keys)),
        30..40 => format!("SELECT {}", random.random_range(0..scope.databases)),
        40..42 => "SWAPDB 0 1".to_owned(),
        _ => {
            // Some leases expire during the run, others outlast it.
            let lease_ms =
                if random.random() { random.random_range(1..50) } else { random.random_range(120_000..600_000) };
            let command = any_lock_command(random, scope.keys, lease_ms, 100);
            match command.split_once(" SESSION ") {
                Some((plain, _)) if !scope.sessions => plain.to_owned(),
                _ => command,
            }
        }
    }
}
