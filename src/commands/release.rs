//! `RLOCK.RELEASE key owner [REQ id] [KEEP ms] [TOKEN t]`
//!
//! A read-write lock adds `READ|WRITE` and a semaphore `[PERMITS n]`; neither has KEEP.

use std::marker::PhantomData;

use rlock_core::Verb;

use super::family::{Family, arguments_of_hold, target, words_of_hold};
use super::{Failure, check_master, reply_failure};
use crate::execute;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::options::{Opt, options};

pub(super) struct Release<F>(PhantomData<F>);

impl<F: Family> Command for Release<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.release,
        flags: c"write fast",
        arity: -words_of_hold::<F>(),
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Releases a lock once and returns the holds left; at 0 the server grants it to the next waiter.",
        complexity: c"O(log M) with M locks held on the server, plus O(log N) for each waiter that is granted, with N waiters on the key",
        arguments: || arguments_of_hold::<F>(F::RELEASE_OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, release::<F>(ctx, args));
    }
}

fn release<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let target = target::<F>(args)?;
    let options = options(args, target.options_at, F::RELEASE_OPTIONS)?;
    check_master()?;
    let request = rlock_core::Release {
        verb: Verb::Release,
        kind: F::KIND,
        owner: target.owner,
        mode: target.mode,
        count: options.holds(),
        request_id: options.integer(Opt::Req),
        tokens: options.tokens(),
        // KEEP 0 is a plain RELEASE.
        keep_ms: options.integer(Opt::Keep).filter(|keep_ms| *keep_ms != 0),
        is_each: false,
    };
    execute::on_key(
        ctx,
        target.key,
        |engine, tx| engine.release(tx, &request),
        |left| ctx.reply_integer(left.first().copied().flatten().unwrap_or(0).into()),
    );
    Ok(())
}
