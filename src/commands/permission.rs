//! The permission check before a waiter is granted: the ACL rules of its user may have changed
//! while it waited.

use std::ffi::CStr;

use rlock_core::{Keyspace, Kind, Request, Verb};
use smallvec::SmallVec;

use super::family::{Fair, Family, Mutex, RwLock, Semaphore};
use super::many;
use crate::channels;
use crate::ffi::{Arg, Command, Keys, OwnedString};

/// Whether the user of the connection `client` may still send `request` for the open keys.
pub(crate) fn is_permitted(keys: &Keys<'_>, client: u64, request: &Request) -> bool {
    let ctx = keys.ctx();
    let name = ctx.string(acquire_name(request).to_bytes());
    let is_many = request.verb == Verb::AcquireMany;
    let count = is_many.then(|| ctx.string(keys.count().to_string().as_bytes()));
    let has_mode = request.kind == Kind::RwLock;
    let mode = has_mode.then(|| ctx.string(request.mode.name().as_bytes()));
    let mut words: SmallVec<[Arg<'_>; 4]> = SmallVec::new();
    words.push(name.arg());
    words.extend(count.as_ref().map(OwnedString::arg));
    words.extend(keys.names());
    // The owner. ACL rules do not look at it, so any word will do.
    words.push(name.arg());
    words.extend(mode.as_ref().map(OwnedString::arg));
    let channel = request.notify.and_then(|channel| channels::name_of(ctx, channel));
    ctx.client_may_run(client, &words, channel.as_ref().map(OwnedString::arg), keys.db())
}

/// The name of the command that sent a request.
fn acquire_name(request: &Request) -> &'static CStr {
    match (request.verb, request.kind) {
        (Verb::AcquireMany, _) => many::Acquire::SPEC.name,
        (_, Kind::Mutex) => Mutex::NAMES.acquire,
        (_, Kind::Fair) => Fair::NAMES.acquire,
        (_, Kind::RwLock) => RwLock::NAMES.acquire,
        (_, Kind::Semaphore) => Semaphore::NAMES.acquire,
    }
}
