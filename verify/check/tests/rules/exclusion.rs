//! Which owners may hold at the same time.

use crate::scripted::{ALONE, Scripted, acquire};
use rlock_check::history::{Call, Kind, Mode, Outcome, Rule};

#[test]
fn two_owners_at_once_are_reported() {
    let history = Scripted::mutex().granted(1, ALONE, 10, 5).granted(2, ALONE, 20, 6);
    assert_eq!(history.broken(), [Rule::Exclusion]);
}

#[test]
fn one_owner_after_the_other_is_allowed() {
    let history = Scripted::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 6);
    assert_eq!(history.broken(), []);
    let lapsed = Scripted::mutex().granted(1, ALONE, 10, 5).granted(2, ALONE, 30_020, 6);
    assert_eq!(lapsed.broken(), []);
}

#[test]
fn writer_beside_a_reader_is_reported() {
    let readers = Scripted::of(Kind::RwLock, 1).granted(1, Mode::Read, 10, 5).granted(2, Mode::Read, 20, 6);
    assert_eq!(readers.broken(), []);
    let writer = Scripted::of(Kind::RwLock, 1).granted(1, Mode::Read, 10, 5).granted(2, Mode::Write, 20, 6);
    assert_eq!(writer.broken(), [Rule::Exclusion]);
    let own = Scripted::of(Kind::RwLock, 1).granted(1, Mode::Write, 10, 5).granted(1, Mode::Read, 20, 6);
    assert_eq!(own.broken(), []);
}

#[test]
fn too_many_permits_are_reported() {
    let history = |second| {
        Scripted::of(Kind::Semaphore, 3)
            .call(1, Mode::Permits, 10, 11, acquire(2, None, None), Outcome::Granted(5))
            .call(2, Mode::Permits, 20, 21, acquire(second, None, None), Outcome::Granted(6))
    };
    assert_eq!(history(1).broken(), []);
    assert_eq!(history(2).broken(), [Rule::Permits]);
}

#[test]
fn unanswered_request_may_hold() {
    let history = |first| {
        Scripted::mutex().call(2, ALONE, 20, 30, acquire(1, Some(50), None), first).call(
            2,
            ALONE,
            33,
            34,
            Call::Look,
            Outcome::Number(1),
        )
    };
    assert_eq!(history(Outcome::Unknown).broken(), []);
    assert_eq!(history(Outcome::Unblocked).broken(), [Rule::NilIsFinal]);
}
