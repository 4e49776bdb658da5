//! Damaged and invented payloads: each one is refused, or becomes a lock on which all commands
//! work.

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, RngCore, SeedableRng};

use crate::support::{Client, Command, Reply, Server, at_length, seed};

const YEAR_MS: i64 = 365 * 24 * 3600 * 1000;

/// How many restored locks are kept, to be saved and loaded together.
const KEPT: usize = 200;

/// A DUMP payload in parts: `head` has the value's type with the name and version of the module
/// type, `data` is one string, `foot` has the format version and the checksum.
#[derive(Clone)]
struct Payload {
    head: Vec<u8>,
    data: Vec<u8>,
    foot: Vec<u8>,
}

/// Value type and module type. The last ten bits are the version of the data.
const HEAD: usize = 10;
const FOOT: usize = 10;
const STRING_FOLLOWS: u8 = 5;
const END_OF_VALUE: u8 = 0;

impl Payload {
    #[track_caller]
    fn parse(bytes: &[u8]) -> Payload {
        let (head, rest) = bytes.split_at(HEAD);
        let (body, foot) = rest.split_at(rest.len() - FOOT);
        assert_eq!([body[0], body[body.len() - 1]], [STRING_FOLLOWS, END_OF_VALUE]);
        // The first two bits of a length give the size of the length field.
        let length_bytes = if body[1] < 0x40 { 1 } else { 2 };
        let payload =
            Payload { head: head.to_vec(), data: body[1 + length_bytes..body.len() - 1].to_vec(), foot: foot.to_vec() };
        assert_eq!(payload.pack(), bytes);
        payload
    }

    /// Writes the right length of the data, so that the server passes the data to the module.
    fn pack(&self) -> Vec<u8> {
        let length = self.data.len() as u16;
        let mut bytes = [&self.head[..], &[STRING_FOLLOWS]].concat();
        match length {
            0..0x40 => bytes.push(length as u8),
            _ => bytes.extend((length | 0x4000).to_be_bytes()),
        }
        bytes.extend(&self.data);
        bytes.push(END_OF_VALUE);
        bytes.extend(&self.foot);
        bytes
    }
}

/// Locks that use everything a lock can store.
#[track_caller]
fn originals(server: &Server) -> Vec<Payload> {
    let mut client = server.client();
    client.acquire("plain a PX 600000");
    client.acquire("rich some-owner PX 600000 REQ 1 SESSION 600000");
    client.acquire("rich some-owner PX 600000 REQ 2");
    client.call("RLOCK.RELEASE rich some-owner REQ 3");
    client.acquire_fair("queue a PX 600000");
    client.acquire_fair("turn a PX 600000");
    for fair in ["queue", "turn"] {
        client.call(format!("RFAIRLOCK.ACQUIRE {fair} b QUEUE 500000 REQ 7"));
        client.call(format!("RFAIRLOCK.ACQUIRE {fair} c QUEUE 600000"));
    }
    for owner in ["some-owner", "a"] {
        client.call(format!("RRWLOCK.ACQUIRE readers {owner} READ PX 600000 REQ 3"));
        client.call("RSEMAPHORE.INIT semaphore 5");
        client.call(format!("RSEMAPHORE.ACQUIRE semaphore {owner} PERMITS 2 PX 600000"));
    }
    let _connected = server.waiter("RFAIRLOCK.ACQUIRE queue d BLOCK 0");
    client.call("RFAIRLOCK.RELEASE turn a");
    ["plain", "rich", "queue", "turn", "readers", "semaphore"]
        .map(|key| Payload::parse(client.call(format!("DUMP {key}")).bytes()))
        .to_vec()
}

/// Numbers at the limits of the parser, in the encoding of the data: seven bits per byte, lowest
/// first.
fn odd_number(random: &mut StdRng) -> Vec<u8> {
    let mut number: u64 = match random.random_range(0..4) {
        0 => 1 << random.random_range(0..64),
        1 => (1u64 << random.random_range(1..64)) - 1,
        2 => u64::MAX - random.random_range(0..3),
        _ => random.next_u64(),
    };
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    // More bytes than any number has.
    if random.random_ratio(1, 10) {
        bytes.splice(0..0, [0xff; 10]);
    }
    bytes
}

/// Returns a changed payload. Most changes are in the part that the module reads.
fn mutate(originals: &[Payload], random: &mut StdRng) -> Vec<u8> {
    let mut payload = originals.choose(random).expect("not empty").clone();
    for _ in 0..*[1, 1, 1, 2, 4].choose(random).expect("not empty") {
        let data = &mut payload.data;
        let at = random.random_range(0..=data.len());
        let end = (at + random.random_range(1..9)).min(data.len());
        match random.random_range(0..11) {
            0 | 1 if at < data.len() => data[at] ^= 1 << random.random_range(0..8),
            2 if at < data.len() => data[at] = random.random(),
            3 => data.truncate(at),
            4 => drop(data.drain(at..end)),
            5 => data[at..end].fill(if random.random() { 0xff } else { 0 }),
            6 | 7 => drop(data.splice(at..end, odd_number(random))),
            8 => drop(data.splice(at..at, odd_number(random))),
            9 => {
                // Append a part of another lock.
                let other = &originals.choose(random).expect("not empty").data;
                let from = random.random_range(0..other.len());
                data.splice(at.., other[from..].iter().copied());
            }
            _ => {
                // Change the version of the data or of the format.
                let at = random.random_range(0..2);
                let place = if random.random() { &mut payload.head[HEAD - 2 + at] } else { &mut payload.foot[at] };
                *place ^= 1 << random.random_range(0..8);
            }
        }
    }
    let mut bytes = payload.pack();
    // Sometimes change the server's part of the payload.
    match random.random_range(0..20) {
        0 => bytes.truncate(random.random_range(0..bytes.len())),
        1 => {
            let at = random.random_range(0..bytes.len());
            bytes[at] ^= 1 << random.random_range(0..8);
        }
        _ => {}
    }
    bytes
}

/// Restores a payload. If the server accepts it, the lock is within all limits and all commands
/// work on it. If not, nothing is left. Returns whether it was accepted.
#[track_caller]
fn try_payload(client: &mut Client, key: &str, payload: &[u8]) -> bool {
    // In one step, because a lease that expired long ago ends right afterwards.
    let step = [
        format!("DEL {key}").into(),
        Command::from([b"RESTORE".as_slice(), key.as_bytes(), b"0", payload]),
        format!("EXISTS {key}").into(),
        format!("MEMORY USAGE {key}").into(),
        format!("DEBUG DIGEST-VALUE {key}").into(),
        format!("DUMP {key}").into(),
    ];
    let [_, restored, exists, usage, digest, payload] = &client.call_in_one_step(&step)[..] else {
        panic!("one reply for each command");
    };
    if matches!(restored, Reply::Error(_)) {
        assert_eq!(*exists, 0);
        return false;
    }
    assert_eq!(*restored, "OK");
    assert!(usage.int() > 0);
    let step = [
        Command::from([b"RESTORE".as_slice(), b"again", b"0", payload.bytes(), b"REPLACE"]),
        "DEBUG DIGEST-VALUE again".into(),
        "DEL again".into(),
    ];
    assert_eq!(client.call_in_one_step(&step)[1], *digest, "{key}");
    assert_usable(client, key);
    true
}

/// Asserts that a lock is within all limits, and that each command gets a valid reply.
#[track_caller]
pub(crate) fn assert_usable(client: &mut Client, key: &str) {
    let info = client.call(format!("RLOCK.INFO {key}"));
    // An expired lock counts as free.
    let holders = if info == Reply::Nil { Reply::Array(vec![]) } else { info.field("holders") };
    for holder in holders.array() {
        assert!((1..=512).contains(&holder.field("owner").bytes().len()), "{info:?}");
        assert!((1..1 << 32).contains(&holder.field("holds").int()), "{info:?}");
        assert!((1..1 << 53).contains(&holder.field("token").int()), "{info:?}");
        assert!((1..=YEAR_MS + 1).contains(&holder.field("lease-ms").int()), "{info:?}");
    }
    let kind = if info == Reply::Nil { "mutex".to_owned() } else { info.field("kind").text() };
    let (family, mode) = match kind.as_str() {
        "mutex" => ("RLOCK", ""),
        "fair" => ("RFAIRLOCK", ""),
        "rwlock" => ("RRWLOCK", " READ"),
        "semaphore" => ("RSEMAPHORE", ""),
        other => panic!("unknown kind: {other}"),
    };
    let waiters = client.call(format!("RLOCK.WAITERS {key}"));
    for command in [
        format!("{family}.ACQUIRE {key} x{mode} PX 1000"),
        format!("{family}.ACQUIRE {key} some-owner{mode} PX 1000 REQ 3"),
        format!("{family}.RENEW {key} a{mode} PX 1000"),
        format!("{family}.RELEASE {key} x{mode}"),
    ] {
        match client.call(command.as_str()) {
            Reply::Error(error) => {
                let word = error.split(' ').next().expect("a first word");
                let expected = ["NOTOWNER", "STALE", "WRONGTYPE"].contains(&word) || error.contains("4294967295 times");
                assert!(expected, "{command}: {error}");
            }
            Reply::Int(_) | Reply::Nil => {}
            other => panic!("{command}: {other:?} on {info:?} with {waiters:?}"),
        }
    }
}

#[test]
fn damaged_payload_is_refused_or_becomes_a_usable_lock() {
    let mut random = StdRng::seed_from_u64(seed());
    let lines = ["appendfsync no", "rdbcompression no", "aof-use-rdb-preamble no", "rlock.fair-grace-ms 600000"];
    let mut server = Server::with_aof(&lines);
    let originals = originals(&server);
    let mut client = server.client();
    client.call("FLUSHALL");
    // Otherwise the server would refuse the mutated bytes by their checksum.
    assert_eq!(client.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), "OK");
    let (mut refused, mut taken) = (0, 0);
    for round in 0..at_length(10_000, 200_000) {
        let key = format!("lock-{}", round % KEPT);
        let payload = mutate(&originals, &mut random);
        let outcome = if try_payload(&mut client, &key, &payload) { &mut taken } else { &mut refused };
        *outcome += 1;
    }
    assert!(refused > 1000 && taken > 1000, "{refused} refused and {taken} accepted");
    server.assert_alive();

    // The accepted locks can be saved and loaded in both ways.
    client.rewrite_append_only_file();
    client.call("CLIENT PAUSE 60000 WRITE");
    let digest = client.call("DEBUG DIGEST");
    for load in ["DEBUG LOADAOF", "DEBUG RELOAD"] {
        assert_eq!(client.call(load), "OK");
        assert_eq!(client.call("DEBUG DIGEST"), digest, "{load}");
    }
    client.call("CLIENT UNPAUSE");
    assert!(client.acquire("new a") > 0);
}
