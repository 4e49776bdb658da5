//! `CLOCK_MONOTONIC`, which the programs use as well, and the lateness of this machine.

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

/// Times at which a timer of this process was due, and how late it fired. A program on the same machine is late at the same times.
static LATE: Mutex<Vec<(i64, i64)>> = Mutex::new(Vec::new());

const TICK: Duration = Duration::from_millis(5);

/// Starts a thread that measures the lateness until the process ends.
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

/// The tolerance for an event that was due after `since_us`: 40 ms, three times the lateness of the machine, and 10 ms for each process
/// that waits for a core.
pub fn slack_us(since_us: i64) -> i64 {
    let late = LATE.lock().unwrap();
    let recent = late.iter().rev().take_while(|(due, late)| due + late >= since_us);
    let load = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let load: f64 = load.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or(0.0);
    let cores = std::thread::available_parallelism().map_or(1.0, |cores| cores.get() as f64);
    us(40) + 3 * recent.map(|(_, late)| *late).max().unwrap_or(0) + us((10.0 * load / cores) as i64)
}
