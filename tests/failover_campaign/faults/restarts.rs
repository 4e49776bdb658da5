//! Servers that are killed during a failover, and come back with other data or another role than
//! they had.

use std::fs;

use rand::Rng;

use crate::failover_campaign::fleet::Fleet;

/// A setting with which a server restarts as a master, whatever its file says.
const AS_MASTER: &str = "--replicaof no one";

impl Fleet {
    /// Kills a server, and restarts it as a master or as a replica of the old master, the first
    /// server: a restart with the configuration from before the failover.
    fn restart_as_before(&mut self, number: usize) {
        self.kill(number);
        self.pause(0..3000);
        if number == 0 || self.random.random_bool(0.5) {
            self.restart_with(number, AS_MASTER);
        } else {
            let upstream = self.upstream(number, 0);
            self.restart_with(number, &format!("--replicaof {upstream}"));
        }
    }

    /// A split brain in which a server restarts before the promotion, before or after the new master
    /// is followed, or at the end of its quarantine. If the promoted one returns to the old master,
    /// that one may stay the master.
    pub fn restart_at_any_stage(&mut self, number: usize) {
        let stage = self.random.random_range(0..4);
        if stage == 0 {
            self.restart_as_before(number);
        }
        self.pause(0..1000);
        self.promote(1);
        if stage == 1 {
            self.pause(0..3000);
            self.restart_as_before(number);
        }
        self.pause(0..2500);
        self.follow(2, 1);
        if stage == 2 {
            self.pause(0..14_000);
            self.restart_as_before(number);
        }
        self.pause(0..16_000);
        if stage == 3 {
            self.restart_as_before(number);
        }
        self.pause(0..3000);
        if self.servers[1].has_role("slave") && self.random.random_bool(0.5) {
            self.follow(2, 0);
            return;
        }
        self.promote(1);
        self.follow(2, 1);
        self.pause(0..2500);
        self.follow(0, 1);
        self.servers.swap(0, 1);
    }

    /// A split brain in which the other replica returns to the old master, by itself, with the data
    /// that it had or with older data.
    pub fn return_to_the_old_master(&mut self, has_old_data: bool) {
        let [file, old] = ["dump.rdb", "old.rdb"].map(|name| self.servers[2].folder().join(name));
        self.tell(2, "SAVE");
        fs::copy(&file, &old).expect("a snapshot");
        self.pause(0..2000);
        self.promote(1);
        self.pause(0..2500);
        self.follow(2, 1);
        self.pause(0..16_000);
        self.tell(2, "SAVE");
        self.kill(2);
        if has_old_data {
            fs::copy(&old, &file).expect("a snapshot");
        }
        let upstream = self.upstream(2, 0);
        self.restart_with(2, &format!("--replicaof {upstream}"));
        self.pause(0..16_000);
        self.follow(2, 1);
        self.pause(0..2500);
        self.follow(0, 1);
        self.servers.swap(0, 1);
    }

    /// Replicas restart without data, one after the other, before a split brain; or the other
    /// replica and the promoted one do after it.
    pub fn restart_without_data(&mut self, is_before: bool) {
        if is_before {
            for replica in [1, 2] {
                self.restart_without_data_as_replica_of(0, replica);
                self.pause(0..4000);
            }
            return self.split();
        }
        self.promote(1);
        self.pause(0..2500);
        self.follow(2, 1);
        self.pause(0..5000);
        self.restart_without_data_as_replica_of(1, 2);
        self.pause(0..14_000);
        self.restart_empty(1, AS_MASTER);
        self.pause(0..5000);
        self.follow(0, 1);
        self.servers.swap(0, 1);
    }

    fn restart_without_data_as_replica_of(&mut self, master: usize, replica: usize) {
        let upstream = self.upstream(replica, master);
        self.restart_empty(replica, &format!("--replicaof {upstream}"));
    }

    fn restart_empty(&mut self, number: usize, role: &str) {
        self.kill(number);
        // A replica stores the snapshot that it loads.
        let _ = fs::remove_file(self.servers[number].folder().join("dump.rdb"));
        self.restart_with(number, role);
    }

    /// A split brain of a chain, in which the replica in the middle restarts before the end of the
    /// chain is promoted, or the middle is promoted and restarts.
    pub fn restart_in_a_chain(&mut self, is_its_end: bool) {
        let upstream = self.upstream(1, 0);
        if is_its_end {
            self.kill(1);
            self.pause(0..4000);
            self.restart_with(1, &format!("--replicaof {upstream}"));
            self.pause(0..4000);
            return self.split_a_chain(true);
        }
        self.promote(1);
        self.pause(0..8000);
        self.kill(1);
        self.pause(0..4000);
        let returns = self.random.random_bool(0.5);
        let role = if returns { format!("--replicaof {upstream}") } else { AS_MASTER.to_owned() };
        self.restart_with(1, &role);
        self.pause(0..8000);
        if returns {
            // The old chain is as before.
            return;
        }
        self.follow(0, 2);
        self.servers.rotate_left(1);
    }
}
