//! The data type `BareLockT`: the owner's name, in one allocation.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr;

use redis_module::raw;

use crate::api;

/// The server requires nine characters.
const TYPE_NAME: &CStr = c"BareLockT";
const PAYLOAD_VERSION: c_int = 1;

/// Room for a UUID.
const OWNER_BYTES: usize = 38;

/// A held lock.
pub(crate) struct Held {
    len: u8,
    owner: [u8; OWNER_BYTES],
}

impl Held {
    /// `None` if the owner's name is too long.
    pub(crate) fn new(owner: &[u8]) -> Option<Self> {
        let mut held = Self { len: u8::try_from(owner.len()).ok()?, owner: [0; OWNER_BYTES] };
        held.owner.get_mut(..owner.len())?.copy_from_slice(owner);
        Some(held)
    }

    pub(crate) fn owner(&self) -> &[u8] {
        &self.owner[..usize::from(self.len)]
    }
}

/// Registers the type; null if the server refuses.
///
/// # Safety
///
/// The context is that of the load.
pub(crate) unsafe fn register(ctx: *mut raw::RedisModuleCtx) -> *mut raw::RedisModuleType {
    let mut methods = raw::RedisModuleTypeMethods {
        version: u64::from(raw::REDISMODULE_TYPE_METHOD_VERSION),
        rdb_load: Some(load),
        rdb_save: Some(save),
        aof_rewrite: Some(rewrite),
        mem_usage: None,
        digest: None,
        free: Some(free),
        aux_load: None,
        aux_save: None,
        aux_save_triggers: 0,
        free_effort: None,
        unlink: None,
        copy: None,
        defrag: None,
        mem_usage2: None,
        free_effort2: None,
        unlink2: None,
        copy2: None,
        aux_save2: None,
    };
    // SAFETY: the name is static; the server copies the methods.
    unsafe { api!(RedisModule_CreateDataType, ctx, TYPE_NAME.as_ptr(), PAYLOAD_VERSION, &raw mut methods) }
}

unsafe extern "C" fn free(value: *mut c_void) {
    // SAFETY: made by `Box::into_raw` in `acquire` or `load`, and freed once.
    drop(unsafe { Box::from_raw(value.cast::<Held>()) });
}

unsafe extern "C" fn save(io: *mut raw::RedisModuleIO, value: *mut c_void) {
    // SAFETY: the server passes a value of this type, and does not change it meanwhile.
    unsafe {
        let owner = (*value.cast::<Held>()).owner();
        api!(RedisModule_SaveStringBuffer, io, owner.as_ptr().cast::<c_char>(), owner.len());
    }
}

unsafe extern "C" fn load(io: *mut raw::RedisModuleIO, _version: c_int) -> *mut c_void {
    let mut len = 0;
    // SAFETY: the payload is being read; the buffer has `len` bytes, and is ours to free.
    unsafe {
        let start = api!(RedisModule_LoadStringBuffer, io, &raw mut len);
        let held = Held::new(std::slice::from_raw_parts(start.cast::<u8>(), len));
        api!(RedisModule_Free, start.cast::<c_void>());
        held.map_or(ptr::null_mut(), |held| Box::into_raw(Box::new(held)).cast())
    }
}

unsafe extern "C" fn rewrite(io: *mut raw::RedisModuleIO, key: *mut raw::RedisModuleString, value: *mut c_void) {
    // SAFETY: the server passes a live key and a value of this type; the format stands for one
    // string and one buffer.
    unsafe {
        let owner = (*value.cast::<Held>()).owner();
        let (command, format) = (c"BARE.ACQUIRE".as_ptr(), c"sb".as_ptr());
        api!(RedisModule_EmitAOF, io, command, format, key, owner.as_ptr(), owner.len());
    }
}
