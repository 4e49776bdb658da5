//! `RLOCK.PTTL key`, for a lock of any kind.

use std::marker::PhantomData;

use rlock_core::{Hold, Keyspace, Phase};

use super::family::Family;
use super::{Failure, read_lock, reply_failure, with_options};
use crate::arguments;
use crate::clock;
use crate::execute::KEY;
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, KeyArguments, Keys};
use crate::options::{Opt, options};

/// The reply for a lock without a holder; Redis's PTTL returns it for a missing key.
const NOT_HELD: i64 = -2;

const OPTIONS: &[Opt] = &[Opt::Token];

pub(super) struct Pttl<F>(PhantomData<F>);

impl<F: Family> Command for Pttl<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.pttl,
        flags: c"readonly fast",
        arity: -2,
        access: Access::Read,
        keys: KeyArguments::First,
        summary: c"Returns the milliseconds left of the longest lease, or of the hold with a fencing token; -2 if there is none.",
        complexity: c"O(1); O(log H) for a lock that H owners may hold together",
        arguments: || with_options(Vec::new(), OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, pttl::<F>(ctx, args));
    }
}

fn pttl<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let (key, now) = (arguments::key(args)?, clock::now());
    let token = options(args, 2, OPTIONS)?.integer(Opt::Token);
    let left_ms = read_lock::<F, _>(ctx, key, F::IS_FOR_ANY_KIND, now, |_, lock| {
        let deadline_us = lock.and_then(|lock| match token {
            // A kept hold has been released, so it has no lease.
            Some(token) => {
                let hold = lock.hold_with_token(token).filter(|hold| hold.phase() != Phase::Kept);
                hold.map(Hold::deadline_us)
            }
            None => lock.last_deadline_us(),
        });
        deadline_us.map_or(0, |deadline_us| now.left_ms(deadline_us))
    })?;
    match left_ms {
        0 => ctx.reply_signed(NOT_HELD),
        left_ms => {
            // An EXPIRE on the key may end the hold before the lease does.
            let expire_left_ms = Keys::open_to_peek(ctx, key).expire_left_ms(KEY);
            ctx.reply_integer(expire_left_ms.map_or(left_ms, |expire_left_ms| left_ms.min(expire_left_ms)));
        }
    }
    Ok(())
}
