//! `RLOCK.FORCERELEASE key [TOKEN t]`, for a lock of any kind.

use std::marker::PhantomData;

use super::family::Family;
use super::{Failure, check_master, reply_failure, with_options};
use crate::arguments;
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::options::{Opt, options};

const OPTIONS: &[Opt] = &[Opt::Token];

pub(super) struct ForceRelease<F>(PhantomData<F>);

impl<F: Family> Command for ForceRelease<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.force_release,
        flags: c"write fast",
        arity: -2,
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Ends all holds of a lock, or only the hold with the given fencing token.",
        complexity: c"O(log M) with M locks held on the server, plus O(log N) for each waiter that is granted, with N waiters on the key",
        arguments: || with_options(Vec::new(), OPTIONS),
    };
    const IS_DANGEROUS: bool = true;

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, force_release::<F>(ctx, args));
    }
}

fn force_release<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let key = arguments::key(args)?;
    let token = options(args, 2, OPTIONS)?.integer(Opt::Token);
    check_master()?;
    let kind = (!F::IS_FOR_ANY_KIND).then_some(F::KIND);
    execute::on_key(
        ctx,
        key,
        |engine, tx| engine.force_release(tx, kind, token),
        |forced| ctx.reply_integer(forced.into()),
    );
    Ok(())
}
