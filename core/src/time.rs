//! Time as a parameter, and limits.
//!
//! Deadlines in memory are microseconds on the *steady clock*, which never steps. On disk and to
//! replicas they are absolute unix times in milliseconds, converted when they are written or
//! applied, with one reading of both clocks ([`Now`]).

/// Microseconds in a millisecond.
pub const US_PER_MS: u64 = 1000;

/// The longest lease (and duration of a place): 365 days.
pub const MAX_LEASE_MS: u64 = 365 * 24 * 60 * 60 * 1000;

/// The longest note, in bytes.
pub const MAX_NOTE_BYTES: usize = 256;

/// The longest owner name, in bytes.
pub const MAX_OWNER_BYTES: usize = 512;

/// The highest fencing token and arrival number that is ever granted or accepted. It is below 2^53,
/// so clients that store numbers in a double lose no precision. A server that has reached it grants
/// nothing further.
pub const MAX_TOKEN: u64 = (1 << 53) - (1 << 49);

/// Where tokens stop following the clock, in microseconds since the unix epoch: in the year 2219.
/// Beyond it each token is the previous one plus one, and 5 * 10^14 are left. So a temporarily
/// wrong clock does not use up the tokens.
pub const TOKEN_CLOCK_END_US: u64 = (1 << 53) - (1 << 50);

/// How far a token in a payload from outside may be ahead of the wall clock: one day. A larger one
/// would use up tokens, since later tokens of this server have to be above it.
pub const TOKEN_AHEAD_LIMIT_US: u64 = 24 * 60 * 60 * 1_000_000;

/// One reading of both clocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Now {
    /// Microseconds on the steady clock, for deadlines in memory.
    pub mono_us: u64,
    /// Microseconds since the unix epoch, for tokens and for times that leave the process.
    pub wall_us: u64,
}

impl Now {
    /// The deadline of a lease of `lease_ms` that starts now.
    #[must_use]
    pub fn after_ms(self, lease_ms: u64) -> u64 {
        self.mono_us.saturating_add(lease_ms.saturating_mul(US_PER_MS))
    }

    /// A deadline from a file or from another server, limited to a lease from now on.
    #[must_use]
    pub fn within(self, deadline_us: u64, lease_ms: u64) -> u64 {
        // Times outside the process are in whole milliseconds, rounded up.
        deadline_us.min(self.after_ms(lease_ms).saturating_add(US_PER_MS))
    }

    /// Milliseconds from now to `deadline_us`, rounded up so that a live lease never shows as 0.
    #[must_use]
    pub fn left_ms(self, deadline_us: u64) -> u64 {
        deadline_us.saturating_sub(self.mono_us).div_ceil(US_PER_MS)
    }

    /// The unix time in ms of a deadline in memory, rounded up: a replica must never expire a lease
    /// before its master.
    #[must_use]
    pub fn to_unix_ms(self, deadline_us: u64) -> u64 {
        let wall_us = if deadline_us >= self.mono_us {
            self.wall_us.saturating_add(deadline_us.saturating_sub(self.mono_us))
        } else {
            self.wall_us.saturating_sub(self.mono_us.saturating_sub(deadline_us))
        };
        wall_us.div_ceil(US_PER_MS)
    }

    /// The deadline in memory for a unix time in ms. A time in the past stays in the past, and is
    /// at least 0.
    #[must_use]
    pub fn from_unix_ms(self, unix_ms: u64) -> u64 {
        let wall_us = unix_ms.saturating_mul(US_PER_MS);
        if wall_us >= self.wall_us {
            self.mono_us.saturating_add(wall_us.saturating_sub(self.wall_us))
        } else {
            self.mono_us.saturating_sub(self.wall_us.saturating_sub(wall_us))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now { mono_us: 5_000_000, wall_us: 1_700_000_000_000_123 };

    #[test]
    fn deadline_round_trip_never_shortens_it() {
        for ahead_us in [0, 1, 999, 1000, 1001, 30_000_000] {
            let deadline_us = NOW.mono_us + ahead_us;
            let back_us = NOW.from_unix_ms(NOW.to_unix_ms(deadline_us));
            assert!(back_us >= deadline_us && back_us < deadline_us + US_PER_MS);
        }
    }

    #[test]
    fn past_deadline_stays_past() {
        assert_eq!(NOW.from_unix_ms(1), 0);
        let over_us = NOW.mono_us - 10_000;
        assert!(NOW.from_unix_ms(NOW.to_unix_ms(over_us)) < NOW.mono_us);
    }

    #[test]
    fn time_left_is_rounded_up() {
        assert_eq!(NOW.left_ms(NOW.mono_us + 1), 1);
        assert_eq!(NOW.left_ms(NOW.mono_us), 0);
        assert_eq!(NOW.left_ms(NOW.mono_us - 1), 0);
        assert_eq!(NOW.left_ms(NOW.after_ms(30_000)), 30_000);
    }
}
