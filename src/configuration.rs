//! The configuration, set by `CONFIG SET rlock.*`, the configuration file, or arguments of
//! `loadmodule`.

use std::ffi::CStr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

use rlock_core::{ExclusionMode, Limits, MAX_LEASE_MS, MayGrant, Settings};

use crate::ffi::{Args, ConfigSpec, LoadError, Registrar};

static DEFAULT_LEASE_MS: AtomicI64 = AtomicI64::new(0);
static MAX_WAITERS: AtomicI64 = AtomicI64::new(0);
static MAX_PLACES: AtomicI64 = AtomicI64::new(0);
static FAIR_GRACE_MS: AtomicI64 = AtomicI64::new(0);
static MAX_LEASE: AtomicI64 = AtomicI64::new(YEAR_MS);
static EXCLUSION: AtomicI64 = AtomicI64::new(0);
static REPLICAS: AtomicI64 = AtomicI64::new(0);
static MAX_REPLICA_LAG_MS: AtomicI64 = AtomicI64::new(0);

const YEAR_MS: i64 = MAX_LEASE_MS.cast_signed();

/// Every setting. `redis.conf.example` explains each.
const SPECS: [ConfigSpec; 8] = [
    number(c"default-lease-ms", 30_000, 1..=YEAR_MS, &DEFAULT_LEASE_MS),
    number(c"max-lease-ms", YEAR_MS, 1..=YEAR_MS, &MAX_LEASE),
    number(c"max-waiters", 1_000_000, 0..=10_000_000, &MAX_WAITERS),
    number(c"max-places", 10_000, 0..=10_000, &MAX_PLACES),
    number(c"fair-grace-ms", 5000, 1..=YEAR_MS, &FAIR_GRACE_MS),
    ConfigSpec { words: &[c"off", c"restart", c"failover"], ..number(c"exclusion", 0, 0..=2, &EXCLUSION) },
    number(c"replicas", 0, 0..=1000, &REPLICAS),
    // At least 3 s: the master pings once a second, and replicas acknowledge once a second.
    number(c"max-replica-lag-ms", 3000, 3000..=YEAR_MS, &MAX_REPLICA_LAG_MS),
];

const fn number(
    name: &'static CStr,
    default: i64,
    range: RangeInclusive<i64>,
    place: &'static AtomicI64,
) -> ConfigSpec {
    ConfigSpec { name, default, min: *range.start(), max: *range.end(), place, words: &[] }
}

/// Registers the settings. Arguments of `loadmodule` (`name value …`) replace the defaults; the
/// configuration file and CONFIG SET override both.
pub(crate) fn register(registrar: &Registrar<'_>, args: Args<'_>) -> Result<(), LoadError> {
    let mut defaults = SPECS.map(|spec| spec.default);
    let mut index = 0;
    while let Some(name) = args.get(index) {
        let name = String::from_utf8_lossy(name.bytes()).into_owned();
        let (spec, default) = SPECS
            .iter()
            .zip(&mut defaults)
            .find(|(spec, _)| spec.name.to_bytes() == name.as_bytes())
            .ok_or_else(|| LoadError(format!("unknown argument '{name}'; expected {}", known_names())))?;
        let value =
            args.get(index.saturating_add(1)).ok_or_else(|| LoadError(format!("the argument {name} needs a value")))?;
        *default = parsed(spec, value.bytes())?;
        index = index.saturating_add(2);
    }
    for (spec, default) in SPECS.iter().zip(defaults) {
        registrar.config(spec, default)?;
    }
    registrar.load_configs()?;
    check().map_err(LoadError)
}

/// Checks that the settings agree. The server calls it after CONFIG SET has changed one or several,
/// and takes the changes back if it fails.
pub(crate) fn check() -> Result<(), String> {
    exclusion().check().map_err(|contradiction| contradiction.to_string())
}

/// Parses the value of an argument of `loadmodule`.
fn parsed(spec: &ConfigSpec, value: &[u8]) -> Result<i64, LoadError> {
    let name = spec.name.to_string_lossy();
    let received = String::from_utf8_lossy(value);
    if !spec.words.is_empty() {
        let index = spec.words.iter().position(|word| word.to_bytes().eq_ignore_ascii_case(value));
        let known = || spec.words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(", ");
        return index
            .and_then(|index| i64::try_from(index).ok())
            .ok_or_else(|| LoadError(format!("the argument {name} must be one of {}, not '{received}'", known())));
    }
    let number = std::str::from_utf8(value).ok().and_then(|value| value.parse().ok());
    number.filter(|value| (spec.min..=spec.max).contains(value)).ok_or_else(|| {
        let (min, max) = (spec.min, spec.max);
        LoadError(format!("the argument {name} must be an integer from {min} to {max}, not '{received}'"))
    })
}

fn known_names() -> String {
    SPECS.map(|spec| spec.name.to_string_lossy().into_owned()).join(", ")
}

/// The lease of a request without PX or EX, in milliseconds, unless the longest lease is shorter.
pub(crate) fn default_lease_ms() -> u64 {
    read(&DEFAULT_LEASE_MS)
}

/// The settings for exclusion.
pub(crate) fn exclusion() -> Settings {
    Settings {
        mode: match read(&EXCLUSION) {
            0 => ExclusionMode::Off,
            1 => ExclusionMode::Restart,
            _ => ExclusionMode::Failover,
        },
        replicas: read(&REPLICAS),
        max_lease_ms: read(&MAX_LEASE),
        max_lag_ms: read(&MAX_REPLICA_LAG_MS),
    }
}

/// The limits that the engine applies to a request.
pub(crate) fn limits(may_grant: MayGrant, max_lease_ms: u64) -> Limits {
    Limits {
        max_waiters: usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).unwrap_or(0),
        max_places: usize::try_from(MAX_PLACES.load(Ordering::Relaxed)).unwrap_or(0),
        fair_grace_ms: read(&FAIR_GRACE_MS),
        max_lease_ms,
        may_grant,
    }
}

fn read(place: &AtomicI64) -> u64 {
    place.load(Ordering::Relaxed).unsigned_abs()
}
