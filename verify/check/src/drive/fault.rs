//! What can go wrong while clients work, and what they may expect then.

use std::time::Duration;

use super::server::Disk;

/// More than it takes a replica to take over in agreement with its master. A hold may outlast its lease by so much at each takeover, or end so much
/// earlier: with more of it what lost clients hold would be kept for longer than the slack.
const BEHIND_US: u64 = 300_000;

/// One kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// The server's wall clock steps by up to an hour, in either direction.
    Clock,
    /// The server stands still, its connections are cut, and it is killed and comes back.
    Crashes,
    /// The server stands still now and then, and connections are cut.
    Disconnects,
    /// The server is killed as by `kill -9`, and comes back with what is on its disk, and with a clock that was set back.
    Kill,
    /// The server is stopped and goes on, as by SIGSTOP and SIGCONT.
    Stop,
    /// Processes of clients are stopped and go on, mostly for longer than their leases.
    ClientStop,
    /// Every connection is ended by CLIENT KILL, again and again.
    ClientKill,
    /// Connections are lost, and the server does not know of it for a while.
    HalfOpen,
    /// The memory is full (`maxmemory`).
    Memory,
    /// The disk of the append-only file is full.
    FullDisk,
    /// Clients that do not read are closed because of their output buffers, with requests in the same buffers.
    OutputBuffers,
    /// The server becomes a replica, in the middle of everything, and a master again.
    Demotion,
    /// The server is killed, and its replica takes over at once, with what it has heard.
    Failover,
    /// Sentinels put the replica in the place of the server, which is killed, or lives and does not know yet.
    Sentinel,
    /// Sentinels put the replica in the place of a server that stands still, and goes on as a master until it is told.
    SentinelStop,
    /// The same as [`Faults::Sentinel`], and in between connections are ended by CLIENT KILL, or lost.
    SentinelStorms,
    /// The slot of all keys moves between two nodes of a cluster, to and fro.
    SlotMoves,
    /// The same, and now and then one of the two, or both at once, are killed in the middle of it and come back with what is on their disks.
    SlotMovesAndKills,
    /// A replica in a cluster takes over by `CLUSTER FAILOVER`, in agreement with its master: nothing may be lost.
    ClusterFailover,
    /// The same with `FORCE`: the other nodes vote, but the master is not asked, and both may be masters for a moment.
    ClusterForce,
    /// The same with `TAKEOVER`: nobody is asked.
    ClusterTakeover,
    /// As [`Faults::Kill`], of the node of a cluster that has the slot.
    KillInCluster,
    /// As [`Faults::Stop`], of that node.
    StopInCluster,
    /// As [`Faults::ClientKill`], on that node.
    ClientKillInCluster,
    /// As [`Faults::HalfOpen`], to that node.
    HalfOpenInCluster,
}

impl Faults {
    /// Those of the table, each by itself.
    pub const EACH: [Self; 23] = [
        Self::Kill,
        Self::Stop,
        Self::ClientStop,
        Self::ClientKill,
        Self::HalfOpen,
        Self::Clock,
        Self::Memory,
        Self::FullDisk,
        Self::OutputBuffers,
        Self::Demotion,
        Self::Failover,
        Self::Sentinel,
        Self::SentinelStop,
        Self::SentinelStorms,
        Self::SlotMoves,
        Self::SlotMovesAndKills,
        Self::ClusterFailover,
        Self::ClusterForce,
        Self::ClusterTakeover,
        Self::KillInCluster,
        Self::StopInCluster,
        Self::ClientKillInCluster,
        Self::HalfOpenInCluster,
    ];

    /// As it is called in tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Clock => "wall clock steps by ±1 h",
            Self::Crashes => "crashes",
            Self::Disconnects => "disconnects",
            Self::Kill => "kill -9 and restart",
            Self::Stop => "SIGSTOP and SIGCONT",
            Self::ClientStop => "SIGSTOP of clients",
            Self::ClientKill => "CLIENT KILL storms",
            Self::HalfOpen => "connections lost, half open",
            Self::Memory => "maxmemory reached",
            Self::FullDisk => "disk of the AOF full",
            Self::OutputBuffers => "output buffer limits",
            Self::Demotion => "demotion and promotion",
            Self::Failover => "kill -9 and failover",
            Self::Sentinel => "failover by Sentinel",
            Self::SlotMoves => "a slot moves to and fro",
            Self::SlotMovesAndKills => "a slot moves, kill -9",
            Self::ClusterFailover => "CLUSTER FAILOVER",
            Self::ClusterForce => "CLUSTER FAILOVER FORCE",
            Self::ClusterTakeover => "CLUSTER FAILOVER TAKEOVER",
            Self::SentinelStop => "SIGSTOP and failover by Sentinel",
            Self::SentinelStorms => "Sentinel, CLIENT KILL, half open",
            Self::KillInCluster => "kill -9 in a cluster",
            Self::StopInCluster => "SIGSTOP in a cluster",
            Self::ClientKillInCluster => "CLIENT KILL in a cluster",
            Self::HalfOpenInCluster => "half open, in a cluster",
        }
    }

    /// What the server writes to its disk.
    pub(super) fn disk(self) -> Disk {
        match self {
            Self::Crashes | Self::Kill | Self::KillInCluster | Self::SlotMovesAndKills => Disk::Always,
            Self::FullDisk => Disk::Small,
            _ => Disk::None,
        }
    }

    /// Whether the other server is the one to ask afterwards, at the same address as far as clients know.
    pub(super) fn is_moving(self) -> bool {
        self == Self::Failover || self.has_sentinels()
    }

    /// Whether Sentinels watch the server.
    pub(super) fn has_sentinels(self) -> bool {
        matches!(self, Self::Sentinel | Self::SentinelStop | Self::SentinelStorms)
    }

    /// Whether connections may be lost in the network.
    pub(super) fn loses_connections(self) -> bool {
        matches!(self, Self::HalfOpen | Self::HalfOpenInCluster | Self::SentinelStorms)
    }

    /// Whether the server takes what gives up, renews or cancels at any moment: it is there all the time, a master, and can write.
    pub(super) fn server_always_takes(self) -> bool {
        use Faults::{ClientKill, ClientStop, Clock, HalfOpen, Memory, OutputBuffers, Stop};
        let in_cluster = [Self::StopInCluster, Self::ClientKillInCluster, Self::HalfOpenInCluster];
        [Clock, Stop, ClientStop, ClientKill, HalfOpen, Memory, OutputBuffers].contains(&self)
            || in_cluster.contains(&self)
    }

    /// Whether the server refuses what acquires while the fault lasts, though it takes what gives up.
    pub(super) fn refuses_acquisitions(self) -> bool {
        self == Self::Memory
    }

    /// Whether who waits is answered when its time is over, also in a pause: writing is refused then, and the server is there.
    pub(super) fn ends_waits_in_pauses(self) -> bool {
        self == Self::FullDisk
    }

    /// By how much the clock of a replica is behind that of its master when it takes over. Where they do not agree on that, clocks are the same: a
    /// replica that has not heard of all tokens gives higher ones only if its clock is behind by less than it takes to take over.
    pub(super) fn replica_is_behind_us(self) -> u64 {
        if self == Self::ClusterFailover { BEHIND_US } else { 0 }
    }

    /// Whether a server goes on with leases by a clock that is behind.
    pub(super) fn clock_falls_behind(self) -> bool {
        self.disk() == Disk::Always || self.replica_is_behind_us() > 0
    }

    /// How long a campaign has to last to show something: until after the first fault, and the rest that follows it.
    pub(super) fn lasts_at_least(self) -> Duration {
        Duration::from_secs(match self {
            Self::FullDisk | Self::SentinelStop => 13,
            Self::ClusterFailover | Self::KillInCluster | Self::SlotMovesAndKills | Self::Demotion => 10,
            _ if self.has_sentinels() => 10,
            _ => 0,
        })
    }

    /// Whether a hold may outlast its release: see `SHORT_LEASES` in `campaign.rs`.
    pub(super) fn forgets_releases(self) -> bool {
        self.is_moving() || matches!(self, Self::ClusterForce | Self::ClusterTakeover)
    }

    /// Whether the two servers are nodes of a cluster.
    pub(super) fn is_in_cluster(self) -> bool {
        let alone = [Self::KillInCluster, Self::StopInCluster, Self::ClientKillInCluster, Self::HalfOpenInCluster];
        self.moves_slots() || self.replica_takes_over() || alone.contains(&self)
    }

    /// Whether the keys are on two nodes for a while, some on each.
    pub(super) fn moves_slots(self) -> bool {
        matches!(self, Self::SlotMoves | Self::SlotMovesAndKills)
    }

    /// Whether one of the nodes of a cluster is the other one's replica.
    pub(super) fn replica_takes_over(self) -> bool {
        matches!(self, Self::ClusterFailover | Self::ClusterForce | Self::ClusterTakeover)
    }
}
