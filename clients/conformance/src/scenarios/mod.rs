//! The scenarios, one file per group.

use std::future::Future;
use std::pin::Pin;

use crate::broken::Broken;
use crate::world::World;

mod connections;
mod durations;
mod faults;
mod fleets;
mod grants;
mod holding;
mod kinds;
mod limits;
mod losses;
mod outages;
mod processes;
mod settling;
mod waiting;

pub use faults::bad_weather;

type Running<'a> = Pin<Box<dyn Future<Output = Result<(), Broken>> + Send + 'a>>;

pub struct Scenario {
    pub name: &'static str,
    /// The rules that the scenario checks.
    pub rules: &'static str,
    /// Whether the short form includes it.
    pub is_short: bool,
    /// Abilities that the program has to list in `features`, or what not every package keeps yet: a rule, or `timed`.
    pub needs: &'static [&'static str],
    pub run: for<'a> fn(&'a World) -> Running<'a>,
}

impl Scenario {
    /// What only programs which list it must keep.
    pub fn gate(&self) -> Option<&'static str> {
        self.needs.iter().copied().find(|need| is_gate(need))
    }

    /// The abilities without which it cannot run.
    pub fn abilities(&self) -> impl Iterator<Item = &'static str> {
        self.needs.iter().copied().filter(|need| !is_gate(need))
    }
}

/// `timed` is the protocol in which each grant says for how long it can be believed.
fn is_gate(need: &str) -> bool {
    need == "timed" || need.strip_prefix('B').is_some_and(|number| number.parse::<u32>().is_ok())
}

/// A table of scenarios: `short` or `long`, name, rules, needed features, function.
macro_rules! scenarios {
    ($($form:ident $name:literal, $rules:literal, [$($need:literal),*], $function:expr;)+) => {
        pub const ALL: &[$crate::scenarios::Scenario] = &[$($crate::scenarios::Scenario {
            name: $name,
            rules: $rules,
            is_short: stringify!($form).len() == "short".len(),
            needs: &[$($need),*],
            run: |world| Box::pin($function(world)),
        }),+];
    };
}
pub(crate) use scenarios;

pub fn all() -> impl Iterator<Item = &'static Scenario> {
    let groups = [
        kinds::ALL,
        waiting::ALL,
        grants::ALL,
        holding::ALL,
        faults::ALL,
        limits::ALL,
        durations::ALL,
        outages::ALL,
        losses::ALL,
        settling::ALL,
        connections::ALL,
        processes::ALL,
        fleets::ALL,
    ];
    groups.into_iter().flatten()
}
