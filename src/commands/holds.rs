//! `RLOCK.HOLDS key owner`

use std::marker::PhantomData;

use rlock_core::Hold;

use super::family::Family;
use super::{Failure, OWNER, read_lock, reply_failure};
use crate::arguments;
use crate::clock;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx};

pub(super) struct Holds<F>(PhantomData<F>);

impl<F: Family> Command for Holds<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.holds,
        flags: c"readonly fast",
        arity: 3,
        access: Access::Read,
        summary: c"Returns how often an owner holds a lock, 0 if it does not.",
        complexity: c"O(1)",
        arguments: &[OWNER],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, holds::<F>(ctx, args));
    }
}

fn holds<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, owner) = arguments::key_and_owner(args)?;
    let now = clock::now();
    let count = read_lock::<F, _>(ctx, key, false, |lock| {
        lock.and_then(|lock| lock.live_hold(owner, F::MODE, now)).map_or(0, Hold::count)
    })?;
    ctx.reply_integer(count.into());
    Ok(())
}
