//! `RFAIRLOCK.CANCEL key owner`

use super::{Failure, OWNER, check_master, reply_failure};
use crate::arguments;
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};

pub(super) struct Cancel;

impl Command for Cancel {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RFAIRLOCK.CANCEL",
        flags: c"write fast",
        arity: 3,
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Gives up an owner's place in the queue of a fair lock.",
        complexity: c"O(1)",
        arguments: &[OWNER],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, cancel(ctx, args));
    }
}

fn cancel(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, owner) = arguments::key_and_owner(args)?;
    check_master()?;
    execute::on_key(ctx, key, |engine, tx| engine.cancel(tx, owner), |cancelled| ctx.reply_integer(cancelled.into()));
    Ok(())
}
