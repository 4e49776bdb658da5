//! The answers to requests that wait without a blocked connection: from the engine to the channel.
//!
//! Nothing is published inside a command: Redis 7.0 would write the message into the middle of what EXEC answers. Messages
//! wait here until the turn of the event loop ends, just before the append-only file is flushed and answers are written, and
//! go out in the order in which they were decided, so many a turn that nobody has to wait for long.
//!
//! A grant is published only if somebody listens to its channel on this server. Otherwise, or if the connection that asked has
//! closed meanwhile, the engine takes it back.
//!
//! There may be millions of requests, and all of them may end at once. So what is kept here is in lists and trees, of which no
//! insertion copies everything, and nothing that is large is dropped at once.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, LinkedList};
use std::time::Duration;

use rlock_core::{Answer, Channel, Engine, Notice, Told, US_PER_MS};

use crate::channels;
use crate::clock;
use crate::ffi::{Ctx, MainThread};
use crate::reply;
use crate::server;
use crate::shard_channels;
use crate::state;
use crate::timer;
use crate::turn;

/// How many messages go out in one turn, and how long that may take.
const AT_ONCE: usize = 1_000;
const BUDGET: Duration = Duration::from_millis(2);

struct Message {
    /// Messages are counted from the start.
    number: u64,
    posted_us: u64,
    ticket: u64,
    notice: Notice,
    answer: Answer,
}

/// A request of which messages wait.
#[derive(Default)]
struct Asked {
    messages: usize,
    again: Option<Again>,
}

/// A request was sent again, and was answered or waits: what its earlier waits have to say is not said any more.
struct Again {
    /// Messages from this number on are not meant.
    from: u64,
    /// The ticket under which it waits now.
    ticket: Option<u64>,
}

impl Again {
    fn outdates(&self, message: &Message) -> bool {
        message.number < self.from && self.ticket != Some(message.ticket)
    }
}

#[derive(Default)]
struct Notices {
    outgoing: LinkedList<Message>,
    posted: u64,
    /// The requests that the messages are about, by their channels and ids.
    asked: BTreeMap<(Channel, u64), Asked>,
    /// Connections that closed while messages waited. Their numbers do not come again.
    closed: BTreeSet<u64>,
}

static NOTICES: MainThread<Option<Notices>> = MainThread::new(None);

fn with<R>(body: impl FnOnce(&mut Notices) -> R) -> Option<R> {
    NOTICES.with(|notices| body(notices.get_or_insert_default()))
}

impl Notices {
    fn post(&mut self, Told { ticket, answer, .. }: Told, notice: Notice) {
        self.posted = self.posted.saturating_add(1);
        let asked = self.asked.entry((notice.channel, notice.id)).or_default();
        asked.messages = asked.messages.saturating_add(1);
        let (number, posted_us) = (self.posted, clock::mono_us());
        self.outgoing.push_back(Message { number, posted_us, ticket, notice, answer });
    }

    /// The next message, and whether it is of an earlier wait of a request that was sent again.
    fn take_next(&mut self) -> Option<(Message, bool)> {
        let message = self.outgoing.pop_front()?;
        let mut is_outdated = false;
        if let Entry::Occupied(mut entry) = self.asked.entry((message.notice.channel, message.notice.id)) {
            let asked = entry.get_mut();
            is_outdated = asked.again.as_ref().is_some_and(|again| again.outdates(&message));
            asked.messages = asked.messages.saturating_sub(1);
            if asked.messages == 0 {
                entry.remove();
            }
        }
        Some((message, is_outdated))
    }

    /// Forgets some of the connections that have closed: no message is left that could be for one of them.
    fn forget_closed(&mut self) {
        for _ in 0..AT_ONCE {
            if self.closed.pop_first().is_none() {
                break;
            }
        }
    }
}

/// The number of a channel on which a request is to be answered. It is known until [`let_go`], or until the answer to the
/// request that waits was published. `None` if there is no number for it.
pub(crate) fn hold(name: &[u8]) -> Option<Channel> {
    let (channel, is_new) = channels::hold(name)?;
    if is_new {
        shard_channels::add(channel, name);
    }
    Some(channel)
}

/// The request does not wait: its channel is of no interest any more.
pub(crate) fn let_go(channel: Channel) {
    if let Some(name) = channels::let_go(channel) {
        shard_channels::remove(channel, &name);
    }
}

/// Takes an answer, to be published when the turn ends.
pub(crate) fn post(told: Told, notice: Notice) {
    if told.answer == Answer::Continued {
        return let_go(notice.channel);
    }
    with(|notices| notices.post(told, notice));
    turn::expect_more();
}

/// A request was answered, or waits under `ticket`. If it was sent before, messages of its earlier waits are of no use any more, and
/// could be taken for answers to this one.
pub(crate) fn sent_again(channel: Channel, id: u64, ticket: Option<u64>) {
    with(|notices| {
        let from = notices.posted.saturating_add(1);
        if let Some(asked) = notices.asked.get_mut(&(channel, id)) {
            asked.again = Some(Again { from, ticket });
        }
    });
}

/// How many messages wait.
pub(crate) fn outgoing() -> usize {
    with(|notices| notices.outgoing.len()).unwrap_or(0)
}

/// A connection closed. Of what was granted to it nothing is published.
pub(crate) fn on_client_closed(client: u64) {
    with(|notices| {
        if !notices.outgoing.is_empty() {
            notices.closed.insert(client);
        }
    });
}

/// A turn ends: publishes what there is, as far as the budget goes.
pub(crate) fn on_turn_end(ctx: Ctx<'_>) {
    if outgoing() == 0 {
        with(Notices::forget_closed);
        return;
    }
    publish_some(ctx);
    if outgoing() > 0 {
        turn::wake_event_loop();
    } else {
        with(Notices::forget_closed);
    }
}

fn publish_some(ctx: Ctx<'_>) {
    let start_us = clock::mono_us();
    channels::begin_turn();
    for _ in 0..AT_ONCE {
        // One message may have thousands of subscribers.
        if Duration::from_micros(clock::mono_us().saturating_sub(start_us)) >= BUDGET {
            break;
        }
        let Some((message, is_outdated)) = with(Notices::take_next).flatten() else {
            break;
        };
        send(ctx, message, is_outdated);
    }
}

fn send(ctx: Ctx<'_>, message: Message, is_outdated: bool) {
    let Message { posted_us, ticket, notice, answer, .. } = message;
    let is_grant = matches!(answer, Answer::Granted(_) | Answer::GrantedMany(_));
    if is_outdated {
        if is_grant {
            // The request that was sent again has all of it, or waits for it anew.
            take_back(ticket, Engine::undo_grants);
        }
        return let_go(notice.channel);
    }
    let waited_us = clock::mono_us().saturating_sub(posted_us);
    let is_closed = with(|notices| notices.closed.contains(&notice.client)) == Some(true);
    let answer = match answer {
        // The engine has taken it back when the connection closed.
        _ if is_grant && is_closed => Answer::Closed,
        // Whoever heard of it now would believe that it holds.
        _ if is_grant && waited_us / US_PER_MS >= notice.lasts_ms => Answer::Expired,
        // A replica takes nothing back. Nobody is told of the grant, and its lease ends it, on the new master.
        _ if is_grant && !server::decides() => Answer::Demoted,
        answer => answer,
    };
    let is_expired = answer == Answer::Expired;
    let is_heard = channels::is_heard(ctx, notice.channel);
    if is_heard {
        publish(ctx, notice, answer);
    }
    match is_grant {
        true if !is_heard => take_back(ticket, Engine::nobody_listened),
        // The hold may live on: another request of its owner may have prolonged it.
        true if is_expired => take_back(ticket, Engine::undo_grants),
        true => state::tell(|engine| engine.published(ticket)),
        false => {}
    }
    let_go(notice.channel);
}

/// Nobody was told of a grant, and nobody will be.
fn take_back(ticket: u64, why: fn(&mut Engine, u64)) {
    state::tell(|engine| why(engine, ticket));
    timer::arm_soon();
    turn::wake_event_loop();
}

fn publish(ctx: Ctx<'_>, notice: Notice, answer: Answer) {
    let message = reply::message(ctx, notice, answer);
    if let Some(name) = channels::name_of(ctx, notice.channel) {
        ctx.publish(name.arg(), ctx.string(message.as_bytes()).arg(), server::is_cluster());
    }
}
