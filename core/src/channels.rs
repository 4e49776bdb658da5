//! The channels on which requests that wait are answered: a number for each name.
//!
//! There may be millions of waiters, so each remembers its channel by a number, which is short. A number that is in use means one channel and no
//! other. It comes back when its channel is not in use any more, but only after nearly all the others, of which there are four thousand
//! million: a server that is sent nothing but requests on new channels gives them out in an hour at the very least. What may
//! still be noted about the channel that had it before, that its slot has gone (`engine/notified.rs`), is dealt with after seconds.
//!
//! Clients may use a channel for one request and never again, so there may be as many channels as waiters. Both tables are trees: no
//! insertion copies or rehashes them, and what is let go gives its memory back.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use core::num::NonZeroU32;

use crate::request::Channel;

/// How far from a number that is in use the search for another one goes on. Those in use were given one after the other and lie
/// together, and they are fewer than this, as a rule.
const STRIDE: u32 = 1 << 24;

/// So many strides lead once round all numbers.
const TRIES: u32 = 1 << 8;

/// The channels that are in use, each with a note of the caller's about it.
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
    /// The number of a channel that is in use.
    #[must_use]
    pub fn find(&self, name: &[u8]) -> Option<Channel> {
        self.by_name.get(name).copied()
    }

    /// Gives a number to a channel that is not in use. `None` if none was found: that takes hundreds of channels in use whose
    /// numbers lie just so.
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

    /// Counts one use more.
    pub fn hold(&mut self, channel: Channel) {
        if let Some(entry) = self.by_number.get_mut(&channel) {
            entry.uses = entry.uses.saturating_add(1);
        }
    }

    /// Counts one use less. Returns the name when that was the last one: the channel is not known any more.
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

    /// The name of a channel, and what is noted about it.
    #[must_use]
    pub fn get(&self, channel: Channel) -> Option<(&[u8], &T)> {
        self.by_number.get(&channel).map(|entry| (&*entry.name, &entry.note))
    }

    /// What is noted about a channel.
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

    /// A channel that is in use and has this number.
    fn add_at(channels: &mut Channels<()>, number: u32, name: &str) {
        channels.last_number = number - 1;
        let channel = channels.add(name.as_bytes()).expect("a number");
        assert_eq!(channel.0.get(), number);
        channels.hold(channel);
    }

    #[test]
    fn a_channel_has_its_number_until_it_was_let_go_as_often_as_held() {
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
        assert!(again != answers && again != others, "a number does not come back soon");
        assert_eq!(channels.get(again), Some((&b"answers"[..], &0)));
    }

    #[test]
    #[cfg_attr(miri, ignore = "hundreds of channels")]
    fn after_the_last_number_the_first_ones_come_again_but_not_those_in_use() {
        let mut channels = Channels::default();
        add_at(&mut channels, u32::MAX, "the last one");
        add_at(&mut channels, 1, "one that waits for ever");
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

    /// However many numbers in a row are in use.
    #[test]
    #[cfg_attr(miri, ignore = "hundreds of channels")]
    fn the_search_for_a_number_ends_soon() {
        let mut channels = Channels::default();
        for stride in 0..TRIES {
            assert_eq!(number(channels.next_free()), 1 + stride * STRIDE);
            add_at(&mut channels, 1 + stride * STRIDE, &format!("channel {stride}"));
            channels.last_number = 0;
        }
        assert_eq!(channels.add(b"one more"), None);
        assert_eq!(channels.find(b"one more"), None, "nothing is left of what was refused");
        channels.last_number = 1;
        assert_eq!(number(channels.add(b"one more")), 2);
    }
}
