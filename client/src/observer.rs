//! Observes a lock without holding it, and takes it away.

use std::time::Duration;

use redis::{Cmd, Value};

use crate::Error;
use crate::client::Client;
use crate::semaphore::Semaphore;
use crate::wire;

impl Client {
    /// Observes the lock on a key, of any kind: its holders and waiters, and how to take it away.
    pub fn observe(&self, key: impl AsRef<[u8]>) -> Observer {
        Observer { client: self.clone(), key: key.as_ref().to_vec() }
    }
}

impl Semaphore {
    /// How many permits are available; negative while more are held than exist. `None` if there is
    /// no semaphore on the key.
    ///
    /// # Errors
    ///
    /// [`Error::Unavailable`] if no server answers.
    pub async fn available_permits(&self) -> Result<Option<i64>, Error> {
        let info = self.client.observe(&self.key).info().await?;
        info.map(|info| wire::number(needed(&info, "available")?)).transpose()
    }
}

/// Observes one lock of any kind without holding it. An answer may be outdated by the time it
/// arrives: to rely on the lock, acquire it.
///
/// ```no_run
/// # async fn example(client: rlock_client::Client) -> Result<(), rlock_client::Error> {
/// let lock = client.observe("orders:42");
/// for holder in lock.holders().await? {
///     println!("{} for {:?}", String::from_utf8_lossy(&holder.owner), holder.lease_left);
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct Observer {
    pub(crate) client: Client,
    pub(crate) key: Vec<u8>,
}

/// A holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The owner. For another handle of a guard's owner use [`Guard::owner`](crate::Guard::owner),
    /// so that the requests of both handles know about each other.
    pub owner: Vec<u8>,
    /// `exclusive`, `read`, `write` or `permits`.
    pub mode: String,
    /// How often the lock is held, or how many permits are held.
    pub holds: u32,
    /// The fencing token of the hold.
    pub token: u64,
    /// How long the hold lives without renewal.
    pub lease_left: Duration,
    /// Whether the hold ends with its connection.
    pub is_session: bool,
    /// The [note](crate::Lock::note) of the holder, up to 256 bytes.
    pub note: Option<Vec<u8>>,
}

/// A waiter of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Waiter {
    /// The owner that waits.
    pub owner: Vec<u8>,
    /// `exclusive`, `read`, `write` or `permits`.
    pub mode: String,
    /// How long it has waited so far.
    pub waited: Duration,
    /// Whether it is connected. Otherwise it only keeps its place in the queue of a fair lock.
    pub is_connected: bool,
    /// The [note](crate::Lock::note) of the waiter, up to 256 bytes.
    pub note: Option<Vec<u8>>,
}

/// A field of a map; RESP2 sends maps as lists of names and values.
pub(crate) fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let is_name = |value: &Value| wire::bytes(value).is_ok_and(|found| found == name.as_bytes());
    match map {
        Value::Map(fields) => fields.iter().find(|(key, _)| is_name(key)).map(|(_, value)| value),
        Value::Array(flat) => flat.chunks_exact(2).find(|pair| is_name(&pair[0])).map(|pair| &pair[1]),
        _ => None,
    }
}

fn needed<'a>(map: &'a Value, name: &str) -> Result<&'a Value, Error> {
    field(map, name).ok_or_else(|| Error::unexpected(map))
}

fn mode_of(map: &Value) -> Result<String, Error> {
    Ok(String::from_utf8_lossy(wire::bytes(needed(map, "mode")?)?).into_owned())
}

fn note_of(map: &Value) -> Result<Option<Vec<u8>>, Error> {
    field(map, "note").map(|note| wire::bytes(note).map(<[u8]>::to_vec)).transpose()
}

fn each<T>(list: &Value, read: impl Fn(&Value) -> Result<T, Error>) -> Result<Vec<T>, Error> {
    match list {
        Value::Array(maps) => maps.iter().map(read).collect(),
        Value::Nil => Ok(Vec::new()),
        other => Err(Error::unexpected(other)),
    }
}

impl Holder {
    /// Reads the holders from an answer of INFO.
    fn all(list: &Value) -> Result<Vec<Self>, Error> {
        each(list, |map| {
            let number = |name| {
                let value = needed(map, name)?;
                u64::try_from(wire::number(value)?).map_err(|_| Error::unexpected(value))
            };
            Ok(Self {
                owner: wire::bytes(needed(map, "owner")?)?.to_vec(),
                mode: mode_of(map)?,
                holds: u32::try_from(number("holds")?).unwrap_or(u32::MAX),
                token: number("token")?,
                lease_left: Duration::from_millis(number("lease-ms")?),
                is_session: number("session")? == 1,
                note: note_of(map)?,
            })
        })
    }
}

impl Waiter {
    fn all(list: &Value) -> Result<Vec<Self>, Error> {
        each(list, |map| {
            Ok(Self {
                owner: wire::bytes(needed(map, "owner")?)?.to_vec(),
                mode: mode_of(map)?,
                waited: wire::milliseconds(needed(map, "waited-ms")?)?,
                is_connected: wire::number(needed(map, "connected")?)? == 1,
                note: note_of(map)?,
            })
        })
    }
}

impl Observer {
    async fn ask(&self, command: &Cmd) -> Result<Value, Error> {
        self.client.core.request(std::slice::from_ref(&self.key), command).await
    }

    /// The answer of INFO; `None` if the key has no lock.
    async fn info(&self) -> Result<Option<Value>, Error> {
        Ok(Some(self.ask(redis::cmd("RLOCK.INFO").arg(&self.key)).await?).filter(|info| *info != Value::Nil))
    }

    /// Whether the lock is held or [kept closed](crate::Guard::release_and_keep).
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with `WRONGTYPE` if the key holds something else, [`Error::Unavailable`]
    /// if no server answers.
    pub async fn is_locked(&self) -> Result<bool, Error> {
        Ok(self.lease_left().await?.is_some())
    }

    /// The time until the last lease of the holders expires, or until a lock that is [kept
    /// closed](crate::Guard::release_and_keep) opens. `None` if the lock is free.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    pub async fn lease_left(&self) -> Result<Option<Duration>, Error> {
        let left = wire::number(&self.ask(redis::cmd("RLOCK.PTTL").arg(&self.key)).await?)?;
        Ok(u64::try_from(left).ok().map(Duration::from_millis))
    }

    /// All holders.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    pub async fn holders(&self) -> Result<Vec<Holder>, Error> {
        self.info().await?.map_or(Ok(Vec::new()), |info| Holder::all(needed(&info, "holders")?))
    }

    /// All waiters, in queue order.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    pub async fn waiters(&self) -> Result<Vec<Waiter>, Error> {
        Waiter::all(&self.ask(redis::cmd("RLOCK.WAITERS").arg(&self.key)).await?)
    }

    /// Takes the lock away from all holders, and lets the server grant the next waiters. Returns
    /// whether the lock was held.
    ///
    /// The former holders notice at their next renewal, see [`Guard::lost`](crate::Guard::lost).
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked). After a lost reply it returns [`Error::Unavailable`],
    /// although the lock may have been taken away. It is not sent again, because a second copy
    /// would hit the next holder.
    pub async fn force_release(&self) -> Result<bool, Error> {
        let Some(command) = self.force_command().await? else { return Ok(false) };
        let core = &self.client.core;
        let slot = core.slot_of(std::slice::from_ref(&self.key));
        Ok(wire::number(&core.ask(slot, &command, core.common.command_timeout).await.said?)? == 1)
    }

    /// Takes the lock away from the one hold with this fencing token. It never hits the next
    /// holder, so it is sent again after a lost reply. Returns whether the token held the lock just
    /// before.
    ///
    /// # Errors
    ///
    /// As [`is_locked`](Self::is_locked).
    pub async fn force_release_of(&self, token: u64) -> Result<bool, Error> {
        let was_held = self.holders().await?.iter().any(|holder| holder.token == token);
        let Some(mut command) = self.force_command().await? else { return Ok(was_held) };
        command.arg("TOKEN").arg(token);
        Ok(wire::number(&self.ask(&command).await?)? == 1 || was_held)
    }

    /// The FORCERELEASE command without a token; `None` if the key has no lock.
    async fn force_command(&self) -> Result<Option<Cmd>, Error> {
        let Some(info) = self.info().await? else { return Ok(None) };
        let family = match wire::bytes(needed(&info, "kind")?)? {
            b"mutex" => "RLOCK",
            b"fair" => "RFAIRLOCK",
            b"rwlock" => "RRWLOCK",
            b"semaphore" => "RSEMAPHORE",
            _ => return Err(Error::unexpected(&info)),
        };
        let mut command = redis::cmd(&[family, ".FORCERELEASE"].concat());
        command.arg(&self.key);
        Ok(Some(command))
    }
}
