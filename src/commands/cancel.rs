//! `RLOCK.CANCEL key owner [REQ id]`

use std::marker::PhantomData;

use super::family::Family;
use super::{Failure, check_master, owner_argument, reply_failure, with_options};
use crate::arguments;
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::options::{Opt, options};

const OPTIONS: &[Opt] = &[Opt::Req];

pub(super) struct Cancel<F>(PhantomData<F>);

impl<F: Family> Command for Cancel<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.cancel,
        flags: c"write fast",
        arity: -3,
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Ends a request of an owner: any that waits, or the one with an id, which may be granted. Returns 1, or 0 if there was none.",
        complexity: c"O(log N) with N requests that wait on the key",
        arguments: || with_options(vec![owner_argument()], OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, cancel::<F>(ctx, args));
    }
}

fn cancel<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, owner) = arguments::key_and_owner(args)?;
    let request_id = options(args, 3, OPTIONS)?.integer(Opt::Req);
    check_master()?;
    let request = rlock_core::Cancel { kind: F::KIND, owner, request_id };
    execute::on_key(ctx, key, |engine, tx| engine.cancel(tx, &request), |ended| ctx.reply_integer(u64::from(ended)));
    Ok(())
}
