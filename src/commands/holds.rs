//! `RLOCK.HOLDS key owner`

use std::marker::PhantomData;

use rlock_core::Hold;

use super::family::{Family, arguments_of_hold, target, words_of_hold};
use super::{Failure, read_lock, reply_failure};
use crate::clock;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};

pub(super) struct Holds<F>(PhantomData<F>);

impl<F: Family> Command for Holds<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.holds,
        flags: c"readonly fast",
        arity: words_of_hold::<F>(),
        access: Access::Read,
        keys: KeyArguments::First,
        summary: c"Returns how many times an owner holds a lock, 0 if it does not.",
        complexity: c"O(1)",
        arguments: || arguments_of_hold::<F>(&[]),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, holds::<F>(ctx, args));
    }
}

fn holds<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let target = target::<F>(args)?;
    let now = clock::now();
    let count = read_lock::<F, _>(ctx, target.key, false, now, |_, lock| {
        lock.and_then(|lock| lock.live_hold(target.owner, target.mode, now)).map_or(0, Hold::count)
    })?;
    ctx.reply_integer(count.into());
    Ok(())
}
