//! The configuration: `CONFIG GET rlock.*`, the configuration file, and arguments of `loadmodule`.

use std::sync::atomic::{AtomicI64, Ordering};

use rlock_core::{Limits, MAX_LEASE_MS};

use crate::ffi::{Args, ConfigSpec, LoadError, Registrar};

static DEFAULT_LEASE_MS: AtomicI64 = AtomicI64::new(0);
static MAX_WAITERS: AtomicI64 = AtomicI64::new(0);
static MAX_PLACES: AtomicI64 = AtomicI64::new(0);
static FAIR_GRACE_MS: AtomicI64 = AtomicI64::new(0);
static QUARANTINE_MS: AtomicI64 = AtomicI64::new(0);

const YEAR_MS: i64 = MAX_LEASE_MS.cast_signed();

/// Every number that can be configured. redis.conf.example explains each.
const SPECS: [ConfigSpec; 5] = [
    ConfigSpec { name: c"default-lease-ms", default: 30_000, min: 1, max: YEAR_MS, place: &DEFAULT_LEASE_MS },
    ConfigSpec { name: c"max-waiters", default: 1_000_000, min: 0, max: 10_000_000, place: &MAX_WAITERS },
    ConfigSpec { name: c"max-places", default: 1_000_000, min: 0, max: 100_000_000, place: &MAX_PLACES },
    ConfigSpec { name: c"fair-grace-ms", default: 5000, min: 1, max: YEAR_MS, place: &FAIR_GRACE_MS },
    ConfigSpec { name: c"quarantine-ms", default: 0, min: 0, max: YEAR_MS, place: &QUARANTINE_MS },
];

/// Registers the configuration. Arguments of `loadmodule` (`name value …`) stand in for the defaults; the configuration
/// file and CONFIG SET have the last word.
pub(crate) fn register(registrar: &Registrar<'_>, args: Args<'_>) -> Result<(), LoadError> {
    let mut defaults = SPECS.map(|spec| spec.default);
    let mut index = 0;
    while let Some(name) = args.get(index) {
        let name = String::from_utf8_lossy(name.bytes()).into_owned();
        let (spec, default) = SPECS
            .iter()
            .zip(&mut defaults)
            .find(|(spec, _)| spec.name.to_bytes() == name.as_bytes())
            .ok_or_else(|| LoadError(format!("there is no argument {name}; known are {}", known_names())))?;
        let value =
            args.get(index.saturating_add(1)).ok_or_else(|| LoadError(format!("the argument {name} has no value")))?;
        *default = std::str::from_utf8(value.bytes())
            .ok()
            .and_then(|value| value.parse().ok())
            .filter(|value| (spec.min..=spec.max).contains(value))
            .ok_or_else(|| {
                LoadError(format!("the argument {name} must be a whole number from {} to {}", spec.min, spec.max))
            })?;
        index = index.saturating_add(2);
    }
    for (spec, default) in SPECS.iter().zip(defaults) {
        registrar.config(spec, default)?;
    }
    registrar.load_configs()
}

fn known_names() -> String {
    SPECS.map(|spec| spec.name.to_string_lossy().into_owned()).join(", ")
}

/// The lease of an ACQUIRE that names none.
pub(crate) fn default_lease_ms() -> u64 {
    DEFAULT_LEASE_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// How long nothing is granted after the data set was found empty.
pub(crate) fn quarantine_ms() -> u64 {
    QUARANTINE_MS.load(Ordering::Relaxed).unsigned_abs()
}

/// What the server allows.
pub(crate) fn limits(is_quarantined: bool) -> Limits {
    Limits {
        max_waiters: usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).unwrap_or(0),
        max_places: usize::try_from(MAX_PLACES.load(Ordering::Relaxed)).unwrap_or(0),
        fair_grace_ms: FAIR_GRACE_MS.load(Ordering::Relaxed).unsigned_abs(),
        is_quarantined,
    }
}
