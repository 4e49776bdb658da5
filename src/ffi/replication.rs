//! The offset of this master's replication stream, and the offset that each replica has
//! acknowledged.
//!
//! The numbers come from the section `replication` of INFO: `master_repl_offset`, and for each
//! replica in the state `online` its address and the offset of its last `REPLCONF ACK`. A replica
//! sends one each second and in answer to `WAIT` (`replicationSendAck` and `replconfCommand` in
//! replication.c of Redis 7.0 and Valkey 9.1).

use std::ffi::{CStr, CString};
use std::ptr;

use redis_module::raw;
use rlock_core::Replication;

use super::api;

/// The state of the replication.
pub(crate) fn replication() -> Replication {
    let info = ReplicationInfo::new();
    let offset = info.field(c"master_repl_offset").and_then(|value| value.parse().ok()).unwrap_or(0);
    Replication { offset, replicas: info.replicas().filter_map(|fields| online(&fields)).collect() }
}

/// Whether a replica waits for a snapshot.
pub(crate) fn is_snapshot_wanted() -> bool {
    ReplicationInfo::new().replicas().any(|fields| field(&fields, "state") != Some("online"))
}

/// The section of INFO, without the command INFO, which may be renamed. The server uses a context
/// only to free the information by itself, so there is none: while Redis 8.6 saves a snapshot to
/// which the module adds nothing, it never ends a context that the module asks for, and later fails
/// an assertion.
struct ReplicationInfo(*mut raw::RedisModuleServerInfoData);

impl ReplicationInfo {
    fn new() -> Self {
        // SAFETY: the server allows a null context.
        Self(unsafe { api!(RedisModule_GetServerInfo, ptr::null_mut(), c"replication".as_ptr()) })
    }

    fn field(&self, name: &CStr) -> Option<String> {
        // SAFETY: the information is alive, and the field is copied.
        unsafe {
            let value = api!(RedisModule_ServerInfoGetFieldC, self.0, name.as_ptr());
            (!value.is_null()).then(|| CStr::from_ptr(value).to_string_lossy().into_owned())
        }
    }

    /// The fields of each replica: `ip=…,port=…,state=online,offset=…,lag=…`.
    fn replicas(&self) -> impl Iterator<Item = String> {
        (0..).map_while(|number: u32| self.field(&CString::new(format!("slave{number}")).ok()?))
    }
}

impl Drop for ReplicationInfo {
    fn drop(&mut self) {
        // SAFETY: the information is freed once.
        unsafe { api!(RedisModule_FreeServerInfo, ptr::null_mut(), self.0) };
    }
}

fn field<'f>(fields: &'f str, name: &str) -> Option<&'f str> {
    fields.split(',').find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
}

/// The address of a replica and the offset that it has acknowledged, if it is online.
fn online(fields: &str) -> Option<(Box<str>, u64)> {
    if field(fields, "state")? != "online" {
        return None;
    }
    let address = format!("{}:{}", field(fields, "ip")?, field(fields, "port")?);
    Some((address.into(), field(fields, "offset")?.parse().ok()?))
}
