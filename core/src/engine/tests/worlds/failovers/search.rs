//! The search of every path, level by level. A path is walked from the beginning once for each
//! level, so only the hashes of states are kept.

use std::collections::HashMap;
use std::time::Instant;
use std::vec::Vec;

use super::Setup;
use super::action::Action;
use super::fault::Fault;
use super::world::World;

/// The number of states that showed each event.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reached {
    pub(super) lost_suffixes: u64,
    pub(super) under_both: u64,
    pub(super) ended: u64,
    pub(super) granted_after: u64,
}

pub(super) struct Search {
    actions: Vec<Action>,
    /// States, each with its depth and the last level at which it was walked through.
    known: HashMap<u64, (u8, u8)>,
    path: Vec<Action>,
    pub(super) steps: u64,
    pub(super) depth: u8,
    pub(super) reached: Reached,
    /// The shortest schedule with an overlap.
    pub(super) overlap: Option<Vec<Action>>,
    begin: Instant,
}

impl Search {
    /// Searches until there are enough states, or a depth is reached, or two owners believe.
    pub(super) fn run(setup: &Setup, fault: Fault, states: usize, max_depth: u8) -> Self {
        let mut search = Self {
            actions: setup.actions.clone(),
            known: HashMap::new(),
            path: Vec::new(),
            steps: 0,
            depth: 0,
            reached: Reached::default(),
            overlap: None,
            begin: Instant::now(),
        };
        let world = World::new(setup, fault);
        search.known.insert(world.hash(), (0, 0));
        while search.known.len() < states && search.depth < max_depth && search.overlap.is_none() {
            search.depth += 1;
            let before = search.known.len();
            search.walk(&world, 0);
            if search.known.len() == before {
                break;
            }
        }
        search
    }

    pub(super) fn states(&self) -> usize {
        self.known.len()
    }

    /// In the form that scripts/worlds reads.
    pub(super) fn line(&self, name: &str) -> std::string::String {
        let (states, actions) = (self.states(), self.actions.len());
        let seconds = self.begin.elapsed().as_secs();
        std::format!(
            "{name}: {states} states, {} steps, {actions} actions, depth {}, {seconds} s",
            self.steps,
            self.depth
        )
    }

    /// The shortest schedule with an overlap, in words.
    pub(super) fn schedule(&self) -> std::string::String {
        let steps: Vec<_> = self.overlap.iter().flatten().map(std::string::ToString::to_string).collect();
        steps.join("; ")
    }

    fn walk(&mut self, world: &World<'_>, depth: u8) {
        for at in 0..self.actions.len() {
            let action = self.actions[at];
            let mut next = world.clone();
            self.path.push(action);
            if !next.act(action) {
                self.path.pop();
                continue;
            }
            let (hash, next_depth) = (next.hash(), depth + 1);
            if next_depth == self.depth {
                self.steps += 1;
                let is_new = !self.known.contains_key(&hash);
                if is_new {
                    self.known.insert(hash, (next_depth, next_depth));
                    self.reach(&next);
                }
                if next.overlaps() {
                    self.overlap = Some(self.path.clone());
                    return;
                }
            } else {
                let known = self.known.get_mut(&hash).expect("a state of an earlier level");
                if known.0 == next_depth && known.1 < self.depth {
                    known.1 = self.depth;
                    self.walk(&next, next_depth);
                }
            }
            if self.overlap.is_some() {
                return;
            }
            self.path.pop();
        }
    }

    fn reach(&mut self, world: &World<'_>) {
        let (shown, reached) = (world.shown, &mut self.reached);
        reached.lost_suffixes += u64::from(shown.lost_suffix);
        reached.under_both += u64::from(shown.under_both);
        reached.ended += u64::from(shown.ended);
        reached.granted_after += u64::from(shown.granted_after);
    }
}

impl Drop for Search {
    /// If a step panics, prints the path that led to it.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.path.iter().for_each(|action| std::eprintln!("  {action:?}"));
        }
    }
}
