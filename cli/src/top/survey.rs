//! One look at the most contended locks, and what came of it: RLOCK.TOP of each server, and a few dozen questions about what it lists.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::exit::Failure;
use crate::observer::{Lock, Observer};

/// What was seen.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Survey {
    /// Counters and levels of the whole server, or of all masters of the cluster.
    pub server: Totals,
    /// How long it took to look.
    pub took_ms: u64,
    /// The most contended, those with the most waiters first.
    pub locks: Vec<Lock>,
    /// When it was taken.
    #[serde(skip)]
    pub taken_at: Option<Instant>,
}

/// What INFO says of all locks together. What a server does not tell is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Totals {
    /// The server and its version.
    pub version: String,
    /// Locks that are held.
    pub held: u64,
    /// Clients that wait.
    pub waiting: u64,
    /// Grants without a wait.
    pub granted_at_once: u64,
    /// Grants after a wait.
    pub granted_after_waiting: u64,
    /// Waits that ended without a grant.
    pub timed_out: u64,
    /// Leases that ended without a release.
    pub expired: u64,
    /// Holds that were taken away.
    pub forced: u64,
}

impl Survey {
    /// Looks at the `count` most contended locks.
    ///
    /// # Errors
    ///
    /// If the server refuses or goes away.
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

/// How often something happened in a second, between two looks.
pub fn per_second(before: u64, after: u64, span: Duration) -> f64 {
    if span.is_zero() { 0.0 } else { after.saturating_sub(before) as f64 / span.as_secs_f64() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_per_second() {
        assert_eq!(per_second(10, 30, Duration::from_secs(2)), 10.0);
        assert_eq!(per_second(30, 10, Duration::from_secs(2)), 0.0, "a server that was restarted counts anew");
        assert_eq!(per_second(10, 30, Duration::ZERO), 0.0);
    }
}
