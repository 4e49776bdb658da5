//! The messages that the module publishes for a request that waits with `NOTIFY`, as a subscriber
//! receives them.

use anyhow::{Context, Result, bail};

use crate::resp::Frame;

/// The end of a wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The lock was granted, with this token.
    Granted(u64),
    /// The wait timed out.
    Nil,
    /// Anything else.
    Error,
}

/// A message of the module: the id of the request, and the end of its wait.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Notice {
    /// As in `REQ id`.
    pub id: u64,
    /// The end of its wait.
    pub outcome: Outcome,
}

impl Notice {
    /// Parses a message.
    ///
    /// # Errors
    ///
    /// If it is not a message of a channel, or not one of the module's.
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
            None => bail!("not a message of the module: {}", text.escape_ascii()),
        }
    }

    /// The index of the request. Ids begin at 1.
    ///
    /// # Errors
    ///
    /// If it is not below `count`.
    pub fn index(self, count: usize) -> Result<usize> {
        let index = usize::try_from(self.id)?.checked_sub(1);
        index.filter(|index| *index < count).with_context(|| format!("no request has the id {}", self.id))
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
        let len = inbox.next_len()?.context("incomplete reply")?;
        Notice::from_frame(inbox.take(len))
    }

    #[test]
    fn messages_are_taken_apart() {
        assert_eq!(read(b"granted 7 99 for 30000").unwrap(), Notice { id: 7, outcome: Outcome::Granted(99) });
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
