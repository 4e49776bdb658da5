//! `RLOCK.RENEW key owner [PX ms | EX s]`

use std::marker::PhantomData;

use super::family::Family;
use super::{Failure, LEASE, OWNER, check_master, reply_failure};
use crate::arguments::{self, Opt};
use crate::execute::{self, KEY};
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx};

pub(super) struct Renew<F>(PhantomData<F>);

impl<F: Family> Command for Renew<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.renew,
        flags: c"write fast",
        arity: -3,
        access: Access::Write,
        summary:
            c"Gives a hold a new lease, which never ends earlier than the old one, and returns what is left of it.",
        complexity: c"O(1)",
        arguments: &[OWNER, LEASE],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, renew::<F>(ctx, args));
    }
}

fn renew<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, owner) = arguments::key_and_owner(args)?;
    let options = arguments::options(args, 3, &[Opt::Px, Opt::Ex])?;
    let flags = ctx.flags();
    check_master(flags)?;
    let request = rlock_core::Renew {
        kind: F::KIND,
        owner,
        mode: F::MODE,
        lease_ms: options.lease_ms,
        client: ctx.connection(flags),
    };
    execute::on_key(ctx, key, |engine, turn| engine.renew(turn, KEY, &request), |left_ms| ctx.reply_integer(left_ms));
    Ok(())
}
