//! The open keys of one request: the keyspace as the engine sees it.

use std::ffi::{c_int, c_void};

use redis_module::raw;
use rlock_core::{KeyId, KeyRef, Keyspace, Slot, Stored};
use smallvec::SmallVec;

use super::callbacks::OWN_DELETE;
use super::{Arg, Ctx, api, datatype};

enum Found {
    Vacant,
    /// A value of our type; the keyspace owns it.
    Lock(*mut Stored),
    Foreign,
}

struct Open<'c> {
    bytes: &'c [u8],
    handle: *mut raw::RedisModuleKey,
    found: Found,
    /// Whether something lay under the key when it was opened.
    was_there: bool,
}

/// The keys that a request has open. They are closed when this is dropped.
pub(crate) struct Keys<'c> {
    db: u32,
    open: SmallVec<[Open<'c>; 1]>,
}

impl<'c> Keys<'c> {
    /// Opens one key to read and write.
    pub(crate) fn open(ctx: Ctx<'c>, name: Arg<'c>) -> Self {
        Self::open_with(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_WRITE)
    }

    /// Opens one key to read: nothing is changed through it.
    pub(crate) fn open_to_read(ctx: Ctx<'c>, name: Arg<'c>) -> Self {
        Self::open_with(ctx, name, raw::REDISMODULE_READ)
    }

    /// Opens one key to look at it from a notification, without counting as an access to it.
    pub(crate) fn open_to_peek(ctx: Ctx<'c>, name: Arg<'c>) -> Self {
        Self::open_with(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH)
    }

    fn open_with(ctx: Ctx<'c>, name: Arg<'c>, mode: u32) -> Self {
        // SAFETY: the context and the name are alive.
        let handle = unsafe { api!(RedisModule_OpenKey, ctx.raw(), name.raw(), mode.cast_signed()) };
        let found = find(handle);
        let mut open = SmallVec::new();
        open.push(Open { bytes: name.bytes(), handle, was_there: !matches!(found, Found::Vacant), found });
        Self { db: ctx.db(), open }
    }

    /// Removes an EXPIRE that a user set on the key: it was meant for the holder before.
    pub(crate) fn clear_expire(&self, id: KeyId) {
        let Some(open) = self.open.get(id.0).filter(|open| open.was_there) else {
            return;
        };
        const NO_EXPIRE: raw::mstime_t = raw::REDISMODULE_NO_EXPIRE as raw::mstime_t;
        // SAFETY: the handle is open for writing.
        unsafe {
            if api!(RedisModule_GetExpire, open.handle) != NO_EXPIRE {
                api!(RedisModule_SetExpire, open.handle, NO_EXPIRE);
            }
        }
    }
}

fn find(handle: *mut raw::RedisModuleKey) -> Found {
    if handle.is_null() {
        return Found::Vacant;
    }
    // SAFETY: the handle is open.
    let kind = unsafe { api!(RedisModule_KeyType, handle) };
    if kind == raw::REDISMODULE_KEYTYPE_EMPTY as c_int {
        return Found::Vacant;
    }
    // SAFETY: the handle is open; on a value that is not a module's the type is null.
    unsafe {
        if api!(RedisModule_ModuleTypeGetType, handle) == datatype::raw_type() {
            Found::Lock(api!(RedisModule_ModuleTypeGetValue, handle).cast::<Stored>())
        } else {
            Found::Foreign
        }
    }
}

impl Keyspace for Keys<'_> {
    fn key(&self, id: KeyId) -> KeyRef<'_> {
        KeyRef { name: self.open.get(id.0).map_or(&[][..], |open| open.bytes), db: self.db }
    }

    fn slot(&mut self, id: KeyId) -> Slot<'_> {
        match self.open.get(id.0).map(|open| &open.found) {
            None | Some(Found::Vacant) => Slot::Vacant,
            Some(Found::Foreign) => Slot::Foreign,
            // SAFETY: the value lives until the key is deleted, which `remove` notes; nothing else has a reference to it
            // while the engine runs, because the engine calls nothing of the server's but this trait.
            Some(Found::Lock(stored)) => Slot::Lock(unsafe { &mut **stored }),
        }
    }

    fn insert(&mut self, id: KeyId, stored: Stored) {
        let Some(open) = self.open.get_mut(id.0) else {
            return;
        };
        let value = Box::into_raw(Box::new(stored));
        // SAFETY: the handle is open for writing and vacant; the keyspace takes the value over, and gives it to our
        // `free` in the end.
        let status =
            unsafe { api!(RedisModule_ModuleTypeSetValue, open.handle, datatype::raw_type(), value.cast::<c_void>()) };
        if status == raw::REDISMODULE_OK as c_int {
            open.found = Found::Lock(value);
        } else {
            // SAFETY: the keyspace did not take it.
            drop(unsafe { Box::from_raw(value) });
        }
    }

    fn remove(&mut self, id: KeyId) {
        let Some(open) = self.open.get_mut(id.0) else {
            return;
        };
        open.found = Found::Vacant;
        OWN_DELETE.with_set(|| {
            // SAFETY: the handle is open for writing; the reference to the value was given up above.
            unsafe { api!(RedisModule_DeleteKey, open.handle) };
        });
    }
}

impl Drop for Keys<'_> {
    fn drop(&mut self) {
        for open in &self.open {
            if !open.handle.is_null() {
                // SAFETY: the handle is open and closed once.
                unsafe { api!(RedisModule_CloseKey, open.handle) };
            }
        }
    }
}
