//! The module applies a keyspace event to the database in which it happened: in transactions, in
//! scripts, on replicas, and while a file is loaded.

use std::time::Duration;

use crate::support::{Client, Command, Reply, Server, eventually, move_changes_the_database, skipped_here};

const SOON: Duration = Duration::from_secs(10);

/// A key: its database and its name.
type Place = (usize, &'static str);

const DATABASES: [usize; 3] = [0, 1, 2];

/// Locks that are held at the beginning.
const SOURCES: [Place; 2] = [(0, "job"), (1, "other")];

/// A way in which a lock arrives under a key.
struct Way {
    /// PAYLOAD stands for the reply to DUMP of `job` in database 0.
    commands: &'static [&'static str],
    /// The key that no longer exists afterwards.
    leaves: Option<Place>,
    /// The key under which the lock arrives.
    to: Place,
}

const fn copy(commands: &'static [&'static str], to: Place) -> Way {
    Way { commands, leaves: None, to }
}

const fn moved(commands: &'static [&'static str], from: Place, to: Place) -> Way {
    Way { commands, leaves: Some(from), to }
}

const WAYS: &[Way] = &[
    moved(&["MOVE job 1"], (0, "job"), (1, "job")),
    copy(&["COPY job job DB 1"], (1, "job")),
    copy(&["COPY job new DB 1"], (1, "new")),
    copy(&["COPY job other DB 1 REPLACE"], (1, "other")),
    copy(&["COPY job new"], (0, "new")),
    moved(&["RENAME job new"], (0, "job"), (0, "new")),
    copy(&["RESTORE new 0 PAYLOAD"], (0, "new")),
    moved(&["SELECT 1", "MOVE other 0"], (1, "other"), (0, "other")),
    copy(&["SELECT 1", "COPY other other DB 0"], (0, "other")),
    copy(&["SELECT 1", "COPY other new DB 2"], (2, "new")),
    copy(&["SELECT 1", "COPY other new"], (1, "new")),
    moved(&["SELECT 1", "RENAME other new"], (1, "other"), (1, "new")),
    copy(&["SELECT 2", "RESTORE job 0 PAYLOAD", "SELECT 0"], (2, "job")),
];

fn changes_the_database(command: &str) -> bool {
    command.starts_with("MOVE") || command.contains(" DB ")
}

/// The ways that the server under test supports.
fn ways() -> impl Iterator<Item = &'static Way> {
    let without_move = move_changes_the_database();
    if without_move {
        skipped_here("MOVE changes the database of the connection");
    }
    WAYS.iter().filter(move |way| !without_move || !way.commands.iter().any(|command| changes_the_database(command)))
}

/// Runs commands in a context, and returns their replies.
type Run = fn(&mut Client, &[Command]) -> Vec<Reply>;

fn one_by_one(client: &mut Client, commands: &[Command]) -> Vec<Reply> {
    client.call_in_one_step(commands)
}

fn in_a_transaction(client: &mut Client, commands: &[Command]) -> Vec<Reply> {
    assert_eq!(client.call("MULTI"), "OK");
    for command in commands {
        assert_eq!(client.call(command.clone()), "QUEUED");
    }
    client.call("EXEC").array().to_vec()
}

/// The server propagates a transaction of one command as that command alone. The ACQUIRE makes two,
/// so that replicas and the append-only file receive a transaction.
fn in_a_transaction_with_another(client: &mut Client, commands: &[Command]) -> Vec<Reply> {
    let another = Command::from("RLOCK.ACQUIRE another a PX 1000");
    in_a_transaction(client, &[&[another], commands].concat()).split_off(1)
}

/// A script that calls each command.
fn script(commands: &[Command]) -> Command {
    let (mut text, mut words) = (String::from("local answers = {}\n"), Vec::new());
    for Command(command) in commands {
        let first = words.len() + 1;
        words.extend(command.iter().cloned());
        text += &format!("table.insert(answers, redis.call(unpack(ARGV, {first}, {})))\n", words.len());
    }
    text += "return answers";
    let head = [b"EVAL".to_vec(), text.into_bytes(), b"0".to_vec()];
    Command(head.into_iter().chain(words).collect())
}

fn in_a_script(client: &mut Client, commands: &[Command]) -> Vec<Reply> {
    client.call(script(commands)).array().to_vec()
}

fn in_a_script_in_a_transaction(client: &mut Client, commands: &[Command]) -> Vec<Reply> {
    client.transaction(script(commands)).array().to_vec()
}

impl Way {
    /// Runs the commands on a new connection.
    #[track_caller]
    fn execute(&self, server: &Server, run: Run) {
        // On failure the last line names the way that failed.
        eprintln!("{:?}", self.commands);
        let mut client = server.client();
        let payload = client.call("DUMP job");
        let command = |line: &&str| {
            let mut command = Command::from(*line);
            for word in command.0.iter_mut().filter(|word| *word == b"PAYLOAD") {
                *word = payload.bytes().to_vec();
            }
            command
        };
        let commands: Vec<Command> = self.commands.iter().map(command).collect();
        for (answer, line) in run(&mut client, &commands).into_iter().zip(self.commands) {
            assert!(!matches!(answer, Reply::Error(_)) && answer != 0, "{line}: {answer:?}");
        }
    }

    /// The same key in the other databases.
    fn same_key_elsewhere(&self) -> impl Iterator<Item = Place> {
        let (db, name) = self.to;
        DATABASES.into_iter().filter(move |other| *other != db).map(move |other| (other, name))
    }
}

/// One connection for each database.
#[track_caller]
fn client_of_each_database(server: &Server) -> [Client; DATABASES.len()] {
    DATABASES.map(|db| {
        let mut client = server.client();
        assert_eq!(client.call(format!("SELECT {db}")), "OK");
        client
    })
}

/// A lock that arrives is bound to no connection, and ends after the grace of its session. A lock
/// with the same key in another database stays bound to its connection.
#[track_caller]
fn assert_only_the_arriving_lock_ends(run: Run) {
    let server = Server::start();
    let mut clients = client_of_each_database(&server);
    for way in ways() {
        let mut held: Vec<Place> = way.same_key_elsewhere().chain(SOURCES).collect();
        held.sort_unstable();
        held.dedup();
        for (db, name) in &held {
            clients[*db].acquire(&format!("{name} a PX 600000 SESSION 50"));
        }
        way.execute(&server, run);
        let (db, name) = way.to;
        assert_eq!(clients[db].call(format!("EXISTS {name}")), 1);
        eventually(SOON, || clients[db].call(format!("EXISTS {name}")) == 0);

        held.retain(|place| *place != way.to && Some(*place) != way.leaves);
        for (db, name) in &held {
            let holder = clients[*db].holder(name).unwrap_or_else(|| panic!("{name} in {db} is gone"));
            assert_eq!(holder.session, 1, "{name} in {db} is bound to its connection");
            assert!(holder.lease_ms > 500_000, "{name} in {db} expires in {} ms", holder.lease_ms);
        }
        assert_eq!(clients[0].info_number("rlock_held"), i64::try_from(held.len()).expect("a few"));
        clients[0].call("FLUSHALL");
        eventually(SOON, || clients[0].info_number("rlock_held") == 0);
    }
}

#[test]
fn arriving_lock_expires_and_ends_no_session_in_other_databases() {
    assert_only_the_arriving_lock_ends(one_by_one);
}

#[test]
fn lock_arriving_in_a_transaction_expires_and_ends_no_session_in_other_databases() {
    assert_only_the_arriving_lock_ends(in_a_transaction);
}

/// The copy changes only database 1, so it must not end a session in database 0.
#[test]
fn copy_in_a_transaction_keeps_the_session() {
    if move_changes_the_database() {
        return skipped_here("MOVE changes the database of the connection");
    }
    let server = Server::start();
    let [mut client, mut there, _] = client_of_each_database(&server);
    for name in ["job", "other"] {
        client.acquire(&format!("{name} a PX 600000 SESSION 50"));
    }
    for copied in ["job", "other"] {
        let copied_to_job = Command::from(format!("COPY {copied} job DB 1"));
        assert_eq!(in_a_transaction(&mut server.client(), &[copied_to_job]), [Reply::Int(1)]);
        let mut session = || client.holder("job").expect("a holder").session;
        eventually(SOON, || there.call("EXISTS job") == 0 || session() == 0);
        let holder = client.holder("job").expect("a holder");
        assert_eq!((holder.owner.as_str(), holder.session), ("a", 1), "after the copy of {copied}");
        assert!(holder.lease_ms > 500_000, "after the copy of {copied}: {} ms", holder.lease_ms);
        assert_eq!(server.client().call("RLOCK.ACQUIRE job b"), Reply::Nil);
    }
}

#[test]
fn lock_arriving_in_a_script_expires_and_ends_no_session_in_other_databases() {
    assert_only_the_arriving_lock_ends(in_a_script);
    assert_only_the_arriving_lock_ends(in_a_script_in_a_transaction);
}

#[test]
fn value_of_another_type_refuses_only_waiters_in_its_database() {
    const WAYS: [&[&str]; 6] = [
        &["COPY text job DB 1 REPLACE"],
        &["SELECT 1", "DEL job", "SELECT 0", "MOVE text 1", "SELECT 1", "RENAME text job"],
        &["SELECT 1", "SET job text"],
        &["SELECT 1", "RPUSH list 1", "RENAME list job"],
        &["SELECT 1", "RPUSH list 1", "SORT list STORE job"],
        &["SELECT 1", "RPUSH list 1", "COPY list job REPLACE"],
    ];
    let without_move = move_changes_the_database();
    for (way, run) in WAYS.iter().flat_map(|way| [in_a_transaction as Run, in_a_script].map(|run| (way, run))) {
        if without_move && way.iter().any(|command| changes_the_database(command)) {
            skipped_here("MOVE changes the database of the connection");
            continue;
        }
        // On failure the last line names the way that failed.
        eprintln!("{way:?}");
        let server = Server::start();
        server.client().call("SET text here");
        let mut clients = client_of_each_database(&server);
        let mut waiters = client_of_each_database(&server);
        for (client, waiter) in clients.iter_mut().zip(&mut waiters) {
            client.acquire("job a PX 600000");
            waiter.send("RLOCK.ACQUIRE job b BLOCK 0");
            eventually(SOON, || client.waiting_owners("job") == ["b"]);
        }
        let commands: Vec<Command> = way.iter().map(|line| Command::from(*line)).collect();
        let answers = run(&mut server.client(), &commands);
        assert!(!answers.iter().any(|answer| matches!(answer, Reply::Error(_)) || *answer == 0), "{answers:?}");
        waiters[1].reply().expect_error("WRONGTYPE");
        for db in [0, 2] {
            assert_eq!(clients[db].waiting_owners("job"), ["b"]);
            assert_eq!(clients[db].call("RLOCK.RELEASE job a"), 0);
            waiters[db].reply().int();
        }
    }
}

/// A lease also expires on the server that becomes the primary after the lock arrived.
#[track_caller]
fn assert_leases_expire_on_the_next_primary(next: impl Fn(Server, Server) -> Server) {
    for way in ways() {
        let primary = Server::with_aof(&[]);
        let replica = Server::replica_of(&primary, &[]);
        let mut clients = client_of_each_database(&primary);
        for (db, name) in SOURCES {
            clients[db].acquire(&format!("{name} a PX 1000"));
        }
        way.execute(&primary, in_a_transaction_with_another);
        let next = next(primary, replica);
        for client in &mut client_of_each_database(&next) {
            eventually(SOON, || client.call("DBSIZE") == 0);
        }
        assert_eq!(next.client().info_number("rlock_held"), 0);
    }
}

#[test]
fn lock_that_arrived_in_a_transaction_expires_on_a_promoted_replica() {
    assert_leases_expire_on_the_next_primary(|mut primary, replica| {
        replica.catch_up_with(&primary);
        primary.kill();
        assert_eq!(replica.client().call("REPLICAOF NO ONE"), "OK");
        primary.restart();
        replica
    });
}

#[test]
fn lock_that_arrived_in_a_transaction_expires_after_a_restart() {
    assert_leases_expire_on_the_next_primary(|mut primary, _| {
        primary.kill_and_restart();
        primary
    });
}

#[test]
fn log_warns_of_a_server_that_leaves_clients_in_another_database() {
    let log = Server::start().log();
    let warnings: Vec<_> = log.lines().filter(|line| line.contains("do not use MOVE")).collect();
    assert_eq!(warnings.len(), usize::from(move_changes_the_database()), "{warnings:?}");
}
