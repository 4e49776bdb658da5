//! `RSEMAPHORE.INIT key permits`

use super::{Failure, check_master, permits_argument, reply_failure};
use crate::arguments;
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};

pub(super) struct Init;

impl Command for Init {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RSEMAPHORE.INIT",
        flags: c"write deny-oom fast",
        arity: 3,
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Makes a semaphore with a number of permits, unless there is one; returns whether it did.",
        complexity: c"O(1)",
        arguments: || vec![permits_argument()],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, init(ctx, args));
    }
}

fn init(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, permits) = (arguments::key(args)?, arguments::permits(args, 2)?);
    check_master()?;
    execute::on_key(ctx, key, |engine, tx| engine.init_semaphore(tx, permits), |made| ctx.reply_integer(made.into()));
    Ok(())
}
