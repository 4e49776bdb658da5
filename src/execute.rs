//! The way of every write: open the key, let the engine decide and apply, then do what it left in the outbox.
//!
//! What is outside comes after the engine has returned and the key is closed, in the order of the outbox: propagate,
//! notify, wake. Listeners of a keyspace event may call commands of ours; they find everything at rest.

use rlock_core::{Engine, Event, Facts, KeyId, Now, Outbox, Output, Turn, write_effect};

use crate::clock;
use crate::configuration;
use crate::ffi::{Arg, Ctx, Keys};
use crate::state;
use crate::timer;
use crate::waiting;

/// The key of a request that has one.
pub(crate) const KEY: KeyId = KeyId(0);

/// Decides about one key, and does what was decided. `None` if the engine is in use, which would be a bug.
pub(crate) fn on_key<'c, R>(
    ctx: Ctx<'c>,
    name: Arg<'c>,
    decide: impl FnOnce(&mut Engine, &mut Turn<'_, Keys<'c>>) -> R,
) -> Option<R> {
    let mut keys = Keys::open(ctx, name);
    let mut out = Outbox::default();
    let now = clock::now();
    let limits = configuration::limits();
    let result = state::with_engine(|engine| decide(engine, &mut Turn { now, limits, keys: &mut keys, out: &mut out }));
    finish(ctx, name, keys, now, out);
    timer::arm();
    result
}

fn finish(ctx: Ctx<'_>, name: Arg<'_>, keys: Keys<'_>, now: Now, mut out: Outbox) {
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
    let mut facts = Facts::new();
    for output in out.drain() {
        match output {
            Output::Effect { event, .. } => {
                let owner = write_effect(&event, now, &mut facts);
                ctx.replicate_effect(name, &facts, owner.map(|owner| owner.as_slice()));
                announce(ctx, name, &event);
            }
            Output::Answer { ticket, answer } => waiting::finish(ticket, answer),
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
