//! What the server has told of a name, to be acted upon when its key is open: by the next command on it or by the timer.

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::positions::Position;
use crate::event::Terms;
use crate::kind::Mode;

/// What there is to act upon under a name.
#[derive(Default)]
pub(super) struct Dirty {
    /// A value came here by RESTORE, RENAME and the like: its holds are bound to no connection.
    pub(super) arrived: bool,
    /// Another value may lie under the name, or none.
    pub(super) replaced: bool,
    /// How far the look at a new value and its waiters has come.
    pub(super) review: Option<Review>,
    /// Holds, by token, that were used without a connection before the look at a value that arrived is at its end: their sessions go on.
    pub(super) spared: BTreeSet<u64>,
    /// Grants whose waiter was gone before it could hear of them.
    pub(super) undelivered: Vec<Undelivered>,
    /// Holds, by token, that their owner has used since such a waiter was gone: all that was granted stays.
    pub(super) heard: BTreeSet<u64>,
    /// Holds, by token, of which somebody with a share has heard: the last grant stays.
    pub(super) known: BTreeSet<u64>,
    /// Holds, by token, and connections of theirs that closed.
    pub(super) unbound: Vec<(u64, u64)>,
    /// Owners on a fair lock whose connected waiter is gone; and when it had come, if it was answered nil, and so gives up its place. What happened last
    /// counts.
    pub(super) gone: BTreeMap<Box<[u8]>, Option<u64>>,
    /// Owners that were granted, whose other requests for the same are to be granted as well.
    pub(super) granted: Vec<Siblings>,
}

/// Requests of an owner that are to be granted since it holds.
pub(super) struct Siblings {
    pub(super) owner: Box<[u8]>,
    pub(super) mode: Mode,
    /// Up to here they were looked at. One for many keys may stay, so it is not looked for from the head each time.
    pub(super) behind: Option<Position>,
}

impl Dirty {
    /// Whether nothing is left.
    pub(super) fn is_clean(&self) -> bool {
        self.has_requests_only() && self.granted.is_empty()
    }

    /// Whether nothing is left but requests to be granted.
    pub(super) fn has_requests_only(&self) -> bool {
        !self.arrived
            && !self.replaced
            && self.review.is_none()
            && self.undelivered.is_empty()
            && self.unbound.is_empty()
            && self.gone.is_empty()
    }

    /// Takes out what is about the value, and goes with it to another name.
    pub(super) fn take_of_value(&mut self) -> Self {
        Self {
            undelivered: core::mem::take(&mut self.undelivered),
            heard: core::mem::take(&mut self.heard),
            known: core::mem::take(&mut self.known),
            unbound: core::mem::take(&mut self.unbound),
            gone: core::mem::take(&mut self.gone),
            ..Self::default()
        }
    }

    /// Adds what has come later.
    pub(super) fn merge(&mut self, mut later: Self) {
        self.arrived |= later.arrived;
        self.replaced |= later.replaced;
        self.review = later.review.or(self.review);
        self.spared.append(&mut later.spared);
        self.undelivered.append(&mut later.undelivered);
        self.heard.append(&mut later.heard);
        self.known.append(&mut later.known);
        self.unbound.append(&mut later.unbound);
        self.gone.append(&mut later.gone);
        self.granted.append(&mut later.granted);
    }
}

/// The look at a value that came under a name, and at those who wait there. It is taken in parts, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Review {
    pub(super) stage: Stage,
    /// The value came by other means than a grant.
    pub(super) arrived: bool,
}

/// A part of a [`Review`]; the waiters up to the position were looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Waiters that what lies here now cannot serve are told so.
    Misfits(Option<Position>),
    /// Sessions of holds count as closed, of those below this index in the list of holds.
    Sessions(usize),
    /// Owners that wait for what they turn out to hold need not wait.
    Holders(Option<Position>),
    /// Connected waiters of a fair lock take their places in its queue, in the old order.
    Places(Option<Position>),
    /// The lives of places that came off from their connections are written down.
    Lives,
}

/// A grant to a waiter of which it is not known that it was heard.
pub(super) struct Undelivered {
    pub(super) token: u64,
    /// 0: it has a share in a hold that its owner was granted otherwise.
    pub(super) count: u32,
    /// The waiter's arrival number.
    pub(super) arrival: u64,
    /// Of two grants the later one has the higher number.
    pub(super) number: u64,
    pub(super) client: Option<u64>,
    /// It is told on a channel, not over the connection that asked.
    pub(super) is_published: bool,
    /// The grant has bound the hold to the waiter's connection, which it was not before, and nobody who has heard of a grant uses that.
    pub(super) has_bound: bool,
    /// Somebody with a share in the hold had heard of it when this grant was lost.
    pub(super) is_known: bool,
    pub(super) says: Says,
    /// The terms of the hold before, if there was one: as if what was taken back since had not been.
    pub(super) before: Option<Box<Terms>>,
}

/// What a grant says of its hold that is said by no later one which somebody has heard of: it goes with the grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Says {
    /// `REQ`.
    pub(super) request: bool,
    /// `SESSION`.
    pub(super) session: bool,
    pub(super) lease: bool,
}

impl Undelivered {
    /// Whether it has a share in a hold that its owner was granted otherwise.
    pub(super) fn is_share(&self) -> bool {
        self.count == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec;

    fn undelivered(count: u32) -> Undelivered {
        Undelivered {
            token: 1,
            count,
            arrival: 1,
            number: 1,
            client: None,
            is_published: false,
            has_bound: false,
            is_known: false,
            says: Says { request: false, session: false, lease: true },
            before: None,
        }
    }

    /// All that there can be of a value, and all that there can be of a name.
    fn full() -> Dirty {
        Dirty {
            arrived: true,
            replaced: true,
            review: Some(Review { stage: Stage::Lives, arrived: true }),
            spared: [3].into(),
            undelivered: vec![undelivered(1)],
            heard: [1].into(),
            known: [2].into(),
            unbound: vec![(1, 7)],
            gone: [(b"a".as_slice().into(), None)].into(),
            granted: vec![Siblings { owner: b"a".as_slice().into(), mode: Mode::Exclusive, behind: None }],
        }
    }

    /// How many there are of each: of a value first, and then of a name.
    fn counts(dirty: &Dirty) -> ([usize; 5], [usize; 5]) {
        let Dirty { arrived, replaced, review, spared, undelivered, heard, known, unbound, gone, granted } = dirty;
        let [arrived, replaced, review] = [*arrived, *replaced, review.is_some()].map(usize::from);
        (
            [undelivered.len(), heard.len(), known.len(), unbound.len(), gone.len()],
            [arrived, replaced, review, spared.len(), granted.len()],
        )
    }

    #[test]
    fn what_is_about_a_value_goes_with_it_and_the_rest_stays() {
        let mut dirty = full();
        let taken = dirty.take_of_value();
        assert_eq!((counts(&taken), counts(&dirty)), (([1; 5], [0; 5]), ([0; 5], [1; 5])));
    }

    #[test]
    fn what_has_come_later_is_added() {
        let mut dirty = Dirty::default();
        dirty.merge(full());
        assert_eq!(counts(&dirty), ([1; 5], [1; 5]));
        let mut later = full();
        (later.heard, later.known, later.spared) = ([3].into(), [4].into(), [5].into());
        later.gone = [(b"b".as_slice().into(), None)].into();
        dirty.merge(later);
        assert_eq!(counts(&dirty), ([2; 5], [1, 1, 1, 2, 2]));
        dirty.merge(Dirty::default());
        assert_eq!(counts(&dirty), ([2; 5], [1, 1, 1, 2, 2]));
        dirty.merge(Dirty { gone: [(b"a".as_slice().into(), Some(1))].into(), ..Dirty::default() });
        assert_eq!(dirty.gone.into_values().collect::<Vec<_>>(), [Some(1), None], "what happened last counts");
    }

    #[test]
    fn a_share_has_no_count_of_its_own() {
        assert_eq!([0, 1].map(|count| undelivered(count).is_share()), [true, false]);
    }
}
