//! `RLOCK.WAITERS key [COUNT n]`, for a lock of any kind.

use super::{Failure, option, read_lock, reply_failure};
use crate::arguments::{self, Opt};
use crate::clock;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx};
use crate::state;

pub(super) struct Waiters;

impl Command for Waiters {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.WAITERS",
        flags: c"readonly",
        arity: -2,
        access: Access::Read,
        summary: c"Lists who waits for a lock, in the order in which they are served.",
        complexity: c"O(N) with N waiters shown",
        arguments: &[option(c"count", c"COUNT")],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, waiters(ctx, args));
    }
}

fn waiters(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let key = arguments::key(args)?;
    let count = arguments::options(args, 2, &[Opt::Count])?.count;
    let limit = count.map_or(usize::MAX, |count| usize::try_from(count).unwrap_or(usize::MAX));
    read_lock(ctx, key, |_| ())?;
    let name = rlock_core::KeyRef { name: key.bytes(), db: ctx.db() };
    let now = clock::now();
    state::peek_engine(|engine| {
        ctx.reply_array(engine.waiters(name, now).take(limit).count());
        for waiter in engine.waiters(name, now).take(limit) {
            ctx.reply_map(4);
            ctx.reply_bytes(b"owner");
            ctx.reply_bytes(waiter.owner.as_slice());
            ctx.reply_bytes(b"mode");
            ctx.reply_bytes(waiter.mode.name().as_bytes());
            ctx.reply_bytes(b"waited-ms");
            ctx.reply_integer(waiter.waited_ms);
            ctx.reply_bytes(b"connected");
            ctx.reply_integer(1);
        }
    })
    .ok_or(super::ENGINE_IN_USE)
}
