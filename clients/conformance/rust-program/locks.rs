//! One type for all kinds of locks and guards.

use std::pin::Pin;
use std::time::Duration;

use rlock_client::kinds::{Fair, Mutex, Permits, Read, Write};
use rlock_client::{Client, Error, Guard, Lock, MultiGuard, MultiLock};
use serde_json::Value;

use crate::fault::Fault;
use crate::{Failure, unsupported};

pub type Lost = Pin<Box<dyn Future<Output = ()> + Send>>;

#[derive(Clone, Copy)]
pub struct Options {
    /// Zero: try. None: no limit.
    pub wait: Option<Duration>,
}

impl Options {
    pub fn of(request: &Value) -> Result<Options, Failure> {
        Ok(Options { wait: span(request, "wait_ms")? })
    }
}

/// A duration in milliseconds. This language has no negative and no infinite ones.
pub fn span(request: &Value, field: &str) -> Result<Option<Duration>, Failure> {
    match &request[field] {
        Value::Null => Ok(None),
        Value::String(text) if text == "max" => Ok(Some(Duration::MAX)),
        Value::String(text) if text == "min" => Ok(Some(Duration::ZERO)),
        value => match value.as_f64().map(|ms| Duration::try_from_secs_f64(ms / 1000.0)) {
            Some(Ok(span)) => Ok(Some(span)),
            _ => Err(unsupported(&format!("{field} of {value}"))),
        },
    }
}

/// A value for each kind.
enum Each<M, F, R, W, P, A> {
    Mutex(M),
    Fair(F),
    Read(R),
    Write(W),
    Permits(P),
    Many(A),
}

use Each::{Fair as OfFair, Many as OfMany, Mutex as OfMutex, Permits as OfPermits, Read as OfRead, Write as OfWrite};

type Locks = Each<Lock<Mutex>, Lock<Fair>, Lock<Read>, Lock<Write>, Lock<Permits>, MultiLock>;

pub struct AnyLock {
    keys: Vec<String>,
    of: Locks,
}

type Guards = Each<Guard<Mutex>, Guard<Fair>, Guard<Read>, Guard<Write>, Guard<Permits>, MultiGuard>;

pub struct AnyGuard {
    keys: Vec<String>,
    of: Guards,
}

/// The same expression for the value of each kind.
macro_rules! each {
    ($each:expr, $value:ident => $single:expr, $many:expr) => {
        match $each {
            OfMutex($value) => $single,
            OfFair($value) => $single,
            OfRead($value) => $single,
            OfWrite($value) => $single,
            OfPermits($value) => $single,
            OfMany($value) => $many,
        }
    };
}

/// Sets the options of a request on the builder of one kind.
macro_rules! with_options {
    ($lock:expr, $request:expr, $fault:expr) => {{
        let (mut lock, request, fault) = ($lock, $request, $fault);
        if let Some(lease) = span(request, "lease_ms")? {
            lock = if fault == Fault::NeverRenews { lock.fixed_lease(lease) } else { lock.lease(lease) };
        }
        if let Some(lease) = span(request, "fixed_lease_ms")? {
            lock = lock.fixed_lease(lease);
            if fault == Fault::DeclaresAll {
                lock = lock.max_hold(Duration::from_secs(1));
            }
        }
        if let Some(grace) = span(request, "session_ms")?.filter(|_| fault != Fault::IgnoresSession) {
            lock = lock.session_grace(grace);
        }
        if let Some(owner) = request["owner"].as_str() {
            lock = lock.owner(owner);
        }
        if fault == Fault::SharesOwner {
            lock = lock.owner("everybody");
        }
        if let Some(note) = request["note"].as_str() {
            lock = lock.note(note);
        }
        lock
    }};
}

macro_rules! acquired {
    ($lock:expr, $wait:expr) => {
        match $wait {
            Some(Duration::ZERO) => $lock.try_acquire().await,
            Some(timeout) => $lock.acquire_timeout(timeout).await.map(Some),
            None => $lock.acquire().await.map(Some),
        }
    };
}

impl AnyLock {
    pub fn of(client: &Client, request: &Value, fault: Fault) -> Result<AnyLock, Failure> {
        let keys: Vec<_> = request["keys"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let key = keys.first().copied().unwrap_or_default();
        let permits = request["permits"].as_u64().unwrap_or(1) as u32;
        let of = match request["kind"].as_str().unwrap_or("mutex") {
            "mutex" => OfMutex(with_options!(client.lock(key), request, fault)),
            "fair" => {
                let lock = with_options!(client.fair_lock(key), request, fault);
                let grace = span(request, "grace_ms")?;
                OfFair(grace.map_or(lock.clone(), |grace| lock.grace(grace)))
            }
            "read" => OfRead(with_options!(client.rw_lock(key).read(), request, fault)),
            "write" => OfWrite(with_options!(client.rw_lock(key).write(), request, fault)),
            "semaphore" => OfPermits(with_options!(client.semaphore(key).permits(permits), request, fault)),
            "many" => OfMany(with_options!(client.multi_lock(&keys), request, fault)),
            other => return Err(unsupported(other)),
        };
        Ok(AnyLock { keys: keys.into_iter().map(str::to_owned).collect(), of })
    }

    /// `None` if the lock was not acquired.
    pub async fn acquire(&self, wait: Option<Duration>) -> Result<Option<AnyGuard>, Failure> {
        let guard = match &self.of {
            OfMutex(lock) => acquired!(lock, wait).map(|guard| guard.map(OfMutex)),
            OfFair(lock) => acquired!(lock, wait).map(|guard| guard.map(OfFair)),
            OfRead(lock) => acquired!(lock, wait).map(|guard| guard.map(OfRead)),
            OfWrite(lock) => acquired!(lock, wait).map(|guard| guard.map(OfWrite)),
            OfPermits(lock) => acquired!(lock, wait).map(|guard| guard.map(OfPermits)),
            OfMany(lock) => acquired!(lock, wait).map(|guard| guard.map(OfMany)),
        };
        match guard {
            Err(Error::Timeout) => Ok(None),
            guard => Ok(guard?.map(|of| AnyGuard { keys: self.keys.clone(), of })),
        }
    }

    /// The function form.
    pub async fn run<T>(&self, work: impl AsyncFnOnce() -> T) -> Result<T, Failure> {
        each!(&self.of, lock => Ok(lock.run(async |_| work().await).await?), Ok(lock.run(async |_| work().await).await?))
    }

    /// The leader helper. `term` receives the leader's token and a future that resolves on a loss.
    pub async fn lead<T, F: Future<Output = T>>(&self, mut term: impl FnMut(u64, Lost) -> F) -> Result<T, Failure> {
        each!(&self.of, lock => Ok(lock.lead(|guard| term(guard.token(), Box::pin(guard.lost()))).await?), {
            let _ = lock;
            Err(unsupported("lead of many keys"))
        })
    }
}

impl AnyGuard {
    pub fn tokens(&self) -> Vec<u64> {
        let in_order = |guard: &MultiGuard| self.keys.iter().filter_map(|key| guard.token(key)).collect();
        each!(&self.of, guard => vec![guard.token()], in_order(guard))
    }

    pub fn keys(&self) -> impl Iterator<Item = (&String, u64)> {
        self.keys.iter().zip(self.tokens())
    }

    pub fn is_held(&self) -> bool {
        each!(&self.of, guard => guard.is_held(), guard.is_held())
    }

    pub fn is_suspected(&self) -> bool {
        each!(&self.of, guard => guard.is_suspected(), { let _ = guard; false })
    }

    pub fn valid_ms(&self) -> f64 {
        each!(&self.of, guard => guard.valid_for(), guard.valid_for()).as_secs_f64() * 1000.0
    }

    pub fn lost(&self) -> Lost {
        each!(&self.of, guard => Box::pin(guard.lost()), Box::pin(guard.lost()))
    }

    /// Makes a fixed lease end this long from now.
    pub async fn extend(&self, lease: Duration) -> Result<(), Failure> {
        each!(&self.of, guard => Ok(guard.renew_for(lease).await?), {
            let _ = guard;
            Err(unsupported("extend of many keys"))
        })
    }

    pub async fn release(self, keep: Option<Duration>) -> Result<(), Failure> {
        let released = match (self.of, keep) {
            (OfMutex(guard), Some(keep)) => guard.release_and_keep(keep).await,
            (OfFair(guard), Some(keep)) => guard.release_and_keep(keep).await,
            (_, Some(_)) => return Err(unsupported("keep_ms of this kind")),
            (of, None) => each!(of, guard => guard.release().await, guard.release().await),
        };
        Ok(released?)
    }
}
