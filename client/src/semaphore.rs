//! Semaphores: permits under one key, and what is done to the semaphore itself.

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

/// A number of permits under one key. It stays when nobody holds any: make it once with [`init`](Self::init).
///
/// Each acquisition has an owner of its own. The caller can name one with [`owner`](Lock::owner): acquiring the same number of permits again
/// in its name is a re-entry, which takes none.
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
    /// [`Error::Refused`] with `WRONGTYPE` if something else is under the key.
    pub async fn init(&self, permits: u32) -> Result<bool, Error> {
        Ok(self.configure("INIT", permits, None).await? == 1)
    }

    /// [`init`](Self::init) with an idle time: the server deletes the semaphore after `idle` without holders and waiters. A semaphore that
    /// exists gets this idle time, which begins again. `idle` is 0 to 365 days, rounded up to whole milliseconds; 0 removes the idle time.
    ///
    /// After the deletion acquisitions fail with [`Error::Refused`] with `NOSEMAPHORE`, until a client calls `init` again.
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
    /// [`Error::Refused`] with `NOSEMAPHORE` if there is none.
    pub async fn resize(&self, permits: u32) -> Result<i64, Error> {
        self.configure("RESIZE", permits, None).await
    }

    /// How many permits are free; negative while more are held than there are. `None` if there is no semaphore under the key.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no server answers.
    pub async fn available_permits(&self) -> Result<Option<i64>, Error> {
        let info = self.observe().info().await?;
        info.map(|info| wire::number(wire::field(&info, "available").unwrap_or(&redis::Value::Nil))).transpose()
    }

    /// A look at the semaphore from outside: who holds permits, and who waits.
    pub fn observe(&self) -> Observer {
        self.client.observe(&self.key)
    }

    async fn configure(&self, verb: &str, permits: u32, idle: Option<Duration>) -> Result<i64, Error> {
        let command = wire::configure_semaphore(verb, &self.key, permits, idle);
        wire::number(&self.client.core.request(std::slice::from_ref(&self.key), &command).await?)
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
        Drain { client: self.client.clone(), wanted: Wanted::one(Family::Semaphore, &self.key) }
    }
}

/// All permits of a semaphore that are available.
///
/// They are taken in the name of an owner that nobody else has, and without a session: that the request can be sent twice depends on it.
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

    /// Takes them. Returns how many, with their guard. `None` if there are none, or if somebody waits for them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives back in the background what was taken meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with `NOSEMAPHORE` if there is none.
    pub async fn take(&self) -> Result<Option<(u32, Guard<Permits>)>, Error> {
        self.wanted.check()?;
        let core = &self.client.core;
        let token = core.enter()?;
        let subject = self.wanted.by(core.id.next_owner().into());
        let request = Request::new(core, subject, &self.wanted.options).await;
        // In a task of its own, so that it is never dropped between taking and knowing what was taken.
        let (taking, core) = (drain(request), core.clone());
        let home = core.common.home.clone();
        let task = home.spawn(async move {
            let taken = taking.await;
            // What is dropped after the client was closed is released, and closing waits for that.
            let outcome =
                taken.and_then(|taken| if core.closing.is_cancelled() { Err(Error::Closed) } else { Ok(taken) });
            drop(token);
            outcome
        });
        let taken = task.await.unwrap_or(Err(Error::Closed))?;
        Ok(taken.map(|held| (held.hold.permits(), Guard::new(held))))
    }
}

/// DRAIN has no request id. It is safe to send it again because the owner is new: what it holds in the end is what was taken.
async fn drain(mut request: Request) -> Result<Option<Held>, Error> {
    let command = request.subject.drain(request.lease);
    let (mut pauses, mut is_sent) = (Pauses::default(), false);
    let until = request.core.now().after(request.core.common.command_timeout);
    let first_sent = request.core.now();
    loop {
        let Reply { link, said, .. } = request.ask(&command, Duration::MAX).await;
        let outcome = match said.and_then(|taken| wire::number(&taken)) {
            // After a lost reply nothing is left to take, and what the owner holds was taken before.
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

/// What the owner of a request holds.
async fn own_hold(request: &Request) -> Result<Option<Holder>, Error> {
    let core: &Core = &request.core;
    let info = core.insist(request.slot, &info_of(request), core.common.command_timeout).await?;
    let holders = wire::field(&info, "holders").map(Holder::all).transpose()?.unwrap_or_default();
    Ok(holders.into_iter().find(|holder| *holder.owner == *request.subject.owner))
}

/// Gives back in the background what a request took and nobody got: so many permits, or all that its owner is found to hold.
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
            tracing::warn!(%error, "permits that nobody has may be held until their lease ends");
        }
    });
}
