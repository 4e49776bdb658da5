//! One look at all locks of a server, and what came of it.
//!
//! The server is never kept busy: each step is a bounded request (see [`crate::observer`]), and after each step comes a pause of four times
//! the time that it took. So a look takes at most a fifth of the server, however many keys there are, and lasts as long as it lasts.

use std::time::Duration;

use serde::Serialize;
use tokio::time::Instant;

use crate::exit::Failure;
use crate::observer::{Lock, Observer};

/// The pause after a step, in times of the step.
const PAUSES_PER_STEP: u32 = 4;

/// What was seen.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Survey {
    /// Counters and levels of the whole server.
    pub server: Totals,
    /// How many locks there are.
    pub locks_seen: u64,
    /// How many of them somebody waits for.
    pub contended: u64,
    /// How long it took to look at all of them.
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
    /// Looks at all locks, and keeps the `count` most contended.
    ///
    /// # Errors
    ///
    /// If the server refuses or goes away.
    pub async fn take(observer: &mut Observer, count: usize) -> Result<Self, Failure> {
        let started = Instant::now();
        let mut survey = Self { server: Totals::of(observer).await?, ..Self::default() };
        let mut cursor = 0;
        loop {
            let step_started = Instant::now();
            let (next, keys) = observer.step(cursor, None).await?;
            survey.add(observer.locks(&keys).await?, count);
            cursor = next;
            if cursor == 0 {
                break;
            }
            tokio::time::sleep(step_started.elapsed() * PAUSES_PER_STEP).await;
        }
        if survey.locks_seen == 0 {
            observer.expect_module().await?;
        }
        observer.add_longest_waits(&mut survey.locks).await?;
        survey.took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
        survey.taken_at = Some(Instant::now());
        Ok(survey)
    }

    /// Takes locks into account. No more than `count` are kept, so a million locks need no more memory than a few.
    fn add(&mut self, locks: Vec<Lock>, count: usize) {
        self.locks_seen += locks.len() as u64;
        self.contended += locks.iter().filter(|lock| lock.waiters > 0).count() as u64;
        self.locks.extend(locks);
        self.locks.sort_by(|one, other| other.waiters.cmp(&one.waiters).then_with(|| one.key.cmp(&other.key)));
        // A walk over a table that is growing passes some keys twice.
        self.locks.dedup_by(|one, other| one.key_bytes == other.key_bytes);
        self.locks.truncate(count);
    }
}

impl Totals {
    async fn of(observer: &mut Observer) -> Result<Self, Failure> {
        let mut fields = observer.info("server").await?;
        fields.extend(observer.info("rlock").await?);
        let text = |name: &str| fields.iter().find(|(field, _)| field == name).map(|(_, value)| value.clone());
        let number = |name: &str| text(name).and_then(|value| value.parse().ok()).unwrap_or(0);
        let product = text("server_name").unwrap_or_else(|| "redis".to_owned());
        let version = text("valkey_version").or_else(|| text("redis_version")).unwrap_or_default();
        Ok(Self {
            version: format!("{product} {version}"),
            held: number("rlock_held"),
            waiting: number("rlock_waiting"),
            granted_at_once: number("rlock_granted_at_once"),
            granted_after_waiting: number("rlock_granted_after_waiting"),
            timed_out: number("rlock_timed_out"),
            expired: number("rlock_expired"),
            forced: number("rlock_forced"),
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
    fn the_most_contended_are_kept_and_all_are_counted() {
        let lock = |key: &str, waiters| Lock {
            key: key.to_owned(),
            key_bytes: key.as_bytes().to_vec(),
            waiters,
            ..Lock::default()
        };
        let mut survey = Survey::default();
        survey.add(vec![lock("a", 1), lock("b", 0), lock("c", 9)], 2);
        survey.add(vec![lock("d", 5), lock("c", 9)], 2);
        let kept: Vec<_> = survey.locks.iter().map(|lock| lock.key.as_str()).collect();
        assert_eq!(kept, ["c", "d"]);
        assert_eq!((survey.locks_seen, survey.contended), (5, 4));
    }

    #[test]
    fn rates_are_per_second() {
        assert_eq!(per_second(10, 30, Duration::from_secs(2)), 10.0);
        assert_eq!(per_second(30, 10, Duration::from_secs(2)), 0.0, "a server that was restarted counts anew");
        assert_eq!(per_second(10, 30, Duration::ZERO), 0.0);
    }
}
