//! A hold: until when it can be relied upon, and how it is renewed; its end is in `held.rs`. The client's keeper looks at it when it is due.

mod held;

use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::Poll;
use std::time::Duration;

use redis::{RedisError, Value};
use tokio_util::task::AbortOnDropHandle;

use crate::Error;
use crate::clock::Moment;
use crate::keeper::{Kept, Place, Question};
use crate::link::Link;
use crate::news::News;
use crate::options::SHORTEST;
use crate::request::{Numbered, Request};
use crate::servers::Line;
use crate::signal::Signal;
use crate::timer::{sleep_until, within};
use crate::validity::{Step, Terms, Validity, patience_for, pause_after_refusal};
use crate::verdict::is_refusal;
use crate::wire;

pub(crate) use held::{Held, fewer_pending_than, fewer_than, fewer_unreleased_than};

/// Whether its key was taken away is listened to when a hold has lived so long.
const LISTENS_AFTER: Duration = Duration::from_secs(1);

/// What RENEW is asked for.
#[derive(Clone, Copy, Debug)]
enum Renewal {
    /// A new lease.
    Lease(Duration),
    /// To bind the hold to the connection, and to let it live for so long, which is less than it should live anyway.
    Binding(Duration),
}

/// What an owner has been granted, as far as this side knows.
pub(crate) struct Hold {
    pub(crate) request: Arc<Request>,
    pub(crate) tokens: Vec<u64>,
    terms: Terms,
    state: Mutex<State>,
    /// Set when the hold can no longer be relied upon, for whatever reason.
    lost: Signal,
    /// Whether somebody has told of the loss.
    is_told_of: AtomicBool,
    /// Set when its release has come to an end, whichever.
    ended: Signal,
    /// How many permits it has, or 1.
    permits: AtomicU32,
    /// Its release, once that has begun.
    release: Numbered,
    /// Held while a renewal is under way, in a task of the home; true once the hold is being released. So no renewal follows a release.
    is_ending: tokio::sync::Mutex<bool>,
    place: Place,
    /// From then on it is worth while to listen to what happens to its keys.
    listens_from: Moment,
}

struct State {
    validity: Validity,
    bound: Bound,
    /// What the keeper has asked for, and has no answer to yet.
    asked: Option<Renewal>,
    /// Whether something has happened to its keys since it was last asked for.
    is_doubted: bool,
    listening: Option<Listening>,
}

/// The connection over which a hold was last granted or renewed. Only one with a session keeps it: the others do not mind when it is closed.
struct Bound {
    link: Weak<Link>,
    kept: Option<Arc<Link>>,
}

impl Bound {
    fn to(terms: &Terms, link: Arc<Link>) -> Self {
        Self { link: Arc::downgrade(&link), kept: terms.session_grace.map(|_| link) }
    }

    fn is_closed(&self) -> bool {
        self.link.upgrade().is_none_or(|link| link.is_closed())
    }
}

/// The task that hears what happens to the keys, and the connection over which it hears it.
struct Listening {
    link: Weak<Link>,
    _task: AbortOnDropHandle<()>,
}

impl State {
    /// Over what somebody has to begin to listen. A new connection has to be listened to anew.
    fn has_to_listen(&self) -> Option<Arc<Link>> {
        let is_new = self.listening.as_ref().is_none_or(|present| !Weak::ptr_eq(&present.link, &self.bound.link));
        self.bound.link.upgrade().filter(|link| is_new && link.may_tell_events() && !link.is_closed())
    }
}

impl Hold {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the hold can be relied upon at this moment. Reads the clock, so it is right also after a suspend.
    pub(crate) fn is_held(&self) -> bool {
        self.is_held_at(Moment::now())
    }

    /// The same, by a clock that was just read.
    fn is_held_at(&self, now: Moment) -> bool {
        if self.lost.is_set() {
            return false;
        }
        let is_held = now < self.ends();
        if !is_held {
            self.lose();
        }
        is_held
    }

    /// When its longest time is over, if it has one.
    pub(crate) fn ends_by(&self) -> Option<Moment> {
        self.terms.ends_at
    }

    /// When it can no longer be relied upon if nothing happens.
    pub(crate) fn ends(&self) -> Moment {
        let state = self.state();
        state.validity.ends(&self.terms, state.bound.is_closed() || self.request.client.home.has_ended())
    }

    /// Whether it can be relied upon, and something is wrong all the same.
    pub(crate) fn is_suspected(&self) -> bool {
        let is_in_doubt = {
            let state = self.state();
            state.bound.is_closed() || state.validity.has_failed()
        };
        is_in_doubt && self.is_held()
    }

    /// The server does not know it any more.
    pub(crate) fn lose(&self) {
        if !self.lost.is_set() && !self.is_told_of.swap(true, Ordering::Relaxed) {
            tracing::warn!(key = %self.key(), token = self.tokens.first(), "a lock was lost");
            self.lost.set();
            self.request.client.metrics().lost(self.request.subject.first_key());
        }
    }

    /// The first key, for a person to read.
    fn key(&self) -> String {
        String::from_utf8_lossy(self.request.subject.first_key()).into_owned()
    }

    /// Resolves when the hold can no longer be relied upon. It needs no keeper for that, and no runtime: it wakes by the clock when the hold
    /// ends, as far as was known when it was last looked at.
    pub(crate) async fn lost(self: Arc<Self>) {
        let mut told = std::pin::pin!(self.lost.wait());
        let mut over = sleep_until(self.ends());
        // Each look at this future looks at the clock: after a stop of the process no timer has gone off yet.
        std::future::poll_fn(|context| {
            if told.as_mut().poll(context).is_ready() || !self.is_held() {
                return Poll::Ready(());
            }
            while Pin::new(&mut over).poll(context).is_ready() {
                // It was renewed meanwhile, or is over.
                if !self.is_held() {
                    return Poll::Ready(());
                }
                over = sleep_until(self.ends());
            }
            Poll::Pending
        })
        .await;
    }

    /// Renews once, trying until `give_up`. Not held means lost.
    ///
    /// Cancel safety: when dropped, the renewal may or may not take place.
    async fn renew(self: &Arc<Self>, renewal: Renewal, give_up: Moment) -> Result<(), Error> {
        let is_ending = self.is_ending.lock().await;
        if *is_ending {
            return Err(Error::NotHeld);
        }
        let outcome = self.ask_to_renew(renewal, give_up).await;
        match &outcome {
            Ok(()) => self.be_looked_at(Moment::now()),
            Err(Error::NotHeld) => self.lose(),
            Err(error) => {
                tracing::warn!(key = %self.key(), %error, "a renewal failed");
                self.state().validity.renewal_failed(Moment::now());
                self.request.client.metrics().renewal_failed(self.request.subject.first_key(), error);
            }
        }
        outcome
    }

    async fn ask_to_renew(&self, renewal: Renewal, give_up: Moment) -> Result<(), Error> {
        let (Renewal::Lease(lease) | Renewal::Binding(lease)) = renewal;
        let patience = patience_for(Moment::now().until(self.ends()));
        let command = self.request.subject.renew(&self.tokens, lease);
        let answered = self.request.call_within(&command, patience, give_up).await?;
        let left = wire::milliseconds(&answered.said.map_err(|error| Error::of_hold(&error))?)?;
        self.renewed(renewal, answered.sent, left, answered.link);
        Ok(())
    }

    fn renewed(&self, renewal: Renewal, sent: Moment, left: Duration, link: Arc<Link>) {
        let mut state = self.state();
        match renewal {
            Renewal::Lease(_) => state.validity.renewed(sent, left),
            Renewal::Binding(_) => state.validity.bound(&self.terms, sent, left),
        }
        state.bound = Bound::to(&self.terms, link);
    }

    /// Renews by hand: with the lease of the hold, or another one. A hold that was lost stays lost: somebody may have heard of it.
    pub(crate) async fn renew_by_hand(self: &Arc<Self>, lease: Option<Duration>) -> Result<(), Error> {
        let now = Moment::now();
        let most = self.terms.lease_to_ask(now).ok_or(Error::NotHeld)?;
        let until_end = |lease: Duration| self.terms.ends_at.map_or(lease, |end| lease.min(now.until(end)));
        let lease = lease.map_or(most, until_end);
        let give_up = self.ends().min(now.after(self.request.client.settings.retry_for));
        tokio::select! {
            biased;
            () = self.clone().lost() => Err(Error::NotHeld),
            outcome = self.renew_at_home(lease, give_up) => outcome,
        }
    }

    /// Renews, but not in the future of whoever asks: while nobody polled that, the keeper could not renew.
    ///
    /// Cancel safety: when dropped, the renewal may or may not take place.
    async fn renew_at_home(self: &Arc<Self>, lease: Duration, give_up: Moment) -> Result<(), Error> {
        let hold = self.clone();
        let renewing = self.request.client.home.start(async move { hold.renew(Renewal::Lease(lease), give_up).await });
        AbortOnDropHandle::new(renewing).await.unwrap_or(Err(Error::RuntimeEnded))
    }

    /// Whether anything is left to be done before somebody may have it.
    pub(crate) fn has_to_be_proven(&self) -> bool {
        self.request.keeping.replicas.is_some() || self.is_old()
    }

    /// Whether its lease counts from so long ago that little of it is left.
    fn is_old(&self) -> bool {
        let state = self.state();
        let step = state.validity.next_step(&self.terms.renewing(), state.bound.is_closed(), Moment::now());
        !matches!(step, Step::Sleep(_) | Step::Bind(_))
    }

    /// An old hold is renewed before anybody has it.
    pub(crate) async fn freshen(self: &Arc<Self>) -> Result<(), Error> {
        if !self.is_old() {
            return Ok(());
        }
        let now = Moment::now();
        let lease = self.terms.lease_to_ask(now).ok_or(Error::NotHeld)?;
        self.renew_at_home(lease, now.after(self.request.client.settings.retry_for)).await
    }

    /// Waits for replicas to have it, if that is asked for.
    pub(crate) async fn replicate(&self) -> Result<(), Error> {
        let Some((wanted, patience)) = self.request.keeping.replicas else { return Ok(()) };
        let acknowledged = self.request.replicate(&self.tokens, wanted, patience).await?;
        if acknowledged >= wanted { Ok(()) } else { Err(Error::Replicas { wanted, acknowledged }) }
    }

    /// Has the keeper look at it when something is to be done.
    fn be_looked_at(self: &Arc<Self>, now: Moment) {
        let keeper = &self.request.client.keeper;
        let (due, link, was_closed) = {
            let state = self.state();
            let is_closed = state.bound.is_closed();
            let due = match state.validity.next_step(&self.terms, is_closed, now) {
                // It does not end unnoticed while an answer is awaited.
                _ if state.asked.is_some() => state.validity.ends(&self.terms, is_closed),
                Step::Sleep(_) if state.is_doubted => now,
                Step::Sleep(until) if state.has_to_listen().is_some() => until.min(self.listens_from.max(now)),
                Step::Sleep(until) => until,
                Step::Lose | Step::Renew | Step::Bind(_) => now,
            };
            (due, state.bound.kept.clone(), is_closed)
        };
        let watched = link.filter(|_| !was_closed);
        if let Some(link) = &watched {
            keeper.watch(link);
        }
        keeper.look_at(self.clone(), due);
        // If it was closed just now, whoever watches may have come by before this one was there.
        if watched.is_some_and(|link| link.is_closed()) {
            keeper.look_at(self.clone(), now);
        }
    }

    /// What is to be done now. `None` if that is nothing for now.
    fn take_step(self: &Arc<Self>, now: Moment) -> Option<Renewal> {
        let mut state = self.state();
        let is_closed = state.bound.is_closed();
        let step = state.validity.next_step(&self.terms, is_closed, now);
        if step == Step::Lose {
            drop(state);
            self.lose();
            return None;
        }
        if state.asked.is_some() {
            return None;
        }
        let renewal = match step {
            // An answer to anything else would not do: the connection may be open, and the lock have moved to another server, for
            // which the session is closed.
            Step::Bind(lease) => Renewal::Binding(lease),
            // Something has happened to the key: a renewal tells what. One for so short a time prolongs nothing.
            Step::Sleep(_) if state.is_doubted => Renewal::Binding(SHORTEST),
            Step::Sleep(_) => {
                if now >= self.listens_from
                    && let Some(link) = state.has_to_listen()
                {
                    let heard_over = Arc::downgrade(&link);
                    let task = self.request.client.home.start(listen(Arc::downgrade(self), link));
                    state.listening = Some(Listening { link: heard_over, _task: AbortOnDropHandle::new(task) });
                }
                return None;
            }
            Step::Lose | Step::Renew => Renewal::Lease(self.terms.lease_to_ask(now).unwrap_or(self.terms.lease)),
        };
        (state.asked, state.is_doubted) = (Some(renewal), false);
        Some(renewal)
    }

    /// Renews without any other hold, again and again while the hold lives. After a refusal it comes back later.
    fn renew_alone(self: Arc<Self>, renewal: Renewal, was_refused: bool) {
        let home = self.request.client.home.clone();
        drop(home.start(async move {
            let ends = self.ends();
            let left = Moment::now().until(ends);
            let pause = if was_refused { pause_after_refusal(left, rand::random()) } else { Duration::ZERO };
            let renewing = async {
                sleep_until(Moment::now().after(pause)).await;
                self.renew(renewal, ends).await
            };
            tokio::select! {
                biased;
                // Whoever releases does not wait for this.
                () = self.lost.wait() => return,
                _ = within(left, renewing) => {}
            }
            self.state().asked = None;
            self.be_looked_at(Moment::now());
        }));
    }
}

/// Hears what happens to the keys of a hold.
async fn listen(hold: Weak<Hold>, link: Arc<Link>) {
    let Some(request) = hold.upgrade().map(|hold| hold.request.clone()) else { return };
    let closed = link.closing().clone();
    let hearing = async {
        let mut news = News::of(&request, link).await;
        while news.come().await {
            let Some(hold) = hold.upgrade() else { return };
            hold.state().is_doubted = true;
            hold.be_looked_at(Moment::now());
        }
    };
    tokio::select! {
        () = closed.cancelled() => {}
        () = hearing => {}
    }
}

impl Kept for Hold {
    fn place(&self) -> &Place {
        &self.place
    }

    fn look(self: Arc<Self>, now: Moment) -> Option<Question> {
        if self.lost.is_set() {
            return None;
        }
        let renewal = self.take_step(now);
        if !self.lost.is_set() {
            self.be_looked_at(Moment::now());
        }
        let renewal = renewal?;
        let is_renewed_by_others = self.is_ending.try_lock().is_err();
        match self.request.client.servers.present(self.request.slot(), Line::Shared) {
            Some(link) if !is_renewed_by_others => {
                let (Renewal::Lease(lease) | Renewal::Binding(lease)) = renewal;
                let command = self.request.subject.renew(&self.tokens, lease);
                let patience = patience_for(now.until(self.ends()));
                let patience = patience.min(self.request.client.settings.response_timeout);
                Some(Question { link, command, patience })
            }
            _ => {
                self.renew_alone(renewal, false);
                None
            }
        }
    }

    fn answered(self: Arc<Self>, sent: Moment, link: &Arc<Link>, answer: Result<Value, RedisError>) {
        let was_refused = answer.as_ref().is_err_and(|error| is_refusal(error, link));
        let left = answer.map_err(|error| Error::of_hold(&error)).and_then(|answer| wire::milliseconds(&answer));
        // What comes after its end does not bring it back: somebody may have been told.
        if !self.is_held() {
            return;
        }
        let Some(renewal) = self.state().asked else { return };
        match left {
            Ok(left) => {
                self.renewed(renewal, sent, left, link.clone());
                self.state().asked = None;
                self.be_looked_at(Moment::now());
            }
            Err(Error::NotHeld) => self.lose(),
            Err(error) => {
                tracing::debug!(key = %self.key(), %error, "a renewal among others failed; it goes on alone");
                self.renew_alone(renewal, was_refused);
            }
        }
    }

    fn ends_with_its_link(&self) -> bool {
        self.terms.session_grace.is_some()
    }
}
