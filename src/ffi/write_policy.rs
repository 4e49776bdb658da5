//! When the server takes no write from anybody: then the module may not grant anything either.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::call_reply::text_of;
use super::{Ctx, api};

impl Ctx<'_> {
    /// What a setting of the server's says. `None` if there is none, or no command CONFIG: it may be renamed.
    pub(crate) fn setting(self, name: &CStr) -> Option<String> {
        // SAFETY: the format says two C strings, and the arguments are exactly those; the reply is freed once, after what is in it was copied.
        unsafe {
            let reply =
                api!(RedisModule_Call, self.raw(), c"CONFIG".as_ptr(), c"cc".as_ptr(), c"GET".as_ptr(), name.as_ptr());
            if reply.is_null() {
                return None;
            }
            let value = api!(RedisModule_CallReplyArrayElement, reply, 1);
            let text = if value.is_null() { None } else { text_of(value) };
            api!(RedisModule_FreeCallReply, reply);
            text
        }
    }

    /// How many replicas are in step. `None` if the server does not ask for any (`min-replicas-to-write`, `min-replicas-max-lag`).
    pub(crate) fn good_replicas(self) -> Option<u64> {
        let mut status: c_int = 0;
        // SAFETY: the context is alive; the information is freed once, after its field was looked at.
        let good = unsafe {
            let info = api!(RedisModule_GetServerInfo, self.raw(), c"replication".as_ptr());
            let name = c"min_slaves_good_slaves".as_ptr();
            let good = api!(RedisModule_ServerInfoGetFieldUnsigned, info, name, &raw mut status);
            api!(RedisModule_FreeServerInfo, self.raw(), info);
            good
        };
        (status == raw::REDISMODULE_OK as c_int).then_some(good)
    }

    /// Whether the server refuses writes because it could not write its append-only file, or its last snapshot where `snapshots_count` (`-MISCONF`).
    pub(crate) fn files_fail(self, snapshots_count: bool) -> bool {
        // SAFETY: the context is alive; the fields are copied before the information is freed, once.
        unsafe {
            let info = api!(RedisModule_GetServerInfo, self.raw(), c"persistence".as_ptr());
            let says = |field: &CStr, word: &CStr| {
                let said = api!(RedisModule_ServerInfoGetFieldC, info, field.as_ptr());
                !said.is_null() && CStr::from_ptr(said) == word
            };
            let fails = (says(c"aof_enabled", c"1") && says(c"aof_last_write_status", c"err"))
                || (snapshots_count && says(c"rdb_last_bgsave_status", c"err"));
            api!(RedisModule_FreeServerInfo, self.raw(), info);
            fails
        }
    }

    /// Whether the server refuses what writes, for its files or for its replicas (`-MISCONF`, `-NOREPLICAS`), as it turns out when a script writes: with
    /// a command of ours that lacks its owner. It is answered with an error before it looks at any key, and errors of a module's calls are not counted.
    pub(crate) fn refuses_a_script(self) -> bool {
        // SAFETY: the format says two C strings, a check as for a script, and errors as replies; the arguments are exactly those. The reply is
        // freed once, after what it says was copied.
        let said = unsafe {
            let (cancel, format) = (c"RLOCK.CANCEL".as_ptr(), c"ccSE".as_ptr());
            let reply = api!(RedisModule_Call, self.raw(), cancel, format, c"".as_ptr(), c"".as_ptr());
            if reply.is_null() {
                return true;
            }
            let said = text_of(reply);
            api!(RedisModule_FreeCallReply, reply);
            said
        };
        said.is_none_or(|said| said.starts_with("MISCONF") || said.starts_with("NOREPLICAS"))
    }

    /// Whether the cluster takes writes, as far as this node can say.
    pub(crate) fn cluster_is_up(self) -> bool {
        // SAFETY: the format says a C string, and the argument is exactly that; the reply is freed once, after what it says was copied.
        let said = unsafe {
            let reply = api!(RedisModule_Call, self.raw(), c"CLUSTER".as_ptr(), c"c".as_ptr(), c"INFO".as_ptr());
            if reply.is_null() {
                return true;
            }
            let said = text_of(reply);
            api!(RedisModule_FreeCallReply, reply);
            said
        };
        !said.is_some_and(|said| said.contains("cluster_state:fail"))
    }
}
