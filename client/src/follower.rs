//! Following what happens to a lock, over lost connections and to wherever its slot goes.

use std::borrow::Cow;
use std::sync::Arc;

use redis::{Cmd, RedisError};
use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::Error;
use crate::call::{Pauses, Prepare};
use crate::clock::Moment;
use crate::events::Event;
use crate::link::{Link, Subscription};
use crate::shared::Shared;
use crate::timer::sleep_until;

/// What happens to a lock, one after the other. See [`Observer::events`](crate::Observer::events).
///
/// Lost connections, failovers and moves of its slot in a cluster are followed. After each of these there is an [`Event::Missed`]: whatever
/// happened before it may not have been told.
pub struct Events {
    client: Arc<Shared>,
    key: Vec<u8>,
    link: Arc<Link>,
    events: Subscription<Receiver<Event>>,
}

impl std::fmt::Debug for Events {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Events").field("key", &String::from_utf8_lossy(&self.key)).finish_non_exhaustive()
    }
}

impl Events {
    pub(crate) async fn of(client: &Arc<Shared>, key: &[u8]) -> Result<Self, Error> {
        let (link, events) = subscribe(client, key).await?;
        Ok(Self { client: client.clone(), key: key.to_vec(), link, events })
    }

    /// Waits for the next event. After a lost connection that is [`Event::Missed`], as soon as there is another one, and in a cluster also
    /// when the slot of the lock has moved.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost when it is dropped.
    ///
    /// # Errors
    ///
    /// [`Error::Connection`] if there was none again for [`retry_for`](crate::Builder::retry_for), [`Error::NoEvents`] if the server does not
    /// tell any more. It may be asked again.
    pub async fn next(&mut self) -> Result<Event, Error> {
        tokio::select! {
            biased;
            received = self.events.events.recv() => match received {
                Ok(event) => return Ok(event),
                Err(RecvError::Lagged(_)) => return Ok(Event::Missed),
                Err(RecvError::Closed) => {}
            },
            () = self.link.closed() => {}
        }
        (self.link, self.events) = subscribe(&self.client, &self.key).await?;
        Ok(Event::Missed)
    }
}

/// Asks whether a connection leads to the node that serves a slot, and has that node tell when it does so no more: it ends the subscription
/// to a channel of the slot, and the connection is closed.
struct ServingNode(Option<u16>, std::time::Duration);

impl Prepare for ServingNode {
    async fn prepare(&self, link: &Arc<Link>, _: bool) -> Result<Cow<'_, Cmd>, RedisError> {
        let Self(slot, patience) = *self;
        if slot.is_some() {
            link.channel(slot, patience).await?;
        }
        Ok(Cow::Owned(redis::cmd("PING")))
    }
}

/// Subscribes at the server that has the key.
async fn subscribe(client: &Arc<Shared>, key: &[u8]) -> Result<(Arc<Link>, Subscription<Receiver<Event>>), Error> {
    let slot = client.slot_of(std::slice::from_ref(&key.to_vec()));
    let patience = client.settings.response_timeout;
    let started = Moment::now();
    let give_up = started.after(client.settings.retry_for);
    let mut pauses = Pauses::new();
    loop {
        client.home.check()?;
        let node = ServingNode(slot, patience);
        let answered = client.servers.call(slot, &node, patience, give_up).await?;
        answered.said.map_err(|error| Error::from_answer(&error))?;
        let link = answered.link;
        match link.follow(key, patience).await {
            Some(events) => return Ok((link, events)),
            None if link.is_closed() => {}
            None => return Err(Error::NoEvents),
        }
        let next = Moment::now().after(pauses.next());
        if next >= give_up {
            let cause = RedisError::from((redis::ErrorKind::Io, "the connection was closed"));
            return Err(Error::Connection { tried_for: started.until(Moment::now()), cause });
        }
        sleep_until(next).await;
    }
}
