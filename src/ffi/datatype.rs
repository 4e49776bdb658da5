//! The data type `RedisLock`: the server's callbacks on values, as calls of `crate::value`.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

use redis_module::raw;
use rlock_core::{Arguments, Lock};

use super::context::effect_format;
use super::{Arg, Ctx, api, guard};
use crate::value;

static TYPE: AtomicPtr<raw::RedisModuleType> = AtomicPtr::new(ptr::null_mut());

/// The type as the server knows it; null before it was registered.
pub(super) fn raw_type() -> *mut raw::RedisModuleType {
    TYPE.load(Ordering::Relaxed)
}

/// The registered data type.
pub(crate) struct Type;

/// The server refused the data type.
pub(crate) struct TypeError;

impl Type {
    /// Registers the type. `name` has nine characters; `version` is that of the payload.
    pub(crate) fn register(ctx: Ctx<'_>, name: &'static std::ffi::CStr, version: i32) -> Result<(), TypeError> {
        let mut methods = raw::RedisModuleTypeMethods {
            version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
            rdb_load: Some(rdb_load),
            rdb_save: Some(rdb_save),
            aof_rewrite: Some(aof_rewrite),
            mem_usage: Some(mem_usage),
            digest: Some(digest),
            free: Some(free),
            aux_load: Some(aux_load),
            // It would always write a field, and a file with a field cannot be loaded without the module.
            aux_save: None,
            aux_save_triggers: (raw::REDISMODULE_AUX_BEFORE_RDB | raw::REDISMODULE_AUX_AFTER_RDB) as c_int,
            free_effort: Some(free_effort),
            unlink: None,
            copy: None,
            defrag: None,
            mem_usage2: None,
            free_effort2: None,
            unlink2: Some(super::callbacks::unlink),
            copy2: Some(copy),
            // From Redis 7.2: leaves the field out where nothing is written. Older servers do not look at it.
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
    /// The next number; `None` if the payload is broken.
    pub(crate) fn number(&self) -> Option<u64> {
        // SAFETY: the payload is being read. HANDLE_IO_ERRORS is set: a broken one is told by IsIOError.
        unsafe {
            let number = api!(RedisModule_LoadUnsigned, self.0);
            (api!(RedisModule_IsIOError, self.0) == 0).then_some(number)
        }
    }

    /// The next string, given to `read`; `None` if the payload is broken.
    pub(crate) fn bytes<R>(&self, read: impl FnOnce(&[u8]) -> R) -> Option<R> {
        let mut len = 0;
        // SAFETY: as in `number`; on success the pointer has `len` bytes, which are ours to free.
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

    /// Writes `RLOCK.APPLY key facts [owner] [note]` into an append-only file that is being rewritten. The one use of this
    /// variadic call, with its types fixed here.
    pub(crate) fn emit_effect(&self, key: Arg<'_>, facts: &[u8], arguments: Arguments<'_>) {
        const COMMAND: &CStr = c"RLOCK.APPLY";
        let (format, [first, second]) = effect_format(arguments);
        // SAFETY: the format says one string, then as many buffers as there are; a variadic function reads no argument beyond its format.
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
/// `value` is a value of our type that nothing changes during `'v`.
unsafe fn lock<'v>(value: *const c_void) -> &'v Lock {
    // SAFETY: by the contract of this function.
    unsafe { &*value.cast::<Lock>() }
}

unsafe extern "C" fn rdb_load(io: *mut raw::RedisModuleIO, version: c_int) -> *mut c_void {
    guard(ptr::null_mut(), || {
        value::load(&Load(io), version).map_or(ptr::null_mut(), |lock| Box::into_raw(Box::new(lock)).cast())
    })
}

unsafe extern "C" fn rdb_save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server passes a value of our type, and changes nothing meanwhile.
    guard((), || value::save(&Save(io), unsafe { lock(value) }));
}

unsafe extern "C" fn aof_rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
    guard((), || {
        // SAFETY: the server passes a live key and a value of our type, and changes nothing meanwhile.
        let (key, lock) = unsafe { (Arg::new(key), lock(value)) };
        value::rewrite(&Save(io), key, lock);
    });
}

unsafe extern "C" fn mem_usage(value: *const c_void) -> usize {
    // SAFETY: the server passes a value of our type, and changes nothing meanwhile.
    guard(0, || value::memory_usage(unsafe { lock(value) }))
}

unsafe extern "C" fn digest(digest: *mut raw::RedisModuleDigest, value: *mut c_void) {
    // SAFETY: the server passes a value of our type, and changes nothing meanwhile.
    guard((), || value::digest(&Digest(digest), unsafe { lock(value) }));
}

/// May run on another thread: frees plain data and looks at nothing else.
unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `rdb_load`, `copy` or `Keys::insert`, and freed once.
    guard((), || drop(unsafe { Box::from_raw(value.cast::<Lock>()) }));
}

/// How many allocations freeing takes, roughly: UNLINK frees what has many on another thread.
unsafe extern "C" fn free_effort(_key: *mut raw::RedisModuleString, value: *const c_void) -> usize {
    // SAFETY: the server passes a value of our type, and changes nothing meanwhile.
    guard(1, || value::free_effort(unsafe { lock(value) }))
}

unsafe extern "C" fn copy(_keys: *mut raw::RedisModuleKeyOptCtx, value: *const c_void) -> *mut c_void {
    guard(ptr::null_mut(), || {
        // SAFETY: the server passes a value of our type, and changes nothing meanwhile.
        let copy = unsafe { lock(value) }.clone();
        Box::into_raw(Box::new(copy)).cast()
    })
}

/// Called before the first key and after the last one.
unsafe extern "C" fn aux_save(io: *mut raw::RedisModuleIO, when: c_int) {
    guard((), || {
        if when == raw::REDISMODULE_AUX_BEFORE_RDB as c_int {
            value::begin_file();
        } else {
            value::end_file(&Save(io));
        }
    });
}

unsafe extern "C" fn aux_load(io: *mut raw::RedisModuleIO, version: c_int, _when: c_int) -> c_int {
    guard(raw::REDISMODULE_ERR as c_int, || {
        let loaded = value::load_aux(&Load(io), version);
        (if loaded { raw::REDISMODULE_OK } else { raw::REDISMODULE_ERR }) as c_int
    })
}
