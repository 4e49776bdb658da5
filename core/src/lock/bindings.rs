//! The bindings of holds to connections. They are not part of the value: a copy has none.

use smallvec::SmallVec;

use super::hold::Hold;
use super::{Body, Lock};

/// The bindings of one hold: connections, each with the token.
type Bindings = SmallVec<[(u64, u64); 1]>;

impl Lock {
    /// The connections that the hold with `token` is bound to.
    #[must_use]
    pub fn clients(&self, token: u64) -> &[u64] {
        self.hold_with_token(token).map_or(&[], |hold| hold.clients(self.generation()))
    }

    fn generation(&self) -> u32 {
        match &self.body {
            Body::Wide(wide) => wide.bindings,
            Body::Free | Body::Unused(_) | Body::Held(_) => 0,
        }
    }

    /// The bindings of the first `holds` holds: each a connection and the token.
    pub(crate) fn bindings_of_first(&self, holds: usize) -> impl Iterator<Item = (u64, u64)> {
        let generation = self.generation();
        let of_hold = move |hold: &Hold| -> Bindings {
            hold.clients(generation).iter().map(|client| (*client, hold.token())).collect()
        };
        self.holds().iter().take(holds).flat_map(of_hold)
    }

    /// All bindings.
    #[cfg(test)]
    pub(crate) fn bindings(&self) -> impl Iterator<Item = (u64, u64)> {
        self.bindings_of_first(self.holds().len())
    }

    /// Binds the hold with `token` to a connection, see [`Hold::bind`].
    pub(crate) fn bind(&mut self, token: u64, client: u64) -> (bool, Option<u64>) {
        let bindings = self.generation();
        let at = self.position_of_token(token);
        let hold = at.and_then(|at| self.hold_mut(at));
        hold.map_or((false, None), |hold| hold.bind(client, bindings))
    }

    /// Unbinds the hold with `token` from a connection.
    pub(crate) fn unbind(&mut self, token: u64, client: u64) {
        let at = self.position_of_token(token);
        if let Some(hold) = at.and_then(|at| self.hold_mut(at)) {
            hold.unbind(client);
        }
    }

    /// Unbinds all holds in one step, regardless of their number: bindings of an earlier generation
    /// do not count.
    pub(crate) fn unbind_all(&mut self) {
        match &mut self.body {
            Body::Free | Body::Unused(_) => {}
            Body::Held(hold) => hold.rebase(u32::MAX),
            Body::Wide(wide) => wide.bindings = wide.bindings.wrapping_add(1) & (u32::MAX >> 1),
        }
    }
}
