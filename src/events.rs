//! What the server tells on its own, as notes for the engine. Nothing is decided here.

use rlock_core::{Alarm, Key, KeyRef, Keyspace, Lock, Slot};

use crate::clock;
use crate::eviction;
use crate::execute::KEY;
use crate::ffi::{Arg, Ctx, Keys, ServerEvent};
use crate::propagation;
use crate::quarantine;
use crate::state::{self, Note};
use crate::timer;
use crate::waiting;

pub(crate) fn on_server_event(ctx: Ctx<'_>, event: ServerEvent) {
    let note = match event {
        ServerEvent::ClientClosed(client) => {
            // Most connections never had anything to do with a lock.
            if state::peek_engine(|engine| engine.minds_client(client)) == Some(false) {
                return;
            }
            Note::ClientClosed(client)
        }
        ServerEvent::Flushed(db) => Note::Flushed(db),
        ServerEvent::Swapped(first, second) => Note::Swapped(first, second),
        // What was loaded from the append-only file came by our own commands, and was not noted as an arrival.
        ServerEvent::Promoted | ServerEvent::LoadEnded => {
            propagation::resume();
            Note::Promoted
        }
        ServerEvent::LoadFromMaster => return quarantine::on_load_from_master(),
        ServerEvent::Configured => {
            propagation::on_configured();
            return eviction::look(ctx);
        }
        ServerEvent::Forked => return propagation::on_fork(),
        ServerEvent::SaveStarted => return propagation::resume(),
        ServerEvent::Tick => {
            propagation::on_tick(ctx);
            return timer::on_tick();
        }
        ServerEvent::AfterSleep => {
            clock::sync();
            quarantine::look(ctx);
            if state::peek_engine(rlock_core::Engine::has_unconfirmed_grants) == Some(true) {
                // Hears the notes first: who is known to be gone keeps nothing.
                state::with_engine(|engine| engine.confirm_grants(waiting::is_answered));
            }
            return;
        }
    };
    state::note(note);
    timer::arm_soon();
}

/// A value came under a name by a command of the server's.
pub(crate) fn on_keyspace_event(ctx: Ctx<'_>, event: &[u8], name: Arg<'_>) {
    if !matches!(event, b"restore" | b"rename_to" | b"copy_to" | b"move_to") {
        return;
    }
    let key = KeyRef { name: name.bytes(), db: ctx.db() };
    let is_lock = matches!(Keys::open_to_peek(ctx, name).slot(KEY), Slot::Lock(_));
    if is_lock {
        state::note(Note::Arrived(key.to_key()));
    } else if state::peek_engine(|engine| engine.waiting_on(key)).unwrap_or(1) > 0 {
        state::note(Note::Changed(key.to_key()));
    } else {
        return;
    }
    timer::arm_soon();
}

/// A lock went away by a command of the server's.
pub(crate) fn on_unlink(key: Key, alarm: Alarm, lock: &Lock) {
    let bound = lock.holds().iter().filter(|hold| hold.session_ms().is_some()).map(rlock_core::Hold::token).collect();
    state::note(Note::Unlinked(key, alarm, bound));
    timer::arm_soon();
}
