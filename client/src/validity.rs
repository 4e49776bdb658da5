//! How long a hold is valid, and when to renew it. These are pure functions: the caller passes the
//! current time.
//!
//! The server counts a lease from the moment it executes the request, which is after the client
//! sent it. So the client counts from the sending, less a margin for clocks that run at different
//! speeds, and stops trusting the hold before the lease expires on the server. A later request,
//! such as a renewal, can only move the server's deadline further away.

use std::time::Duration;

use crate::clock::Moment;

/// How far the clocks of two machines may drift apart during a lease: 1 % of it. Quartz clocks
/// drift by less than 0.02 %, and slewing (`adjtime`) adds at most 0.05 %; the rest is for virtual
/// machines.
const DRIFT_DIVISOR: u32 = 100;

/// An extra margin in case both sides round: commands carry whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// A renewal is due after a third of the lease, so two may fail before the hold is lost.
const RENEWALS_PER_LEASE: u32 = 3;

/// Renewals that are due within a 64th of a lease run together, so a renewal may be up to that much
/// early.
const ROUNDS_PER_SPAN: u32 = 64;

/// How long after its grant a new hold is claimed by its first renewal.
const CLAIMED_AFTER: Duration = Duration::from_millis(50);

/// Claims that are due within this time run together.
const CLAIMED_TOGETHER: Duration = Duration::from_micros(1 << 13);

/// A time a little shorter than `span`. When it has passed on this machine's clock, `span` has not
/// passed on the server's.
pub(crate) fn less_margin(span: Duration) -> Duration {
    span.saturating_sub(span / DRIFT_DIVISOR).saturating_sub(ROUNDING)
}

/// The terms that the requests for a hold ask for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// The lease that each renewal requests.
    pub(crate) lease: Duration,
    /// How long the hold outlives its connection, if it is bound to one.
    pub(crate) session_grace: Option<Duration>,
    /// When the hold ends, whatever its renewals.
    pub(crate) ends_at: Option<Moment>,
}

impl Terms {
    /// How long an answer keeps a hold valid even if its connection closes right after.
    fn effective(&self, left: Duration) -> Duration {
        self.session_grace.map_or(left, |grace| left.min(grace))
    }
}

/// The next action for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The hold is no longer valid.
    Lose,
    /// Renew it with this lease, in whole milliseconds.
    Renew(Duration),
    /// Check again at this moment.
    Sleep(Moment),
}

/// How long a hold is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    /// When the latest answered request was sent.
    sent: Moment,
    /// For how long it made the hold valid.
    span: Duration,
    deadline: Moment,
    renew_at: Moment,
    /// The time limit for one attempt to renew.
    attempt: Duration,
}

impl Validity {
    /// After the answer to an ACQUIRE or RENEW. The server answers with the time left, counted from a
    /// moment not before `sent`. It is less than requested if the server allows only shorter leases,
    /// or an EXPIRE was set on the key.
    pub(crate) fn given(terms: &Terms, sent: Moment, left: Duration) -> Self {
        let effective = terms.effective(left);
        let attempt = effective.min(terms.lease) / RENEWALS_PER_LEASE;
        let step_us = u64::try_from((effective / ROUNDS_PER_SPAN).as_micros()).unwrap_or(u64::MAX);
        // All steps are powers of two, so that renewals of different holds coincide.
        let step = Duration::from_micros(step_us.checked_ilog2().map_or(1, |bits| 1 << bits));
        let ends = sent.after(less_margin(effective)).min(terms.ends_at.unwrap_or(Moment::NEVER));
        Self { sent, span: effective, deadline: ends, renew_at: sent.after(attempt).rounded_down(step), attempt }
    }

    /// The same for a new hold, which lasts only until its claim has passed. A hold that is released
    /// soon needs no renewal, so the first one is not sent at once.
    pub(crate) fn unclaimed(self, now: Moment) -> Self {
        let left = now.until(self.deadline) / RENEWALS_PER_LEASE;
        let renew_at = now.after(left.min(CLAIMED_AFTER)).rounded_down(CLAIMED_TOGETHER);
        Self { renew_at, attempt: left.min(self.attempt), ..self }
    }

    /// After the answer to a RENEW. Does nothing if the answer to a later RENEW came first.
    pub(crate) fn renewed(&mut self, terms: &Terms, sent: Moment, left: Duration) {
        if sent >= self.sent {
            *self = Self::given(terms, sent, left);
        }
    }

    /// For how long the latest answer made the hold valid, counted from the sending of its request.
    pub(crate) fn span(&self) -> Duration {
        self.span
    }

    /// When the hold becomes invalid without further renewals.
    pub(crate) fn ends(&self) -> Moment {
        self.deadline
    }

    /// The time limit for one attempt to renew.
    pub(crate) fn attempt(&self) -> Duration {
        self.attempt
    }

    /// The lease that a renewal requests now. It does not go beyond `ends_at`.
    fn lease_to_ask(&self, terms: &Terms, now: Moment) -> Option<Duration> {
        // A renewal near `ends_at` gains next to nothing, and without this check each would be
        // followed by another, shorter one.
        let gain = self.attempt / 8 + ROUNDING * 2;
        if terms.session_grace.is_none() && terms.ends_at.is_some_and(|end| self.deadline.after(gain) >= end) {
            return None;
        }
        let most = terms.lease.min(terms.ends_at.map_or(Duration::MAX, |end| now.until(end)));
        let lease = Duration::from_millis(u64::try_from(most.as_millis()).unwrap_or(u64::MAX));
        (!lease.is_zero()).then_some(lease)
    }

    /// The next action. No renewal starts before `not_before`. `is_closed` says whether the client
    /// knows that its connection has closed.
    pub(crate) fn next_step(&self, terms: &Terms, is_closed: bool, not_before: Moment, now: Moment) -> Step {
        let ends = self.ends();
        if now >= ends {
            return Step::Lose;
        }
        let Some(lease) = self.lease_to_ask(terms, now) else { return Step::Sleep(ends) };
        // Bind a session that has lost its connection to the next one at once.
        let due = if is_closed && terms.session_grace.is_some() { not_before } else { self.renew_at.max(not_before) };
        if now >= due { Step::Renew(lease) } else { Step::Sleep(ends.min(due)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEASE: Duration = Duration::from_secs(30);
    const GRACE: Duration = Duration::from_secs(3);
    const OPEN: bool = false;
    const CLOSED: bool = true;

    fn at(ms: u64) -> Moment {
        Moment::from_us(1_000_000_000 + ms * 1000)
    }

    fn terms() -> Terms {
        Terms { lease: LEASE, session_grace: None, ends_at: None }
    }

    fn given(terms: &Terms, left: Duration) -> Validity {
        Validity::given(terms, at(0), left)
    }

    fn step(terms: &Terms, is_closed: bool, ms: u64) -> Step {
        given(terms, terms.lease).next_step(terms, is_closed, at(0), at(ms))
    }

    #[test]
    fn hold_ends_before_its_lease() {
        let terms = Terms { ends_at: Some(at(30_000)), ..terms() };
        assert_eq!(step(&terms, OPEN, 29_697), Step::Sleep(at(29_698)));
        assert_eq!(step(&terms, OPEN, 29_698), Step::Lose);
    }

    #[test]
    fn lease_is_renewed_after_a_third() {
        let Step::Sleep(due) = step(&terms(), OPEN, 0) else { panic!("the renewal is not due yet") };
        assert!((at(9_500)..=at(10_000)).contains(&due), "{due:?}");
        assert_eq!(step(&terms(), OPEN, 10_000), Step::Renew(LEASE));
        let validity = given(&terms(), LEASE);
        assert_eq!(validity.next_step(&terms(), OPEN, at(12_000), at(10_000)), Step::Sleep(at(12_000)), "a pause");
    }

    #[test]
    fn session_is_renewed_after_a_third_of_its_grace_or_when_its_connection_closes() {
        let terms = Terms { session_grace: Some(GRACE), ..terms() };
        assert_eq!(step(&terms, OPEN, 1000), Step::Renew(LEASE));
        assert!(matches!(step(&terms, OPEN, 500), Step::Sleep(_)));
        assert_eq!(step(&terms, CLOSED, 500), Step::Renew(LEASE));
        assert_eq!(step(&terms, OPEN, 2968), Step::Lose, "the server may have closed the connection long ago");
        let fixed = Terms { ends_at: Some(at(30_000)), ..terms };
        let Step::Renew(left) = step(&fixed, CLOSED, 500) else { panic!("the session must be bound again") };
        assert!(left <= LEASE - Duration::from_millis(500), "a fixed lease is not extended: {left:?}");
    }

    #[test]
    fn renewals_do_not_exceed_max_hold() {
        let terms = Terms { ends_at: Some(at(20_000)), ..terms() };
        let short = given(&terms, Duration::from_secs(15));
        assert_eq!(short.next_step(&terms, OPEN, at(0), at(12_000)), Step::Renew(Duration::from_secs(8)));
        assert_eq!(step(&terms, OPEN, 20_000), Step::Lose);
        let mut validity = given(&terms, Duration::from_secs(15));
        validity.renewed(&terms, at(12_000), Duration::from_secs(8));
        assert!(
            matches!(validity.next_step(&terms, OPEN, at(0), at(18_000)), Step::Sleep(_)),
            "a renewal would gain nothing"
        );
    }

    #[test]
    fn expire_on_the_key_shortens_validity_and_a_late_answer_is_ignored() {
        let mut validity = given(&terms(), LEASE);
        validity.renewed(&terms(), at(1000), Duration::from_secs(5));
        assert_eq!(validity.ends(), at(6000 - 50 - 2));
        validity.renewed(&terms(), at(500), LEASE);
        assert_eq!(validity.ends(), at(6000 - 50 - 2));
    }

    #[test]
    fn fixed_lease_is_renewed_only_if_the_server_allows_less() {
        for lease_ms in [10, 30, 100, 500, 2000, 30_000, 3_600_000] {
            let lease = Duration::from_millis(lease_ms);
            let terms = Terms { lease, ends_at: Some(at(lease_ms)), ..terms() };
            let step = |ms| given(&terms, lease).next_step(&terms, OPEN, at(0), at(ms));
            for ms in 0..lease_ms.min(2000) {
                assert!(!matches!(step(ms), Step::Renew(_)), "{lease_ms} ms, after {ms} ms");
            }
        }
        let terms = Terms { ends_at: Some(at(30_000)), ..terms() };
        let mut validity = given(&terms, Duration::from_secs(3));
        assert_eq!(validity.next_step(&terms, OPEN, at(0), at(1000)), Step::Renew(LEASE - Duration::from_secs(1)));
        validity.renewed(&terms, at(28_000), Duration::from_millis(2000));
        assert_eq!(validity.ends(), at(30_000 - 20 - 2));
        assert_eq!(validity.next_step(&terms, OPEN, at(0), at(29_500)), Step::Sleep(at(30_000 - 20 - 2)));
    }

    #[test]
    fn new_hold_is_claimed_soon_and_well_before_its_claim_has_passed() {
        let claimed_at = |sent, left, now| {
            let new = Validity::given(&terms(), at(sent), Duration::from_millis(left)).unclaimed(at(now));
            match new.next_step(&terms(), OPEN, at(0), at(now)) {
                Step::Sleep(due) => at(now).until(due).as_millis(),
                Step::Renew(LEASE) => 0,
                step => panic!("{step:?}"),
            }
        };
        assert!((40..=50).contains(&claimed_at(0, 2000, 1)));
        assert!((40..=50).contains(&claimed_at(0, 12_000, 10_100)), "after a wait of 10 s");
        assert!((10..=20).contains(&claimed_at(0, 102_000, 100_918)), "60 ms before its deadline");
        assert!(claimed_at(0, 12_000, 11_877) <= 1);
        // Two more attempts fit in.
        let new = Validity::given(&terms(), at(0), Duration::from_secs(2)).unclaimed(at(100));
        assert!((Duration::from_millis(600)..=Duration::from_millis(640)).contains(&new.attempt()));
    }

    proptest! {
        /// For any time left that the server answers, and any clock drift below 1 %, the client's
        /// validity ends first.
        #[test]
        fn validity_ends_before_the_lease_does_on_the_server(
            lease_ms in 1u64..100_000_000,
            way_ms in 0u64..10_000,
            drift in 0.0f64..0.0099,
        ) {
            let lease = Duration::from_millis(lease_ms);
            let terms = Terms { lease, ..terms() };
            let server_ends = at(way_ms).after(lease.mul_f64(1.0 - drift));
            prop_assert!(given(&terms, lease).ends() <= server_ends);
        }
    }
}
