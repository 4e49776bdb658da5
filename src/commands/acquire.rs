//! `RLOCK.ACQUIRE key owner [PX ms | EX s] [BLOCK ms] [NOTIFY channel] [CLAIM ms] [SESSION ms]
//! [REQ id] [ONCE] [TIMED] [NOTE text]`
//!
//! A fair lock adds `[QUEUE ms] [GRACE ms]`, a read-write lock `READ|WRITE`, a semaphore
//! `[PERMITS n]`.

use std::ffi::CStr;
use std::marker::PhantomData;

use rlock_core::{Acquired, Ask, Channel, Engine, Kind, Mode, Now, Refusal, Request, Transaction, Verb, slot_of};

use super::family::{Family, arguments_of_hold, target, words_of_hold};
use super::{Failure, check_granting_master, default_lease_ms, lease_ms, reply_failure};
use crate::arguments::ArgumentError;
use crate::execute;
use crate::ffi::{Access, Arg, Args, Command, CommandSpec, Ctx, KeyArguments};
use crate::notices;
use crate::options::{Opt, Options, options};
use crate::reply;
use crate::server;
use crate::shard_channels;
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
        complexity: c"O(log M) with M locks held on the server, plus O(log N) if it waits, with N waiters on the key",
        arguments: || arguments_of_hold::<F>(F::ACQUIRE_OPTIONS),
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, acquire::<F>(ctx, args));
    }
}

fn acquire<F: Family>(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    let target = target::<F>(args)?;
    let options = options(args, target.options_at, F::ACQUIRE_OPTIONS)?;
    let wanted = Wanted { verb: Verb::Acquire, kind: F::KIND, mode: target.mode };
    acquire_keys(ctx, &[target.key], target.owner, wanted, &options, reply::refusal)
}

/// The command, and the kind and mode of lock that it acquires.
#[derive(Clone, Copy)]
pub(super) struct Wanted {
    pub(super) verb: Verb,
    pub(super) kind: Kind,
    pub(super) mode: Mode,
}

/// Acquires one key, or all of several.
pub(super) fn acquire_keys<'c>(
    ctx: Ctx<'c>,
    keys: &[Arg<'c>],
    owner: &[u8],
    Wanted { verb, kind, mode }: Wanted,
    options: &Options<'_>,
    reply_refusal: impl FnOnce(Ctx<'c>, Refusal),
) -> Result<(), Failure> {
    check_granting_master(ctx)?;
    check_session(ctx, options)?;
    let (lease_ms, claim_ms) = lease_and_claim_ms(options)?;
    check_grace(options)?;
    let channel = channel(ctx, keys, options)?;
    let may_block = channel.is_some() || (options.has(Opt::Block) && ctx.can_block(ctx.flags()));
    let decide = |engine: &mut Engine, tx: &mut Transaction<'_, _>| {
        let request = Request {
            verb,
            kind,
            mode,
            count: options.holds(),
            lease_ms,
            request_id: options.integer(Opt::Req),
            session_ms: options.integer(Opt::Session),
            claim_ms,
            grace_ms: options.integer(Opt::Grace),
            is_once: options.has(Opt::Once),
            is_timed: options.has(Opt::Timed),
            notify: channel,
            ask: ask(options, may_block, tx.now),
        };
        tx.note = options.bytes(Opt::Note);
        engine.acquire(tx, owner, &request)
    };
    let (mut waits, mut is_refused) = (None, false);
    execute::on_keys(ctx, keys, decide, |acquired| match acquired {
        Ok(Acquired::Waiting(ticket)) if channel.is_some() => {
            waits = Some(ticket);
            ctx.reply_status(WAITING);
        }
        Ok(Acquired::Granted(grant)) => reply::granted(ctx, grant),
        Ok(Acquired::Denied) => ctx.reply_nil(),
        Ok(Acquired::Waiting(ticket)) => {
            // In a cluster all keys are in one slot, so the first key stands for all of them.
            if !keys.first().is_some_and(|key| waiting::start(ctx, *key, ticket)) {
                ctx.reply_nil();
            }
        }
        Err(refusal) => {
            is_refused = true;
            reply_refusal(ctx, refusal);
        }
    });
    if let Some((channel, id)) = channel.zip(options.integer(Opt::Req)) {
        if !is_refused {
            notices::sent_again(channel, id, waits);
        }
        if waits.is_some() {
            shard_channels::waited_for(ctx, channel);
        } else {
            notices::let_go(channel);
        }
    }
    Ok(())
}

/// The reply to a request with NOTIFY that waits. It is not an integer: a client that converts
/// numbers to strings, or treats 0 as true, could mistake an integer for a token.
const WAITING: &CStr = c"WAITING";

/// The channel of NOTIFY, if the request has one.
fn channel(ctx: Ctx<'_>, keys: &[Arg<'_>], options: &Options<'_>) -> Result<Option<Channel>, Failure> {
    let Some(name) = options.bytes(Opt::Notify) else {
        return Ok(None);
    };
    if !options.has(Opt::Block) || !options.has(Opt::Req) {
        return Err(Failure::Text(reply::NOTIFY_WITHOUT_BLOCK));
    }
    let Some(client) = ctx.connection(ctx.flags()) else {
        return Err(Failure::Text(reply::NOTIFY_WITHOUT_CONNECTION));
    };
    if !ctx.user_may_publish(client, ctx.string(name).arg()) {
        return Err(Failure::Text(reply::NOTIFY_WITHOUT_PERMISSION));
    }
    if !server::has_pubsub() {
        return Err(Failure::Text(reply::NOTIFY_WITHOUT_PUBSUB));
    }
    if server::is_cluster() && keys.first().is_some_and(|key| slot_of(key.bytes()) != slot_of(name)) {
        return Err(Failure::Text(reply::NOTIFY_IN_OTHER_SLOT));
    }
    notices::hold(name).map(Some).ok_or(Failure::Text(reply::NOTIFY_WITHOUT_NUMBER))
}

/// The lease and the claim, in milliseconds. The claim is at most the lease; `TIMED` shortens it.
fn lease_and_claim_ms(options: &Options<'_>) -> Result<(u64, Option<u64>), Failure> {
    let lease_ms = lease_ms(options)?.unwrap_or_else(default_lease_ms);
    match options.integer(Opt::Claim) {
        Some(claim_ms) if claim_ms > lease_ms && !options.has(Opt::Timed) => {
            let text = format!("the claim of {claim_ms} ms is longer than the lease, which is {lease_ms} ms");
            Err(ArgumentError::new(text).into())
        }
        claim_ms => Ok((lease_ms, claim_ms.map(|claim_ms| claim_ms.min(lease_ms)))),
    }
}

/// GRACE requires BLOCK or QUEUE; QUEUE requires a grace above 0.
fn check_grace(options: &Options<'_>) -> Result<(), Failure> {
    match options.integer(Opt::Grace) {
        Some(_) if !options.has(Opt::Block) && !options.has(Opt::Queue) => {
            Err(Failure::Text(reply::GRACE_WITHOUT_PLACE))
        }
        Some(0) if options.has(Opt::Queue) => Err(Failure::Text(reply::GRACE_OF_NO_PLACE)),
        _ => Ok(()),
    }
}

/// SESSION requires a client connection.
fn check_session(ctx: Ctx<'_>, options: &Options) -> Result<(), Failure> {
    if options.has(Opt::Session) && ctx.connection(ctx.flags()).is_none() {
        return Err(Failure::Text(reply::SESSION_WITHOUT_CONNECTION));
    }
    Ok(())
}

/// The way to wait if the lock is not free. If the client cannot be blocked, BLOCK is a single
/// attempt.
fn ask(options: &Options, may_block: bool, now: Now) -> Ask {
    match (options.integer(Opt::Block), options.integer(Opt::Queue)) {
        (Some(_), _) if !may_block => Ask::Try,
        (Some(block_ms), _) => Ask::Wait { until_us: (block_ms != 0).then(|| now.after_ms(block_ms)) },
        (None, Some(life_ms)) => Ask::Queue { life_ms },
        (None, None) => Ask::Try,
    }
}
