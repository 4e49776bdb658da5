//! A random sequence of faults, one at a time.

use std::time::{Duration, Instant};

use rand::Rng;
use rand::seq::index::sample;

use super::HOUR;
use crate::failover_campaign::fleet::{Fleet, LAG};

impl Fleet {
    /// Does anything for a while. Then the network is whole again, and all servers follow one.
    pub fn go_mad(&mut self) {
        // Settings change only in peace: a change must settle before the next failover.
        if self.random.random_bool(0.3) {
            let lease = self.length.lease;
            self.change_times(lease.mul_f64(1.4), LAG + Duration::from_secs(1), true);
            self.change_times(lease, LAG, false);
        }
        for _ in 0..self.length.steps {
            let [one, other] = [0, 1].map(|at| sample(&mut self.random, 3, 2).index(at));
            self.go_wrong(one, other);
            self.pause(0..6000);
        }
        let port = self.servers[0].port();
        self.diary.push((Instant::now(), format!("peace with port {port}")));
        self.clocks.values().for_each(|clock| clock.step_forward(Duration::ZERO));
        for (one, other) in [(0, 1), (0, 2), (1, 2)] {
            self.cut(one, other, false);
        }
        self.promote(0);
        self.follow(1, 0);
        self.follow(2, 0);
    }

    fn go_wrong(&mut self, one: usize, other: usize) {
        match self.random.random_range(0..8) {
            0 => drop(self.try_tell(one, "REPLICAOF NO ONE")),
            1 | 2 => {
                let upstream = self.upstream(one, other);
                self.try_tell(one, format!("REPLICAOF {upstream}"));
            }
            3 | 4 => {
                self.kill(one);
                self.pause(0..3000);
                let upstream = self.upstream(one, other);
                let role = match self.random.random_range(0..3) {
                    0 => String::new(),
                    1 => "--replicaof no one".to_owned(),
                    _ => format!("--replicaof {upstream}"),
                };
                let file = if self.random.random_bool(0.3) { "--appendonly no" } else { "" };
                self.restart_with(one, &format!("{role} {file}"));
            }
            5 => {
                self.servers.swap(0, one);
                self.while_master_is_stopped(|others| others.pause(0..6000));
            }
            6 => {
                let is_cut = self.random.random_bool(0.7);
                self.cut(one, other, is_cut);
            }
            _ => {
                let steps = self.random.random_range(0..2) * HOUR;
                self.clocks[&self.servers[one].port()].step_forward(steps);
            }
        }
    }
}
