//! The answers to requests with NOTIFY: from the engine to the channel.
//!
//! A command publishes nothing itself: Redis 7.0 would write the message into the middle of the
//! reply to EXEC. Messages wait here until the turn of the event loop ends, just before the server
//! flushes the append-only file and writes replies. They go out in the order of the decisions. Each
//! turn sends a bounded number of them, so other clients do not wait long.
//!
//! A grant is published only if a client of this server listens to its channel, and the connection
//! that sent the request is open. Otherwise the engine undoes the grant.
//!
//! Millions of requests may end at the same time. So the state here is in lists and trees: no
//! insertion copies all entries, and nothing large is dropped in one step.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, LinkedList};
use std::time::Duration;

use rlock_core::{Answer, Channel, Engine, Grant, Notice, Told};

use crate::channels;
use crate::clock;
use crate::ffi::{Ctx, MainThread};
use crate::reply;
use crate::server;
use crate::shard_channels;
use crate::state;
use crate::timer;
use crate::turn;

/// The largest number of messages in one turn, and how long sending them may take.
const AT_ONCE: usize = 1_000;
const BUDGET: Duration = Duration::from_millis(2);

struct Message {
    /// The messages of this process are numbered from 1.
    number: u64,
    ticket: u64,
    notice: Notice,
    answer: Answer,
}

/// A request with messages that wait here.
#[derive(Default)]
struct Asked {
    messages: usize,
    again: Option<Again>,
}

/// A request that a client sent again. Messages of its earlier waits are dropped.
struct Again {
    /// Messages with a lower number are dropped.
    from: u64,
    /// The ticket under which the request waits now; its messages are sent.
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
    /// The requests with messages, by channel and id.
    asked: BTreeMap<(Channel, u64), Asked>,
    /// Connections that closed while messages waited. The server does not reuse their ids.
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
        self.outgoing.push_back(Message { number: self.posted, ticket, notice, answer });
    }

    /// The next message, and whether it belongs to an earlier wait of a request that was sent
    /// again.
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

    /// Forgets some of the closed connections. Called when no message is left.
    fn forget_closed(&mut self) {
        for _ in 0..AT_ONCE {
            if self.closed.pop_first().is_none() {
                break;
            }
        }
    }
}

/// Returns the number of a request's channel. The number is valid until [`let_go`], or until the
/// answer to the waiting request is published. `None` if no number is free.
pub(crate) fn hold(name: &[u8]) -> Option<Channel> {
    let (channel, is_new) = channels::hold(name)?;
    if is_new {
        shard_channels::add(channel, name);
    }
    Some(channel)
}

/// Ends a request's use of its channel: the request does not wait.
pub(crate) fn let_go(channel: Channel) {
    if let Some(name) = channels::let_go(channel) {
        shard_channels::remove(channel, &name);
    }
}

/// Queues an answer; it is published when the turn ends.
pub(crate) fn post(told: Told, notice: Notice) {
    if told.answer == Answer::Continued {
        return let_go(notice.channel);
    }
    with(|notices| notices.post(told, notice));
    turn::expect_more();
}

/// A request got its answer, or waits under `ticket`. If a client sent the request before, this
/// drops the messages of its earlier waits: the client could take them for the new answer.
pub(crate) fn sent_again(channel: Channel, id: u64, ticket: Option<u64>) {
    with(|notices| {
        let from = notices.posted.saturating_add(1);
        if let Some(asked) = notices.asked.get_mut(&(channel, id)) {
            asked.again = Some(Again { from, ticket });
        }
    });
}

/// The number of messages that wait here.
pub(crate) fn outgoing() -> usize {
    with(|notices| notices.outgoing.len()).unwrap_or(0)
}

/// A connection closed: grants to it are not published.
pub(crate) fn on_client_closed(client: u64) {
    with(|notices| {
        if !notices.outgoing.is_empty() {
            notices.closed.insert(client);
        }
    });
}

/// The turn ends: publishes messages within the budget.
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
        // Check after each message: it may have thousands of subscribers.
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
    let Message { ticket, notice, answer, .. } = message;
    let granted_until_us = match &answer {
        Answer::Granted(Grant { belief, .. }) => belief.map(|belief| belief.until_us),
        _ => None,
    };
    let is_grant = granted_until_us.is_some();
    if is_outdated {
        if is_grant {
            // The request that was sent again has its own grant, or waits for one.
            undo(ticket, Engine::undo_grants);
        }
        return let_go(notice.channel);
    }
    let is_closed = with(|notices| notices.closed.contains(&notice.client)) == Some(true);
    let answer = match answer {
        // The engine undid the grant when the connection closed.
        _ if is_grant && is_closed => Answer::Closed,
        // The client must not believe that it holds the lock.
        _ if granted_until_us.is_some_and(|until_us| until_us <= clock::mono_us()) => Answer::Ended,
        _ if is_grant && state::with_engine(|engine| engine.may_tell(ticket)) == Some(false) => Answer::Ended,
        // A replica cannot undo the grant. No client hears of it, and its lease expires on the new
        // master.
        _ if is_grant && !server::decides() => Answer::Demoted,
        answer => answer,
    };
    let has_ended = answer == Answer::Ended;
    let has_listeners = channels::has_listeners(ctx, notice.channel);
    if has_listeners {
        publish(ctx, notice, answer);
    }
    match is_grant {
        true if !has_listeners => undo(ticket, Engine::nobody_listened),
        // The hold itself may still live: another request of its owner may have extended it.
        true if has_ended => undo(ticket, Engine::undo_grants),
        true => state::tell(|engine| engine.confirm_ticket(ticket)),
        false => {}
    }
    let_go(notice.channel);
}

/// Undoes a grant that was not published, by the given method of the engine.
fn undo(ticket: u64, method: fn(&mut Engine, u64)) {
    state::tell(|engine| method(engine, ticket));
    timer::arm_soon();
    turn::wake_event_loop();
}

fn publish(ctx: Ctx<'_>, notice: Notice, answer: Answer) {
    let message = reply::message(ctx, notice, answer);
    if let Some(name) = channels::name_of(ctx, notice.channel) {
        ctx.publish(name.arg(), ctx.string(message.as_bytes()).arg(), server::is_cluster());
    }
}
