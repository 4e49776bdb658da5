//! The way of every write: open the key, let the engine decide and apply, then do what it left in the outbox.
//!
//! The rest comes after the engine has returned: propagate, give the keyspace new values and delete removed ones, close the
//! keys, notify, reply, wake. A listener of a keyspace event may call rlock's commands then: no change is half done. The server
//! also tells other modules of each key while `Keys::finish` creates or deletes it; that step refuses rlock's commands.

use rlock_core::{
    Effect, Engine, Event, Facts, Key, KeyId, KeyRef, Keyspace, Now, Outbox, Refusal, Transaction, slot_of,
    write_effect,
};

use smallvec::SmallVec;

use crate::clock;
use crate::configuration;
use crate::ffi::{Arg, Asks, Ctx, Keys, MainThreadNumber, guard, log_warning};
use crate::notices;
use crate::propagation;
use crate::quarantine;
use crate::reply;
use crate::server;
use crate::state;
use crate::timer;
use crate::waiting;

/// The key of a request that has one.
pub(crate) const KEY: KeyId = KeyId(0);

/// From where the engine is driven.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Within {
    Command,
    Timer,
}

impl Within {
    /// A command stands for its effects while nobody listens. The timer has no request that could be passed on in their
    /// place, and propagates them always.
    fn outbox(self) -> Outbox {
        Outbox::new(propagation::is_on() || self == Self::Timer)
    }
}

/// Decides about keys, does what was decided, and replies. [`KeyId`]s count them in the order of `names`.
pub(crate) fn on_keys<'c, R>(
    ctx: Ctx<'c>,
    names: &[Arg<'c>],
    decide: impl FnOnce(&mut Engine, &mut Transaction<'_, Keys<'c>>) -> Result<R, Refusal>,
    reply: impl FnOnce(Result<R, Refusal>),
) {
    if FINISHING.get() != 0 {
        return ctx.reply_error(reply::WHILE_FINISHING);
    }
    let mut out = Within::Command.outbox();
    let decided = transact(ctx, names, Asks::Client, &mut out, decide);
    let Some((result, next)) = decided else {
        ctx.reply_error(reply::INTERNAL_ERROR);
        return wake(&mut out);
    };
    // Before the wake: the server writes to the client that it was last told of first, so the next holder hears of its lock
    // before this client hears that it gave it up.
    reply(result);
    wake(&mut out);
    if next.has_offers {
        while take_next_offer(ctx, Within::Command, |key| is_beside(next.db, names, key)) {}
        timer::arm();
    } else {
        timer::arm_for(next.timeout_us);
    }
}

/// The same for one key, with the usual reply to a refusal.
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

/// Does what there is to do about a key whose time has come.
pub(crate) fn run_job(ctx: Ctx<'_>, name: Arg<'_>) {
    let mut out = Within::Timer.outbox();
    transact(ctx, &[name], Asks::Module, &mut out, |engine, tx| engine.run_job(tx));
    wake(&mut out);
}

/// Grants a waiter that was offered many keys and had to be left to the timer, or that a job of the timer has offered them. `false`
/// if there is none.
pub(crate) fn run_offer(ctx: Ctx<'_>) -> bool {
    take_next_offer(ctx, Within::Timer, |_| true)
}

/// Whether a command on keys with these names in database `db` may open `key` as well. While a
/// command runs, a cluster takes every key for one of that command's slot (`getKeySlot`, from Redis
/// 7.4 and Valkey 8.0 on): it would look for another one in the wrong place, and put it there. And
/// a command that selects another database leaves its client there.
fn is_beside(db: u32, names: &[Arg<'_>], key: KeyRef<'_>) -> bool {
    let is_in_slot = |name: &Arg<'_>| slot_of(name.bytes()) == slot_of(key.name);
    key.db == db && (!server::is_cluster() || names.first().is_some_and(is_in_slot))
}

/// Grants a waiter for many keys that can have all of them, now that the keys that brought it about are closed.
fn take_next_offer(ctx: Ctx<'_>, within: Within, can_be_opened: impl FnOnce(KeyRef<'_>) -> bool) -> bool {
    let next = state::with_engine(|engine| engine.next_offer(can_be_opened)).flatten();
    if let Some((offer, keys)) = &next {
        take_offer(ctx, within, *offer, keys);
    }
    next.is_some()
}

fn take_offer(ctx: Ctx<'_>, within: Within, offer: rlock_core::Offer, keys: &[Key]) {
    let Some(first) = keys.first() else {
        return;
    };
    if !ctx.select_db(first.db) {
        return;
    }
    let names: Vec<_> = keys.iter().map(|key| ctx.string(key.name.as_slice())).collect();
    let args: Vec<Arg<'_>> = names.iter().map(|name| name.arg()).collect();
    // All are in one slot of a cluster. A key of a slot that is on its way to another node may be there already.
    if server::is_cluster() && !server::serves(ctx, &args) {
        state::tell(|engine| engine.postpone(first.borrow(), clock::now()));
    } else {
        let mut out = within.outbox();
        transact(ctx, &args, Asks::Module, &mut out, |engine, tx| engine.take_offer(tx, offer));
        wake(&mut out);
    }
}

/// What there is to do after a transaction.
struct Next {
    /// The database of its keys.
    db: u32,
    has_offers: bool,
    timeout_us: Option<u64>,
}

/// Set while the server makes and deletes the keys of a transaction.
static FINISHING: MainThreadNumber = MainThreadNumber::new();

/// Opens keys, gives them to the engine, closes them, and publishes the changes. `None` if the engine panics, which is
/// logged, or if there are no keys. The changes that the engine had made by then are true here, and so are propagated.
fn transact<'c, R>(
    ctx: Ctx<'c>,
    names: &[Arg<'c>],
    asks: Asks,
    out: &mut Outbox,
    decide: impl FnOnce(&mut Engine, &mut Transaction<'_, Keys<'c>>) -> R,
) -> Option<(R, Next)> {
    let (first, rest) = names.split_first()?;
    let mut keys = Keys::open(ctx, *first, rest, asks);
    let now = clock::now();
    let limits = configuration::limits(quarantine::may_grant(now.mono_us));
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
        // A listener may run commands of ours, and finds everything at rest.
        if let (Some(keyspace_event), Some(name)) = (effect.keyspace_event, names.get(effect.key.0)) {
            ctx.notify(keyspace_event, *name);
        }
    }
    result
}

/// Tells the server which keys have changed, each once.
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

/// Propagates what happened. The keyspace's listeners are told afterwards: what a listener does comes after all of this in the
/// stream, as it does here.
#[inline]
fn propagate(ctx: Ctx<'_>, names: &[Arg<'_>], now: Now, out: &Outbox) {
    for (number, Effect { key, .. }) in out.effects().iter().enumerate() {
        match (out.event(number), names.get(key.0)) {
            (Some(event), Some(name)) => propagate_event(ctx, *name, now, event),
            // The command stands for it to nobody but the server, which counts the changes.
            _ => ctx.replicate_verbatim(),
        }
    }
}

fn propagate_event(ctx: Ctx<'_>, name: Arg<'_>, now: Now, event: &Event) {
    let mut facts = Facts::default();
    let arguments = write_effect(event, now, &mut facts);
    ctx.replicate_effect(name, &facts, arguments);
}

/// Answers the waiters that have an answer.
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

/// Tells the keyspace's listeners of an event.
pub(crate) fn announce(ctx: Ctx<'_>, name: Arg<'_>, event: &Event) {
    if let Some(keyspace_event) = event.keyspace_event() {
        ctx.notify(keyspace_event, name);
    }
}

/// Applies an effect that a master decided. Nothing is propagated from here: the command passes itself on.
pub(crate) fn apply(ctx: Ctx<'_>, name: Arg<'_>, event: &Event) -> Result<(), &'static str> {
    let mut keys = Keys::open(ctx, name, &[], Asks::Module);
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
        // A master is sent effects only with a slot that Valkey moves to it: the value comes here without its connections.
        state::tell(|engine| engine.value_arrived(key.borrow()));
        timer::arm_soon();
    } else if state::with_engine(|engine| engine.has_to_observe()) == Some(true) {
        // Much that ended at once is cleaned up in parts.
        timer::arm_soon();
    }
    applied
}
