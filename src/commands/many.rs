//! `RLOCK.MACQUIRE`, `RLOCK.MRELEASE`, `RLOCK.MRENEW`: `numkeys key [key …] owner …`

use rlock_core::{Acquired, Engine, Kind, Mode, Refusal, Turn, Verb};

use super::acquire::{ask, connection_for};
use super::{BLOCK, Failure, LEASE, OWNER, REQ, SESSION, check_master, check_may_grant, reply_failure};
use crate::arguments::{self, KeysAndOwner, Opt};
use crate::configuration;
use crate::execute;
use crate::ffi::{Access, Arg, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::reply;
use crate::waiting;

pub(super) struct Acquire;

impl Command for Acquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.MACQUIRE",
        flags: c"write deny-oom getkeys-api blocking",
        arity: -4,
        access: Access::Write,
        keys: KeyArguments::Counted,
        summary: c"Acquires several locks for an owner in one step, all or none, and returns their fencing tokens.",
        complexity: c"O(K) with K keys, O(K log N) with N waiters",
        arguments: &[OWNER, LEASE, BLOCK, SESSION, REQ],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, acquire(ctx, args));
    }
}

fn acquire(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let KeysAndOwner { keys, owner, options_at } = arguments::keys_and_owner(args)?;
    let options = arguments::options(args, options_at, &[Opt::Px, Opt::Ex, Opt::Block, Opt::Session, Opt::Req])?;
    let flags = ctx.flags();
    check_may_grant(ctx, flags)?;
    let client = connection_for(ctx, flags, options)?;
    let decide = |engine: &mut Engine, turn: &mut Turn<'_, _>, ids: &[_]| {
        let request = rlock_core::Acquire {
            verb: Verb::AcquireMany,
            kind: Kind::Mutex,
            owner: owner.into(),
            mode: Mode::Exclusive,
            count: 1,
            lease_ms: options.lease_ms.unwrap_or_else(configuration::default_lease_ms),
            request_id: options.request_id,
            session_ms: options.session_ms,
            client,
            ask: ask(options, flags, turn.now),
        };
        engine.acquire_many(turn, ids, request)
    };
    execute::on_keys(ctx, &keys, decide, |acquired| match acquired {
        Ok(Acquired::Granted(tokens)) => ctx.reply_integers(tokens.into_iter()),
        Ok(Acquired::Denied) => ctx.reply_nil(),
        Ok(Acquired::Waiting(ticket)) => {
            // All keys are in one slot of a cluster: where the first is served, the others are.
            if !keys.first().is_some_and(|key| waiting::start(ctx, *key, ticket)) {
                ctx.reply_nil();
            }
        }
        Err(refusal) => reply_refusal(ctx, &keys, refusal),
    });
    Ok(())
}

pub(super) struct Release;

impl Command for Release {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.MRELEASE",
        flags: c"write getkeys-api",
        arity: -4,
        access: Access::Write,
        keys: KeyArguments::Counted,
        summary: c"Gives one hold of each key back, all or none, and returns the holds left of each.",
        complexity: c"O(K) with K keys, O(K log N) with N waiters",
        arguments: &[OWNER, REQ],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, release(ctx, args));
    }
}

fn release(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let KeysAndOwner { keys, owner, options_at } = arguments::keys_and_owner(args)?;
    let request_id = arguments::options(args, options_at, &[Opt::Req])?.request_id;
    check_master(ctx.flags())?;
    let (verb, kind, mode) = (Verb::ReleaseMany, Kind::Mutex, Mode::Exclusive);
    let request = rlock_core::Release { verb, kind, owner, mode, count: 1, request_id };
    execute::on_keys(
        ctx,
        &keys,
        |engine, turn, ids| engine.release_many(turn, ids, &request),
        |released| match released {
            Ok(left) => ctx.reply_integers(left.into_iter().map(u64::from)),
            Err(refusal) => reply_refusal(ctx, &keys, refusal),
        },
    );
    Ok(())
}

pub(super) struct Renew;

impl Command for Renew {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.MRENEW",
        flags: c"write getkeys-api",
        arity: -4,
        access: Access::Write,
        keys: KeyArguments::Counted,
        summary: c"Gives the hold of each key a new lease, all or none, and returns the smallest lease left.",
        complexity: c"O(K) with K keys",
        arguments: &[OWNER, LEASE],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, renew(ctx, args));
    }
}

fn renew(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let KeysAndOwner { keys, owner, options_at } = arguments::keys_and_owner(args)?;
    let lease_ms = arguments::options(args, options_at, &[Opt::Px, Opt::Ex])?.lease_ms;
    let flags = ctx.flags();
    check_master(flags)?;
    let (kind, mode) = (Kind::Mutex, Mode::Exclusive);
    let request = rlock_core::Renew { kind, owner, mode, lease_ms, client: ctx.connection(flags) };
    execute::on_keys(
        ctx,
        &keys,
        |engine, turn, ids| engine.renew_many(turn, ids, &request),
        |renewed| match renewed {
            Ok(left_ms) => ctx.reply_integer(left_ms),
            Err(refusal) => reply_refusal(ctx, &keys, refusal),
        },
    );
    Ok(())
}

/// Names the key that is not held.
fn reply_refusal(ctx: Ctx<'_>, keys: &[Arg<'_>], refusal: Refusal) {
    match &refusal {
        Refusal::NotOwnerOf { position } => {
            let name = keys.get(*position).map_or(&[][..], |key| key.bytes());
            ctx.reply_error(&reply::not_owner_of(name));
        }
        _ => reply::refusal(ctx, refusal),
    }
}
