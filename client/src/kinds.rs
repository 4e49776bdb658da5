//! The kinds of locks, as type parameters of [`Lock`](crate::Lock) and [`Guard`](crate::Guard).

use crate::wire::Family;

mod sealed {
    pub trait Sealed {
        const FAMILY: crate::wire::Family;
    }
}

/// The kind of a lock: [`Mutex`], [`Fair`], [`Read`], [`Write`] or [`Permits`].
pub trait Kind: sealed::Sealed + Send + Sync + 'static {}

/// A kind that an owner may hold several times.
pub trait Reentrant: Kind {}

/// A kind that can stay closed for a while after its release: [`Mutex`] or [`Fair`].
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
    /// One owner at a time, with a queue that the server stores as data.
    Fair is Fair,
    /// The read lock of a [`RwLock`](crate::RwLock).
    Read is Read,
    /// The write lock of a [`RwLock`](crate::RwLock).
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
