//! Which connections a hold is bound to.
//!
//! A hold given with SESSION lives as long as its lease, but its deadline comes nearer when the last connection that
//! it is bound to has closed. Connections are facts of this process: they are never saved nor replicated.
//!
//! A token alone does not name a hold: a copy of a value has its tokens too, and its own connections.
//!
//! Invariant: `(client, token)` is in `by_client` exactly if one of `by_token[token]` has the client.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use smallvec::SmallVec;

use crate::bytes::{Key, KeyRef};

struct Binding {
    key: Key,
    clients: SmallVec<[u64; 2]>,
}

pub(crate) struct Sessions {
    /// Ordered pairs, so that one connection may have a great many holds and each is still removed in O(log n).
    by_client: BTreeSet<(u64, u64)>,
    /// A tree, because a hash table of as many holds grows in steps that others would feel.
    by_token: BTreeMap<u64, SmallVec<[Binding; 1]>>,
}

impl Sessions {
    pub(crate) fn new() -> Self {
        Self { by_client: BTreeSet::new(), by_token: BTreeMap::new() }
    }

    /// Binds the hold with `token` under `key` to one more connection.
    pub(crate) fn bind(&mut self, client: u64, token: u64, key: KeyRef<'_>) {
        self.by_client.insert((client, token));
        let bindings = self.by_token.entry(token).or_default();
        match bindings.iter_mut().find(|binding| binding.key.borrow() == key) {
            Some(binding) if binding.clients.contains(&client) => {}
            Some(binding) => binding.clients.push(client),
            None => bindings.push(Binding { key: key.to_key(), clients: [client].into_iter().collect() }),
        }
    }

    /// Whether the hold with `token` under `key` is bound to a connection.
    pub(crate) fn is_bound(&self, token: u64, key: KeyRef<'_>) -> bool {
        let bindings = self.by_token.get(&token);
        bindings.is_some_and(|bindings| bindings.iter().any(|binding| binding.key.borrow() == key))
    }

    /// Whether the hold with `token` under `key` is bound to this connection.
    pub(crate) fn is_bound_to(&self, client: u64, token: u64, key: KeyRef<'_>) -> bool {
        let bindings = self.by_token.get(&token);
        bindings.is_some_and(|bindings| {
            bindings.iter().any(|binding| binding.key.borrow() == key && binding.clients.contains(&client))
        })
    }

    /// Unbinds the hold with `token` under `key` from one connection.
    pub(crate) fn unbind(&mut self, client: u64, token: u64, key: KeyRef<'_>) {
        let Some(bindings) = self.by_token.get_mut(&token) else {
            return;
        };
        bindings.retain(|binding| {
            if binding.key.borrow() == key {
                binding.clients.retain(|bound| *bound != client);
            }
            !binding.clients.is_empty()
        });
        let is_bound_elsewhere = bindings.iter().any(|binding| binding.clients.contains(&client));
        if bindings.is_empty() {
            self.by_token.remove(&token);
        }
        if !is_bound_elsewhere {
            self.by_client.remove(&(client, token));
        }
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
            let Some(bindings) = self.by_token.get_mut(&token) else {
                continue;
            };
            bindings.retain(|binding| {
                binding.clients.retain(|bound| *bound != client);
                if binding.clients.is_empty() {
                    ended.push((binding.key.clone(), token));
                }
                !binding.clients.is_empty()
            });
            if bindings.is_empty() {
                self.by_token.remove(&token);
            }
        }
        ended
    }

    /// Forgets the hold with `token` under `key`.
    pub(crate) fn forget_at(&mut self, key: KeyRef<'_>, token: u64) {
        if !self.by_token.is_empty() {
            self.forget(token, |binding| binding.key.borrow() == key);
        }
    }

    fn forget(&mut self, token: u64, concerned: impl Fn(&Binding) -> bool) {
        let Some(bindings) = self.by_token.get_mut(&token) else {
            return;
        };
        let mut clients: SmallVec<[u64; 2]> = SmallVec::new();
        bindings.retain(|binding| {
            if concerned(binding) {
                clients.extend_from_slice(&binding.clients);
            }
            !concerned(binding)
        });
        // A connection may be bound to a copy as well.
        clients.retain(|client| !bindings.iter().any(|binding| binding.clients.contains(client)));
        if bindings.is_empty() {
            self.by_token.remove(&token);
        }
        for client in clients {
            self.by_client.remove(&(client, token));
        }
    }

    /// Forgets every hold under the keys of the databases that `concerned` names.
    pub(crate) fn forget_dbs(&mut self, concerned: impl Fn(u32) -> bool) {
        let tokens: Vec<u64> = self.by_token.keys().copied().collect();
        for token in tokens {
            self.forget(token, |binding| concerned(binding.key.db));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sessions() -> Sessions {
        Sessions::new()
    }

    const KEY: KeyRef<'static> = KeyRef { name: b"k", db: 0 };
    const COPY: KeyRef<'static> = KeyRef { name: b"copy", db: 0 };

    #[test]
    fn a_session_ends_with_the_last_of_its_connections() {
        let mut sessions = sessions();
        sessions.bind(1, 100, KEY);
        sessions.bind(2, 100, KEY);
        sessions.bind(2, 100, KEY);
        assert!(sessions.close(2).is_empty());
        assert!(sessions.is_bound(100, KEY));
        assert_eq!(sessions.close(1), [(KEY.to_key(), 100)]);
        assert!(!sessions.is_bound(100, KEY) && !sessions.has_client(1));
    }

    #[test]
    fn a_hold_that_is_over_leaves_nothing_behind() {
        let mut sessions = sessions();
        sessions.bind(1, 100, KEY);
        sessions.bind(1, 101, KEY);
        sessions.forget_at(KEY, 100);
        assert!(sessions.has_client(1));
        sessions.forget_at(COPY, 101);
        assert!(sessions.is_bound(101, KEY));
        sessions.forget_at(KEY, 101);
        assert!(sessions.by_client.is_empty() && sessions.by_token.is_empty());
    }

    #[test]
    fn a_copy_has_its_own_connections() {
        let mut sessions = sessions();
        sessions.bind(1, 100, KEY);
        sessions.bind(2, 100, COPY);
        assert_eq!(sessions.close(1), [(KEY.to_key(), 100)]);
        assert!(sessions.is_bound(100, COPY));
        sessions.bind(2, 100, KEY);
        sessions.forget_at(KEY, 100);
        assert_eq!(sessions.close(2), [(COPY.to_key(), 100)]);
    }

    #[test]
    fn a_flushed_database_forgets_its_holds_only() {
        const OTHER: KeyRef<'static> = KeyRef { name: b"k", db: 1 };
        let mut sessions = sessions();
        sessions.bind(1, 100, KEY);
        sessions.bind(1, 101, OTHER);
        sessions.forget_dbs(|db| db == 1);
        assert!(sessions.is_bound(100, KEY) && !sessions.is_bound(101, OTHER));
    }
}
