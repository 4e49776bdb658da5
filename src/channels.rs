//! The channels of requests with NOTIFY: their names, and whether they have listeners.
//!
//! Invariant: this table has a channel while a request waits for an answer on it, or while
//! `notices` has a message for it.
use rlock_core::{Channel, Channels};

use crate::ffi::{Ctx, MainThread, OwnedString};
use crate::server;

/// Whether a channel had listeners in turn number `turn`.
#[derive(Default)]
struct Listeners {
    turn: u64,
    has_listeners: bool,
}

#[derive(Default)]
struct Known {
    /// Counts, for each channel, the requests that wait for an answer on it and the messages for
    /// it.
    channels: Channels<Listeners>,
    turn: u64,
}

static KNOWN: MainThread<Option<Known>> = MainThread::new(None);

fn with<R>(body: impl FnOnce(&mut Known) -> R) -> Option<R> {
    KNOWN.with(|known| body(known.get_or_insert_default()))
}

/// Counts a use of a channel; each needs its own [`let_go`]. Returns the channel's number, and
/// whether it is new. `None` if no number is free.
pub(crate) fn hold(name: &[u8]) -> Option<(Channel, bool)> {
    let held = with(|Known { channels, .. }| {
        let known = channels.find(name);
        let channel = known.or_else(|| channels.add(name))?;
        channels.hold(channel);
        Some((channel, known.is_none()))
    });
    held.flatten()
}

/// Ends one use of a channel. Returns the name if that was the last use.
pub(crate) fn let_go(channel: Channel) -> Option<Box<[u8]>> {
    with(|known| known.channels.let_go(channel)).flatten()
}

/// The name of a channel in use.
pub(crate) fn name_of(ctx: Ctx<'_>, channel: Channel) -> Option<OwnedString<'_>> {
    with(|known| known.channels.get(channel).map(|(name, _)| ctx.string(name))).flatten()
}

/// Begins a turn: [`has_listeners`] asks the server again.
pub(crate) fn begin_turn() {
    with(|known| known.turn = known.turn.wrapping_add(1));
}

/// Whether a channel has listeners. Asks the server once per turn and channel.
pub(crate) fn has_listeners(ctx: Ctx<'_>, channel: Channel) -> bool {
    let known = with(|Known { channels, turn }| {
        let (name, listeners) = channels.get(channel)?;
        Some(if listeners.turn == *turn { Err(listeners.has_listeners) } else { Ok(Box::<[u8]>::from(name)) })
    });
    match known.flatten() {
        None => false,
        Some(Err(has_listeners)) => has_listeners,
        Some(Ok(name)) => {
            let has_listeners = ctx.listeners(ctx.string(&name).arg(), server::is_cluster()) > 0;
            with(|Known { channels, turn }| {
                if let Some(listeners) = channels.note_mut(channel) {
                    *listeners = Listeners { turn: *turn, has_listeners };
                }
            });
            has_listeners
        }
    }
}
