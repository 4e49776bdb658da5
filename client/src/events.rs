//! Events of a lock, from the server's keyspace notifications.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_core::Stream;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::core::{Core, Pauses};
use crate::listeners::{Event, Following, PREFIX, are_published};
use crate::observer::{Observer, field};
use crate::subscriber::{Subscriber, Subscription};
use crate::sync::lock;
use crate::wire;

impl Observer {
    /// Follows the events of the lock from now on, over the connection of the client. Events do not
    /// name the owner: use [`holders`](Self::holders).
    ///
    /// ```no_run
    /// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
    /// let mut events = client.observe("orders:42").events().await?;
    /// loop {
    ///     println!("{:?}", events.next().await?);
    /// }
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoEvents`] if the server does not publish events or ACL rules forbid them;
    /// otherwise as [`is_locked`](Self::is_locked).
    pub async fn events(&self) -> Result<Events, Error> {
        Events::of(&self.client.core, &self.key).await
    }
}

/// The events of one lock, as an endless [`Stream`]. See
/// [`Observer::events`](crate::Observer::events).
///
/// It subscribes again after a lost connection, a failover, or a move of the slot in a cluster.
/// After each of these it yields [`Event::Missed`]: some events may be missing before it.
pub struct Events {
    next: Next,
}

/// The next event, and the follower that yields the later ones.
type Next = Pin<Box<dyn Future<Output = (Result<Event, Error>, Box<Follower>)> + Send>>;

/// The state of an [`Events`].
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
    async fn of(core: &Arc<Core>, key: &[u8]) -> Result<Self, Error> {
        let (events, gone) = subscribe(core, key).await?;
        let follower = Box::new(Follower { core: core.clone(), key: key.to_vec(), events, gone });
        Ok(Self { next: Box::pin(follower.next()) })
    }

    /// Waits for the next event.
    ///
    /// # Cancel safety
    ///
    /// This method is cancel safe: no event is lost if the future is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if reconnecting failed for
    /// [`command_timeout`](crate::Builder::command_timeout), [`Error::NoEvents`] if the server no
    /// longer publishes events. The caller may call it again after an error.
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

/// Subscribes at the server that has the key, and retries for `command_timeout`.
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
    if !field(&flags, "notify-keyspace-events").is_some_and(|flags| wire::bytes(flags).is_ok_and(are_published)) {
        return Err(Error::NoEvents);
    }
    let subscriber = node.subscriber().await?;
    // When a slot moves, the server ends subscriptions to channels of that slot only. So a channel
    // of the slot stands for the keyspace channel, which the server leaves alone.
    let gone = match slot {
        Some(_) => {
            let subscription = subscriber.subscribe(slot).await.inspect_err(|error| {
                core.servers.redirected(error, subscriber.link());
            })?;
            subscription.gone.clone()
        }
        None => subscriber.link().closed().clone(),
    };
    let database = subscriber.link().info().map_or(0, |info| info.redis_settings().db());
    let channel = [PREFIX, format!("{database}__:").as_bytes(), key].concat();
    let events =
        subscriber.follow(channel).await.map_err(|error| if error.is_retryable() { error } else { Error::NoEvents })?;
    Ok((events, gone))
}

impl Subscriber {
    /// Follows the events of a key.
    async fn follow(self: &Arc<Self>, channel: Vec<u8>) -> Result<Following, Error> {
        let (following, place) = {
            let mut follows = lock(&self.follows);
            (self.heard.listeners.follow(&channel), follows.entry(channel.clone()).or_default().clone())
        };
        let subscriber = self.clone();
        let open = || async move {
            subscriber.link.ask(redis::cmd("SUBSCRIBE").arg(&channel), subscriber.common.command_timeout).await?;
            let gone = subscriber.link.closed().child_token();
            Ok(Arc::new(Subscription { channel: String::from_utf8_lossy(&channel).into_owned(), gone }))
        };
        place.get(&self.common.home, open).await?;
        Ok(following)
    }

    pub(crate) fn is_followed(&self) -> bool {
        self.heard.listeners.are_followed()
    }

    /// Ends subscriptions without followers.
    pub(crate) async fn leave_idle(&self) {
        let take = || {
            let mut follows = lock(&self.follows);
            self.heard.listeners.take_idle().inspect(|channel| drop(follows.remove(channel)))
        };
        // One at a time: the next one may have a follower by then.
        while let Some(channel) = take() {
            drop(self.link.ask(redis::cmd("UNSUBSCRIBE").arg(&channel), self.common.command_timeout).await);
        }
    }
}
