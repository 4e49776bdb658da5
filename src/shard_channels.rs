//! Finds the shard channels that have lost their listeners, in a cluster.
//!
//! A shard channel moves to another node together with its slot. The server then ends all
//! subscriptions of the slot without notifying modules, and the slot may be back before the module
//! looks. The module must end the waits that relied on these subscriptions.
//!
//! So each tick of the server begins a *round* over the slots that have channels. The round
//! *visits* each slot: it checks the slot's channels until it finds one with a listener. If the
//! slot has not moved, that is nearly always the first one; if it has moved, none of them has. A
//! channel that has lost its listeners ends its waits. Each visit continues where the last visit of
//! the slot ended. If some clients have subscribed again already, a later tick finds the channels
//! of the others.
//!
//! Invariant: this table has exactly the channels of `channels`, by slot. `notices` maintains it.

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

/// One visit checks at most this many channels that never had a listener, which they cannot have
/// lost.
const MAX_WITHOUT_LISTENER: usize = 64;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Subscribers {
    /// No client has listened yet: it may send the request first and subscribe later.
    NotYet,
    Present,
    /// The channel has lost its listeners, and the engine knows.
    Gone,
}

#[derive(Default)]
struct Slot {
    channels: BTreeMap<Channel, Subscribers>,
    last_checked: Option<Channel>,
}

impl Slot {
    /// The channel after the last one that was checked.
    fn next(&mut self) -> Option<(Channel, Subscribers)> {
        let from = self.last_checked.map_or(Bound::Unbounded, Bound::Excluded);
        let next = self.channels.range((from, Bound::Unbounded)).next().or_else(|| self.channels.first_key_value());
        let (channel, subscribers) = next.map(|(channel, subscribers)| (*channel, *subscribers))?;
        self.last_checked = Some(channel);
        Some((channel, subscribers))
    }
}

/// The current visit of a slot.
#[derive(Clone, Copy)]
struct Visit {
    slot: u16,
    /// The number of channels that this visit has not checked.
    left: usize,
    without_listener: usize,
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
        self.visit = next.map(|(slot, known)| Visit { slot: *slot, left: known.channels.len(), without_listener: 0 });
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

/// Adds a channel.
pub(crate) fn add(channel: Channel, name: &[u8]) {
    if server::is_cluster() {
        with(|known| known.slots.entry(slot_of(name)).or_default().channels.insert(channel, Subscribers::NotYet));
    }
}

/// Removes a channel.
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

/// The server's tick: begins a round, if the last one has ended.
pub(crate) fn on_tick(ctx: Ctx<'_>) {
    with(|known| {
        if known.visit.is_none() {
            known.visit_from(Bound::Unbounded);
        }
    });
    continue_round(ctx);
}

/// Continues the round within the budget.
pub(crate) fn continue_round(ctx: Ctx<'_>) {
    if with(|known| known.visit.is_some()) != Some(true) {
        return;
    }
    if !server::decides() {
        // A replica has no waits: they ended at the demotion.
        with(|known| known.visit = None);
        return;
    }
    let start_us = clock::mono_us();
    while check_next(ctx) {
        if Duration::from_micros(clock::mono_us().saturating_sub(start_us)) >= BUDGET {
            turn::wake_event_loop();
            return;
        }
    }
}

/// Checks one channel. `false` if the round has ended.
fn check_next(ctx: Ctx<'_>) -> bool {
    let Some(visit) = with(|known| known.visit).flatten() else {
        return false;
    };
    let next = with(|known| known.slots.get_mut(&visit.slot).and_then(Slot::next)).flatten();
    let next = next.filter(|_| visit.left > 0 && visit.without_listener < MAX_WITHOUT_LISTENER);
    let Some((channel, subscribers)) = next else {
        with(|known| known.visit_from(Bound::Excluded(visit.slot)));
        return true;
    };
    let has_listeners = check(ctx, visit.slot, channel, subscribers);
    with(|known| match has_listeners {
        Some(true) => known.visit_from(Bound::Excluded(visit.slot)),
        _ => {
            let without_listener = visit.without_listener.saturating_add(usize::from(has_listeners.is_none()));
            known.visit = Some(Visit { left: visit.left.saturating_sub(1), without_listener, ..visit });
        }
    });
    true
}

/// Whether a channel has listeners. `Some(false)` if it has lost them; `None` if it never had any,
/// and may still get one.
fn check(ctx: Ctx<'_>, slot: u16, channel: Channel, subscribers: Subscribers) -> Option<bool> {
    if subscribers == Subscribers::Gone {
        return Some(false);
    }
    let name = channels::name_of(ctx, channel)?;
    if ctx.listeners(name.arg(), true) > 0 {
        with(|known| known.set(slot, channel, Subscribers::Present));
        return Some(true);
    }
    // `serves` also fails while the slot is migrating, because no key has this name. Ending the
    // waits is right then too: the channel has no listeners.
    if subscribers == Subscribers::NotYet && ctx.serves(&[name.arg()]) {
        return None;
    }
    with(|known| known.set(slot, channel, Subscribers::Gone));
    state::tell(|engine| engine.channel_gone(channel));
    timer::arm_soon();
    Some(false)
}
