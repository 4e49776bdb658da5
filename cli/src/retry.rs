//! Retries while no server can be reached, as during a failover or a restart.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use crate::exit::{Failure, UNREACHABLE, complain};

/// How long to retry without `--wait`. A failover takes a few seconds, a restart the time to load
/// the data.
const WITHOUT_WAIT: Duration = Duration::from_secs(30);

/// The pause before the next attempt.
const PAUSE: Duration = Duration::from_millis(100);

/// Repeats an attempt while it fails because no server can be reached: until the deadline, or
/// without one for 30 s after the first failure. Prints the first failure to standard error.
///
/// # Errors
///
/// Those of the last attempt.
pub(crate) async fn until_reached<T>(
    deadline: Option<Instant>,
    mut attempt: impl AsyncFnMut() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut give_up = None;
    loop {
        let failure = match attempt().await {
            Err(failure) if failure.status == UNREACHABLE => failure,
            outcome => return outcome,
        };
        let is_first = give_up.is_none();
        let give_up = *give_up.get_or_insert_with(|| deadline.unwrap_or_else(|| Instant::now() + WITHOUT_WAIT));
        let left = give_up.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(failure);
        }
        if is_first {
            complain(&format!("{}; retrying for {} s", failure.message, left.as_secs_f32().ceil()));
        }
        sleep(PAUSE.min(left)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::REFUSED;

    /// The exit status of the outcome, and the time that it took.
    async fn outcome_of(deadline: Option<Duration>, statuses: &[u8]) -> (u8, Duration) {
        let (started, mut statuses) = (Instant::now(), statuses.iter());
        let attempt = async || statuses.next().map_or(Ok(()), |status| Err(Failure::new(*status, "")));
        let outcome = until_reached(deadline.map(|deadline| started + deadline), attempt).await;
        (outcome.err().map_or(0, |failure| failure.status), started.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn unreachable_server_is_tried_again_until_the_deadline() {
        let second = Duration::from_secs(1);
        assert_eq!(outcome_of(Some(second), &[UNREACHABLE, UNREACHABLE]).await, (0, 2 * PAUSE));
        assert_eq!(outcome_of(Some(second), &[UNREACHABLE; 100]).await, (UNREACHABLE, second));
        assert_eq!(outcome_of(Some(second), &[UNREACHABLE, REFUSED]).await, (REFUSED, PAUSE));
        assert_eq!(outcome_of(Some(Duration::ZERO), &[UNREACHABLE]).await, (UNREACHABLE, Duration::ZERO));
        assert_eq!(outcome_of(None, &[UNREACHABLE; 1000]).await, (UNREACHABLE, WITHOUT_WAIT));
    }
}
