//! A hold: how long it is valid, and how it ends.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::task::Poll;
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::clock::Moment;
use crate::core::Pauses;
use crate::node::Servers;
use crate::owners::Desks;
use crate::release::{Release, Releasing};
use crate::renewal::{Place, Renewed};
use crate::request::Request;
use crate::sync::lock;
use crate::transport::Link;
use crate::validity::{Step, Terms, Validity};
use crate::wire;

/// The longest that a future awaiting a loss sleeps before it reads the clock again: timers stand
/// still while the machine is suspended.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// No renewal was attempted.
const NEVER_RENEWED: Moment = Moment::from_us(0);

/// Why a hold is no longer valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost,
    /// Its client was closed.
    Closed,
}

impl End {
    pub(crate) fn error(self) -> Error {
        if self == Self::Closed { Error::Closed } else { Error::Lost }
    }
}

/// A hold as the client knows it.
pub(crate) struct Hold {
    pub(crate) request: Arc<Request>,
    pub(crate) tokens: Arc<[u64]>,
    /// When it ends, whatever its lease (`options.ends_by` or `max_hold`).
    ends_by: Option<Moment>,
    state: Mutex<State>,
    /// Cancelled when the hold is no longer valid.
    over: CancellationToken,
    /// Cancelled when the release is over, whether it succeeded or not.
    pub(crate) done: CancellationToken,
    /// The queue and holds that requests of a named owner share (`owners.rs`).
    desks: OnceLock<Desks>,
}

struct State {
    terms: Terms,
    validity: Validity,
    /// The connection of the last answer. A hold with a session keeps it open.
    link: Weak<Link>,
    kept: Option<Arc<Link>>,
    place: Place,
    /// No renewal starts before this moment.
    not_before: Moment,
    /// The pauses after failed renewals.
    pauses: Pauses,
    /// The latest renewal failed.
    has_failed: bool,
    /// The number of guards.
    count: usize,
    end: Option<End>,
}

/// The answer that begins a hold.
#[derive(Clone, Copy)]
pub(crate) struct Beginning {
    /// When the request was sent from whose receipt `left` counts.
    pub(crate) sent: Moment,
    pub(crate) left: Duration,
    /// From when `max_hold` and a fixed lease count.
    pub(crate) acquired: Moment,
    /// Whether it ends unless it is renewed within `left`.
    pub(crate) is_unclaimed: bool,
}

impl Hold {
    /// Begins a hold. Returns `None` if it is no longer valid.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a session over a connection whose closing the client cannot notice;
    /// [`Error::Closed`] if the client is closed: then the hold is being released.
    pub(crate) fn begin(
        request: Arc<Request>,
        tokens: Vec<u64>,
        Beginning { sent, left, acquired, is_unclaimed }: Beginning,
        link: &Arc<Link>,
    ) -> Result<Option<Arc<Self>>, Error> {
        let (core, options) = (request.core.clone(), &request.options);
        if options.session_grace.is_some() && !link.tells_its_end() {
            let text = "session_grace needs a connection of the client's own, not a ConnectionManager";
            return Err(Error::Argument(text.to_owned()));
        }
        let ends_by = options.ends_by.or_else(|| options.max_hold.map(|most| acquired.after(most)));
        let fixed_end = (!options.renews).then(|| acquired.after(request.lease));
        let ends_at = ends_by.into_iter().chain(fixed_end).min();
        let terms = Terms { lease: request.lease, session_grace: options.session_grace, ends_at };
        let now = core.now();
        let mut validity = Validity::given(&terms, sent, left);
        if is_unclaimed {
            validity = validity.unclaimed(now);
        }
        if now >= validity.ends() {
            return Ok(None);
        }
        let state = State {
            terms,
            validity,
            link: Arc::downgrade(link),
            kept: options.session_grace.map(|_| link.clone()),
            place: core.renewals.place(),
            not_before: NEVER_RENEWED,
            pauses: Pauses::default(),
            has_failed: false,
            count: 1,
            end: None,
        };
        let hold = Arc::new(Self {
            request,
            tokens: tokens.into(),
            ends_by,
            state: Mutex::new(state),
            over: CancellationToken::new(),
            done: CancellationToken::new(),
            desks: OnceLock::new(),
        });
        hold.look_again(&mut hold.state(), now);
        // Closing ends the registered holds. It may have done that just before this one registered.
        if core.closing.is_cancelled() {
            hold.end(End::Closed);
            return Err(Error::Closed);
        }
        Ok(Some(hold))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }

    fn is_closed(state: &State) -> bool {
        state.link.upgrade().is_none_or(|link| link.is_closed())
    }

    /// How long the hold stays valid without another renewal; zero if it has ended. Ends a hold
    /// whose time is over. It reads the clock, so it is right even after a suspend.
    pub(crate) fn valid_for(self: &Arc<Self>) -> Duration {
        let left = {
            let state = self.state();
            if state.end.is_some() {
                return Duration::ZERO;
            }
            self.request.core.now().until(state.validity.ends())
        };
        if left.is_zero() {
            self.end(End::Lost);
        }
        left
    }

    /// For how long the latest answer made the hold valid.
    pub(crate) fn lease(&self) -> Duration {
        self.state().validity.span()
    }

    pub(crate) fn is_held(self: &Arc<Self>) -> bool {
        !self.valid_for().is_zero()
    }

    /// The number of guards; a lost hold may have some, too.
    pub(crate) fn guards(&self) -> usize {
        self.state().count
    }

    /// Whether the hold may soon be lost.
    pub(crate) fn is_suspected(self: &Arc<Self>) -> bool {
        let is_in_doubt = {
            let state = self.state();
            state.has_failed || Self::is_closed(&state)
        };
        is_in_doubt && self.is_held()
    }

    /// When it ends for good (`options.ends_by` or `max_hold`), if set.
    pub(crate) fn ends_by(&self) -> Option<Moment> {
        self.ends_by
    }

    /// The owner's desks. Registers the hold there, so that other requests of the owner find it.
    pub(crate) fn desks(self: &Arc<Self>) -> &Desks {
        self.desks.get_or_init(|| {
            let desks = self.request.core.owners.desks(&self.request.subject);
            for desk in desks.iter() {
                let mut holds = desk.holds();
                holds.retain(|hold| hold.strong_count() > 0);
                let hold: Weak<Self> = Arc::downgrade(self);
                holds.push(hold);
            }
            desks
        })
    }

    /// Resolves when the hold is no longer valid. Each poll reads the clock, so it depends neither
    /// on the client's task nor on a timer that is late.
    pub(crate) async fn lost(self: Arc<Self>) {
        loop {
            let left = self.valid_for();
            if left.is_zero() {
                return;
            }
            let mut waits = pin!(async {
                tokio::select! {
                    biased;
                    () = self.over.cancelled() => {}
                    () = sleep(left.min(LONGEST_NAP)) => {}
                }
            });
            poll_fn(|context| if self.is_held() { waits.as_mut().poll(context) } else { Poll::Ready(()) }).await;
        }
    }

    /// Resolves when the release is over, or at once if the hold still has guards.
    #[cfg(feature = "blocking")]
    pub(crate) async fn released(self: Arc<Self>) {
        if self.guards() == 0 {
            self.done.cancelled().await;
        }
    }

    /// Ends the hold once. Reports [`End::Lost`]. A lost hold is released, too: without an answer, a
    /// renewal may have extended it on the server.
    pub(crate) fn end(self: &Arc<Self>, end: End) {
        let releasing = {
            let mut state = self.state();
            if state.end.is_some() {
                return;
            }
            self.stop(&mut state, end);
            (end != End::Released).then(|| self.releasing(&state, None))
        };
        // Wakes the futures that await the loss, without holding the lock of the state.
        self.over.cancel();
        // Dropping it starts the release in the background.
        drop(releasing);
        if end == End::Lost {
            tracing::warn!(key = %self.request.key(), token = self.tokens.first(), "a lock was lost");
            self.request.core.meter.count(|metrics| metrics.lost(self.request.subject.first_key()));
        }
    }

    fn stop(&self, state: &mut State, end: End) {
        state.end = Some(end);
        self.request.core.renewals.forget(&state.place);
    }

    fn look_again(self: &Arc<Self>, state: &mut State, now: Moment) {
        if state.end.is_some() {
            return;
        }
        let is_closed = Self::is_closed(state);
        let at = match state.validity.next_step(&state.terms, is_closed, state.not_before, now) {
            Step::Sleep(until) => until,
            Step::Lose | Step::Renew(_) => now,
        };
        self.request.core.renewals.look_at(self.clone(), &mut state.place, at);
    }

    /// Handles the answer to a RENEW. Of all answers only `NOTOWNER` ends the hold; otherwise its
    /// deadline does.
    fn take_answer(self: &Arc<Self>, sent: Moment, link: Option<&Arc<Link>>, said: Result<Value, Error>) {
        let left = said.and_then(|left| wire::milliseconds(&left));
        if left == Err(Error::Lost) {
            return self.end(End::Lost);
        }
        // An answer after the deadline extends nothing.
        if !self.is_held() {
            return;
        }
        let now = self.request.core.now();
        let mut state = self.state();
        let failed = match (left, link) {
            (Ok(left), Some(link)) => {
                let terms = state.terms;
                state.validity.renewed(&terms, sent, left);
                state.link = Arc::downgrade(link);
                state.kept = terms.session_grace.map(|_| link.clone());
                (state.not_before, state.pauses, state.has_failed) = (now, Pauses::default(), false);
                None
            }
            (left, _) => {
                state.not_before = now.after(state.pauses.next());
                state.has_failed = true;
                left.err()
            }
        };
        self.look_again(&mut state, now);
        // The application's metrics may ask the guard.
        drop(state);
        if let Some(error) = failed {
            tracing::debug!(key = %self.request.key(), %error, "a renewal failed");
            self.request.core.meter.count(|metrics| metrics.renewal_failed(self.request.subject.first_key(), &error));
        }
    }

    /// Renews at the caller's request, with the hold's lease or another one, until the server
    /// answers or the hold ends. This moves the end of a fixed lease.
    pub(crate) async fn renew(self: &Arc<Self>, lease: Option<Duration>) -> Result<(), Error> {
        let mut pauses = Pauses::default();
        let renewing = async {
            loop {
                let now = self.request.core.now();
                let end = now.after(lease.unwrap_or(self.request.lease)).min(self.ends_by.unwrap_or(Moment::NEVER));
                let command = self.request.subject.renew(&self.tokens, now.until(end).max(crate::options::SHORTEST));
                let reply = self.request.ask(&command, Duration::MAX).await;
                let outcome = reply.said.as_ref().map(drop).map_err(Clone::clone);
                if let (Ok(()), Some(ends_at)) = (&outcome, &mut self.state().terms.ends_at) {
                    *ends_at = end.max(*ends_at);
                }
                self.take_answer(reply.sent, reply.link.as_ref(), reply.said);
                match outcome {
                    Err(error) if error.is_retryable() => sleep(pauses.next()).await,
                    outcome => return outcome,
                }
            }
        };
        tokio::select! {
            biased;
            () = self.clone().lost() => Err(self.state().end.unwrap_or(End::Lost).error()),
            outcome = renewing => outcome,
        }
    }

    fn releasing(self: &Arc<Self>, state: &State, keep: Option<Duration>) -> Releasing {
        let (now, relied_until) = (self.request.core.now(), state.validity.ends());
        // A renewal without an answer may have extended it; so may a late copy of the ACQUIRE until
        // there is a renewal. While its connection is open, a hold with a session lasts longer than
        // the reliance on it.
        let is_renewing = state.has_failed || state.not_before > now || state.not_before == NEVER_RENEWED;
        let may_outlast = now >= relied_until || is_renewing || state.terms.session_grace.is_some();
        let until = if may_outlast { now.after(state.terms.lease) } else { relied_until };
        let release = Release {
            _hold: self.clone(),
            request: self.request.clone(),
            tokens: self.tokens.clone(),
            desks: self.desks.get().cloned(),
            _kept: state.kept.clone(),
            keep,
            relied_until,
            until,
            done: self.done.clone(),
        };
        Releasing::new(release)
    }

    /// Adds a guard.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if the hold has ended.
    pub(crate) fn enter(self: &Arc<Self>) -> Result<(), Error> {
        let is_held = self.is_held();
        let mut state = self.state();
        if !is_held || state.end.is_some() {
            return Err(Error::Lost);
        }
        state.count += 1;
        Ok(())
    }

    /// Removes a guard. The last one ends the hold and starts the release. With `keep` the lock
    /// then stays closed for that time, unless the hold has ended before.
    pub(crate) fn leave(self: &Arc<Self>, keep: Option<Duration>) -> Result<Option<Releasing>, End> {
        let is_held = self.is_held();
        let (end, releasing) = {
            let mut state = self.state();
            state.count -= 1;
            let end = state.end;
            let is_last = state.count == 0;
            if is_last && end.is_none() {
                self.stop(&mut state, End::Released);
            }
            let releasing = (is_last && end.is_none()).then(|| self.releasing(&state, keep.filter(|_| is_held)));
            (end, releasing)
        };
        match (end, is_held) {
            (None, true) => {
                if releasing.is_some() {
                    self.over.cancel();
                }
                Ok(releasing)
            }
            (end, _) => Err(end.unwrap_or(End::Lost)),
        }
    }
}

impl Renewed for Hold {
    fn look(self: Arc<Self>, now: Moment) -> Option<(Cmd, Duration)> {
        let mut state = self.state();
        if state.end.is_some() {
            return None;
        }
        let is_closed = Self::is_closed(&state);
        let step = state.validity.next_step(&state.terms, is_closed, state.not_before, now);
        let renewal = match step {
            Step::Lose => {
                drop(state);
                self.end(End::Lost);
                return None;
            }
            Step::Renew(lease) => {
                let attempt = state.validity.attempt();
                state.not_before = now.after(attempt.min(self.request.core.common.command_timeout));
                Some((self.request.subject.renew(&self.tokens, lease), attempt))
            }
            Step::Sleep(_) => None,
        };
        self.look_again(&mut state, now);
        renewal
    }

    fn look_if_bound(self: Arc<Self>) {
        if self.request.options.session_grace.is_some() {
            self.look_again(&mut self.state(), self.request.core.now());
        }
    }

    fn close(self: Arc<Self>) {
        self.end(End::Closed);
    }

    fn slot(&self) -> Option<u16> {
        self.request.slot
    }

    fn servers(&self) -> &dyn Servers {
        &*self.request.core.servers
    }

    fn renewed(self: Arc<Self>, sent: Moment, link: Option<&Arc<Link>>, said: Result<Value, Error>) {
        self.take_answer(sent, link, said);
    }

    fn renew_alone(self: Arc<Self>, command: Cmd, within: Duration) {
        tokio::spawn(async move {
            let reply = self.request.ask(&command, within).await;
            self.take_answer(reply.sent, reply.link.as_ref(), reply.said);
        });
    }
}
