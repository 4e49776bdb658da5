//! A lock with redis-rs and a server with rlock. Every command uses a new connection.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use redis::{Client, Cmd, FromRedisValue, RedisError, RedisResult, cmd};
use uuid::Uuid;

/// How much longer than BLOCK the client waits for the answer.
const SOCKET_MARGIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(100);

/// A held lock. A thread renews it after each third of its lease until it is dropped.
pub struct Hold {
    client: Client,
    pub key: String,
    pub owner: String,
    pub token: i64,
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
        request.arg(key).arg(&owner).arg("PX").arg(lease.as_millis() as u64).arg("ONCE");
        if left.as_millis() > 0 {
            request.arg("BLOCK").arg(left.as_millis() as u64);
        }
        match ask::<Option<i64>>(client, &request, left + SOCKET_MARGIN) {
            Ok(Some(token)) => return Ok(Some(Hold::new(client, key, owner, token, lease))),
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
    fn new(client: &Client, key: &str, owner: String, token: i64, lease: Duration) -> Hold {
        let (stop, stopped) = mpsc::channel();
        let mut renew = cmd("RLOCK.RENEW");
        renew.arg(key).arg(&owner).arg("TOKEN").arg(token).arg("PX").arg(lease.as_millis() as u64);
        let renewing = client.clone();
        let renewal = thread::spawn(move || {
            // The lease began at an unknown moment before now, so only two thirds of it count.
            let mut safe_until = Instant::now() + lease * 2 / 3;
            while stopped.recv_timeout(lease / 3) == Err(RecvTimeoutError::Timeout) && Instant::now() < safe_until {
                let sent = Instant::now();
                match ask::<i64>(&renewing, &renew, lease / 3) {
                    Ok(_) => safe_until = sent + lease,
                    Err(error) if is_of_the_connection(&error) => {}
                    Err(_) => return,
                }
            }
        });
        Hold { client: client.clone(), key: key.into(), owner, token, stop: Some(stop), renewal: Some(renewal) }
    }

    /// Whether the renewal has stopped: another owner may hold the lock by now.
    pub fn is_lost(&self) -> bool {
        self.renewal.as_ref().is_none_or(JoinHandle::is_finished)
    }
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
    let mut connection = client.get_connection_with_timeout(SOCKET_MARGIN)?;
    connection.set_read_timeout(Some(timeout))?;
    command.query(&mut connection)
}

/// Whether the error may be temporary. UNBLOCKED ends the wait at a server that became a replica.
fn is_of_the_connection(error: &RedisError) -> bool {
    error.is_io_error() || error.is_connection_dropped() || error.code() == Some("UNBLOCKED")
}
