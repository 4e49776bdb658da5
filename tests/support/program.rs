//! The server under test, `redis-server` or the one that RLOCK_SERVER names, and its command-line
//! client.

use std::env;
use std::ffi::OsString;
use std::path::PathBuf;

/// The server's program.
pub fn server() -> OsString {
    env::var_os("RLOCK_SERVER").unwrap_or_else(|| "redis-server".into())
}

/// The client next to that server, such as `valkey-cli` next to `valkey-server`, or else the
/// installed `redis-cli`.
pub fn cli() -> PathBuf {
    let server = PathBuf::from(server());
    let name = server.file_name().map(|name| name.to_string_lossy().replace("-server", "-cli"));
    let sibling = name.map(|name| server.with_file_name(name)).filter(|path| path != &server && path.exists());
    sibling.unwrap_or_else(|| "redis-cli".into())
}
