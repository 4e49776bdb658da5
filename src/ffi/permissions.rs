//! The ACL permissions of users.

use std::ffi::c_int;
use std::ptr;
use std::sync::OnceLock;

use redis_module::raw;

use super::call_reply::text_of;
use super::{Arg, Ctx, api};

/// The function of Valkey 9.1 and newer that also checks databases. On these servers the older
/// function denies everything to a user who may not use all databases.
type CheckPermissions = unsafe extern "C" fn(
    *mut raw::RedisModuleUser,
    *mut *mut raw::RedisModuleString,
    c_int,
    c_int,
    *mut c_int,
) -> c_int;

fn check_permissions() -> Option<CheckPermissions> {
    static FOUND: OnceLock<Option<CheckPermissions>> = OnceLock::new();
    *FOUND.get_or_init(|| {
        let mut found: Option<CheckPermissions> = None;
        // SAFETY: the name is a C string. If the server has a function of this name, it has the
        // type above, and the server writes a pointer to it; otherwise the server writes nothing.
        unsafe { api!(RedisModule_GetApi, c"RedisModule_ACLCheckPermissions".as_ptr(), (&raw mut found).cast()) };
        found
    })
}

/// A user of the server.
pub(crate) struct User(*mut raw::RedisModuleUser);

impl User {
    /// Whether the user may read the key.
    pub(crate) fn may_read(&self, key: Arg<'_>) -> bool {
        let flags = raw::REDISMODULE_CMD_KEY_ACCESS.cast_signed();
        // SAFETY: the user and the key are alive.
        let status = unsafe { api!(RedisModule_ACLCheckKeyPermissions, self.0, key.raw(), flags) };
        status == raw::REDISMODULE_OK as c_int
    }
}

impl Drop for User {
    fn drop(&mut self) {
        // SAFETY: made by `Ctx::user_of` or `Ctx::user_of_script`, and freed once.
        unsafe { api!(RedisModule_FreeModuleUser, self.0) };
    }
}

impl Ctx<'_> {
    /// The user of a connection. Another module's client has none.
    pub(crate) fn user_of(self, client: u64) -> Option<User> {
        // SAFETY: the context is alive; the name is freed once, if there is one.
        unsafe {
            // Do not use `GetCurrentUserName`: it dereferences a null pointer if there is no user.
            let name = api!(RedisModule_GetClientUserNameById, self.raw(), client);
            if name.is_null() {
                return None;
            }
            let user = api!(RedisModule_GetModuleUserFromUserName, name);
            api!(RedisModule_FreeString, self.raw(), name);
            (!user.is_null()).then_some(User(user))
        }
    }

    /// The user of the command. In Redis 7.0 the client of a script cannot be found by its id.
    /// There the module calls `ACL WHOAMI`, which the user must be allowed to run.
    pub(crate) fn user(self) -> Option<User> {
        self.user_of(self.client()).or_else(|| if self.flags().is_script() { self.user_of_script() } else { None })
    }

    fn user_of_script(self) -> Option<User> {
        // SAFETY: the format has one C string, and so have the arguments; `C` runs the call as the
        // user of the script. The reply is freed once.
        let name = unsafe {
            let reply = api!(RedisModule_Call, self.raw(), c"ACL".as_ptr(), c"Cc".as_ptr(), c"WHOAMI".as_ptr());
            if reply.is_null() {
                return None;
            }
            let is_name = api!(RedisModule_CallReplyType, reply) == raw::REDISMODULE_REPLY_STRING as c_int;
            let name = if is_name { text_of(reply) } else { None };
            api!(RedisModule_FreeCallReply, reply);
            name?
        };
        let name = self.string(name.as_bytes());
        // SAFETY: the name is alive.
        let user = unsafe { api!(RedisModule_GetModuleUserFromUserName, name.arg().raw()) };
        (!user.is_null()).then_some(User(user))
    }

    /// Whether the user of a connection may publish to the channel. If not, the server's ACL log
    /// gets an entry.
    ///
    /// The server could check this itself, if the command described its channel arguments. But from
    /// Redis 7.4 on, it treats such a command like `SPUBLISH`: a node of a cluster runs it while
    /// the cluster is down, and for a key whose slot has moved to another node (`getNodeByQuery`).
    /// Both nodes could grant the lock. Redis 8.6 ignores the keys of such a command altogether,
    /// both for routing and for ACL rules.
    pub(crate) fn user_may_publish(self, client: u64, channel: Arg<'_>) -> bool {
        let publishes = |user| {
            // SAFETY: the user is alive.
            let status = unsafe { may_publish(user, channel) };
            if status != raw::REDISMODULE_OK as c_int {
                let reason = raw::RedisModuleACLLogEntryReason_REDISMODULE_ACL_LOG_CHANNEL;
                // SAFETY: the context, the user and the channel are alive.
                unsafe { api!(RedisModule_ACLAddLogEntry, self.raw(), user, channel.raw(), reason) };
            }
            status
        };
        self.user_of(client).is_some_and(|user| publishes(user.0) == raw::REDISMODULE_OK as c_int)
    }

    /// Whether the user of a connection may run a command in a database, and publish to the
    /// command's channel. `true` if the connection has closed.
    pub(crate) fn client_may_run(self, client: u64, command: &[Arg<'_>], channel: Option<Arg<'_>>, db: u32) -> bool {
        let mut words: Vec<*mut raw::RedisModuleString> = command.iter().map(|word| word.raw()).collect();
        let count = c_int::try_from(words.len()).unwrap_or(c_int::MAX);
        let db = c_int::try_from(db).unwrap_or(c_int::MAX);
        let mut may_run = |user| {
            let words = words.as_mut_ptr();
            // SAFETY: the user and the `count` words are alive. A null pointer stands for the
            // reason, which is not needed.
            let status = unsafe {
                match check_permissions() {
                    Some(check) => check(user, words, count, db, ptr::null_mut()),
                    None => api!(RedisModule_ACLCheckCommandPermissions, user, words, count),
                }
            };
            // The server may reject the command for other reasons than permissions.
            let is_denied = std::io::Error::last_os_error().raw_os_error() == Some(libc::EACCES);
            if status != raw::REDISMODULE_OK as c_int && is_denied {
                return status;
            }
            // SAFETY: the user is alive.
            channel.map_or(raw::REDISMODULE_OK as c_int, |channel| unsafe { may_publish(user, channel) })
        };
        self.user_of(client).is_none_or(|user| may_run(user.0) == raw::REDISMODULE_OK as c_int)
    }
}

/// The server's status for whether a user may publish to a channel.
///
/// # Safety
///
/// The user is alive.
unsafe fn may_publish(user: *mut raw::RedisModuleUser, channel: Arg<'_>) -> c_int {
    let flags = raw::REDISMODULE_CMD_CHANNEL_PUBLISH.cast_signed();
    // SAFETY: the user is alive by the contract of this function, and so is the channel.
    unsafe { api!(RedisModule_ACLCheckChannelPermissions, user, channel.raw(), flags) }
}
