//! Until when a hold can be relied upon, and when it is renewed. Pure: the clock's reading is passed in.
//!
//! The server counts a lease from the moment it executes the request, which is after the request was sent. So counting here from the
//! sending, less a margin for clocks that run at different speeds, ends before the server's count does. What the server is told later (a
//! renewal) can only move the end away.

use std::time::Duration;

use crate::clock::Moment;

/// The part of a span that two machines' clocks are allowed to drift apart while it lasts: 1 %. Quartz clocks drift by less than 0.02 %, a
/// clock that is being slewed by at most 0.05 % (`adjtime`); the rest is for virtual machines.
const DRIFT_DIVISOR: u32 = 100;

/// What is taken off besides, in case both sides round: the wire counts in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// A renewal is due when this part of the lease has passed, so two may fail before the hold is lost.
const RENEWALS_PER_LEASE: u32 = 3;

/// What is due within this part of a span is due together: it comes earlier by up to that much.
const ROUNDS_PER_SPAN: u32 = 64;

/// A span that certainly has not passed for the server when this much of it has passed here.
pub(crate) fn less_margin(span: Duration) -> Duration {
    span.saturating_sub(span / DRIFT_DIVISOR).saturating_sub(ROUNDING)
}

/// What does not change while a hold lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// What each renewal asks for.
    pub(crate) lease: Duration,
    /// How long the hold outlives its connection, if it is bound to one.
    pub(crate) session_grace: Option<Duration>,
    /// Whether the lease is renewed.
    pub(crate) renews: bool,
    /// When the hold ends whatever happens.
    pub(crate) ends_at: Option<Moment>,
}

impl Terms {
    /// The time for which an answer keeps a hold alive whatever its connections do. Nothing can be known in advance of one that ends with
    /// its connection.
    pub(crate) fn effective(&self, left: Duration) -> Duration {
        self.session_grace.filter(|grace| !grace.is_zero()).map_or(left, |grace| left.min(grace))
    }

    /// How long one attempt to renew may take.
    pub(crate) fn attempt(&self) -> Duration {
        self.effective(self.lease) / RENEWALS_PER_LEASE
    }

    /// Whether anything is renewed: the lease, or the binding of a session that outlives its connection.
    fn is_kept(&self) -> bool {
        self.renews || self.session_grace.is_some_and(|grace| !grace.is_zero())
    }
}

/// What to do with a hold now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// It can no longer be relied upon.
    Lose,
    /// Renew it with this lease, in whole milliseconds.
    Renew(Duration),
    /// Look again at this moment.
    Sleep(Moment),
}

/// How long a hold can be relied upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    /// When the last request was sent that was answered.
    sent: Moment,
    lease_ends: Moment,
    deadline: Moment,
    renew_at: Moment,
}

impl Validity {
    /// After an answered ACQUIRE or RENEW. The answer to a RENEW tells what is left at the server, which counts from a moment that is not
    /// before `sent`. It is less than was asked for if somebody has set an EXPIRE on the key.
    pub(crate) fn given(terms: &Terms, sent: Moment, left: Duration) -> Self {
        let effective = terms.effective(left);
        let due = sent.after(terms.effective(left.min(terms.lease)) / RENEWALS_PER_LEASE);
        let step_us = u64::try_from((effective / ROUNDS_PER_SPAN).as_micros()).unwrap_or(u64::MAX);
        // The steps of all spans are powers of two, so that renewals of different holds meet.
        let step = Duration::from_micros(step_us.checked_ilog2().map_or(1, |bits| 1 << bits));
        let ends = |span| sent.after(less_margin(span)).min(terms.ends_at.unwrap_or(Moment::NEVER));
        Self { sent, lease_ends: ends(left), deadline: ends(effective), renew_at: due.rounded_down(step) }
    }

    /// After an answered RENEW. One that was sent earlier than another that was answered says nothing new.
    pub(crate) fn renewed(&mut self, terms: &Terms, sent: Moment, left: Duration) {
        if sent >= self.sent {
            *self = Self::given(terms, sent, left);
        }
    }

    /// When the hold can no longer be relied upon if nothing happens. `is_closed` says whether its connection is known to be.
    pub(crate) fn ends(&self, terms: &Terms, is_closed: bool) -> Moment {
        match terms.session_grace {
            Some(Duration::ZERO) if is_closed => Moment::from_us(0),
            _ => self.deadline,
        }
    }

    /// What a renewal asks for at this moment. A fixed lease, and one that has to end, is not prolonged.
    fn lease_to_ask(&self, terms: &Terms, now: Moment) -> Option<Duration> {
        // Otherwise each renewal, whose end is a margin before this one, would be followed by a shorter one.
        if terms.session_grace.is_none()
            && terms.ends_at.is_some_and(|end| self.deadline.after(terms.attempt() / 8) >= end)
        {
            return None;
        }
        let most = if terms.renews { terms.lease } else { now.until(self.lease_ends) };
        let most = most.min(terms.ends_at.map_or(Duration::MAX, |end| now.until(end)));
        let lease = Duration::from_millis(u64::try_from(most.as_millis()).unwrap_or(u64::MAX));
        (!lease.is_zero()).then_some(lease)
    }

    /// What to do next. No attempt to renew is made before `not_before`.
    pub(crate) fn next_step(&self, terms: &Terms, is_closed: bool, not_before: Moment, now: Moment) -> Step {
        let ends = self.ends(terms, is_closed);
        if now >= ends {
            return Step::Lose;
        }
        let Some(lease) = self.lease_to_ask(terms, now).filter(|_| terms.is_kept()) else { return Step::Sleep(ends) };
        // A session that has lost its connection is bound to the next one at once.
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
        Terms { lease: LEASE, session_grace: None, renews: true, ends_at: None }
    }

    fn step(terms: &Terms, is_closed: bool, ms: u64) -> Step {
        Validity::given(terms, at(0), terms.lease).next_step(terms, is_closed, at(0), at(ms))
    }

    #[test]
    fn hold_ends_before_its_lease_does() {
        let terms = Terms { renews: false, ..terms() };
        assert_eq!(step(&terms, OPEN, 29_697), Step::Sleep(at(29_698)));
        assert_eq!(step(&terms, OPEN, 29_698), Step::Lose);
    }

    #[test]
    fn lease_is_renewed_at_a_third() {
        let Step::Sleep(due) = step(&terms(), OPEN, 0) else { panic!("it is not due yet") };
        assert!((at(9_500)..=at(10_000)).contains(&due), "{due:?}");
        assert_eq!(step(&terms(), OPEN, 10_000), Step::Renew(LEASE));
        let validity = Validity::given(&terms(), at(0), LEASE);
        assert_eq!(validity.next_step(&terms(), OPEN, at(12_000), at(10_000)), Step::Sleep(at(12_000)), "a pause");
    }

    #[test]
    fn session_is_renewed_at_a_third_of_its_grace_and_at_once_when_its_connection_is_lost() {
        let terms = Terms { session_grace: Some(GRACE), ..terms() };
        assert_eq!(step(&terms, OPEN, 1000), Step::Renew(LEASE));
        assert!(matches!(step(&terms, OPEN, 500), Step::Sleep(_)));
        assert_eq!(step(&terms, CLOSED, 500), Step::Renew(LEASE));
        assert_eq!(step(&terms, OPEN, 2968), Step::Lose, "the server may have seen its connection close long ago");
        let fixed = Terms { renews: false, ..terms };
        let Step::Renew(left) = step(&fixed, CLOSED, 500) else { panic!("it is bound anew") };
        assert!(left < LEASE - Duration::from_millis(500), "that prolongs nothing: {left:?}");
    }

    #[test]
    fn session_without_grace_ends_with_its_connection() {
        let terms = Terms { session_grace: Some(Duration::ZERO), ..terms() };
        assert_eq!(step(&terms, CLOSED, 1), Step::Lose);
        assert!(matches!(step(&terms, OPEN, 1), Step::Sleep(_)));
    }

    #[test]
    fn hold_that_has_to_end_is_not_renewed_beyond_that() {
        let terms = Terms { ends_at: Some(at(20_000)), ..terms() };
        let short = Validity::given(&terms, at(0), Duration::from_secs(15));
        assert_eq!(short.next_step(&terms, OPEN, at(0), at(12_000)), Step::Renew(Duration::from_secs(8)));
        assert_eq!(step(&terms, OPEN, 20_000), Step::Lose);
        let mut validity = Validity::given(&terms, at(0), Duration::from_secs(15));
        validity.renewed(&terms, at(12_000), Duration::from_secs(8));
        assert!(
            matches!(validity.next_step(&terms, OPEN, at(0), at(18_000)), Step::Sleep(_)),
            "nothing is left to gain"
        );
    }

    #[test]
    fn expire_on_the_key_brings_the_end_nearer_and_a_late_answer_does_not() {
        let mut validity = Validity::given(&terms(), at(0), LEASE);
        validity.renewed(&terms(), at(1000), Duration::from_secs(5));
        assert_eq!(validity.ends(&terms(), OPEN), at(6000 - 50 - 2));
        validity.renewed(&terms(), at(500), LEASE);
        assert_eq!(validity.ends(&terms(), OPEN), at(6000 - 50 - 2));
    }

    proptest! {
        /// Whatever the server says is left, and however far the clocks drift apart by less than 1 %, the belief ends first.
        #[test]
        fn belief_ends_before_the_server_does(
            lease_ms in 1u64..100_000_000,
            way_ms in 0u64..10_000,
            drift in 0.0f64..0.0099,
        ) {
            let lease = Duration::from_millis(lease_ms);
            let terms = Terms { lease, ..terms() };
            let server_ends = at(way_ms).after(lease.mul_f64(1.0 - drift));
            prop_assert!(Validity::given(&terms, at(0), lease).ends(&terms, OPEN) <= server_ends);
        }
    }
}
