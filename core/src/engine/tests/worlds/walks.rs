//! Long walks: the search tries everything up to a dozen steps, and a walk takes up to 200 random
//! steps beside the same oracles. Walks find failures that need many steps, and then minimize them.

use std::vec::Vec;

use proptest::collection::vec;
use proptest::test_runner::{Config, TestError, TestRunner};

use super::action::Action;
use super::search::Setup;
use super::small_world::SmallWorld;

const MOST_STEPS: usize = 200;

/// Takes `walks` walks through a kind of world.
pub(super) fn walk(name: &str, setup: &'static Setup, actions: &[Action], walks: u32) {
    let mut runner = TestRunner::new(Config { cases: walks, failure_persistence: None, ..Config::default() });
    let walked = runner.run(&vec(0..actions.len(), 1..=MOST_STEPS), |steps| {
        let mut world = SmallWorld::new(setup);
        for step in steps {
            world.act(actions[step]);
            world.world.check();
        }
        // Compares both sides after a run of the timer.
        world.act(Action::Timer);
        world.world.check();
        Ok(())
    });
    if let Err(TestError::Fail(why, steps)) = walked {
        let steps: Vec<&Action> = steps.iter().map(|step| &actions[*step]).collect();
        panic!("{name}: {why}, after {steps:#?}, and the timer");
    }
}
