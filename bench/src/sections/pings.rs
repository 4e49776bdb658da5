//! A connection that sends only PINGs: each pause of the event loop shows as the time of one PING.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Result, anyhow};
use rlock_bench::clock::{self, ThreadTimes};
use rlock_bench::connection::Connection;
use rlock_bench::resp;
use rlock_bench::server::Server;

use crate::report::Series;

/// How often the thread checks for the stop signal while it waits for a reply.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// How many more checks the last PING waits for its reply.
const LAST_LOOKS: u32 = 10;

/// The measured PINGs.
pub struct Pings {
    /// The time of each PING. The last one may have no reply; then this is how long it has waited.
    pub times_ms: Series,
    /// How long the server's main thread ran during each PING: the server's own share, however busy
    /// the machine is.
    pub server_ran_ms: Series,
    /// How long the thread that sends PINGs waited for a CPU.
    pub thread_waited_ms: f64,
}

/// A thread that sends one PING after the other until it is stopped.
pub struct Pinging {
    stop: Arc<AtomicBool>,
    thread: thread::JoinHandle<Result<Pings>>,
}

impl Pinging {
    /// Starts the thread. It sends a PING when the previous one has its reply, and at least
    /// `interval` after the previous one was sent.
    pub fn start(server: &Server, interval: Duration) -> Result<Self> {
        let (mut connection, server) = (server.connect()?, server.process_id());
        connection.set_patience(LOOK_INTERVAL)?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = thread::Builder::new().name("pinging".to_owned()).spawn(move || {
            let ping = resp::command(&[b"PING"]);
            let [mut times_ms, mut server_ran_ms] = [Series::default(), Series::default()];
            let before = ThreadTimes::own();
            while !stopped.load(Ordering::Relaxed) {
                let server_before = ThreadTimes::of_main_thread(server);
                let sent = clock::now();
                connection.send(&ping)?;
                let is_answered = wait_for_pong(&mut connection, &stopped)?;
                times_ms.push(clock::as_ms(sent.elapsed()));
                server_ran_ms.push(ran_ms(server_before, ThreadTimes::of_main_thread(server)));
                if !is_answered {
                    break;
                }
                clock::sleep_until(sent + interval);
            }
            Ok(Pings { times_ms, server_ran_ms, thread_waited_ms: waited_ms(before, ThreadTimes::own()) })
        })?;
        Ok(Self { stop, thread })
    }

    /// Stops the thread, and returns its measurements.
    pub fn stop(self) -> Result<Pings> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the pinging thread has panicked"))?
    }
}

/// Returns `false` if the thread was stopped before a reply came.
fn wait_for_pong(connection: &mut Connection, stopped: &AtomicBool) -> Result<bool> {
    let mut looks_left = LAST_LOOKS;
    while looks_left > 0 {
        if let Some(reply) = connection.try_reply()? {
            reply.expect(b"+PONG\r\n")?;
            return Ok(true);
        }
        if stopped.load(Ordering::Relaxed) {
            looks_left -= 1;
        }
    }
    Ok(false)
}

/// How long a thread waited for a CPU between two readings; NaN if the kernel does not report it.
pub fn waited_ms(before: Option<ThreadTimes>, after: Option<ThreadTimes>) -> f64 {
    match (before, after) {
        (Some(before), Some(after)) => (after.waited_ns - before.waited_ns) as f64 / 1e6,
        _ => f64::NAN,
    }
}

/// How long a thread ran between two readings; NaN if the kernel does not report it.
fn ran_ms(before: Option<ThreadTimes>, after: Option<ThreadTimes>) -> f64 {
    match (before, after) {
        (Some(before), Some(after)) => (after.cpu_ns - before.cpu_ns) as f64 / 1e6,
        _ => f64::NAN,
    }
}
