//! Places in the queue of a fair lock that need no connection, as many as it may have (one is for
//! the place behind the others).

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use rlock_bench::clock;

use super::Case;
use super::stage::{LOCK, LONG_LEASE_MS, PATIENCE, Stage, acquire, is_nil, pipeline, release};

const PLACES: usize = 9_999;
/// When places expire together, all of them are taken within this time.
const TIME_TO_QUEUE: Duration = Duration::from_secs(10);
/// A place's lifetime is counted from the moment when it is taken, so the last ones expire a little
/// later.
const AFTER_END: Duration = Duration::from_millis(200);
const LAST: usize = 2_000_000;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new(
            "places-lapse",
            format!("{PLACES} places of a fair lock expire together ahead of a live one, and the holder releases"),
            lapse,
        ),
        Case::new(
            "places-lapse-all",
            format!("{PLACES} places of a fair lock expire together, and the holder releases"),
            lapse_all,
        ),
    ]
}

/// Holds a lock, and adds places behind it that expire at the returned moment.
fn places_until(stage: &mut Stage) -> Result<Instant> {
    let end = clock::now() + TIME_TO_QUEUE;
    let queue = |out: &mut Vec<u8>, index: usize| {
        let life_ms = end.saturating_duration_since(clock::now()).as_millis().max(1).to_string();
        out.extend_from_slice(&acquire("RFAIRLOCK", LOCK, index, &[b"QUEUE", life_ms.as_bytes()]));
    };
    stage.hold("RFAIRLOCK", LOCK, &[])?;
    pipeline(stage.server.control(), PLACES, queue, is_nil)?;
    ensure!(clock::now() < end, "taking {PLACES} places took longer than {TIME_TO_QUEUE:?}");
    Ok(end)
}

fn lapse(stage: &mut Stage) -> Result<()> {
    let end = places_until(stage)?;
    let ask = acquire("RFAIRLOCK", LOCK, LAST, &[b"QUEUE", LONG_LEASE_MS]);
    stage.server.control().send(&ask)?;
    is_nil(stage.server.control().reply()?)?;
    stage.watch(|server| {
        clock::sleep_until(end + AFTER_END);
        release(server, "RFAIRLOCK", LOCK, &[])?;
        // The live place polls, and is granted when the others have expired.
        while clock::now() < end + PATIENCE {
            server.control().send(&ask)?;
            if server.control().reply()?.integer().is_ok() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("the last place was never granted")
    })
}

fn lapse_all(stage: &mut Stage) -> Result<()> {
    let end = places_until(stage)?;
    stage.watch(|server| {
        clock::sleep_until(end + AFTER_END);
        release(server, "RFAIRLOCK", LOCK, &[])?;
        // On a busy machine some places may still be alive, and get their turns.
        while clock::now() < end + PATIENCE {
            if server.control().call(&[b"RFAIRLOCK.WAITERS", LOCK, b"COUNT", b"1"])?.expect_array(0).is_ok() {
                return Ok(());
            }
            thread::sleep(Duration::from_millis(1));
        }
        bail!("some of the places have not expired")
    })
}
