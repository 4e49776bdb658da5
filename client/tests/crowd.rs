//! A hundred tasks that hold and a hundred that wait, and a fault. No task hangs, a task that loses
//! a hold learns of it before another task has the lock, and all others continue.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rlock_client::{Client, Error, Guard, Kind, Lock};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::{PATIENCE, claimed, eventually};

pub const HOLDERS: usize = 100;
pub const WAITERS: usize = 100;

/// Waiters want this many of the held locks: more than a client has connections to wait on.
const WANTED: usize = 20;

/// How a holder's task ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The test ended it, and the server confirmed its release.
    Released,
    /// Its guard reported the loss.
    Lost,
}

/// The token of each lock that a task believes to hold, by key. A task that learns of its loss is
/// removed.
#[derive(Default)]
struct Beliefs(Mutex<HashMap<String, u64>>);

impl Beliefs {
    fn with<T>(&self, act: impl FnOnce(&mut HashMap<String, u64>) -> T) -> T {
        act(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    #[track_caller]
    fn begin(&self, key: &str, token: u64) {
        let other = self.with(|beliefs| beliefs.insert(key.to_owned(), token));
        assert_eq!(other, None, "{key} was granted with {token} while another one believed to hold it");
    }

    fn end(&self, key: &str) {
        self.with(|beliefs| beliefs.remove(key));
    }
}

/// The tasks.
pub struct Crowd {
    client: Client,
    lease: Duration,
    beliefs: Arc<Beliefs>,
    /// Tells the holders to release.
    enough: CancellationToken,
    holders: Vec<JoinHandle<Result<(u64, End), Error>>>,
    waiters: Vec<JoinHandle<Result<(usize, u64), Error>>>,
}

impl Crowd {
    /// Creates tasks of this client, with this lease, which the client renews.
    pub fn of(client: &Client, lease: Duration) -> Crowd {
        let (client, beliefs, enough) = (client.clone(), Arc::default(), CancellationToken::new());
        Crowd { client, lease, beliefs, enough, holders: Vec::new(), waiters: Vec::new() }
    }

    /// Adds this many holders, each with a lock of its own, and waits until all of them hold. Some
    /// have a session, with a grace long enough to reconnect.
    pub async fn hold(&mut self, more: usize) {
        let first = self.holders.len();
        for number in first..first + more {
            let (key, grace) = (key(number), self.lease);
            self.holders.push(match number % 3 {
                0 => self.holder(key.clone(), self.client.fair_lock(key).lease(self.lease)),
                1 => self.holder(key.clone(), self.client.lock(key).lease(self.lease)),
                _ => {
                    let lock = self.client.lock(&key).lease(self.lease);
                    self.holder(key, lock.session_grace(grace))
                }
            });
        }
        eventually(|| self.beliefs.with(|beliefs| beliefs.len()) == first + more).await;
    }

    fn holder<K: Kind>(&self, key: String, lock: Lock<K>) -> JoinHandle<Result<(u64, End), Error>> {
        let (beliefs, enough) = (self.beliefs.clone(), self.enough.clone());
        tokio::spawn(async move {
            let guard = lock.acquire().await?;
            claimed(&guard).await;
            beliefs.begin(&key, guard.token());
            tokio::select! {
                biased;
                () = guard.lost() => {
                    beliefs.end(&key);
                    Ok((guard.token(), End::Lost))
                }
                () = enough.cancelled() => give_up(guard, &beliefs, &key).await,
            }
        })
    }

    /// Adds waiters for held locks, and waits until all of them wait at the server. `waiting`
    /// returns how many do.
    pub async fn wait(&mut self, waiting: impl Fn() -> i64) {
        for number in 0..WAITERS {
            let wanted = number % WANTED;
            let key = key(wanted);
            self.waiters.push(match wanted % 3 {
                0 => self.waiter(key.clone(), wanted, self.client.fair_lock(key)),
                _ => self.waiter(key.clone(), wanted, self.client.lock(key)),
            });
        }
        eventually(|| waiting() == WAITERS as i64).await;
    }

    fn waiter<K: Kind>(&self, key: String, wanted: usize, lock: Lock<K>) -> JoinHandle<Result<(usize, u64), Error>> {
        let beliefs = self.beliefs.clone();
        tokio::spawn(async move {
            let guard = lock.acquire().await?;
            beliefs.begin(&key, guard.token());
            // Leaves time for another holder to show up.
            tokio::task::yield_now().await;
            let (token, _) = give_up(guard, &beliefs, &key).await?;
            Ok((wanted, token))
        })
    }

    /// The number of tasks that have learned of the loss of their hold.
    pub fn heard(&self) -> usize {
        self.holders.iter().filter(|holder| holder.is_finished()).count()
    }

    /// The number of waiters that acquired and released their lock.
    pub fn served(&self) -> usize {
        self.waiters.iter().filter(|waiter| waiter.is_finished()).count()
    }

    /// Tells the holders to release, and waits for all tasks. Checks that each waiter got its lock
    /// with a distinct token, higher than that of the task that held before it. Returns how the
    /// holders ended, in the order in which they started.
    pub async fn disperse(self) -> Vec<End> {
        self.enough.cancel();
        let mut tokens = HashMap::<usize, Vec<u64>>::new();
        let mut ends = Vec::new();
        for (number, holder) in self.holders.into_iter().enumerate() {
            let ended = tokio::time::timeout(PATIENCE, holder).await.expect("no holder hangs").expect("no panic");
            let (token, end) = ended.unwrap_or_else(|error| panic!("holder {number}: {error}"));
            tokens.entry(number).or_default().push(token);
            ends.push(end);
        }
        for waiter in self.waiters {
            let served = tokio::time::timeout(PATIENCE, waiter).await.expect("no waiter hangs").expect("no panic");
            let (wanted, token) = served.expect("a waiter gets its lock");
            tokens.entry(wanted).or_default().push(token);
        }
        for (number, mut tokens) in tokens {
            let (count, first) = (tokens.len(), tokens[0]);
            tokens.sort_unstable();
            tokens.dedup();
            assert_eq!((tokens.len(), tokens[0]), (count, first), "{}: {tokens:?}", key(number));
        }
        ends
    }
}

/// Keys that are spread over all nodes of a cluster.
fn key(number: usize) -> String {
    format!("lock-{number}")
}

/// Releases a hold that must have lasted until now.
async fn give_up<K: Kind>(guard: Guard<K>, beliefs: &Beliefs, key: &str) -> Result<(u64, End), Error> {
    let token = guard.token();
    beliefs.end(key);
    guard.release().await?;
    Ok((token, End::Released))
}
