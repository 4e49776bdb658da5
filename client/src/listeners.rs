//! The event followers of one connection, by key.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use tokio::sync::broadcast::{Receiver, Sender};

use crate::sync::lock;

/// The prefix of keyspace channels. No other channel of this crate begins with it.
pub(crate) const PREFIX: &[u8] = b"__keyspace@";

/// How many events of a key are buffered for a slow follower.
const KEPT_EVENTS: usize = 256;

/// An event of a lock, see [`Observer::events`](crate::Observer::events).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// An owner acquired the lock. A re-entry is not an event.
    Acquired,
    /// A holder released the lock.
    Released,
    /// The lease or session of a holder expired.
    Expired,
    /// An operator took the lock away from its holders.
    Forced,
    /// The holder released the lock and keeps it closed for some time.
    Kept,
    /// A fair lock is free and reserved for some time for the first in its queue, which is not
    /// connected.
    Turn,
    /// The key was deleted, evicted, renamed or overwritten. The server publishes this only with
    /// `g` and `e` in `notify-keyspace-events`.
    Removed,
    /// Some events may be missing here: the connection was lost, or this follower was too slow.
    Missed,
}

impl Event {
    /// `None` for an event that changes no holder.
    fn parse(name: &[u8]) -> Option<Self> {
        match name {
            b"rlock.acquire" => Some(Self::Acquired),
            b"rlock.release" => Some(Self::Released),
            b"rlock.expire" => Some(Self::Expired),
            b"rlock.force" => Some(Self::Forced),
            b"rlock.keep" => Some(Self::Kept),
            b"rlock.turn" => Some(Self::Turn),
            b"expire" | b"persist" | b"new" => None,
            _ => Some(Self::Removed),
        }
    }
}

/// The followers of keys on one connection, by channel.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<HashMap<Vec<u8>, Sender<Event>>>);

pub(crate) type Following = Receiver<Event>;

impl Listeners {
    fn lock(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Sender<Event>>> {
        lock(&self.0)
    }

    pub(crate) fn follow(&self, channel: &[u8]) -> Following {
        self.lock().entry(channel.to_vec()).or_insert_with(|| Sender::new(KEPT_EVENTS)).subscribe()
    }

    pub(crate) fn are_followed(&self) -> bool {
        self.lock().values().any(|followers| followers.receiver_count() > 0)
    }

    /// Removes a channel without followers, and returns it.
    pub(crate) fn take_idle(&self) -> Option<Vec<u8>> {
        self.lock().extract_if(|_, followers| followers.receiver_count() == 0).map(|(channel, _)| channel).next()
    }

    /// Handles a message. Returns false if it is not a keyspace event.
    pub(crate) fn tell(&self, channel: &[u8], event: &[u8]) -> bool {
        let is_event = channel.starts_with(PREFIX);
        if is_event && let (Some(followers), Some(event)) = (self.lock().get(channel), Event::parse(event)) {
            // All followers may be gone.
            drop(followers.send(event));
        }
        is_event
    }
}

/// Whether `notify-keyspace-events` with these flags publishes lock events.
pub(crate) fn are_published(flags: &[u8]) -> bool {
    flags.contains(&b'K') && (flags.contains(&b'd') || flags.contains(&b'A'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_reach_only_followers_of_their_key() {
        let listeners = Listeners::default();
        let channel = b"__keyspace@3__:k".as_slice();
        let mut follower = listeners.follow(channel);
        assert!(listeners.are_followed());
        assert!(listeners.tell(channel, b"rlock.acquire") && listeners.tell(channel, b"del"));
        assert!(listeners.tell(b"__keyspace@3__:other", b"del"));
        assert!(listeners.tell(channel, b"rlock.turn"));
        assert!(!listeners.tell(b"rlock:channel", b"nil 7"), "a message for a waiter is not an event");
        let told: Vec<_> = std::iter::from_fn(|| follower.try_recv().ok()).collect();
        assert_eq!(told, [Event::Acquired, Event::Removed, Event::Turn]);
        assert_eq!(listeners.take_idle(), None);
        drop(follower);
        assert_eq!(listeners.take_idle().as_deref(), Some(channel));
        assert!(are_published(b"AKE") && are_published(b"Kd") && !are_published(b"Ed") && !are_published(b"Kg"));
    }

    /// These events do not change the holder.
    #[test]
    fn expire_and_persist_are_not_removals() {
        assert_eq!([b"expire".as_slice(), b"persist"].map(Event::parse), [None, None]);
        assert_eq!(Event::parse(b"del"), Some(Event::Removed));
    }
}
