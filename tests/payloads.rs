//! DUMP and RESTORE: payloads from other servers, including tampered ones.

use std::time::{Duration, SystemTime};

use crate::support::{Client, Command, Reply, Server, eventually, two_nodes};

const SOON: Duration = Duration::from_secs(5);
const DAY_US: u64 = 24 * 3600 * 1_000_000;
/// The highest token that is granted.
const HIGHEST_TOKEN: u64 = (1 << 53) - (1 << 49);
const YEAR_MS: u64 = 365 * 24 * 3600 * 1000;

/// The type byte and the nine bytes of the module type come before the module's data.
const HEAD: usize = 10;
/// The version of the format and a checksum come after the module's data.
const FOOT: usize = 10;

fn restore(key: &str, payload: &[u8]) -> Command {
    [b"RESTORE".as_slice(), key.as_bytes(), b"0", payload].into()
}

/// Payloads without compression, so that tests can change them.
fn start_without_compression() -> Server {
    Server::with_aof(&["appendfsync no", "rdbcompression no"])
}

/// Dumps a lock with some history. Also turns checksum validation off.
#[track_caller]
fn dump_a_lock(client: &mut Client) -> Vec<u8> {
    assert_eq!(client.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), "OK");
    client.acquire("job some-owner PX 600000 REQ 1");
    client.acquire("job some-owner PX 600000 REQ 2");
    client.call("DUMP job").bytes().to_vec()
}

#[test]
fn restored_lock_equals_the_original() {
    let (server, elsewhere) = (Server::start(), Server::start());
    let mut client = server.client();
    let payload = dump_a_lock(&mut client);
    let original = client.holder("job").expect("a holder");
    for mut target in [client, elsewhere.client()] {
        assert_eq!(target.call(restore("copy", &payload)), "OK");
        let copy = target.holder("copy").expect("a holder");
        assert_eq!(copy.identity(), original.identity());
        // Payloads store whole milliseconds of the wall clock, so rounding may add up to 1 ms.
        assert!((590_000..=600_001).contains(&copy.lease_ms), "{copy:?}");
        assert_eq!(target.acquire("copy some-owner REQ 2"), original.token);
        assert_eq!(target.call("RLOCK.HOLDS copy some-owner"), 2);
        assert_eq!(target.call("RLOCK.ACQUIRE copy b"), Reply::Nil);
        assert!(target.acquire("new b") > original.token, "a token seen raises the last token");
        assert_eq!(target.call("RLOCK.RELEASE copy some-owner"), 1);
        assert_eq!(target.call("RLOCK.RELEASE copy some-owner"), 0);
    }
}

#[test]
fn restored_lease_expires_at_the_original_deadline() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 700");
    let payload = client.call("DUMP job").bytes().to_vec();
    assert_eq!(client.call(restore("copy", &payload)), "OK");
    let mut waiter = server.waiter("RLOCK.ACQUIRE copy b PX 60000 BLOCK 0");
    assert!(waiter.reply().int() > 0);
    eventually(SOON, || client.call("EXISTS job") == 0);

    // Too late: the lease expired long before this RESTORE.
    assert_eq!(client.call(restore("late", &payload)), "OK");
    assert_eq!(client.call("RLOCK.PTTL late"), -2);
    assert_eq!(client.call("RLOCK.HOLDS late a"), 0);
    eventually(SOON, || client.call("EXISTS late") == 0);
}

#[test]
fn restore_ends_the_session() {
    let server = Server::start();
    let mut client = server.client();
    client.acquire("job a PX 60000 SESSION 400");
    let payload = client.call("DUMP job").bytes().to_vec();
    client.call(restore("copy", &payload));
    let left = client.call("RLOCK.PTTL copy").int();
    assert!(left <= 400, "{left}");
    eventually(SOON, || client.call("EXISTS copy") == 0);
    assert_eq!(client.call("RLOCK.HOLDS job a"), 1);
}

/// The module never writes such a key, so the payload is forged.
#[test]
fn payload_without_holder_or_place_is_refused() {
    /// The opcode before the length of a string in module data, and the opcode at the end of the
    /// data.
    const STRING: u8 = 5;
    const END: u8 = 0;
    let server = start_without_compression();
    let mut client = server.client();
    let payload = dump_a_lock(&mut client);
    let (head, rest) = payload.split_at(HEAD);
    let foot = &payload[payload.len() - FOOT..];
    let [STRING, _, kind, ..] = *rest else { panic!("unexpected layout: {rest:?}") };
    // One permit, no hold, no place.
    let data = [kind, 1, 0, 0];
    let empty = [head, &[STRING, data.len() as u8], &data, &[END], foot].concat();
    let refused = client.call(restore("copy", &empty));
    assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
    assert!(server.log().contains("rlock: the payload of a lock has neither a holder nor a place"));
    assert_eq!(client.call("EXISTS copy"), 0);
}

/// Replaces the only number that `found` accepts, wherever the payload has it.
///
/// This assumes only that numbers are LEB128. The new number must have the same length.
#[track_caller]
fn replace_number(payload: &[u8], found: impl Fn(u64) -> bool, change: impl Fn(u64) -> u64) -> Vec<u8> {
    let mut changed = payload.to_vec();
    let mut times = 0;
    for at in HEAD..payload.len() - FOOT {
        let (number, length) = read_leb128(&payload[at..]);
        // Inside a number its tail looks like a smaller number.
        if found(number) {
            let replacement = write_leb128(change(number));
            assert_eq!(replacement.len(), length);
            changed[at..at + length].copy_from_slice(&replacement);
            times += 1;
        }
    }
    assert_eq!(times, 1, "occurrences of the number in the payload");
    changed
}

/// Reads the number that starts here, and its length. For other bytes it returns some number.
fn read_leb128(bytes: &[u8]) -> (u64, usize) {
    let mut number = 0;
    for (position, byte) in bytes.iter().take(9).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * position);
        if byte & 0x80 == 0 {
            return (number, position + 1);
        }
    }
    (number, bytes.len().min(9))
}

fn write_leb128(mut number: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while number > 0x7f {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
    bytes
}

#[test]
fn payload_with_a_token_more_than_a_day_ahead_is_refused() {
    let server = start_without_compression();
    let mut client = server.client();
    let payload = dump_a_lock(&mut client);
    let token = client.holder("job").expect("a holder").token as u64;
    let ahead_by = |us| replace_number(&payload, |number| number == token, |number| number + us);

    let too_far = client.call(restore("copy", &ahead_by(DAY_US + DAY_US / 10)));
    assert!(matches!(too_far, Reply::Error(_)), "{too_far:?}");
    assert_eq!(client.call("EXISTS copy"), 0);

    let hour = DAY_US / 24;
    assert_eq!(client.call(restore("copy", &ahead_by(hour))), "OK");
    assert_eq!(client.holder("copy").expect("a holder").token as u64, token + hour);
    assert!(client.acquire("new a") as u64 > token + hour, "RESTORE raises the last token");
}

/// In a cluster a refused lock might be lost, because a slot move may continue without it.
#[test]
fn cluster_accepts_a_payload_with_a_token_days_ahead() {
    let [server, _other] = two_nodes();
    let mut client = server.client();
    assert_eq!(client.call("CONFIG SET rdbcompression no"), "OK");
    let payload = dump_a_lock(&mut client);
    let token = client.holder("job").expect("a holder").token as u64;
    let ahead = replace_number(&payload, |number| number == token, |number| number + 3 * DAY_US);
    assert_eq!(client.call(restore("copy", &ahead)), "OK");
    assert_eq!(client.holder("copy").expect("a holder").token as u64, token + 3 * DAY_US);
    let beyond = replace_number(&payload, |number| number == token, |_| HIGHEST_TOKEN);
    let refused = client.call(restore("beyond", &beyond));
    assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
    assert!(client.acquire("new a") as u64 > token + 3 * DAY_US, "RESTORE raises the last token");
}

/// The clock of the server that saved the payload may be ahead.
#[test]
fn lease_longer_than_a_year_is_cut_and_far_longer_is_refused() {
    let server = start_without_compression();
    let mut client = server.client();
    let payload = dump_a_lock(&mut client);
    let left = client.call("RLOCK.PTTL job").int() as u64;
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    let deadline = now.as_millis() as u64 + left;
    let near = |number: u64| number.abs_diff(deadline) < 2000;
    let later_by = |ms| replace_number(&payload, near, |number| number + ms);

    assert_eq!(client.call(restore("copy", &later_by(YEAR_MS / 2))), "OK");
    let left = client.call("RLOCK.PTTL copy").int() as u64;
    assert!((YEAR_MS / 2..YEAR_MS).contains(&left), "{left}");
    assert_eq!(client.call("DEL copy"), 1);

    assert_eq!(client.call(restore("copy", &later_by(YEAR_MS))), "OK");
    let left = client.call("RLOCK.PTTL copy").int() as u64;
    // The remaining time is rounded up.
    assert!((YEAR_MS - 60_000..=YEAR_MS + 1).contains(&left), "{left}");
    assert_eq!(client.call("DEL copy"), 1);

    let too_long = client.call(restore("copy", &later_by(YEAR_MS + 2 * DAY_US / 1000)));
    assert!(matches!(too_long, Reply::Error(_)), "{too_long:?}");
    assert_eq!(client.call("EXISTS copy"), 0);
}

#[test]
fn place_with_a_far_future_arrival_or_end_is_refused() {
    let server = start_without_compression();
    let mut client = server.client();
    assert_eq!(client.call("DEBUG SET-SKIP-CHECKSUM-VALIDATION 1"), "OK");
    let token = client.acquire_fair("job a PX 60000") as u64;
    assert_eq!(client.call("RFAIRLOCK.ACQUIRE job b QUEUE 600000"), Reply::Nil);
    let payload = client.call("DUMP job").bytes().to_vec();
    let arrival_later_by = |us| {
        let is_arrival = |number: u64| number > token && number < token + DAY_US;
        replace_number(&payload, is_arrival, |number| number + us)
    };
    let now_ms = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_millis() as u64;
    let end_later_by = |ms| {
        let is_end = |number: u64| number.abs_diff(now_ms + 600_000) < 60_000;
        replace_number(&payload, is_end, |number| number + ms)
    };

    for too_far in [arrival_later_by(DAY_US + DAY_US / 10), end_later_by(YEAR_MS + 2 * DAY_US / 1000)] {
        let refused = client.call(restore("copy", &too_far));
        assert!(matches!(refused, Reply::Error(_)), "{refused:?}");
        assert_eq!(client.call("EXISTS copy"), 0);
    }
    for near in [arrival_later_by(DAY_US / 24), end_later_by(YEAR_MS / 2), end_later_by(YEAR_MS)] {
        assert_eq!(client.call(restore("copy", &near)), "OK");
        assert_eq!(client.call("RFAIRLOCK.WAITERS copy").array().len(), 1);
        assert_eq!(client.call("DEL copy"), 1);
    }
    assert!(client.acquire("new a") as u64 > token + DAY_US / 24, "an arrival raises the last token as well");
}
