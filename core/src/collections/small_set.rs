//! An ordered set that usually has one element, and then needs no allocation.

use alloc::boxed::Box;
use alloc::collections::BTreeSet;
use core::ops::Bound;

/// The approximate bytes of an ordered set: ordered insertions leave its nodes half full.
pub(crate) fn bytes_in_set<T>(elements: usize) -> usize {
    /// The elements of a node (`CAPACITY` in the standard library).
    const NODE: usize = 11;
    let places = if (1..NODE).contains(&elements) { NODE } else { elements.saturating_mul(2) };
    places.saturating_mul(size_of::<T>())
}

/// An ordered set of `T`.
#[derive(Clone, Debug, Default)]
pub(crate) enum SmallSet<T> {
    #[default]
    Empty,
    One(T),
    /// Boxed, since every small set would otherwise have the size of three words.
    #[allow(clippy::box_collection, reason = "a pointer is smaller than the head of a tree")]
    Many(Box<BTreeSet<T>>),
}

impl<T: Ord + Copy> SmallSet<T> {
    pub(crate) fn len(&self) -> usize {
        match self {
            Self::Empty => 0,
            Self::One(_) => 1,
            Self::Many(set) => set.len(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn insert(&mut self, element: T) {
        match self {
            Self::Empty => *self = Self::One(element),
            Self::One(one) if *one == element => {}
            Self::One(one) => *self = Self::Many(Box::new([*one, element].into_iter().collect())),
            Self::Many(set) => {
                set.insert(element);
            }
        }
    }

    /// Removes an element. A set that had several keeps its allocation until it is empty.
    pub(crate) fn remove(&mut self, element: T) -> bool {
        match self {
            Self::Empty => false,
            Self::One(one) => {
                let is_it = *one == element;
                if is_it {
                    *self = Self::Empty;
                }
                is_it
            }
            Self::Many(set) => {
                let was_there = set.remove(&element);
                if set.is_empty() {
                    *self = Self::Empty;
                }
                was_there
            }
        }
    }

    pub(crate) fn first(&self) -> Option<T> {
        match self {
            Self::Empty => None,
            Self::One(one) => Some(*one),
            Self::Many(set) => set.first().copied(),
        }
    }

    pub(crate) fn last(&self) -> Option<T> {
        match self {
            Self::Empty => None,
            Self::One(one) => Some(*one),
            Self::Many(set) => set.last().copied(),
        }
    }

    /// The first element from a bound on.
    pub(crate) fn first_from(&self, from: Bound<T>) -> Option<T> {
        let is_behind = |element: T| match from {
            Bound::Unbounded => true,
            Bound::Included(bound) => element >= bound,
            Bound::Excluded(bound) => element > bound,
        };
        match self {
            Self::Empty => None,
            Self::One(one) => Some(*one).filter(|one| is_behind(*one)),
            Self::Many(set) => set.range((from, Bound::Unbounded)).next().copied(),
        }
    }

    /// The elements in order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = T> {
        let (one, many) = match self {
            Self::Empty => (None, None),
            Self::One(one) => (Some(*one), None),
            Self::Many(set) => (None, Some(set.iter().copied())),
        };
        one.into_iter().chain(many.into_iter().flatten())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    proptest! {
        #[test]
        fn it_is_an_ordered_set(steps in prop::collection::vec((any::<bool>(), 0..6u8), 0..60)) {
            let mut set = SmallSet::default();
            let mut oracle = BTreeSet::new();
            for (inserts, element) in steps {
                if inserts {
                    set.insert(element);
                    oracle.insert(element);
                } else {
                    prop_assert_eq!(set.remove(element), oracle.remove(&element));
                }
                prop_assert_eq!(set.iter().collect::<Vec<_>>(), oracle.iter().copied().collect::<Vec<_>>());
                prop_assert_eq!((set.len(), set.is_empty()), (oracle.len(), oracle.is_empty()));
                prop_assert_eq!(set.first(), oracle.first().copied());
                prop_assert_eq!(set.last(), oracle.last().copied());
                for bound in 0..6 {
                    for from in [Bound::Included(bound), Bound::Excluded(bound), Bound::Unbounded] {
                        let expected = oracle.range((from, Bound::Unbounded)).next().copied();
                        prop_assert_eq!(set.first_from(from), expected);
                    }
                }
            }
        }
    }
}
