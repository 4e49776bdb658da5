//! Following what happens to a lock, over lost connections.

use std::sync::Arc;

use tokio::sync::broadcast::Receiver;
use tokio::sync::broadcast::error::RecvError;

use crate::Error;
use crate::call::Pauses;
use crate::clock::Moment;
use crate::events::Event;
use crate::link::Link;
use crate::servers::Line;
use crate::shared::Shared;
use crate::timer::sleep_until;

/// What happens to a lock, one after the other. See [`Observer::events`](crate::Observer::events).
pub struct Events {
    client: Arc<Shared>,
    key: Vec<u8>,
    link: Arc<Link>,
    events: Receiver<Event>,
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

    /// Waits for the next event. After a lost connection that is [`Event::Missed`], as soon as there is another one.
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
            received = self.events.recv() => match received {
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

/// Subscribes at the server that has the key.
async fn subscribe(client: &Arc<Shared>, key: &[u8]) -> Result<(Arc<Link>, Receiver<Event>), Error> {
    let slot = client.slot_of(std::slice::from_ref(&key.to_vec()));
    let started = Moment::now();
    let give_up = started.after(client.settings.retry_for);
    let mut pauses = Pauses::new();
    loop {
        client.home.check()?;
        let failed = match client.servers.link(slot, Line::Shared).await {
            Ok(link) => {
                let followed = link.follow(key, client.settings.response_timeout).await;
                match followed {
                    Some(events) => return Ok((link, events)),
                    None if link.is_closed() => None,
                    None => return Err(Error::NoEvents),
                }
            }
            Err(cause) => Some(cause),
        };
        let next = Moment::now().after(pauses.next());
        if next >= give_up {
            let lost = || redis::RedisError::from((redis::ErrorKind::Io, "the connection was closed"));
            let cause = failed.unwrap_or_else(lost);
            return Err(Error::Connection { tried_for: started.until(Moment::now()), cause });
        }
        sleep_until(next).await;
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        if self.link.is_closed() {
            return;
        }
        // No receiver is left when it is looked whether anybody listens.
        self.events = tokio::sync::broadcast::Sender::new(1).subscribe();
        let (link, key, patience) =
            (self.link.clone(), std::mem::take(&mut self.key), self.client.settings.response_timeout);
        drop(self.client.home.start(async move { link.stop_listening(&key, patience).await }));
    }
}
