//! The scenarios, one file per group.

use std::future::Future;
use std::pin::Pin;

use crate::broken::Broken;
use crate::world::World;

mod connections;
mod faults;
mod fleets;
mod holding;
mod kinds;
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
    /// Names that the program has to list in `features`.
    pub needs: &'static [&'static str],
    pub run: for<'a> fn(&'a World) -> Running<'a>,
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
        holding::ALL,
        faults::ALL,
        settling::ALL,
        connections::ALL,
        processes::ALL,
        fleets::ALL,
    ];
    groups.into_iter().flatten()
}
