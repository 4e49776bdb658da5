//! Whether the server refuses writes, and why. While it does, the module must not grant locks
//! either.

use std::ffi::{CStr, c_int};

use redis_module::raw;

use super::call_reply::text_of;
use super::{Ctx, api};

impl Ctx<'_> {
    /// The value of a server setting. `None` if the server has no such setting, or if its command
    /// CONFIG is renamed.
    pub(crate) fn setting(self, name: &CStr) -> Option<String> {
        // SAFETY: the format has two C strings, and so have the arguments; the reply is freed once,
        // after its text was copied.
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

    /// The number of replicas whose lag is within `min-replicas-max-lag`. `None` if the server
    /// requires no replicas (`min-replicas-to-write`).
    pub(crate) fn good_replicas(self) -> Option<u64> {
        let mut status: c_int = 0;
        // SAFETY: the context is alive; the information is freed once, after its field was read.
        let good = unsafe {
            let info = api!(RedisModule_GetServerInfo, self.raw(), c"replication".as_ptr());
            let name = c"min_slaves_good_slaves".as_ptr();
            let good = api!(RedisModule_ServerInfoGetFieldUnsigned, info, name, &raw mut status);
            api!(RedisModule_FreeServerInfo, self.raw(), info);
            good
        };
        (status == raw::REDISMODULE_OK as c_int).then_some(good)
    }

    /// Whether the server refuses writes (`-MISCONF`) because it failed to write its append-only
    /// file, or, if `snapshots_count`, its last snapshot.
    pub(crate) fn files_fail(self, snapshots_count: bool) -> bool {
        // SAFETY: the context is alive; the fields are copied before the information is freed,
        // once.
        unsafe {
            let info = api!(RedisModule_GetServerInfo, self.raw(), c"persistence".as_ptr());
            let is = |field: &CStr, word: &CStr| {
                let value = api!(RedisModule_ServerInfoGetFieldC, info, field.as_ptr());
                !value.is_null() && CStr::from_ptr(value) == word
            };
            let fails = (is(c"aof_enabled", c"1") && is(c"aof_last_write_status", c"err"))
                || (snapshots_count && is(c"rdb_last_bgsave_status", c"err"));
            api!(RedisModule_FreeServerInfo, self.raw(), info);
            fails
        }
    }

    /// Whether the server refuses writes (`-MISCONF`, `-NOREPLICAS`). The function tries a write,
    /// with the checks that the server makes for scripts.
    ///
    /// The command is RLOCK.CANCEL with an empty owner. If the server lets it run, it fails before
    /// it opens a key. `INFO commandstats` counts the failed call, `INFO errorstats` does not.
    pub(crate) fn refuses_script_writes(self) -> bool {
        // SAFETY: the format has two C strings, and so have the arguments; `S` selects the checks
        // for scripts, and `E` errors as replies. The reply is freed once, after its text was
        // copied.
        let text = unsafe {
            let (cancel, format) = (c"RLOCK.CANCEL".as_ptr(), c"ccSE".as_ptr());
            let reply = api!(RedisModule_Call, self.raw(), cancel, format, c"".as_ptr(), c"".as_ptr());
            if reply.is_null() {
                return true;
            }
            let text = text_of(reply);
            api!(RedisModule_FreeCallReply, reply);
            text
        };
        text.is_none_or(|text| text.starts_with("MISCONF") || text.starts_with("NOREPLICAS"))
    }

    /// Whether the cluster is up, as far as this node knows.
    pub(crate) fn cluster_is_up(self) -> bool {
        // SAFETY: the format has one C string, and so have the arguments; the reply is freed once,
        // after its text was copied.
        let text = unsafe {
            let reply = api!(RedisModule_Call, self.raw(), c"CLUSTER".as_ptr(), c"c".as_ptr(), c"INFO".as_ptr());
            if reply.is_null() {
                return true;
            }
            let text = text_of(reply);
            api!(RedisModule_FreeCallReply, reply);
            text
        };
        !text.is_some_and(|text| text.contains("cluster_state:fail"))
    }
}
