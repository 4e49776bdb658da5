//! `RSEMAPHORE.RESIZE key permits`

use super::{Failure, check_master, permits_argument, reply_failure};
use crate::arguments;
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};

pub(super) struct Resize;

impl Command for Resize {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RSEMAPHORE.RESIZE",
        flags: c"write",
        arity: 3,
        access: Access::Write,
        keys: KeyArguments::First,
        summary:
            c"Changes the number of permits of a semaphore and returns how many are free, negative if more are in use.",
        complexity: c"O(1) without waiters on the key, O(N) with N waiters",
        arguments: || vec![permits_argument()],
    };
    const IS_DANGEROUS: bool = true;

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, resize(ctx, args));
    }
}

fn resize(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, permits) = (arguments::key(args)?, arguments::permits(args, 2)?);
    check_master()?;
    execute::on_key(
        ctx,
        key,
        |engine, tx| engine.resize_semaphore(tx, permits),
        |available| ctx.reply_signed(available),
    );
    Ok(())
}
