//! The costs of a crash: of a holder, and of Redis.
//!
//! All peers run at the same time here. They mostly wait, for up to half a minute, and would take
//! hours in turns.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};

use crate::clock;
use crate::measure::LEASE_MS;
use crate::peer::{Contestant, Kind};
use crate::program::{Assignment, Program};
use crate::records::{self, Record};
use crate::server::{Server, Servers};

pub const HOLDER: &str = "holder killed, 10 waiters";
pub const RESTART: &str = "Redis killed and restarted";

const WAITERS: usize = 10;
/// The time between the deaths of two holders, so that they do not disturb each other.
const BETWEEN_DEATHS: Duration = Duration::from_millis(100);
/// No next holder is expected after this time: the lease and 15 s.
const PATIENCE: Duration = Duration::from_millis(LEASE_MS + 15_000);
const SETTLE: Duration = Duration::from_secs(1);

const RESTART_CLIENTS: usize = 4;
const RESTART_SECTION_US: u64 = 5000;
const BEFORE_RESTART: Duration = Duration::from_secs(2);
const RESTART_SECONDS: f64 = 12.0;
/// Short, because a client that loses the answer to a release and does not repeat it keeps the lock
/// this long, and the run has to show that.
const RESTART_LEASE_MS: u64 = 5000;

/// The result of one contestant.
pub type Outcome<'c> = (&'c Contestant, Result<Vec<(&'static str, f64)>>);

fn assignment(server: &Server, contestant: &Contestant) -> Assignment {
    Assignment {
        server: server.address(),
        lock: "mutex".to_owned(),
        clients: 1,
        first: 0,
        locks: 1,
        key: format!("peers-crash-{}", contestant.id().replace('/', "-")),
        seconds: 90.0,
        section_us: 1000,
        lease_ms: LEASE_MS,
        permits: 1,
        hold: false,
        stream: false,
    }
}

/// A holder, its waiters, and when it died.
struct Scene {
    holder: Program,
    waiters: Program,
    died_ns: u64,
}

/// Kills the holders one after the other, and measures the time to the next holder of each lock.
pub fn kill_holders<'c>(servers: &Servers, contestants: &[&'c Contestant], folder: &Path) -> Vec<Outcome<'c>> {
    // A server that does not start fails only the peers that need it.
    let mut running: Vec<(Kind, Result<Server>)> = Vec::new();
    let mut scenes = Vec::new();
    for contestant in contestants {
        let kind = contestant.kind();
        if !running.iter().any(|(of, _)| *of == kind) {
            running.push((kind.clone(), servers.start(&kind, false)));
        }
        let server = running.iter().find(|(of, _)| *of == kind).map(|(_, server)| server);
        let scene = match server {
            Some(Ok(server)) => Scene::prepare(server, contestant, folder),
            Some(Err(error)) => Err(anyhow!("{error:#}")),
            None => Err(anyhow!("no server was started for it")),
        };
        scenes.push((*contestant, scene));
    }
    // All programs start before any lock is taken, because not every holder renews its lease.
    for step in [Scene::get_ready, Scene::hold, Scene::wait] {
        for (_, scene) in &mut scenes {
            if let Ok(ready) = scene
                && let Err(error) = step(ready)
            {
                *scene = Err(error);
            }
        }
    }
    std::thread::sleep(SETTLE);
    for (_, scene) in &mut scenes {
        if let Ok(scene) = scene {
            scene.died_ns = clock::monotonic_ns();
            scene.holder.kill();
            std::thread::sleep(BETWEEN_DEATHS);
        }
    }
    wait_for_next(scenes)
}

impl Scene {
    fn prepare(server: &Server, contestant: &Contestant, folder: &Path) -> Result<Self> {
        let name = contestant.id().replace('/', "-");
        let waiting = Assignment { clients: WAITERS, first: 1, stream: true, ..assignment(server, contestant) };
        let holding = Assignment { hold: true, ..assignment(server, contestant) };
        let holder = Program::start(contestant, &holding, folder, &format!("{name}-holder"))?;
        let waiters = Program::start(contestant, &waiting, folder, &format!("{name}-waiters"))?;
        Ok(Self { holder, waiters, died_ns: 0 })
    }

    fn get_ready(&mut self) -> Result<()> {
        self.holder.wait_until_ready()?;
        self.waiters.wait_until_ready()
    }

    fn hold(&mut self) -> Result<()> {
        self.holder.go()?;
        self.holder.wait_until_held()
    }

    fn wait(&mut self) -> Result<()> {
        self.waiters.go()
    }
}

fn wait_for_next<'c>(scenes: Vec<(&'c Contestant, Result<Scene>)>) -> Vec<Outcome<'c>> {
    let deadline = clock::now() + PATIENCE;
    let mut outcomes = Vec::new();
    let mut open = Vec::new();
    for (contestant, scene) in scenes {
        match scene {
            Ok(scene) => open.push((contestant, scene)),
            Err(error) => outcomes.push((contestant, Err(error))),
        }
    }
    while !open.is_empty() && clock::now() < deadline {
        std::thread::sleep(Duration::from_millis(2));
        open.retain_mut(|(contestant, scene)| match scene.waiters.next_got_ns() {
            Some(got_ns) => {
                let waited_ms = (got_ns as f64 - scene.died_ns as f64) / 1e6;
                let figures = if waited_ms < 0.0 {
                    Err(anyhow!("a waiter got the lock while its holder was alive"))
                } else {
                    Ok(vec![("next_holder_ms", waited_ms)])
                };
                outcomes.push((*contestant, figures));
                // The lock is passed among the waiters from now on. Another measurement covers
                // that.
                scene.waiters.kill();
                false
            }
            None => true,
        });
    }
    let nobody = || Err(anyhow!("no client got the lock within {PATIENCE:?} after its holder died"));
    outcomes.extend(open.into_iter().map(|(contestant, _)| (contestant, nobody())));
    outcomes
}

/// Kills Redis under load and restarts it with its append-only file: how long no client gets a
/// lock, and which holds are lost.
pub fn restart_redis<'c>(servers: &Servers, contestants: &[&'c Contestant], folder: &Path) -> Vec<Outcome<'c>> {
    let mut outcomes = Vec::new();
    let mut kinds: Vec<Kind> = Vec::new();
    for kind in contestants.iter().map(|contestant| contestant.kind()).filter(Kind::is_redis) {
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    for kind in kinds {
        let of_kind: Vec<&Contestant> = contestants.iter().copied().filter(|c| c.kind() == kind).collect();
        match restart(servers, &kind, &of_kind, folder) {
            Ok(mut of_kind) => outcomes.append(&mut of_kind),
            Err(error) => {
                outcomes.extend(of_kind.into_iter().map(|contestant| (contestant, Err(anyhow!("{error:#}")))))
            }
        }
    }
    outcomes
}

fn restart<'c>(
    servers: &Servers,
    kind: &Kind,
    contestants: &[&'c Contestant],
    folder: &Path,
) -> Result<Vec<Outcome<'c>>> {
    let mut server = servers.start(kind, true)?;
    let mut programs = Vec::new();
    for contestant in contestants {
        let work = Assignment {
            clients: RESTART_CLIENTS,
            seconds: RESTART_SECONDS,
            section_us: RESTART_SECTION_US,
            lease_ms: RESTART_LEASE_MS,
            ..assignment(&server, contestant)
        };
        let name = format!("{}-restart", contestant.id().replace('/', "-"));
        let started = Program::start(contestant, &work, folder, &name);
        let ready = started.and_then(|mut program| program.wait_until_ready().map(|()| program));
        programs.push((*contestant, ready));
    }
    for (_, program) in &mut programs {
        if let Ok(ready) = program
            && let Err(error) = ready.go()
        {
            *program = Err(error);
        }
    }
    std::thread::sleep(BEFORE_RESTART);
    let killed_ns = clock::monotonic_ns();
    server.crash_and_restart()?;
    let answered_ns = clock::monotonic_ns();
    let outcomes = programs.into_iter().map(|(contestant, program)| {
        let figures = program
            .and_then(Program::finish)
            .and_then(|outcome| after_restart(&outcome.records, outcome.errors, killed_ns, answered_ns));
        (contestant, figures)
    });
    Ok(outcomes.collect())
}

fn after_restart(
    records: &[Record],
    errors: u64,
    killed_ns: u64,
    answered_ns: u64,
) -> Result<Vec<(&'static str, f64)>> {
    let since = |ns: u64| (ns as f64 - killed_ns as f64) / 1e6;
    let next = records.iter().map(|record| record.got_ns).filter(|got_ns| *got_ns > answered_ns).min();
    let next = next.context("no client got a lock after the restart")?;
    Ok(vec![
        ("server_back_ms", since(answered_ns)),
        ("next_holder_ms", since(next)),
        ("errors", errors as f64),
        ("overlaps", records::overlaps(records, 1) as f64),
    ])
}
