//! The context of a callback: arguments, replies, flags, replication, events.

use std::ffi::{CStr, CString, c_char, c_int, c_long, c_longlong};
use std::marker::PhantomData;
use std::ptr;

use redis_module::raw;
use rlock_core::Arguments;
use smallvec::SmallVec;

use super::api;

/// The context of the callback that is running.
#[derive(Clone, Copy)]
pub(crate) struct Ctx<'c> {
    raw: *mut raw::RedisModuleCtx,
    lifetime: PhantomData<&'c ()>,
}

/// A string that the server owns: an argument, or the name of a key.
#[derive(Clone, Copy)]
pub(crate) struct Arg<'c> {
    raw: *mut raw::RedisModuleString,
    lifetime: PhantomData<&'c ()>,
}

/// The arguments of a command, with the command's name.
#[derive(Clone, Copy)]
pub(crate) struct Args<'c> {
    argv: *mut *mut raw::RedisModuleString,
    argc: usize,
    lifetime: PhantomData<&'c ()>,
}

/// The flags of a context: the state of the server and of the client.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Flags(c_int);

impl Flags {
    pub(super) fn has(self, flag: u32) -> bool {
        self.0 & flag.cast_signed() != 0
    }

    /// This server is a master.
    pub(crate) fn is_master(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_MASTER)
    }

    /// The server loads its data set, or the command comes from the append-only file.
    pub(crate) fn is_loading(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LOADING)
    }

    /// The command comes from the master.
    pub(crate) fn is_replicated(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_REPLICATED)
    }

    /// This server is a node of a cluster.
    pub(crate) fn is_cluster(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_CLUSTER)
    }

    /// The command runs in a script.
    pub(crate) fn is_script(self) -> bool {
        self.has(raw::REDISMODULE_CTX_FLAGS_LUA)
    }

    /// The client must not be blocked: it is in a transaction or a script, belongs to another
    /// module, or replays the master's stream or a file.
    pub(crate) fn denies_blocking(self) -> bool {
        self.has(
            raw::REDISMODULE_CTX_FLAGS_DENY_BLOCKING
                | raw::REDISMODULE_CTX_FLAGS_MULTI
                | raw::REDISMODULE_CTX_FLAGS_LUA
                | raw::REDISMODULE_CTX_FLAGS_REPLICATED
                | raw::REDISMODULE_CTX_FLAGS_LOADING,
        )
    }
}

impl<'c> Ctx<'c> {
    /// # Safety
    ///
    /// `raw` is the context of a callback that runs for all of `'c`.
    pub(super) unsafe fn new(raw: *mut raw::RedisModuleCtx) -> Self {
        Self { raw, lifetime: PhantomData }
    }

    pub(super) fn raw(self) -> *mut raw::RedisModuleCtx {
        self.raw
    }

    pub(crate) fn flags(self) -> Flags {
        // SAFETY: the context is alive.
        Flags(unsafe { api!(RedisModule_GetContextFlags, self.raw) })
    }

    /// Selects a database; `false` if it does not exist. The client stays in the database after its
    /// command.
    ///
    /// To read the selected database, use [`super::Keys::selected_db`], which asks the handle of an
    /// open key. `GetSelectedDb` is wrong on Valkey 9.1: inside a transaction it returns the
    /// database of the transaction, even in the event of a key that MOVE or COPY has put into
    /// another database.
    pub(crate) fn select_db(self, db: u32) -> bool {
        let Ok(db) = c_int::try_from(db) else {
            return false;
        };
        // SAFETY: the context is alive.
        let status = unsafe { api!(RedisModule_SelectDb, self.raw, db) };
        status == raw::REDISMODULE_OK as c_int
    }

    /// The id of the client of this context: a connection, a script, or another module's client.
    pub(crate) fn client(self) -> u64 {
        // SAFETY: the context is alive.
        unsafe { api!(RedisModule_GetClientId, self.raw) }
    }

    /// Whether the client of the command can be blocked. Another module's client cannot, even if
    /// that module allows it (`K` of `RM_Call`): Redis 8.0 and Valkey 8.0 to 9.1 crash when that
    /// module aborts the call.
    pub(crate) fn can_block(self, flags: Flags) -> bool {
        !flags.denies_blocking() && self.connection(flags).is_some()
    }

    /// The connection that sent the command. `None` for a script or another module: their clients
    /// never close.
    pub(crate) fn connection(self, flags: Flags) -> Option<u64> {
        let is_of_module = flags.denies_blocking() && !flags.has(raw::REDISMODULE_CTX_FLAGS_MULTI);
        if flags.is_script() || is_of_module {
            return None;
        }
        // The client is a connection, or another module's client in a transaction or in a call that
        // may block. Only for a connection does the server find a user by the client id. Do not ask
        // for the client's address instead: Valkey 9 then looks at the executing client, and
        // crashes if that client has no connection.
        let id = self.client();
        // SAFETY: the context is alive. The name is freed once, with the context that it was made
        // with.
        unsafe {
            let name = api!(RedisModule_GetClientUserNameById, self.raw, id);
            if name.is_null() {
                return None;
            }
            api!(RedisModule_FreeString, self.raw, name);
        }
        Some(id)
    }

    /// A string of the server with these bytes, freed when dropped.
    pub(crate) fn string(self, bytes: &[u8]) -> OwnedString<'c> {
        // SAFETY: the pointer and length are those of a slice; the context is alive.
        let raw = unsafe { api!(RedisModule_CreateString, self.raw, bytes.as_ptr().cast::<c_char>(), bytes.len()) };
        OwnedString { ctx: self, arg: Arg { raw, lifetime: PhantomData } }
    }

    pub(crate) fn reply_integer(self, number: u64) {
        let number = c_longlong::try_from(number).unwrap_or(c_longlong::MAX);
        // SAFETY: the context is alive and belongs to a client that waits for an answer.
        unsafe { api!(RedisModule_ReplyWithLongLong, self.raw, number) };
    }

    pub(crate) fn reply_signed(self, number: i64) {
        // SAFETY: as in `reply_integer`.
        unsafe { api!(RedisModule_ReplyWithLongLong, self.raw, number) };
    }

    pub(crate) fn reply_nil(self) {
        // SAFETY: as in `reply_integer`.
        unsafe { api!(RedisModule_ReplyWithNull, self.raw) };
    }

    /// A simple string, such as `OK`.
    pub(crate) fn reply_status(self, status: &'static CStr) {
        // SAFETY: as in `reply_integer`; the string is static.
        unsafe { api!(RedisModule_ReplyWithSimpleString, self.raw, status.as_ptr()) };
    }

    pub(crate) fn reply_bytes(self, bytes: &[u8]) {
        // SAFETY: as in `reply_integer`; the pointer and length are those of a slice.
        unsafe { api!(RedisModule_ReplyWithStringBuffer, self.raw, bytes.as_ptr().cast::<c_char>(), bytes.len()) };
    }

    /// An error; `message` starts with its code.
    pub(crate) fn reply_error(self, message: &str) {
        let message = CString::new(message).unwrap_or_default();
        // SAFETY: as in `reply_integer`; the server copies the string.
        unsafe { api!(RedisModule_ReplyWithError, self.raw, message.as_ptr()) };
    }

    /// Starts an array of `len` elements.
    pub(crate) fn reply_array(self, len: usize) {
        // SAFETY: as in `reply_integer`.
        unsafe { api!(RedisModule_ReplyWithArray, self.raw, to_long(len)) };
    }

    /// An array of integers.
    pub(crate) fn reply_integers(self, numbers: impl ExactSizeIterator<Item = u64>) {
        self.reply_array(numbers.len());
        for number in numbers {
            self.reply_integer(number);
        }
    }

    /// An array of integers and nils.
    pub(crate) fn reply_integers_or_nil(self, numbers: impl ExactSizeIterator<Item = Option<u64>>) {
        self.reply_array(numbers.len());
        for number in numbers {
            match number {
                Some(number) => self.reply_integer(number),
                None => self.reply_nil(),
            }
        }
    }

    /// Starts a map of `len` pairs (a flat array in RESP2).
    pub(crate) fn reply_map(self, len: usize) {
        // SAFETY: as in `reply_integer`.
        unsafe { api!(RedisModule_ReplyWithMap, self.raw, to_long(len)) };
    }

    pub(crate) fn reply_wrong_arity(self) {
        // SAFETY: as in `reply_integer`.
        unsafe { api!(RedisModule_WrongArity, self.raw) };
    }

    /// Propagates `RLOCK.APPLY key facts [owner] [note]` to replicas and the append-only file.
    ///
    /// The API call is variadic in C. This is its only use, with fixed types.
    pub(crate) fn replicate_effect(self, key: Arg<'_>, facts: &[u8], arguments: Arguments<'_>) {
        const COMMAND: &CStr = c"RLOCK.APPLY";
        let (format, [first, second]) = effect_format(arguments);
        // SAFETY: the format has one string and one buffer for each argument; a variadic function
        // reads no argument beyond its format.
        unsafe {
            api!(
                RedisModule_Replicate,
                self.raw,
                COMMAND.as_ptr(),
                format.as_ptr(),
                key.raw,
                facts.as_ptr(),
                facts.len(),
                first.as_ptr(),
                first.len(),
                second.as_ptr(),
                second.len()
            )
        };
    }

    /// Propagates the running command with its original arguments.
    pub(crate) fn replicate_verbatim(self) {
        // SAFETY: the context is that of a command.
        unsafe { api!(RedisModule_ReplicateVerbatim, self.raw) };
    }

    /// Sends a keyspace event of the module class.
    pub(crate) fn notify(self, event: &CStr, key: Arg<'_>) {
        // SAFETY: the context, the event's name and the key are alive.
        unsafe {
            api!(RedisModule_NotifyKeyspaceEvent, self.raw, raw::REDISMODULE_NOTIFY_MODULE, event.as_ptr(), key.raw)
        };
    }

    /// Invalidates WATCH and client-side caches of the key.
    pub(crate) fn signal_modified(self, key: Arg<'_>) {
        // SAFETY: the context and the key are alive.
        unsafe { api!(RedisModule_SignalModifiedKey, self.raw, key.raw) };
    }

    /// Whether this node of a cluster serves the keys now. All keys are in one slot. The function
    /// calls EXISTS with the keys.
    ///
    /// Every server version refuses that call if the slot belongs to another node, if the slot is
    /// migrating and a key is missing, or if the cluster is down and
    /// `cluster-allow-reads-when-down` is off. Pass all keys at once: after ASKING, the server
    /// accepts a missing key alone, but not among several.
    ///
    /// The `!` propagates the call if it changed something. It may expire a key, and other modules
    /// may run commands in that event; the server propagates these only together with the call.
    pub(crate) fn serves(self, keys: &[Arg<'_>]) -> bool {
        let mut names: SmallVec<[*mut raw::RedisModuleString; 4]> = keys.iter().map(|key| key.raw).collect();
        // SAFETY: the format has `!` and an array of strings with its length, and so have the
        // arguments; a reply is freed once.
        unsafe {
            let (exists, format) = (c"EXISTS".as_ptr(), c"!v".as_ptr());
            let reply = api!(RedisModule_Call, self.raw, exists, format, names.as_mut_ptr(), names.len());
            if reply.is_null() {
                return false;
            }
            api!(RedisModule_FreeCallReply, reply);
        }
        true
    }

    /// Whether the server must not write to its replicas now (CLIENT PAUSE, FAILOVER).
    pub(crate) fn is_paused(self) -> bool {
        // SAFETY: no arguments.
        unsafe { api!(RedisModule_AvoidReplicaTraffic) != 0 }
    }
}

impl<'c> Arg<'c> {
    /// # Safety
    ///
    /// `raw` is a string of the server that lives for all of `'c`.
    pub(super) unsafe fn new(raw: *mut raw::RedisModuleString) -> Self {
        Self { raw, lifetime: PhantomData }
    }

    pub(super) fn raw(self) -> *mut raw::RedisModuleString {
        self.raw
    }

    /// Its bytes.
    pub(crate) fn bytes(self) -> &'c [u8] {
        let mut len = 0;
        // SAFETY: the string is alive for 'c and never changes; the pointer has `len` bytes.
        unsafe {
            let start = api!(RedisModule_StringPtrLen, self.raw, &raw mut len);
            std::slice::from_raw_parts(start.cast::<u8>(), len)
        }
    }
}

impl<'c> Args<'c> {
    /// # Safety
    ///
    /// `argv` has `argc` strings, all alive for all of `'c`.
    pub(super) unsafe fn new(argv: *mut *mut raw::RedisModuleString, argc: c_int) -> Self {
        Self { argv, argc: usize::try_from(argc).unwrap_or(0), lifetime: PhantomData }
    }

    pub(crate) fn get(self, index: usize) -> Option<Arg<'c>> {
        if index >= self.argc {
            return None;
        }
        // SAFETY: the index is below argc, and the strings live for 'c.
        Some(unsafe { Arg::new(*self.argv.add(index)) })
    }
}

/// A string made by the module.
pub(crate) struct OwnedString<'c> {
    ctx: Ctx<'c>,
    arg: Arg<'c>,
}

impl OwnedString<'_> {
    pub(crate) fn arg(&self) -> Arg<'_> {
        self.arg
    }
}

impl Drop for OwnedString<'_> {
    fn drop(&mut self) {
        // SAFETY: made by `Ctx::string` with this context, and freed once.
        unsafe { api!(RedisModule_FreeString, self.ctx.raw, self.arg.raw) };
    }
}

/// Writes a warning into the server's log.
pub(crate) fn log_warning(message: &str) {
    log(c"warning", message);
}

/// Writes a line into the server's log.
pub(crate) fn log_notice(message: &str) {
    log(c"notice", message);
}

fn log(level: &CStr, message: &str) {
    let message = CString::new(message).unwrap_or_default();
    // SAFETY: a log line needs no context; the format has one string, and so have the arguments.
    unsafe {
        if let Some(log) = raw::RedisModule_Log {
            log(ptr::null_mut(), level.as_ptr(), c"rlock: %s".as_ptr(), message.as_ptr());
        }
    }
}

fn to_long(len: usize) -> c_long {
    c_long::try_from(len).unwrap_or(c_long::MAX)
}

/// The format of an effect for the variadic calls of the API, and its arguments after the facts.
/// The format leaves out missing arguments.
pub(super) fn effect_format(arguments: Arguments<'_>) -> (&'static CStr, [&[u8]; 2]) {
    let arguments = arguments.in_order();
    let format = match arguments {
        [None, _] => c"sb",
        [Some(_), None] => c"sbb",
        [Some(_), Some(_)] => c"sbbb",
    };
    (format, arguments.map(Option::unwrap_or_default))
}
