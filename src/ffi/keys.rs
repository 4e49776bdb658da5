//! The open keys of one request: the keyspace as the engine sees it.
//!
//! The engine creates and removes values only in these structures. After it has returned,
//! [`Keys::finish`] makes the same changes in the server. The server notifies other modules of each
//! new or removed key at once, and they may then run commands and delete keys.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{iter, mem};

use redis_module::raw;
use rlock_core::{KeyId, KeyRef, Keyspace, Lock, Request, Value};

use super::at_load::AtLoad;
use super::datatype::{self, OWN_DELETE};
use super::{Arg, Ctx, api};

/// Counts the keys of the server that have expired.
static EXPIRED: AtomicU64 = AtomicU64::new(0);

/// A key of the server has expired.
pub(super) fn on_expired() {
    EXPIRED.fetch_add(1, Ordering::Relaxed);
}

/// Whether the user of a connection may still send a request for the open keys.
type IsPermitted = fn(&Keys<'_>, u64, &Request) -> bool;

static IS_PERMITTED: AtLoad<IsPermitted> = AtLoad::new();

/// Sets the function that [`Keyspace::is_permitted`] calls.
pub(crate) fn set_permission_check(is_permitted: IsPermitted) {
    IS_PERMITTED.set(is_permitted);
}

enum Found {
    Vacant,
    /// A lock; the server's keyspace owns it.
    Lock(*mut Lock),
    /// A lock that the server's keyspace does not have yet.
    New(Box<Lock>),
    Foreign,
}

struct Open<'c> {
    name: Arg<'c>,
    /// The bytes of the name, read from the server once.
    bytes: &'c [u8],
    /// Null if a vacant key was opened to read.
    handle: *mut raw::RedisModuleKey,
    found: Found,
    /// The value that the engine has removed, and that the server's keyspace still has.
    removed: Option<*mut Lock>,
}

/// The opener of the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The client of the running command.
    Client,
    /// The module itself: its timer, or a waiter that takes an offer.
    Module,
}

/// The open keys of a request, each key once. Dropping this closes them.
pub(crate) struct Keys<'c> {
    ctx: Ctx<'c>,
    db: u32,
    first: Open<'c>,
    /// The keys after the first. Most requests have one key, which then needs no allocation.
    rest: Vec<Open<'c>>,
    caller: Caller,
}

/// The mode to look at a key. The server counts a key that is opened to read as a hit or miss, and
/// notifies the listeners of misses. Redis 7.0 does not know the flags that prevent this.
const PEEK: u32 = READ_AND_WRITE | raw::REDISMODULE_OPEN_KEY_NOTOUCH;

const READ_AND_WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

impl<'c> Keys<'c> {
    /// Opens keys to read and write. The names are distinct.
    ///
    /// The server deletes an expired key when it is opened, and notifies other modules at once.
    /// Their commands may delete a key that is already open, or create a vacant one. So this first
    /// opens and closes the keys one by one, which deletes the expired ones. If a key expires even
    /// after that, it opens all keys again.
    pub(crate) fn open(ctx: Ctx<'c>, first: Arg<'c>, rest: &[Arg<'c>], caller: Caller) -> Self {
        let open = |name: &Arg<'c>| Open::new(ctx, *name, READ_AND_WRITE);
        for name in rest {
            drop(open(name));
        }
        loop {
            let before = EXPIRED.load(Ordering::Relaxed);
            let first = open(&first);
            // A key that is opened to write always has a handle.
            let db = first.db().unwrap_or(0);
            let keys = Self { ctx, db, first, rest: rest.iter().map(open).collect(), caller };
            if EXPIRED.load(Ordering::Relaxed) == before {
                return keys;
            }
        }
    }

    /// The database that the client has selected.
    pub(crate) fn selected_db(ctx: Ctx<'c>) -> Option<u32> {
        Open::new(ctx, ctx.string(b"").arg(), PEEK).db()
    }

    /// Opens one key to read. It does not count as an access to the key, nor as a hit or miss of the
    /// keyspace: monitoring must not change what it shows.
    pub(crate) fn open_to_peek(ctx: Ctx<'c>, name: Arg<'c>) -> Self {
        let first = Open::new(ctx, name, PEEK);
        // A key that is opened to write always has a handle.
        let db = first.db().unwrap_or(0);
        Self { ctx, db, first, rest: Vec::new(), caller: Caller::Module }
    }

    fn get(&self, id: KeyId) -> Option<&Open<'c>> {
        match id.0.checked_sub(1) {
            None => Some(&self.first),
            Some(at) => self.rest.get(at),
        }
    }

    fn get_mut(&mut self, id: KeyId) -> Option<&mut Open<'c>> {
        match id.0.checked_sub(1) {
            None => Some(&mut self.first),
            Some(at) => self.rest.get_mut(at),
        }
    }

    fn iter(&self) -> impl Iterator<Item = &Open<'c>> {
        iter::once(&self.first).chain(&self.rest)
    }

    pub(crate) fn ctx(&self) -> Ctx<'c> {
        self.ctx
    }

    /// The number of the database of the keys.
    pub(crate) fn db(&self) -> u32 {
        self.db
    }

    /// The names of the keys, in order.
    pub(crate) fn names(&self) -> impl Iterator<Item = Arg<'c>> {
        self.iter().map(|open| open.name)
    }

    /// Stores the new values in the server's keyspace, and deletes the removed ones.
    pub(crate) fn finish(&mut self) {
        self.first.finish();
        self.rest.iter_mut().for_each(Open::finish);
    }

    /// Removes an EXPIRE that a user set on the key: it was meant for the previous holder.
    pub(crate) fn clear_expire(&self, id: KeyId) {
        if let Some(open) = self.get(id)
            && expire_left_ms(open).is_some()
        {
            // SAFETY: the handle is open for writing.
            unsafe { api!(RedisModule_SetExpire, open.handle, NO_EXPIRE) };
        }
    }
}

const NO_EXPIRE: raw::mstime_t = raw::REDISMODULE_NO_EXPIRE as raw::mstime_t;

/// The milliseconds until a key expires, if a user has set an EXPIRE on it.
fn expire_left_ms(open: &Open<'_>) -> Option<u64> {
    // A new value has none. Redis 8.6 crashes in `GetExpire` for a vacant key.
    if open.handle.is_null() || !matches!(open.found, Found::Lock(_) | Found::Foreign) {
        return None;
    }
    // SAFETY: the handle is open.
    let left_ms = unsafe { api!(RedisModule_GetExpire, open.handle) };
    u64::try_from(left_ms).ok()
}

impl<'c> Open<'c> {
    fn new(ctx: Ctx<'c>, name: Arg<'c>, mode: u32) -> Self {
        // SAFETY: the context and the name are alive.
        let handle = unsafe { api!(RedisModule_OpenKey, ctx.raw(), name.raw(), mode.cast_signed()) };
        Self { name, bytes: name.bytes(), handle, found: find(handle), removed: None }
    }

    /// The number of the key's database; `None` without a handle.
    fn db(&self) -> Option<u32> {
        if self.handle.is_null() {
            return None;
        }
        // SAFETY: the handle is open.
        u32::try_from(unsafe { api!(RedisModule_GetDbIdFromModuleKey, self.handle) }).ok()
    }
}

impl Open<'_> {
    #[inline]
    fn finish(&mut self) {
        if let Some(lock) = self.removed.take() {
            OWN_DELETE.with_set(lock.addr(), || {
                // SAFETY: the handle is open for writing, and there is no reference to the value.
                unsafe { api!(RedisModule_DeleteKey, self.handle) };
            });
        }
        match mem::replace(&mut self.found, Found::Vacant) {
            Found::New(lock) => self.set(lock),
            found => self.found = found,
        }
    }

    fn set(&mut self, lock: Box<Lock>) {
        let value = Box::into_raw(lock);
        // SAFETY: the handle is open for writing and vacant. The keyspace takes the ownership of
        // the value, and passes it to this type's `free` in the end.
        let status =
            unsafe { api!(RedisModule_ModuleTypeSetValue, self.handle, datatype::raw_type(), value.cast::<c_void>()) };
        // Do not use the value after this: the server has notified other modules, and they may have
        // deleted it.
        if status != raw::REDISMODULE_OK as c_int {
            // SAFETY: the keyspace did not take the ownership.
            drop(unsafe { Box::from_raw(value) });
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is open, and closed once.
            unsafe { api!(RedisModule_CloseKey, self.handle) };
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
            Found::Lock(api!(RedisModule_ModuleTypeGetValue, handle).cast::<Lock>())
        } else {
            Found::Foreign
        }
    }
}

impl Keyspace for Keys<'_> {
    fn count(&self) -> usize {
        self.rest.len().saturating_add(1)
    }

    fn key(&self, id: KeyId) -> KeyRef<'_> {
        KeyRef { name: self.get(id).map_or(&[][..], |open| open.bytes), db: self.db }
    }

    fn value(&self, id: KeyId) -> Value<'_> {
        match self.get(id).map(|open| &open.found) {
            None | Some(Found::Vacant) => Value::Vacant,
            Some(Found::Foreign) => Value::Foreign,
            // SAFETY: the value lives until the key is deleted, which `remove` records. Only
            // `lock_mut` changes it, and that borrows the keys mutably.
            Some(Found::Lock(lock)) => Value::Lock(unsafe { &**lock }),
            Some(Found::New(lock)) => Value::Lock(lock),
        }
    }

    fn lock_mut(&mut self, id: KeyId) -> Option<&mut Lock> {
        match self.get_mut(id).map(|open| &mut open.found) {
            // SAFETY: as in `value`. Nothing else has a reference to the value while the engine
            // runs, because the engine calls no function of the server that could call back.
            Some(Found::Lock(lock)) => Some(unsafe { &mut **lock }),
            Some(Found::New(lock)) => Some(lock),
            None | Some(Found::Vacant | Found::Foreign) => None,
        }
    }

    fn insert(&mut self, id: KeyId, lock: Lock) {
        if let Some(open) = self.get_mut(id) {
            open.found = Found::New(Box::new(lock));
        }
    }

    fn remove(&mut self, id: KeyId) {
        if let Some(open) = self.get_mut(id)
            && let Found::Lock(lock) = mem::replace(&mut open.found, Found::Vacant)
        {
            open.removed = Some(lock);
        }
    }

    fn expire_left_ms(&self, id: KeyId) -> Option<u64> {
        self.get(id).and_then(expire_left_ms)
    }

    fn client(&self) -> Option<u64> {
        match self.caller {
            Caller::Client => self.ctx.connection(self.ctx.flags()),
            Caller::Module => None,
        }
    }

    fn is_permitted(&self, client: u64, request: &Request) -> bool {
        (IS_PERMITTED.get())(self, client, request)
    }
}
