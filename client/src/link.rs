//! One connection to a server, which tells when it is closed.

use std::borrow::Cow;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, Pipeline, ProtocolVersion, PushInfo, PushKind,
    RedisError, Value,
};
use tokio::runtime::Handle;
use tokio::sync::{OnceCell, broadcast, watch};
use tokio_util::sync::CancellationToken;

use crate::answers::{Answers, NoAnswer, Patience};
use crate::clock::Moment;
use crate::events::{Event, Listeners, are_published, channel_of};
use crate::identity::unique_owner;
use crate::mailbox::{Letter, Mailbox};
use crate::slots::tag_of;
use crate::timer::{sleep_until_some, within};
use crate::together::{MESSAGES, Together};
use crate::wire::Subject;

/// The number of the last connection of this process.
static LAST_NUMBER: AtomicU64 = AtomicU64::new(0);

/// An id for a request that there is not.
const NO_REQUEST: u64 = 1;

/// The names of channels, by slot, each made once.
type Channels = HashMap<Option<u16>, Arc<OnceCell<Arc<str>>>>;

/// A connection that many requests may share.
pub(crate) struct Link {
    /// No two of a process have the same.
    number: u64,
    connection: MultiplexedConnection,
    info: ConnectionInfo,
    /// The home of its client.
    home: Handle,
    together: Arc<Together>,
    answers: Arc<Answers>,
    mailbox: Arc<Mailbox>,
    /// The channels on which waits are answered: one, or in a cluster one for each slot. They are made in tasks of the home: a future of somebody else
    /// may never be polled again, and would keep all others from it.
    channels: Mutex<Channels>,
    listeners: Arc<Listeners>,
    /// Whether the server publishes events of locks, once that is known.
    tells_events: OnceCell<bool>,
    /// Held while it is decided that somebody listens to a key, or nobody does any more, and until the command for that has its place at the connection.
    listening: Mutex<()>,
}

/// Somebody who listens to a key. Dropping it ends that, at the server as well if nobody else listens.
pub(crate) struct Subscription<T> {
    // Dropped first: when it is looked whether anybody listens, this one is gone.
    pub(crate) events: T,
    _end: StopsListening,
}

struct StopsListening {
    link: Arc<Link>,
    channel: Vec<u8>,
    patience: Duration,
}

impl Drop for StopsListening {
    fn drop(&mut self) {
        if self.link.is_closed() {
            return;
        }
        let (link, channel, patience) = (self.link.clone(), std::mem::take(&mut self.channel), self.patience);
        drop(self.link.home.spawn(async move { link.unsubscribe_if_idle(&channel, patience).await }));
    }
}

impl Link {
    /// Connects, in a task of the client's home. RESP3 is what tells at once that the server has closed the connection, also when nothing is being asked.
    pub(crate) async fn connect(info: ConnectionInfo, patience: Duration) -> Result<Arc<Self>, RedisError> {
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.clone().set_redis_settings(settings))?;
        let answers = Answers::new();
        let mailbox = Arc::<Mailbox>::default();
        let listeners = Arc::<Listeners>::default();
        let (on_close, letters, events) = (answers.clone(), mailbox.clone(), listeners.clone());
        let hear = move |push: PushInfo| {
            match (push.kind, push.data.as_slice()) {
                // The slot of a channel went to another node, and its waits with it. The library takes that for the answer to something else.
                (PushKind::Disconnection | PushKind::SUnsubscribe, _) => on_close.close(),
                (PushKind::Message | PushKind::SMessage, [Value::BulkString(channel), Value::BulkString(payload)])
                    if !events.tell(channel, payload) =>
                {
                    letters.deliver(payload);
                }
                _ => {}
            }
            Ok::<(), ()>(())
        };
        // How long an answer may take depends on the request, see `ask`. Nothing here goes by the clock of a runtime.
        let config = AsyncConnectionConfig::new().set_connection_timeout(None).set_response_timeout(None);
        let config = config.set_push_sender(hear).set_pipeline_buffer_size(MESSAGES);
        let connecting = client.get_multiplexed_async_connection_with_config(&config);
        let connection = within(patience, connecting).await.ok_or_else(|| lost("no connection in time"))??;
        let (channels, tells_events, listening) = Default::default();
        let number = LAST_NUMBER.fetch_add(1, Ordering::Relaxed);
        let home = Handle::current();
        let together = Together::new(connection.clone(), home.clone(), answers.clone());
        Ok(Arc::new(Self {
            number,
            connection,
            info,
            home,
            together,
            answers,
            mailbox,
            channels,
            listeners,
            tells_events,
            listening,
        }))
    }

    /// Sends a command and waits for the answer. A connection over which no answer at all comes for so long is closed: what comes over it
    /// later would not be worth more.
    pub(crate) async fn ask(&self, command: &Cmd, patience: Duration) -> Result<Value, RedisError> {
        let mut connection = self.connection.clone();
        // Pinned where it is made: it is large.
        let answer = std::pin::pin!(async {
            let answer = connection.send_packed_command(command).await;
            self.answers.note();
            answer?.extract_error()
        });
        self.answered(answer, patience).await
    }

    /// The same for a command of which many are sent at the same time: they travel together.
    pub(crate) async fn ask_together(
        &self,
        command: Cow<'_, Cmd>,
        now: Moment,
        patience: Duration,
    ) -> Result<Value, RedisError> {
        self.conclude(self.together.ask(command, Patience { since: now, span: patience }).await)
    }

    /// The same for several commands in one write. Each has its own answer, which may be an error.
    pub(crate) async fn ask_all(
        &self,
        commands: &Pipeline,
        count: usize,
        patience: Duration,
    ) -> Result<Vec<Value>, RedisError> {
        let mut connection = self.connection.clone();
        let answer = std::pin::pin!(async {
            let answers = connection.send_packed_commands(commands, 0, count).await;
            self.answers.note();
            answers
        });
        self.answered(answer, patience).await
    }

    /// The channel on which waits for the keys of a slot are answered. It is subscribed to before anything that this answer is used for.
    pub(crate) async fn channel(
        self: &Arc<Self>,
        slot: Option<u16>,
        patience: Duration,
    ) -> Result<Arc<str>, RedisError> {
        if let Some(channel) = self.known_channel(slot) {
            return Ok(channel);
        }
        let link = self.clone();
        let making = self.home.spawn(async move { link.make_channel(slot, patience).await });
        making.await.unwrap_or_else(|_| Err(lost("the runtime of the client has ended")))
    }

    fn known_channel(&self, slot: Option<u16>) -> Option<Arc<str>> {
        self.channels().get(&slot)?.get().cloned()
    }

    async fn make_channel(&self, slot: Option<u16>, patience: Duration) -> Result<Arc<str>, RedisError> {
        let random = String::from_utf8(unique_owner()).unwrap_or_default();
        let (verb, channel) = match slot {
            None => ("SUBSCRIBE", format!("rlock:{random}")),
            Some(slot) => ("SSUBSCRIBE", format!("rlock:{{{}}}:{random}", tag_of(slot))),
        };
        let made = self.channels().entry(slot).or_default().clone();
        let subscribing = || async {
            self.ask(redis::cmd(verb).arg(&channel), patience).await?;
            Ok(channel.as_str().into())
        };
        made.get_or_try_init(subscribing).await.cloned()
    }

    fn channels(&self) -> MutexGuard<'_, Channels> {
        self.channels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Expects the message for a request that is about to be sent. Not for two with the same id, see [`is_id_taken`]: that says nothing
    /// against the connection.
    pub(crate) fn expect(&self, request_id: u64, subject: Subject) -> Result<Letter, RedisError> {
        let taken =
            || RedisError::from((ErrorKind::Client, "another request with the same id waits on this connection"));
        self.mailbox.expect(request_id, subject).ok_or_else(taken)
    }

    /// Whether the server tells what happens to keys, as far as is known.
    pub(crate) fn may_tell_events(&self) -> bool {
        self.tells_events.get() != Some(&false)
    }

    /// Listens to what ends the holds of a key. `None` if the server does not tell, or not this user.
    ///
    /// Cancel safety: when dropped, nothing is listened to.
    pub(crate) async fn listen(
        self: &Arc<Self>,
        key: &[u8],
        patience: Duration,
    ) -> Option<Subscription<watch::Receiver<()>>> {
        if !*self.tells_events.get_or_init(|| self.publishes_events(patience)).await {
            return None;
        }
        self.subscribe(key, patience, Listeners::add).await
    }

    /// Listens to all that happens to a key. `None` if the server does not tell now, or not this user.
    ///
    /// Cancel safety: when dropped, nothing is listened to.
    pub(crate) async fn follow(
        self: &Arc<Self>,
        key: &[u8],
        patience: Duration,
    ) -> Option<Subscription<broadcast::Receiver<Event>>> {
        if !self.publishes_events(patience).await {
            return None;
        }
        self.subscribe(key, patience, Listeners::follow).await
    }

    async fn publishes_events(&self, patience: Duration) -> bool {
        let answer = self.ask(redis::cmd("CONFIG").arg("GET").arg("notify-keyspace-events"), patience).await;
        let setting = answer.and_then(|answer| Ok(redis::from_redis_value::<HashMap<String, String>>(answer)?));
        setting.is_ok_and(|setting| setting.values().any(|flags| are_published(flags)))
    }

    async fn subscribe<T: Send + 'static>(
        self: &Arc<Self>,
        key: &[u8],
        patience: Duration,
        add: fn(&Listeners, &[u8]) -> T,
    ) -> Option<Subscription<T>> {
        let (link, channel) = (self.clone(), channel_of(self.info.redis_settings().db(), key));
        self.home.spawn(async move { link.subscribe_to(channel, patience, add).await }).await.ok()?
    }

    async fn subscribe_to<T>(
        self: Arc<Self>,
        channel: Vec<u8>,
        patience: Duration,
        add: fn(&Listeners, &[u8]) -> T,
    ) -> Option<Subscription<T>> {
        let events = add(&self.listeners, &channel);
        let end = StopsListening { link: self.clone(), channel: channel.clone(), patience };
        // If this ends in the middle, the command may have been sent or not: it is sent again for the next one who listens, or else taken back.
        let subscription = Subscription { events, _end: end };
        let is_new = || !self.listeners.is_subscribed(&channel);
        if self.ask_in_order(redis::cmd("SUBSCRIBE").arg(&channel), is_new, patience).await.is_err() {
            drop(subscription.events);
            self.listeners.remove_if_idle(&channel);
            return None;
        }
        // Nobody has unsubscribed since: this one listens.
        self.listeners.note_subscribed(&channel);
        Some(subscription)
    }

    /// Somebody listens no more.
    async fn unsubscribe_if_idle(&self, channel: &[u8], patience: Duration) {
        let is_idle = || self.listeners.remove_if_idle(channel);
        drop(self.ask_in_order(redis::cmd("UNSUBSCRIBE").arg(channel), is_idle, patience).await);
    }

    /// Sends a command if it is wanted, before whatever is decided later about who listens. Others do not wait for its answer: each hold has one to
    /// wait for.
    async fn ask_in_order(
        &self,
        command: &Cmd,
        is_wanted: impl FnOnce() -> bool,
        patience: Duration,
    ) -> Result<(), RedisError> {
        let mut answer = std::pin::pin!(self.ask(command, patience));
        let first_look = {
            let _alone = self.listening.lock().unwrap_or_else(PoisonError::into_inner);
            if !is_wanted() {
                return Ok(());
            }
            // From here on it has its place at the connection. Polled again below, it gets to know whom to wake.
            answer.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        };
        let answer = match first_look {
            Poll::Ready(answer) => answer,
            Poll::Pending => answer.await,
        };
        answer.map(drop)
    }

    /// As long as somebody waits on this connection, or follows what happens to a lock, asks from time to time whether it lives: nothing else would
    /// tell. `answers_error` is called when the server answers an error. Where somebody waits it is asked for what changes nothing, and what it refuses
    /// whenever it would refuse a grant: a PING would be answered also by a server that serves nobody any more.
    ///
    /// It runs where the connection does. If that runtime ends, nothing comes over the connection any more, and whoever waits on another runtime
    /// has to hear of that.
    pub(crate) async fn watch(
        link: Weak<Self>,
        every: Duration,
        patience: Duration,
        answers_error: impl Fn(&Self, &RedisError),
    ) {
        let _watched = Watched(link.clone());
        while let Some(closed) = link.upgrade().map(|link| link.closing().clone()) {
            tokio::select! {
                () = closed.cancelled() => return,
                () = sleep_until_some(Some(Moment::now().after(every))) => {}
            }
            let Some(link) = link.upgrade() else { return };
            let question = match link.mailbox.any_subject() {
                Some(subject) => Subject { owner: unique_owner().into(), ..subject }.cancel(NO_REQUEST),
                // Whoever only follows may not ask for locks.
                None if link.listeners.are_followed() => redis::cmd("PING"),
                None => continue,
            };
            match link.ask(&question, patience).await {
                Err(error) if !link.is_closed() => answers_error(&link, &error),
                _ => {}
            }
        }
    }

    /// Closes it if somebody waits on it, who asks another server then.
    pub(crate) fn close_if_waited_on(&self) {
        if self.mailbox.any_subject().is_some() {
            self.close();
        }
    }

    async fn answered<T>(
        &self,
        answer: Pin<&mut impl Future<Output = Result<T, RedisError>>>,
        patience: Duration,
    ) -> Result<T, RedisError> {
        self.conclude(self.answers.until(answer, Patience { since: Moment::now(), span: patience }).await)
    }

    /// What an answer says of the connection.
    fn conclude<T>(&self, answer: Result<Result<T, RedisError>, NoAnswer>) -> Result<T, RedisError> {
        let outcome = match answer {
            Ok(outcome) => outcome,
            Err(NoAnswer::Closed) => return Err(lost("the connection was closed")),
            Err(NoAnswer::Late) => {
                self.close();
                return Err(lost("no answer in time"));
            }
        };
        if self.is_closed() {
            // Its answers may not be those to its questions any more.
            return Err(lost("the connection was closed"));
        }
        if let Err(error) = &outcome
            && (error.is_unrecoverable_error() || error.is_io_error())
        {
            self.close();
        }
        outcome
    }

    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Is cancelled when the connection is closed, by whichever side, and when nobody has it any more.
    pub(crate) fn closing(&self) -> &CancellationToken {
        self.answers.closed()
    }

    /// Where it leads to.
    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.answers.is_closed()
    }

    /// Resolves when the connection is closed, by whichever side.
    pub(crate) async fn closed(&self) {
        self.answers.closed().cancelled().await;
    }

    /// Uses it no more. Whoever waits for an answer over it hears that it is closed, and the socket closes with the last of them.
    pub(crate) fn close(&self) {
        self.answers.close();
    }
}

/// A connection is of no use when this is dropped.
struct Watched(Weak<Link>);

impl Drop for Watched {
    fn drop(&mut self) {
        if let Some(link) = self.0.upgrade() {
            link.close();
        }
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        self.answers.close();
    }
}

/// Whether a request was not sent because another one with the same id waits on the same connection.
pub(crate) fn is_id_taken(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Client
}

fn lost(why: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Io, why))
}
