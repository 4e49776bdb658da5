//! Until when a hold can be relied upon, and what its keeper does next. Pure: the clock's reading is passed in.
//!
//! The server counts a lease from the moment it executes the request, which is after the request was sent. So counting here from
//! the sending, less a margin for clocks that run at different speeds, ends before the server's count does. What the
//! server is told later (a renewal) can only move the end away.

use std::time::Duration;

use crate::clock::Moment;

/// The part of a span that two machines' clocks are allowed to drift apart while it lasts: 1 %. Quartz clocks drift by less than
/// 0.02 %, a clock that is being slewed by at most 0.05 % (`adjtime`); the rest is for virtual machines.
const DRIFT_DIVISOR: u32 = 100;

/// What is taken off besides, in case both sides round: the wire counts in whole milliseconds.
const ROUNDING: Duration = Duration::from_millis(2);

/// A renewal is due when this part of the lease is over, so two may fail before the hold is lost.
const RENEWALS_PER_LEASE: u32 = 3;

/// A renewal comes earlier by up to this part of that time, at random: guards that were given together do not stay in step.
const JITTER: f64 = 0.1;

/// How long to pause after a renewal that failed for another reason than the loss of the hold.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// A renewal is answered within this part of what is left of the hold, or its connection counts as dead: there is time for another one.
const ANSWERS_PER_REST: u32 = 3;

/// A connection is not given up for the sake of one hold before this time.
const LEAST_PATIENCE: Duration = Duration::from_millis(250);

/// How long an answer to a renewal may take when the hold can be relied upon for so long.
pub(crate) fn patience_for(left: Duration) -> Duration {
    (left / ANSWERS_PER_REST).max(LEAST_PATIENCE)
}

/// The longest pause after a renewal that the server has refused for now. What it is asked it has to refuse: of thousands of guards that is a load.
const LONGEST_PAUSE_AFTER_REFUSAL: Duration = Duration::from_millis(500);

/// The pause after a renewal that the server has refused for now, if the hold can be relied upon for so long: there is time for many more.
/// `random` is from 0 to 1.
pub(crate) fn pause_after_refusal(left: Duration, random: f64) -> Duration {
    (left / 8).min(LONGEST_PAUSE_AFTER_REFUSAL).mul_f64(1.0 - random / 2.0)
}

/// When to renew a lease, from its beginning. `random` is from 0 to 1.
pub(crate) fn renewal_after(lease: Duration, random: f64) -> Duration {
    (lease / RENEWALS_PER_LEASE).mul_f64(1.0 - JITTER * random)
}

/// What is due within this part of a span is due together: it comes earlier by up to that much.
const ROUNDS_PER_SPAN: u32 = 64;

/// When something is due together with others. The steps of all spans are powers of two, so that those of different holds meet.
fn together(due: Moment, span: Duration) -> Moment {
    let step_us = u64::try_from((span / ROUNDS_PER_SPAN).as_micros()).unwrap_or(u64::MAX);
    due.rounded_down(Duration::from_micros(step_us.checked_ilog2().map_or(1, |bits| 1 << bits)))
}

/// A span that certainly has not passed for the server when this much of it has passed here.
pub(crate) fn less_margin(span: Duration) -> Duration {
    span.saturating_sub(span / DRIFT_DIVISOR).saturating_sub(ROUNDING)
}

/// What does not change while a hold lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// What each renewal asks for.
    pub(crate) lease: Duration,
    /// How long after a renewal the next one is due.
    pub(crate) renewal_after: Duration,
    /// How long the hold outlives its connection, if it is bound to one.
    pub(crate) session_grace: Option<Duration>,
    /// Whether the keeper renews.
    pub(crate) renews: bool,
    /// When the hold ends whatever happens.
    pub(crate) ends_at: Option<Moment>,
}

impl Terms {
    /// The same for a hold that is renewed whoever does it.
    pub(crate) fn renewing(self) -> Self {
        Self { renews: true, ..self }
    }

    /// Whether it has a session with a grace.
    fn outlives_its_link(&self) -> bool {
        self.session_grace.is_some_and(|grace| !grace.is_zero())
    }

    /// What a renewal asks for at this moment: the lease, or what is left until the hold has to end. `None` when nothing is left.
    pub(crate) fn lease_to_ask(&self, now: Moment) -> Option<Duration> {
        let left = self.ends_at.map_or(Duration::MAX, |end| now.until(end));
        // The wire has whole milliseconds, and 0 is not a lease.
        let lease = Duration::from_millis(u64::try_from(self.lease.min(left).as_millis()).unwrap_or(u64::MAX));
        (!lease.is_zero()).then_some(lease)
    }
}

/// What the keeper does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// The hold can no longer be relied upon.
    Lose,
    /// Renew it now, which also binds it to the present connection.
    Renew,
    /// Bind it to the present connection once more. It should live for so long without another connection, or to the end of its lease:
    /// a server that has taken it over has cut its lease down to the grace.
    Bind(Duration),
    /// Look again at this moment.
    Sleep(Moment),
}

/// How long a hold can be relied upon.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Validity {
    /// The end of the lease as counted here.
    lease_ends: Moment,
    /// When the last successful request was sent that gave a lease.
    given_at: Moment,
    /// When the last request was sent that bound it to its connection: the server had both then.
    bound_at: Moment,
    /// What was left of its lease then.
    left_when_bound: Duration,
    /// No renewal is tried before this, after one that failed.
    not_before: Moment,
}

impl Validity {
    /// After a request that was sent at `sent` and gave a lease.
    pub(crate) fn given(sent: Moment, lease: Duration) -> Self {
        Self {
            lease_ends: sent.after(less_margin(lease)),
            given_at: sent,
            bound_at: sent,
            left_when_bound: lease,
            not_before: sent,
        }
    }

    /// After a renewal that told what is left at the server. The server counts from a moment that is not before `sent`, so counting from that is
    /// never too much. The end comes nearer if somebody has set an EXPIRE on the key; else by no more than the renewal was under way.
    pub(crate) fn renewed(&mut self, sent: Moment, left: Duration) {
        self.note_binding(sent, left);
        self.given_at = self.given_at.max(sent);
        if sent.after(left) < self.lease_ends {
            self.shortened(sent, left);
        } else {
            self.lease_ends = self.lease_ends.max(sent.after(less_margin(left)));
        }
    }

    /// No more is relied upon than the server said is left: somebody may have set an EXPIRE on the key.
    fn shortened(&mut self, sent: Moment, left: Duration) {
        self.lease_ends = self.lease_ends.min(sent.after(less_margin(left)));
    }

    /// After a request that bound it once more, or asked for nothing, and told what is left of its lease at the server.
    pub(crate) fn bound(&mut self, terms: &Terms, sent: Moment, left: Duration) {
        self.note_binding(sent, left);
        // With a session the server may have cut the lease down to the grace, which each binding prolongs.
        if !terms.outlives_its_link() {
            self.shortened(sent, left);
        }
    }

    fn note_binding(&mut self, sent: Moment, left: Duration) {
        (self.bound_at, self.left_when_bound, self.not_before) = (sent, left, sent);
    }

    /// A renewal failed without an answer that says that the hold is gone.
    pub(crate) fn renewal_failed(&mut self, now: Moment) {
        self.not_before = now.after(RETRY_PAUSE);
    }

    /// Whether a renewal has failed since the last one that did not.
    pub(crate) fn has_failed(&self) -> bool {
        self.not_before > self.bound_at
    }

    /// When the hold can no longer be relied upon, if nothing happens. `is_closed` says whether its connection is known to be.
    pub(crate) fn ends(&self, terms: &Terms, is_closed: bool) -> Moment {
        let by_lease = self.lease_ends.min(terms.ends_at.unwrap_or(self.lease_ends));
        match terms.session_grace {
            // Nothing can be known in advance of a hold that ends with its connection.
            Some(Duration::ZERO) if !is_closed => by_lease,
            Some(grace) => by_lease.min(self.bound_at.after(less_margin(grace.min(self.left_when_bound)))),
            None => by_lease,
        }
    }

    /// What the keeper does next.
    pub(crate) fn next_step(&self, terms: &Terms, is_closed: bool, now: Moment) -> Step {
        let ends = self.ends(terms, is_closed);
        if now >= ends {
            return Step::Lose;
        }
        let mut wake = ends;
        if let Some(grace) = terms.session_grace.filter(|_| is_closed) {
            if now >= self.not_before {
                // A hold that is not renewed does not live longer for having lost its connection.
                return if terms.renews { Step::Renew } else { self.bind(grace, now) };
            }
            wake = wake.min(self.not_before);
        }
        if terms.renews && terms.lease_to_ask(now).is_some() {
            let due = self.renewal_due(terms).max(self.not_before);
            if now >= due {
                return Step::Renew;
            }
            wake = wake.min(due);
        }
        if let Some(grace) = terms.session_grace.filter(|grace| !grace.is_zero() && !is_closed) {
            let due = together(self.bound_at.after(grace / RENEWALS_PER_LEASE), grace).max(self.not_before);
            if now >= due {
                return self.bind(grace, now);
            }
            wake = wake.min(due);
        }
        Step::Sleep(wake)
    }

    /// No longer than its lease, which this does not prolong.
    fn bind(&self, grace: Duration, now: Moment) -> Step {
        Step::Bind(grace.min(now.until(self.lease_ends)))
    }

    /// A hold that has to end anyway is not renewed beyond that.
    fn renewal_due(&self, terms: &Terms) -> Moment {
        match terms.ends_at {
            Some(end) if self.lease_ends >= end => Moment::NEVER,
            _ => together(self.given_at.after(terms.renewal_after), terms.lease),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const LEASE: Duration = Duration::from_secs(30);

    fn at(ms: u64) -> Moment {
        Moment::from_us(1_000_000_000 + ms * 1000)
    }

    fn terms() -> Terms {
        Terms {
            lease: LEASE,
            renewal_after: renewal_after(LEASE, 0.0),
            session_grace: None,
            renews: true,
            ends_at: None,
        }
    }

    /// What is known of the connection.
    const OPEN: bool = false;
    const CLOSED: bool = true;

    #[test]
    fn a_hold_ends_before_its_lease_does() {
        let validity = Validity::given(at(0), LEASE);
        assert_eq!(validity.ends(&terms(), OPEN), at(30_000 - 300 - 2));
        assert_eq!(validity.next_step(&terms(), OPEN, at(29_698)), Step::Lose);
        assert_ne!(validity.next_step(&terms(), OPEN, at(29_697)), Step::Lose);
    }

    #[test]
    fn it_is_renewed_every_third_of_the_lease_and_again_after_a_failure() {
        let mut validity = Validity::given(at(0), LEASE);
        let due = together(at(10_000), LEASE);
        assert_eq!(validity.next_step(&terms(), OPEN, at(9_500)), Step::Sleep(due));
        assert_eq!(validity.next_step(&terms(), OPEN, due), Step::Renew);
        assert!(!validity.has_failed());
        validity.renewal_failed(at(11_000));
        assert!(validity.has_failed());
        assert_eq!(validity.next_step(&terms(), OPEN, at(11_000)), Step::Sleep(at(11_100)));
        assert_eq!(validity.next_step(&terms(), OPEN, at(11_100)), Step::Renew);
        validity.renewed(at(12_000), LEASE);
        assert!(!validity.has_failed());
        assert_eq!(validity.next_step(&terms(), OPEN, at(21_500)), Step::Sleep(together(at(22_000), LEASE)));
        assert_eq!(validity.ends(&terms(), OPEN), at(12_000 + 29_698));
    }

    /// By hand it may be asked again at once.
    #[test]
    fn a_renewal_is_forgiven_its_failure_by_the_next_one_however_soon_that_comes() {
        let mut validity = Validity::given(at(0), LEASE);
        validity.renewal_failed(at(1_000));
        validity.renewed(at(1_001), LEASE);
        assert!(!validity.has_failed());
        let (terms, soon) = (Terms { session_grace: Some(LEASE), ..terms() }, at(1_002));
        assert_eq!(
            validity.next_step(&terms, CLOSED, soon),
            Step::Renew,
            "nothing has failed over the next connection"
        );
    }

    #[test]
    fn what_is_due_at_about_the_same_time_is_due_together_and_not_much_earlier() {
        let mut moments = std::collections::BTreeSet::new();
        for ms in (0..10_000).step_by(7) {
            let (due, half) = (together(at(ms), LEASE), together(at(ms), LEASE / 2));
            assert!(due <= at(ms) && due.until(at(ms)) <= LEASE / ROUNDS_PER_SPAN);
            assert!(half >= due, "a hold on a shorter lease is due less early");
            moments.insert(due);
        }
        assert!(moments.len() < 50, "{} moments", moments.len());
        assert_eq!(together(at(7), Duration::from_micros(3)), at(7), "there is a shortest step");
    }

    #[test]
    fn without_renewal_it_is_only_watched() {
        let terms = Terms { renews: false, ..terms() };
        let validity = Validity::given(at(0), LEASE);
        assert_eq!(validity.next_step(&terms, OPEN, at(20_000)), Step::Sleep(at(29_698)));
    }

    #[test]
    fn a_session_is_bound_every_third_of_its_grace_and_relied_on_only_as_long_as_it_would_outlive_a_silent_close() {
        let terms = Terms { session_grace: Some(Duration::from_millis(300)), ..terms() };
        let mut validity = Validity::given(at(0), LEASE);
        let grace = Duration::from_millis(300);
        assert_eq!(validity.next_step(&terms, OPEN, at(90)), Step::Sleep(together(at(100), grace)));
        assert_eq!(validity.next_step(&terms, OPEN, at(100)), Step::Bind(grace));
        assert_eq!(validity.next_step(&terms, OPEN, at(295)), Step::Lose);
        validity.bound(&terms, at(100), LEASE - Duration::from_millis(100));
        assert_eq!(validity.next_step(&terms, OPEN, at(190)), Step::Sleep(together(at(200), grace)));
        assert_eq!(validity.ends(&terms, OPEN), at(100 + 300 - 3 - 2));
    }

    #[test]
    fn a_lease_that_the_server_has_cut_down_is_not_relied_on_and_a_given_one_not_prolonged() {
        let grace = Duration::from_secs(3);
        let terms = Terms { session_grace: Some(grace), renews: false, ..terms() };
        let mut validity = Validity::given(at(0), LEASE);
        validity.bound(&terms, at(1_000), Duration::from_secs(2));
        assert_eq!(validity.ends(&terms, OPEN), at(1_000 + 2_000 - 20 - 2));
        validity.bound(&terms, at(28_000), Duration::from_secs(3));
        assert_eq!(validity.next_step(&terms, OPEN, at(29_000)), Step::Bind(Duration::from_millis(698)));
        assert_eq!(validity.ends(&terms, OPEN), at(29_698));
    }

    /// Without a session it is an EXPIRE that ends the hold. The lease of a session may have been cut down to the grace, which each binding gives anew.
    #[test]
    fn what_a_binding_says_is_left_shortens_all_but_a_session_that_outlives_its_connection() {
        let left = Duration::from_secs(2);
        for (session_grace, ends) in [
            (None, 1_000 + 1_978),
            (Some(Duration::ZERO), 1_000 + 1_978),
            (Some(Duration::from_secs(3)), 2_000 + 1_978),
        ] {
            let terms = Terms { session_grace, ..terms() };
            let mut validity = Validity::given(at(0), LEASE);
            validity.bound(&terms, at(1_000), left);
            validity.bound(&terms, at(2_000), left);
            assert_eq!(validity.ends(&terms, OPEN), at(ends), "{session_grace:?}");
        }
    }

    #[test]
    fn what_an_expire_leaves_is_relied_on_and_no_more() {
        let mut validity = Validity::given(at(0), LEASE);
        validity.renewed(at(1_000), Duration::from_secs(2));
        assert_eq!(validity.ends(&terms(), OPEN), at(1_000 + 2_000 - 20 - 2));
        validity.renewed(at(2_000), LEASE);
        assert_eq!(validity.ends(&terms(), OPEN), at(2_000 + 29_698), "a PERSIST has ended it");
        validity.shortened(at(3_000), Duration::from_secs(1));
        assert_eq!(validity.ends(&terms(), OPEN), at(3_000 + 1_000 - 10 - 2));
        validity.renewed(at(3_100), Duration::from_secs(20));
        assert_eq!(validity.ends(&terms(), OPEN), at(3_100 + 20_000 - 200 - 2));
    }

    #[test]
    fn binding_puts_off_no_renewal() {
        let mut validity = Validity::given(at(0), LEASE);
        validity.bound(&terms(), at(9_000), Duration::from_secs(21));
        assert_eq!(validity.next_step(&terms(), OPEN, at(10_000)), Step::Renew);
    }

    #[test]
    fn a_closed_connection_is_replaced_at_once_and_without_renewal_prolongs_nothing() {
        let grace = Duration::from_millis(300);
        let terms = Terms { session_grace: Some(grace), renews: false, ..terms() };
        let mut validity = Validity::given(at(50), LEASE);
        assert_eq!(validity.next_step(&terms.renewing(), CLOSED, at(60)), Step::Renew);
        assert_eq!(validity.next_step(&terms, CLOSED, at(60)), Step::Bind(grace));
        validity.renewal_failed(at(70));
        assert_eq!(validity.next_step(&terms, CLOSED, at(70)), Step::Sleep(at(170)));
        let no_grace = Terms { session_grace: Some(Duration::ZERO), ..terms };
        assert_eq!(validity.next_step(&no_grace, CLOSED, at(60)), Step::Lose);
        assert_eq!(
            validity.next_step(&no_grace, OPEN, at(60)),
            Step::Sleep(at(50 + 29_698)),
            "there is nothing to bind"
        );
    }

    #[test]
    fn nothing_is_asked_for_beyond_the_end_of_a_hold() {
        let terms = Terms { ends_at: Some(at(35_000)), ..terms() };
        let mut validity = Validity::given(at(0), LEASE);
        assert_eq!(terms.lease_to_ask(at(10_000)), Some(Duration::from_secs(25)));
        validity.renewed(at(10_000), Duration::from_secs(25));
        assert_eq!(terms.lease_to_ask(at(35_000)), None);
        validity.renewed(at(34_900), LEASE);
        assert_eq!(validity.ends(&terms, OPEN), at(35_000));
        assert_eq!(validity.next_step(&terms, OPEN, at(34_950)), Step::Sleep(at(35_000)));
        assert_eq!(validity.next_step(&terms, OPEN, at(35_000)), Step::Lose);
    }

    #[test]
    fn a_hold_that_has_to_end_is_renewed_until_its_lease_reaches_that_end() {
        let terms = Terms { ends_at: Some(at(100_000)), ..terms() };
        let mut validity = Validity::given(at(0), LEASE);
        assert_eq!(validity.next_step(&terms, OPEN, at(10_000)), Step::Renew);
        validity.renewed(at(10_000), Duration::from_secs(120));
        assert_eq!(validity.next_step(&terms, OPEN, at(90_000)), Step::Sleep(at(100_000)));
    }

    #[test]
    fn the_spans_of_a_renewal_leave_time_for_another_one() {
        let ms = Duration::from_millis;
        assert_eq!([0.0, 1.0].map(|random| renewal_after(LEASE, random)), [ms(10_000), ms(9_000)]);
        assert_eq!([ms(30_000), ms(300)].map(patience_for), [ms(10_000), LEAST_PATIENCE]);
        for (left, longest) in [(60_000, 500), (800, 100)] {
            let pauses = [0.0, 0.5, 1.0].map(|random| pause_after_refusal(ms(left), random));
            assert_eq!(pauses, [ms(longest), ms(longest) * 3 / 4, ms(longest) / 2]);
        }
    }

    proptest! {
        /// The server counts from any moment after the sending, on a clock that may be faster by as much as clocks drift. What is relied on here
        /// has ended when it has ended there.
        #[test]
        fn it_ends_here_before_it_ends_there(
            requests in prop::collection::vec((0u64..10_000, 0u64..500, 3u64..60_000), 1..20),
            drift_per_mille in 0u64..9,
        ) {
            let mut now_us = 0u64;
            let mut there_ends_us = 0u64;
            let mut here: Option<Validity> = None;
            let terms = Terms { lease: LEASE, renewal_after: renewal_after(LEASE, 0.0), session_grace: None, renews: true, ends_at: None };
            for (pause_ms, delay_ms, lease_ms) in requests {
                now_us += pause_ms * 1000;
                let (sent, lease) = (Moment::from_us(now_us), Duration::from_millis(lease_ms));
                now_us += delay_ms * 1000;
                // In the time of this side's clock, the server's lease is shorter by the drift.
                there_ends_us = there_ends_us.max(now_us + lease_ms * (1000 - drift_per_mille));
                match &mut here {
                    Some(validity) => validity.renewed(sent, lease),
                    None => here = Some(Validity::given(sent, lease)),
                }
                let there_ends = Moment::from_us(there_ends_us);
                prop_assert!(here.as_ref().is_some_and(|validity| validity.ends(&terms, OPEN) <= there_ends));
            }
        }
    }
}
