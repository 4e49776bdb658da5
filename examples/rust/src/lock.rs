//! A lock with redis-rs and a server with rlock. Every command uses a new connection.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{Client, Cmd, FromRedisValue, RedisError, RedisResult, cmd};
use uuid::Uuid;

/// How much longer than BLOCK the client waits for the answer.
const SOCKET_MARGIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

/// A held lock. A thread renews it after each third of its lease until it is dropped or lost.
pub struct Hold {
    client: Client,
    pub key: String,
    pub owner: String,
    pub token: i64,
    safe_until: Arc<Mutex<Instant>>,
    stop: Option<mpsc::Sender<()>>,
    renewal: Option<JoinHandle<()>>,
}

/// Returns `None` if the wait times out.
pub fn acquire(client: &Client, key: &str, lease: Duration, wait: Duration) -> RedisResult<Option<Hold>> {
    // A name for this acquisition only: with ONCE, the request can be repeated after a lost reply.
    acquire_as(Uuid::new_v4().to_string(), client, key, lease, wait)
}

pub(crate) fn acquire_as(
    owner: String,
    client: &Client,
    key: &str,
    lease: Duration,
    wait: Duration,
) -> RedisResult<Option<Hold>> {
    let started = Instant::now();
    loop {
        let left = wait.saturating_sub(started.elapsed());
        let mut request = cmd("RLOCK.ACQUIRE");
        request.arg(key).arg(&owner).arg("PX").arg(lease.as_millis() as u64).arg("ONCE").arg("TIMED");
        if left.as_millis() > 0 {
            request.arg("BLOCK").arg(left.as_millis() as u64);
        }
        let sent = Instant::now();
        match ask::<Option<(i64, u64)>>(client, &request, left + SOCKET_MARGIN) {
            Ok(Some((token, ms))) if sent + safe_part(ms) > Instant::now() => {
                return Ok(Some(Hold::new(client, key, owner, token, lease, sent + safe_part(ms))));
            }
            // The answer came so late that the lease may have ended: ask whether it has.
            Ok(Some(_)) if !left.is_zero() => {}
            // The wait was cut off: ask again, for the remaining time.
            Err(error) if is_of_the_connection(&error) && !left.is_zero() => thread::sleep(PAUSE),
            // A newer request with this owner name is waiting, and goes on.
            Err(error) if error.code() == Some("SUPERSEDED") => return Err(error),
            given_up => {
                // Leaves neither a waiter nor a hold behind. The usual answer is NOTOWNER.
                for command in ["RLOCK.CANCEL", "RLOCK.RELEASE"] {
                    let _ = ask::<i64>(client, cmd(command).arg(key).arg(&owner), SOCKET_MARGIN);
                }
                return given_up.map(|_| None);
            }
        }
    }
}

impl Hold {
    fn new(client: &Client, key: &str, owner: String, token: i64, lease: Duration, safe_until: Instant) -> Hold {
        let mut renew = cmd("RLOCK.RENEW");
        renew.arg(key).arg(&owner).arg("TOKEN").arg(token).arg("PX").arg(lease.as_millis() as u64);
        let (stop, stopped) = mpsc::channel();
        let safe_until = Arc::new(Mutex::new(safe_until));
        let (client, key) = (client.clone(), key.to_owned());
        let mut hold = Hold { client, key, owner, token, safe_until, stop: Some(stop), renewal: None };
        let (client, safe_until) = (hold.client.clone(), hold.safe_until.clone());
        hold.renewal = Some(thread::spawn(move || {
            loop {
                let left = locked(&safe_until).saturating_duration_since(Instant::now());
                let next = left.min(lease / 3);
                if left.is_zero() || stopped.recv_timeout(next) != Err(RecvTimeoutError::Timeout) {
                    return;
                }
                match renewed(&client, &renew, next) {
                    Ok(until) => *locked(&safe_until) = until,
                    Err(error) if is_of_the_connection(&error) => {}
                    Err(_) => *locked(&safe_until) = Instant::now(),
                }
            }
        }));
        hold
    }

    /// Whether the lease may have ended: another owner may hold the lock by now. It asks the clock,
    /// so it is right even while a renewal has no answer. The clock stands still while the machine
    /// sleeps.
    pub fn is_lost(&self) -> bool {
        Instant::now() >= *locked(&self.safe_until)
    }
}

fn locked(moment: &Mutex<Instant>) -> MutexGuard<'_, Instant> {
    moment.lock().unwrap_or_else(PoisonError::into_inner)
}

/// How long after the request a hold is safe that lasts for these milliseconds. A tenth is for what
/// the caller does between a check and its end.
fn safe_part(ms: u64) -> Duration {
    Duration::from_millis(ms) * 9 / 10
}

/// Renews, and returns until when the hold is safe. The lease counts from the moment before the
/// request.
fn renewed(client: &Client, renew: &Cmd, within: Duration) -> RedisResult<Instant> {
    let sent = Instant::now();
    let left_ms: u64 = ask(client, renew, within)?;
    Ok(sent + safe_part(left_ms))
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(renewal) = self.renewal.take() {
            let _ = renewal.join();
        }
        let mut release = cmd("RLOCK.RELEASE");
        release.arg(&self.key).arg(&self.owner).arg("TOKEN").arg(self.token);
        // NOTOWNER means that the lock was lost, or the reply to the first attempt.
        for _ in 0..3 {
            match ask::<i64>(&self.client, &release, SOCKET_MARGIN) {
                Err(error) if is_of_the_connection(&error) => thread::sleep(PAUSE),
                _ => return,
            }
        }
    }
}

/// Sends a command over a new connection with its own timeout.
fn ask<T: FromRedisValue>(client: &Client, command: &Cmd, timeout: Duration) -> RedisResult<T> {
    // A socket takes no timeout of zero.
    let timeout = timeout.max(Duration::from_millis(1));
    let mut connection = client.get_connection_with_timeout(timeout.min(SOCKET_MARGIN))?;
    connection.set_read_timeout(Some(timeout))?;
    command.query(&mut connection)
}

/// Whether the error may be temporary. UNBLOCKED ends the wait at a server that became a replica.
fn is_of_the_connection(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.code() == Some("UNBLOCKED")
}
