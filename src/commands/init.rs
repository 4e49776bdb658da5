//! `RSEMAPHORE.INIT key permits [IDLE ms]`

use super::{Failure, check_master, permits_argument, reply_failure, with_options};
use crate::arguments;
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::options::{Opt, options};

const OPTIONS: &[Opt] = &[Opt::Idle];

pub(super) struct Init;

impl Command for Init {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RSEMAPHORE.INIT",
        flags: c"write deny-oom fast",
        arity: -3,
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Makes a semaphore and returns 1, or 0 if it exists. With IDLE, the server deletes it after that time without holders and waiters.",
        complexity: c"O(1)",
        arguments: || with_options(vec![permits_argument()], OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, init(ctx, args));
    }
}

fn init(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, permits) = (arguments::key(args)?, arguments::permits(args, 2)?);
    let idle_ms = options(args, 3, OPTIONS)?.integer(Opt::Idle);
    check_master()?;
    let reply = |is_new: bool| ctx.reply_integer(is_new.into());
    execute::on_key(ctx, key, |engine, tx| engine.init_semaphore(tx, permits, idle_ms), reply);
    Ok(())
}
