//! What happens to a lock, as keyspace events of the server tell it.

use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::broadcast::{Receiver, Sender};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::core::{Core, Pauses};
use crate::wire;

/// What the channels of events begin with, and those of nothing else that this crate subscribes to.
const PREFIX: &[u8] = b"__keyspace@";

/// How many events of a key are kept for a slow follower.
const KEPT_EVENTS: usize = 256;

/// Something that has happened to a lock, see [`Observer::events`](crate::Observer::events).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// An owner was granted it. A re-entry is no event.
    Acquired,
    /// Its holder released it.
    Released,
    /// The lease or session of a holder expired.
    Expired,
    /// An operator took it away from its holders.
    Forced,
    /// Its holder released it, and it stays closed for some time.
    Kept,
    /// A free fair lock is kept for some time for the first in its queue, which is not connected.
    Turn,
    /// The key was deleted, evicted, renamed or overwritten. Published only with `g` and `e` in `notify-keyspace-events`.
    Removed,
    /// The connection was lost, or this follower was too slow: some events may be missing from here on.
    Missed,
}

impl Event {
    /// `None` for what changes no holder.
    fn parse(name: &[u8]) -> Option<Self> {
        match name {
            b"rlock.acquire" => Some(Self::Acquired),
            b"rlock.release" => Some(Self::Released),
            b"rlock.expire" => Some(Self::Expired),
            b"rlock.force" => Some(Self::Forced),
            b"rlock.keep" => Some(Self::Kept),
            b"rlock.turn" => Some(Self::Turn),
            b"expire" | b"persist" | b"new" => None,
            _ => Some(Self::Removed),
        }
    }
}

/// The followers of keys on one connection, by channel.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<HashMap<Vec<u8>, Sender<Event>>>);

pub(crate) type Following = Receiver<Event>;

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Sender<Event>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn follow(&self, channel: &[u8]) -> Following {
        self.lock().entry(channel.to_vec()).or_insert_with(|| Sender::new(KEPT_EVENTS)).subscribe()
    }

    pub(crate) fn are_followed(&self) -> bool {
        self.lock().values().any(|followers| followers.receiver_count() > 0)
    }

    /// Forgets the channels that nobody follows any more, and names them.
    pub(crate) fn take_idle(&self) -> Vec<Vec<u8>> {
        self.lock().extract_if(|_, followers| followers.receiver_count() == 0).map(|(channel, _)| channel).collect()
    }

    /// A message has come. False if it is not about a key.
    pub(crate) fn tell(&self, channel: &[u8], event: &[u8]) -> bool {
        let is_event = channel.starts_with(PREFIX);
        if is_event && let (Some(followers), Some(event)) = (self.lock().get(channel), Event::parse(event)) {
            // Nobody may be left.
            drop(followers.send(event));
        }
        is_event
    }
}

/// What happens to a lock, one event after the other, as a [`Stream`] without an end. See [`Observer::events`](crate::Observer::events).
///
/// It follows lost connections, failovers and moves of the slot in a cluster. After each of these there is an [`Event::Missed`]: what
/// happened before it may not have been told.
pub struct Events {
    next: Next,
}

/// The next event, with the follower that goes on after it.
type Next = Pin<Box<dyn Future<Output = (Result<Event, Error>, Box<Follower>)> + Send>>;

/// What an [`Events`] is made of.
struct Follower {
    core: Arc<Core>,
    key: Vec<u8>,
    events: Following,
    /// Cancelled when the subscription has ended.
    gone: CancellationToken,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) async fn of(core: &Arc<Core>, key: &[u8]) -> Result<Self, Error> {
        let (events, gone) = subscribe(core, key).await?;
        let follower = Box::new(Follower { core: core.clone(), key: key.to_vec(), events, gone });
        Ok(Self { next: Box::pin(follower.next()) })
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no connection was made for [`command_timeout`](crate::Builder::command_timeout) after one was lost,
    /// [`Error::NoEvents`] if the server publishes no events any more. It may be asked again.
    pub async fn next(&mut self) -> Result<Event, Error> {
        std::future::poll_fn(|context| self.poll(context)).await
    }

    fn poll(&mut self, context: &mut Context<'_>) -> Poll<Result<Event, Error>> {
        let (event, follower) = std::task::ready!(self.next.as_mut().poll(context));
        self.next = Box::pin(follower.next());
        Poll::Ready(event)
    }
}

impl Stream for Events {
    type Item = Result<Event, Error>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.poll(context).map(Some)
    }
}

impl Follower {
    async fn next(mut self: Box<Self>) -> (Result<Event, Error>, Box<Self>) {
        tokio::select! {
            biased;
            received = self.events.recv() => match received {
                Ok(event) => return (Ok(event), self),
                Err(RecvError::Lagged(_)) => return (Ok(Event::Missed), self),
                Err(RecvError::Closed) => {}
            },
            () = self.gone.cancelled() => {}
            () = self.core.closing.cancelled() => return (Err(Error::Closed), self),
        }
        let outcome = subscribe(&self.core, &self.key).await.map(|followed| {
            (self.events, self.gone) = followed;
            Event::Missed
        });
        (outcome, self)
    }
}

/// Whether events of locks are published, by the setting `notify-keyspace-events`.
fn are_published(flags: &[u8]) -> bool {
    flags.contains(&b'K') && (flags.contains(&b'd') || flags.contains(&b'A'))
}

/// Subscribes at the server that has the key.
async fn subscribe(core: &Arc<Core>, key: &[u8]) -> Result<(Following, CancellationToken), Error> {
    let until = Instant::now() + core.common.command_timeout;
    let mut pauses = Pauses::default();
    loop {
        match subscribe_once(core, key).await {
            Err(error) if error.is_retryable() && Instant::now() < until => sleep(pauses.next()).await,
            outcome => return outcome,
        }
    }
}

async fn subscribe_once(core: &Arc<Core>, key: &[u8]) -> Result<(Following, CancellationToken), Error> {
    drop(core.enter()?);
    let slot = core.servers.slot_of(key);
    let node = core.node(slot).await?;
    let link = node.link().await?;
    let flags =
        link.ask(redis::cmd("CONFIG").arg("GET").arg("notify-keyspace-events"), core.common.command_timeout).await;
    let flags = match flags {
        Err(error) if error.is_retryable() => return Err(error),
        flags => flags.map_err(|_| Error::NoEvents)?,
    };
    if !wire::field(&flags, "notify-keyspace-events").is_some_and(|flags| wire::bytes(flags).is_ok_and(are_published)) {
        return Err(Error::NoEvents);
    }
    let subscriber = node.subscriber().await?;
    // In a cluster the server ends the subscription to a channel of the slot when the slot moves, and says nothing of other channels.
    let gone = match slot {
        Some(_) => {
            let subscription = subscriber.subscribe(slot).await.inspect_err(|error| {
                core.servers.redirected(error, subscriber.link());
            })?;
            subscription.gone.clone()
        }
        None => subscriber.closed().clone(),
    };
    let database = subscriber.link().info().map_or(0, |info| info.redis_settings().db());
    let channel = [PREFIX, format!("{database}__:").as_bytes(), key].concat();
    let events =
        subscriber.follow(channel).await.map_err(|error| if error.is_retryable() { error } else { Error::NoEvents })?;
    Ok((events, gone))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_reach_followers_of_their_key_and_no_other() {
        let listeners = Listeners::default();
        let channel = b"__keyspace@3__:k".as_slice();
        let mut follower = listeners.follow(channel);
        assert!(listeners.are_followed());
        assert!(listeners.tell(channel, b"rlock.acquire") && listeners.tell(channel, b"del"));
        assert!(listeners.tell(b"__keyspace@3__:other", b"del"));
        assert!(listeners.tell(channel, b"rlock.turn"));
        assert!(!listeners.tell(b"rlock:channel", b"nil 7"), "that is the answer to a wait");
        let told: Vec<_> = std::iter::from_fn(|| follower.try_recv().ok()).collect();
        assert_eq!(told, [Event::Acquired, Event::Removed, Event::Turn]);
        assert!(listeners.take_idle().is_empty());
        drop(follower);
        assert_eq!(listeners.take_idle(), [channel]);
        assert!(are_published(b"AKE") && are_published(b"Kd") && !are_published(b"Ed") && !are_published(b"Kg"));
    }

    /// The lock is held as before.
    #[test]
    fn expire_and_persist_of_a_held_lock_are_no_removal() {
        assert_eq!([b"expire".as_slice(), b"persist"].map(Event::parse), [None, None]);
        assert_eq!(Event::parse(b"del"), Some(Event::Removed));
    }
}
