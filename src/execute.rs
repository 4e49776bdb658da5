//! The way of every write: open the key, let the engine decide and apply, then do what it left in the outbox.
//!
//! What is outside comes after the engine has returned and the key is closed, in the order of the outbox: propagate,
//! notify, reply, wake. Listeners of a keyspace event may call commands of ours; they find everything at rest.

use rlock_core::{Engine, Event, Facts, KeyId, Now, Outbox, Output, Owner, Refusal, Turn, write_effect};

use crate::clock;
use crate::configuration;
use crate::ffi::{Arg, Ctx, Keys};
use crate::reply;
use crate::state;
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
    let mut keys = Keys::open(ctx, name);
    let mut out = Outbox::default();
    let now = clock::now();
    let limits = configuration::limits();
    let result = state::with_engine(|engine| decide(engine, &mut Turn { now, limits, keys: &mut keys, out: &mut out }));
    close(ctx, name, keys, &out);
    tell(ctx, name, now, &out);
    // Before the wake: the server writes to the client that it was last told of first, so the next holder hears of its lock
    // before this client hears that it gave it up.
    match result {
        Some(Ok(result)) => reply(result),
        Some(Err(refusal)) => reply::refusal(ctx, refusal),
        None => ctx.reply_error(reply::INTERNAL_ERROR),
    }
    wake(&mut out);
    timer::arm();
}

/// Settles a key whose turn has come.
pub(crate) fn settle(ctx: Ctx<'_>, name: Arg<'_>) {
    let mut keys = Keys::open(ctx, name);
    let mut out = Outbox::default();
    let now = clock::now();
    let limits = configuration::limits();
    state::with_engine(|engine| {
        engine.settle_key(&mut Turn { now, limits, keys: &mut keys, out: &mut out }, KEY);
    });
    close(ctx, name, keys, &out);
    tell(ctx, name, now, &out);
    wake(&mut out);
}

/// Closes the key, with what the server has to know of its change.
fn close(ctx: Ctx<'_>, name: Arg<'_>, keys: Keys<'_>, out: &Outbox) {
    let (mut changed, mut granted) = (false, false);
    for output in out.as_slice() {
        if let Output::Effect { event, .. } = output {
            changed = true;
            granted |= matches!(event, Event::Granted { .. });
        }
    }
    if granted {
        keys.clear_expire(KEY);
    }
    drop(keys);
    if changed {
        ctx.signal_modified(name);
    }
}

/// Propagates the events, and then tells the keyspace's listeners: what a listener does comes after all of this in the
/// stream, as it does here.
fn tell(ctx: Ctx<'_>, name: Arg<'_>, now: Now, out: &Outbox) {
    let events = || {
        out.as_slice().iter().filter_map(|output| match output {
            Output::Effect { event, .. } => Some(event),
            Output::Answer { .. } => None,
        })
    };
    let mut facts = Facts::new();
    for event in events() {
        let owner = write_effect(event, now, &mut facts);
        ctx.replicate_effect(name, &facts, owner.map(Owner::as_slice));
    }
    for event in events() {
        announce(ctx, name, event);
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

/// Applies an effect that a master decided. Nothing is propagated from here: the server passes the effect on itself.
pub(crate) fn apply(ctx: Ctx<'_>, name: Arg<'_>, event: &Event) -> bool {
    let mut keys = Keys::open(ctx, name);
    let applied = state::with_engine(|engine| engine.apply_effect(&mut keys, KEY, event)).unwrap_or(false);
    if matches!(event, Event::Granted { .. }) {
        keys.clear_expire(KEY);
    }
    drop(keys);
    if applied {
        ctx.signal_modified(name);
    }
    applied
}
