//! The configuration, set by `CONFIG SET rlock.*`, the configuration file, or arguments of
//! `loadmodule`.

use std::ffi::CStr;
use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicI64, Ordering};

use rlock_core::{GrantRules, Limits, MAX_LEASE_MS, MayGrant, QuarantineAfter};

use crate::ffi::{Args, ConfigSpec, LoadError, Registrar};

static DEFAULT_LEASE_MS: AtomicI64 = AtomicI64::new(0);
static MAX_WAITERS: AtomicI64 = AtomicI64::new(0);
static MAX_PLACES: AtomicI64 = AtomicI64::new(0);
static FAIR_GRACE_MS: AtomicI64 = AtomicI64::new(0);
static QUARANTINE_MS: AtomicI64 = AtomicI64::new(0);
static QUARANTINE_AFTER: AtomicI64 = AtomicI64::new(0);
static MAX_LEASE: AtomicI64 = AtomicI64::new(YEAR_MS);
static MIN_REPLICAS: AtomicI64 = AtomicI64::new(0);
static MAX_REPLICA_LAG_MS: AtomicI64 = AtomicI64::new(0);

const YEAR_MS: i64 = MAX_LEASE_MS.cast_signed();

/// Every setting. `redis.conf.example` explains each.
const SPECS: [ConfigSpec; 9] = [
    number(c"default-lease-ms", 30_000, 1..=YEAR_MS, &DEFAULT_LEASE_MS),
    number(c"max-lease-ms", YEAR_MS, 1..=YEAR_MS, &MAX_LEASE),
    number(c"max-waiters", 1_000_000, 0..=10_000_000, &MAX_WAITERS),
    number(c"max-places", 1_000_000, 0..=100_000_000, &MAX_PLACES),
    number(c"fair-grace-ms", 5000, 1..=YEAR_MS, &FAIR_GRACE_MS),
    number(c"quarantine-ms", 0, 0..=YEAR_MS, &QUARANTINE_MS),
    ConfigSpec {
        words: &[c"empty", c"restart", c"failover"],
        ..number(c"quarantine-after", 0, 0..=2, &QUARANTINE_AFTER)
    },
    number(c"min-replicas", 0, 0..=1000, &MIN_REPLICAS),
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
    registrar.load_configs()
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

/// The lease of a request without PX or EX, in milliseconds.
pub(crate) fn default_lease_ms() -> u64 {
    read(&DEFAULT_LEASE_MS).min(max_lease_ms())
}

/// The longest lease, in milliseconds.
pub(crate) fn max_lease_ms() -> u64 {
    read(&MAX_LEASE)
}

/// The length of a quarantine, in milliseconds.
pub(crate) fn quarantine_ms() -> u64 {
    read(&QUARANTINE_MS)
}

/// The events that begin a quarantine.
pub(crate) fn quarantine_after() -> QuarantineAfter {
    match read(&QUARANTINE_AFTER) {
        0 => QuarantineAfter::Empty,
        1 => QuarantineAfter::Restart,
        _ => QuarantineAfter::Failover,
    }
}

/// The number of replicas that must follow this master before it may grant.
pub(crate) fn min_replicas() -> u64 {
    read(&MIN_REPLICAS)
}

/// How long a master may grant after enough replicas last followed it, in milliseconds.
pub(crate) fn max_replica_lag_ms() -> u64 {
    read(&MAX_REPLICA_LAG_MS)
}

/// The settings that decide whether this server may grant.
#[inline]
pub(crate) fn grant_rules() -> GrantRules {
    GrantRules {
        quarantine_after: quarantine_after(),
        quarantine_ms: quarantine_ms(),
        min_replicas: min_replicas(),
        max_replica_lag_ms: max_replica_lag_ms(),
    }
}

/// The limits that the engine applies to a request.
pub(crate) fn limits(may_grant: MayGrant) -> Limits {
    Limits {
        max_waiters: usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).unwrap_or(0),
        max_places: usize::try_from(MAX_PLACES.load(Ordering::Relaxed)).unwrap_or(0),
        fair_grace_ms: read(&FAIR_GRACE_MS),
        max_lease_ms: max_lease_ms(),
        may_grant,
        marks_unclaimed: quarantine_after() != QuarantineAfter::Empty,
    }
}

/// Describes a contradiction between settings that would let two owners hold a lock after a restart
/// or failover. `None` if they agree, or if quarantines begin only for an empty data set.
pub(crate) fn contradiction(ping_period_s: Option<u64>) -> Option<String> {
    const MARGIN_MS: u64 = 1000;
    let lag_ms = match quarantine_after() {
        QuarantineAfter::Empty => return None,
        QuarantineAfter::Restart => 0,
        QuarantineAfter::Failover => max_replica_lag_ms(),
    };
    let needed_ms = max_lease_ms().saturating_add(lag_ms).saturating_add(MARGIN_MS);
    if quarantine_ms() < needed_ms {
        return Some(format!(
            "rlock.quarantine-ms is {}, and must be at least {needed_ms}: rlock.max-lease-ms {} + {lag_ms} + {MARGIN_MS}",
            quarantine_ms(),
            max_lease_ms()
        ));
    }
    if quarantine_after() == QuarantineAfter::Failover && min_replicas() == 0 {
        return Some("rlock.min-replicas is 0, so a former master goes on granting after a failover".to_owned());
    }
    if min_replicas() > 0 && ping_period_s.is_some_and(|period_s| period_s > 1) {
        return Some(
            "rlock.min-replicas needs repl-ping-replica-period 1, so that the replication stream grows each second"
                .to_owned(),
        );
    }
    None
}

fn read(place: &AtomicI64) -> u64 {
    place.load(Ordering::Relaxed).unsigned_abs()
}
