//! Who asks, and which request it is: owners that nobody else has, and request ids that rise.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rand::rngs::OsRng;
use rand::{RngCore, TryRngCore};

/// How many bytes an owner may have.
const OWNER_BYTES: std::ops::RangeInclusive<usize> = 1..=512;

/// How many bytes a note may have.
const NOTE_BYTES: usize = 256;

/// An owner that nobody else has: 128 random bits, as text that a person can read in `RLOCK.INFO`.
///
/// They come from the system. A generator in memory is copied by fork(2), and two processes with one owner would both be granted one lock.
pub(crate) fn unique_owner() -> Vec<u8> {
    let mut bits = [0; 16];
    // Without randomness there would be no generator in memory either.
    OsRng.unwrap_err().fill_bytes(&mut bits);
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = Vec::with_capacity(2 * bits.len());
    for byte in bits {
        text.extend([byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]));
    }
    text
}

/// Checks an owner that the user chose.
pub(crate) fn check_owner(owner: &[u8]) -> Result<(), crate::Error> {
    if OWNER_BYTES.contains(&owner.len()) {
        Ok(())
    } else {
        Err(crate::Error::Argument(format!("owner has {} bytes, and may have 1 to 512", owner.len())))
    }
}

/// Checks a note that the user chose.
pub(crate) fn check_note(note: &[u8]) -> Result<(), crate::Error> {
    if note.len() <= NOTE_BYTES {
        Ok(())
    } else {
        Err(crate::Error::Argument(format!("note has {} bytes, and may have 0 to {NOTE_BYTES}", note.len())))
    }
}

/// The last id given in this process.
static LAST_ID: AtomicU64 = AtomicU64::new(0);

/// A request id above all that this process has used before. It is not below the wall clock's microseconds, so a process that starts again and
/// uses the same owner goes on above what it used in its last life.
pub(crate) fn next_request_id() -> u64 {
    let wall_us = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |age| age.as_micros());
    raise_to(u64::try_from(wall_us).unwrap_or(0))
}

fn raise_to(floor: u64) -> u64 {
    let raised = |last: u64| last.saturating_add(1).max(floor);
    // The closure never declines, so there is always a previous value.
    let last = LAST_ID.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |last| Some(raised(last)));
    raised(last.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_rise_also_when_the_clock_stands() {
        let first = next_request_id();
        assert!(raise_to(0) > first);
    }

    #[test]
    fn owners_differ_and_are_readable() {
        let (one, other) = (unique_owner(), unique_owner());
        assert_ne!(one, other);
        assert_eq!(one.len(), 32);
        assert!(one.iter().all(u8::is_ascii_hexdigit));
    }
}
