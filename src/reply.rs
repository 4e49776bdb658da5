//! The strings on the wire.

use std::borrow::Cow;

use rlock_core::{Answer, Kind, Notice, Refusal, WaitEdge};

use crate::ffi::Ctx;
use crate::quarantine;

// The reply to a command that panicked.
pub(crate) use crate::ffi::INTERNAL_ERROR;

pub(crate) const WHILE_FINISHING: &str =
    "ERR commands of rlock cannot run while it creates or deletes a key: call them after the event";
pub(crate) const READONLY: &str = "READONLY You can't write against a read only replica.";
pub(crate) const SESSION_WITHOUT_CONNECTION: &str =
    "ERR SESSION needs a connection of its own: it cannot be used in scripts and by other modules";
pub(crate) const NOTIFY_WITHOUT_CONNECTION: &str =
    "ERR NOTIFY needs a connection of its own: it cannot be used in scripts and by other modules";
pub(crate) const NOTIFY_WITHOUT_PERMISSION: &str =
    "NOPERM this user has no permission to publish to the channel of NOTIFY: see ACL SETUSER, &pattern";
pub(crate) const NOTIFY_WITHOUT_BLOCK: &str =
    "ERR NOTIFY belongs to BLOCK ms, and needs REQ id: by the id the answer is told from others on the channel";
pub(crate) const CLAIM_WITHOUT_BLOCK: &str =
    "ERR CLAIM belongs to BLOCK ms: it is about a hold that begins after a wait";
pub(crate) const GRACE_WITHOUT_PLACE: &str =
    "ERR GRACE belongs to BLOCK ms or QUEUE ms: it is about the place that they take";
pub(crate) const GRACE_OF_NO_PLACE: &str =
    "ERR GRACE 0 keeps no place without a connection, which is what QUEUE asks for";
pub(crate) const NOTIFY_WITHOUT_PUBSUB: &str = "ERR NOTIFY is not possible on this server: its command PUBSUB is renamed or disabled, and by it the module sees who listens";
pub(crate) const NOTIFY_IN_OTHER_SLOT: &str =
    "CROSSSLOT the channel of NOTIFY is one of a shard, and must be in the slot of the keys: give it their {tag}";
pub(crate) const KEYS_CROSS_SLOTS: &str =
    "CROSSSLOT the keys are not all in one slot of the cluster: give them a {tag} in common";
pub(crate) const SLOT_MOVES: &str =
    "TRYAGAIN the slot of the keys is on its way to another node, and not all of them are here";
pub(crate) const NOTIFY_WITHOUT_NUMBER: &str =
    "MAXWAITERS requests wait for answers on so many channels that there is no number for another one";
pub(crate) const EFFECT_FROM_CLIENT: &str =
    "ERR RLOCK.APPLY is internal: it is taken only from a master or from the append-only file";
pub(crate) const EFFECT_UNREADABLE: &str = "ERR this effect cannot be read";
pub(crate) const EFFECT_MISFIT: &str = "ERR the key holds something else than this effect is about";

/// NOTOWNER of one of several keys.
pub(crate) fn not_owner_of(key: &[u8]) -> String {
    format!("NOTOWNER this owner does not hold \"{}\": it never did, or its lease has ended", shown(key))
}

/// CLAIM of several keys, one of which is held.
pub(crate) fn claims_held(key: &[u8]) -> String {
    format!("ERR CLAIM is for holds that begin, and this owner holds \"{}\" already", shown(key))
}

/// DEADLOCK with the cycle, or as much of it as was kept. Of a key that the user may not read neither the name is told nor who
/// waits for it or holds it, but for the owner that asks.
fn deadlock(ctx: Ctx<'_>, client: u64, cycle: &[WaitEdge]) -> String {
    let (me, user) = (cycle.first().map(|edge| &edge.waiter), ctx.user_of(client));
    let edge = |edge: &WaitEdge| {
        let key = ctx.string(edge.key.name.as_slice());
        let may_read = user.as_ref().is_some_and(|user| user.may_read(key.arg()));
        let owner = |owner| if may_read || Some(owner) == me { shown(owner.as_slice()) } else { "*".to_string() };
        let key = if may_read { shown(edge.key.name.as_slice()) } else { "*".to_string() };
        let how = if edge.is_held { "held by" } else { "behind" };
        format!("{} waits for {key} {how} {}", owner(&edge.waiter), owner(&edge.ahead))
    };
    let edges: Vec<String> = cycle.iter().map(edge).collect();
    format!("DEADLOCK the owner would wait for itself: {}", edges.join(", "))
}

/// A name in an error: escaped as redis-cli shows it, and cut at 64 bytes.
pub(crate) fn shown(name: &[u8]) -> String {
    const MAX_SHOWN: usize = 64;
    let mut text = String::new();
    for byte in name.iter().take(MAX_SHOWN) {
        match byte {
            b'\\' | b'"' => text.extend(['\\', char::from(*byte)]),
            b'\n' => text.push_str("\\n"),
            b'\r' => text.push_str("\\r"),
            b'\t' => text.push_str("\\t"),
            b' '..=b'~' => text.push(char::from(*byte)),
            _ => text.push_str(&format!("\\x{byte:02x}")),
        }
    }
    text
}

/// Why a request changed nothing, for the person who gets it.
pub(crate) fn refusal(ctx: Ctx<'_>, refusal: Refusal) {
    ctx.reply_error(&refusal_text(ctx, ctx.client(), refusal));
}

/// The text of an error, for the user of the connection `client`.
fn refusal_text(ctx: Ctx<'_>, client: u64, refusal: Refusal) -> Cow<'static, str> {
    match refusal {
        Refusal::WrongType { found: None } => {
            "WRONGTYPE Operation against a key holding the wrong kind of value".into()
        }
        Refusal::WrongType { found: Some(kind) } => {
            let (name, family) = match kind {
                Kind::Mutex => ("mutex", "RLOCK"),
                Kind::Fair => ("fair lock", "RFAIRLOCK"),
                Kind::RwLock => ("read-write lock", "RRWLOCK"),
                Kind::Semaphore => ("semaphore", "RSEMAPHORE"),
            };
            format!("WRONGTYPE the key holds a {name}, which the commands of {family} are for").into()
        }
        // A command for many keys names the one that is meant: see `crate::commands::many`.
        Refusal::NotOwner { .. } => {
            "NOTOWNER this owner does not hold the lock: it never did, or its lease has ended".into()
        }
        Refusal::Stale { last_id } => {
            format!("STALE request ids of an owner rise, and the last one here was {last_id}").into()
        }
        Refusal::CountOverflow => {
            format!("ERR the owner holds the lock {} times, and more cannot be counted", u32::MAX).into()
        }
        Refusal::CountUnderflow { held } => format!("ERR the owner holds only {held}").into(),
        Refusal::KeepsReentered { held } => {
            format!("ERR KEEP ends a hold, and the owner has acquired this one {held} times: release the others first")
                .into()
        }
        // A command for many keys names the one that is meant: see `crate::commands::many`.
        Refusal::ClaimsHeld { .. } => {
            "ERR CLAIM is for holds that begin, and the owner holds one of the keys already".into()
        }
        Refusal::HoldsOther { held } => {
            format!("ERR ONCE asks for another number of permits than the owner holds, which is {held}").into()
        }
        Refusal::Deadlock(cycle) => deadlock(ctx, client, &cycle).into(),
        Refusal::TooManyPermits { permits } => {
            format!("ERR the semaphore has {permits} permits, more cannot be asked for at once").into()
        }
        Refusal::NoSemaphore => {
            "NOSEMAPHORE there is no semaphore under this key; make one with RSEMAPHORE.INIT".into()
        }
        Refusal::NoPermission => {
            "NOPERM this user has no permission any more to acquire the lock; its rights were changed while it waited"
                .into()
        }
        Refusal::NoTokens => "NOTOKENS the fencing tokens of this server are used up, because a clock or a file was \
             wrong; see rlock_tokens_left in docs/operations.md"
            .into(),
        Refusal::MaxPlaces { limit } => {
            format!("MAXWAITERS {limit} places are all that the queue of this lock may have, see rlock.max-places")
                .into()
        }
        Refusal::Quarantine { left_ms } => format!(
            "QUARANTINE {}, and locks that were granted before may still be held; {left_ms} ms left",
            quarantine::reason()
        )
        .into(),
        Refusal::NoReplicas => "NOREPLICAS too few replicas follow this master, see rlock.min-replicas".into(),
        Refusal::MaxWaiters { limit } => {
            format!("MAXWAITERS {limit} requests may wait at once on this server, see rlock.max-waiters").into()
        }
    }
}

/// What a waiter is told in the end.
pub(crate) fn answer(ctx: Ctx<'_>, answer: Answer) {
    match answer {
        Answer::Granted(token) => ctx.reply_integer(token),
        Answer::GrantedMany(tokens) => ctx.reply_integers(tokens.into_iter()),
        Answer::TimedOut => ctx.reply_nil(),
        other => ctx.reply_error(&error_text(ctx, ctx.client(), other)),
    }
}

/// The same as a message on a channel.
pub(crate) fn message(ctx: Ctx<'_>, Notice { id, client, .. }: Notice, answer: Answer) -> String {
    match answer {
        Answer::Granted(token) => format!("granted {id} {token}"),
        Answer::GrantedMany(tokens) => {
            let tokens: Vec<String> = tokens.iter().map(u64::to_string).collect();
            format!("granted {id} {}", tokens.join(" "))
        }
        Answer::TimedOut => format!("nil {id}"),
        other => format!("error {id} {}", error_text(ctx, client, other)),
    }
}

/// The answers that are errors.
fn error_text(ctx: Ctx<'_>, client: u64, answer: Answer) -> Cow<'static, str> {
    match answer {
        Answer::Refused(refusal) => refusal_text(ctx, client, refusal),
        Answer::Cancelled => "UNBLOCKED the request was cancelled".into(),
        Answer::Closed => "UNBLOCKED the connection that asked has closed".into(),
        Answer::Expired => "UNBLOCKED the lock was granted, and its lease ended before this could be told".into(),
        Answer::Demoted => "UNBLOCKED this server is a replica now".into(),
        Answer::Moved => "UNBLOCKED another node of the cluster serves the keys now".into(),
        Answer::Superseded | Answer::Continued | Answer::TimedOut | Answer::Granted(_) | Answer::GrantedMany(_) => {
            "SUPERSEDED another request of this owner has taken its place; do not ask again".into()
        }
    }
}
