//! Many requests under one owner's name, as of a service whose processes all use the same.

use anyhow::Result;
use rlock_bench::resp;

use super::Case;
use super::stage::{
    self, Crowd, FOREVER, HOLDER, LOCK, LONG_LEASE_MS, Stage, acquire, is_integer, is_nil, pipeline, wait_for_waiting,
};
use crate::names;
use crate::report::{Aim, Unit};

const REQUESTS: usize = 3000;
const ATTEMPTS: usize = 1000;

pub(super) fn cases() -> Vec<Case> {
    vec![
        Case::new("owner-arrive", format!("{REQUESTS} requests of one owner begin to wait for a lock"), arrive),
        Case::new("owner-release", format!("{REQUESTS} requests of one owner wait, and the holder releases"), release),
        Case::new("owner-close", format!("{REQUESTS} requests of one owner wait, and their connections close"), close),
        Case::new(
            "owner-spread",
            format!("{REQUESTS} requests of one owner begin to wait, each for a lock of its own"),
            spread,
        ),
        Case::new(
            "owner-numbered",
            format!("{ATTEMPTS} numbered attempts of an owner with {REQUESTS} requests that wait"),
            numbered,
        ),
    ]
}

fn wait(_: usize) -> Vec<u8> {
    acquire("RLOCK", LOCK, 0, &FOREVER)
}

fn crowd_that_waits(stage: &mut Stage) -> Result<Crowd> {
    stage.hold("RLOCK", LOCK, &[])?;
    let mut crowd = Crowd::connect(stage, REQUESTS)?;
    crowd.wait(&mut stage.server, wait)?;
    Ok(crowd)
}

fn arrive(stage: &mut Stage) -> Result<()> {
    stage.hold("RLOCK", LOCK, &[])?;
    let mut crowd = Crowd::connect(stage, REQUESTS)?;
    stage.watch(|server| crowd.wait(server, wait))
}

fn release(stage: &mut Stage) -> Result<()> {
    let mut crowd = crowd_that_waits(stage)?;
    stage.watch(|server| {
        stage::release(server, "RLOCK", LOCK, &[])?;
        crowd.hear(is_integer)
    })
}

fn close(stage: &mut Stage) -> Result<()> {
    let mut crowd = crowd_that_waits(stage)?;
    stage.watch(|server| {
        crowd.close_all();
        wait_for_waiting(server, 0)
    })
}

fn spread(stage: &mut Stage) -> Result<()> {
    let hold = |out: &mut Vec<u8>, index: usize| {
        let key = names::lock_key(index);
        out.extend_from_slice(&acquire("RLOCK", key.as_bytes(), HOLDER, &[b"PX", LONG_LEASE_MS]));
    };
    pipeline(stage.server.control(), REQUESTS, hold, is_integer)?;
    let wait = |index: usize| acquire("RLOCK", names::lock_key(index).as_bytes(), 0, &FOREVER);
    let mut crowd = Crowd::connect(stage, REQUESTS)?;
    stage.watch(|server| crowd.wait(server, wait))
}

fn numbered(stage: &mut Stage) -> Result<()> {
    let crowd = crowd_that_waits(stage)?;
    let mut connection = stage.connect()?;
    let owner = names::owner_id(0);
    let before_ns = stage.server.main_thread_cpu_ns()?;
    stage.watch(|_| {
        let attempt = |out: &mut Vec<u8>, index: usize| {
            let id = (index + 1).to_string();
            resp::push_command(out, &[b"RLOCK.ACQUIRE", LOCK, owner.as_bytes(), b"REQ", id.as_bytes()]);
        };
        pipeline(&mut connection, ATTEMPTS, attempt, is_nil)
    })?;
    let cpu_ns = stage.server.main_thread_cpu_ns()? - before_ns;
    let each_ms = cpu_ns as f64 / 1e6 / ATTEMPTS as f64;
    stage.add("server CPU of each, with the PINGs", Unit::Ms, Some(Aim::AtMost(0.3)), each_ms);
    drop(crowd);
    Ok(())
}
