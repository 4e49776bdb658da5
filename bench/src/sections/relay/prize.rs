//! What goes round, and the commands by which a member asks for it and gives it back.

use rlock_bench::resp;

/// What is passed on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Prize {
    /// A lock, by RLOCK.ACQUIRE … BLOCK 0 and RLOCK.RELEASE.
    Lock,
    /// The same with BLOCK 0 NOTIFY: members share connections that [`super::listen`].
    NotifiedLock,
    /// The only element of a list, by BLPOP and RPUSH.
    ListToken,
    /// Nothing: the messages of a [`Prize::NotifiedLock`] without a lock behind them. Who asks sends PING, who gives back tells the next by
    /// PUBLISH, and who is next is known to the client. No server can pass anything on for less over the same connections.
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

    /// Whether those who wait share connections, and are told by a push.
    pub(super) fn is_pushed(self) -> bool {
        matches!(self, Self::NotifiedLock | Self::Message)
    }

    /// What a member asks; `id` is its request's.
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

    /// What a member gives back by. Empty for a message, which names who is next.
    pub(super) fn give_back(self, key: &[u8], owner: &str) -> Vec<u8> {
        match self {
            Self::Lock | Self::NotifiedLock => resp::command(&[b"RLOCK.RELEASE", key, owner.as_bytes()]),
            Self::ListToken => resp::command(&[b"RPUSH", key, TOKEN]),
            Self::Message => Vec::new(),
        }
    }

    /// The field of INFO that counts those who wait. The server knows nothing of those who wait for a message.
    pub(super) fn waiting_field(self) -> Option<&'static str> {
        match self {
            Self::Lock | Self::ListToken => Some("blocked_clients"),
            Self::NotifiedLock => Some("rlock_waiting"),
            Self::Message => None,
        }
    }

    /// What giving back is answered: no holds left, one element in the list, one listener.
    pub(super) fn given_back_reply(self) -> &'static [u8] {
        match self {
            Self::Lock | Self::NotifiedLock => b":0\r\n",
            Self::ListToken | Self::Message => b":1\r\n",
        }
    }
}
