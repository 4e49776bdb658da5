//! `RLOCK.PTTL key`, for a lock of any kind.

use std::marker::PhantomData;

use super::family::Family;
use super::{Failure, read_lock, reply_failure};
use crate::arguments;
use crate::clock;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};

/// What PTTL answers when nobody holds, as Redis does for a key that is not there.
const NOT_HELD: i64 = -2;

pub(super) struct Pttl<F>(PhantomData<F>);

impl<F: Family> Command for Pttl<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.pttl,
        flags: c"readonly fast",
        arity: 2,
        access: Access::Read,
        keys: KeyArguments::First,
        summary: c"Returns the longest lease left in milliseconds, -2 if the lock is not held.",
        complexity: c"O(1)",
        arguments: &[],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, pttl::<F>(ctx, args));
    }
}

fn pttl<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let now = clock::now();
    let longest_ms = read_lock::<F, _>(ctx, arguments::key(args)?, F::IS_FOR_ANY_KIND, now, |lock| {
        lock.and_then(|lock| lock.last_deadline_us()).map_or(0, |deadline_us| now.left_ms(deadline_us))
    })?;
    match longest_ms {
        0 => ctx.reply_signed(NOT_HELD),
        left_ms => ctx.reply_integer(left_ms),
    }
    Ok(())
}
