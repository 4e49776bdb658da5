//! A Redis module with the smallest possible lock, to measure the server's own costs.
//!
//! `BARE.ACQUIRE key owner PX ms` sets a value with the owner's name at an empty key. `BARE.RELEASE
//! key owner` compares it and deletes the key. There is no lease, queue, clock or token: the
//! arguments after the owner exist because a real lock has them, and are ignored. Each pair also
//! exists with each service of the server that a lock needs: `….EVENT` notifies keyspace listeners,
//! `….VERBATIM` propagates the command, `….EFFECT` propagates an effect, `….BOTH` notifies and
//! propagates an effect. `BARE.NOOP` does nothing.
//!
//! Only the benchmark uses it, and sends nothing that it does not check.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;

mod datatype;

use datatype::Held;

/// As in rlock, memory comes from the server.
#[global_allocator]
static ALLOCATOR: redis_module::alloc::RedisAlloc = redis_module::alloc::RedisAlloc;

const MODULE_NAME: &CStr = c"bare";
const MODULE_VERSION: c_int = 1;
const OK: c_int = raw::REDISMODULE_OK as c_int;
const ERR: c_int = raw::REDISMODULE_ERR as c_int;

/// Propagated instead of a command, with the length of what rlock writes. The numbers have no
/// meaning.
const GRANTED: &[u8] = b"granted mutex exclusive 1795215258031730 1 1795215318031 60000 - -";
const RELEASED: &[u8] = b"released 1795215258031730";

/// The data type, as the server knows it; null before the module is loaded.
static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

/// Calls a function of the server. Every server that the benchmark starts has all of them.
macro_rules! api {
    ($name:ident $( , $arg:expr )* $(,)?) => {
        match raw::$name {
            Some(function) => function($($arg),*),
            None => std::process::abort(),
        }
    };
}
pub(crate) use api;

/// The services that a pair of commands uses besides changing the key.
#[derive(Clone, Copy)]
struct Services {
    event: bool,
    verbatim: bool,
    effect: bool,
}

const NOTHING: u8 = 0;
const EVENT: u8 = 1;
const VERBATIM: u8 = 2;
const EFFECT: u8 = 4;

const ACQUIRE: bool = false;
const RELEASE: bool = true;

impl Services {
    const fn of(bits: u8) -> Self {
        Self { event: bits & EVENT != 0, verbatim: bits & VERBATIM != 0, effect: bits & EFFECT != 0 }
    }

    /// Notifies the server of the change of `key`, in rlock's order.
    ///
    /// # Safety
    ///
    /// The context and the strings are those of the command that runs.
    unsafe fn tell(self, ctx: *mut raw::RedisModuleCtx, change: &Change) {
        // SAFETY: by the contract of this function; the format stands for one string and two
        // buffers, which are passed.
        unsafe {
            api!(RedisModule_SignalModifiedKey, ctx, change.key);
            if self.verbatim {
                api!(RedisModule_ReplicateVerbatim, ctx);
            }
            if self.effect {
                let owner = bytes(change.owner);
                api!(
                    RedisModule_Replicate,
                    ctx,
                    c"BARE.APPLY".as_ptr(),
                    c"sbb".as_ptr(),
                    change.key,
                    change.facts.as_ptr(),
                    change.facts.len(),
                    owner.as_ptr(),
                    owner.len()
                );
            }
            if self.event {
                let class = raw::REDISMODULE_NOTIFY_MODULE;
                api!(RedisModule_NotifyKeyspaceEvent, ctx, class, change.event.as_ptr(), change.key);
            }
        }
    }
}

struct Change {
    key: *mut raw::RedisModuleString,
    owner: *mut raw::RedisModuleString,
    event: &'static CStr,
    facts: &'static [u8],
}

/// The bytes of a server string.
///
/// # Safety
///
/// The string is alive for all of `'s`.
pub(crate) unsafe fn bytes<'s>(string: *mut raw::RedisModuleString) -> &'s [u8] {
    let mut len = 0;
    // SAFETY: by the contract of this function; the pointer has `len` bytes.
    unsafe {
        let start = api!(RedisModule_StringPtrLen, string, &raw mut len);
        std::slice::from_raw_parts(start.cast::<u8>(), len)
    }
}

/// Opens `key` to read and write. Also returns its lock: null if the key holds no lock.
///
/// # Safety
///
/// The context and the key are those of the command that runs.
unsafe fn open(
    ctx: *mut raw::RedisModuleCtx,
    key: *mut raw::RedisModuleString,
) -> (*mut raw::RedisModuleKey, *mut Held) {
    // SAFETY: by the contract of this function. A value is only taken for ours if it has our type.
    unsafe {
        let mode = (raw::REDISMODULE_READ | raw::REDISMODULE_WRITE).cast_signed();
        let handle = api!(RedisModule_OpenKey, ctx, key, mode);
        let is_held = api!(RedisModule_KeyType, handle) != raw::REDISMODULE_KEYTYPE_EMPTY as c_int
            && api!(RedisModule_ModuleTypeGetType, handle) == TYPE.load(Ordering::Relaxed);
        let held = if is_held { api!(RedisModule_ModuleTypeGetValue, handle).cast() } else { ptr::null_mut() };
        (handle, held)
    }
}

unsafe extern "C" fn noop(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context is that of the command.
    unsafe { api!(RedisModule_ReplyWithLongLong, ctx, 0) }
}

/// `BARE.APPLY key facts owner` is the propagated effect. No file or replica of the benchmark is
/// ever loaded, so it does nothing.
unsafe extern "C" fn apply(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: the context is that of the command; the string is static.
    unsafe { api!(RedisModule_ReplyWithSimpleString, ctx, c"OK".as_ptr()) }
}

/// One command of a pair with these services.
unsafe extern "C" fn command<const IS_RELEASE: bool, const SERVICES: u8>(
    ctx: *mut raw::RedisModuleCtx,
    argv: *mut *mut raw::RedisModuleString,
    argc: c_int,
) -> c_int {
    // SAFETY: the context and the arguments are those of the command; the handle is closed once.
    unsafe {
        if argc < 3 {
            return api!(RedisModule_WrongArity, ctx);
        }
        let (key, owner) = (*argv.add(1), *argv.add(2));
        let (handle, held) = open(ctx, key);
        let is_done = if IS_RELEASE { release(handle, held, owner) } else { acquire(handle, held, owner) };
        api!(RedisModule_CloseKey, handle);
        if !is_done {
            return api!(RedisModule_ReplyWithNull, ctx);
        }
        let (event, facts, answer) =
            if IS_RELEASE { (c"bare.release", RELEASED, 0) } else { (c"bare.acquire", GRANTED, 1) };
        Services::of(SERVICES).tell(ctx, &Change { key, owner, event, facts });
        api!(RedisModule_ReplyWithLongLong, ctx, answer)
    }
}

/// Sets a value at an empty key. Returns whether the key was empty.
///
/// # Safety
///
/// The handle and the value are those of an open key, the owner is an argument of the command.
unsafe fn acquire(handle: *mut raw::RedisModuleKey, held: *mut Held, owner: *mut raw::RedisModuleString) -> bool {
    if !held.is_null() {
        return false;
    }
    // SAFETY: by the contract of this function. The key owns the value from now on, and passes it
    // to the type's `free`.
    unsafe {
        let Some(new) = Held::new(bytes(owner)) else {
            return false;
        };
        let value = Box::into_raw(Box::new(new)).cast::<c_void>();
        api!(RedisModule_ModuleTypeSetValue, handle, TYPE.load(Ordering::Relaxed), value);
    }
    true
}

/// Deletes a key that the owner holds. Returns whether it held it.
///
/// # Safety
///
/// As for [`acquire`].
unsafe fn release(handle: *mut raw::RedisModuleKey, held: *mut Held, owner: *mut raw::RedisModuleString) -> bool {
    // SAFETY: by the contract of this function. The value is not read after the key was deleted.
    unsafe {
        if held.is_null() || (*held).owner() != bytes(owner) {
            return false;
        }
        api!(RedisModule_DeleteKey, handle);
    }
    true
}

type Run = unsafe extern "C" fn(*mut raw::RedisModuleCtx, *mut *mut raw::RedisModuleString, c_int) -> c_int;

/// The commands, with rlock's flags.
const COMMANDS: [(&CStr, Run, &CStr); 12] = [
    (c"bare.noop", noop, c"readonly fast"),
    (c"bare.apply", apply, c"write"),
    (c"bare.acquire", command::<ACQUIRE, NOTHING>, c"write deny-oom"),
    (c"bare.release", command::<RELEASE, NOTHING>, c"write fast"),
    (c"bare.acquire.event", command::<ACQUIRE, EVENT>, c"write deny-oom"),
    (c"bare.release.event", command::<RELEASE, EVENT>, c"write fast"),
    (c"bare.acquire.verbatim", command::<ACQUIRE, VERBATIM>, c"write deny-oom"),
    (c"bare.release.verbatim", command::<RELEASE, VERBATIM>, c"write fast"),
    (c"bare.acquire.effect", command::<ACQUIRE, EFFECT>, c"write deny-oom"),
    (c"bare.release.effect", command::<RELEASE, EFFECT>, c"write fast"),
    (c"bare.acquire.both", command::<ACQUIRE, { EVENT | EFFECT }>, c"write deny-oom"),
    (c"bare.release.both", command::<RELEASE, { EVENT | EFFECT }>, c"write fast"),
];

/// The entry point that Redis calls once, when it loads the module.
///
/// # Safety
///
/// Redis alone may call this, with the context of the load.
#[unsafe(no_mangle)]
#[allow(non_snake_case, reason = "Redis looks the symbol up by this name")]
pub unsafe extern "C" fn RedisModule_OnLoad(
    ctx: *mut raw::RedisModuleCtx,
    _argv: *mut *mut raw::RedisModuleString,
    _argc: c_int,
) -> c_int {
    // SAFETY: `ctx` comes from Redis, the names are NUL-terminated and static, and the function
    // pointers are read after `Export_RedisModule_Init` has filled them.
    unsafe {
        let api_version = raw::REDISMODULE_APIVER_1 as c_int;
        if raw::Export_RedisModule_Init(ctx, MODULE_NAME.as_ptr(), MODULE_VERSION, api_version) != OK {
            return ERR;
        }
        // As rlock does, the module itself says when a key has changed.
        let options = raw::REDISMODULE_OPTION_NO_IMPLICIT_SIGNAL_MODIFIED.cast_signed();
        api!(RedisModule_SetModuleOptions, ctx, options);
        let kind = datatype::register(ctx);
        if kind.is_null() {
            return ERR;
        }
        TYPE.store(kind, Ordering::Relaxed);
        for (name, run, flags) in COMMANDS {
            let name: *const c_char = name.as_ptr();
            if api!(RedisModule_CreateCommand, ctx, name, Some(run), flags.as_ptr(), 1, 1, 1) != OK {
                return ERR;
            }
        }
    }
    OK
}
