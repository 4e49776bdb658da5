//! The state that the requests of a named owner share. They run one after the other, and find the
//! holds that the owner has.

use std::any::Any;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, Weak};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tokio::sync::OwnedMutexGuard;

use crate::sync::lock;
use crate::wire::Subject;

/// All desks in use.
#[derive(Default)]
pub(crate) struct Owners(Mutex<HashMap<OwnerAndKey, Weak<Desk>>>);

type OwnerAndKey = (Vec<u8>, Vec<u8>);

/// The queue of requests, and the holds, of one owner on one key.
#[derive(Default)]
pub(crate) struct Desk {
    turn: Arc<tokio::sync::Mutex<()>>,
    holds: Mutex<Vec<Weak<dyn Any + Send + Sync>>>,
}

/// The desks for all keys of a request, ordered by key.
pub(crate) type Desks = Arc<[Arc<Desk>]>;

/// The right of one request to run. The server remembers one request id per owner and key, so
/// requests must not overtake each other.
pub(crate) type Turn = Vec<OwnedMutexGuard<()>>;

impl Owners {
    pub(crate) fn desks(&self, subject: &Subject) -> Desks {
        let mut keys: Vec<_> = subject.keys.iter().collect();
        keys.sort();
        let mut desks = lock(&self.0);
        // Scan only when the map would grow: the cost per entry stays constant on average.
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

/// Waits until all earlier requests are done.
pub(crate) async fn turn(desks: &[Arc<Desk>]) -> Turn {
    let mut turn = Vec::with_capacity(desks.len());
    for desk in desks {
        turn.push(desk.turn.clone().lock_owned().await);
    }
    turn
}

/// Takes a place in the queue of requests now, and waits for its turn later.
pub(crate) fn turn_from_now_on(desks: Desks) -> BoxFuture<'static, Turn> {
    let mut turn = async move { turn(&desks).await }.boxed();
    match (&mut turn).now_or_never() {
        Some(turn) => std::future::ready(turn).boxed(),
        None => turn,
    }
}

impl Desk {
    /// The holds that the owner has on the key, registered by the module `hold`.
    pub(crate) fn holds(&self) -> MutexGuard<'_, Vec<Weak<dyn Any + Send + Sync>>> {
        lock(&self.holds)
    }
}
