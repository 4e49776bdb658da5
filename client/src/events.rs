//! What the server tells of keys, if its `notify-keyspace-events` has `K` and `d`: so the loss of a hold is noticed at once, and not by the next
//! renewal, and whoever wants can follow what happens to a lock.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::{broadcast, watch};

/// What the channels of events begin with, and those of nothing else that this crate subscribes to.
const PREFIX: &[u8] = b"__keyspace@";

/// The channel of a key's events.
pub(crate) fn channel_of(database: i64, key: &[u8]) -> Vec<u8> {
    [PREFIX, format!("{database}__:").as_bytes(), key].concat()
}

/// Whether events of locks are published, by the setting `notify-keyspace-events`.
pub(crate) fn are_published(setting: &str) -> bool {
    setting.contains('K') && setting.contains(['d', 'A'])
}

/// How many events of a key are kept for whoever follows them slowly.
const KEPT_EVENTS: usize = 256;

/// Something that has happened to a lock, see [`Observer::events`](crate::Observer::events).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Event {
    /// Somebody was granted it. Re-entering it is none.
    Acquired,
    /// Somebody released it.
    Released,
    /// Somebody's lease or session has ended.
    Expired,
    /// It was taken away from whoever held it.
    Forced,
    /// Its holder released it, and it stays closed for a while.
    Kept,
    /// A free fair lock is kept for a while for whoever is first in its queue and is not there now.
    Turn,
    /// The key was deleted, evicted, renamed or overwritten. Told of only with `g` and `e` in `notify-keyspace-events`.
    Removed,
    /// The connection was lost, or these events were not asked for in time: some may be missing from here on.
    Missed,
}

impl Event {
    fn parse(name: &[u8]) -> Self {
        match name {
            b"rlock.acquire" => Self::Acquired,
            b"rlock.release" => Self::Released,
            b"rlock.expire" => Self::Expired,
            b"rlock.force" => Self::Forced,
            b"rlock.keep" => Self::Kept,
            b"rlock.turn" => Self::Turn,
            _ => Self::Removed,
        }
    }

    /// Whether it may end the hold of somebody who has not released it.
    fn may_end_a_hold(self) -> bool {
        !matches!(self, Self::Acquired | Self::Released | Self::Kept | Self::Turn)
    }
}

/// Who listens to a key.
struct Listened {
    /// Whether the server has said that it tells.
    is_subscribed: bool,
    /// Whoever holds it.
    holders: watch::Sender<()>,
    /// Whoever follows it.
    followers: Option<broadcast::Sender<Event>>,
}

impl Listened {
    fn is_idle(&self) -> bool {
        self.holders.receiver_count() == 0
            && self.followers.as_ref().is_none_or(|followers| followers.receiver_count() == 0)
    }
}

/// Who listens to which key on a connection.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<HashMap<Vec<u8>, Listened>>);

impl Listeners {
    fn by_channel(&self) -> MutexGuard<'_, HashMap<Vec<u8>, Listened>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to what may end a hold.
    pub(crate) fn add(&self, channel: &[u8]) -> watch::Receiver<()> {
        self.enter(channel, |listened| listened.holders.subscribe())
    }

    /// Listens to all that happens.
    pub(crate) fn follow(&self, channel: &[u8]) -> broadcast::Receiver<Event> {
        self.enter(channel, |listened| {
            listened.followers.get_or_insert_with(|| broadcast::Sender::new(KEPT_EVENTS)).subscribe()
        })
    }

    fn enter<T>(&self, channel: &[u8], subscribe: impl FnOnce(&mut Listened) -> T) -> T {
        let nobody = || Listened { is_subscribed: false, holders: watch::Sender::new(()), followers: None };
        subscribe(self.by_channel().entry(channel.to_vec()).or_insert_with(nobody))
    }

    /// Whether the server has said that it tells what happens on a channel.
    pub(crate) fn is_subscribed(&self, channel: &[u8]) -> bool {
        self.by_channel().get(channel).is_some_and(|listened| listened.is_subscribed)
    }

    /// The server has said so.
    pub(crate) fn note_subscribed(&self, channel: &[u8]) {
        if let Some(listened) = self.by_channel().get_mut(channel) {
            listened.is_subscribed = true;
        }
    }

    /// Whether anybody follows what happens to a key.
    pub(crate) fn are_followed(&self) -> bool {
        let listeners = self.by_channel();
        let mut followers = listeners.values().filter_map(|listened| listened.followers.as_ref());
        followers.any(|followers| followers.receiver_count() > 0)
    }

    /// Forgets a channel if nobody listens to it any more. Returns whether that is so.
    pub(crate) fn remove_if_idle(&self, channel: &[u8]) -> bool {
        let mut listeners = self.by_channel();
        let is_idle = listeners.get(channel).is_some_and(Listened::is_idle);
        if is_idle {
            listeners.remove(channel);
        }
        is_idle
    }

    /// A message has come. False if it is not about a key.
    pub(crate) fn tell(&self, channel: &[u8], event: &[u8]) -> bool {
        let is_event = channel.starts_with(PREFIX);
        if is_event && let Some(listened) = self.by_channel().get(channel) {
            let event = Event::parse(event);
            if event.may_end_a_hold() {
                listened.holders.send_replace(());
            }
            if let Some(followers) = &listened.followers {
                // Nobody may be left.
                drop(followers.send(event));
            }
        }
        is_event
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_may_end_a_hold_is_told_and_only_to_those_who_listen() {
        let listeners = Listeners::default();
        let channel = channel_of(3, b"k");
        assert_eq!(channel, b"__keyspace@3__:k");
        let mut first = listeners.add(&channel);
        assert!(!listeners.is_subscribed(&channel), "the server has not answered yet");
        listeners.note_subscribed(&channel);
        let second = listeners.add(&channel);
        assert!(listeners.is_subscribed(&channel));
        assert!(listeners.tell(&channel, b"rlock.acquire") && !first.has_changed().expect("it is there"));
        assert!(listeners.tell(&channel, b"rlock.force") && first.has_changed().expect("it is there"));
        first.mark_unchanged();
        assert!(listeners.tell(&channel_of(3, b"other"), b"del") && !first.has_changed().expect("it is there"));
        assert!(!listeners.tell(b"rlock:channel", b"nil 7"), "that is a letter");
        drop(first);
        assert!(!listeners.remove_if_idle(&channel), "one still listens");
        drop(second);
        let mut follower = listeners.follow(&channel);
        assert!(!listeners.remove_if_idle(&channel), "one follows");
        assert!(listeners.tell(&channel, b"rlock.acquire") && listeners.tell(&channel, b"del"));
        assert_eq!((follower.try_recv(), follower.try_recv()), (Ok(Event::Acquired), Ok(Event::Removed)));
        let holder = listeners.add(&channel);
        assert!(listeners.tell(&channel, b"rlock.turn") && !holder.has_changed().expect("it is there"));
        assert_eq!(follower.try_recv(), Ok(Event::Turn));
        drop(holder);
        drop(follower);
        assert!(listeners.remove_if_idle(&channel));
        let _again = listeners.add(&channel);
        assert!(!listeners.is_subscribed(&channel));
        assert!(are_published("AKE") && are_published("Kd") && !are_published("Ed") && !are_published("Kg"));
    }
}
