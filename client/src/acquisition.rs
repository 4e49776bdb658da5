//! One acquisition, whatever its kind: an attempt, a wait, and the last steps before the hold is in somebody's hands.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::call::Pauses;
use crate::clock::Moment;
use crate::gate::Gate;
use crate::hold::{Held, Hold};
use crate::identity::unique_owner;
use crate::options::{Options, SHORTEST};
use crate::request::{Keeping, Request};
use crate::shared::Shared;
use crate::timer::{sleep_until, sleep_until_some};
use crate::waiter::{self, LATE};
use crate::wire::{Family, Subject};

/// One acquisition, whatever its kind.
pub(crate) struct Acquisition {
    request: Arc<Request>,
}

impl Acquisition {
    pub(crate) fn new(
        client: &Arc<Shared>,
        family: Family,
        keys: Arc<[Vec<u8>]>,
        permits: u32,
        options: &Options,
    ) -> Result<Self, Error> {
        options.check()?;
        if permits == 0 {
            return Err(Error::Argument("permits is 0, and must be at least 1".to_owned()));
        }
        let (owner, gate) = match &options.owner {
            Some(owner) => {
                let gate = client.gates.of((family, keys.clone(), owner.clone()), options.session_grace)?;
                (owner.clone(), gate)
            }
            None => (unique_owner().into(), Gate::new(options.session_grace)),
        };
        Ok(Self::through(gate, client, Subject { family, keys, owner, permits }, options))
    }

    /// The same, in the name of an owner that nobody else knows, whatever the options say of owners.
    pub(crate) fn by_unique_owner(
        client: &Arc<Shared>,
        family: Family,
        keys: Arc<[Vec<u8>]>,
        owner: Arc<[u8]>,
        options: &Options,
    ) -> Result<Self, Error> {
        options.check()?;
        let subject = Subject { family, keys, owner, permits: 1 };
        Ok(Self::through(Gate::new(options.session_grace), client, subject, options))
    }

    fn through(gate: Arc<Gate>, client: &Arc<Shared>, subject: Subject, options: &Options) -> Self {
        let request = Request {
            client: client.clone(),
            subject,
            lease: options.lease(),
            gate,
            note: options.note.clone(),
            keeping: Keeping {
                renews: options.renews(),
                max_hold: options.max_hold,
                ends_by: None,
                replicas: options.replicas,
            },
        };
        Self { request: Arc::new(request) }
    }

    /// Another acquisition by the owner of a hold, on the same terms.
    pub(crate) fn by_owner_of(hold: &Hold, family: Family) -> Result<Self, Error> {
        let first = &hold.request;
        let subject = Subject { family, ..first.subject.clone() };
        let gate = match first.subject.family == family {
            true => first.gate.clone(),
            false => {
                // From there it may be looked for by the way back.
                first.share_gate();
                let key = (family, subject.keys.clone(), subject.owner.clone());
                first.client.gates.of(key, first.gate.session_grace)?
            }
        };
        // The server is to forget it as soon as this side does. It takes no lease of nothing.
        let ends_by = hold.ends_by();
        let lease = ends_by.map_or(first.lease, |end| first.lease.min(Moment::now().until(end))).max(SHORTEST);
        let request = Request {
            client: first.client.clone(),
            subject,
            lease,
            gate,
            note: first.note.clone(),
            keeping: Keeping { ends_by, ..first.keeping },
        };
        Ok(Self { request: Arc::new(request) })
    }

    /// How long what it is granted outlives its connection.
    pub(crate) fn session_grace(&self) -> Option<Duration> {
        self.request.gate.session_grace
    }

    /// A hold of the same owner that nobody keeps.
    pub(crate) async fn take_over(&self, tokens: Vec<u64>) -> Result<Held, Error> {
        let home = &self.request.client.home;
        let _under_way = home.under_way();
        home.check()?;
        let give_up = Moment::now().after(self.request.client.settings.retry_for);
        let grant = self.request.take_over(tokens, give_up).await?;
        let held = Held::new(self.request.clone(), grant)?;
        if let Err(error) = home.check() {
            // It stays whose it was.
            held.leave();
            return Err(error);
        }
        // Nobody renews one that is over by now.
        if held.hold.is_held() { Ok(held) } else { Err(Error::NotHeld) }
    }

    /// One attempt.
    pub(crate) async fn try_acquire(&self) -> Result<Option<Held>, Error> {
        let started = Moment::now();
        let outcome = self.try_once().await;
        self.count(started, outcome.as_ref().map(Option::is_some));
        outcome
    }

    /// Lets it be counted.
    fn count(&self, started: Moment, outcome: Result<bool, &Error>) {
        let (metrics, key) = (self.request.client.metrics(), self.request.subject.first_key());
        let after = started.until(Moment::now());
        match outcome {
            Ok(true) => metrics.acquired(key, after),
            Ok(false) => metrics.refused(key),
            Err(error) => metrics.failed(key, error, after),
        }
    }

    async fn try_once(&self) -> Result<Option<Held>, Error> {
        let home = &self.request.client.home;
        // Whoever closes the client waits for it.
        let _under_way = home.under_way();
        home.check()?;
        let give_up = Moment::now().after(self.request.client.settings.retry_for);
        let Some(grant) = self.request.try_once(give_up).await? else { return Ok(None) };
        let held = self.hand_out(Held::new(self.request.clone(), grant)?).await?;
        // It may have been closed meanwhile: what was granted is given back.
        home.check()?;
        Ok(Some(held))
    }

    /// Waits until it is granted.
    ///
    /// It ends in time also if no server answers; what was asked is taken back then as if the future had been dropped.
    pub(crate) async fn acquire(&self, deadline: Option<Moment>) -> Result<Held, Error> {
        let started = Moment::now();
        let outcome = self.acquire_in_time(deadline).await;
        self.count(started, outcome.as_ref().map(|_| true));
        outcome
    }

    async fn acquire_in_time(&self, deadline: Option<Moment>) -> Result<Held, Error> {
        let home = &self.request.client.home;
        let _under_way = home.under_way();
        home.check()?;
        let mut acquiring = std::pin::pin!(self.acquire_until(deadline));
        let held = tokio::select! {
            biased;
            outcome = &mut acquiring => outcome?,
            () = sleep_until_some(deadline.map(|deadline| deadline.after(LATE))) => return Err(Error::Timeout),
            () = home.closing() => return Err(Error::Closed),
        };
        // It may have been closed before the grant was looked at: it is given back.
        home.check()?;
        Ok(held)
    }

    async fn acquire_until(&self, deadline: Option<Moment>) -> Result<Held, Error> {
        let retry_for = self.request.client.settings.retry_for;
        let (mut failing_since, mut pauses) = (None, Pauses::new());
        loop {
            let started = Moment::now();
            let outcome = match waiter::wait(&self.request, deadline).await {
                Ok(grant) => self.hand_out(Held::new(self.request.clone(), grant)?).await,
                Err(error) => Err(error),
            };
            // A hold that has to end after a time of its own is not asked for again.
            if self.request.keeping.max_hold.is_some() || !matches!(outcome, Err(Error::NotHeld)) {
                return outcome;
            }
            // Who waits goes on waiting, unless the network is always slower than the lease is long. A failure after a long wait says nothing of that: it
            // is the first one.
            let now = Moment::now();
            if started.until(now) >= retry_for {
                (failing_since, pauses) = (None, Pauses::new());
            }
            if failing_since.get_or_insert(now).until(now) >= retry_for {
                return outcome;
            }
            tracing::debug!("the lease ended before the grant was heard of; asking again");
            // Others get their turn. They are granted it as soon as this one waits again.
            sleep_until(now.after(pauses.next())).await;
        }
    }

    /// The last steps before a hold is in somebody's hands. If one fails, the hold is released.
    async fn hand_out(&self, held: Held) -> Result<Held, Error> {
        if !held.hold.has_to_be_proven() {
            return Ok(held);
        }
        Box::pin(self.prove(held)).await
    }

    async fn prove(&self, held: Held) -> Result<Held, Error> {
        let proven = async {
            held.hold.replicate().await?;
            held.hold.freshen().await?;
            // It may have ended meanwhile: what is renewed then is of no use to anybody.
            if held.hold.is_held() { Ok(()) } else { Err(Error::NotHeld) }
        };
        match proven.await {
            Ok(()) => Ok(held),
            Err(error) => {
                if let Err(error) = held.release().await {
                    tracing::debug!(%error, "a hold that could not be proven was not released");
                }
                Err(error)
            }
        }
    }
}
