//! The commands: each parses its arguments, sends one request to the engine, and replies.

mod acquire;
mod apply;
mod cancel;
mod drain;
mod family;
mod force_release;
mod holds;
mod info;
mod init;
mod many;
mod permission;
mod pttl;
mod release;
mod renew;
mod resize;
mod top;
mod waiters;

use rlock_core::{KeyRef, Keyspace, Lock, Now, Refusal, Value};

use self::family::{Fair, Family, Mutex, RwLock, Semaphore};
pub(crate) use self::permission::is_permitted;
use crate::arguments::ArgumentError;
use crate::configuration;
use crate::exclusion;
use crate::execute::KEY;
use crate::ffi::{Arg, ArgumentSpec, Ctx, Keys, LoadError, Registrar, ValueSpec};
use crate::options::{Opt, Options, Row, Takes};
use crate::reply;
use crate::server;

/// Registers every command.
pub(crate) fn register(registrar: &Registrar<'_>) -> Result<(), LoadError> {
    register_family::<Mutex>(registrar)?;
    register_family::<Fair>(registrar)?;
    register_family::<RwLock>(registrar)?;
    register_family::<Semaphore>(registrar)?;
    registrar.command::<init::Init>()?;
    registrar.command::<resize::Resize>()?;
    registrar.command::<drain::Drain>()?;
    registrar.command::<top::Top>()?;
    registrar.command::<many::Acquire>()?;
    registrar.command::<many::Release>()?;
    registrar.command::<many::Renew>()?;
    registrar.command::<many::Cancel>()?;
    registrar.command::<apply::Apply>()
}

fn register_family<F: Family>(registrar: &Registrar<'_>) -> Result<(), LoadError> {
    registrar.command::<acquire::Acquire<F>>()?;
    registrar.command::<release::Release<F>>()?;
    registrar.command::<renew::Renew<F>>()?;
    registrar.command::<cancel::Cancel<F>>()?;
    registrar.command::<force_release::ForceRelease<F>>()?;
    registrar.command::<holds::Holds<F>>()?;
    registrar.command::<pttl::Pttl<F>>()?;
    registrar.command::<info::Info<F>>()?;
    registrar.command::<waiters::Waiters<F>>()
}

/// The error of a command.
enum Failure {
    Arguments(ArgumentError),
    Refused(Refusal),
    Text(&'static str),
}

impl From<ArgumentError> for Failure {
    fn from(error: ArgumentError) -> Self {
        Self::Arguments(error)
    }
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

/// Replies with the error, if there is one.
fn reply_failure(ctx: Ctx<'_>, result: Result<(), Failure>) {
    match result {
        Ok(()) => {}
        Err(Failure::Arguments(error)) => ctx.reply_error(error.text()),
        Err(Failure::Refused(refusal)) => reply::refusal(ctx, refusal),
        Err(Failure::Text(text)) => ctx.reply_error(text),
    }
}

/// Fails on a replica, even on a writable one: its master would overwrite the decisions.
fn check_master() -> Result<(), Failure> {
    if server::decides() { Ok(()) } else { Err(Failure::Text(reply::READONLY)) }
}

/// Like [`check_master`], for a command that acquires. A quarantine depends on whether the data set
/// was empty before this command adds a key to it.
fn check_granting_master(ctx: Ctx<'_>) -> Result<(), Failure> {
    check_master()?;
    exclusion::on_turn(ctx);
    Ok(())
}

/// The lease of PX or EX, in milliseconds. If it is longer than `rlock.max-lease-ms`, `TIMED`
/// shortens it; otherwise this fails.
fn lease_ms(options: &Options<'_>) -> Result<Option<u64>, Failure> {
    let (lease_ms, longest_ms) = (options.lease_ms(), exclusion::max_lease_ms());
    match lease_ms {
        Some(lease_ms) if lease_ms > longest_ms && options.has(Opt::Timed) => Ok(Some(longest_ms)),
        Some(lease_ms) if lease_ms > longest_ms => {
            let text =
                format!("the lease of {lease_ms} ms is longer than rlock.max-lease-ms, which is {longest_ms} ms");
            Err(ArgumentError::new(text).into())
        }
        lease_ms => Ok(lease_ms),
    }
}

/// The lease of a request without PX or EX, in milliseconds.
fn default_lease_ms() -> u64 {
    configuration::default_lease_ms().min(exclusion::max_lease_ms())
}

/// The error of a command that finds the engine in use, which would be a bug.
const ENGINE_IN_USE: Failure = Failure::Text(reply::INTERNAL_ERROR);

/// Passes a key and its lock to a read-only command of a family. With `any_kind`, the lock may be
/// of another kind.
fn read_lock<F: Family, R>(
    ctx: Ctx<'_>,
    key: Arg<'_>,
    any_kind: bool,
    now: Now,
    read: impl FnOnce(KeyRef<'_>, Option<&Lock>) -> R,
) -> Result<R, Failure> {
    let keys = Keys::open_to_peek(ctx, key);
    let name = keys.key(KEY);
    match keys.value(KEY) {
        Value::Vacant => Ok(read(name, None)),
        Value::Lock(lock) if any_kind => Ok(read(name, Some(lock))),
        // For a reader, a missing semaphore is a missing lock.
        value => match value.of_kind(F::KIND, now) {
            Ok(lock) => Ok(read(name, lock)),
            Err(Refusal::NoSemaphore) => Ok(read(name, None)),
            Err(refusal) => Err(refusal.into()),
        },
    }
}

/// The owner, after the key.
fn owner_argument() -> ArgumentSpec {
    ArgumentSpec { name: c"owner", token: None, optional: false, value: ValueSpec::Bytes }
}

/// The number of permits of a semaphore, after the key.
fn permits_argument() -> ArgumentSpec {
    ArgumentSpec { name: c"permits", token: None, optional: false, value: ValueSpec::Integer }
}

/// The arguments of a command after its keys: positional ones first, then the options.
fn with_options(mut positional: Vec<ArgumentSpec>, options: &[Opt]) -> Vec<ArgumentSpec> {
    for option in options {
        let Row { word, name, takes, group } = option.row();
        let value = match takes {
            Takes::Nothing => ValueSpec::Token,
            Takes::Integer { .. } => ValueSpec::Integer,
            Takes::IntegerOfEachKey { .. } => ValueSpec::Integers,
            Takes::Bytes { .. } => ValueSpec::Bytes,
        };
        let argument = ArgumentSpec { name, token: Some(word), optional: group.is_none(), value };
        match (group, positional.last_mut()) {
            (Some(group), Some(ArgumentSpec { name, value: ValueSpec::OneOf(choices), .. })) if *name == group => {
                choices.push(argument);
            }
            (Some(group), _) if options.iter().filter(|other| other.row().group == Some(group)).count() > 1 => {
                let value = ValueSpec::OneOf(vec![argument]);
                positional.push(ArgumentSpec { name: group, token: None, optional: true, value });
            }
            _ => positional.push(ArgumentSpec { optional: true, ..argument }),
        }
    }
    positional
}
