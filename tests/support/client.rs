//! A connection that shows the raw protocol. A client library would hide what these tests check:
//! the exact text of an error, that a reply has *not* arrived yet, and what the server does when a
//! client disconnects during a wait.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::eventually;
use super::family::{Family, MUTEX};
use super::notified::{self, Awaited};
use super::reply::Reply;

/// Far longer than a healthy server needs: only a reply that never comes exceeds it.
const PATIENCE: Duration = Duration::from_secs(10);

/// The words of one command.
#[derive(Clone, Debug)]
pub struct Command(pub Vec<Vec<u8>>);

impl Command {
    fn pack_into(&self, out: &mut Vec<u8>) {
        out.extend(format!("*{}\r\n", self.0.len()).bytes());
        for word in &self.0 {
            out.extend(format!("${}\r\n", word.len()).bytes());
            out.extend(word);
            out.extend(b"\r\n");
        }
    }
}

/// Parses a line as typed into `redis-cli`. Arguments that are empty or contain spaces need the
/// array form below.
impl From<&str> for Command {
    fn from(line: &str) -> Command {
        Command(line.split_whitespace().map(|word| word.as_bytes().to_vec()).collect())
    }
}

impl From<String> for Command {
    fn from(line: String) -> Command {
        Command::from(line.as_str())
    }
}

impl<const N: usize> From<[&[u8]; N]> for Command {
    fn from(words: [&[u8]; N]) -> Command {
        Command(words.iter().map(|word| word.to_vec()).collect())
    }
}

/// The single holder of a lock of any kind, as RLOCK.INFO shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    pub owner: String,
    pub holds: i64,
    pub token: i64,
    pub lease_ms: i64,
    pub session: i64,
}

impl Holder {
    /// The fields that are equal on every copy of a lock. The remaining lease is not one of them,
    /// because it counts down.
    pub fn identity(&self) -> (&str, i64, i64) {
        (&self.owner, self.holds, self.token)
    }
}

/// One connection. Dropping it closes the socket, as the death of a process does.
pub struct Client {
    stream: TcpStream,
    id: i64,
    family: Family,
    received: Vec<u8>,
    /// How many bytes of `received` were already returned.
    consumed: usize,
    /// A reply that has already arrived, or that comes on a channel.
    elsewhere: Elsewhere,
}

/// Replies that do not come over the connection that sent the request.
#[derive(Default)]
pub enum Elsewhere {
    #[default]
    No,
    There(Reply),
    OnChannel(Box<Awaited>),
}

impl Client {
    /// Connects to a server on a port of this machine, and checks that it answers.
    pub fn connect(port: u16) -> io::Result<Client> {
        Client::connect_within(port, PATIENCE)
    }

    /// Like [`connect`](Self::connect), for a server that may be stopped.
    pub fn connect_within(port: u16, patience: Duration) -> io::Result<Client> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        let mut client =
            Client { stream, id: 0, family: MUTEX, received: Vec::new(), consumed: 0, elsewhere: Elsewhere::No };
        client.try_send(&[Command::from("CLIENT ID")])?;
        client.id = match client.reply_within(patience)? {
            Reply::Int(id) => id,
            other => return Err(io::Error::other(format!("CLIENT ID is not a number: {other:?}"))),
        };
        Ok(client)
    }

    /// Sends a request with NOTIFY, whose reply comes on a channel.
    pub fn send_notified(&mut self, subscriber: Client, command: Command) {
        self.elsewhere = match notified::ask(self, subscriber, command) {
            Ok(reply) => Elsewhere::There(reply),
            Err(awaited) => Elsewhere::OnChannel(awaited),
        };
    }

    /// Whether the reply to the last request will come on a channel.
    pub fn awaits_message(&self) -> bool {
        matches!(self.elsewhere, Elsewhere::OnChannel(_))
    }

    /// From now on `LOCK.` means this family.
    pub fn speak(&mut self, family: Family) {
        self.family = family;
    }

    /// Creates a lock if its kind has to be created before use. Only semaphores do.
    #[track_caller]
    pub fn make(&mut self, key: &str) {
        if let Some(creation) = self.family.creation(key) {
            self.call(creation).int();
        }
    }

    /// The CLIENT ID of this connection.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Sends a command and waits for the reply.
    #[track_caller]
    pub fn call(&mut self, command: impl Into<Command>) -> Reply {
        self.send(command);
        self.reply()
    }

    /// Like [`call`](Self::call), for a connection that the server may close at any moment.
    pub fn try_call(&mut self, command: impl Into<Command>) -> io::Result<Reply> {
        self.try_send(&[command.into()])?;
        self.reply_within(PATIENCE)
    }

    /// Sends commands in one write and waits for all replies. The server runs them without
    /// returning to its event loop, so no timer of the module runs between them.
    #[track_caller]
    pub fn call_in_one_step(&mut self, commands: &[Command]) -> Vec<Reply> {
        self.try_send(commands).expect("the server accepts the commands");
        commands.iter().map(|_| self.reply()).collect()
    }

    /// Sends a command without waiting for the reply.
    #[track_caller]
    pub fn send(&mut self, command: impl Into<Command>) {
        self.try_send(&[command.into()]).expect("the server accepts the command");
    }

    /// Sends commands in one write, to a server that may be dead.
    pub fn try_send(&mut self, commands: &[Command]) -> io::Result<()> {
        let mut packed = Vec::new();
        for command in commands {
            let mut command = command.clone();
            self.family.translate(&mut command);
            command.pack_into(&mut packed);
        }
        self.stream.write_all(&packed)
    }

    /// Sends at most `count` bytes of a command, and returns the command's full length.
    #[track_caller]
    pub fn send_beginning(&mut self, command: impl Into<Command>, count: usize) -> usize {
        let (mut command, mut packed) = (command.into(), Vec::new());
        self.family.translate(&mut command);
        command.pack_into(&mut packed);
        self.stream.write_all(&packed[..count.min(packed.len())]).expect("the server accepts the bytes");
        packed.len()
    }

    /// Reads `count` bytes and closes the connection.
    #[track_caller]
    pub fn read_bytes_and_close(mut self, count: usize) {
        self.stream.set_read_timeout(Some(PATIENCE)).expect("set a read timeout");
        self.stream.read_exact(&mut vec![0; count]).expect("enough bytes");
    }

    /// Returns the next reply.
    #[track_caller]
    pub fn reply(&mut self) -> Reply {
        match self.reply_within(PATIENCE) {
            Ok(reply) => reply,
            Err(error) => panic!("no reply: {error}"),
        }
    }

    /// Asserts that no reply arrives. A module that answers by mistake has 20 ms to do so.
    #[track_caller]
    pub fn assert_waits(&mut self) {
        let answer = self.reply_within(Duration::from_millis(20));
        assert_eq!(answer.expect_err("a reply arrived during the wait").kind(), ErrorKind::TimedOut);
    }

    /// Returns the next reply, `TimedOut`, or `UnexpectedEof` if the server has closed the
    /// connection.
    pub fn reply_within(&mut self, patience: Duration) -> io::Result<Reply> {
        match &mut self.elsewhere {
            Elsewhere::No => {}
            Elsewhere::There(reply) => {
                let reply = reply.clone();
                self.elsewhere = Elsewhere::No;
                return Ok(reply);
            }
            Elsewhere::OnChannel(awaited) => {
                let reply = awaited.reply_within(patience)?;
                self.elsewhere = Elsewhere::No;
                return Ok(reply);
            }
        }
        let deadline = Instant::now() + patience;
        loop {
            if let Some(reply) = self.take_received() {
                return Ok(reply);
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Err(ErrorKind::TimedOut.into());
            }
            self.stream.set_read_timeout(Some(left))?;
            let mut chunk = [0; 16 * 1024];
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(length) => self.received.extend(&chunk[..length]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // A killed connection may end with a reset instead of an orderly close.
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {
                    return Err(ErrorKind::UnexpectedEof.into());
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn take_received(&mut self) -> Option<Reply> {
        let rest = &self.received[self.consumed..];
        if rest.is_empty() {
            self.received.clear();
            self.consumed = 0;
            return None;
        }
        let (reply, length) = Reply::parse(rest)?;
        self.consumed += length;
        Some(reply)
    }

    /// Runs a command inside a script.
    #[track_caller]
    pub fn eval(&mut self, command: impl Into<Command>) -> Reply {
        self.call(in_script(command.into()))
    }

    /// Runs a command inside MULTI and returns its own reply.
    #[track_caller]
    pub fn transaction(&mut self, command: impl Into<Command>) -> Reply {
        assert_eq!(self.call("MULTI"), "OK");
        assert_eq!(self.call(command), "QUEUED");
        self.call("EXEC").array()[0].clone()
    }

    /// Acquires a lock and returns its token. Fails if the lock is not granted.
    #[track_caller]
    pub fn acquire(&mut self, key_owner_and_options: &str) -> i64 {
        self.call(format!("LOCK.ACQUIRE {key_owner_and_options}")).int()
    }

    /// Acquires a fair lock and returns its token. Fails if the lock is not granted.
    #[track_caller]
    pub fn acquire_fair(&mut self, key_owner_and_options: &str) -> i64 {
        self.call(format!("RFAIRLOCK.ACQUIRE {key_owner_and_options}")).int()
    }

    /// The places of a fair lock in queue order, as "owner connected" or "owner detached".
    #[track_caller]
    pub fn places(&mut self, key: &str) -> Vec<String> {
        let waiters = self.call(format!("RFAIRLOCK.WAITERS {key}"));
        let stay = |waiter: &Reply| if waiter.field("connected") == 1 { "connected" } else { "detached" };
        waiters.array().iter().map(|waiter| format!("{} {}", waiter.field("owner").text(), stay(waiter))).collect()
    }

    /// The holder of a lock that has at most one.
    #[track_caller]
    pub fn holder(&mut self, key: &str) -> Option<Holder> {
        let info = self.call(format!("RLOCK.INFO {key}"));
        if info == Reply::Nil {
            return None;
        }
        let holders = info.field("holders");
        assert!(holders.array().len() <= 1, "more than one holder: {info:?}");
        // An idle semaphore exists without a holder.
        let holder = holders.array().first()?;
        Some(Holder {
            owner: holder.field("owner").text(),
            holds: holder.field("holds").int(),
            token: holder.field("token").int(),
            lease_ms: holder.field("lease-ms").int(),
            session: holder.field("session").int(),
        })
    }

    /// Whether the lock has no holder and, unless it is a semaphore, its key is gone.
    #[track_caller]
    pub fn is_free(&mut self, key: &str) -> bool {
        self.holder(key).is_none() && !(self.family.goes_when_idle() && self.call(format!("EXISTS {key}")) == 1)
    }

    /// The owners that wait for a lock, in queue order.
    #[track_caller]
    pub fn waiting_owners(&mut self, key: &str) -> Vec<String> {
        let waiters = self.call(format!("RLOCK.WAITERS {key} COUNT 10000"));
        waiters.array().iter().map(|waiter| waiter.field("owner").text()).collect()
    }

    /// Rewrites the append-only file, and waits until the server uses the new one. The server
    /// counts a rewrite when it begins.
    #[track_caller]
    pub fn rewrite_append_only_file(&mut self) {
        let rewrites = self.info_number("aof_rewrites");
        self.call("BGREWRITEAOF");
        eventually(PATIENCE, || {
            self.info_number("aof_rewrites") > rewrites && self.info("aof_rewrite_in_progress") == "0"
        });
        assert_eq!(self.info("aof_last_bgrewrite_status"), "ok");
    }

    /// A field of INFO.
    #[track_caller]
    pub fn info(&mut self, field: &str) -> String {
        let all = self.call("INFO everything").text();
        let value = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        value.unwrap_or_else(|| panic!("no field {field} in INFO")).to_owned()
    }

    /// A field of INFO that is a number.
    #[track_caller]
    pub fn info_number(&mut self, field: &str) -> i64 {
        self.info(field).parse().expect("a number")
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // `shutdown` and not only a close: another test may be starting a process right now, whose
        // copy of the socket would keep the connection open a little longer. The server may have
        // closed it already.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Wraps a command in a script that calls it.
pub fn in_script(command: Command) -> Command {
    let mut words = Command::from("EVAL _ 0").0;
    words[1] = b"return redis.call(unpack(ARGV))".to_vec();
    words.extend(command.0);
    Command(words)
}
