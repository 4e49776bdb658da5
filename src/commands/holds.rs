//! `RLOCK.HOLDS key owner`

use rlock_core::{Kind, Mode, Refusal};

use super::{Failure, OWNER, read_lock, reply_failure};
use crate::arguments;
use crate::clock;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx};

pub(super) struct Holds;

impl Command for Holds {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.HOLDS",
        flags: c"readonly fast",
        arity: 3,
        access: Access::Read,
        summary: c"Returns how often an owner holds a lock, 0 if it does not.",
        complexity: c"O(1)",
        arguments: &[OWNER],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, holds(ctx, args));
    }
}

fn holds(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, owner) = arguments::key_and_owner(args)?;
    let now = clock::now();
    let count = read_lock(ctx, key, |lock| match lock {
        Some(lock) if lock.kind() != Kind::Mutex => Err(Refusal::WrongType),
        Some(lock) => Ok(lock.live_hold(owner, Mode::Exclusive, now).map_or(0, rlock_core::Hold::count)),
        None => Ok(0),
    })??;
    ctx.reply_integer(count.into());
    Ok(())
}
