//! The plan: which work is measured in which sizes, and with which peers.

use clap::ValueEnum;

use crate::peer::Contestant;

/// Peers that take part in every cell of the usual plan. The others take part in the cells that
/// compare all.
const IN_DEPTH: [&str; 8] =
    ["redisson", "rlock-java", "jedis", "rlock-client", "plain", "etcd", "curator", "postgresql"];
/// Peers whose costs are measured with many waiters and locks.
const IN_GROWTH: &[&str] = &["redisson", "rlock-java", "jedis", "rlock-client"];
/// Peers whose clients are tasks of asyncio.
const IN_ASYNCIO: &[&str] = &["redis-py-asyncio", "rlock-asyncio"];
/// Peers that are measured with a replica, each beside the same without one.
const IN_REPLICATED: &[&str] =
    &["redisson", "redisson-wait", "jedis", "jedis-wait", "rlock-java", "rlock-java-failover"];
/// Jedis needs a thread and a connection per waiter. More than this would not measure the server.
const MOST_THREADS: usize = 1000;

/// The kinds of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Work {
    /// Each client on its own lock
    Uncontended,
    /// All clients on one lock
    Contended,
    /// All clients on one lock that keeps the order of requests
    Fair,
    /// Readers and writers of one lock
    ReadWrite,
    /// Permits of one semaphore
    Semaphore,
    /// Four keys in one step
    Many,
    /// A holder that is killed, and a Redis that is killed
    Crash,
    /// Many waiters and many locks
    Growth,
    /// A slow network
    Latency,
    /// A server with a replica
    Replicated,
}

impl Work {
    pub fn name(self) -> String {
        self.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
    }
}

/// Some programs of one peer that work at the same time.
#[derive(Clone, Debug)]
pub struct Part {
    pub lock: &'static str,
    pub clients: usize,
    pub processes: usize,
}

/// One size of one kind of work.
#[derive(Clone, Debug)]
pub struct Cell {
    pub work: Work,
    pub name: String,
    pub parts: Vec<Part>,
    /// Whether each client has its own lock.
    pub own_locks: bool,
    pub section_us: u64,
    pub permits: usize,
    pub round_trip_ms: u64,
    /// How much longer than usual the cell takes, as a factor.
    pub longer: f64,
    /// How many other locks are held meanwhile.
    pub held: usize,
    /// Whether it compares all peers, or only those of `IN_DEPTH`.
    pub is_for_all: bool,
    /// If not empty: the ids of the only peers that it is for.
    pub only: &'static [&'static str],
}

impl Cell {
    fn new(work: Work, name: String, lock: &'static str, clients: usize) -> Self {
        Self {
            work,
            name,
            parts: vec![Part { lock, clients, processes: 1 }],
            own_locks: false,
            section_us: 0,
            permits: 4,
            round_trip_ms: 0,
            longer: 1.0,
            held: 0,
            is_for_all: false,
            only: &[],
        }
    }

    /// Whether clients hand a lock with one holder at a time to each other.
    pub fn hands_over(&self) -> bool {
        self.capacity() == 1 && !self.own_locks && self.clients() > 1
    }

    pub fn clients(&self) -> usize {
        self.parts.iter().map(|part| part.clients).sum()
    }

    /// The capacity of the lock, in the weights of the records.
    pub fn capacity(&self) -> u32 {
        let lock = self.parts.first().map_or("", |part| part.lock);
        match lock {
            "semaphore" => u32::try_from(self.permits).unwrap_or(u32::MAX),
            "read" | "write" => u32::try_from(self.clients()).unwrap_or(u32::MAX),
            _ => 1,
        }
    }

    /// How much of the capacity a holder in this mode takes.
    pub fn weight(&self, lock: &str) -> u32 {
        if lock == "write" { self.capacity() } else { 1 }
    }

    /// Whether this contestant is measured in it.
    pub fn is_for(&self, contestant: &Contestant, full: bool) -> bool {
        let id = contestant.peer.id.as_str();
        let kind = match self.parts.first().map_or("", |part| part.lock) {
            "read" | "write" => "read-write",
            other => other,
        };
        let is_asked_for = match self.only {
            [] => !contestant.peer.replica && (full || self.is_for_all || IN_DEPTH.contains(&id)),
            only => only.contains(&id),
        };
        let is_small = self.work != Work::Growth || self.clients() <= MOST_THREADS || id != "jedis";
        let is_comparable = self.held == 0 || id != "rlock-client";
        contestant.has(kind) && is_asked_for && is_small && is_comparable
    }
}

/// The cells of a kind of work: all sizes with `full`, otherwise those that show the trend.
pub fn cells(work: Work, full: bool) -> Vec<Cell> {
    match work {
        Work::Uncontended => uncontended(),
        Work::Contended => contended(full),
        Work::Fair => fair(full),
        Work::ReadWrite => read_write(),
        Work::Semaphore => {
            let cell = Cell::new(work, "32 clients, 4 permits".into(), "semaphore", 32);
            vec![Cell { is_for_all: true, ..cell }]
        }
        Work::Many => many(),
        // Has no sizes: see crash.rs.
        Work::Crash => Vec::new(),
        Work::Growth => growth(full),
        Work::Latency => latency(full),
        Work::Replicated => replicated(),
    }
}

fn uncontended() -> Vec<Cell> {
    let cell = |clients: usize| {
        let cell = Cell::new(Work::Uncontended, format!("{clients} clients"), "mutex", clients);
        Cell { own_locks: true, is_for_all: clients == 16, ..cell }
    };
    [1, 16, 64].map(cell).into()
}

fn contended(full: bool) -> Vec<Cell> {
    let cell = |clients: usize, processes: usize, section_ms: u64| {
        let name = format!("{clients} clients, {processes} proc., {section_ms} ms");
        let cell = Cell::new(Work::Contended, name, "mutex", clients);
        Cell {
            parts: vec![Part { lock: "mutex", clients, processes }],
            section_us: section_ms * 1000,
            is_for_all: (clients, processes, section_ms) == (64, 1, 0),
            ..cell
        }
    };
    let asyncio = Cell { only: IN_ASYNCIO, ..cell(200, 1, 0) };
    if !full {
        let sizes = [(2, 1, 0), (16, 1, 0), (64, 1, 0), (64, 8, 0), (64, 1, 5), (256, 1, 0)];
        let cells = sizes.map(|(clients, processes, section_ms)| cell(clients, processes, section_ms));
        return cells.into_iter().chain([asyncio]).collect();
    }
    let mut all = vec![asyncio];
    for section_ms in [0, 5] {
        for processes in [1, 8] {
            // Eight processes cannot share two clients.
            all.extend(
                [2, 16, 64, 256].into_iter().filter(|n| *n >= processes).map(|n| cell(n, processes, section_ms)),
            );
        }
    }
    all
}

fn fair(full: bool) -> Vec<Cell> {
    let cell = |clients: usize, section_ms: u64| {
        let cell = Cell::new(Work::Fair, format!("{clients} clients, {section_ms} ms"), "fair", clients);
        Cell { section_us: section_ms * 1000, is_for_all: true, ..cell }
    };
    if full {
        return [(2, 0), (16, 0), (64, 0), (256, 0), (64, 5)].map(|(clients, ms)| cell(clients, ms)).into();
    }
    vec![cell(64, 0)]
}

fn read_write() -> Vec<Cell> {
    let cell = Cell::new(Work::ReadWrite, "28 readers, 4 writers, 1 ms".into(), "read", 28);
    let parts =
        vec![Part { lock: "read", clients: 28, processes: 1 }, Part { lock: "write", clients: 4, processes: 1 }];
    vec![Cell { parts, section_us: 1000, is_for_all: true, ..cell }]
}

fn many() -> Vec<Cell> {
    let cell = |clients: usize, own_locks: bool| {
        let whose = if own_locks { "four keys of its own each" } else { "the same four keys" };
        let cell = Cell::new(Work::Many, format!("{clients} clients, {whose}"), "many", clients);
        Cell { own_locks, is_for_all: true, ..cell }
    };
    vec![cell(16, true), cell(64, false)]
}

fn growth(full: bool) -> Vec<Cell> {
    let waiting = |clients: usize| {
        let cell = Cell::new(Work::Growth, format!("{clients} waiters"), "mutex", clients);
        Cell { longer: 3.0, only: IN_GROWTH, ..cell }
    };
    let held = |held: usize| {
        let cell = Cell::new(Work::Growth, format!("{held} {}", if held == 1 { "lock" } else { "locks" }), "mutex", 16);
        Cell { own_locks: true, held, only: IN_GROWTH, ..cell }
    };
    let waiters: &[usize] = if full { &[10, 100, 1000, 10_000, 100_000] } else { &[10, 1000, 10_000] };
    let locks: &[usize] = if full { &[1, 1000, 10_000, 100_000, 1_000_000] } else { &[1, 1000, 1_000_000] };
    waiters.iter().map(|n| waiting(*n)).chain(locks.iter().map(|n| held(*n))).collect()
}

fn latency(full: bool) -> Vec<Cell> {
    let cell = |clients: usize, round_trip_ms: u64| {
        let cell = Cell::new(Work::Latency, format!("{clients} clients, {round_trip_ms} ms"), "mutex", clients);
        Cell { round_trip_ms, longer: 2.0, is_for_all: full, ..cell }
    };
    [(1, 5), (8, 5), (8, 50)].map(|(clients, ms)| cell(clients, ms)).into()
}

fn replicated() -> Vec<Cell> {
    let cell = |name: &str, clients: usize, own_locks: bool| {
        let cell = Cell::new(Work::Replicated, name.to_owned(), "mutex", clients);
        Cell { own_locks, only: IN_REPLICATED, ..cell }
    };
    vec![cell("16 clients, a lock each", 16, true), cell("64 clients, one lock", 64, false)]
}
