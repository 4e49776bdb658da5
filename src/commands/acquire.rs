//! `RLOCK.ACQUIRE key owner [PX ms | EX s] [BLOCK ms] [SESSION ms] [REQ id]`

use rlock_core::{Acquired, Kind, Mode, Wait};

use super::{ENGINE_IN_USE, Failure, LEASE, OWNER, REQ, check_master, option, reply_failure};
use crate::arguments::{self, Opt, Options};
use crate::configuration;
use crate::execute::{self, KEY};
use crate::ffi::{Access, Args, Command, CommandSpec, Ctx, Flags};
use crate::reply;
use crate::waiting;

pub(super) struct Acquire;

impl Command for Acquire {
    const SPEC: CommandSpec = CommandSpec {
        name: c"RLOCK.ACQUIRE",
        flags: c"write deny-oom",
        arity: -3,
        access: Access::Write,
        summary: c"Acquires a lock for an owner, at once or after waiting, and returns its fencing token.",
        complexity: c"O(1) without waiters on the key, O(log N) with N of them",
        arguments: &[
            OWNER,
            LEASE,
            option(c"wait-milliseconds", c"BLOCK"),
            option(c"grace-milliseconds", c"SESSION"),
            REQ,
        ],
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) {
        reply_failure(ctx, acquire(ctx, args));
    }
}

fn acquire(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Failure> {
    const KNOWN: [Opt; 5] = [Opt::Px, Opt::Ex, Opt::Block, Opt::Session, Opt::Req];
    let (key, owner) = arguments::key_and_owner(args)?;
    let options = arguments::options(args, 3, &KNOWN)?;
    let flags = ctx.flags();
    check_master(flags)?;
    let client = ctx.connection(flags);
    if options.session_ms.is_some() && client.is_none() {
        return Err(Failure::Text(reply::SESSION_WITHOUT_CONNECTION));
    }
    let acquired = execute::on_key(ctx, key, |engine, turn| {
        let request = rlock_core::Acquire {
            kind: Kind::Mutex,
            owner: owner.into(),
            mode: Mode::Exclusive,
            count: 1,
            lease_ms: options.lease_ms.unwrap_or_else(configuration::default_lease_ms),
            request_id: options.request_id,
            session_ms: options.session_ms,
            client,
            wait: wait(options, flags, turn.now),
        };
        engine.acquire(turn, KEY, request)
    });
    match acquired.ok_or(ENGINE_IN_USE)?? {
        Acquired::Granted(token) => ctx.reply_integer(token),
        Acquired::Denied => ctx.reply_nil(),
        Acquired::Waiting(ticket) => {
            if !waiting::start(ctx, key, ticket) {
                ctx.reply_nil();
            }
        }
    }
    Ok(())
}

/// How the request may wait: not at all where the client must not be blocked.
fn wait(options: Options, flags: Flags, now: rlock_core::Now) -> Option<Wait> {
    let block_ms = options.block_ms?;
    if flags.denies_blocking() {
        return None;
    }
    Some(Wait { until_us: (block_ms != 0).then(|| now.after_ms(block_ms)), max_waiters: configuration::max_waiters() })
}
