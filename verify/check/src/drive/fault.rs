//! The faults that can happen while clients work, and what clients may expect then.

use std::time::Duration;

use super::server::Disk;

/// More than a replica takes to take over in agreement with its master. At each takeover a hold may
/// outlast its lease by this much, or end this much earlier. With a larger value the holds of lost
/// clients would outlast the slack.
const BEHIND_US: u64 = 300_000;

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faults {
    /// The server's wall clock steps by up to an hour, in either direction.
    Clock,
    /// The server is suspended, its connections are cut, and it is killed and restarted.
    Crashes,
    /// The server is suspended now and then, and connections are cut.
    Disconnects,
    /// `kill -9` of the server, which restarts with the data on its disk, and with a clock that was
    /// set back.
    Kill,
    /// SIGSTOP and SIGCONT of the server.
    Stop,
    /// SIGSTOP and SIGCONT of processes of clients, mostly for longer than their leases.
    ClientStop,
    /// CLIENT KILL of every connection, again and again.
    ClientKill,
    /// Connections are lost, and the server does not notice for a while.
    HalfOpen,
    /// Memory is full (`maxmemory`).
    Memory,
    /// The disk of the append-only file is full.
    FullDisk,
    /// Clients request locks and do not read, until their output buffers overflow and the server
    /// closes them.
    OutputBuffers,
    /// The server is demoted to a replica while clients work, and promoted again.
    Demotion,
    /// The server is killed, and its replica takes over at once, with the data that it has
    /// received.
    Failover,
    /// Sentinels replace the server by its replica. The server was killed, or is alive and not
    /// demoted yet.
    Sentinel,
    /// Sentinels replace a suspended server by its replica. When it continues, it is a master until
    /// a Sentinel demotes it.
    SentinelStop,
    /// Like [`Faults::Sentinel`]. In between, CLIENT KILL ends connections, or the network loses
    /// them.
    SentinelStorms,
    /// The slot of all keys moves back and forth between two nodes of a cluster.
    SlotMoves,
    /// Like [`Faults::SlotMoves`]. Now and then one node, or both at once, are killed during a
    /// move, and restart with the data on their disks.
    SlotMovesAndKills,
    /// A replica in a cluster takes over by `CLUSTER FAILOVER`, in agreement with its master:
    /// nothing may be lost.
    ClusterFailover,
    /// Like [`Faults::ClusterFailover`] with `FORCE`: the other nodes vote, but the replica does
    /// not ask its master, and both may be masters for a moment.
    ClusterForce,
    /// Like [`Faults::ClusterFailover`] with `TAKEOVER`: the replica asks no other node.
    ClusterTakeover,
    /// Like [`Faults::Kill`], for the node of a cluster that has the slot.
    KillInCluster,
    /// Like [`Faults::Stop`], for that node.
    StopInCluster,
    /// Like [`Faults::ClientKill`], for that node.
    ClientKillInCluster,
    /// Like [`Faults::HalfOpen`], for connections to that node.
    HalfOpenInCluster,
}

impl Faults {
    /// The faults of the table.
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

    /// The name in tables and patches.
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

    /// Which data the server writes to its disk.
    pub(super) fn disk(self) -> Disk {
        match self {
            Self::Crashes | Self::Kill | Self::KillInCluster | Self::SlotMovesAndKills => Disk::Always,
            Self::FullDisk => Disk::Small,
            _ => Disk::None,
        }
    }

    /// Whether the other server is the master afterwards, while clients keep using the same
    /// address.
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

    /// Whether the server accepts releases, renewals and cancellations at any moment: it is always
    /// up, a master, and able to write.
    pub(super) fn server_accepts_releases(self) -> bool {
        use Faults::{ClientKill, ClientStop, Clock, HalfOpen, Memory, OutputBuffers, Stop};
        let in_cluster = [Self::StopInCluster, Self::ClientKillInCluster, Self::HalfOpenInCluster];
        [Clock, Stop, ClientStop, ClientKill, HalfOpen, Memory, OutputBuffers].contains(&self)
            || in_cluster.contains(&self)
    }

    /// Whether the server refuses to acquire while the fault lasts, although it accepts releases.
    pub(super) fn refuses_acquisitions(self) -> bool {
        self == Self::Memory
    }

    /// Whether waits end in time even during a pause: the server refuses writes then, but is up.
    pub(super) fn ends_waits_in_pauses(self) -> bool {
        self == Self::FullDisk
    }

    /// How far the clock of a replica is behind its master's when it takes over. If it takes over
    /// without the master's agreement, the clocks are equal: the replica may lack some tokens, and
    /// gives higher ones only if its clock is behind by less than the takeover takes.
    pub(super) fn replica_is_behind_us(self) -> u64 {
        if self == Self::ClusterFailover { BEHIND_US } else { 0 }
    }

    /// Whether a server continues leases with a clock that is behind.
    pub(super) fn clock_falls_behind(self) -> bool {
        self.disk() == Disk::Always || self.replica_is_behind_us() > 0
    }

    /// How long a campaign must last to show something: until after the first fault and the rest
    /// that follows it.
    pub(super) fn lasts_at_least(self) -> Duration {
        Duration::from_secs(match self {
            Self::FullDisk | Self::SentinelStop => 13,
            Self::ClusterFailover | Self::KillInCluster | Self::SlotMovesAndKills | Self::Demotion => 10,
            _ if self.has_sentinels() => 10,
            _ => 0,
        })
    }

    /// Whether a hold may outlast its release. See `SHORT_LEASES` in `campaign.rs`.
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

    /// Whether one node of a cluster is the replica of the other.
    pub(super) fn replica_takes_over(self) -> bool {
        matches!(self, Self::ClusterFailover | Self::ClusterForce | Self::ClusterTakeover)
    }
}
