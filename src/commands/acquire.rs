//! `RLOCK.ACQUIRE key owner [PX ms | EX s] [BLOCK ms] [SESSION ms] [REQ id]`, on a fair lock with `[QUEUE ms]`, on a
//! read-write lock with `READ|WRITE`, on a semaphore with `[PERMITS n]`

use std::marker::PhantomData;

use rlock_core::{Acquired, Ask, Engine, Now, Turn, Verb};

use super::family::{Family, target, words_of_hold};
use super::{Failure, check_may_grant, reply_failure};
use crate::arguments::{self, Options};
use crate::configuration;
use crate::execute::{self, KEY};
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, Flags, KeyArguments};
use crate::reply;
use crate::waiting;

pub(super) struct Acquire<F>(PhantomData<F>);

impl<F: Family> Command for Acquire<F> {
    const SPEC: CommandSpec = CommandSpec {
        name: F::NAMES.acquire,
        flags: c"write deny-oom blocking",
        arity: -words_of_hold::<F>(),
        access: Access::Write,
        keys: KeyArguments::First,
        summary: c"Acquires a lock for an owner, at once or after waiting, and returns its fencing token.",
        complexity: c"O(1) without waiters on the key, O(log N) with N of them",
        arguments: F::ACQUIRE_ARGUMENTS,
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, acquire::<F>(ctx, args));
    }
}

fn acquire<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let target = target::<F>(args)?;
    let options = arguments::options(args, target.options_at, F::ACQUIRE_OPTIONS)?;
    let flags = ctx.flags();
    check_may_grant(ctx, flags)?;
    let client = connection_for(ctx, flags, options)?;
    let decide = |engine: &mut Engine, turn: &mut Turn<'_, _>| {
        let request = rlock_core::Acquire {
            verb: Verb::Acquire,
            kind: F::KIND,
            owner: target.owner.into(),
            mode: target.mode,
            count: options.holds(),
            lease_ms: options.lease_ms.unwrap_or_else(configuration::default_lease_ms),
            request_id: options.request_id,
            session_ms: options.session_ms,
            client,
            ask: ask(options, flags, turn.now),
        };
        engine.acquire(turn, KEY, request)
    };
    execute::on_key(ctx, target.key, decide, |acquired| match acquired {
        Acquired::Granted(token) => ctx.reply_integer(token),
        Acquired::Denied => ctx.reply_nil(),
        Acquired::Waiting(ticket) => {
            if !waiting::start(ctx, target.key, ticket) {
                ctx.reply_nil();
            }
        }
    });
    Ok(())
}

/// The connection that the request comes from. SESSION needs one.
pub(super) fn connection_for(ctx: Ctx<'_>, flags: Flags, options: Options) -> Result<Option<u64>, Failure> {
    let client = ctx.connection(flags);
    if options.session_ms.is_some() && client.is_none() {
        return Err(Failure::Text(reply::SESSION_WITHOUT_CONNECTION));
    }
    Ok(client)
}

/// What the request does if it is not granted at once. Where the client must not be blocked, BLOCK is one attempt.
pub(super) fn ask(options: Options, flags: Flags, now: Now) -> Ask {
    match (options.block_ms, options.queue_ms) {
        (Some(_), _) if flags.denies_blocking() => Ask::Try,
        (Some(block_ms), _) => Ask::Wait { until_us: (block_ms != 0).then(|| now.after_ms(block_ms)) },
        (None, Some(life_ms)) => Ask::Queue { life_ms },
        (None, None) => Ask::Try,
    }
}
