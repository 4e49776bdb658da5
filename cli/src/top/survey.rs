//! A snapshot of the most contended locks: RLOCK.TOP of each server, and the details of the locks
//! in it.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::exit::Failure;
use crate::observer::{Lock, Observer};

/// A snapshot.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Survey {
    /// Totals of the server, or of all masters of the cluster.
    pub server: Totals,
    /// How long the requests took.
    pub took_ms: u64,
    /// The most contended locks, the one with the most waiters first.
    pub locks: Vec<Lock>,
    /// The time of the snapshot; `None` before the first one.
    #[serde(skip)]
    pub taken_at: Option<Instant>,
}

/// Sums of the fields of `INFO rlock`. A missing field counts as 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// The name and version of the server.
    pub version: String,
    /// Held locks.
    pub held: u64,
    /// Waiting requests.
    pub waiting: u64,
    /// Grants without a wait.
    pub granted_at_once: u64,
    /// Grants after a wait.
    pub granted_after_waiting: u64,
    /// Waits that timed out.
    pub timed_out: u64,
    /// Leases that expired.
    pub expired: u64,
    /// Holds ended by FORCERELEASE.
    pub forced: u64,
}

impl Survey {
    /// Takes a snapshot of the `count` most contended locks.
    ///
    /// # Errors
    ///
    /// If the server refuses, or the connection closes.
    pub async fn take(observer: &mut Observer, count: usize) -> Result<Self, Failure> {
        let started = Instant::now();
        let locks = observer.most_contended(count).await?;
        let server = Totals::of(observer).await?;
        let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(Self { server, took_ms, locks, taken_at: Some(Instant::now()) })
    }
}

impl Totals {
    async fn of(observer: &mut Observer) -> Result<Self, Failure> {
        let servers = observer.info("server").await?;
        let server = servers.first().map(Vec::as_slice).unwrap_or_default();
        let of_locks = observer.info("rlock").await?;
        let text = |name: &str| server.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone());
        let product = text("server_name").unwrap_or_else(|| "redis".to_owned());
        let version = text("valkey_version").or_else(|| text("redis_version")).unwrap_or_default();
        let sum = |name: &str| {
            let fields = of_locks.iter().flatten().filter(|(field, _)| field == name);
            fields.filter_map(|(_, value)| value.parse::<u64>().ok()).sum()
        };
        Ok(Self {
            version: format!("{product} {version}"),
            held: sum("rlock_held"),
            waiting: sum("rlock_waiting"),
            granted_at_once: sum("rlock_granted_at_once"),
            granted_after_waiting: sum("rlock_granted_after_waiting"),
            timed_out: sum("rlock_timed_out"),
            expired: sum("rlock_expired"),
            forced: sum("rlock_forced"),
        })
    }
}

/// The rate of a counter between two snapshots.
pub fn per_second(before: u64, after: u64, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { after.saturating_sub(before) as f64 / span.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second() {
        assert_eq!(per_second(10, 30, Duration::from_secs(2)), 10.0);
        assert_eq!(per_second(30, 10, Duration::from_secs(2)), 0.0, "a restarted server counts from 0");
        assert_eq!(per_second(10, 30, Duration::ZERO), 0.0);
    }
}
