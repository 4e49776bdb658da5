//! Unique owner names and increasing request ids.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::OsRng;
use rand::{RngCore, TryRngCore};

use crate::sync::lock;

/// 128 random bits as hex digits, from the system. A generator in memory would be copied by
/// fork(2), and two processes with the same owner would both be granted the same lock.
pub(crate) fn random_name() -> String {
    let mut bits = [0; 16];
    OsRng.unwrap_err().fill_bytes(&mut bits);
    format!("{:032x}", u128::from_be_bytes(bits))
}

/// The name of a client, which is the prefix of its owners.
#[derive(Default)]
pub(crate) struct ClientId {
    /// With the id of the process that it was made in.
    name: Mutex<Option<(u32, String)>>,
    owners: AtomicU64,
}

impl ClientId {
    /// The name; a new one after a fork.
    pub(crate) fn name(&self) -> String {
        let mut made = lock(&self.name);
        let here = std::process::id();
        match &*made {
            Some((process, name)) if *process == here => name.clone(),
            _ => made.insert((here, random_name())).1.clone(),
        }
    }

    /// A new owner for one acquisition.
    pub(crate) fn next_owner(&self) -> Vec<u8> {
        let number = self.owners.fetch_add(1, Ordering::Relaxed);
        format!("{}:{number}", self.name()).into_bytes()
    }
}

/// The last id used in this process.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// A request id above all ids used by this process before. It is not below the wall clock in
/// microseconds, so that a restarted process with a fixed owner name uses higher ids than before.
pub(crate) fn next_id() -> u64 {
    let wall_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_micros());
    raise_to(u64::try_from(wall_us).unwrap_or(0))
}

fn raise_to(floor: u64) -> u64 {
    let raised = |last: u64| last.saturating_add(1).max(floor);
    // The closure always returns `Some`, so the update never fails.
    let last = LAST_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(raised(last)));
    raised(last.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_increase_even_if_the_clock_stands_still() {
        let first = next_id();
        assert!(raise_to(0) > first);
    }

    #[test]
    fn owners_of_a_client_are_distinct_and_share_its_name() {
        let (one, other) = (ClientId::default(), ClientId::default());
        assert_ne!(one.name(), other.name());
        assert_eq!(one.name().len(), 32);
        assert!(one.name().bytes().all(|digit| digit.is_ascii_hexdigit()));
        let (first, second) = (one.next_owner(), one.next_owner());
        assert!(first != second && first.starts_with(one.name().as_bytes()));
    }
}
