//! `CLOCK_MONOTONIC`, which the programs use as well, and how late this machine is.

use std::sync::Mutex;
use std::time::Duration;

use rustix::time::{ClockId, Timespec, clock_gettime};

/// Microseconds of `CLOCK_MONOTONIC`, as `at_us` of the protocol.
pub fn now_us() -> i64 {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::Monotonic);
    tv_sec * 1_000_000 + tv_nsec / 1000
}

pub fn us(ms: i64) -> i64 {
    ms * 1000
}

/// Moments at which a timer of this process fired late, and by how much. A program on the same machine is late at the same moments.
static LATE: Mutex<Vec<(i64, i64)>> = Mutex::new(Vec::new());

const TICK: Duration = Duration::from_millis(5);

/// Measures until the process ends, on a thread of its own.
pub fn watch_lateness() {
    std::thread::spawn(|| {
        loop {
            let due = now_us() + 5_000;
            std::thread::sleep(TICK);
            let late = now_us() - due;
            if late > 3_000 {
                LATE.lock().unwrap().push((due, late));
            }
        }
    });
}

/// How late something may be that was due after `since_us`: 40 ms, and three times what the machine itself was late.
pub fn slack_us(since_us: i64) -> i64 {
    let late = LATE.lock().unwrap();
    let recent = late.iter().rev().take_while(|(due, late)| due + late >= since_us);
    us(40) + 3 * recent.map(|(_, late)| *late).max().unwrap_or(0)
}
