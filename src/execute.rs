//! The way of every write: open the key, let the engine decide and apply, then do what it left in the outbox.
//!
//! What is outside comes after the engine has returned and the key is closed, in the order of the outbox: propagate,
//! notify, reply, wake. Listeners of a keyspace event may call commands of ours; they find everything at rest.

use rlock_core::{
    Engine, Event, Facts, KeyId, KeyRef, Keyspace, Now, Outbox, Output, Owner, Refusal, Turn, write_effect,
};
use smallvec::SmallVec;

use crate::clock;
use crate::configuration;
use crate::ffi::{Arg, Ctx, Keys};
use crate::propagation;
use crate::reply;
use crate::state::{self, Note};
use crate::timer;
use crate::waiting;

/// The key of a request that has one.
pub(crate) const KEY: KeyId = KeyId(0);

/// Decides about one key, does what was decided, and replies.
pub(crate) fn on_key<'c, R>(
    ctx: Ctx<'c>,
    name: Arg<'c>,
    decide: impl FnOnce(&mut Engine, &mut Turn<'_, Keys<'c>>) -> Result<R, Refusal>,
    reply: impl FnOnce(R),
) {
    on_keys(
        ctx,
        &[name],
        |engine, turn, _| decide(engine, turn),
        |result| match result {
            Ok(result) => reply(result),
            Err(refusal) => reply::refusal(ctx, refusal),
        },
    );
}

/// The same for several keys; [`KeyId`]s count them in the order of `names`.
pub(crate) fn on_keys<'c, R>(
    ctx: Ctx<'c>,
    names: &[Arg<'c>],
    decide: impl FnOnce(&mut Engine, &mut Turn<'_, Keys<'c>>, &[KeyId]) -> Result<R, Refusal>,
    reply: impl FnOnce(Result<R, Refusal>),
) {
    let mut keys = Keys::open(ctx, names);
    let ids: SmallVec<[KeyId; 1]> = (0..names.len()).map(KeyId).collect();
    let mut out = Outbox::default();
    let now = clock::now();
    let limits = configuration::limits();
    let result =
        state::with_engine(|engine| decide(engine, &mut Turn { now, limits, keys: &mut keys, out: &mut out }, &ids));
    close(ctx, &mut keys, &out);
    if propagation::is_on() {
        propagate(ctx, &keys, now, &out);
    } else {
        // A command stands for its effects to nobody but the server, which counts the changes.
        events(&out).for_each(|_| ctx.replicate_verbatim());
    }
    announce_all(ctx, &keys, &out);
    // Before the wake: the server writes to the client that it was last told of first, so the next holder hears of its lock
    // before this client hears that it gave it up.
    match result {
        Some(result) => reply(result),
        None => ctx.reply_error(reply::INTERNAL_ERROR),
    }
    wake(&mut out);
    timer::arm();
}

/// Settles a key whose turn has come.
pub(crate) fn settle(ctx: Ctx<'_>, name: Arg<'_>) {
    let mut keys = Keys::open(ctx, &[name]);
    let mut out = Outbox::default();
    let now = clock::now();
    let limits = configuration::limits();
    state::with_engine(|engine| {
        engine.settle_key(&mut Turn { now, limits, keys: &mut keys, out: &mut out }, KEY);
    });
    close(ctx, &mut keys, &out);
    // Also while nobody listens: outside of a command there is no request that could be passed on in place of effects.
    propagate(ctx, &keys, now, &out);
    announce_all(ctx, &keys, &out);
    wake(&mut out);
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
    for index in 0..keys.open_count() {
        let id = KeyId(index);
        if events(out).any(|(changed, _)| changed == id)
            && let Some(name) = keys.name(id)
        {
            ctx.signal_modified(name);
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
pub(crate) fn apply(ctx: Ctx<'_>, name: Arg<'_>, event: &Event) -> bool {
    let mut keys = Keys::open(ctx, &[name]);
    let applied = state::with_engine(|engine| engine.apply_effect(&mut keys, KEY, event)).unwrap_or(false);
    if matches!(event, Event::Granted { .. }) {
        keys.clear_expire(KEY);
    }
    drop(keys);
    if applied {
        ctx.signal_modified(name);
    }
    let flags = ctx.flags();
    if flags.is_master() && !flags.is_loading() {
        // A master is sent effects only with a slot that Valkey moves to it: the value comes here without its connections.
        state::note(Note::Arrived(KeyRef { name: name.bytes(), db: ctx.db() }.to_key()));
        timer::arm_soon();
    }
    applied
}
