//! Families of commands: the same commands for each kind of lock.

use std::ffi::{CStr, c_int};

use rlock_core::{Kind, Mode};

use super::{BLOCK, BLOCK_OR_QUEUE, LEASE, MODE, NOTIFY, ONCE, OWNER, PERMITS, REQ, SESSION, TOKEN};
use crate::arguments::{self, ArgumentError, Opt};
use crate::ffi::{Arg, Args, ArgumentSpec};

/// What makes one family different from another.
pub(super) trait Family {
    const KIND: Kind;
    /// The mode of every hold; `None` if the command says READ or WRITE behind the owner.
    const MODE: Option<Mode>;
    /// Whether its INFO, PTTL, WAITERS and FORCERELEASE are for a lock of any kind.
    const IS_FOR_ANY_KIND: bool;
    const NAMES: Names;
    /// The options of ACQUIRE and RELEASE.
    const ACQUIRE_OPTIONS: &'static [Opt];
    const RELEASE_OPTIONS: &'static [Opt];
    /// What follows the key, for the server.
    const ACQUIRE_ARGUMENTS: &'static [ArgumentSpec];
    const RELEASE_ARGUMENTS: &'static [ArgumentSpec];
    const RENEW_ARGUMENTS: &'static [ArgumentSpec];
    const HOLDS_ARGUMENTS: &'static [ArgumentSpec];
}

/// The names of a family's commands.
pub(super) struct Names {
    pub(super) acquire: &'static CStr,
    pub(super) release: &'static CStr,
    pub(super) cancel: &'static CStr,
    pub(super) renew: &'static CStr,
    pub(super) force_release: &'static CStr,
    pub(super) holds: &'static CStr,
    pub(super) pttl: &'static CStr,
    pub(super) info: &'static CStr,
    pub(super) waiters: &'static CStr,
}

/// The number of arguments of a command that names a hold and nothing else: the command, key and owner, and the mode if
/// there is a choice.
pub(super) const fn words_of_hold<F: Family>() -> c_int {
    if F::MODE.is_some() { 3 } else { 4 }
}

/// The hold that a command is about.
pub(super) struct Target<'a> {
    pub(super) key: Arg<'a>,
    pub(super) owner: &'a [u8],
    pub(super) mode: Mode,
    /// Where the options begin.
    pub(super) options_at: usize,
}

/// Reads the hold that a command is about.
pub(super) fn target<F: Family>(args: Args<'_>) -> Result<Target<'_>, ArgumentError> {
    let (key, owner) = arguments::key_and_owner(args)?;
    Ok(match F::MODE {
        Some(mode) => Target { key, owner, mode, options_at: 3 },
        None => Target { key, owner, mode: arguments::mode(args, 3)?, options_at: 4 },
    })
}

/// RLOCK: one owner at a time.
pub(super) struct Mutex;

impl Family for Mutex {
    const KIND: Kind = Kind::Mutex;
    const MODE: Option<Mode> = Some(Mode::Exclusive);
    const IS_FOR_ANY_KIND: bool = true;
    const NAMES: Names = Names {
        acquire: c"RLOCK.ACQUIRE",
        release: c"RLOCK.RELEASE",
        cancel: c"RLOCK.CANCEL",
        renew: c"RLOCK.RENEW",
        force_release: c"RLOCK.FORCERELEASE",
        holds: c"RLOCK.HOLDS",
        pttl: c"RLOCK.PTTL",
        info: c"RLOCK.INFO",
        waiters: c"RLOCK.WAITERS",
    };
    const ACQUIRE_OPTIONS: &'static [Opt] =
        &[Opt::Px, Opt::Ex, Opt::Block, Opt::Session, Opt::Req, Opt::Once, Opt::Notify];
    const RELEASE_OPTIONS: &'static [Opt] = &[Opt::Req, Opt::Token];
    const ACQUIRE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, LEASE, BLOCK, NOTIFY, SESSION, REQ, ONCE];
    const RELEASE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, REQ, TOKEN];
    const RENEW_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, LEASE, TOKEN];
    const HOLDS_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER];
}

/// RFAIRLOCK: one owner at a time, and a queue that is data.
pub(super) struct Fair;

impl Family for Fair {
    const KIND: Kind = Kind::Fair;
    const MODE: Option<Mode> = Some(Mode::Exclusive);
    const IS_FOR_ANY_KIND: bool = false;
    const NAMES: Names = Names {
        acquire: c"RFAIRLOCK.ACQUIRE",
        release: c"RFAIRLOCK.RELEASE",
        cancel: c"RFAIRLOCK.CANCEL",
        renew: c"RFAIRLOCK.RENEW",
        force_release: c"RFAIRLOCK.FORCERELEASE",
        holds: c"RFAIRLOCK.HOLDS",
        pttl: c"RFAIRLOCK.PTTL",
        info: c"RFAIRLOCK.INFO",
        waiters: c"RFAIRLOCK.WAITERS",
    };
    const ACQUIRE_OPTIONS: &'static [Opt] =
        &[Opt::Px, Opt::Ex, Opt::Block, Opt::Queue, Opt::Session, Opt::Req, Opt::Once, Opt::Notify];
    const RELEASE_OPTIONS: &'static [Opt] = &[Opt::Req, Opt::Token];
    const ACQUIRE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, LEASE, BLOCK_OR_QUEUE, NOTIFY, SESSION, REQ, ONCE];
    const RELEASE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, REQ, TOKEN];
    const RENEW_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, LEASE, TOKEN];
    const HOLDS_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER];
}

/// RRWLOCK: many readers or one writer.
pub(super) struct RwLock;

impl Family for RwLock {
    const KIND: Kind = Kind::RwLock;
    const MODE: Option<Mode> = None;
    const IS_FOR_ANY_KIND: bool = false;
    const NAMES: Names = Names {
        acquire: c"RRWLOCK.ACQUIRE",
        release: c"RRWLOCK.RELEASE",
        cancel: c"RRWLOCK.CANCEL",
        renew: c"RRWLOCK.RENEW",
        force_release: c"RRWLOCK.FORCERELEASE",
        holds: c"RRWLOCK.HOLDS",
        pttl: c"RRWLOCK.PTTL",
        info: c"RRWLOCK.INFO",
        waiters: c"RRWLOCK.WAITERS",
    };
    const ACQUIRE_OPTIONS: &'static [Opt] =
        &[Opt::Px, Opt::Ex, Opt::Block, Opt::Session, Opt::Req, Opt::Once, Opt::Notify];
    const RELEASE_OPTIONS: &'static [Opt] = &[Opt::Req, Opt::Token];
    const ACQUIRE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, MODE, LEASE, BLOCK, NOTIFY, SESSION, REQ, ONCE];
    const RELEASE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, MODE, REQ, TOKEN];
    const RENEW_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, MODE, LEASE, TOKEN];
    const HOLDS_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, MODE];
}

/// RSEMAPHORE: a number of permits.
pub(super) struct Semaphore;

impl Family for Semaphore {
    const KIND: Kind = Kind::Semaphore;
    const MODE: Option<Mode> = Some(Mode::Permits);
    const IS_FOR_ANY_KIND: bool = false;
    const NAMES: Names = Names {
        acquire: c"RSEMAPHORE.ACQUIRE",
        release: c"RSEMAPHORE.RELEASE",
        cancel: c"RSEMAPHORE.CANCEL",
        renew: c"RSEMAPHORE.RENEW",
        force_release: c"RSEMAPHORE.FORCERELEASE",
        holds: c"RSEMAPHORE.HOLDS",
        pttl: c"RSEMAPHORE.PTTL",
        info: c"RSEMAPHORE.INFO",
        waiters: c"RSEMAPHORE.WAITERS",
    };
    const ACQUIRE_OPTIONS: &'static [Opt] =
        &[Opt::Permits, Opt::Px, Opt::Ex, Opt::Block, Opt::Session, Opt::Req, Opt::Once, Opt::Notify];
    const RELEASE_OPTIONS: &'static [Opt] = &[Opt::Permits, Opt::Req, Opt::Token];
    const ACQUIRE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, PERMITS, LEASE, BLOCK, NOTIFY, SESSION, REQ, ONCE];
    const RELEASE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, PERMITS, REQ, TOKEN];
    const RENEW_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, LEASE, TOKEN];
    const HOLDS_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER];
}
