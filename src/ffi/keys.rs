//! The open keys of one request: the keyspace as the engine sees it.

use std::ffi::{c_int, c_void};
use std::ptr;

use redis_module::raw;
use rlock_core::{KeyId, KeyRef, Keyspace, Slot, Stored};
use smallvec::SmallVec;

use super::callbacks::OWN_DELETE;
use super::context::OwnedString;
use super::{Arg, Ctx, api, datatype};

enum Found {
    Vacant,
    /// A value of our type; the keyspace owns it.
    Lock(*mut Stored),
    Foreign,
}

/// The name of an open key: an argument, or a string that was made for it.
enum Name<'c> {
    Argument(Arg<'c>),
    Made(OwnedString<'c>),
}

impl Name<'_> {
    fn arg(&self) -> Arg<'_> {
        match self {
            Self::Argument(arg) => *arg,
            Self::Made(string) => string.arg(),
        }
    }
}

struct Open<'c> {
    name: Name<'c>,
    /// Null if nothing was to be opened, or if it was closed.
    handle: *mut raw::RedisModuleKey,
    found: Found,
    /// Whether something lay under the key when it was opened.
    was_there: bool,
}

/// The keys that a request has open, each once. They are closed when this is dropped.
pub(crate) struct Keys<'c> {
    ctx: Ctx<'c>,
    db: u32,
    open: SmallVec<[Open<'c>; 1]>,
}

const READ_AND_WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

impl<'c> Keys<'c> {
    /// Opens keys to read and write. No name is given twice.
    pub(crate) fn open(ctx: Ctx<'c>, names: &[Arg<'c>]) -> Self {
        let mut keys = Self { ctx, db: ctx.db(), open: SmallVec::new() };
        for name in names {
            keys.push(Name::Argument(*name), READ_AND_WRITE);
        }
        keys
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
        let mut keys = Self { ctx, db: ctx.db(), open: SmallVec::new() };
        keys.push(Name::Argument(name), mode);
        keys
    }

    fn push(&mut self, name: Name<'c>, mode: u32) {
        // SAFETY: the context and the name are alive.
        let handle = unsafe { api!(RedisModule_OpenKey, self.ctx.raw(), name.arg().raw(), mode.cast_signed()) };
        let found = find(handle);
        self.open.push(Open { name, handle, was_there: !matches!(found, Found::Vacant), found });
    }

    /// The name of an open key, also after [`Keys::close`].
    pub(crate) fn name(&self, id: KeyId) -> Option<Arg<'_>> {
        self.open.get(id.0).map(|open| open.name.arg())
    }

    /// Closes the keys; their names stay.
    pub(crate) fn close(&mut self) {
        for open in &mut self.open {
            if !open.handle.is_null() {
                // SAFETY: the handle is open, and closed once.
                unsafe { api!(RedisModule_CloseKey, open.handle) };
                open.handle = ptr::null_mut();
            }
            open.found = Found::Vacant;
        }
    }

    /// Removes an EXPIRE that a user set on the key: it was meant for the holder before.
    pub(crate) fn clear_expire(&self, id: KeyId) {
        // What was granted may have ended in the same step, and Redis 8.6 crashes when it is asked for the expiry of nothing.
        let may_expire = |open: &&Open<'_>| open.was_there && !matches!(open.found, Found::Vacant);
        let Some(open) = self.open.get(id.0).filter(may_expire) else {
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
    fn open_count(&self) -> usize {
        self.open.len()
    }

    fn open(&mut self, key: KeyRef<'_>) -> Option<KeyId> {
        if key.db != self.db {
            return None;
        }
        if let Some(index) = self.open.iter().position(|open| open.name.arg().bytes() == key.name) {
            return Some(KeyId(index));
        }
        let name = self.ctx.string(key.name);
        // A key of a slot that is on its way to another node may be there already.
        if self.ctx.flags().is_cluster() && !self.ctx.serves(name.arg()) {
            return None;
        }
        self.push(Name::Made(name), READ_AND_WRITE);
        Some(KeyId(self.open.len().saturating_sub(1)))
    }

    fn key(&self, id: KeyId) -> KeyRef<'_> {
        KeyRef { name: self.open.get(id.0).map_or(&[][..], |open| open.name.arg().bytes()), db: self.db }
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
        self.close();
    }
}
