//! Single schedules of three servers that gave a lock to two owners under earlier rules: restarts,
//! returns, changed settings, clocks and forged acknowledgements.
//!
//! A, the first master, keeps running when P is promoted. A worker beside each of them acquires the
//! same lock again and again and never releases it. It records when it believed that it held the
//! lock (docs/guarantees.md). No two beliefs may overlap.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Relay, Reply, Server, WallClock, eventually};

/// The longest lease, which each worker asks for.
const LEASE: Duration = Duration::from_millis(4000);
/// The shortest lag that the settings allow.
const LAG: Duration = Duration::from_millis(3000);
/// The time for a failover: the lag, a quarantine, and the time of a busy machine.
const SOON: Duration = Duration::from_secs(60);

fn settings(lag: Duration) -> Vec<String> {
    vec![
        format!("rlock.max-lease-ms {}", LEASE.as_millis()),
        format!("rlock.max-replica-lag-ms {}", lag.as_millis()),
        "rlock.exclusion failover".to_owned(),
        "rlock.replicas 2".to_owned(),
        "repl-ping-replica-period 1".to_owned(),
        "appendonly yes".to_owned(),
    ]
}

/// The master, its successor, and another replica.
struct Three {
    a: Server,
    p: Server,
    c: Server,
}

impl Three {
    fn start() -> Self {
        Self::on(None, LAG)
    }

    fn on(clock_of_a: Option<&WallClock>, lag: Duration) -> Self {
        let lines = settings(lag);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let a = clock_of_a.map_or_else(|| Server::with(&lines), |clock| Server::with_wall_clock(clock, &lines));
        let [p, c] = [(); 2].map(|()| Server::replica_of(&a, &lines));
        let three = Self { a, p, c };
        eventually(SOON, || may_grant(&three.a));
        three
    }

    /// P is promoted, and A goes on.
    fn promote(&self) {
        assert_eq!(self.p.client().call("REPLICAOF NO ONE"), "OK");
    }
}

fn may_grant(server: &Server) -> bool {
    server.client().info_number("rlock_may_grant") == 1
}

fn follow(replica: &Server, master: &Server) {
    let answer = replica.client().call(format!("REPLICAOF 127.0.0.1 {}", master.port()));
    assert_eq!(answer, "OK");
}

/// An owner's belief in one hold.
#[derive(Clone, Copy, Debug)]
struct Belief {
    owner: char,
    from: Instant,
    until: Instant,
}

/// Beliefs, in the order in which they began.
#[derive(Clone, Default)]
struct Beliefs(Arc<Mutex<Vec<Belief>>>);

impl Beliefs {
    fn of(&self, owner: char) -> Option<Belief> {
        self.0.lock().expect("no panic").iter().rev().find(|belief| belief.owner == owner).copied()
    }

    fn believes(&self, owner: char) -> bool {
        self.of(owner).is_some_and(|belief| Instant::now() < belief.until)
    }

    #[track_caller]
    fn assert_exclusive(&self) {
        let beliefs = self.0.lock().expect("no panic");
        for (index, first) in beliefs.iter().enumerate() {
            for second in beliefs.iter().skip(index + 1).filter(|second| second.owner != first.owner) {
                let overlap = first.until.min(second.until).saturating_duration_since(first.from.max(second.from));
                assert!(overlap.is_zero(), "{} and {} believed for {overlap:?}", first.owner, second.owner);
            }
        }
    }
}

/// A worker, which ends when this is dropped.
struct Worker {
    port: Arc<AtomicU16>,
    ends: Arc<AtomicBool>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Worker {
    fn start(server: &Server, owner: char, beliefs: &Beliefs) -> Self {
        let (port, ends) = (Arc::new(AtomicU16::new(server.port())), Arc::new(AtomicBool::new(false)));
        let (at, end, beliefs) = (port.clone(), ends.clone(), beliefs.clone());
        let thread = thread::spawn(move || {
            let mut connection = None;
            while !end.load(Ordering::Relaxed) {
                let wanted = at.load(Ordering::Relaxed);
                connection = connection.filter(|(port, _)| *port == wanted);
                if connection.is_none() {
                    connection = Client::connect(wanted).ok().map(|client| (wanted, client));
                }
                if let Some((_, client)) = &mut connection
                    && ask(client, owner, &beliefs).is_none()
                {
                    connection = None;
                }
                thread::sleep(Duration::from_millis(50));
            }
        });
        Self { port, ends, thread: Some(thread) }
    }

    fn move_to(&self, server: &Server) {
        self.port.store(server.port(), Ordering::Relaxed);
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let joined = self.thread.take().map(thread::JoinHandle::join);
        assert!(thread::panicking() || joined.is_none_or(|joined| joined.is_ok()), "the worker panicked");
    }
}

/// Renews the hold that an owner believes in, or acquires the lock. `None` if the connection fails.
fn ask(client: &mut Client, owner: char, beliefs: &Beliefs) -> Option<()> {
    let renews = beliefs.believes(owner);
    let verb = if renews { "RENEW" } else { "ACQUIRE" };
    let sent = Instant::now();
    client.try_send(&[format!("RLOCK.{verb} job {owner} PX {}", LEASE.as_millis()).into()]).ok()?;
    let answer = client.reply_within(Duration::from_secs(1)).ok()?;
    // So that the acknowledgements of replicas are fresh.
    client.try_send(&["WAIT 1 20".into()]).ok()?;
    client.reply_within(Duration::from_secs(1)).ok()?;
    // The margin for clocks that drift, and for milliseconds that are rounded.
    let (now, until) = (Instant::now(), sent + LEASE * 99 / 100 - Duration::from_millis(2));
    let mut beliefs = beliefs.0.lock().expect("no panic");
    match (beliefs.iter_mut().rev().find(|belief| belief.owner == owner), answer) {
        (Some(belief), Reply::Int(_)) if renews && now < belief.until => belief.until = until,
        (_, Reply::Int(_)) if !renews && now < until => beliefs.push(Belief { owner, from: now, until }),
        _ => {}
    }
    Some(())
}

#[test]
fn promoted_server_that_restarts_and_is_followed_later() {
    let Three { a, mut p, c } = Three::start();
    let beliefs = Beliefs::default();
    assert_eq!(p.client().call("REPLICAOF NO ONE"), "OK");
    let _at_a = Worker::start(&a, 'a', &beliefs);
    eventually(SOON, || beliefs.believes('a'));
    p.kill();
    p.restart_in_place(&["--replicaof", "no", "one"]);
    let at_p = Worker::start(&p, 'p', &beliefs);
    // Time itself: a quarantine from the restart on would have passed.
    thread::sleep(LEASE + LAG + Duration::from_secs(2));
    follow(&c, &p);
    eventually(SOON, || beliefs.believes('p'));
    drop(at_p);
    beliefs.assert_exclusive();
}

#[test]
fn hold_is_not_renewed_at_once_after_a_restart() {
    let Three { a, mut p, c } = Three::start();
    let beliefs = Beliefs::default();
    let x = Worker::start(&a, 'x', &beliefs);
    eventually(SOON, || beliefs.believes('x'));
    p.catch_up_with(&a);
    assert_eq!(p.client().call("REPLICAOF NO ONE"), "OK");
    p.kill();
    p.restart_in_place(&["--replicaof", "no", "one"]);
    x.move_to(&p);
    let _y = Worker::start(&a, 'y', &beliefs);
    // Time itself: C follows A, which grants when the lease of x has ended there.
    thread::sleep(LEASE + Duration::from_secs(1));
    follow(&c, &p);
    drop(x);
    beliefs.assert_exclusive();
}

#[test]
fn replica_that_returns_to_the_old_master_with_its_old_configuration() {
    let Three { a, p, mut c } = Three::start();
    let beliefs = Beliefs::default();
    assert_eq!(p.client().call("REPLICAOF NO ONE"), "OK");
    follow(&c, &p);
    let at_p = Worker::start(&p, 'p', &beliefs);
    eventually(SOON, || beliefs.believes('p'));
    let at_a = Worker::start(&a, 'a', &beliefs);
    // Its file still says `replicaof A`.
    c.kill_and_restart_on_its_port();
    eventually(SOON, || beliefs.believes('a'));
    drop((at_p, at_a));
    beliefs.assert_exclusive();
}

#[test]
fn replica_that_visits_the_old_master_within_the_lag() {
    let three = Three::start();
    let (Three { a, p, c }, beliefs) = (&three, Beliefs::default());
    three.promote();
    follow(c, p);
    let at_p = Worker::start(p, 'p', &beliefs);
    eventually(SOON, || beliefs.believes('p'));
    let at_a = Worker::start(a, 'a', &beliefs);
    follow(c, a);
    // Time itself: less than the lag.
    thread::sleep(LAG * 2 / 5);
    follow(c, p);
    thread::sleep(LAG + LEASE);
    drop((at_p, at_a));
    beliefs.assert_exclusive();
}

#[test]
fn replica_that_followed_the_promoted_server_before_is_no_vote_at_once() {
    const LONG_LAG: Duration = Duration::from_secs(9);
    let three = Three::on(None, LONG_LAG);
    let (Three { a, p, c }, beliefs) = (&three, Beliefs::default());
    let network = Relay::to(a.port());
    assert_eq!(p.client().call(format!("REPLICAOF 127.0.0.1 {}", network.port())), "OK");
    follow(c, p);
    // Time itself: a connection to a master would count after the lag.
    thread::sleep(LONG_LAG);
    let at_a = Worker::start(a, 'a', &beliefs);
    eventually(SOON, || beliefs.believes('a'));
    // A does not notice, and grants until the lag has passed.
    network.cut(true);
    three.promote();
    let at_p = Worker::start(p, 'p', &beliefs);
    eventually(SOON, || beliefs.believes('p'));
    drop((at_p, at_a));
    beliefs.assert_exclusive();
}

#[test]
fn lag_that_is_lowered_on_all_servers_before_a_failover() {
    const LONG_LAG: Duration = Duration::from_secs(12);
    let three = Three::on(None, LONG_LAG);
    let (Three { a, p, c }, beliefs) = (&three, Beliefs::default());
    for server in [a, p, c] {
        let answer = server.client().call(format!("CONFIG SET rlock.max-replica-lag-ms {}", LAG.as_millis()));
        assert_eq!(answer, "OK");
    }
    three.promote();
    follow(c, p);
    let at_a = Worker::start(a, 'a', &beliefs);
    let at_p = Worker::start(p, 'p', &beliefs);
    eventually(SOON, || beliefs.believes('p'));
    drop((at_p, at_a));
    beliefs.assert_exclusive();
}

#[test]
fn promoted_server_that_restarts_with_its_old_configuration() {
    let Three { a, mut p, c } = Three::start();
    let beliefs = Beliefs::default();
    assert_eq!(p.client().call("REPLICAOF NO ONE"), "OK");
    follow(&c, &p);
    let at_p = Worker::start(&p, 'p', &beliefs);
    eventually(SOON, || beliefs.believes('p'));
    let at_a = Worker::start(&a, 'a', &beliefs);
    // Its file still says `replicaof A`.
    p.kill_and_restart_on_its_port();
    eventually(SOON, || beliefs.believes('a'));
    drop((at_p, at_a));
    beliefs.assert_exclusive();
}

#[test]
fn no_hold_outlasts_the_longest_lease_if_the_clock_of_the_master_was_ahead() {
    let clock = WallClock::new();
    clock.step_forward(Duration::from_secs(3600));
    let three = Three::on(Some(&clock), LAG);
    let (Three { a, p, c }, beliefs) = (&three, Beliefs::default());
    let at_a = Worker::start(a, 'a', &beliefs);
    eventually(SOON, || beliefs.believes('a'));
    p.catch_up_with(a);
    three.promote();
    let left_ms = p.client().call("RLOCK.PTTL job").int();
    assert!(left_ms <= 1 + i64::try_from(LEASE.as_millis()).expect("a short lease"), "{left_ms}");
    follow(c, p);
    let at_p = Worker::start(p, 'p', &beliefs);
    eventually(SOON, || beliefs.believes('p'));
    drop((at_p, at_a));
    beliefs.assert_exclusive();
}

#[test]
fn forged_acknowledgement_is_no_vote() {
    let three = Three::start();
    let (Three { a, p, c }, beliefs) = (&three, Beliefs::default());
    three.promote();
    follow(c, p);
    let ends = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| forge(a.port(), &ends));
        let at_a = Worker::start(a, 'a', &beliefs);
        let at_p = Worker::start(p, 'p', &beliefs);
        eventually(SOON, || a.client().info("role") == "master" && a.client().info_number("connected_slaves") == 1);
        eventually(SOON, || beliefs.believes('p'));
        drop((at_p, at_a));
        ends.store(true, Ordering::Relaxed);
    });
    beliefs.assert_exclusive();
}

/// Attaches as a replica, and acknowledges far more than was written.
fn forge(port: u16, ends: &AtomicBool) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.set_read_timeout(Some(Duration::from_millis(50))).expect("a timeout");
    stream.write_all(b"PSYNC ? -1\r\n").expect("a request");
    let mut buffer = [0; 1 << 16];
    while !ends.load(Ordering::Relaxed) {
        let _ = stream.read(&mut buffer);
        if stream.write_all(b"REPLCONF ACK 99999999999\r\n").is_err() {
            return;
        }
    }
}
