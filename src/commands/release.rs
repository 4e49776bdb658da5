//! `RLOCK.RELEASE key owner [REQ id]`

use std::marker::PhantomData;

use super::family::Family;
use super::{Failure, OWNER, REQ, check_master, reply_failure};
use crate::arguments::{self, Opt};
use crate::execute::{self, KEY};
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx};

pub(super) struct Release<F>(PhantomData<F>);

impl<F: Family> Command for Release<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.release,
        flags: c"write fast",
        arity: -3,
        access: Access::Write,
        summary: c"Gives one hold back and returns the holds left; at 0 the next waiter gets the lock.",
        complexity: c"O(1) without waiters on the key, O(log N) with N of them",
        arguments: &[OWNER, REQ],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, release::<F>(ctx, args));
    }
}

fn release<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, owner) = arguments::key_and_owner(args)?;
    let options = arguments::options(args, 3, &[Opt::Req])?;
    check_master(ctx.flags())?;
    let request = rlock_core::Release { kind: F::KIND, owner, mode: F::MODE, count: 1, request_id: options.request_id };
    execute::on_key(
        ctx,
        key,
        |engine, turn| engine.release(turn, KEY, &request),
        |left| ctx.reply_integer(left.into()),
    );
    Ok(())
}
