//! The channels for answers to notified waiters: a number for each name.
//!
//! There may be millions of waiters, so each stores the short number of its channel. A number in
//! use identifies one channel. A number that is free again is reused only after nearly all of the
//! 2^32 others. That takes at least an hour, even if every request names a new channel. If the
//! channel that had the number before lost its listeners, the engine has long ended the waits on
//! it: that takes seconds (`registry/notified.rs`).
//!
//! Clients may use a channel for only one request, so there may be as many channels as waiters.
//! Both tables are trees, so no insertion copies or rehashes them, and removals free memory.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::num::NonZeroU32;

use crate::request::Channel;

/// The step of the search for a free number. Numbers in use were mostly assigned one after another.
/// Usually there are fewer than this, so one stride skips all of them.
const STRIDE: u32 = 1 << 24;

/// The number of strides around all numbers.
const TRIES: u32 = 1 << 8;

/// The channels in use, each with a caller's note.
///
/// Invariant: both tables have the same channels.
#[derive(Default)]
pub struct Channels<T> {
    by_number: BTreeMap<Channel, Entry<T>>,
    by_name: BTreeMap<Box<[u8]>, Channel>,
    last_number: u32,
}

struct Entry<T> {
    name: Box<[u8]>,
    uses: usize,
    note: T,
}

impl<T: Default> Channels<T> {
    /// The number of a channel in use.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<Channel> {
        self.by_name.get(name).copied()
    }

    /// Assigns a number to a channel that is not in use. `None` if all 256 numbers that the search
    /// tries are in use, each a stride above the one before.
    pub fn add(&mut self, name: &[u8]) -> Option<Channel> {
        let channel = self.next_free()?;
        self.last_number = channel.0.get();
        self.by_number.insert(channel, Entry { name: name.into(), uses: 0, note: T::default() });
        self.by_name.insert(name.into(), channel);
        Some(channel)
    }

    fn next_free(&self) -> Option<Channel> {
        let first = self.last_number.wrapping_add(1);
        let numbers = (0..TRIES).map(|stride| first.wrapping_add(stride.wrapping_mul(STRIDE)));
        numbers.filter_map(NonZeroU32::new).map(Channel).find(|channel| !self.by_number.contains_key(channel))
    }

    /// Adds a use.
    pub fn hold(&mut self, channel: Channel) {
        if let Some(entry) = self.by_number.get_mut(&channel) {
            entry.uses = entry.uses.saturating_add(1);
        }
    }

    /// Removes a use. After the last one, forgets the channel and returns its name.
    pub fn let_go(&mut self, channel: Channel) -> Option<Box<[u8]>> {
        let entry = self.by_number.get_mut(&channel)?;
        entry.uses = entry.uses.saturating_sub(1);
        if entry.uses > 0 {
            return None;
        }
        let name = self.by_number.remove(&channel)?.name;
        self.by_name.remove(&name);
        Some(name)
    }

    /// The name of a channel, and its note.
    #[must_use]
    pub fn get(&self, channel: Channel) -> Option<(&[u8], &T)> {
        self.by_number.get(&channel).map(|entry| (&*entry.name, &entry.note))
    }

    /// The note of a channel.
    pub fn note_mut(&mut self, channel: Channel) -> Option<&mut T> {
        self.by_number.get_mut(&channel).map(|entry| &mut entry.note)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn number(channel: Option<Channel>) -> u32 {
        channel.expect("a number").0.get()
    }

    /// Adds a channel with this number, in use.
    fn add_at(channels: &mut Channels<()>, number: u32, name: &str) {
        channels.last_number = number - 1;
        let channel = channels.add(name.as_bytes()).expect("a number");
        assert_eq!(channel.0.get(), number);
        channels.hold(channel);
    }

    #[test]
    fn channel_keeps_its_number_until_its_last_use_ends() {
        let mut channels = Channels::<u8>::default();
        let (answers, others) = (channels.add(b"answers").unwrap(), channels.add(b"others").unwrap());
        assert_ne!(answers, others);
        channels.hold(answers);
        channels.hold(answers);
        *channels.note_mut(answers).unwrap() = 7;
        assert_eq!((channels.find(b"answers"), channels.get(answers)), (Some(answers), Some((&b"answers"[..], &7))));
        assert_eq!(channels.let_go(answers), None);
        assert_eq!(channels.let_go(answers).as_deref(), Some(&b"answers"[..]));
        assert_eq!((channels.find(b"answers"), channels.get(answers)), (None, None));
        assert_eq!(channels.let_go(answers), None);
        assert_eq!(channels.find(b"others"), Some(others));
        let again = channels.add(b"answers").unwrap();
        assert!(again != answers && again != others, "a number is not reused soon");
        assert_eq!(channels.get(again), Some((&b"answers"[..], &0)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "hundreds of channels")]
    fn numbers_wrap_around_and_skip_those_in_use() {
        let mut channels = Channels::default();
        add_at(&mut channels, u32::MAX, "the last one");
        add_at(&mut channels, 1, "one in long use");
        let mut given = vec![u32::MAX, 1];
        for last_number in [u32::MAX, 0, 0, 0] {
            channels.last_number = last_number;
            for _ in 0..TRIES {
                let name = given.len().to_string();
                let number = number(channels.add(name.as_bytes()));
                assert!(!given.contains(&number), "{number} is in use");
                given.push(number);
            }
        }
        channels.let_go(Channel(NonZeroU32::MIN));
        channels.last_number = 0;
        assert_eq!(number(channels.add(b"one more")), 1);
    }

    /// Regardless of how many consecutive numbers are in use.
    #[test]
    #[cfg_attr(miri, ignore = "hundreds of channels")]
    fn search_for_a_number_is_bounded() {
        let mut channels = Channels::default();
        for stride in 0..TRIES {
            assert_eq!(number(channels.next_free()), 1 + stride * STRIDE);
            add_at(&mut channels, 1 + stride * STRIDE, &format!("channel {stride}"));
            channels.last_number = 0;
        }
        assert_eq!(channels.add(b"one more"), None);
        assert_eq!(channels.find(b"one more"), None, "a refused channel leaves no entry");
        channels.last_number = 1;
        assert_eq!(number(channels.add(b"one more")), 2);
    }
}
