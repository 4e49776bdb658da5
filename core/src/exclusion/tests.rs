use super::*;
use alloc::boxed::Box;
use alloc::string::ToString;
use alloc::vec::Vec;

const SETTINGS: Settings = Settings { mode: Mode::Failover, replicas: 2, max_lease_ms: 10, max_lag_ms: 3 };

/// A server at a moment, in microseconds, with what its replicas have acknowledged. The moment is
/// the offset of its stream, too.
struct Server<'a>(u64, &'a [u64]);

impl Readings for Server<'_> {
    fn clock_us(&mut self) -> u64 {
        self.0
    }

    fn replication(&mut self) -> Replication {
        let replicas = self.1.iter().enumerate();
        let replicas: Vec<(Box<str>, u64)> = replicas.map(|(number, by)| (number.to_string().into(), *by)).collect();
        Replication { offset: self.0, replicas }
    }
}

fn started(settings: Settings, has_keys: bool) -> Exclusion {
    let mut exclusion = Exclusion::without_margin();
    exclusion.on_settings(settings, 0);
    assert!(!exclusion.has_started());
    exclusion.on_started(true, has_keys, 0);
    exclusion
}

fn tick(exclusion: &mut Exclusion, now_us: u64, acknowledged: &[u64]) -> Option<MayGrant> {
    exclusion.on_tick(true, &mut Server(now_us, acknowledged))
}

/// A tick in each half millisecond, with replicas that have acknowledged all. Returns what was
/// reported, with the moments in milliseconds.
fn follow(exclusion: &mut Exclusion, from_ms: u64, to_ms: u64, replicas: usize) -> Vec<(u64, MayGrant)> {
    let moments = (from_ms * 1000..to_ms * 1000).step_by(500);
    let reported = moments.filter_map(|now| Some((now / 1000, tick(exclusion, now, &alloc::vec![now; replicas])?)));
    reported.collect()
}

#[test]
fn each_change_is_reported_once() {
    use MayGrant::{NoReplicas, Quarantine, Yes};
    let mut exclusion = started(SETTINGS, true);
    assert_eq!(follow(&mut exclusion, 1, 4, 1), [(1, NoReplicas)]);
    assert_eq!((exclusion.needed(), exclusion.following(), exclusion.acknowledging()), (1, 0, 1));
    assert_eq!(follow(&mut exclusion, 4, 14, 1), [(4, Quarantine { left_ms: 10 })]);
    assert_eq!((exclusion.following(), exclusion.paused_ms(13_000)), (1, 12));
    assert_eq!(follow(&mut exclusion, 14, 20, 1), [(14, Yes)]);
    assert_eq!(exclusion.may_grant(21_999), Yes);
    assert_eq!(exclusion.may_grant(22_000), NoReplicas, "the last acknowledged bytes are 3 ms old");
    assert_eq!(follow(&mut exclusion, 23, 25, 1), [(23, NoReplicas), (23, Yes)]);
    exclusion.paused_since_us = Some(24_600);
    assert_eq!(follow(&mut exclusion, 25, 26, 1), [(25, Yes)], "a pause between two ticks is reported, too");
    assert_eq!(exclusion.paused_ms(26_000), 0);
    let mut replica = exclusion.clone();
    assert_eq!(replica.on_tick(false, &mut Server(26_000, &[])), None, "a replica reports nothing");
    assert_eq!(replica.may_grant(26_000), NoReplicas);
}

#[test]
fn a_right_that_begins_anew_in_a_quarantine_begins_that_anew() {
    let mut exclusion = started(SETTINGS, true);
    assert_eq!(follow(&mut exclusion, 1, 6, 1).last(), Some(&(4, MayGrant::Quarantine { left_ms: 10 })));
    tick(&mut exclusion, 6_000, &[]);
    assert_eq!(follow(&mut exclusion, 7, 25, 1).last(), Some(&(20, MayGrant::Yes)), "it counts at 10");
}

#[test]
fn a_pause_ends_at_a_tick() {
    let mut exclusion = started(Settings { mode: Mode::Restart, replicas: 0, ..SETTINGS }, true);
    assert_eq!(exclusion.may_grant(9_001), MayGrant::Quarantine { left_ms: 1 });
    assert_eq!(exclusion.may_grant(20_000), MayGrant::Quarantine { left_ms: 1 }, "the engine was not told");
    assert_eq!(tick(&mut exclusion, 20_000, &[]), Some(MayGrant::Yes));
    assert_eq!(exclusion.may_grant(20_000), MayGrant::Yes);
}

#[test]
fn starts_that_begin_a_quarantine() {
    let may_grant = |mode, max_lease_ms, has_keys| {
        let settings = Settings { mode, replicas: 0, max_lease_ms, max_lag_ms: 3 };
        started(settings, has_keys).may_grant(0) == MayGrant::Yes
    };
    assert!(!may_grant(Mode::Restart, 10, true) && !may_grant(Mode::Restart, 10, false));
    assert!(may_grant(Mode::Off, 10, true) && !may_grant(Mode::Off, 10, false), "a guard for an empty start");
    assert!(may_grant(Mode::Off, crate::MAX_LEASE_MS, false), "but not without a longest lease");
    let mut replica = Exclusion::without_margin();
    replica.on_settings(Settings { mode: Mode::Off, ..SETTINGS }, 0);
    replica.on_started(false, false, 0);
    replica.on_promoted(true, 1);
    assert_eq!(replica.may_grant(1), MayGrant::Yes, "a replica that has copied data");
    replica.on_promoted(false, 2);
    assert_eq!(replica.may_grant(2), MayGrant::Quarantine { left_ms: 10 });
}

#[test]
fn off_ends_a_quarantine_and_needs_no_replicas() {
    let mut exclusion = started(SETTINGS, true);
    assert_eq!(exclusion.may_grant(1), MayGrant::NoReplicas);
    exclusion.on_settings(Settings { mode: Mode::Off, ..SETTINGS }, 2);
    assert_eq!(tick(&mut exclusion, 3, &[]), Some(MayGrant::Yes));
    exclusion.on_settings(SETTINGS, 4);
    assert_eq!(exclusion.may_grant(4), MayGrant::NoReplicas, "the promise begins anew");
}

#[test]
fn more_replicas_than_the_settings_allow_for_stop_grants() {
    let mut exclusion = started(SETTINGS, true);
    follow(&mut exclusion, 1, 20, 2);
    assert_eq!(exclusion.may_grant(19_500), MayGrant::Yes);
    assert_eq!(follow(&mut exclusion, 20, 22, 3), [(20, MayGrant::TooManyReplicas)]);
    exclusion.on_settings(Settings { replicas: 3, ..SETTINGS }, 22_000);
    assert_eq!(follow(&mut exclusion, 22, 25, 3), [(22, MayGrant::Yes)], "two of them have votes that count");
}

#[test]
fn a_lowered_lag_counts_at_once_and_a_running_quarantine_keeps_its_length() {
    let long = Settings { max_lease_ms: 20, max_lag_ms: 9, ..SETTINGS };
    let mut exclusion = started(long, true);
    follow(&mut exclusion, 1, 11, 1);
    assert_eq!(exclusion.may_grant(15_000), MayGrant::Quarantine { left_ms: 15 });
    exclusion.on_settings(SETTINGS, 15_000);
    assert_eq!((exclusion.max_lease_ms(), exclusion.longest_lease_ms()), (10, 20));
    assert_eq!(exclusion.settles_in_ms(15_000), 29);
    assert_eq!(exclusion.may_grant(15_000), MayGrant::NoReplicas, "the acknowledged bytes are older than 3 ms");
    follow(&mut exclusion, 15, 16, 1);
    assert_eq!(exclusion.may_grant(16_000), MayGrant::Quarantine { left_ms: 14 });
}

#[test]
fn acknowledged_bytes_are_dated_by_the_clock_before_the_offset() {
    /// It is stopped for 2 ms after it has read its offset.
    struct Stopped(u64);
    impl Readings for Stopped {
        fn clock_us(&mut self) -> u64 {
            self.0
        }

        fn replication(&mut self) -> Replication {
            let replication = Server(self.0, &[self.0]).replication();
            self.0 += 2000;
            replication
        }
    }
    let mut exclusion = started(SETTINGS, true);
    follow(&mut exclusion, 1, 20, 1);
    exclusion.on_tick(true, &mut Stopped(20_000));
    // The replica has received bytes that were written right after the offset was read.
    tick(&mut exclusion, 22_400, &[20_001]);
    assert_eq!(exclusion.may_grant(22_999), MayGrant::Yes);
    assert_eq!(exclusion.may_grant(23_000), MayGrant::NoReplicas, "those bytes are 3 ms old");
}

#[test]
fn votes_from_before_the_promise_do_not_count() {
    let mut exclusion = started(SETTINGS, true);
    assert_eq!(follow(&mut exclusion, 1, 20, 1).last(), Some(&(14, MayGrant::Yes)));
    exclusion.on_settings(Settings { mode: Mode::Off, ..SETTINGS }, 20_000);
    follow(&mut exclusion, 20, 28, 1);
    // The replica has followed another master meanwhile.
    exclusion.on_replicas(false, &mut Server(28_000, &[]));
    exclusion.on_replicas(true, &mut Server(29_000, &[29_000]));
    exclusion.on_settings(SETTINGS, 30_000);
    let reported = follow(&mut exclusion, 30, 50, 1);
    assert_eq!(reported.last(), Some(&(43, MayGrant::Yes)), "it counts at 33, and a quarantine follows: {reported:?}");
}
