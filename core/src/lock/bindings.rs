//! The bindings of holds to connections. They are not part of the value: a copy has none.

use super::Lock;
use super::hold::Hold;

impl Lock {
    /// The connections that the hold with `token` is bound to.
    #[must_use]
    pub fn clients(&self, token: u64) -> &[u64] {
        self.hold_with_token(token).map_or(&[], Hold::clients)
    }

    /// All bindings: each a connection and the token.
    pub(crate) fn bindings(&self) -> impl Iterator<Item = (u64, u64)> {
        self.holds().iter().flat_map(|hold| hold.clients().iter().map(|client| (*client, hold.token())))
    }

    /// Binds the hold with `token` to a connection, see [`Hold::bind`].
    pub(crate) fn bind(&mut self, token: u64, client: u64) -> (bool, Option<u64>) {
        let at = self.position_of_token(token);
        let hold = at.and_then(|at| self.holds_mut().get_mut(at));
        hold.map_or((false, None), |hold| hold.bind(client))
    }

    /// Unbinds the hold with `token` from a connection.
    pub(crate) fn unbind(&mut self, token: u64, client: u64) {
        let at = self.position_of_token(token);
        if let Some(hold) = at.and_then(|at| self.holds_mut().get_mut(at)) {
            hold.unbind(client);
        }
    }

    /// Unbinds all holds.
    pub(crate) fn unbind_all(&mut self) {
        self.holds_mut().iter_mut().for_each(Hold::unbind_all);
    }
}
