//! The open keys of one request: the keyspace as the engine sees it.
//!
//! The engine creates and removes values only here. [`Keys::finish`] tells the server, after the engine has returned:
//! the server tells other modules of each new or removed key at once, and they may run commands and delete keys then.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{iter, mem};

use redis_module::raw;
use rlock_core::{KeyId, KeyRef, Keyspace, Lock, Request, Value};

use super::at_load::AtLoad;
use super::datatype::{self, OWN_DELETE};
use super::{Arg, Ctx, api};

/// How many keys of the server have expired.
static EXPIRED: AtomicU64 = AtomicU64::new(0);

/// A key of the server has expired.
pub(super) fn on_expired() {
    EXPIRED.fetch_add(1, Ordering::Relaxed);
}

/// Whether the user of a connection may still make a request for keys that are open.
type IsPermitted = fn(&Keys<'_>, u64, &Request) -> bool;

static IS_PERMITTED: AtLoad<IsPermitted> = AtLoad::new();

/// Gives the function that [`Keyspace::is_permitted`] asks.
pub(crate) fn set_permission_check(is_permitted: IsPermitted) {
    IS_PERMITTED.set(is_permitted);
}

enum Found {
    Vacant,
    /// A value of our type; the keyspace owns it.
    Lock(*mut Lock),
    /// A value that the keyspace does not have yet.
    New(Box<Lock>),
    Foreign,
}

struct Open<'c> {
    name: Arg<'c>,
    /// The bytes of the name: the server is asked for them once.
    bytes: &'c [u8],
    /// Null if nothing was to be opened.
    handle: *mut raw::RedisModuleKey,
    found: Found,
    /// The value that the keyspace still has, and is to delete.
    removed: Option<*mut Lock>,
}

/// Who asks for the keys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// The client of the command that is running.
    Client,
    /// The module itself: its timer, or a waiter that is served.
    Module,
}

/// The keys that a request has open, each once. They are closed when this is dropped.
pub(crate) struct Keys<'c> {
    ctx: Ctx<'c>,
    db: u32,
    first: Open<'c>,
    /// Those behind the first: most requests are for one key, which is then at a known place.
    rest: Vec<Open<'c>>,
    asks: Asks,
}

/// How a key is opened that is known to be vacant.
const VACANT: u32 = raw::REDISMODULE_WRITE | raw::REDISMODULE_OPEN_KEY_NOTOUCH | raw::REDISMODULE_OPEN_KEY_NOEXPIRE;

const READ_AND_WRITE: u32 = raw::REDISMODULE_READ | raw::REDISMODULE_WRITE;

impl<'c> Keys<'c> {
    /// Opens keys to read and write. No name is given twice.
    ///
    /// The server deletes an expired key when it is opened. Other modules hear of that, and may run commands at once: what was opened before may be
    /// gone, and something may lie where nothing was found. So keys expire one by one before many are open, and are opened anew if one has
    /// expired all the same.
    pub(crate) fn open(ctx: Ctx<'c>, first: Arg<'c>, rest: &[Arg<'c>], asks: Asks) -> Self {
        let open = |name: &Arg<'c>| Open::new(ctx, *name, READ_AND_WRITE);
        for name in rest {
            drop(open(name));
        }
        loop {
            let before = EXPIRED.load(Ordering::Relaxed);
            let first = open(&first);
            // A key that is opened to write always has a handle.
            let db = first.db().unwrap_or(0);
            let keys = Self { ctx, db, first, rest: rest.iter().map(open).collect(), asks };
            if EXPIRED.load(Ordering::Relaxed) == before {
                return keys;
            }
        }
    }

    /// Opens one key to read: nothing is changed through it.
    pub(crate) fn open_to_read(ctx: Ctx<'c>, name: Arg<'c>) -> Self {
        Self::open_with(ctx, name, raw::REDISMODULE_READ)
    }

    /// The database that the client has selected.
    pub(crate) fn selected_db(ctx: Ctx<'c>) -> Option<u32> {
        // A handle to read a missing key would count as a miss, and be told to the listeners of misses.
        Open::new(ctx, ctx.string(b"").arg(), VACANT).db()
    }

    /// Opens one key to look at it from a notification, without counting as an access to it.
    pub(crate) fn open_to_peek(ctx: Ctx<'c>, name: Arg<'c>) -> Self {
        Self::open_with(ctx, name, raw::REDISMODULE_READ | raw::REDISMODULE_OPEN_KEY_NOTOUCH)
    }

    fn open_with(ctx: Ctx<'c>, name: Arg<'c>, mode: u32) -> Self {
        let first = Open::new(ctx, name, mode);
        // The server gives no handle to read a vacant key, but one to write it: that tells.
        let db = first.db().or_else(|| Open::new(ctx, name, VACANT).db()).unwrap_or(0);
        Self { ctx, db, first, rest: Vec::new(), asks: Asks::Module }
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

    /// The number of the database that the keys are in.
    pub(crate) fn db(&self) -> u32 {
        self.db
    }

    /// The names of the keys, in their order.
    pub(crate) fn names(&self) -> impl Iterator<Item = Arg<'c>> {
        self.iter().map(|open| open.name)
    }

    /// Gives the keyspace the new values, and has it delete the removed ones.
    pub(crate) fn finish(&mut self) {
        self.first.finish();
        self.rest.iter_mut().for_each(Open::finish);
    }

    /// Removes an EXPIRE that a user set on the key: it was meant for the holder before.
    pub(crate) fn clear_expire(&self, id: KeyId) {
        if let Some(open) = self.get(id)
            && expire_left_ms(open).is_some()
        {
            // SAFETY: the handle is open for writing.
            unsafe { api!(RedisModule_SetExpire, open.handle, NO_EXPIRE) };
        }
    }

    /// What is left until the first EXPIRE that a user has set on one of the keys.
    pub(crate) fn expire_left_ms(&self) -> Option<u64> {
        self.iter().filter_map(expire_left_ms).min()
    }
}

const NO_EXPIRE: raw::mstime_t = raw::REDISMODULE_NO_EXPIRE as raw::mstime_t;

/// What is left until an EXPIRE that a user has set on a key.
fn expire_left_ms(open: &Open<'_>) -> Option<u64> {
    // A new value has none, and Redis 8.6 crashes on a question for the expiry of a key that is gone.
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

    /// The number of the database in which the key was looked for; `None` without a handle.
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
                // SAFETY: the handle is open for writing, and no reference to the value is left.
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
        // SAFETY: the handle is open for writing and vacant; the keyspace takes the value over, and gives it to our
        // `free` in the end.
        let status =
            unsafe { api!(RedisModule_ModuleTypeSetValue, self.handle, datatype::raw_type(), value.cast::<c_void>()) };
        // The value is not looked at again: other modules heard of it, and may have deleted it.
        if status != raw::REDISMODULE_OK as c_int {
            // SAFETY: the keyspace did not take it.
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
            // SAFETY: the value lives until the key is deleted, which `remove` notes. It is changed through `lock_mut` only,
            // which borrows the keys for as long.
            Some(Found::Lock(lock)) => Value::Lock(unsafe { &**lock }),
            Some(Found::New(lock)) => Value::Lock(lock),
        }
    }

    fn lock_mut(&mut self, id: KeyId) -> Option<&mut Lock> {
        match self.get_mut(id).map(|open| &mut open.found) {
            // SAFETY: as in `value`; and nothing else has a reference to the value while the engine runs, because the engine
            // calls nothing of the server's that could call back.
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

    fn client(&self) -> Option<u64> {
        match self.asks {
            Asks::Client => self.ctx.connection(self.ctx.flags()),
            Asks::Module => None,
        }
    }

    fn is_permitted(&self, client: u64, request: &Request) -> bool {
        (IS_PERMITTED.get())(self, client, request)
    }
}
