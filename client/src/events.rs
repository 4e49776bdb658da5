//! What the server tells of keys whose locks are held here, if its `notify-keyspace-events` has `K` and `d`: so the loss of a hold is noticed at once,
//! and not by the next renewal.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

/// What the channels of events begin with, and those of nothing else that this crate subscribes to.
const PREFIX: &[u8] = b"__keyspace@";

/// Events that do not end the hold of anybody else. Any other may.
const HARMLESS: [&[u8]; 3] = [b"rlock.acquire", b"rlock.release", b"rlock.turn"];

/// The channel of a key's events.
pub(crate) fn channel_of(database: i64, key: &[u8]) -> Vec<u8> {
    [PREFIX, format!("{database}__:").as_bytes(), key].concat()
}

/// Whether events of locks are published, by the setting `notify-keyspace-events`.
pub(crate) fn are_published(setting: &str) -> bool {
    setting.contains('K') && setting.contains(['d', 'A'])
}

/// Who listens to which key on a connection.
#[derive(Default)]
pub(crate) struct Listeners(Mutex<HashMap<Vec<u8>, watch::Sender<()>>>);

impl Listeners {
    fn by_channel(&self) -> MutexGuard<'_, HashMap<Vec<u8>, watch::Sender<()>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens to a channel. The second value is whether nobody did before.
    pub(crate) fn add(&self, channel: &[u8]) -> (watch::Receiver<()>, bool) {
        let mut listeners = self.by_channel();
        let is_first = !listeners.contains_key(channel);
        let sender = listeners.entry(channel.to_vec()).or_insert_with(|| watch::Sender::new(()));
        (sender.subscribe(), is_first)
    }

    /// Forgets a channel if nobody listens to it any more. Returns whether that is so.
    pub(crate) fn remove_if_idle(&self, channel: &[u8]) -> bool {
        let mut listeners = self.by_channel();
        let is_idle = listeners.get(channel).is_some_and(|sender| sender.receiver_count() == 0);
        if is_idle {
            listeners.remove(channel);
        }
        is_idle
    }

    /// A message has come. False if it is not about a key.
    pub(crate) fn tell(&self, channel: &[u8], event: &[u8]) -> bool {
        let is_event = channel.starts_with(PREFIX);
        if is_event
            && !HARMLESS.contains(&event)
            && let Some(sender) = self.by_channel().get(channel)
        {
            sender.send_replace(());
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
        let (mut first, is_first) = listeners.add(&channel);
        let (second, is_first_again) = listeners.add(&channel);
        assert!(is_first && !is_first_again);
        assert!(listeners.tell(&channel, b"rlock.acquire") && !first.has_changed().expect("it is there"));
        assert!(listeners.tell(&channel, b"rlock.force") && first.has_changed().expect("it is there"));
        first.mark_unchanged();
        assert!(listeners.tell(&channel_of(3, b"other"), b"del") && !first.has_changed().expect("it is there"));
        assert!(!listeners.tell(b"rlock:channel", b"nil 7"), "that is a letter");
        drop(first);
        assert!(!listeners.remove_if_idle(&channel), "one still listens");
        drop(second);
        assert!(listeners.remove_if_idle(&channel));
        assert!(are_published("AKE") && are_published("Kd") && !are_published("Ed") && !are_published("Kg"));
    }
}
