//! What the module publishes to a request that waits with `NOTIFY`, as a subscriber receives it.

use anyhow::{Context, Result, bail};

use crate::resp::Frame;

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The lock was granted, with this token.
    Granted(u64),
    /// The time was over.
    Nil,
    /// Anything else.
    Error,
}

/// A message of the module's: the id of the request, and how its wait has ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Notice {
    /// As in `REQ id`.
    pub id: u64,
    /// How its wait has ended.
    pub outcome: Outcome,
}

impl Notice {
    /// Takes a message apart.
    ///
    /// # Errors
    ///
    /// If it is no message of a channel, or none of the module's.
    pub fn from_frame(frame: Frame<'_>) -> Result<Self> {
        let text = frame.message()?;
        let read = || {
            let text = std::str::from_utf8(text).ok()?;
            let mut words = text.split(' ');
            let (what, id) = (words.next()?, words.next()?.parse().ok()?);
            let outcome = match what {
                "granted" => Outcome::Granted(words.next()?.parse().ok()?),
                "nil" => Outcome::Nil,
                "error" => Outcome::Error,
                _ => return None,
            };
            Some(Self { id, outcome })
        };
        match read() {
            Some(notice) => Ok(notice),
            None => bail!("not a message of the module's: {}", text.escape_ascii()),
        }
    }

    /// The number of the request whose id is one more.
    ///
    /// # Errors
    ///
    /// If there are only `count`.
    pub fn index(self, count: usize) -> Result<usize> {
        let index = usize::try_from(self.id)?.checked_sub(1);
        index.filter(|index| *index < count).with_context(|| format!("nobody asked with the id {}", self.id))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test may panic")]
mod tests {
    use super::*;
    use crate::resp::{Inbox, command};

    fn read(message: &[u8]) -> Result<Notice> {
        let bytes = command(&[b"message", b"channel", message]);
        let mut inbox = Inbox::new(256);
        inbox.fill_from(&mut &bytes[..])?;
        let len = inbox.next_len()?.context("not whole")?;
        Notice::from_frame(inbox.take(len))
    }

    #[test]
    fn messages_are_taken_apart() {
        assert_eq!(read(b"granted 7 99").unwrap(), Notice { id: 7, outcome: Outcome::Granted(99) });
        assert_eq!(read(b"nil 8").unwrap(), Notice { id: 8, outcome: Outcome::Nil });
        assert_eq!(read(b"error 9 UNBLOCKED why").unwrap(), Notice { id: 9, outcome: Outcome::Error });
        for message in [&b"granted 7"[..], b"granted x 9", b"hello 1", b""] {
            assert!(read(message).is_err());
        }
        assert_eq!(read(b"nil 3").unwrap().index(3).unwrap(), 2);
        assert!(read(b"nil 3").unwrap().index(2).is_err());
        assert!(read(b"nil 0").unwrap().index(2).is_err());
    }
}
