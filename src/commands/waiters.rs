//! `RLOCK.WAITERS key [COUNT n]`, for a lock of any kind.

use std::marker::PhantomData;

use rlock_core::{Engine, FairQueue, KeyRef, Kind, Lock, Mode, Now, Place, US_PER_MS, WaiterView};

use super::family::Family;
use super::{ENGINE_IN_USE, Failure, read_lock, reply_failure, with_options};
use crate::arguments;
use crate::clock;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::options::{Opt, options};
use crate::state;

/// The largest number of waiters in a reply. 100,000 would keep the server busy for 150 ms.
const MAX_COUNT: usize = 1000;

const OPTIONS: &[Opt] = &[Opt::Count];

pub(super) struct Waiters<F>(PhantomData<F>);

impl<F: Family> Command for Waiters<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.waiters,
        flags: c"readonly",
        arity: -2,
        access: Access::Read,
        keys: KeyArguments::First,
        summary: c"Lists the waiters of a lock in the order of the queue.",
        complexity: c"O(N) with N waiters shown, 1000 at most",
        arguments: || with_options(Vec::new(), OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, waiters::<F>(ctx, args));
    }
}

fn waiters<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let key = arguments::key(args)?;
    let count = options(args, 2, OPTIONS)?.integer(Opt::Count);
    let limit = count.map_or(MAX_COUNT, |count| usize::try_from(count).unwrap_or(MAX_COUNT).min(MAX_COUNT));
    let now = clock::now();
    read_lock::<F, _>(ctx, key, F::IS_FOR_ANY_KIND, now, |name, lock| match lock {
        Some(lock) if lock.kind() == Kind::Fair => {
            reply_places(ctx, name, lock, now, limit);
            Ok(())
        }
        _ => reply_connected(ctx, name, now, limit).ok_or(ENGINE_IN_USE),
    })?
}

fn reply_places(ctx: Ctx<'_>, name: KeyRef<'_>, lock: &Lock, now: Now, limit: usize) {
    let places = lock.queue().into_iter().flat_map(FairQueue::iter).filter(|place| place.is_live(now));
    let places: Vec<Place<'_>> = places.take(limit).collect();
    ctx.reply_array(places.len());
    for place in places {
        // The arrival number of a place is the wall-clock time of the arrival, in microseconds.
        let waited_ms = now.wall_us.saturating_sub(place.arrival) / US_PER_MS;
        let waiter = |engine: &mut Engine| {
            let waiter = engine.waiter_at_place(name, place.owner, now)?;
            Some((waiter.is_notified, waiter.client, waiter.note.map(<[u8]>::to_vec)))
        };
        let (is_notified, client, note) = state::with_engine(waiter).flatten().unwrap_or_default();
        let (mode, count, note) = (Mode::Exclusive, 1, note.as_deref());
        let shown = WaiterView { owner: place.owner, mode, count, waited_ms, is_notified, client, note };
        reply_waiter(ctx, &shown, place.stay.until_us().is_none());
    }
}

/// Lists the waiters of a lock that is not fair: each has a connection.
fn reply_connected(ctx: Ctx<'_>, name: KeyRef<'_>, now: Now, limit: usize) -> Option<()> {
    state::with_engine(|engine| {
        let waiters: Vec<WaiterView<'_>> = engine.first_waiters(name, now, limit).collect();
        ctx.reply_array(waiters.len());
        for waiter in &waiters {
            reply_waiter(ctx, waiter, true);
        }
    })
}

/// The client id of a place without a connection. The server's client ids begin at 1.
const NO_CLIENT: u64 = 0;

fn reply_waiter(ctx: Ctx<'_>, waiter: &WaiterView<'_>, is_connected: bool) {
    let WaiterView { owner, mode, count, waited_ms, is_notified, client, note } = *waiter;
    ctx.reply_map(6 + usize::from(mode == Mode::Permits) + usize::from(note.is_some()));
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(owner);
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(mode.name().as_bytes());
    if mode == Mode::Permits {
        ctx.reply_bytes(b"permits");
        ctx.reply_integer(count.into());
    }
    ctx.reply_bytes(b"waited-ms");
    ctx.reply_integer(waited_ms);
    ctx.reply_bytes(b"connected");
    ctx.reply_integer(is_connected.into());
    ctx.reply_bytes(b"notify");
    ctx.reply_integer(is_notified.into());
    ctx.reply_bytes(b"client");
    ctx.reply_integer(client.unwrap_or(NO_CLIENT));
    if let Some(note) = note {
        ctx.reply_bytes(b"note");
        ctx.reply_bytes(note);
    }
}
