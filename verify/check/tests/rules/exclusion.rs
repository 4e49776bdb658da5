//! Who may hold at the same time.

use crate::told::{ALONE, Told, acquire};
use rlock_check::history::{Call, Kind, Mode, Outcome, Rule};

#[test]
fn two_owners_at_once() {
    let told = Told::mutex().granted(1, ALONE, 10, 5).granted(2, ALONE, 20, 6);
    assert_eq!(told.broken(), [Rule::Exclusion]);
}

#[test]
fn one_after_the_other_is_right() {
    let told = Told::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 6);
    assert_eq!(told.broken(), []);
    let lapsed = Told::mutex().granted(1, ALONE, 10, 5).granted(2, ALONE, 30_020, 6);
    assert_eq!(lapsed.broken(), []);
}

#[test]
fn readers_and_a_writer() {
    let readers = Told::of(Kind::RwLock, 1).granted(1, Mode::Read, 10, 5).granted(2, Mode::Read, 20, 6);
    assert_eq!(readers.broken(), []);
    let writer = Told::of(Kind::RwLock, 1).granted(1, Mode::Read, 10, 5).granted(2, Mode::Write, 20, 6);
    assert_eq!(writer.broken(), [Rule::Exclusion]);
    let own = Told::of(Kind::RwLock, 1).granted(1, Mode::Write, 10, 5).granted(1, Mode::Read, 20, 6);
    assert_eq!(own.broken(), []);
}

#[test]
fn more_permits_than_there_are() {
    let told =
        |second| {
            Told::of(Kind::Semaphore, 3)
                .call(1, Mode::Permits, 10, 11, acquire(2, None, None), Outcome::Granted(5))
                .call(2, Mode::Permits, 20, 21, acquire(second, None, None), Outcome::Granted(6))
        };
    assert_eq!(told(1).broken(), []);
    assert_eq!(told(2).broken(), [Rule::Permits]);
}

#[test]
fn who_was_not_answered_may_hold() {
    let told = |first| {
        Told::mutex().call(2, ALONE, 20, 30, acquire(1, Some(50), None), first).call(
            2,
            ALONE,
            33,
            34,
            Call::Look,
            Outcome::Number(1),
        )
    };
    assert_eq!(told(Outcome::Unknown).broken(), []);
    assert_eq!(told(Outcome::Unblocked).broken(), [Rule::NilIsFinal]);
}
