//! The path of every write: open the keys, let the engine decide and apply, then carry out what it
//! put into the outbox.
//!
//! The module carries out the outbox after the engine has returned, in this order: propagate the
//! effects, store new values and delete removed ones, close the keys, send keyspace events, reply,
//! wake waiters. So a listener of a keyspace event may call rlock's commands, and sees no change
//! half done. The server also notifies other modules while `Keys::finish` creates or deletes a key;
//! during that step rlock's writing commands fail.

use rlock_core::{
    Effect, Engine, Event, Facts, Job, Key, KeyId, KeyRef, Keyspace, Now, Outbox, Refusal, Transaction, slot_of,
    write_effect,
};

use smallvec::SmallVec;

use crate::clock;
use crate::exclusion;
use crate::ffi::{Arg, Caller, Ctx, Keys, MainThreadNumber, guard, log_warning};
use crate::notices;
use crate::propagation;
use crate::reply;
use crate::server;
use crate::state;
use crate::timer;
use crate::waiting;

/// The key of a request for one key.
pub(crate) const KEY: KeyId = KeyId(0);

/// What started a transaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Trigger {
    Command,
    Timer,
}

impl Trigger {
    /// While nothing listens, the command itself stands in for its effects: the server drops it and
    /// only counts a change (`propagation.rs`). The timer has no command to propagate, so it always
    /// propagates the effects.
    fn outbox(self) -> Outbox {
        Outbox::new(propagation::is_on() || self == Self::Timer)
    }
}

/// Opens keys, lets the engine decide, carries out the decision, and replies. [`KeyId`]s number the
/// keys in the order of `names`.
pub(crate) fn on_keys<'c, R>(
    ctx: Ctx<'c>,
    names: &[Arg<'c>],
    decide: impl FnOnce(&mut Engine, &mut Transaction<'_, Keys<'c>>) -> Result<R, Refusal>,
    reply: impl FnOnce(Result<R, Refusal>),
) {
    if FINISHING.get() != 0 {
        return ctx.reply_error(reply::WHILE_FINISHING);
    }
    let mut out = Trigger::Command.outbox();
    let decided = transact(ctx, names, Caller::Client, &mut out, decide);
    let Some((result, next)) = decided else {
        ctx.reply_error(reply::INTERNAL_ERROR);
        return wake(&mut out);
    };
    // The server writes to clients in the reverse order of queued replies, so reply first: the next
    // holder then gets its grant first.
    reply(result);
    wake(&mut out);
    if next.has_offers {
        while take_next_offer(ctx, Trigger::Command, |key| may_also_open(next.db, names, key)) {}
        timer::arm();
    } else {
        timer::arm_for(next.timeout_us);
    }
}

/// Like [`on_keys`] for one key, with the usual reply to a refusal.
pub(crate) fn on_key<'c, R>(
    ctx: Ctx<'c>,
    name: Arg<'c>,
    decide: impl FnOnce(&mut Engine, &mut Transaction<'_, Keys<'c>>) -> Result<R, Refusal>,
    reply: impl FnOnce(R),
) {
    on_keys(ctx, &[name], decide, |result| match result {
        Ok(result) => reply(result),
        Err(refusal) => reply::refusal(ctx, refusal),
    });
}

/// Runs the timer's job for a key: see `Engine::run_job`.
pub(crate) fn run_job(ctx: Ctx<'_>, name: Arg<'_>, job: &Job) {
    let mut out = Trigger::Timer.outbox();
    transact(ctx, &[name], Caller::Module, &mut out, |engine, tx| engine.run_job(tx, job));
    wake(&mut out);
}

/// The timer takes the next offer of several keys, no matter whether a command or the timer made
/// it. Returns whether there was an offer.
pub(crate) fn run_offer(ctx: Ctx<'_>) -> bool {
    take_next_offer(ctx, Trigger::Timer, |_| true)
}

/// Whether a command on the keys `names` in database `db` may open `key` as well.
///
/// In a cluster `key` must be in the slot of the command. From Redis 7.4 and Valkey 8.0 on, the
/// server assumes that every key of a running command is in the command's slot (`getKeySlot`). It
/// would look for a key of another slot in the wrong place, and create it there. The database must
/// not change: a command that selects another database leaves its client in that database.
fn may_also_open(db: u32, names: &[Arg<'_>], key: KeyRef<'_>) -> bool {
    let is_in_slot = |name: &Arg<'_>| slot_of(name.bytes()) == slot_of(key.name);
    key.db == db && (!server::is_cluster() || names.first().is_some_and(is_in_slot))
}

/// Takes the next offer: grants a waiter for several keys that can have all of them. Call this
/// after the keys whose change led to the offer are closed.
fn take_next_offer(ctx: Ctx<'_>, trigger: Trigger, can_be_opened: impl FnOnce(KeyRef<'_>) -> bool) -> bool {
    let next = state::with_engine(|engine| engine.next_offer(can_be_opened)).flatten();
    if let Some((offer, keys)) = &next {
        take_offer(ctx, trigger, *offer, keys);
    }
    next.is_some()
}

fn take_offer(ctx: Ctx<'_>, trigger: Trigger, offer: rlock_core::Offer, keys: &[Key]) {
    let Some(first) = keys.first() else {
        return;
    };
    if !ctx.select_db(first.db) {
        return;
    }
    let names: Vec<_> = keys.iter().map(|key| ctx.string(key.name.as_slice())).collect();
    let args: Vec<Arg<'_>> = names.iter().map(|name| name.arg()).collect();
    // In a cluster all keys are in one slot. If that slot is migrating, some keys may be on the
    // other node already.
    if server::is_cluster() && !server::serves(ctx, &args) {
        state::tell(|engine| engine.postpone(first.clone().into(), clock::now()));
    } else {
        let mut out = trigger.outbox();
        transact(ctx, &args, Caller::Module, &mut out, |engine, tx| engine.take_offer(tx, offer));
        wake(&mut out);
    }
}

/// The work after a transaction.
struct Next {
    /// The database of its keys.
    db: u32,
    has_offers: bool,
    timeout_us: Option<u64>,
}

/// Set while the server creates and deletes the keys of a transaction.
static FINISHING: MainThreadNumber = MainThreadNumber::new();

/// Opens keys, runs the engine on them, closes them, and publishes the changes.
///
/// `None` if there are no keys, or if the engine panics, which is logged. This server keeps the
/// changes made before a panic, so they are propagated too.
fn transact<'c, R>(
    ctx: Ctx<'c>,
    names: &[Arg<'c>],
    caller: Caller,
    out: &mut Outbox,
    decide: impl FnOnce(&mut Engine, &mut Transaction<'_, Keys<'c>>) -> R,
) -> Option<(R, Next)> {
    let (first, rest) = names.split_first()?;
    let mut keys = Keys::open(ctx, *first, rest, caller);
    let now = clock::now();
    let limits = exclusion::limits(now.mono_us);
    let db = keys.key(KEY).db;
    let result = guard(None, || {
        state::with_engine(|engine| {
            let result = decide(engine, &mut Transaction::new(now, limits, &mut keys, out));
            (result, Next { db, has_offers: engine.has_offers(), timeout_us: engine.next_timeout_us() })
        })
    });
    let effects = out.effects();
    propagate(ctx, names, now, out);
    FINISHING.with_set(1, || keys.finish());
    for effect in effects {
        if effect.clears_expire {
            keys.clear_expire(effect.key);
        }
    }
    drop(keys);
    signal_modified(ctx, names, effects);
    for effect in effects {
        // A listener may run rlock's commands: every change is done, and the engine is not in use.
        if let (Some(keyspace_event), Some(name)) = (effect.keyspace_event, names.get(effect.key.0)) {
            ctx.notify(keyspace_event, *name);
        }
    }
    result
}

/// Signals each changed key to the server, once.
#[inline]
fn signal_modified(ctx: Ctx<'_>, names: &[Arg<'_>], effects: &[Effect]) {
    if let ([name], [_, ..]) = (names, effects) {
        return ctx.signal_modified(*name);
    }
    let mut signalled: SmallVec<[KeyId; 8]> = SmallVec::new();
    for Effect { key, .. } in effects {
        if !signalled.contains(key)
            && let Some(name) = names.get(key.0)
        {
            signalled.push(*key);
            ctx.signal_modified(*name);
        }
    }
}

/// Propagates the effects. Do this before the keyspace events: the commands of a listener then
/// follow the effects in the replication stream, as they do on this server.
#[inline]
fn propagate(ctx: Ctx<'_>, names: &[Arg<'_>], now: Now, out: &Outbox) {
    for (number, Effect { key, .. }) in out.effects().iter().enumerate() {
        match (out.event(number), names.get(key.0)) {
            (Some(event), Some(name)) => propagate_event(ctx, *name, now, event),
            // Nothing listens. The call only makes the server count a change, for its save points.
            _ => ctx.replicate_verbatim(),
        }
    }
}

fn propagate_event(ctx: Ctx<'_>, name: Arg<'_>, now: Now, event: &Event) {
    let mut facts = Facts::default();
    let arguments = write_effect(event, now, &mut facts);
    ctx.replicate_effect(name, &facts, arguments);
}

/// Sends the answers of the outbox to their waiters.
#[inline]
pub(crate) fn wake(out: &mut Outbox) {
    if !out.answers().is_empty() {
        give_answers(out);
    }
}

fn give_answers(out: &mut Outbox) {
    for told in out.take_answers() {
        match told.notice {
            Some(notice) => notices::post(told, notice),
            None => waiting::finish(told.ticket, told.answer),
        }
    }
}

/// Publishes the keyspace event of an effect, if it has one.
pub(crate) fn announce(ctx: Ctx<'_>, name: Arg<'_>, event: &Event) {
    if let Some(keyspace_event) = event.keyspace_event() {
        ctx.notify(keyspace_event, name);
    }
}

/// Applies a master's event (its propagated effect). It propagates nothing: RLOCK.APPLY propagates
/// itself.
pub(crate) fn apply(ctx: Ctx<'_>, name: Arg<'_>, event: &Event) -> Result<(), &'static str> {
    let mut keys = Keys::open(ctx, name, &[], Caller::Module);
    let clears_expire = keys.value(KEY).clears_expire(event);
    let applied =
        state::with_engine(|engine| engine.apply_effect(&mut keys, KEY, event)).unwrap_or(Err("the engine is in use"));
    FINISHING.with_set(1, || keys.finish());
    if applied.is_ok() && clears_expire {
        keys.clear_expire(KEY);
    }
    let key = keys.key(KEY).to_key();
    drop(keys);
    match applied {
        Ok(()) => ctx.signal_modified(name),
        Err(reason) => log_warning(&format!(
            "an effect could not be applied to \"{}\": {reason}; this server may differ from its master",
            key.name.as_slice().escape_ascii()
        )),
    }
    let flags = ctx.flags();
    if flags.is_master() && !flags.is_loading() {
        // A master gets effects only when Valkey migrates a slot to it. The value arrives without
        // the connections of its sessions and places.
        state::tell(|engine| engine.value_arrived(key.borrow()));
        timer::arm_soon();
    } else if state::with_engine(|engine| engine.has_to_observe()) == Some(true) {
        // If one effect ended a large value, the engine cleans up after it in parts.
        timer::arm_soon();
    }
    applied
}
