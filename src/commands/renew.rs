//! `RLOCK.RENEW key owner [PX ms | EX s] [TIMED] [NOTE text] [TOKEN t]`

use std::marker::PhantomData;

use super::family::{Family, RENEW_OPTIONS, arguments_of_hold, target, words_of_hold};
use super::{Failure, check_master, lease_ms, reply_failure};
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::options::{Opt, options};

pub(super) struct Renew<F>(PhantomData<F>);

impl<F: Family> Command for Renew<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.renew,
        flags: c"write fast",
        arity: -words_of_hold::<F>(),
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Extends the lease of a hold and returns the milliseconds left. It never shortens the lease.",
        complexity: c"O(1)",
        arguments: || arguments_of_hold::<F>(RENEW_OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, renew::<F>(ctx, args));
    }
}

fn renew<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let target = target::<F>(args)?;
    let options = options(args, target.options_at, RENEW_OPTIONS)?;
    check_master()?;
    let request = rlock_core::Renew {
        kind: F::KIND,
        owner: target.owner,
        mode: target.mode,
        lease_ms: lease_ms(&options)?,
        tokens: options.tokens(),
        is_each: false,
    };
    execute::on_key(
        ctx,
        target.key,
        |engine, tx| {
            tx.note = options.bytes(Opt::Note);
            engine.renew(tx, &request)
        },
        |left_ms| ctx.reply_integer(left_ms.first().copied().flatten().unwrap_or(0)),
    );
    Ok(())
}
