//! The channels of requests with NOTIFY: their names, and whether they have listeners.
//!
//! Invariant: a channel is known as long as a request waits for an answer on it, or `notices` has a message for it.

use rlock_core::{Channel, Channels};

use crate::ffi::{Ctx, MainThread, OwnedString};
use crate::server;

/// Whether a channel had listeners in the turn with this number.
#[derive(Default)]
struct Heard {
    turn: u64,
    is_heard: bool,
}

#[derive(Default)]
struct Known {
    /// Each is held by the requests that wait for an answer on it, and by the messages for it.
    channels: Channels<Heard>,
    turn: u64,
}

static KNOWN: MainThread<Option<Known>> = MainThread::new(None);

fn with<R>(body: impl FnOnce(&mut Known) -> R) -> Option<R> {
    KNOWN.with(|known| body(known.get_or_insert_default()))
}

/// Holds a channel until [`let_go`] is called as often. Returns its number, and whether it was unknown before; `None` if no
/// number is free.
pub(crate) fn hold(name: &[u8]) -> Option<(Channel, bool)> {
    let held = with(|Known { channels, .. }| {
        let known = channels.find(name);
        let channel = known.or_else(|| channels.add(name))?;
        channels.hold(channel);
        Some((channel, known.is_none()))
    });
    held.flatten()
}

/// Ends one hold of a channel. Returns the name if that was the last one.
pub(crate) fn let_go(channel: Channel) -> Option<Box<[u8]>> {
    with(|known| known.channels.let_go(channel)).flatten()
}

/// The name of a channel that is known.
pub(crate) fn name_of(ctx: Ctx<'_>, channel: Channel) -> Option<OwnedString<'_>> {
    with(|known| known.channels.get(channel).map(|(name, _)| ctx.string(name))).flatten()
}

/// From here on [`is_heard`] asks the server anew.
pub(crate) fn begin_turn() {
    with(|known| known.turn = known.turn.wrapping_add(1));
}

/// Whether a channel has listeners. This asks the server once a turn.
pub(crate) fn is_heard(ctx: Ctx<'_>, channel: Channel) -> bool {
    let known = with(|Known { channels, turn }| {
        let (name, heard) = channels.get(channel)?;
        Some(if heard.turn == *turn { Err(heard.is_heard) } else { Ok(Box::<[u8]>::from(name)) })
    });
    match known.flatten() {
        None => false,
        Some(Err(is_heard)) => is_heard,
        Some(Ok(name)) => {
            let is_heard = ctx.listeners(ctx.string(&name).arg(), server::is_cluster()) > 0;
            with(|Known { channels, turn }| {
                if let Some(heard) = channels.note_mut(channel) {
                    *heard = Heard { turn: *turn, is_heard };
                }
            });
            is_heard
        }
    }
}
