//! Which connections a hold is bound to.
//!
//! A hold given with SESSION lives as long as its lease, but its deadline comes nearer when the last connection that
//! it is bound to has closed. Connections are facts of this process: they are never saved nor replicated.
//!
//! Invariant: `(client, token)` is in `by_client` exactly if `by_token[token].clients` has the client.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use ahash::RandomState;
use hashbrown::HashMap;
use smallvec::SmallVec;

use crate::bytes::{Key, KeyRef};

struct Binding {
    key: Key,
    clients: SmallVec<[u64; 2]>,
}

pub(crate) struct Sessions {
    /// Ordered pairs, so that one connection may have a great many holds and each is still removed in O(log n).
    by_client: BTreeSet<(u64, u64)>,
    by_token: HashMap<u64, Binding, RandomState>,
}

impl Sessions {
    pub(crate) fn new(hasher: RandomState) -> Self {
        Self { by_client: BTreeSet::new(), by_token: HashMap::with_hasher(hasher) }
    }

    /// Binds the hold with `token` under `key` to one more connection.
    pub(crate) fn bind(&mut self, client: u64, token: u64, key: KeyRef<'_>) {
        if self.by_client.insert((client, token)) {
            self.by_token
                .entry(token)
                .or_insert_with(|| Binding { key: key.to_key(), clients: SmallVec::new() })
                .clients
                .push(client);
        }
    }

    /// Whether the hold with `token` is bound to a connection.
    pub(crate) fn is_bound(&self, token: u64) -> bool {
        self.by_token.contains_key(&token)
    }

    /// Whether a connection has holds bound to it.
    pub(crate) fn has_client(&self, client: u64) -> bool {
        self.by_client.range((client, 0)..=(client, u64::MAX)).next().is_some()
    }

    /// Forgets a connection. Returns the holds that it was the last one of.
    pub(crate) fn close(&mut self, client: u64) -> Vec<(Key, u64)> {
        let tokens: Vec<u64> =
            self.by_client.range((client, 0)..=(client, u64::MAX)).map(|(_, token)| *token).collect();
        let mut ended = Vec::new();
        for token in tokens {
            self.by_client.remove(&(client, token));
            if let Some(binding) = self.by_token.get_mut(&token) {
                binding.clients.retain(|bound| *bound != client);
                if binding.clients.is_empty()
                    && let Some(binding) = self.by_token.remove(&token)
                {
                    ended.push((binding.key, token));
                }
            }
        }
        ended
    }

    /// Forgets a hold.
    pub(crate) fn forget(&mut self, token: u64) {
        if self.by_token.is_empty() {
            return;
        }
        if let Some(binding) = self.by_token.remove(&token) {
            for client in binding.clients {
                self.by_client.remove(&(client, token));
            }
        }
    }

    /// Forgets a hold if it is the one bound under `key`: a copy of a value has its tokens, but not its connections.
    pub(crate) fn forget_at(&mut self, key: KeyRef<'_>, token: u64) {
        if self.by_token.get(&token).is_some_and(|binding| binding.key.borrow() == key) {
            self.forget(token);
        }
    }

    /// Forgets every hold under the keys of the databases that `concerned` names.
    pub(crate) fn forget_dbs(&mut self, concerned: impl Fn(u32) -> bool) {
        let tokens: Vec<u64> =
            self.by_token.iter().filter(|(_, binding)| concerned(binding.key.db)).map(|(token, _)| *token).collect();
        for token in tokens {
            self.forget(token);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Sessions {
        Sessions::new(RandomState::with_seeds(1, 2, 3, 4))
    }

    const KEY: KeyRef<'static> = KeyRef { name: b"k", db: 0 };

    #[test]
    fn a_session_ends_with_the_last_of_its_connections() {
        let mut sessions = sessions();
        sessions.bind(1, 100, KEY);
        sessions.bind(2, 100, KEY);
        sessions.bind(2, 100, KEY);
        assert!(sessions.close(2).is_empty());
        assert!(sessions.is_bound(100));
        assert_eq!(sessions.close(1), [(KEY.to_key(), 100)]);
        assert!(!sessions.is_bound(100) && !sessions.has_client(1));
    }

    #[test]
    fn a_hold_that_is_over_leaves_nothing_behind() {
        let mut sessions = sessions();
        sessions.bind(1, 100, KEY);
        sessions.bind(1, 101, KEY);
        sessions.forget(100);
        assert!(sessions.has_client(1));
        sessions.forget_at(KeyRef { name: b"copy", db: 0 }, 101);
        assert!(sessions.is_bound(101));
        sessions.forget_at(KEY, 101);
        assert!(sessions.by_client.is_empty() && sessions.by_token.is_empty());
    }

    #[test]
    fn a_flushed_database_forgets_its_holds_only() {
        let mut sessions = sessions();
        sessions.bind(1, 100, KEY);
        sessions.bind(1, 101, KeyRef { name: b"k", db: 1 });
        sessions.forget_dbs(|db| db == 1);
        assert!(sessions.is_bound(100) && !sessions.is_bound(101));
    }
}
