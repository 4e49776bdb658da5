//! Command families: each kind of lock has the same commands.

use std::ffi::{CStr, c_int};

use rlock_core::{Kind, Mode};

use super::{owner_argument, with_options};
use crate::arguments::{self, ArgumentError};
use crate::ffi::{Arg, Args, ArgumentSpec, ValueSpec};
use crate::options::Opt;

/// A family: the kind of its locks, the names of its commands, and their options.
pub(super) trait Family {
    const KIND: Kind;
    /// The mode of every hold; `None` if the commands take READ or WRITE after the owner.
    const MODE: Option<Mode>;
    /// Whether its INFO, PTTL, WAITERS and FORCERELEASE work on a lock of any kind.
    const IS_FOR_ANY_KIND: bool;
    const NAMES: Names;
    /// The options of ACQUIRE and RELEASE, in the order of `docs/commands`.
    const ACQUIRE_OPTIONS: &'static [Opt];
    const RELEASE_OPTIONS: &'static [Opt];
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

/// The number of arguments of a command that names a hold, without options: command, key, owner,
/// and for a read-write lock the mode.
pub(super) const fn words_of_hold<F: Family>() -> c_int {
    if F::MODE.is_some() { 3 } else { 4 }
}

/// The options of RENEW.
pub(super) const RENEW_OPTIONS: &[Opt] = &[Opt::Px, Opt::Ex, Opt::Timed, Opt::Note, Opt::Token];

/// The arguments after the key of a command that names a hold: owner, for a read-write lock the
/// mode, options.
pub(super) fn arguments_of_hold<F: Family>(options: &[Opt]) -> Vec<ArgumentSpec> {
    let mut positional = vec![owner_argument()];
    if F::MODE.is_none() {
        let choice = |name, word| ArgumentSpec { name, token: Some(word), optional: false, value: ValueSpec::Token };
        let modes = vec![choice(c"read", c"READ"), choice(c"write", c"WRITE")];
        let value = ValueSpec::OneOf(modes);
        positional.push(ArgumentSpec { name: c"mode", token: None, optional: false, value });
    }
    with_options(positional, options)
}

/// The hold that a command names.
pub(super) struct Target<'a> {
    pub(super) key: Arg<'a>,
    pub(super) owner: &'a [u8],
    pub(super) mode: Mode,
    /// The index of the first option.
    pub(super) options_at: usize,
}

/// Reads the hold that a command names.
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
    const ACQUIRE_OPTIONS: &'static [Opt] = &[
        Opt::Px,
        Opt::Ex,
        Opt::Block,
        Opt::Notify,
        Opt::Claim,
        Opt::Session,
        Opt::Req,
        Opt::Once,
        Opt::Timed,
        Opt::Note,
    ];
    const RELEASE_OPTIONS: &'static [Opt] = &[Opt::Req, Opt::Keep, Opt::Token];
}

/// RFAIRLOCK: one owner at a time, with a queue that is stored in the value.
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
    const ACQUIRE_OPTIONS: &'static [Opt] = &[
        Opt::Px,
        Opt::Ex,
        Opt::Block,
        Opt::Queue,
        Opt::Grace,
        Opt::Notify,
        Opt::Claim,
        Opt::Session,
        Opt::Req,
        Opt::Once,
        Opt::Timed,
        Opt::Note,
    ];
    const RELEASE_OPTIONS: &'static [Opt] = &[Opt::Req, Opt::Keep, Opt::Token];
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
    const ACQUIRE_OPTIONS: &'static [Opt] = Mutex::ACQUIRE_OPTIONS;
    const RELEASE_OPTIONS: &'static [Opt] = &[Opt::Req, Opt::Token];
}

/// RSEMAPHORE: up to a number of permits at a time.
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
    const ACQUIRE_OPTIONS: &'static [Opt] = &[
        Opt::Permits,
        Opt::Px,
        Opt::Ex,
        Opt::Block,
        Opt::Notify,
        Opt::Claim,
        Opt::Session,
        Opt::Req,
        Opt::Once,
        Opt::Timed,
        Opt::Note,
    ];
    const RELEASE_OPTIONS: &'static [Opt] = &[Opt::Permits, Opt::Req, Opt::Token];
}
