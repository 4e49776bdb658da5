//! Semaphores: several permits under one key.

use std::sync::Arc;
use std::time::Duration;

use redis::Cmd;
use tokio::time::sleep;

use crate::Error;
use crate::acquire::Wanted;
use crate::client::Client;
use crate::core::{Core, Pauses, Reply};
use crate::guard::Guard;
use crate::hold::{Held, Hold};
use crate::identity::next_id;
use crate::kinds::Permits;
use crate::lock::Lock;
use crate::observer::{Holder, Observer};
use crate::options::{Options, check_span, holding_methods};
use crate::request::Request;
use crate::wire::{self, Family};

/// Several permits under one key. A semaphore exists also while no permit is held: create it once
/// with [`init`](Self::init).
///
/// Each acquisition has its own owner, unless the caller sets one with [`owner`](Lock::owner). If
/// that owner acquires the same number of permits again, this is a re-entry and takes no permits.
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    key: Vec<u8>,
}

impl Client {
    /// A semaphore.
    pub fn semaphore(&self, key: impl AsRef<[u8]>) -> Semaphore {
        Semaphore { client: self.clone(), key: key.as_ref().to_vec() }
    }
}

impl Semaphore {
    /// Creates the semaphore with this many permits. Returns false, and changes nothing, if it
    /// exists. After a lost reply the client retries; then `false` may also mean that the first
    /// copy created it.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request may or may not be executed.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with `WRONGTYPE` if the key holds something else.
    pub async fn init(&self, permits: u32) -> Result<bool, Error> {
        Ok(self.configure("INIT", permits, None).await? == 1)
    }

    /// As [`init`](Self::init), with an idle time: the server deletes the semaphore after `idle`
    /// without holders and waiters. An existing semaphore gets this idle time, which starts anew.
    /// `idle` is 0 to 365 days, rounded up to whole milliseconds; 0 removes the idle time.
    ///
    /// After the deletion acquisitions fail with [`Error::Refused`] with `NOSEMAPHORE`, until a
    /// client calls `init` again.
    ///
    /// # Cancel safety
    ///
    /// As [`init`](Self::init).
    ///
    /// # Errors
    ///
    /// As [`init`](Self::init); [`Error::Argument`] if `idle` is out of range.
    pub async fn init_with_idle(&self, permits: u32, idle: Duration) -> Result<bool, Error> {
        check_span("idle", idle, Duration::ZERO)?;
        Ok(self.configure("INIT", permits, Some(idle)).await? == 1)
    }

    /// Changes the number of permits. Returns how many are available now; negative while more are
    /// held than exist.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, the request may or may not be executed.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with `NOSEMAPHORE` if there is no semaphore.
    pub async fn resize(&self, permits: u32) -> Result<i64, Error> {
        self.configure("RESIZE", permits, None).await
    }

    /// How many permits are available; negative while more are held than exist. `None` if there is
    /// no semaphore on the key.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no server answers.
    pub async fn available_permits(&self) -> Result<Option<i64>, Error> {
        let info = self.observe().info().await?;
        info.map(|info| wire::number(wire::field(&info, "available").unwrap_or(&redis::Value::Nil))).transpose()
    }

    /// Observes the semaphore: its holders and waiters, and how to take permits away.
    pub fn observe(&self) -> Observer {
        self.client.observe(&self.key)
    }

    async fn configure(&self, verb: &str, permits: u32, idle: Option<Duration>) -> Result<i64, Error> {
        let command = wire::configure_semaphore(verb, &self.key, permits, idle);
        wire::number(&self.client.core.request(std::slice::from_ref(&self.key), &command).await?)
    }

    /// A lock that acquires this many permits at once, at least 1.
    pub fn permits(&self, permits: u32) -> Lock<Permits> {
        Lock::new(&self.client, &self.key).permits(permits)
    }

    /// Takes all available permits, as [`draining`](Self::draining) without options.
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

    /// A request for all available permits, to which options can be added.
    pub fn draining(&self) -> Drain {
        Drain { client: self.client.clone(), wanted: Wanted::one(Family::Semaphore, &self.key) }
    }
}

/// A request for all available permits of a semaphore.
///
/// It uses a new owner and no session, so that it can safely be sent twice.
#[derive(Clone, Debug)]
pub struct Drain {
    client: Client,
    wanted: Wanted,
}

impl Drain {
    fn options_mut(&mut self) -> &mut Options {
        &mut self.wanted.options
    }

    holding_methods!();

    /// Takes all available permits. Returns their number and a guard. `None` if no permit is
    /// available, or others are waiting.
    ///
    /// # Cancel safety
    ///
    /// If the future is dropped, permits taken meanwhile are released in the background.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with `NOSEMAPHORE` if there is no semaphore.
    pub async fn take(&self) -> Result<Option<(u32, Guard<Permits>)>, Error> {
        self.wanted.check()?;
        let core = &self.client.core;
        let token = core.enter()?;
        let subject = self.wanted.by(core.id.next_owner().into());
        let request = Request::new(core, subject, &self.wanted.options).await;
        // In its own task: it must not be dropped between taking permits and learning how many.
        let (taking, core) = (drain(request), core.clone());
        let home = core.common.home.clone();
        let task = home.spawn(async move {
            let taken = taking.await;
            // If the client was closed meanwhile, the permits are released, and closing waits for
            // that.
            let outcome =
                taken.and_then(|taken| if core.closing.is_cancelled() { Err(Error::Closed) } else { Ok(taken) });
            drop(token);
            outcome
        });
        let taken = task.await.unwrap_or(Err(Error::Closed))?;
        Ok(taken.map(|held| (held.hold.permits(), Guard::new(held))))
    }
}

/// DRAIN has no request id. It can be sent again because its owner is new: all that this owner
/// holds was taken by it.
async fn drain(mut request: Request) -> Result<Option<Held>, Error> {
    let command = request.subject.drain(request.lease);
    let (mut pauses, mut is_sent) = (Pauses::default(), false);
    let until = request.core.now().after(request.core.common.command_timeout);
    let first_sent = request.core.now();
    loop {
        let Reply { link, said, .. } = request.ask(&command, Duration::MAX).await;
        let outcome = match said.and_then(|taken| wire::number(&taken)) {
            // After a lost reply no permit may be left to take, but the first copy may have taken
            // some: see what the owner holds.
            Ok(taken) if taken > 0 || is_sent => {
                own_hold(&request).await.map_err(|error| (error, u32::try_from(taken).ok()))
            }
            Ok(_) => return Ok(None),
            Err(error) if error.is_lost_reply() && request.core.now() < until => {
                is_sent |= link.is_some();
                sleep(pauses.next()).await;
                continue;
            }
            Err(error) => {
                is_sent |= error.is_lost_reply() && link.is_some();
                if is_sent { Err((error, None)) } else { return Err(error) }
            }
        };
        return match (outcome, link) {
            (Ok(None), _) => Ok(None),
            (Ok(Some(Holder { token, holds, .. })), Some(link)) => {
                request.subject.permits = holds;
                Hold::begin(Arc::new(request), vec![token], first_sent, None, &link)
            }
            (Ok(Some(_)), None) => Ok(None),
            (Err((error, taken)), _) => {
                give_back(request, taken.filter(|_| !is_sent));
                Err(error)
            }
        };
    }
}

fn info_of(request: &Request) -> Cmd {
    let mut command = redis::cmd("RSEMAPHORE.INFO");
    command.arg(request.subject.first_key()).arg("OWNER").arg(&*request.subject.owner);
    command
}

/// The hold of the request's owner, if it has one.
async fn own_hold(request: &Request) -> Result<Option<Holder>, Error> {
    let core: &Core = &request.core;
    let info = core.insist(request.slot, &info_of(request), core.common.command_timeout).await?;
    let holders = wire::field(&info, "holders").map(Holder::all).transpose()?.unwrap_or_default();
    Ok(holders.into_iter().find(|holder| *holder.owner == *request.subject.owner))
}

/// Releases in the background what a cancelled or failed request took: `taken` permits, or all that
/// its owner holds.
fn give_back(request: Request, taken: Option<u32>) {
    let core = request.core.clone();
    core.in_background(async move {
        let release = |permits| request.subject.release(&[], permits, 0, next_id());
        let giving = async {
            let permits = match taken {
                Some(permits) => Some(permits),
                None => loop {
                    match own_hold(&request).await {
                        Err(error) if error.is_retryable() => {}
                        found => break found?.map(|holder| holder.holds),
                    }
                },
            };
            let Some(permits) = permits else { return Ok(()) };
            request.core.insist(request.slot, &release(permits), request.lease).await.map(drop)
        };
        if let Ok(Err(error)) = tokio::time::timeout(request.lease, giving).await {
            tracing::warn!(%error, "could not release permits; they stay held until their lease expires");
        }
    });
}
