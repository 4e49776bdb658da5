//! `RLOCK.MACQUIRE`, `RLOCK.MRELEASE`, `RLOCK.MRENEW`, `RLOCK.MCANCEL`:
//! `numkeys key [key …] owner …`
//!
//! In a cluster the server routes these commands by their first key, and the module checks the
//! other keys. The commands do not report their keys with the flag `getkeys-api`: Valkey 8.0 and
//! newer and Redis 8.6 also request the keys from I/O threads, without the global lock, and crash.

use rlock_core::{Kind, Mode, Refusal, Verb, slot_of};

use super::acquire::{Wanted, acquire_keys};
use super::family::{Family, Mutex};
use super::{Failure, check_master, lease_ms, owner_argument, reply_failure, with_options};
use crate::arguments::{self, KeysAndOwner};
use crate::execute;
use crate::ffi::{Access, Arg, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::options::{Opt, options_of_many};
use crate::reply;
use crate::server;

const RELEASE_OPTIONS: &[Opt] = &[Opt::Req, Opt::Tokens, Opt::Each];

const RENEW_OPTIONS: &[Opt] = &[Opt::Px, Opt::Ex, Opt::Timed, Opt::Note, Opt::Tokens, Opt::Each];

const CANCEL_OPTIONS: &[Opt] = &[Opt::Req];

pub(super) struct Acquire;

impl Command for Acquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.MACQUIRE",
        flags: c"write deny-oom blocking",
        arity: -4,
        access: Access::Write,
        keys: KeyArguments::Counted,
        summary: c"Acquires several locks for an owner in one step, all or none, and returns their fencing tokens.",
        complexity:
            c"O(K log M) with K keys and M locks held on the server, plus O(K log N) with N waiters on the keys",
        arguments: || with_options(vec![owner_argument()], Mutex::ACQUIRE_OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, acquire(ctx, args));
    }
}

fn acquire(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let many = arguments::keys_and_owner(args)?;
    let options = options_of_many(args, &many, Mutex::ACQUIRE_OPTIONS)?;
    let KeysAndOwner { keys, owner, .. } = many;
    check_slot(ctx, &keys)?;
    let wanted = Wanted { verb: Verb::AcquireMany, kind: Kind::Mutex, mode: Mode::Exclusive };
    acquire_keys(ctx, &keys, owner, wanted, &options, |ctx, refusal| reply_refusal(ctx, &keys, refusal))
}

pub(super) struct Release;

impl Command for Release {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.MRELEASE",
        flags: c"write",
        arity: -4,
        access: Access::Write,
        keys: KeyArguments::Counted,
        summary: c"Releases each key once, all or none, and returns the holds left of each.",
        complexity:
            c"O(K log M) with K keys and M locks held on the server, plus O(K log N) with N waiters on the keys",
        arguments: || with_options(vec![owner_argument()], RELEASE_OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, release(ctx, args));
    }
}

fn release(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let many = arguments::keys_and_owner(args)?;
    let options = options_of_many(args, &many, RELEASE_OPTIONS)?;
    let KeysAndOwner { keys, owner, .. } = many;
    check_master()?;
    check_slot(ctx, &keys)?;
    let (verb, kind, mode) = (Verb::ReleaseMany, Kind::Mutex, Mode::Exclusive);
    let (request_id, tokens) = (options.integer(Opt::Req), options.tokens());
    let (is_each, keep_ms) = (options.has(Opt::Each), None);
    let request = rlock_core::Release { verb, kind, owner, mode, count: 1, request_id, tokens, keep_ms, is_each };
    execute::on_keys(
        ctx,
        &keys,
        |engine, tx| engine.release(tx, &request),
        |released| match released {
            Ok(left) if is_each => ctx.reply_integers_or_nil(left.into_iter().map(|left| left.map(u64::from))),
            Ok(left) => ctx.reply_integers(left.into_iter().map(|left| left.unwrap_or(0).into())),
            Err(refusal) => reply_refusal(ctx, &keys, refusal),
        },
    );
    Ok(())
}

pub(super) struct Renew;

impl Command for Renew {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.MRENEW",
        flags: c"write",
        arity: -4,
        access: Access::Write,
        keys: KeyArguments::Counted,
        summary: c"Extends the lease of each key, all or none, and returns the shortest lease left in milliseconds.",
        complexity: c"O(K) with K keys",
        arguments: || with_options(vec![owner_argument()], RENEW_OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, renew(ctx, args));
    }
}

fn renew(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let many = arguments::keys_and_owner(args)?;
    let options = options_of_many(args, &many, RENEW_OPTIONS)?;
    let KeysAndOwner { keys, owner, .. } = many;
    check_master()?;
    check_slot(ctx, &keys)?;
    let (kind, mode) = (Kind::Mutex, Mode::Exclusive);
    let (lease_ms, tokens, is_each) = (lease_ms(&options)?, options.tokens(), options.has(Opt::Each));
    let request = rlock_core::Renew { kind, owner, mode, lease_ms, tokens, is_each };
    execute::on_keys(
        ctx,
        &keys,
        |engine, tx| {
            tx.note = options.bytes(Opt::Note);
            engine.renew(tx, &request)
        },
        |renewed| match renewed {
            Ok(left_ms) if is_each => ctx.reply_integers_or_nil(left_ms.into_iter()),
            Ok(left_ms) => ctx.reply_integer(left_ms.into_iter().flatten().min().unwrap_or(0)),
            Err(refusal) => reply_refusal(ctx, &keys, refusal),
        },
    );
    Ok(())
}

pub(super) struct Cancel;

impl Command for Cancel {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.MCANCEL",
        flags: c"write",
        arity: -4,
        access: Access::Write,
        keys: KeyArguments::Counted,
        summary: c"Ends the request of an owner for several keys, which waits or was granted. Returns 1, or 0 if there was none.",
        complexity:
            c"O(K log M) with K keys and M locks held on the server, plus O(K log N) with N waiters on the keys",
        arguments: || with_options(vec![owner_argument()], CANCEL_OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, cancel(ctx, args));
    }
}

fn cancel(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let many = arguments::keys_and_owner(args)?;
    let request_id = options_of_many(args, &many, CANCEL_OPTIONS)?.integer(Opt::Req);
    let KeysAndOwner { keys, owner, .. } = many;
    check_master()?;
    check_slot(ctx, &keys)?;
    let request = rlock_core::Cancel { kind: Kind::Mutex, owner, request_id };
    execute::on_keys(
        ctx,
        &keys,
        |engine, tx| engine.cancel(tx, &request),
        |cancelled| match cancelled {
            Ok(has_ended) => ctx.reply_integer(u64::from(has_ended)),
            Err(refusal) => reply_refusal(ctx, &keys, refusal),
        },
    );
    Ok(())
}

/// In a cluster all keys must be in one slot, and on this node.
fn check_slot(ctx: Ctx<'_>, keys: &[Arg<'_>]) -> Result<(), Failure> {
    let Some((first, others)) = keys.split_first().filter(|_| server::is_cluster()) else {
        return Ok(());
    };
    let slot = slot_of(first.bytes());
    if others.iter().any(|key| slot_of(key.bytes()) != slot) {
        return Err(Failure::Text(reply::KEYS_CROSS_SLOTS));
    }
    // The server has checked the first key, and that the cluster is up.
    if others.is_empty() || ctx.serves(keys) {
        return Ok(());
    }
    Err(Failure::Text(reply::SLOT_MOVES))
}

/// Replies with the error of a refused request. If one key caused the refusal, the error names it.
fn reply_refusal(ctx: Ctx<'_>, keys: &[Arg<'_>], refusal: Refusal) {
    let Refusal::NotOwner { position } = refusal else {
        return reply::refusal(ctx, refusal);
    };
    let name = keys.get(position).map_or(&[][..], |key| key.bytes());
    ctx.reply_error(&reply::not_owner_of(name));
}
