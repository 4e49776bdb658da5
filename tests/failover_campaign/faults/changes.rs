//! Settings that change while the servers run, in the documented order: replicas first where a value
//! rises, the master first where it falls.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Fault;
use crate::failover_campaign::beliefs::Belief;
use crate::failover_campaign::fleet::{Fleet, LAG, SOON, says};
use crate::failover_campaign::workers::{KEY_OF_FAULTS, Load, WORKERS, end_of_rest, name_of};
use crate::support::{Client, Reply, eventually};

impl Fleet {
    /// Changes settings on all servers, also in their files, and waits until that has settled.
    pub fn change(&mut self, settings: &str, is_raise: bool) {
        let mut order: Vec<usize> = (0..self.servers.len()).collect();
        if is_raise {
            order.rotate_left(1);
        }
        for number in order {
            self.tell(number, format!("CONFIG SET {settings}"));
            self.tell(number, "CONFIG REWRITE");
        }
        for server in &self.servers {
            eventually(SOON, || says(server, &["rlock_settings_settle_ms:0"]));
        }
        self.diary.push((Instant::now(), "settled".to_owned()));
    }

    /// Changes the longest lease and the lag.
    pub fn change_times(&mut self, lease: Duration, lag: Duration, is_raise: bool) {
        let [lease_ms, lag_ms] = [lease, lag].map(|time| time.as_millis());
        self.change(&format!("rlock.max-lease-ms {lease_ms} rlock.max-replica-lag-ms {lag_ms}"), is_raise);
        // The new limit counts from the next tick on.
        for server in &self.servers {
            eventually(SOON, || says(server, &[&format!("rlock_max_lease_ms:{lease_ms}")]));
        }
    }

    /// Raises the settings and adds a server, or removes it and lowers them. A failover follows.
    pub fn change_settings(&mut self, lowers: bool, load: &Load) {
        let lease = self.length.lease;
        if lowers {
            self.change_times(lease, LAG, false);
            load.ask_for(lease);
            drop(self.servers.remove(3));
            load.move_to(self.ports());
            self.change("rlock.replicas 2", false);
        } else {
            self.change("rlock.replicas 3", true);
            self.add_server(Fault::Changes);
            self.tell(3, "CONFIG SET rlock.replicas 3");
            self.follow(3, 0);
            load.move_to(self.ports());
            self.change_times(lease.mul_f64(1.4), LAG + Duration::from_secs(1), true);
            load.ask_for(lease.mul_f64(1.4));
        }
        self.settle();
        self.split();
    }

    /// Requests wait with a lease that is too long when they are granted.
    pub fn lower_the_lease_while_requests_wait(&mut self, n: usize, load: &Load) {
        let (lease, key) = (self.length.lease, name_of(KEY_OF_FAULTS));
        if n > 0 {
            self.change_times(2 * lease, LAG, true);
        }
        let mut holder = self.servers[0].client();
        let mut hold = || holder.call(format!("RLOCK.ACQUIRE {key} holder PX {} ONCE", lease.as_millis()));
        eventually(SOON, || matches!(hold(), Reply::Int(_)));
        let sent = Instant::now();
        let mut waiter = self.servers[0].client();
        waiter.send(format!("RLOCK.ACQUIRE {key} waiter PX {} BLOCK 120000", 2 * lease.as_millis()));
        self.keep_while(&mut holder, |fleet| fleet.change_times(lease, LAG, false));
        assert_eq!(holder.call(format!("RLOCK.RELEASE {key} holder")), 0, "the holder still had the lock");
        let token = waiter.reply_within(SOON).expect("a grant").int();
        let (from, asked) = (Instant::now(), Instant::now());
        let left_ms = waiter.call(format!("RLOCK.RENEW {key} waiter TOKEN {token}")).int();
        assert!(u128::try_from(left_ms).expect("some time is left") <= lease.as_millis(), "{left_ms} ms are left");
        let until = end_of_rest(asked, left_ms);
        load.note(Belief { key: KEY_OF_FAULTS, worker: WORKERS, token, sent, from, until });

        self.promote(1);
        self.follow(2, 1);
        self.pause(0..5000);
        self.follow(0, 1);
        self.servers.swap(0, 1);
        let mut next = self.servers[0].client();
        eventually(SOON, || {
            let sent = Instant::now();
            let Reply::Int(token) = next.call(format!("RLOCK.ACQUIRE {key} next PX 1000")) else { return false };
            let (from, until) = (Instant::now(), sent + Duration::from_secs(1));
            load.note(Belief { key: KEY_OF_FAULTS, worker: WORKERS + 1, token, sent, from, until });
            from < until
        });
    }

    /// Does something while the holder renews.
    fn keep_while(&mut self, holder: &mut Client, act: impl FnOnce(&mut Self)) {
        let (ends, key) = (AtomicBool::new(false), name_of(KEY_OF_FAULTS));
        thread::scope(|scope| {
            scope.spawn(|| {
                while !ends.load(Ordering::Relaxed) {
                    holder.call(format!("RLOCK.RENEW {key} holder"));
                    thread::sleep(Duration::from_millis(200));
                }
            });
            act(self);
            ends.store(true, Ordering::Relaxed);
        });
    }
}
