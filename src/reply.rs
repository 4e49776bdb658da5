//! The text of every reply: errors, and the messages to waiters with `NOTIFY`.

use std::borrow::Cow;

use rlock_core::{Answer, Belief, Grant, Kind, MayGrant, Notice, Refusal, WaitEdge};

use crate::exclusion;
use crate::ffi::Ctx;

pub(crate) use crate::ffi::INTERNAL_ERROR;

pub(crate) const WHILE_FINISHING: &str =
    "ERR rlock commands cannot run while it creates or deletes a key; call them after the keyspace event";
pub(crate) const READONLY: &str = "READONLY You can't write against a read only replica.";
pub(crate) const SESSION_WITHOUT_CONNECTION: &str =
    "ERR SESSION needs a client connection; scripts and other modules cannot use it";
pub(crate) const NOTIFY_WITHOUT_CONNECTION: &str =
    "ERR NOTIFY needs a client connection; scripts and other modules cannot use it";
pub(crate) const NOTIFY_WITHOUT_PERMISSION: &str =
    "NOPERM this user may not publish to the NOTIFY channel; allow it with ACL SETUSER user &pattern";
pub(crate) const NOTIFY_WITHOUT_BLOCK: &str =
    "ERR NOTIFY requires BLOCK and REQ; the REQ id identifies the answer on the channel";
pub(crate) const GRACE_WITHOUT_PLACE: &str =
    "ERR GRACE requires BLOCK or QUEUE; it applies to the place that they take in the queue";
pub(crate) const GRACE_OF_NO_PLACE: &str =
    "ERR QUEUE requires a GRACE above 0; with GRACE 0 its place, which has no connection, would not be kept";
pub(crate) const NOTIFY_WITHOUT_PUBSUB: &str =
    "ERR NOTIFY is unavailable: the PUBSUB command, which finds listeners, is renamed or disabled on this server";
pub(crate) const NOTIFY_IN_OTHER_SLOT: &str =
    "CROSSSLOT the NOTIFY channel must be in the slot of the keys; give it their {tag}";
pub(crate) const KEYS_CROSS_SLOTS: &str = "CROSSSLOT the keys are in different slots; give them a common {tag}";
pub(crate) const SLOT_MOVES: &str =
    "TRYAGAIN the slot of the keys is migrating, and some of the keys are on another node";
pub(crate) const NOTIFY_WITHOUT_NUMBER: &str =
    "MAXWAITERS waiting requests use too many NOTIFY channels; share channels, or retry later";
pub(crate) const EFFECT_FROM_CLIENT: &str =
    "ERR RLOCK.APPLY is internal; only a master or the append-only file may send it";
pub(crate) const EFFECT_UNREADABLE: &str = "ERR this effect cannot be parsed";
pub(crate) const EFFECT_MISFIT: &str = "ERR this effect does not fit the value of the key";

/// The error of a command for several keys, one of which the owner does not hold.
pub(crate) fn not_owner_of(key: &[u8]) -> String {
    format!("NOTOWNER this owner does not hold \"{}\"; its lease may have expired", shown(key))
}

/// The DEADLOCK error with the cycle, or as much of it as the engine kept.
///
/// If the user may not read a key, `*` stands for its name, its waiter and its holder. The owner
/// that gets this error is always named.
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

/// A name as errors show it: escaped as by redis-cli, and cut at 64 bytes.
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

/// Replies with the error of a refused request.
pub(crate) fn refusal(ctx: Ctx<'_>, refusal: Refusal) {
    ctx.reply_error(&refusal_text(ctx, ctx.client(), refusal));
}

/// The error of a refused request. It shows only keys that the user of the connection `client` may
/// read.
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
            format!("WRONGTYPE the key holds a {name}; use the {family} commands").into()
        }
        // For a command with several keys, `crate::commands::many` names the key.
        Refusal::NotOwner { .. } => "NOTOWNER this owner does not hold the lock; its lease may have expired".into(),
        // Clients read the number at the end.
        Refusal::Stale { last_id } => {
            format!("STALE an owner's request ids must rise; the last one for this key was {last_id}").into()
        }
        Refusal::CountOverflow => format!("ERR the owner holds the lock {} times, the maximum", u32::MAX).into(),
        Refusal::CountUnderflow { held } => format!("ERR the owner holds only {held}").into(),
        Refusal::KeepsReentered { held } => {
            format!("ERR KEEP ends a hold, but the owner has acquired this one {held} times; release the others first")
                .into()
        }
        Refusal::HoldsOther { held } => {
            format!("ERR with ONCE the owner must ask for the number of permits that it holds, which is {held}").into()
        }
        Refusal::Deadlock(cycle) => deadlock(ctx, client, &cycle).into(),
        Refusal::TooManyPermits { permits } => {
            format!("ERR the semaphore has {permits} permits, fewer than requested").into()
        }
        Refusal::NoSemaphore => "NOSEMAPHORE this key holds no semaphore; create one with RSEMAPHORE.INIT".into(),
        Refusal::NoPermission => {
            "NOPERM this user may no longer acquire the lock; its ACL rules changed while it waited".into()
        }
        Refusal::NoTokens => {
            "NOTOKENS this server has no fencing tokens left, because it loaded a damaged or forged file; \
             see rlock_tokens_left in docs/operations/monitoring.md"
                .into()
        }
        Refusal::MaxPlaces { limit } => {
            format!("MAXWAITERS the queue of this lock may have at most {limit} places; see rlock.max-places").into()
        }
        // Clients read the number before `ms left`.
        Refusal::Quarantine { left_ms } => {
            format!("QUARANTINE {}", exclusion::reason(MayGrant::Quarantine { left_ms })).into()
        }
        Refusal::NoReplicas => format!("NOREPLICAS {}", exclusion::reason(MayGrant::NoReplicas)).into(),
        Refusal::TooManyReplicas => format!("NOREPLICAS {}", exclusion::reason(MayGrant::TooManyReplicas)).into(),
        Refusal::MaxWaiters { limit } => {
            format!("MAXWAITERS at most {limit} requests may wait on this server; see rlock.max-waiters").into()
        }
    }
}

/// Replies with the tokens of a granted request, and with `TIMED` for how long it can be believed.
pub(crate) fn granted(ctx: Ctx<'_>, Grant { mut tokens, is_many, belief }: Grant) {
    tokens.extend(belief.map(Belief::ms));
    match tokens.as_slice() {
        [token] if !is_many => ctx.reply_integer(*token),
        _ => ctx.reply_integers(tokens.into_iter()),
    }
}

/// Sends the answer to a blocked waiter.
pub(crate) fn answer(ctx: Ctx<'_>, answer: Answer) {
    match answer {
        Answer::Granted(grant) => granted(ctx, grant),
        Answer::TimedOut => ctx.reply_nil(),
        other => ctx.reply_error(&error_text(ctx, ctx.client(), other)),
    }
}

/// The answer to a waiter with `NOTIFY`, as a message on its channel.
pub(crate) fn message(ctx: Ctx<'_>, Notice { id, client, .. }: Notice, answer: Answer) -> String {
    match answer {
        Answer::Granted(Grant { tokens, belief, .. }) => {
            let tokens: String = tokens.iter().map(|token| format!("{token} ")).collect();
            format!("granted {id} {tokens}for {}", belief.map_or(0, Belief::ms))
        }
        Answer::TimedOut => format!("nil {id}"),
        other => format!("error {id} {}", error_text(ctx, client, other)),
    }
}

/// The text of an answer that is an error.
fn error_text(ctx: Ctx<'_>, client: u64, answer: Answer) -> Cow<'static, str> {
    match answer {
        Answer::Refused(refusal) => refusal_text(ctx, client, refusal),
        Answer::Cancelled => "UNBLOCKED the request was cancelled".into(),
        Answer::Closed => "UNBLOCKED the connection that sent the request has closed".into(),
        Answer::Ended => "UNBLOCKED the lock was granted, but the hold ended before this answer was sent".into(),
        Answer::Demoted => "UNBLOCKED this server is a replica now".into(),
        Answer::Moved => "UNBLOCKED another node of the cluster serves the keys now".into(),
        Answer::Superseded | Answer::Continued | Answer::TimedOut | Answer::Granted(_) => {
            "SUPERSEDED a newer request of this owner replaced this one; do not retry".into()
        }
    }
}
