//! A hold: how long it is valid, and how it ends.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use redis::{Cmd, Value};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::Error;
use crate::clock::Moment;
use crate::core::Pauses;
use crate::identity::next_id;
use crate::node::Servers;
use crate::owners::{self, Desks, Turn};
use crate::renewal::{Place, Renewed};
use crate::request::Request;
use crate::transport::Link;
use crate::validity::{Step, Terms, Validity};
use crate::wire::{self, Subject};

/// How often a future that awaits a loss reads the clock: timers stand still while the machine is
/// suspended.
const LONGEST_NAP: Duration = Duration::from_secs(1);

/// Why a hold is no longer valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    Released,
    Lost,
    /// Its client was closed.
    Closed,
}

impl End {
    fn error(self) -> Error {
        if self == Self::Closed { Error::Closed } else { Error::Lost }
    }
}

/// A hold as the client knows it.
pub(crate) struct Hold {
    pub(crate) request: Arc<Request>,
    pub(crate) tokens: Vec<u64>,
    terms: Terms,
    state: Mutex<State>,
    /// Cancelled when the hold is no longer valid.
    over: CancellationToken,
    /// Cancelled when the release is over, whether it succeeded or not.
    pub(crate) done: CancellationToken,
    /// Set if other requests may use the same owner.
    desks: std::sync::OnceLock<Desks>,
}

struct State {
    validity: Validity,
    /// The connection of the last answer. A hold with a session keeps it open.
    link: Weak<Link>,
    _kept: Option<Arc<Link>>,
    place: Place,
    not_before: Moment,
    pauses: Pauses,
    has_failed: bool,
    /// The number of guards.
    count: usize,
    end: Option<End>,
    permits: u32,
}

impl Hold {
    /// Begins a hold that the answer to a request sent at `sent` has granted or renewed. `None` if
    /// it is no longer valid.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] for a session over a connection whose closing the client cannot notice.
    pub(crate) fn begin(
        request: Arc<Request>,
        tokens: Vec<u64>,
        sent: Moment,
        left: Option<Duration>,
        link: &Arc<Link>,
    ) -> Result<Option<Held>, Error> {
        let (core, options) = (request.core.clone(), &request.options);
        if options.session_grace.is_some() && !link.tells_its_end() {
            let text = "session_grace needs a connection of the client's own, not a ConnectionManager";
            return Err(Error::Argument(text.to_owned()));
        }
        let ends_at = options.ends_by.or_else(|| options.max_hold.map(|most| sent.after(most)));
        let terms =
            Terms { lease: request.lease, session_grace: options.session_grace, renews: options.renews, ends_at };
        let validity = Validity::given(&terms, sent, left.unwrap_or(request.lease));
        if core.now() >= validity.ends(&terms, link.is_closed()) {
            return Ok(None);
        }
        let state = State {
            validity,
            link: Arc::downgrade(link),
            _kept: terms.session_grace.map(|_| link.clone()),
            place: core.renewals.place(),
            not_before: Moment::from_us(0),
            pauses: Pauses::default(),
            has_failed: false,
            count: 1,
            end: None,
            permits: request.subject.permits,
        };
        let (over, done) = (CancellationToken::new(), CancellationToken::new());
        let hold =
            Arc::new(Self { request, tokens, terms, state: Mutex::new(state), over, done, desks: Default::default() });
        hold.look_again(&mut hold.state(), core.now());
        Ok(Some(Held { hold, is_left: false }))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_closed(state: &State) -> bool {
        state.link.upgrade().is_none_or(|link| link.is_closed())
    }

    fn ends(&self, state: &State) -> Moment {
        state.validity.ends(&self.terms, self.terms.session_grace.is_some() && Self::is_closed(state))
    }

    /// How long the hold stays valid without another renewal; zero if it has ended. Reads the
    /// clock, so it is right after a suspend, too.
    pub(crate) fn valid_for(self: &Arc<Self>) -> Duration {
        let left = {
            let state = self.state();
            if state.end.is_some() {
                return Duration::ZERO;
            }
            self.request.core.now().until(self.ends(&state))
        };
        if left.is_zero() {
            self.end(End::Lost);
        }
        left
    }

    pub(crate) fn is_held(self: &Arc<Self>) -> bool {
        !self.valid_for().is_zero()
    }

    /// Whether it has a guard, even if it is lost.
    pub(crate) fn is_entered(&self) -> bool {
        self.state().count > 0
    }

    /// Whether the hold may soon be lost.
    pub(crate) fn is_suspected(self: &Arc<Self>) -> bool {
        let is_in_doubt = {
            let state = self.state();
            state.has_failed || Self::is_closed(&state)
        };
        is_in_doubt && self.is_held()
    }

    pub(crate) fn permits(&self) -> u32 {
        self.state().permits
    }

    /// When `max_hold` ends it, if that is set.
    pub(crate) fn ends_by(&self) -> Option<Moment> {
        self.terms.ends_at
    }

    /// The owner's desks. Registers the hold there, so that other requests of the owner find it.
    pub(crate) fn desks(self: &Arc<Self>) -> &Desks {
        self.desks.get_or_init(|| {
            let desks = self.request.core.owners.desks(&self.request.subject);
            register(&desks, self);
            desks
        })
    }

    /// Resolves when the hold is no longer valid. Reads the clock itself, so it does not depend on
    /// the client's task.
    pub(crate) async fn lost(self: Arc<Self>) {
        loop {
            let left = self.valid_for();
            if left.is_zero() {
                return;
            }
            tokio::select! {
                biased;
                () = self.over.cancelled() => return,
                () = sleep(left.min(LONGEST_NAP)) => {}
            }
        }
    }

    /// Resolves when the release is over, or at once while it has guards.
    #[cfg(feature = "blocking")]
    pub(crate) async fn released(self: Arc<Self>) {
        if !self.is_entered() {
            self.done.cancelled().await;
        }
    }

    /// Ends the hold, unless it has ended before, and reports a loss.
    pub(crate) fn end(self: &Arc<Self>, end: End) {
        let releasing = {
            let mut state = self.state();
            if state.end.is_some() {
                return;
            }
            self.stop(&mut state, end);
            (end == End::Closed).then(|| self.releasing(&state, None))
        };
        // Wakes the futures that await the loss, without holding the lock of the state.
        self.over.cancel();
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
        let at = match state.validity.next_step(&self.terms, is_closed, state.not_before, now) {
            Step::Sleep(until) => until,
            Step::Lose | Step::Renew(_) => now,
        };
        self.request.core.renewals.look_at(self.clone(), &mut state.place, at);
    }

    /// Handles the answer to a RENEW. Only `NOTOWNER` and the clock end a hold.
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
        match (left, link) {
            (Ok(left), Some(link)) => {
                state.validity.renewed(&self.terms, sent, left);
                state.link = Arc::downgrade(link);
                state._kept = self.terms.session_grace.map(|_| link.clone());
                (state.not_before, state.pauses, state.has_failed) = (now, Pauses::default(), false);
            }
            (left, _) => {
                state.not_before = now.after(state.pauses.next());
                state.has_failed = true;
                if let Err(error) = left {
                    tracing::debug!(key = %self.request.key(), %error, "a renewal failed");
                    self.request
                        .core
                        .meter
                        .count(|metrics| metrics.renewal_failed(self.request.subject.first_key(), &error));
                }
            }
        }
        self.look_again(&mut state, now);
    }

    /// Renews at the caller's request, with the hold's lease or another one, until the server
    /// answers or the hold ends.
    pub(crate) async fn renew(self: &Arc<Self>, lease: Option<Duration>) -> Result<(), Error> {
        let mut pauses = Pauses::default();
        let renewing = async {
            loop {
                let until_end = self.terms.ends_at.map_or(Duration::MAX, |end| self.request.core.now().until(end));
                let lease = lease.unwrap_or(self.terms.lease).min(until_end);
                let command = self.request.subject.renew(&self.tokens, lease.max(crate::options::SHORTEST));
                let reply = self.request.ask(&command, Duration::MAX).await;
                let outcome = reply.said.as_ref().map(drop).map_err(Clone::clone);
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
        let (now, ends) = (self.request.core.now(), self.ends(state));
        let turn = self.desks.get().map(|desks| owners::turn_from_now_on(desks.clone()));
        let is_held = now < ends;
        Releasing {
            hold: self.clone(),
            keep,
            id: None,
            turn: turn.map_or(Awaited::Not, Awaited::Turn),
            // Without a grace, the closing connection may have ended the session, and so may a
            // RELEASE whose reply was lost.
            relied_until: if self.terms.session_grace == Some(Duration::ZERO) { now } else { ends },
            until: if is_held { ends } else { now.after(self.terms.lease) },
            is_repeated: false,
            is_in_background: false,
            token: Some(self.request.core.token()),
        }
    }

    /// Releases some of the permits, and keeps the others.
    async fn release_some(self: Arc<Self>, permits: u32) -> Result<(), Error> {
        let has = self.permits();
        if permits == 0 || permits >= has {
            return Err(Error::Argument(format!(
                "permits is {permits}; expected 1 to less than the {has} that are held"
            )));
        }
        let release = self.request.subject.release(&self.tokens, permits, 0, next_id());
        let mut pauses = Pauses::default();
        while self.is_held() {
            let error = match self.request.ask(&release, Duration::MAX).await.said {
                Ok(_) => {
                    self.state().permits -= permits;
                    return Ok(());
                }
                Err(error) => error,
            };
            if !error.is_retryable() {
                if error.ends_a_hold() {
                    self.end(End::Lost);
                }
                return Err(error);
            }
            sleep(pauses.next()).await;
        }
        Err(Error::Lost)
    }
}

impl Renewed for Hold {
    fn look(self: Arc<Self>, now: Moment) -> Option<(Cmd, Duration)> {
        let mut state = self.state();
        if state.end.is_some() {
            return None;
        }
        let is_closed = Self::is_closed(&state);
        let step = state.validity.next_step(&self.terms, is_closed, state.not_before, now);
        let renewal = match step {
            Step::Lose => {
                drop(state);
                self.end(End::Lost);
                return None;
            }
            Step::Renew(lease) => {
                let attempt = self.terms.attempt();
                state.not_before = now.after(attempt.min(self.request.core.common.command_timeout));
                Some((self.request.subject.renew(&self.tokens, lease), attempt))
            }
            Step::Sleep(_) => None,
        };
        self.look_again(&mut state, now);
        renewal
    }

    fn look_if_bound(self: Arc<Self>) {
        if self.terms.session_grace.is_some() {
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

/// One guard's share of a hold. Dropping it releases in the background.
pub(crate) struct Held {
    pub(crate) hold: Arc<Hold>,
    is_left: bool,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hold = &self.hold;
        f.debug_struct("Held").field("key", &hold.request.key()).field("tokens", &hold.tokens).finish_non_exhaustive()
    }
}

impl Held {
    /// A re-entry. The server does not count it, only the client does.
    pub(crate) fn again(hold: &Arc<Hold>) -> Result<Self, Error> {
        if !hold.is_held() {
            return Err(Error::Lost);
        }
        hold.state().count += 1;
        Ok(Self { hold: hold.clone(), is_left: false })
    }

    /// Releases the hold if this is its last guard. With `keep` the lock stays closed for that
    /// time.
    ///
    /// Cancel safety: if the future is dropped, the release goes on in the background.
    #[tracing::instrument(level = "debug", skip_all, fields(key = %self.hold.request.key()))]
    pub(crate) async fn release(mut self, keep: Option<Duration>) -> Result<(), Error> {
        let is_only = self.hold.state().count == 1;
        let releasing = self.leave(keep.filter(|_| is_only));
        match releasing {
            Ok(Some(mut releasing)) => releasing.run().await?,
            Ok(None) => {}
            Err(end) => return Err(end.error()),
        }
        match keep {
            Some(_) if !is_only => {
                Err(Error::Argument("keep needs the only guard of a hold; others keep the lock".to_owned()))
            }
            _ => Ok(()),
        }
    }

    /// Removes one guard. The last one ends the hold and starts the release.
    fn leave(&mut self, keep: Option<Duration>) -> Result<Option<Releasing>, End> {
        let hold = &self.hold;
        if std::mem::replace(&mut self.is_left, true) {
            return Ok(None);
        }
        let is_held = hold.is_held();
        let (end, releasing) = {
            let mut state = hold.state();
            state.count -= 1;
            let end = state.end;
            let is_last = state.count == 0;
            if is_last && end.is_none() {
                hold.stop(&mut state, End::Released);
            }
            // A hold that the client's clock has ended may still live on the server.
            let releasing =
                (is_last && end != Some(End::Closed)).then(|| hold.releasing(&state, keep.filter(|_| is_held)));
            (end, releasing)
        };
        match (end, is_held) {
            (None, true) => {
                if releasing.is_some() {
                    hold.over.cancel();
                }
                Ok(releasing)
            }
            (end, _) => Err(end.unwrap_or(End::Lost)),
        }
    }

    /// Gives up the hold without releasing it: it lives until its lease expires.
    pub(crate) fn detach(mut self) {
        self.is_left = true;
        self.hold.end(End::Released);
        self.hold.done.cancel();
    }

    pub(crate) fn release_some(&self, permits: u32) -> impl Future<Output = Result<(), Error>> + Send + use<> {
        let hold = self.hold.clone();
        let token = hold.request.core.token();
        // Partial releases run one after the other, and before the final one.
        let turn = owners::turn_from_now_on(hold.desks().clone());
        // In its own task: if the caller dropped it half-way, the number of remaining permits would
        // be unknown.
        let home = hold.request.core.common.home.clone();
        let task = home.spawn(async move {
            let _token = token;
            let _turn = turn.await;
            hold.release_some(permits).await
        });
        async move { task.await.unwrap_or(Err(Error::Closed)) }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        drop(self.leave(None));
    }
}

enum Awaited {
    Not,
    Turn(std::pin::Pin<Box<dyn Future<Output = Turn> + Send>>),
    Had { _turn: Turn },
}

/// A release in progress. If it is dropped, it goes on in the background.
pub(crate) struct Releasing {
    hold: Arc<Hold>,
    keep: Option<Duration>,
    /// Assigned when its turn comes.
    id: Option<u64>,
    turn: Awaited,
    /// Before this moment, only an earlier copy of the RELEASE, if there was one, can have ended
    /// the hold.
    relied_until: Moment,
    until: Moment,
    is_repeated: bool,
    is_in_background: bool,
    /// `None` when the release is over.
    token: Option<TaskTrackerToken>,
}

impl Releasing {
    async fn run(&mut self) -> Result<(), Error> {
        if let Awaited::Turn(turn) = &mut self.turn {
            let turn = turn.await;
            self.turn = Awaited::Had { _turn: turn };
        }
        let outcome = self.ask().await;
        self.turn = Awaited::Not;
        self.token = None;
        self.hold.done.cancel();
        let request = &self.hold.request;
        request.core.meter.count(|metrics| metrics.released(request.subject.first_key(), outcome.as_ref().err()));
        outcome
    }

    async fn ask(&mut self) -> Result<(), Error> {
        let request = self.hold.request.clone();
        let id = *self.id.get_or_insert_with(next_id);
        let keep_ms = self.keep.map_or(0, wire::ms);
        let release = request.subject.release(&self.hold.tokens, self.hold.permits(), keep_ms, id);
        let mut pauses = Pauses::default();
        loop {
            let left = request.core.now().until(self.until);
            if left.is_zero() {
                return Err(Error::unavailable("no answer to the release before the lease ended"));
            }
            let reply = request.ask(&release, left).await;
            let Err(error) = reply.said else { return Ok(()) };
            let is_done = self.is_repeated && request.core.now() < self.relied_until;
            if !error.is_retryable() && request.subject.family == wire::Family::Many {
                // An earlier copy has released all keys or none.
                let held = request.release_each(&self.hold.tokens).await;
                return if is_done && held == 0 { Ok(()) } else { Err(error) };
            }
            if error.ends_a_hold() {
                return if is_done { Ok(()) } else { Err(Error::Lost) };
            }
            if error.code() == "ERR" && self.keep.take().is_some() {
                // Another client holds the lock for the same owner, so only this client's count
                // remains to be released.
                self.id = None;
                return Box::pin(self.ask()).await.and(Err(error));
            }
            if !error.is_retryable() {
                // A newer request of this owner has the hold.
                return if error.code() == "STALE" { Ok(()) } else { Err(error) };
            }
            self.is_repeated |= error.is_lost_reply() && reply.link.is_some();
            sleep(pauses.next().min(left)).await;
        }
    }
}

impl Drop for Releasing {
    fn drop(&mut self) {
        let Some(token) = self.token.take() else { return };
        if self.is_in_background {
            // The runtime has stopped.
            self.hold.done.cancel();
            return;
        }
        let turn = std::mem::replace(&mut self.turn, Awaited::Not);
        let mut rest = Self { hold: self.hold.clone(), turn, token: Some(token), is_in_background: true, ..*self };
        drop(self.hold.request.core.common.home.spawn(async move {
            match rest.run().await {
                Ok(()) => {}
                Err(Error::Lost) => tracing::debug!(key = %rest.hold.request.key(), "the lock of a dropped guard was no longer held"),
                Err(error) => {
                    tracing::warn!(key = %rest.hold.request.key(), %error, "could not release a lock; its lease ends the hold");
                }
            }
        }));
    }
}

/// Registers a hold, so that later requests of its owner find it.
fn register(desks: &Desks, hold: &Arc<Hold>) {
    for desk in desks.iter() {
        let mut holds = desk.holds();
        holds.retain(|hold| hold.strong_count() > 0);
        let hold: Weak<Hold> = Arc::downgrade(hold);
        holds.push(hold);
    }
}

/// Re-enters a hold that the owner already has on exactly these keys, in this mode.
///
/// # Errors
///
/// [`Error::Lost`] if that hold was lost, [`Error::Argument`] if the owner holds only some of the
/// keys, or another number of permits.
pub(crate) fn reenter(desks: &Desks, subject: &Subject) -> Result<Option<Held>, Error> {
    let mut found = None;
    for desk in desks.iter() {
        let holds: Vec<_> = desk.holds().iter().filter_map(Weak::upgrade).collect();
        for hold in holds.into_iter().filter_map(|hold| hold.downcast::<Hold>().ok()) {
            let present = &hold.request.subject;
            let is_other_mode = present.family.is_shared_lock() && present.family != subject.family;
            if is_other_mode || !hold.is_entered() {
                continue;
            }
            if present.keys != subject.keys || present.permits != subject.permits || present.family != subject.family {
                let keys: Vec<_> = present.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
                return Err(Error::Argument(format!(
                    "owner holds {keys:?} with {} permits already; expected a request for the same, or another owner",
                    present.permits
                )));
            }
            found = Some(hold);
        }
    }
    match found {
        None => Ok(None),
        Some(hold) => Held::again(&hold).map(Some),
    }
}
