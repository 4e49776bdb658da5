//! Channels of a cluster that have lost their listeners.
//!
//! In a cluster a channel is one of a shard, and goes to another node together with its slot. The server ends all subscriptions of the
//! slot then, without a word to modules, and the slot may be back before anybody looks. The waits for which the
//! subscriptions were are over.
//!
//! So a *round* goes over the slots that have channels, and begins with each regular tick of the server. It *visits* each slot
//! until it finds somebody who listens there, which nearly always is at the first look: a slot that goes leaves
//! nobody. A channel to which nobody listens any more is lost. Each visit begins where the last one ended, so if some listeners are back
//! already, the others are missed a tick or a few later.
//!
//! Invariant: each channel that `channels` knows is here, under its slot, and no other one. `notices` sees to that.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Duration;

use rlock_core::{Channel, slot_of};

use crate::channels;
use crate::clock;
use crate::ffi::{Ctx, MainThread};
use crate::server;
use crate::state;
use crate::timer;
use crate::turn;

/// How long a round may take in one turn of the event loop.
const BUDGET: Duration = Duration::from_millis(1);

/// How many channels a visit looks at in vain: nobody has ever listened to them, so nobody is missed.
const LOOKS_IN_VAIN: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subscribers {
    /// Nobody has listened yet: whoever asks before it subscribes is given the time to do so.
    NotYet,
    Present,
    /// The engine was told.
    Gone,
}

#[derive(Default)]
struct Slot {
    channels: BTreeMap<Channel, Subscribers>,
    last_look: Option<Channel>,
}

impl Slot {
    /// The channel after that which was looked at last.
    fn next(&mut self) -> Option<(Channel, Subscribers)> {
        let from = self.last_look.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.channels.range((from, Bound::Unbounded)).next().or_else(|| self.channels.first_key_value());
        let (channel, subscribers) = next.map(|(channel, subscribers)| (*channel, *subscribers))?;
        self.last_look = Some(channel);
        Some((channel, subscribers))
    }
}

/// The look at a slot that is going on.
#[derive(Clone, Copy)]
struct Visit {
    slot: u16,
    /// How many looks are left until each channel had one.
    left: usize,
    in_vain: usize,
}

#[derive(Default)]
struct ShardChannels {
    slots: BTreeMap<u16, Slot>,
    visit: Option<Visit>,
}

impl ShardChannels {
    /// Begins to visit the next slot, or ends the round after the last one.
    fn visit_from(&mut self, from: Bound<u16>) {
        let next = self.slots.range((from, Bound::Unbounded)).next();
        self.visit = next.map(|(slot, known)| Visit { slot: *slot, left: known.channels.len(), in_vain: 0 });
    }

    fn set(&mut self, slot: u16, channel: Channel, subscribers: Subscribers) {
        if let Some(known) = self.slots.get_mut(&slot).and_then(|slot| slot.channels.get_mut(&channel)) {
            *known = subscribers;
        }
    }
}

static SHARD_CHANNELS: MainThread<Option<ShardChannels>> = MainThread::new(None);

fn with<R>(body: impl FnOnce(&mut ShardChannels) -> R) -> Option<R> {
    SHARD_CHANNELS.with(|channels| body(channels.get_or_insert_default()))
}

/// A channel is known from now on.
pub(crate) fn add(channel: Channel, name: &[u8]) {
    if server::is_cluster() {
        with(|known| known.slots.entry(slot_of(name)).or_default().channels.insert(channel, Subscribers::NotYet));
    }
}

/// A channel is of no interest any more.
pub(crate) fn remove(channel: Channel, name: &[u8]) {
    if !server::is_cluster() {
        return;
    }
    let slot = slot_of(name);
    with(|known| {
        if let Some(channels) = known.slots.get_mut(&slot).map(|slot| &mut slot.channels) {
            channels.remove(&channel);
            if channels.is_empty() {
                known.slots.remove(&slot);
            }
        }
    });
}

/// A request begins to wait for an answer on a channel.
pub(crate) fn waited_for(ctx: Ctx<'_>, channel: Channel) {
    if !server::is_cluster() {
        return;
    }
    let Some(name) = channels::name_of(ctx, channel) else {
        return;
    };
    let slot = slot_of(name.arg().bytes());
    let known = with(|known| known.slots.get(&slot).and_then(|slot| slot.channels.get(&channel)).copied());
    if known.flatten() != Some(Subscribers::Present) {
        let subscribers = if ctx.listeners(name.arg(), true) > 0 { Subscribers::Present } else { Subscribers::NotYet };
        with(|known| known.set(slot, channel, subscribers));
    }
}

/// The server's regular tick: a round begins, if the last one has ended.
pub(crate) fn on_tick(ctx: Ctx<'_>) {
    with(|known| {
        if known.visit.is_none() {
            known.visit_from(Bound::Unbounded);
        }
    });
    go_on(ctx);
}

/// Goes on with a round, as far as the budget goes.
pub(crate) fn go_on(ctx: Ctx<'_>) {
    if with(|known| known.visit.is_some()) != Some(true) {
        return;
    }
    if !server::decides() {
        // A replica has ended all of its waits.
        with(|known| known.visit = None);
        return;
    }
    let start_us = clock::mono_us();
    while look_at_next(ctx) {
        if Duration::from_micros(clock::mono_us().saturating_sub(start_us)) >= BUDGET {
            turn::wake_event_loop();
            return;
        }
    }
}

/// Looks at one channel. `false` if the round has come to its end.
fn look_at_next(ctx: Ctx<'_>) -> bool {
    let Some(visit) = with(|known| known.visit).flatten() else {
        return false;
    };
    let next = with(|known| known.slots.get_mut(&visit.slot).and_then(Slot::next)).flatten();
    let Some((channel, subscribers)) = next.filter(|_| visit.left > 0 && visit.in_vain < LOOKS_IN_VAIN) else {
        with(|known| known.visit_from(Bound::Excluded(visit.slot)));
        return true;
    };
    let is_heard = look(ctx, visit.slot, channel, subscribers);
    with(|known| match is_heard {
        Some(true) => known.visit_from(Bound::Excluded(visit.slot)),
        _ => {
            let in_vain = visit.in_vain.saturating_add(usize::from(is_heard.is_none()));
            known.visit = Some(Visit { left: visit.left.saturating_sub(1), in_vain, ..visit });
        }
    });
    true
}

/// Whether somebody listens to a channel: `None` if nobody does who is missed.
fn look(ctx: Ctx<'_>, slot: u16, channel: Channel, subscribers: Subscribers) -> Option<bool> {
    if subscribers == Subscribers::Gone {
        return Some(false);
    }
    let name = channels::name_of(ctx, channel)?;
    if ctx.listeners(name.arg(), true) > 0 {
        with(|known| known.set(slot, channel, Subscribers::Present));
        return Some(true);
    }
    // A slot that is on its way is not served either, for a name that is no key; nobody listens all the same.
    if subscribers == Subscribers::NotYet && ctx.serves(&[name.arg()]) {
        return None;
    }
    with(|known| known.set(slot, channel, Subscribers::Gone));
    state::tell(|engine| engine.channel_gone(channel));
    timer::arm_soon();
    Some(false)
}
