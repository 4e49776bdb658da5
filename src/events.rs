//! Server events and keyspace events. These handlers decide nothing: they report to the engine,
//! which records the event.

use rlock_core::{Alarm, Engine, KeyRef, Keyspace, Lock, Value};

use crate::clock;
use crate::eviction;
use crate::exclusion;
use crate::execute::KEY;
use crate::ffi::{Arg, Ctx, Keys, ServerEvent};
use crate::jobs;
use crate::notices;
use crate::propagation;
use crate::server;
use crate::shard_channels;
use crate::state;
use crate::timer;
use crate::turn;
use crate::waiting;

pub(crate) fn on_server_event(ctx: Ctx<'_>, event: ServerEvent) {
    match event {
        ServerEvent::ClientClosed(client) => {
            // Most connections never used a lock.
            if state::with_engine(|engine| engine.concerns_client(client)) == Some(false) {
                return;
            }
            notices::on_client_closed(client);
            let is_unsure =
                state::with_engine(|engine| engine.may_have_told(client, waiting::is_answered)) == Some(true);
            let got_replies = is_unsure && ctx.quit_with_all_replies(client);
            let was_sent = |ticket| got_replies && waiting::is_answered(ticket);
            state::tell(|engine| engine.client_closed(client, was_sent));
        }
        ServerEvent::Flushed(db) => state::tell(|engine| engine.flushed(db)),
        ServerEvent::Swapped(first, second) => state::tell(|engine| engine.swapped(first, second)),
        // The end of a load counts as a promotion too: `RLOCK.APPLY`, which recreates the locks of
        // an append-only file, does not report them to the engine.
        ServerEvent::Promoted | ServerEvent::LoadEnded => {
            server::refresh(ctx);
            propagation::resume();
            if event == ServerEvent::Promoted {
                exclusion::on_promoted();
            }
            state::tell(Engine::promoted);
        }
        ServerEvent::Demoted => {
            server::refresh(ctx);
            state::tell(Engine::demoted);
        }
        ServerEvent::Replica(has_new) => return exclusion::on_replicas(has_new),
        ServerEvent::LoadBegins => return server::refresh(ctx),
        ServerEvent::Configured => {
            propagation::on_configured();
            server::refresh_settings(ctx);
            exclusion::on_settings();
            server::warn_of_slow_replication(ctx);
            return eviction::refresh(ctx);
        }
        ServerEvent::Forked => return propagation::on_fork(),
        ServerEvent::SaveStarted => return propagation::resume(),
        ServerEvent::Tick => {
            server::refresh(ctx);
            server::refresh_files(ctx);
            propagation::on_tick(ctx);
            shard_channels::on_tick(ctx);
            if exclusion::on_tick(ctx) {
                timer::arm_soon();
            }
            return jobs::on_tick(ctx);
        }
        ServerEvent::BeforeSleep => {
            shard_channels::continue_round(ctx);
            notices::on_turn_end(ctx);
            waiting::on_turn_end();
            return turn::end();
        }
        ServerEvent::AfterSleep => return on_turn(ctx),
    }
    timer::arm_soon();
}

/// Begins a turn of the server's event loop. The server has written the answers of the last turn.
fn on_turn(ctx: Ctx<'_>) {
    turn::begin();
    clock::begin_turn();
    jobs::begin_turn();
    exclusion::on_turn(ctx);
    state::tell(|engine| {
        engine.begin_turn();
        if engine.has_pending_answers() {
            engine.confirm_grants(waiting::is_answered);
        }
    });
}

/// A command of the server has put a value under a key: RESTORE, RENAME, COPY or MOVE.
pub(crate) fn on_keyspace_event(ctx: Ctx<'_>, event: &[u8], name: Arg<'_>) {
    if !matches!(event, b"restore" | b"rename_to" | b"copy_to" | b"move_to") {
        return;
    }
    let keys = Keys::open_to_peek(ctx, name);
    let key = keys.key(KEY);
    if matches!(keys.value(KEY), Value::Lock(_)) {
        state::tell(|engine| engine.value_arrived(key));
    } else if state::with_engine(|engine| engine.waiting_on(key)) != Some(0) {
        state::tell(|engine| engine.value_changed(key));
    } else {
        return;
    }
    timer::arm_soon();
}

/// The server has removed a lock: by a command, EXPIRE or eviction.
pub(crate) fn on_unlink(key: KeyRef<'_>, alarm: Alarm, lock: &Lock) {
    state::tell(|engine| engine.value_unlinked(key, alarm, lock));
    timer::arm_soon();
}
