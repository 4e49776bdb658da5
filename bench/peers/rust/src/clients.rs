//! How each library is asked for a lock: as its documentation shows it, with one client for the process.

use std::time::Duration;

use anyhow::{Result, bail};
use rlock_client::kinds::{Fair, Mutex, Permits, Read, Write};
use rlock_client::{Error, Guard, Kind, Lock};
use rslock::{LockError, LockGuard, LockManager};

use crate::Arguments;

/// How long after a connection has closed a hold ends that is bound to it: enough for a connection that is replaced.
const SESSION_GRACE: Duration = Duration::from_millis(200);

/// What the process has of a library.
pub enum Clients {
    Rlock(rlock_client::Client),
    Rslock(LockManager),
}

/// What a task has of it.
pub struct Client {
    library: Library,
    lock: String,
    permits: u32,
    lease: Duration,
    is_to_hold: bool,
}

enum Library {
    Rlock(rlock_client::Client),
    Rslock(LockManager),
}

/// What came of asking.
pub enum Asked {
    Held(Held),
    InVain,
}

/// A lock that is held.
pub enum Held {
    Mutex(Guard<Mutex>),
    Fair(Guard<Fair>),
    Read(Guard<Read>),
    Write(Guard<Write>),
    Permits(Guard<Permits>),
    Rslock(LockGuard),
}

impl Clients {
    pub async fn connect(arguments: &Arguments) -> Result<Self> {
        let url = format!("redis://{}/", arguments.server);
        match arguments.peer.as_str() {
            "rlock-client" => Ok(Self::Rlock(rlock_client::Client::connect(&url).await?)),
            "rslock" => Ok(Self::Rslock(LockManager::new(vec![url]))),
            other => bail!("there is no peer {other}"),
        }
    }

    pub async fn client(&self, arguments: &Arguments) -> Result<Client> {
        let library = match self {
            Self::Rlock(client) => Library::Rlock(client.clone()),
            Self::Rslock(manager) => Library::Rslock(manager.clone()),
        };
        Ok(Client {
            library,
            lock: arguments.lock.clone(),
            permits: arguments.permits,
            lease: Duration::from_millis(arguments.lease_ms),
            is_to_hold: arguments.is_to_hold(),
        })
    }
}

impl Client {
    /// Waits for the lock, about this long at most.
    pub async fn acquire(&self, key: &str, wait: Duration) -> Result<Asked> {
        match &self.library {
            Library::Rlock(client) => self.acquire_of_rlock(client, key, wait).await,
            Library::Rslock(manager) => match manager.acquire(key, self.lease).await {
                Ok(guard) => Ok(Asked::Held(Held::Rslock(guard))),
                // It tries a few times and gives up; the caller asks again.
                Err(LockError::Unavailable) => Ok(Asked::InVain),
                Err(error) => Err(error.into()),
            },
        }
    }

    async fn acquire_of_rlock(&self, client: &rlock_client::Client, key: &str, wait: Duration) -> Result<Asked> {
        let held = match self.lock.as_str() {
            "mutex" => self.wait_for(client.lock(key), wait).await?.map(Held::Mutex),
            "fair" => self.wait_for(client.fair_lock(key), wait).await?.map(Held::Fair),
            "read" => self.wait_for(client.rw_lock(key).read(), wait).await?.map(Held::Read),
            "write" => self.wait_for(client.rw_lock(key).write(), wait).await?.map(Held::Write),
            "semaphore" => {
                let semaphore = client.semaphore(key);
                match self.wait_for(semaphore.permits(1), wait).await {
                    // The first one makes it; asking before each acquisition would be a command more.
                    Err(error) if error.code() == "NOSEMAPHORE" => {
                        semaphore.init(self.permits).await?;
                        None
                    }
                    other => other?.map(Held::Permits),
                }
            }
            other => bail!("there is no lock of the kind {other}"),
        };
        Ok(held.map_or(Asked::InVain, Asked::Held))
    }

    async fn wait_for<K: Kind>(&self, lock: Lock<K>, wait: Duration) -> Result<Option<Guard<K>>, Error> {
        let mut lock = lock.lease(self.lease);
        if self.is_to_hold {
            lock = lock.session_grace(SESSION_GRACE);
        }
        match lock.acquire_timeout(wait).await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Timeout) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Held {
    pub async fn release(self) -> Result<()> {
        match self {
            Self::Mutex(guard) => guard.release().await?,
            Self::Fair(guard) => guard.release().await?,
            Self::Read(guard) => guard.release().await?,
            Self::Write(guard) => guard.release().await?,
            Self::Permits(guard) => guard.release().await?,
            Self::Rslock(guard) => guard.release().await,
        }
        Ok(())
    }
}
