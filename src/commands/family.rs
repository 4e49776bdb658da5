//! Families of commands: the same commands for each kind of lock.

use std::ffi::CStr;

use rlock_core::{Kind, Mode};

use super::{BLOCK, LEASE, OWNER, QUEUE, REQ, SESSION};
use crate::arguments::Opt;
use crate::ffi::ArgumentSpec;

/// What makes one family different from another.
pub(super) trait Family {
    const KIND: Kind;
    const MODE: Mode;
    /// Whether its INFO, TTL and WAITERS answer for a lock of any kind.
    const READS_ANY_KIND: bool;
    const NAMES: Names;
    /// The options of its ACQUIRE, and their description.
    const ACQUIRE_OPTIONS: &'static [Opt];
    const ACQUIRE_ARGUMENTS: &'static [ArgumentSpec];
}

/// The names of a family's commands.
pub(super) struct Names {
    pub(super) acquire: &'static CStr,
    pub(super) release: &'static CStr,
    pub(super) renew: &'static CStr,
    pub(super) force_release: &'static CStr,
    pub(super) holds: &'static CStr,
    pub(super) ttl: &'static CStr,
    pub(super) info: &'static CStr,
    pub(super) waiters: &'static CStr,
}

/// RLOCK: one owner at a time.
pub(super) struct Mutex;

impl Family for Mutex {
    const KIND: Kind = Kind::Mutex;
    const MODE: Mode = Mode::Exclusive;
    const READS_ANY_KIND: bool = true;
    const NAMES: Names = Names {
        acquire: c"RLOCK.ACQUIRE",
        release: c"RLOCK.RELEASE",
        renew: c"RLOCK.RENEW",
        force_release: c"RLOCK.FORCERELEASE",
        holds: c"RLOCK.HOLDS",
        ttl: c"RLOCK.TTL",
        info: c"RLOCK.INFO",
        waiters: c"RLOCK.WAITERS",
    };
    const ACQUIRE_OPTIONS: &'static [Opt] = &[Opt::Px, Opt::Ex, Opt::Block, Opt::Session, Opt::Req];
    const ACQUIRE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, LEASE, BLOCK, SESSION, REQ];
}

/// RFAIRLOCK: one owner at a time, and a queue that is data.
pub(super) struct Fair;

impl Family for Fair {
    const KIND: Kind = Kind::Fair;
    const MODE: Mode = Mode::Exclusive;
    const READS_ANY_KIND: bool = false;
    const NAMES: Names = Names {
        acquire: c"RFAIRLOCK.ACQUIRE",
        release: c"RFAIRLOCK.RELEASE",
        renew: c"RFAIRLOCK.RENEW",
        force_release: c"RFAIRLOCK.FORCERELEASE",
        holds: c"RFAIRLOCK.HOLDS",
        ttl: c"RFAIRLOCK.TTL",
        info: c"RFAIRLOCK.INFO",
        waiters: c"RFAIRLOCK.WAITERS",
    };
    const ACQUIRE_OPTIONS: &'static [Opt] = &[Opt::Px, Opt::Ex, Opt::Block, Opt::Queue, Opt::Session, Opt::Req];
    const ACQUIRE_ARGUMENTS: &'static [ArgumentSpec] = &[OWNER, LEASE, BLOCK, QUEUE, SESSION, REQ];
}
