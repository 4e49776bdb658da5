//! The kinds of locks, as types: what a [`Lock`](crate::Lock) and its [`Guard`](crate::Guard) are of.

use crate::wire::Family;

mod sealed {
    pub trait Sealed {
        const FAMILY: crate::wire::Family;
    }
}

/// What a lock is: [`Mutex`], [`Fair`], [`Read`], [`Write`] or [`Permits`].
pub trait Kind: sealed::Sealed + Send + Sync + 'static {}

/// A kind whose owner may hold it several times.
pub trait Reentrant: Kind {}

/// A kind that may stay closed for a while after its release: [`Mutex`] or [`Fair`].
pub trait Keepable: Kind {}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident is $family:ident),* $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name {}
        impl sealed::Sealed for $name {
            const FAMILY: Family = Family::$family;
        }
        impl Kind for $name {}
    )*};
}

kinds! {
    /// One owner at a time.
    Mutex is Mutex,
    /// One owner at a time, with a queue that the server keeps as data.
    Fair is Fair,
    /// The readers' side of a [`RwLock`](crate::RwLock).
    Read is Read,
    /// The writer's side of a [`RwLock`](crate::RwLock).
    Write is Write,
    /// Permits of a [`Semaphore`](crate::Semaphore).
    Permits is Semaphore,
}

impl Keepable for Mutex {}
impl Keepable for Fair {}

impl Reentrant for Mutex {}
impl Reentrant for Fair {}
impl Reentrant for Read {}
impl Reentrant for Write {}
