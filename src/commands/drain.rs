//! `RSEMAPHORE.DRAIN key owner [PX ms | EX s]`

use rlock_core::{Ask, Kind, Mode, Request, Verb};

use super::{Failure, check_granting_master, default_lease_ms, lease_ms, owner_argument, reply_failure, with_options};
use crate::arguments;
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::options::{Opt, options};

const OPTIONS: &[Opt] = &[Opt::Px, Opt::Ex];

pub(super) struct Drain;

impl Command for Drain {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RSEMAPHORE.DRAIN",
        flags: c"write deny-oom fast",
        arity: -3,
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Acquires all free permits and returns how many; 0 if none is free or a request waits.",
        complexity: c"O(log H) with H owners that hold permits",
        arguments: || with_options(vec![owner_argument()], OPTIONS),
    };
    const IS_DANGEROUS: bool = true;

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, drain(ctx, args));
    }
}

fn drain(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, owner) = arguments::key_and_owner(args)?;
    let options = options(args, 3, OPTIONS)?;
    check_granting_master(ctx)?;
    let request = Request {
        verb: Verb::Acquire,
        kind: Kind::Semaphore,
        mode: Mode::Permits,
        count: 1,
        lease_ms: lease_ms(&options)?.unwrap_or_else(default_lease_ms),
        request_id: None,
        session_ms: None,
        claim_ms: None,
        grace_ms: None,
        is_once: false,
        is_timed: false,
        notify: None,
        ask: Ask::Try,
    };
    execute::on_key(
        ctx,
        key,
        |engine, tx| engine.drain_semaphore(tx, owner, &request),
        |taken| ctx.reply_integer(taken.into()),
    );
    Ok(())
}
