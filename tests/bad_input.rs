//! Invalid commands: which error each one gets, and that none of them changes anything.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};

use crate::support::{Client, Command, Reply, Server, seed};

/// Everything that a command could have changed, except the remaining lease, which counts down. See
/// [`Refusals::expect`].
#[track_caller]
fn snapshot(client: &mut Client) -> Vec<String> {
    let mut state: Vec<_> = ["DEBUG DIGEST", "DBSIZE", "RLOCK.WAITERS job", "TYPE text"]
        .map(|command| format!("{:?}", client.call(command)))
        .to_vec();
    let holder = client.holder("job").expect("a holder");
    state.push(format!("{:?}", holder.identity()));
    state.push(client.info("rdb_changes_since_last_save"));
    state
}

/// A server where `a` holds `job` once and `text` is a string. It checks that commands are refused.
struct Refusals {
    _server: Server,
    client: Client,
    state: Vec<String>,
}

impl Refusals {
    fn new() -> Refusals {
        let server = Server::start();
        let mut client = server.client();
        client.acquire("job a PX 20000 REQ 5");
        client.call("SET text x");
        let state = snapshot(&mut client);
        Refusals { _server: server, client, state }
    }

    /// Asserts that the command fails with this code, that the error contains one of the words, and
    /// that nothing has changed.
    #[track_caller]
    fn expect(&mut self, command: impl Into<Command>, code: &str, words: &[&str]) {
        let command = command.into();
        let lease_before = self.client.call("RLOCK.PTTL job").int();
        let reply = self.client.call(command.clone());
        let error = reply.expect_error(code).to_lowercase();
        let named = words.iter().any(|word| error.contains(word));
        assert!(named, "{command:?} replies {error:?}, which contains none of {words:?}");
        assert_eq!(snapshot(&mut self.client), self.state, "{command:?} changed something");
        let lease_after = self.client.call("RLOCK.PTTL job").int();
        assert!(lease_after <= lease_before, "{command:?} renewed the lease");
        assert!(lease_after > lease_before - 2000, "{command:?} shortened the lease");
    }
}

const COMMANDS_WITH_A_LEASE: [&str; 2] = ["RLOCK.ACQUIRE job a", "RLOCK.RENEW job a"];

#[test]
fn wrong_number_of_arguments_is_refused() {
    let mut refusals = Refusals::new();
    for command in [
        "RLOCK.ACQUIRE",
        "RLOCK.ACQUIRE job",
        "RLOCK.RELEASE",
        "RLOCK.RELEASE job",
        "RLOCK.RENEW",
        "RLOCK.RENEW job",
        "RLOCK.FORCERELEASE",
        "RLOCK.HOLDS",
        "RLOCK.HOLDS job",
        "RLOCK.HOLDS job a b",
        "RLOCK.PTTL",
        "RLOCK.INFO",
        "RLOCK.WAITERS",
    ] {
        refusals.expect(command, "ERR", &["wrong number of arguments"]);
    }
}

#[test]
fn unknown_incomplete_and_repeated_options_are_refused() {
    let mut refusals = Refusals::new();
    for command in [
        // Unknown options, and options of other commands.
        "RLOCK.ACQUIRE job a NOW",
        "RLOCK.ACQUIRE job a PX 1000 NOW",
        "RLOCK.ACQUIRE job a TOKEN 1",
        "RLOCK.ACQUIRE job a QUEUE 1000",
        "RLOCK.ACQUIRE job a READ",
        "RLOCK.RELEASE job a PX 1000",
        "RLOCK.RELEASE job a BLOCK 0",
        "RLOCK.RENEW job a REQ 6",
        "RLOCK.RENEW job a BLOCK 0",
        "RLOCK.RENEW job a SESSION 0",
        "RLOCK.FORCERELEASE job a",
        "RLOCK.FORCERELEASE job REQ 6",
        "RLOCK.WAITERS job 3",
        "RLOCK.INFO job a",
        "RLOCK.INFO job OWNER",
        // Options without a value.
        "RLOCK.ACQUIRE job a PX",
        "RLOCK.ACQUIRE job a EX",
        "RLOCK.ACQUIRE job a BLOCK",
        "RLOCK.ACQUIRE job a SESSION",
        "RLOCK.ACQUIRE job a REQ",
        "RLOCK.ACQUIRE job a REQ 6 PX",
        "RLOCK.RELEASE job a REQ",
        "RLOCK.RENEW job a PX",
        "RLOCK.FORCERELEASE job TOKEN",
        "RLOCK.WAITERS job COUNT",
        // Repeated options, in upper and lower case.
        "RLOCK.ACQUIRE job a PX 1000 PX 1000",
        "RLOCK.ACQUIRE job a PX 1000 px 2000",
        "RLOCK.ACQUIRE job a BLOCK 1 BLOCK 1",
        "RLOCK.ACQUIRE job a SESSION 1 SESSION 1",
        "RLOCK.ACQUIRE job a REQ 6 REQ 6",
        "RLOCK.ACQUIRE job a ONCE once",
        "RLOCK.RELEASE job a REQ 6 REQ 6",
        "RLOCK.RENEW job a EX 10 EX 10",
        "RLOCK.FORCERELEASE job TOKEN 1 TOKEN 1",
        "RLOCK.WAITERS job COUNT 1 COUNT 1",
        // Two options for the same lease.
        "RLOCK.ACQUIRE job a PX 1000 EX 1",
        "RLOCK.RENEW job a EX 1 PX 1000",
    ] {
        refusals.expect(command, "ERR", &["unknown option", "needs a value", "given twice", "exclude each other"]);
    }
}

#[test]
fn error_names_the_argument_and_the_accepted_values() {
    let mut refusals = Refusals::new();
    for (command, words) in [
        ("RLOCK.ACQUIRE job a NOW", "unknown option 'now'; expected px, ex, block, notify, claim, session, req"),
        ("RLOCK.ACQUIRE job a PX 5 TOKEN 1", "unknown option 'token'"),
        ("RLOCK.ACQUIRE job a BLOCK", "option block needs a value"),
        ("RLOCK.ACQUIRE job a REQ 6 req 7", "option req is given twice"),
        ("RLOCK.ACQUIRE job a PX 5 EX 1", "options px and ex exclude each other"),
        ("RFAIRLOCK.ACQUIRE job a BLOCK 1 QUEUE 1", "options block and queue exclude each other"),
        ("RRWLOCK.ACQUIRE job a PX 5", "the mode must be read or write, not 'px'"),
        ("RRWLOCK.RELEASE job a both", "the mode must be read or write, not 'both'"),
        ("RLOCK.MACQUIRE 3 job free a", "the owner, which follows numkeys keys, is missing"),
        ("RLOCK.MACQUIRE 5 job free a", "numkeys is 5, but fewer keys follow"),
        ("RLOCK.MRELEASE 2 job free", "the owner, which follows numkeys keys, is missing"),
        ("RLOCK.MACQUIRE 2 job free PX 5000", "the owner is missing; found option 'px' instead"),
    ] {
        refusals.expect(command, "ERR", &[words]);
    }
}

#[test]
fn owner_may_have_the_name_of_an_option() {
    let server = Server::start();
    let mut client = server.client();
    client.call("RLOCK.MACQUIRE 2 one two PX PX 60000").array();
    assert_eq!(client.call("RLOCK.HOLDS one PX"), 1);
}

#[test]
fn error_names_the_kind_of_lock_under_the_key() {
    let mut refusals = Refusals::new();
    refusals.client.call("RSEMAPHORE.INIT permits 3");
    refusals.client.call("RFAIRLOCK.ACQUIRE fair a");
    refusals.client.call("RRWLOCK.ACQUIRE rwlock a READ");
    refusals.state = snapshot(&mut refusals.client);
    for (key, words) in [
        ("job", "the key holds a mutex; use the rlock commands"),
        ("fair", "the key holds a fair lock; use the rfairlock commands"),
        ("rwlock", "the key holds a read-write lock; use the rrwlock commands"),
        ("permits", "the key holds a semaphore; use the rsemaphore commands"),
    ] {
        for family in ["RLOCK", "RFAIRLOCK", "RRWLOCK", "RSEMAPHORE"] {
            if words.ends_with(&format!(" {} commands", family.to_lowercase())) {
                continue;
            }
            let mode = if family == "RRWLOCK" { " READ" } else { "" };
            for command in ["ACQUIRE", "RELEASE", "RENEW", "HOLDS"] {
                refusals.expect(format!("{family}.{command} {key} b{mode}"), "WRONGTYPE", &[words]);
            }
            if family != "RLOCK" {
                for command in ["FORCERELEASE", "PTTL", "INFO", "WAITERS"] {
                    refusals.expect(format!("{family}.{command} {key}"), "WRONGTYPE", &[words]);
                }
            }
        }
    }
}

#[test]
fn lease_out_of_range_or_not_a_number_is_refused() {
    let mut refusals = Refusals::new();
    for command in COMMANDS_WITH_A_LEASE {
        for (option, beyond_a_year) in [("PX", "31536000001"), ("EX", "31536001")] {
            let wrong = ["0", "-1", beyond_a_year, "9223372036854775807", "99999999999999999999"];
            for number in wrong.into_iter().chain(["x", "1.5", "1e3", "0x10", "+1", "01"]) {
                let words = format!("{} takes an integer from 1 to", option.to_lowercase());
                refusals.expect(format!("{command} {option} {number}"), "ERR", &[&words]);
            }
            let empty = [command, " ", option].concat();
            let mut command = Command::from(empty);
            command.0.push(Vec::new());
            refusals.expect(command, "ERR", &["px", "ex", "lease"]);
        }
    }
}

#[test]
fn other_numbers_out_of_range_or_not_numbers_are_refused() {
    let mut refusals = Refusals::new();
    let too_big = "9223372036854775808";
    for number in ["-1", too_big, "x", "1.5"] {
        refusals.expect(format!("RLOCK.ACQUIRE job a BLOCK {number}"), "ERR", &["block"]);
        refusals.expect(format!("RLOCK.ACQUIRE job b BLOCK {number}"), "ERR", &["block"]);
        refusals.expect(format!("RLOCK.ACQUIRE job a SESSION {number}"), "ERR", &["session"]);
        refusals.expect(format!("RLOCK.WAITERS job COUNT {number}"), "ERR", &["count"]);
    }
    for number in ["0", "-1", too_big, "x", "1.5"] {
        refusals.expect(format!("RLOCK.ACQUIRE job a REQ {number}"), "ERR", &["req"]);
        refusals.expect(format!("RLOCK.RELEASE job a REQ {number}"), "ERR", &["req"]);
    }
    for number in ["x", "1.5", too_big] {
        refusals.expect(format!("RLOCK.FORCERELEASE job TOKEN {number}"), "ERR", &["token"]);
    }
}

#[test]
fn empty_or_too_long_owner_is_refused() {
    let mut refusals = Refusals::new();
    for owner in [Vec::new(), vec![b'o'; 513], vec![b'o'; 1 << 20]] {
        for name in ["RLOCK.ACQUIRE", "RLOCK.RELEASE", "RLOCK.RENEW", "RLOCK.HOLDS"] {
            for key in [b"job".as_slice(), b"free"] {
                let command: Command = [name.as_bytes(), key, &owner].into();
                refusals.expect(command, "ERR", &["owner"]);
            }
        }
    }
}

#[test]
fn key_of_another_type_is_refused() {
    let mut refusals = Refusals::new();
    for command in [
        "RLOCK.ACQUIRE text a",
        "RLOCK.ACQUIRE text a BLOCK 0",
        "RLOCK.RELEASE text a",
        "RLOCK.RENEW text a",
        "RLOCK.FORCERELEASE text",
        "RLOCK.HOLDS text a",
        "RLOCK.PTTL text",
        "RLOCK.INFO text",
        "RLOCK.WAITERS text",
    ] {
        refusals.expect(command, "WRONGTYPE", &["wrong kind of value"]);
    }
    // Other commands refuse the key of a lock, too.
    refusals.expect("GET job", "WRONGTYPE", &["wrong kind of value"]);
    refusals.expect("LPUSH job x", "WRONGTYPE", &["wrong kind of value"]);
}

/// Words that get past the first checks more often than random bytes.
const WORDS: [&str; 26] = [
    "PX",
    "EX",
    "BLOCK",
    "SESSION",
    "REQ",
    "TOKEN",
    "COUNT",
    "px",
    "Block",
    "0",
    "1",
    "2",
    "3",
    "5",
    "20",
    "-1",
    "30000",
    "9223372036854775807",
    "9223372036854775808",
    "31536000000",
    "a",
    "b",
    "job",
    "text",
    "",
    "18446744073709551615",
];

/// Values for a random BLOCK. A long wait would only slow the test down.
const SHORT_WAITS: [&str; 4] = ["1", "2", "-1", "x"];

fn random_command(random: &mut StdRng) -> Command {
    let names = [
        "RLOCK.ACQUIRE",
        "RLOCK.RELEASE",
        "RLOCK.RENEW",
        "RLOCK.FORCERELEASE",
        "RLOCK.HOLDS",
        "RLOCK.PTTL",
        "RLOCK.INFO",
        "RLOCK.WAITERS",
        "RLOCK.APPLY",
    ];
    let mut words: Vec<Vec<u8>> = vec![names.choose(random).expect("not empty").as_bytes().to_vec()];
    for position in 0..random.random_range(0..9) {
        let after_block = words.last().is_some_and(|word| word.eq_ignore_ascii_case(b"BLOCK"));
        let keys_and_owners: &[&str] = if position == 0 { &["k1", "k2", "text"] } else { &["a", "b"] };
        let choices = match (after_block, position) {
            (true, _) => &SHORT_WAITS[..],
            (false, 0 | 1) if random.random_ratio(7, 8) => keys_and_owners,
            _ => &WORDS[..],
        };
        let word = match random.random_range(0..6) {
            0 if !after_block => {
                let mut bytes = vec![0; random.random_range(0..600)];
                random.fill_bytes(&mut bytes);
                bytes
            }
            _ => choices.choose(random).expect("not empty").as_bytes().to_vec(),
        };
        words.push(word);
    }
    Command(words)
}

#[test]
fn server_survives_100_000_random_commands() {
    let mut random = StdRng::seed_from_u64(seed());
    let mut server = Server::with_aof(&["appendfsync no"]);
    let mut client = server.client();
    client.call("SET text x");
    let known = ["ERR", "WRONGTYPE", "NOTOWNER", "STALE", "SUPERSEDED", "UNBLOCKED"];
    let (mut granted, mut refused) = (0, 0);
    for _ in 0..1000 {
        let batch: Vec<_> = (0..100).map(|_| random_command(&mut random)).collect();
        let replies = client.call_in_one_step(&batch);
        for (command, reply) in batch.iter().zip(replies) {
            match reply {
                Reply::Error(line) => {
                    refused += 1;
                    let code = line.split(' ').next().unwrap_or_default();
                    assert!(known.contains(&code), "{command:?} replies {line}");
                }
                Reply::Int(_) => granted += 1,
                _ => {}
            }
        }
    }
    assert!(granted > 1000 && refused > 1000, "a poor mix: {granted} granted and {refused} refused");
    server.assert_alive();
    // The restart reads the effects of these commands back.
    server.kill_and_restart();
}
