//! The data type of locks: passes the server's callbacks on values to the module's [`Methods`].

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;
use rlock_core::{Alarm, Arguments, KeyRef, Lock};

use super::at_load::AtLoad;
use super::context::effect_format;
use super::main_thread::MainThreadNumber;
use super::{Arg, Ctx, api, guard};

static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

/// The address of the value that the module itself is deleting. The engine knows about this
/// deletion, but not about one that another module makes at the same time.
pub(super) static OWN_DELETE: MainThreadNumber = MainThreadNumber::new();

/// The module's functions on values.
pub(crate) struct Methods {
    /// Reads a value from a payload of this version. `None` refuses the payload.
    pub(crate) load: fn(&Load, c_int) -> Option<Lock>,
    pub(crate) save: fn(&Save, &Lock),
    /// Writes the effects that recreate the value of a key.
    pub(crate) rewrite: fn(&Save, Arg<'_>, &Lock),
    pub(crate) memory_usage: fn(&Lock) -> usize,
    /// Roughly the number of allocations to free. UNLINK frees values with many on another thread.
    pub(crate) free_effort: fn(&Lock) -> usize,
    pub(crate) digest: fn(&Digest, &Lock),
    /// Called before the first key of an RDB file.
    pub(crate) begin_file: fn(),
    /// Called after the last key of an RDB file.
    pub(crate) end_file: fn(&Save),
    /// Reads what `end_file` wrote into a file of this version. `false` refuses the file.
    pub(crate) load_aux: fn(&Load, c_int) -> bool,
    /// The server removes a value from its key. Not called for the module's own deletions.
    pub(crate) on_unlink: fn(KeyRef<'_>, Alarm, &Lock),
}

static METHODS: AtLoad<&'static Methods> = AtLoad::new();

/// The server's type; null until it is registered.
pub(super) fn raw_type() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// The registered data type.
pub(crate) struct Type;

/// The server refused the data type.
pub(crate) struct TypeError;

impl Type {
    /// Registers the type. `name` has nine characters; `version` is the version of the payload.
    pub(crate) fn register(
        ctx: Ctx<'_>,
        name: &'static CStr,
        version: c_int,
        methods: &'static Methods,
    ) -> Result<(), TypeError> {
        METHODS.set(methods);
        let mut methods = raw::RedisModuleTypeMethods {
            version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
            rdb_load: Some(rdb_load),
            rdb_save: Some(rdb_save),
            aof_rewrite: Some(aof_rewrite),
            mem_usage: Some(mem_usage),
            digest: Some(digest),
            free: Some(free),
            aux_load: Some(aux_load),
            // It would always write a field, and a server without the module cannot load a file
            // with one.
            aux_save: None,
            aux_save_triggers: (raw::REDISMODULE_AUX_BEFORE_RDB | raw::REDISMODULE_AUX_AFTER_RDB) as c_int,
            free_effort: Some(free_effort),
            unlink: None,
            copy: None,
            defrag: None,
            mem_usage2: None,
            free_effort2: None,
            unlink2: Some(unlink),
            copy2: Some(copy),
            // From Redis 7.2 on: the server leaves the field out if nothing is written. Older
            // servers ignore this callback.
            aux_save2: Some(aux_save),
        };
        // SAFETY: the name is static, the methods are copied by the server.
        let kind = unsafe { api!(RedisModule_CreateDataType, ctx.raw(), name.as_ptr(), version, &raw mut methods) };
        TYPE.store(kind, Ordering::Relaxed);
        if kind.is_null() { Err(TypeError) } else { Ok(()) }
    }
}

/// A payload that is being read.
pub(crate) struct Load(*mut raw::RedisModuleIO);

impl Load {
    /// The next number; `None` if the payload is malformed.
    pub(crate) fn number(&self) -> Option<u64> {
        // SAFETY: the payload is being read. HANDLE_IO_ERRORS is set, so IsIOError reports a
        // malformed one.
        unsafe {
            let number = api!(RedisModule_LoadUnsigned, self.0);
            (api!(RedisModule_IsIOError, self.0) == 0).then_some(number)
        }
    }

    /// Passes the next string to `read`; `None` if the payload is malformed.
    pub(crate) fn bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut len = 0;
        // SAFETY: as in `number`; on success the pointer has `len` bytes, which the module frees.
        unsafe {
            let start = api!(RedisModule_LoadStringBuffer, self.0, &raw mut len);
            if start.is_null() || api!(RedisModule_IsIOError, self.0) != 0 {
                return None;
            }
            let result = read(std::slice::from_raw_parts(start.cast::<u8>(), len));
            api!(RedisModule_Free, start.cast::<c_void>());
            Some(result)
        }
    }

    /// The context of the load.
    pub(crate) fn ctx(&self) -> Ctx<'_> {
        // SAFETY: the context lives as long as the load.
        unsafe { Ctx::new(api!(RedisModule_GetContextFromIO, self.0)) }
    }

    /// The key that is being loaded, if the server knows it.
    pub(crate) fn key(&self) -> Option<Arg<'_>> {
        // SAFETY: the name lives as long as the load, and is only read.
        unsafe {
            let name = api!(RedisModule_GetKeyNameFromIO, self.0);
            (!name.is_null()).then(|| Arg::new(name.cast_mut()))
        }
    }

    /// The number of its database, if the server knows it.
    pub(crate) fn db(&self) -> Option<u32> {
        // SAFETY: the payload is being read.
        u32::try_from(unsafe { api!(RedisModule_GetDbIdFromIO, self.0) }).ok()
    }
}

/// A payload that is being written.
pub(crate) struct Save(*mut raw::RedisModuleIO);

impl Save {
    pub(crate) fn number(&self, number: u64) {
        // SAFETY: the payload is being written.
        unsafe { api!(RedisModule_SaveUnsigned, self.0, number) };
    }

    pub(crate) fn bytes(&self, bytes: &[u8]) {
        // SAFETY: the payload is being written; the pointer and length are those of a slice.
        unsafe { api!(RedisModule_SaveStringBuffer, self.0, bytes.as_ptr().cast::<c_char>(), bytes.len()) };
    }

    /// Writes `RLOCK.APPLY key facts [owner] [note]` into an append-only file that is being
    /// rewritten. The API call is variadic in C. This is its only use, with fixed types.
    pub(crate) fn emit_effect(&self, key: Arg<'_>, facts: &[u8], arguments: Arguments<'_>) {
        const COMMAND: &CStr = c"RLOCK.APPLY";
        let (format, [first, second]) = effect_format(arguments);
        // SAFETY: the format has one string and one buffer for each argument; a variadic function
        // reads no argument beyond its format.
        unsafe {
            api!(
                RedisModule_EmitAOF,
                self.0,
                COMMAND.as_ptr(),
                format.as_ptr(),
                key.raw(),
                facts.as_ptr(),
                facts.len(),
                first.as_ptr(),
                first.len(),
                second.as_ptr(),
                second.len()
            )
        };
    }
}

/// A digest that is being computed.
pub(crate) struct Digest(*mut raw::RedisModuleDigest);

impl Digest {
    /// Adds an ordered sequence of parts.
    pub(crate) fn add(&self, parts: &[&[u8]]) {
        for part in parts {
            // SAFETY: the digest is being computed; the pointer and length are those of a slice.
            unsafe { api!(RedisModule_DigestAddStringBuffer, self.0, part.as_ptr().cast::<c_char>(), part.len()) };
        }
        // SAFETY: the digest is being computed.
        unsafe { api!(RedisModule_DigestEndSequence, self.0) };
    }
}

/// # Safety
///
/// `value` is a value of this type, and nothing changes it during `'v`.
unsafe fn lock<'v>(value: *const c_void) -> &'v Lock {
    // SAFETY: by the contract of this function.
    unsafe { &*value.cast::<Lock>() }
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    guard(ptr::null_mut(), || {
        (METHODS.get().load)(&Load(io), version).map_or(ptr::null_mut(), |lock| Box::into_raw(Box::new(lock)).cast())
    })
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server passes a value of this type, and does not change it meanwhile.
    guard((), || (METHODS.get().save)(&Save(io), unsafe { lock(value) }));
}

unsafe extern "C" fn aof_rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
    guard((), || {
        // SAFETY: the server passes a live key and a value of this type, and does not change them
        // meanwhile.
        let (key, lock) = unsafe { (Arg::new(key), lock(value)) };
        (METHODS.get().rewrite)(&Save(io), key, lock);
    });
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: the server passes a value of this type, and does not change it meanwhile.
    guard(0, || (METHODS.get().memory_usage)(unsafe { lock(value) }))
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: the server passes a value of this type, and does not change it meanwhile.
    guard((), || (METHODS.get().digest)(&Digest(digest), unsafe { lock(value) }));
}

/// May run on another thread: it frees plain data and reads nothing else.
unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `rdb_load`, `copy` or `Open::set`, and freed once.
    guard((), || drop(unsafe { Box::from_raw(value.cast::<Lock>()) }));
}

unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: the server passes a value of this type, and does not change it meanwhile.
    guard(1, || (METHODS.get().free_effort)(unsafe { lock(value) }))
}

/// The server removes a value: by DEL, UNLINK, an overwrite, EXPIRE or eviction, and as the first
/// half of RENAME and MOVE.
unsafe extern "C" fn unlink(keys: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) {
    guard((), || {
        // SAFETY: the server passes the name and database of the key, alive during the callback.
        // The value is of this type. This runs under the server's global lock with no other
        // reference to the value. The engine may have one during the module's own deletions; then
        // the function returns before it makes another.
        let (name, db, alarm, lock) = unsafe {
            if OWN_DELETE.get() == value.addr() {
                return;
            }
            let name = Arg::new(api!(RedisModule_GetKeyNameFromOptCtx, keys).cast_mut());
            let db = api!(RedisModule_GetDbIdFromOptCtx, keys);
            let lock = &mut *value.cast_mut().cast::<Lock>();
            (name, db, lock.take_alarm(), &*lock)
        };
        let key = KeyRef { name: name.bytes(), db: u32::try_from(db).unwrap_or(0) };
        (METHODS.get().on_unlink)(key, alarm, lock);
    });
}

unsafe extern "C" fn copy(_keys: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) -> *mut c_void {
    guard(ptr::null_mut(), || {
        // SAFETY: the server passes a value of this type, and does not change it meanwhile.
        let copy = unsafe { lock(value) }.clone();
        Box::into_raw(Box::new(copy)).cast()
    })
}

/// Called before the first key and after the last key of a file.
unsafe extern "C" fn aux_save(io: *mut raw::RedisModuleIO, when: c_int) {
    guard((), || {
        if when == raw::REDISMODULE_AUX_BEFORE_RDB as c_int {
            (METHODS.get().begin_file)();
        } else {
            (METHODS.get().end_file)(&Save(io));
        }
    });
}

unsafe extern "C" fn aux_load(io: *mut raw::RedisModuleIO, version: c_int, _when: c_int) -> c_int {
    guard(raw::REDISMODULE_ERR as c_int, || {
        let loaded = (METHODS.get().load_aux)(&Load(io), version);
        (if loaded { raw::REDISMODULE_OK } else { raw::REDISMODULE_ERR }) as c_int
    })
}
