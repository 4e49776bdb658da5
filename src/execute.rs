//! The way of every write: open the key, let the engine decide and apply, then do what it left in the outbox.
//!
//! What is outside comes after the engine has returned and the key is closed, in the order of the outbox: propagate,
//! notify, reply, wake. Listeners of a keyspace event may call commands of ours; they find everything at rest.

use rlock_core::{
    Engine, Event, Facts, Key, KeyId, Keyspace, Now, Outbox, Output, Owner, Refusal, Transaction, write_effect,
};

use crate::clock;
use crate::configuration;
use crate::ffi::{Arg, Asks, Ctx, Keys, log_warning};
use crate::propagation;
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

/// Decides about keys, does what was decided, and replies. [`KeyId`]s count them in the order of `names`.
pub(crate) fn on_keys<'c, R>(
    ctx: Ctx<'c>,
    names: &[Arg<'c>],
    decide: impl FnOnce(&mut Engine, &mut Transaction<'_, Keys<'c>>) -> Result<R, Refusal>,
    reply: impl FnOnce(Result<R, Refusal>),
) {
    let mut out = Outbox::default();
    let result = transact(ctx, names, (Within::Command, Asks::Client), &mut out, decide);
    // Before the wake: the server writes to the client that it was last told of first, so the next holder hears of its lock
    // before this client hears that it gave it up.
    match result {
        Some(result) => reply(result),
        None => ctx.reply_error(reply::INTERNAL_ERROR),
    }
    wake(&mut out);
    take_offers(ctx, Within::Command);
    timer::arm();
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
    let mut out = Outbox::default();
    transact(ctx, &[name], (Within::Timer, Asks::Module), &mut out, |engine, tx| engine.run_job(tx));
    wake(&mut out);
    take_offers(ctx, Within::Timer);
}

/// Grants the waiters for many keys that can have all of them, now that the keys that brought it about are closed.
fn take_offers(ctx: Ctx<'_>, within: Within) {
    while let Some((offer, keys)) = state::with_engine(Engine::next_offer).flatten() {
        take_offer(ctx, within, offer, &keys);
    }
}

fn take_offer(ctx: Ctx<'_>, within: Within, offer: rlock_core::Offer, keys: &[Key]) {
    let Some(first) = keys.first() else {
        return;
    };
    let db = ctx.db();
    if !ctx.select_db(first.db) {
        return;
    }
    let names: Vec<_> = keys.iter().map(|key| ctx.string(key.name.as_slice())).collect();
    let args: Vec<Arg<'_>> = names.iter().map(|name| name.arg()).collect();
    // All are in one slot of a cluster. A key of a slot that is on its way to another node may be there already.
    if server::is_cluster() && !args.iter().all(|name| ctx.serves(*name)) {
        state::tell(|engine| engine.postpone(first.borrow(), clock::now()));
    } else {
        let mut out = Outbox::default();
        transact(ctx, &args, (within, Asks::Module), &mut out, |engine, tx| engine.take_offer(tx, offer));
        wake(&mut out);
    }
    ctx.select_db(db);
}

/// Opens keys, gives them to the engine, closes them, and tells of what has changed. `None` if the engine is in use.
fn transact<'c, R>(
    ctx: Ctx<'c>,
    names: &[Arg<'c>],
    (within, asks): (Within, Asks),
    out: &mut Outbox,
    decide: impl FnOnce(&mut Engine, &mut Transaction<'_, Keys<'c>>) -> R,
) -> Option<R> {
    let mut keys = Keys::open(ctx, names, asks);
    let (now, limits) = (clock::now(), configuration::limits());
    let result = state::with_engine(|engine| decide(engine, &mut Transaction::new(now, limits, &mut keys, out)));
    close(ctx, &mut keys, out);
    // Also while nobody listens the timer does: outside of a command there is no request to be passed on in place of effects.
    if propagation::is_on() || within == Within::Timer {
        propagate(ctx, &keys, now, out);
    } else {
        // A command stands for its effects to nobody but the server, which counts the changes.
        events(out).for_each(|_| ctx.replicate_verbatim());
    }
    announce_all(ctx, &keys, out);
    result
}

/// The events in the outbox, with their keys.
fn events(out: &Outbox) -> impl Iterator<Item = (KeyId, &Event)> {
    out.as_slice().iter().filter_map(|output| match output {
        Output::Effect { key, event } => Some((*key, event)),
        Output::Answer { .. } => None,
    })
}

/// Closes the keys, with what the server has to know of their change.
fn close(ctx: Ctx<'_>, keys: &mut Keys<'_>, out: &Outbox) {
    for (id, event) in events(out) {
        if matches!(event, Event::Granted { .. }) {
            keys.clear_expire(id);
        }
    }
    keys.close();
    let mut changed: Vec<KeyId> = Vec::new();
    for (id, _) in events(out) {
        if changed.contains(&id) {
            continue;
        }
        if let Some(name) = keys.name(id) {
            ctx.signal_modified(name);
        }
        // One key is the common case, and needs no list.
        if keys.len() > 1 {
            changed.push(id);
        } else {
            return;
        }
    }
}

/// Propagates the events. The keyspace's listeners are told afterwards: what a listener does comes after all of this in the
/// stream, as it does here.
fn propagate(ctx: Ctx<'_>, keys: &Keys<'_>, now: Now, out: &Outbox) {
    let mut facts = Facts::new();
    for (id, event) in events(out) {
        if let Some(name) = keys.name(id) {
            let owner = write_effect(event, now, &mut facts);
            ctx.replicate_effect(name, &facts, owner.map(Owner::as_slice));
        }
    }
}

/// Tells the keyspace's listeners of the events.
fn announce_all(ctx: Ctx<'_>, keys: &Keys<'_>, out: &Outbox) {
    for (id, event) in events(out) {
        if let Some(name) = keys.name(id) {
            announce(ctx, name, event);
        }
    }
}

/// Answers the waiters that have an answer.
pub(crate) fn wake(out: &mut Outbox) {
    for output in out.drain() {
        if let Output::Answer { ticket, answer } = output {
            waiting::finish(ticket, answer);
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
    let mut keys = Keys::open(ctx, &[name], Asks::Module);
    let applied =
        state::with_engine(|engine| engine.apply_effect(&mut keys, KEY, event)).unwrap_or(Err("the engine is in use"));
    if applied.is_ok() && matches!(event, Event::Granted { .. }) {
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
