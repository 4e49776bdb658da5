//! `RLOCK.INFO key [OWNER owner]`, for a lock of any kind.
//!
//! It shows up to 1000 holders and the number of all holders. With OWNER it shows the holds of that
//! owner, however many other holders there are.

use std::marker::PhantomData;

use rlock_core::{FairQueue, Hold, Kind, Lock, Mode, Now};

use super::family::Family;
use super::{Failure, read_lock, reply_failure, with_options};
use crate::arguments;
use crate::clock;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::options::{Opt, options};
use crate::state;

/// The largest number of holders in a reply.
const MAX_SHOWN: usize = 1000;

const OPTIONS: &[Opt] = &[Opt::Owner];

pub(super) struct Info<F>(PhantomData<F>);

impl<F: Family> Command for Info<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.info,
        flags: c"readonly",
        arity: -2,
        access: Access::Read,
        keys: KeyArguments::First,
        summary: c"Returns the holders of a lock, their fencing tokens and leases, and the number of waiters.",
        complexity: c"O(H) with H holders shown, 1000 at most",
        arguments: || with_options(Vec::new(), OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, info::<F>(ctx, args));
    }
}

fn info<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, owner) = (arguments::key(args)?, options(args, 2, OPTIONS)?.bytes(Opt::Owner));
    let now = clock::now();
    read_lock::<F, _>(ctx, key, F::IS_FOR_ANY_KIND, now, |name, lock| {
        let connected = || state::with_engine(|engine| engine.waiting_on(name)).unwrap_or(0);
        match lock {
            Some(lock) => {
                let queue = lock.queue().filter(|_| lock.kind() == Kind::Fair);
                let waiting = queue.map_or_else(connected, FairQueue::len);
                if is_there(lock, now) || waiting > 0 {
                    return reply(ctx, lock, owner, now, waiting);
                }
            }
            None => {
                // The key is vacant but has waiters. The timer is about to grant the first of them.
                let kind = state::with_engine(|engine| engine.kind_waited_for(name)).flatten();
                if let Some(kind) =
                    kind.filter(|kind| (F::IS_FOR_ANY_KIND || *kind == F::KIND) && *kind != Kind::Semaphore)
                {
                    return reply(ctx, &Lock::new(kind, 1), owner, now, connected());
                }
            }
        }
        ctx.reply_nil();
    })
}

/// Whether the lock exists for users: a semaphore always, any other lock only while it is held.
fn is_there(lock: &Lock, now: Now) -> bool {
    lock.kind() == Kind::Semaphore || lock.is_held(now)
}

fn reply(ctx: Ctx<'_>, lock: &Lock, owner: Option<&[u8]>, now: Now, waiting: usize) {
    let is_semaphore = lock.kind() == Kind::Semaphore;
    let holders: Vec<&Hold> = match owner {
        Some(owner) => Mode::ALL.into_iter().filter_map(|mode| lock.live_hold(owner, mode, now)).collect(),
        None => lock.live_holds(now).take(MAX_SHOWN).collect(),
    };
    let (kept, idle) = (lock.kept(now), lock.idle());
    ctx.reply_map(if is_semaphore { 6 } else { 4 } + usize::from(kept.is_some()) + usize::from(idle.is_some()));
    ctx.reply_bytes(b"kind");
    ctx.reply_bytes(lock.kind().name().as_bytes());
    ctx.reply_bytes(b"holders");
    ctx.reply_array(holders.len());
    for hold in holders {
        reply_holder(ctx, hold, now, lock.clients(hold.token()));
    }
    ctx.reply_bytes(b"holders-count");
    ctx.reply_integer(lock.live_holds(now).count() as u64);
    ctx.reply_bytes(b"waiters");
    ctx.reply_integer(waiting as u64);
    if let Some(kept) = kept {
        ctx.reply_bytes(b"kept");
        reply_kept(ctx, kept, now);
    }
    if is_semaphore {
        ctx.reply_bytes(b"permits");
        ctx.reply_integer(lock.permits().into());
        ctx.reply_bytes(b"available");
        ctx.reply_signed(lock.available(now));
    }
    if let Some(idle) = idle {
        ctx.reply_bytes(b"idle-ms");
        ctx.reply_integer(idle.idle_ms);
    }
}

/// The former owner of a lock that RELEASE … KEEP keeps closed, and the time until it opens.
fn reply_kept(ctx: Ctx<'_>, kept: &Hold, now: Now) {
    ctx.reply_map(3);
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(kept.owner().as_slice());
    ctx.reply_bytes(b"token");
    ctx.reply_integer(kept.token());
    ctx.reply_bytes(b"keep-ms");
    ctx.reply_integer(kept.lease_left_ms(now));
}

fn reply_holder(ctx: Ctx<'_>, hold: &Hold, now: Now, clients: &[u64]) {
    let note = hold.note();
    ctx.reply_map(8 + usize::from(note.is_some()));
    ctx.reply_bytes(b"owner");
    ctx.reply_bytes(hold.owner().as_slice());
    ctx.reply_bytes(b"mode");
    ctx.reply_bytes(hold.mode().name().as_bytes());
    ctx.reply_bytes(b"holds");
    ctx.reply_integer(hold.count().into());
    ctx.reply_bytes(b"token");
    ctx.reply_integer(hold.token());
    ctx.reply_bytes(b"lease-ms");
    ctx.reply_integer(hold.lease_left_ms(now));
    ctx.reply_bytes(b"session");
    ctx.reply_integer((!clients.is_empty()).into());
    ctx.reply_bytes(b"held-ms");
    ctx.reply_integer(hold.held_ms(now));
    ctx.reply_bytes(b"clients");
    ctx.reply_integers(clients.iter().copied());
    if let Some(note) = note {
        ctx.reply_bytes(b"note");
        ctx.reply_bytes(note);
    }
}
