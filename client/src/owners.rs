//! What the requests of an owner that has a name share: they come one after the other, and find what it holds already.

use std::any::Any;
use std::collections::HashMap;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};

use tokio::sync::OwnedMutexGuard;

use crate::wire::Subject;

/// The desks in use.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<OwnerAndKey, Weak<Desk>>>);

type OwnerAndKey = (Vec<u8>, Vec<u8>);

/// What one owner has of one key.
#[derive(Default)]
pub(crate) struct Desk {
    turn: Arc<tokio::sync::Mutex<()>>,
    holds: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

/// The desks of all keys of a request, in the order of the keys.
pub(crate) type Desks = Arc<[Arc<Desk>]>;

/// The turn of one request. The server remembers one id for an owner and a key, so requests do not overtake each other.
pub(crate) type Turn = Vec<OwnedMutexGuard<()>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Owners {
    pub(crate) fn desks(&self, subject: &Subject) -> Desks {
        let mut keys: Vec<_> = subject.keys.iter().collect();
        keys.sort();
        let mut desks = lock(&self.0);
        // Each doubling makes room once, so this costs little on average.
        if desks.len() == desks.capacity() {
            desks.retain(|_, desk| desk.strong_count() > 0);
        }
        let mut desk_of = |key: &Vec<u8>| {
            let place = desks.entry((subject.owner.to_vec(), key.clone())).or_default();
            place.upgrade().unwrap_or_else(|| {
                let desk = Arc::new(Desk::default());
                *place = Arc::downgrade(&desk);
                desk
            })
        };
        keys.into_iter().map(&mut desk_of).collect()
    }
}

/// Waits until the requests before have ended.
pub(crate) async fn turn(desks: &[Arc<Desk>]) -> Turn {
    let mut turn = Vec::with_capacity(desks.len());
    for desk in desks {
        turn.push(desk.turn.clone().lock_owned().await);
    }
    turn
}

/// Takes a place in the order of requests now, and waits for the turn later.
pub(crate) fn turn_from_now_on(desks: Desks) -> Pin<Box<dyn Future<Output = Turn> + Send>> {
    let mut turn: Pin<Box<dyn Future<Output = Turn> + Send>> = Box::pin(async move { turn(&desks).await });
    match turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(turn) => Box::pin(std::future::ready(turn)),
        Poll::Pending => turn,
    }
}

impl Desk {
    /// What the owner has of the key, as the module of holds has registered it.
    pub(crate) fn holds(&self) -> MutexGuard<'_, Vec<Weak<dyn Any + Send + Sync>>> {
        lock(&self.holds)
    }
}
