//! The connection that delivers messages to waiters: one per server, with one channel; in a
//! cluster, one channel per slot.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use redis::{PushInfo, PushKind, Value};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::identity::next_id;
use crate::sync::lock;
use crate::transport::{Common, Hear, Link, Opens, Slot};
use crate::wire::{self, Message, Subject};

pub(crate) struct Subscriber {
    pub(crate) common: Arc<Common>,
    pub(crate) link: Arc<Link>,
    /// The end of its channels' names. It begins with the name of the client, which cannot be guessed.
    name: String,
    pub(crate) heard: Arc<Heard>,
    subscriptions: Mutex<HashMap<Option<u16>, Arc<Slot<Subscription>>>>,
    #[cfg(feature = "events")]
    pub(crate) follows: Mutex<HashMap<Vec<u8>, Arc<Slot<Subscription>>>>,
}

/// The receivers of messages.
#[derive(Default)]
pub(crate) struct Heard {
    letters: Mutex<HashMap<u64, Expected>>,
    /// By channel: cancelled when the server has ended the subscription.
    channels: Mutex<HashMap<Vec<u8>, CancellationToken>>,
    #[cfg(feature = "events")]
    pub(crate) listeners: crate::listeners::Listeners,
}

/// A request that waits for its message.
struct Expected {
    sender: oneshot::Sender<Message>,
    subject: Subject,
}

/// A channel that the server has confirmed.
pub(crate) struct Subscription {
    pub(crate) channel: String,
    /// Cancelled when the subscription has ended: its connection closed, or its slot moved.
    pub(crate) gone: CancellationToken,
}

impl Opens for Subscription {
    fn is_open(&self) -> bool {
        !self.gone.is_cancelled()
    }
}

impl Opens for Subscriber {
    fn is_open(&self) -> bool {
        !self.link.is_closed()
    }
}

impl Heard {
    fn hear(&self, push: PushInfo) {
        match (push.kind, push.data.as_slice()) {
            (PushKind::Message | PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(payload)]) => {
                #[cfg(feature = "events")]
                if self.listeners.tell(channel, payload) {
                    return;
                }
                let _ = channel;
                // Ignore a malformed message, as if it was lost: the request is sent again.
                if let Some((id, message)) = wire::message(payload)
                    && let Some(expected) = lock(&self.letters).remove(&id)
                {
                    // The waiter may be gone.
                    drop(expected.sender.send(message));
                }
            }
            // The slot of the channel moved to another node. redis-rs 1.8 takes this push for the
            // answer to the oldest request, so only subscriptions and PINGs use this connection.
            (PushKind::SUnsubscribe, [Value::BulkString(channel), ..]) => {
                if let Some(gone) = lock(&self.channels).remove(channel) {
                    gone.cancel();
                }
            }
            _ => {}
        }
    }
}

/// Receives the message for one request. Dropping it unregisters the request.
pub(crate) struct Letter {
    id: u64,
    pub(crate) message: oneshot::Receiver<Message>,
    heard: Arc<Heard>,
}

impl Drop for Letter {
    fn drop(&mut self) {
        let mut letters = lock(&self.heard.letters);
        // Keep a newer entry with the same id: its receiver is open.
        if letters.get(&self.id).is_some_and(|expected| {
            self.message.close();
            expected.sender.is_closed()
        }) {
            letters.remove(&self.id);
        }
    }
}

impl Subscriber {
    /// Opens the connection with `open`.
    pub(crate) async fn open<F>(common: &Arc<Common>, open: impl FnOnce(Hear) -> F) -> Result<Arc<Self>, Error>
    where
        F: Future<Output = Result<Link, Error>>,
    {
        let heard = Arc::<Heard>::default();
        let hears = heard.clone();
        let link = Arc::new(open(Arc::new(move |push| hears.hear(push))).await?);
        Ok(Arc::new(Self {
            common: common.clone(),
            link,
            name: format!("{}:{}", common.id.name(), next_id()),
            heard,
            subscriptions: Mutex::default(),
            #[cfg(feature = "events")]
            follows: Mutex::default(),
        }))
    }

    /// The channel for waiters on keys of a slot. Subscribes if necessary, and waits until the
    /// server confirms.
    pub(crate) async fn subscribe(self: &Arc<Self>, slot: Option<u16>) -> Result<Arc<Subscription>, Error> {
        let place = lock(&self.subscriptions).entry(slot).or_default().clone();
        let subscriber = self.clone();
        let open = || async move {
            let (verb, channel) = match slot {
                None => ("SUBSCRIBE", format!("rlock:{}", subscriber.name)),
                #[cfg(feature = "cluster")]
                Some(slot) => ("SSUBSCRIBE", format!("rlock:{{{}}}:{}", crate::slots::tag_of(slot), subscriber.name)),
                #[cfg(not(feature = "cluster"))]
                Some(_) => return Err(Error::Argument("slots need the feature cluster".to_owned())),
            };
            subscriber.begin(verb, channel).await
        };
        place.get(&self.common.home, open).await
    }

    async fn begin(&self, verb: &str, channel: String) -> Result<Arc<Subscription>, Error> {
        let gone = self.link.closed().child_token();
        lock(&self.heard.channels).insert(channel.clone().into_bytes(), gone.clone());
        self.link.ask(redis::cmd(verb).arg(&channel), self.common.command_timeout).await.inspect_err(|error| {
            // An unsolicited `sunsubscribe` may have taken the place of the answer, or the
            // connection is silent.
            if error.is_lost_reply() {
                self.close();
            }
        })?;
        Ok(Arc::new(Subscription { channel, gone }))
    }

    /// Registers a request that is about to be sent.
    pub(crate) fn expect(&self, id: u64, subject: Subject) -> Letter {
        let (sender, message) = oneshot::channel();
        lock(&self.heard.letters).insert(id, Expected { sender, subject });
        Letter { id, message, heard: self.heard.clone() }
    }

    pub(crate) fn link(&self) -> &Link {
        &self.link
    }

    pub(crate) fn close(&self) {
        self.link.close();
    }

    /// Any waiting request.
    pub(crate) fn any_waiting(&self) -> Option<Subject> {
        lock(&self.heard.letters).values().next().map(|expected| expected.subject.clone())
    }
}
