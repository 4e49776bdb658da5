//! The search of every path through a kind of world, see the documentation of `mod.rs`.

use std::collections::HashSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Instant;
use std::vec::Vec;

use super::action::Action;
use super::canonical;
use super::small_world::SmallWorld;
use super::walks::walk;
use crate::kind::Kind;

/// A kind of world.
pub(super) struct Setup {
    pub(super) kind: Kind,
    /// The purpose of the second key in a mixed world.
    pub(super) other_kind: Kind,
    pub(super) is_mixed: bool,
    pub(super) permits: u32,
    pub(super) keys: usize,
    /// Each turn makes one change, so that much work stops in the middle.
    pub(super) is_in_parts: bool,
    pub(super) actions: fn() -> Vec<Action>,
}

pub(super) const PLAIN: Setup = Setup {
    kind: Kind::Mutex,
    other_kind: Kind::Mutex,
    is_mixed: false,
    permits: 1,
    keys: 1,
    is_in_parts: false,
    actions: Vec::new,
};

/// The number of worlds, failovers included, which share the states.
const WORLDS: usize = 42;

/// The deepest possible search.
const MAX_DEPTH: usize = 16;

#[derive(Clone, Copy)]
struct Path {
    steps: [u8; MAX_DEPTH],
    len: u8,
}

impl Path {
    fn steps(&self) -> &[u8] {
        &self.steps[..usize::from(self.len)]
    }

    fn and(mut self, step: u8) -> Self {
        self.steps[usize::from(self.len)] = step;
        self.len += 1;
        self
    }
}

/// The least number of states of each world, if `RLOCK_WORLDS_STATES` gives one.
pub(super) fn wanted_states() -> Option<usize> {
    let states = std::env::var("RLOCK_WORLDS_STATES").ok()?;
    Some(states.parse::<usize>().expect("a number").div_ceil(WORLDS))
}

/// Tries everything up to some depth, then takes walks.
pub(super) fn search(name: &str, setup: &'static Setup) {
    let wanted = wanted_states().unwrap_or(1_000);
    let actions = (setup.actions)();
    assert!(actions.len() <= usize::from(u8::MAX));
    let mut known: HashSet<u64> = HashSet::new();
    let mut frontier = [Path { steps: [0; MAX_DEPTH], len: 0 }].to_vec();
    let (mut steps, mut depth, begin) = (0_u64, 0, Instant::now());
    while known.len() < wanted && depth < MAX_DEPTH {
        depth += 1;
        let mut next = Vec::new();
        for part in frontier.chunks(PART) {
            for (hash, path) in successors(setup, &actions, part) {
                steps += 1;
                if known.insert(hash) {
                    next.push(path);
                }
            }
        }
        frontier = next;
    }
    let (states, seconds) = (known.len(), begin.elapsed().as_secs());
    std::println!("{name}: {states} states, {steps} steps, {} actions, depth {depth}, {seconds} s", actions.len());
    assert!(known.len() >= wanted, "only {} states of {name} exist", known.len());
    walk(name, setup, &actions, u32::try_from(wanted / STATES_PER_WALK).unwrap_or(u32::MAX));
}

/// How many states cost as much as a walk. Each state costs one path from the beginning.
const STATES_PER_WALK: usize = 50;

/// How many paths the search extends at once.
const PART: usize = 1 << 16;

/// All successors of some paths, with the hashes of the states they lead to.
fn successors(setup: &'static Setup, actions: &[Action], paths: &[Path]) -> Vec<(u64, Path)> {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
    let share = paths.len().div_ceil(threads).max(1);
    std::thread::scope(|scope| {
        let work = paths.chunks(share).map(|share| {
            scope.spawn(move || share.iter().flat_map(|path| after(setup, actions, *path)).collect::<Vec<_>>())
        });
        let workers: Vec<_> = work.collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap_or_else(|panic| resume_unwind(panic))).collect()
    })
}

fn after(setup: &'static Setup, actions: &[Action], path: Path) -> Vec<(u64, Path)> {
    let mut found = Vec::new();
    for (step, action) in (0..).zip(actions) {
        let run = || {
            let mut world = SmallWorld::new(setup);
            world.world.is_repeated = true;
            for step in path.steps() {
                world.act(actions[usize::from(*step)]);
            }
            world.world.is_repeated = false;
            world.world.note_used();
            world.act(*action).then(|| {
                world.world.check();
                let hash = canonical::hash(&world.world, &world.connections);
                // The engine and the oracle may differ in a state with a known hash. The comparison
                // after this step shows that.
                world.act(Action::Timer);
                world.world.check();
                hash
            })
        };
        match catch_unwind(AssertUnwindSafe(run)) {
            Ok(hash) => found.extend(hash.map(|hash| (hash, path.and(step)))),
            Err(panic) => {
                for step in path.steps() {
                    std::eprintln!("  {:?}", actions[usize::from(*step)]);
                }
                std::eprintln!("  {action:?}, and the timer");
                resume_unwind(panic);
            }
        }
    }
    found
}
