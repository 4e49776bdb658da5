//! The time that the crate adds to the two round trips of an uncontended lock.
//!
//! One task acquires and releases in turns. Each side is a chain of round trips, so the wall clock
//! is the measure.

use std::time::Instant;

use anyhow::Result;
use rlock_bench::clock;
use rlock_bench::server::Server;

use super::{Sides, run_client, run_raw, runtime, url};
use crate::names;
use crate::report::{Aim, Figure, Line, Series, Unit};

const PAIRS: usize = 5000;
/// Pairs that each side runs before the measured ones of a round.
const WARM_UP_PAIRS: usize = 500;
const AIM: Aim = Aim::AtMost(1.05);

fn us_per_pair(started: Instant) -> f64 {
    started.elapsed().as_secs_f64() * 1e6 / PAIRS as f64
}

/// Measures wall time per pair.
pub fn measure(server: &mut Server, rounds: usize) -> Result<Line> {
    let runtime = runtime(1)?;
    let url = url(server);
    let (mut raw_us, mut client_us) = (Series::default(), Series::default());
    // As in a program, the work is a task of the runtime.
    let measured = runtime.spawn(async move {
        let Sides { raw, client } = Sides::connect(&url).await?;
        let lock = super::lock(&client, 0);
        let by_raw = |pairs| run_raw(raw.clone(), names::lock_key(0), names::owner_id(0), pairs);
        for _ in 0..rounds {
            by_raw(WARM_UP_PAIRS).await?;
            let started = clock::now();
            by_raw(PAIRS).await?;
            raw_us.push(us_per_pair(started));
            run_client(lock.clone(), WARM_UP_PAIRS).await?;
            let started = clock::now();
            run_client(lock.clone(), PAIRS).await?;
            client_us.push(us_per_pair(started));
        }
        anyhow::Ok((raw_us, client_us))
    });
    let (raw_us, client_us) = runtime.block_on(measured)??;
    server.ensure_no_keys()?;
    let client = Figure::new("rlock-client", Unit::Us, &client_us);
    let raw = Figure::new("redis-rs", Unit::Us, &raw_us);
    Ok(Line::ratio("wall time per acquire and release, against two commands", client, raw).aim(AIM))
}
