//! Which owners may hold at the same time.

use crate::scripted::{ALONE, Scripted, acquire};
use rlock_check::beliefs;
use rlock_check::history::{Call, Kind, Mode, Outcome, Rule};
use rlock_check::rules::check;

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

#[test]
fn beliefs_are_written_for_porcupine() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("new/history");
    let lines = |history: Scripted| -> Vec<String> {
        let Scripted(mut history) = history;
        let violations = check(&mut history);
        beliefs::write(&path, history, &violations).expect("a writable folder");
        std::fs::read_to_string(&path).expect("a file").lines().map(str::to_owned).collect()
    };
    let two = lines(Scripted::mutex().granted(1, ALONE, 10, 5).released(1, ALONE, 15, 0).granted(2, ALONE, 20, 6));
    assert_eq!(two[0], r#"{"overlaps":0}"#);
    let first = r#"{"key":"k","owner":"1","sent":10000000,"from":11000000,"until":15000000,"takes":1,"of":1}"#;
    assert_eq!((two.len(), two[1].as_str()), (3, first));
    let overlap = lines(Scripted::mutex().granted(1, ALONE, 10, 5).granted(2, ALONE, 20, 6));
    assert_eq!(overlap[0], r#"{"overlaps":1}"#);
    let reads = lines(Scripted::of(Kind::RwLock, 1).granted(1, Mode::Read, 10, 5).granted(1, Mode::Write, 20, 6));
    assert!(reads[1].ends_with(r#""takes":1,"of":4294967295}"#), "{reads:?}");
    assert!(reads[2].ends_with(r#""takes":4294967295,"of":4294967295}"#), "{reads:?}");
    let permits = lines(Scripted::of(Kind::Semaphore, 3).call(
        1,
        Mode::Permits,
        10,
        11,
        acquire(2, None, None),
        Outcome::Granted(5),
    ));
    assert!(
        permits[1].contains(r#""owner":"1-0","sent":11000000,"from":11000000"#)
            && permits[1].ends_with(r#""takes":2,"of":3}"#),
        "{permits:?}"
    );
}
