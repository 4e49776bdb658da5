//! Semaphores: permits under one key, and what is done to the semaphore itself.

use std::sync::Arc;

use redis::Value;
use tokio::sync::oneshot;

use crate::Error;
use crate::client::Client;
use crate::clock::Moment;
use crate::guard::Guard;
use crate::hold::Held;
use crate::identity::{next_request_id, unique_owner};
use crate::lock::{Lock, Permits};
use crate::options::DEFAULT_LEASE;
use crate::request::{Gate, Grant, Request};
use crate::wire::{self, Family, Subject};

/// A number of permits under one key. It stays when nobody holds any: make it once with [`init`](Self::init).
#[derive(Clone, Debug)]
pub struct Semaphore {
    client: Client,
    key: Vec<u8>,
}

impl Semaphore {
    pub(crate) fn new(client: &Client, key: &[u8]) -> Self {
        Self { client: client.clone(), key: key.to_vec() }
    }

    /// Makes the semaphore with so many permits if there is none under the key. Returns whether there was none.
    ///
    /// # Cancel safety
    ///
    /// When dropped, it may or may not take place.
    ///
    /// # Errors
    ///
    /// [`Error::Server`] with `WRONGTYPE` if something else is under the key.
    pub async fn init(&self, permits: u32) -> Result<bool, Error> {
        Ok(self.configure("INIT", permits).await? == 1)
    }

    /// Changes the number of permits. Returns how many are available now, which is negative while more are held than there are.
    ///
    /// # Cancel safety
    ///
    /// When dropped, it may or may not take place.
    ///
    /// # Errors
    ///
    /// [`Error::NoSemaphore`] if there is none.
    pub async fn resize(&self, permits: u32) -> Result<i64, Error> {
        self.configure("RESIZE", permits).await
    }

    async fn configure(&self, verb: &str, permits: u32) -> Result<i64, Error> {
        let shared = &self.client.shared;
        let command = wire::configure_semaphore(verb, &self.key, permits);
        let slot = shared.slot_of(std::slice::from_ref(&self.key));
        let give_up = Moment::now().after(shared.settings.retry_for);
        let answered = shared.servers.call(slot, &command, shared.settings.response_timeout, give_up).await?;
        wire::number(&answered.said.map_err(|error| Error::from_answer(&error))?)
    }

    /// Permits to acquire, at least 1.
    pub fn permits(&self, permits: u32) -> Lock<Permits> {
        Lock::new(&self.client, &self.key).permits(permits)
    }

    /// Takes all permits that are available, on a lease of 30 s that renews itself. Returns how many, with their guard. `None` if there
    /// are none, or if somebody waits for them.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives back in the background what was taken meanwhile.
    ///
    /// # Errors
    ///
    /// [`Error::NoSemaphore`] if there is none.
    pub async fn drain(&self) -> Result<Option<(u32, Guard<Permits>)>, Error> {
        let client = self.client.shared.clone();
        let (keys, owner) = (Arc::from([self.key.clone()]), unique_owner().into());
        let subject = Subject { family: Family::Semaphore, keys, owner, permits: 1 };
        let gate = Gate::default();
        let request =
            Request { client, subject, lease: DEFAULT_LEASE, session_grace: None, gate, is_shared_owner: false };
        let (asker, answer) = oneshot::channel();
        // A task of its own, so that it is never dropped between taking and knowing what was taken.
        self.client.shared.in_background(async move { drop(asker.send(drain(request).await)) });
        let drained = answer.await.unwrap_or(Err(Error::ShuttingDown))?;
        Ok(drained.map(|held| (held.hold.request.subject.permits, Guard::new(held))))
    }
}

/// DRAIN has no request id. It is safe to send it again because the owner is new: what it holds in the end is what was taken.
async fn drain(mut request: Request) -> Result<Option<Held>, Error> {
    let give_up = Moment::now().after(request.client.settings.retry_for.min(request.lease / 2));
    let answered = request.call(&request.subject.drain(request.lease), give_up).await?;
    let taken = wire::number(&answered.said.map_err(|error| Error::from_answer(&error))?)?;
    if taken == 0 && !answered.is_resent {
        return Ok(None);
    }
    let (counts_from, link) = (answered.first_sent, answered.link);
    let mut command = redis::cmd("RSEMAPHORE.INFO");
    command.arg(&request.subject.keys[0]).arg("OWNER").arg(&request.subject.owner[..]);
    let info = request.call(&command, give_up).await?;
    let info = info.said.map_err(|error| Error::from_answer(&error))?;
    let Some((token, permits)) = hold_of(&info, &request.subject.owner) else {
        return Ok(None);
    };
    request.subject.permits = permits;
    let lease = request.lease;
    let grant = Grant { tokens: vec![token], counts_from, lease, link, request_id: next_request_id() };
    Ok(Some(Held::new(Arc::new(request), grant, None, true)))
}

/// The token and the permits of an owner, as INFO shows them.
fn hold_of(info: &Value, owner: &[u8]) -> Option<(u64, u32)> {
    let Value::Array(holders) = field(info, "holders")? else { return None };
    let own = holders
        .iter()
        .find(|holder| matches!(field(holder, "owner"), Some(Value::BulkString(name)) if name == owner))?;
    let number = |name| match field(own, name) {
        Some(Value::Int(number)) => Some(*number),
        _ => None,
    };
    Some((u64::try_from(number("token")?).ok()?, u32::try_from(number("holds")?).ok()?))
}

/// A field of an answer that is a map.
fn field<'a>(map: &'a Value, name: &str) -> Option<&'a Value> {
    let is_name = |value: &Value| match value {
        Value::BulkString(bytes) => bytes == name.as_bytes(),
        Value::SimpleString(text) => text == name,
        _ => false,
    };
    match map {
        Value::Map(fields) => fields.iter().find(|(key, _)| is_name(key)).map(|(_, value)| value),
        Value::Array(fields) => fields.chunks_exact(2).find(|pair| is_name(&pair[0])).map(|pair| &pair[1]),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hold_is_found_among_others() {
        let text = |text: &str| Value::BulkString(text.as_bytes().to_vec());
        let holder = |owner: &str, holds, token| {
            let fields =
                [(text("owner"), text(owner)), (text("holds"), Value::Int(holds)), (text("token"), Value::Int(token))];
            Value::Map(fields.into())
        };
        let holders = Value::Array(vec![holder("other", 1, 10), holder("me", 3, 11)]);
        let info = Value::Map(vec![(text("kind"), text("semaphore")), (text("holders"), holders)]);
        assert_eq!(hold_of(&info, b"me"), Some((11, 3)));
        assert_eq!(hold_of(&info, b"nobody"), None);
    }
}
