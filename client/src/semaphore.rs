//! Semaphores: permits under one key, and what is done to the semaphore itself.

use std::sync::Arc;
use std::time::Duration;

use crate::Error;
use crate::call::Answered;
use crate::client::Client;
use crate::clock::Moment;
use crate::gate::Gate;
use crate::guard::Guard;
use crate::hold::Held;
use crate::identity::unique_owner;
use crate::kind::Permits;
use crate::link::Link;
use crate::lock::Lock;
use crate::observer::{Holder, Observer};
use crate::options::{Options, check_span, holding_methods};
use crate::request::{Grant, Keeping, Request};
use crate::wire::{self, Family, Subject};

/// A number of permits under one key. It stays when nobody holds any: make it once with [`init`](Self::init).
///
/// Whoever takes permits in the name of an [`owner`](Lock::owner) has one request at a time: while it waits for more, it can give none back. Tasks
/// that share one name can wait for each other for ever. Without a name each acquisition has an owner of its own.
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    key: Vec<u8>,
}

impl Client {
    /// A number of permits.
    pub fn semaphore(&self, key: impl AsRef<[u8]>) -> Semaphore {
        Semaphore { client: self.clone(), key: key.as_ref().to_vec() }
    }
}

impl Semaphore {
    /// Makes the semaphore with so many permits if there is none under the key. Returns whether there was none. If the answer is lost it asks
    /// again, and then `false` may also mean the semaphore that it has made itself.
    ///
    /// # Cancel safety
    ///
    /// When dropped, it may or may not take place.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] with `WRONGTYPE` if something else is under the key.
    pub async fn init(&self, permits: u32) -> Result<bool, Error> {
        Ok(self.configure("INIT", permits, None).await? == 1)
    }

    /// [`init`](Self::init) with an idle time: the server deletes the semaphore after `idle` without holders and waiters. A semaphore that
    /// exists gets this idle time, which begins again. `idle` is 0 to 365 days, rounded up to whole milliseconds; 0 removes the idle time.
    ///
    /// After the deletion acquisitions fail with [`Error::NoSemaphore`], until a client calls `init` again.
    ///
    /// # Cancel safety
    ///
    /// As [`init`](Self::init).
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init); [`Error::Argument`] if `idle` is not in its range.
    pub async fn init_with_idle(&self, permits: u32, idle: Duration) -> Result<bool, Error> {
        check_span("idle", idle, Duration::ZERO)?;
        Ok(self.configure("INIT", permits, Some(idle)).await? == 1)
    }

    /// Changes the number of permits. Returns how many are available now, which is negative while more are held than there are.
    ///
    /// # Cancel safety
    ///
    /// When dropped, it may or may not take place.
    ///
    /// # Errors
    ///
    /// [`Error::NoSemaphore`] if there is none.
    pub async fn resize(&self, permits: u32) -> Result<i64, Error> {
        self.configure("RESIZE", permits, None).await
    }

    /// How many permits are free; negative while more are held than there are. `None` if there is no semaphore under the key.
    ///
    /// # Errors
    ///
    /// [`Error::Connection`] if no server answers.
    pub async fn available_permits(&self) -> Result<Option<i64>, Error> {
        let info = self.observe().info().await?;
        info.map(|info| wire::number(wire::field(&info, "available").unwrap_or(&redis::Value::Nil))).transpose()
    }

    /// A look at the semaphore from outside: who holds permits, and who waits.
    pub fn observe(&self) -> Observer {
        self.client.observe(&self.key)
    }

    async fn configure(&self, verb: &str, permits: u32, idle: Option<Duration>) -> Result<i64, Error> {
        let shared = &self.client.shared;
        let command = wire::configure_semaphore(verb, &self.key, permits, idle);
        let slot = shared.slot_of(std::slice::from_ref(&self.key));
        let give_up = Moment::now().after(shared.settings.retry_for);
        let answered = shared.servers.call(slot, &command, shared.settings.response_timeout, give_up).await?;
        wire::number(&answered.said.map_err(|error| Error::from_answer(&error))?)
    }

    /// Permits to acquire, at least 1.
    pub fn permits(&self, permits: u32) -> Lock<Permits> {
        Lock::new(&self.client, &self.key).permits(permits)
    }

    /// Takes all permits that are available: [`draining`](Self::draining) without options.
    ///
    /// # Cancel safety
    ///
    /// As [`Drain::take`].
    ///
    /// # Errors
    ///
    /// As [`Drain::take`].
    pub async fn drain(&self) -> Result<Option<(u32, Guard<Permits>)>, Error> {
        self.draining().take().await
    }

    /// All permits that are available, with the options by which they are taken.
    pub fn draining(&self) -> Drain {
        Drain { client: self.client.clone(), key: self.key.clone(), options: Options::default() }
    }
}

/// All permits of a semaphore that are available.
///
/// They are taken in the name of an owner that nobody else has, and without a session: that the request can be sent twice depends on it.
#[derive(Clone, Debug)]
pub struct Drain {
    client: Client,
    key: Vec<u8>,
    options: Options,
}

impl Drain {
    holding_methods!();

    /// Takes them. Returns how many, with their guard. `None` if there are none, or if somebody waits for them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives back in the background what was taken meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::NoSemaphore`] if there is none.
    pub async fn take(&self) -> Result<Option<(u32, Guard<Permits>)>, Error> {
        self.options.check()?;
        let client = self.client.shared.clone();
        let home = client.home.clone();
        // Whoever closes the client waits for it.
        let _under_way = home.under_way();
        home.check()?;
        let (keys, owner) = (Arc::from([self.key.clone()]), unique_owner().into());
        let subject = Subject { family: Family::Semaphore, keys, owner, permits: 1 };
        let request = Request {
            client,
            subject,
            lease: self.options.lease(),
            gate: Gate::new(None),
            note: None,
            keeping: Keeping {
                renews: self.options.renews(),
                max_hold: self.options.max_hold,
                ends_by: None,
                replicas: None,
            },
        };
        // So that it is never dropped between taking and knowing what was taken.
        let drained = home.run_to_the_end(drain(request)).await?;
        // It may have been closed meanwhile: what was taken is given back.
        home.check()?;
        Ok(drained.map(|held| (held.hold.request.subject.permits, Guard::new(held))))
    }
}

impl Guard<Permits> {
    /// How many permits are held.
    pub fn permits(&self) -> u32 {
        self.held.hold.permits()
    }

    /// Gives back some of the permits, fewer than are held, and keeps the others on the same lease and token.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future leaves the rest to the background.
    ///
    /// # Errors
    ///
    /// [`Error::Argument`] if that were none or all of them, [`Error::NotHeld`] if the hold is gone or ends before a server answers,
    /// [`Error::Superseded`] if another client of the same owner has asked meanwhile: then nobody knows how many are left, and the lease ends them.
    pub async fn release_some(&self, permits: u32) -> Result<(), Error> {
        let hold = self.held.hold.clone();
        let home = hold.request.client.home.clone();
        let releasing = home.run_to_the_end(async move { hold.release_some(permits).await });
        tokio::select! {
            biased;
            outcome = releasing => outcome,
            () = self.lost() => Err(Error::NotHeld),
        }
    }
}

/// What DRAIN has taken, or may have.
struct Taken {
    /// So many permits; not known if it was sent more than once.
    permits: Option<u32>,
    counts_from: Moment,
    link: Arc<Link>,
}

/// DRAIN has no request id. It is safe to send it again because the owner is new: what it holds in the end is what was taken.
async fn drain(mut request: Request) -> Result<Option<Held>, Error> {
    let give_up = Moment::now().after(request.client.settings.retry_for.min(request.lease / 2));
    let answered = request.call(&request.subject.drain(request.lease), give_up).await;
    // Without an answer it may have been executed, and of an earlier copy a refusal says nothing.
    let may_be_done =
        answered.as_ref().map_or_else(|error| matches!(error, Error::Connection { .. }), |answered| answered.is_resent);
    let Taken { permits, counts_from, link } = match answered.and_then(taken_in) {
        Ok(None) => return Ok(None),
        Ok(Some(taken)) => taken,
        Err(error) => {
            if may_be_done {
                give_back_all(request, None);
            }
            return Err(error);
        }
    };
    match own_hold(&request, give_up).await {
        Ok(None) => Ok(None),
        Ok(Some(Holder { token, holds, .. })) => {
            request.subject.permits = holds;
            let lease = request.lease;
            Held::new(Arc::new(request), Grant { tokens: vec![token], counts_from, lease, link }).map(Some)
        }
        Err(error) => {
            give_back_all(request, permits);
            Err(error)
        }
    }
}

/// What an answer to DRAIN says.
fn taken_in(answered: Answered) -> Result<Option<Taken>, Error> {
    let Answered { said, first_sent, is_resent, link, .. } = answered;
    let taken = wire::number(&said.map_err(|error| Error::from_answer(&error))?)?;
    if taken == 0 && !is_resent {
        return Ok(None);
    }
    let permits = u32::try_from(taken).ok().filter(|_| !is_resent);
    Ok(Some(Taken { permits, counts_from: first_sent, link }))
}

/// What the owner of a request holds.
async fn own_hold(request: &Request, give_up: Moment) -> Result<Option<Holder>, Error> {
    let mut command = redis::cmd("RSEMAPHORE.INFO");
    command.arg(&request.subject.keys[0]).arg("OWNER").arg(&request.subject.owner[..]);
    let info = request.call(&command, give_up).await?.said.map_err(|error| Error::from_answer(&error))?;
    let holders = wire::field(&info, "holders").map(Holder::all).transpose()?.unwrap_or_default();
    Ok(holders.into_iter().find(|holder| *holder.owner == *request.subject.owner))
}

/// Gives back in the background what a request took and nobody got: so many permits, if that is known, or all that its owner is found to hold.
fn give_back_all(mut request: Request, permits: Option<u32>) {
    let client = request.client.clone();
    client.home.in_background(async move {
        let give_up = request.end_of_efforts();
        let held = match permits {
            Some(permits) => Ok(Some((permits, Vec::new()))),
            None => own_hold(&request, give_up).await.map(|held| held.map(|held| (held.holds, vec![held.token]))),
        };
        match held {
            Ok(None) => {}
            Ok(Some((permits, tokens))) => {
                request.subject.permits = permits;
                request.give_back(&tokens, give_up).await;
            }
            Err(error) => tracing::warn!(%error, "permits that nobody has may be held until their lease ends"),
        }
    });
}
