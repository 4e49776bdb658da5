//! How a request that waits is answered: by a message on a channel of its connection, which names the id of the request.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::wire::Subject;

/// What became of a wait.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Message {
    Granted(Vec<u64>),
    /// Its time is over.
    TimedOut,
    Refused {
        code: String,
        text: String,
    },
}

impl Message {
    /// Reads `granted ID TOKEN…`, `nil ID` or `error ID CODE TEXT`.
    fn parse(payload: &[u8]) -> Option<(u64, Self)> {
        let (word, rest) = std::str::from_utf8(payload).ok()?.split_once(' ')?;
        let (id, rest) = rest.split_once(' ').unwrap_or((rest, ""));
        let message = match word {
            "granted" => Self::Granted(rest.split(' ').map(str::parse).collect::<Result<_, _>>().ok()?),
            "nil" => Self::TimedOut,
            "error" => {
                let (code, text) = rest.split_once(' ').unwrap_or((rest, ""));
                Self::Refused { code: code.to_owned(), text: text.to_owned() }
            }
            _ => return None,
        };
        Some((id.parse().ok()?, message))
    }
}

/// The waits of a connection.
#[derive(Default)]
pub(crate) struct Mailbox(Mutex<HashMap<u64, Waiting>>);

/// A request that waits.
struct Waiting {
    /// What it waits for.
    subject: Subject,
    sender: oneshot::Sender<Message>,
}

impl Mailbox {
    fn letters(&self) -> MutexGuard<'_, HashMap<u64, Waiting>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Expects a message for a request that is about to be sent. `None` if one is expected for the same id already.
    pub(crate) fn expect(self: &Arc<Self>, request_id: u64, subject: Subject) -> Option<Letter> {
        let (sender, message) = oneshot::channel();
        match self.letters().entry(request_id) {
            std::collections::hash_map::Entry::Occupied(_) => None,
            std::collections::hash_map::Entry::Vacant(place) => {
                place.insert(Waiting { subject, sender });
                Some(Letter { mailbox: self.clone(), request_id, message })
            }
        }
    }

    /// A message has come. If nobody expects it any more, whoever has asked takes its request back.
    pub(crate) fn deliver(&self, payload: &[u8]) {
        let Some((request_id, message)) = Message::parse(payload) else {
            tracing::warn!(payload = %String::from_utf8_lossy(payload), "a message that is not understood");
            return;
        };
        if let Some(waiting) = self.letters().remove(&request_id) {
            drop(waiting.sender.send(message));
        }
    }

    /// One of the things that are waited for, if somebody waits.
    pub(crate) fn any_subject(&self) -> Option<Subject> {
        self.letters().values().next().map(|waiting| waiting.subject.clone())
    }
}

/// A message that is expected. Dropping it expects it no more.
pub(crate) struct Letter {
    mailbox: Arc<Mailbox>,
    request_id: u64,
    message: oneshot::Receiver<Message>,
}

impl Letter {
    /// Waits for the message. It does not come over a connection that is closed.
    pub(crate) async fn read(&mut self) -> Option<Message> {
        (&mut self.message).await.ok()
    }
}

impl Drop for Letter {
    fn drop(&mut self) {
        self.mailbox.letters().remove(&self.request_id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Family;

    #[test]
    fn messages_are_those_of_the_module() {
        let parse = |text: &str| Message::parse(text.as_bytes());
        assert_eq!(parse("granted 7 41 42"), Some((7, Message::Granted(vec![41, 42]))));
        assert_eq!(parse("nil 7"), Some((7, Message::TimedOut)));
        let refused = Message::Refused { code: "WRONGTYPE".to_owned(), text: "of another kind".to_owned() };
        assert_eq!(parse("error 7 WRONGTYPE of another kind"), Some((7, refused)));
        for other in ["", "nil", "granted 7", "granted 7 x", "granted x 7", "news 7"] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[tokio::test]
    async fn a_message_reaches_its_reader_and_no_other() {
        let mailbox = Arc::<Mailbox>::default();
        let expect = |id| {
            let (keys, owner) = (Arc::from([b"k".to_vec()]), Arc::from(b"me".as_slice()));
            mailbox.expect(id, Subject { family: Family::Mutex, keys, owner, permits: 1 })
        };
        let mut seven = expect(7).expect("nobody else");
        let mut eight = expect(8).expect("nobody else");
        assert!(expect(7).is_none());
        mailbox.deliver(b"nil 9");
        mailbox.deliver(b"granted 7 41");
        assert_eq!(seven.read().await, Some(Message::Granted(vec![41])));
        assert_eq!(eight.message.try_recv(), Err(oneshot::error::TryRecvError::Empty));
        assert!(mailbox.any_subject().is_some());
        drop((seven, eight));
        assert!(mailbox.any_subject().is_none());
    }
}
