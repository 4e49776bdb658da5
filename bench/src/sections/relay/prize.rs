//! The prize that members hand over, and the commands to request and release it.

use rlock_bench::resp;

/// The kind of prize.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prize {
    /// A lock, by RLOCK.ACQUIRE … BLOCK 0 and RLOCK.RELEASE.
    Lock,
    /// The same with BLOCK 0 NOTIFY: members share connections that [`super::listen`].
    NotifiedLock,
    /// The only element of a list, by BLPOP and RPUSH.
    ListToken,
    /// The messages of a [`Prize::NotifiedLock`] without a lock. A request is a PING, a release is
    /// a PUBLISH to the next member, and the client keeps the queue. No server can hand over
    /// anything with less work over the same connections.
    Message,
}

/// The element of the list.
pub(super) const TOKEN: &[u8] = b"token";

impl Prize {
    pub(super) fn key(self, chain: usize) -> Vec<u8> {
        let kind = match self {
            Self::Lock | Self::NotifiedLock => "lock",
            Self::ListToken => "list",
            Self::Message => "message",
        };
        format!("relay:{kind}:{chain:04}").into_bytes()
    }

    /// Whether waiters share connections, and learn of a grant by a push.
    pub(super) fn is_pushed(self) -> bool {
        matches!(self, Self::NotifiedLock | Self::Message)
    }

    /// The request of a member, with the request id `id`.
    pub(super) fn ask(self, key: &[u8], owner: &str, lease_ms: u64, id: u64, channel: &str) -> Vec<u8> {
        let (owner, lease_ms, id) = (owner.as_bytes(), lease_ms.to_string(), id.to_string());
        let (lease_ms, id) = (lease_ms.as_bytes(), id.as_bytes());
        let acquire: [&[u8]; 7] = [b"RLOCK.ACQUIRE", key, owner, b"PX", lease_ms, b"BLOCK", b"0"];
        match self {
            Self::Lock => resp::command(&acquire),
            Self::NotifiedLock => {
                let notify: [&[u8]; 4] = [b"NOTIFY", channel.as_bytes(), b"REQ", id];
                resp::command(&[&acquire[..], &notify[..]].concat())
            }
            Self::ListToken => resp::command(&[b"BLPOP", key, b"0"]),
            Self::Message => resp::command(&[b"PING"]),
        }
    }

    /// The release of a member. Empty for a message, whose text depends on the next member.
    pub(super) fn give_back(self, key: &[u8], owner: &str) -> Vec<u8> {
        match self {
            Self::Lock | Self::NotifiedLock => resp::command(&[b"RLOCK.RELEASE", key, owner.as_bytes()]),
            Self::ListToken => resp::command(&[b"RPUSH", key, TOKEN]),
            Self::Message => Vec::new(),
        }
    }

    /// The field of INFO that counts the waiters. `None` for a message: the server does not know
    /// its waiters.
    pub(super) fn waiting_field(self) -> Option<&'static str> {
        match self {
            Self::Lock | Self::ListToken => Some("blocked_clients"),
            Self::NotifiedLock => Some("rlock_waiting"),
            Self::Message => None,
        }
    }

    /// The reply to a release: no holds left, one element in the list, or one subscriber.
    pub(super) fn given_back_reply(self) -> &'static [u8] {
        match self {
            Self::Lock | Self::NotifiedLock => b":0\r\n",
            Self::ListToken | Self::Message => b":1\r\n",
        }
    }
}
