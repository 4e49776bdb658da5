//! A connection that shows the wire as it is. A library would hide what these tests are about: the exact words of an error,
//! that an answer has *not* come yet, and what the server does when a client leaves in the middle of a wait.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::{Duration, Instant};

use super::eventually;
use super::family::{Family, MUTEX};
use super::notified::{self, Awaited};
use super::reply::Reply;

/// Far above anything a healthy server needs, so that only a reply that never comes is reported.
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

/// A line as one would type it into redis-cli. Words that hold spaces or are empty need the form below.
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

/// What RLOCK.INFO says of the one holder of a lock of any kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Holder {
    pub owner: String,
    pub holds: i64,
    pub token: i64,
    pub lease_ms: i64,
    pub session: i64,
}

impl Holder {
    /// What must be the same on every copy of a lock. The lease left is not: it runs.
    pub fn identity(&self) -> (&str, i64, i64) {
        (&self.owner, self.holds, self.token)
    }
}

/// One connection. Dropping it closes the socket, as a process that dies does.
pub struct Client {
    stream: TcpStream,
    id: i64,
    family: Family,
    received: Vec<u8>,
    /// How much of `received` has been handed out.
    consumed: usize,
    /// Answers that are there already, or come on a channel.
    elsewhere: Elsewhere,
}

/// Answers that do not come over the connection that asked.
#[derive(Default)]
pub enum Elsewhere {
    #[default]
    No,
    There(Reply),
    OnChannel(Box<Awaited>),
}

impl Client {
    /// A connection to the server on a port of this machine, if there is one that answers.
    pub fn connect(port: u16) -> io::Result<Client> {
        Client::connect_within(port, PATIENCE)
    }

    /// The same, for a server that may have been stopped.
    pub fn connect_within(port: u16, patience: Duration) -> io::Result<Client> {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
        stream.set_nodelay(true)?;
        let mut client =
            Client { stream, id: 0, family: MUTEX, received: Vec::new(), consumed: 0, elsewhere: Elsewhere::No };
        client.try_send(&[Command::from("CLIENT ID")])?;
        client.id = match client.reply_within(patience)? {
            Reply::Int(id) => id,
            other => return Err(io::Error::other(format!("no number for CLIENT ID: {other:?}"))),
        };
        Ok(client)
    }

    /// Asks, to be answered on a channel.
    pub fn ask_notified(&mut self, subscriber: Client, command: Command) {
        self.elsewhere = match notified::ask(self, subscriber, command) {
            Ok(reply) => Elsewhere::There(reply),
            Err(awaited) => Elsewhere::OnChannel(awaited),
        };
    }

    /// Whether the answer to what was asked is to come on a channel.
    pub fn is_told_elsewhere(&self) -> bool {
        matches!(self.elsewhere, Elsewhere::OnChannel(_))
    }

    /// From now on `LOCK.` means this family.
    pub fn speak(&mut self, family: Family) {
        self.family = family;
    }

    /// Makes a lock ready to be asked for. Only a semaphore needs it.
    #[track_caller]
    pub fn make(&mut self, key: &str) {
        if let Some(making) = self.family.making(key) {
            self.call(making).int();
        }
    }

    /// The CLIENT ID of this connection.
    pub fn id(&self) -> i64 {
        self.id
    }

    /// Sends a command and waits for the answer.
    #[track_caller]
    pub fn call(&mut self, command: impl Into<Command>) -> Reply {
        self.send(command);
        self.reply()
    }

    /// The same where others may close the connection at any moment.
    pub fn try_call(&mut self, command: impl Into<Command>) -> io::Result<Reply> {
        self.try_send(&[command.into()])?;
        self.reply_within(PATIENCE)
    }

    /// Sends commands in one write and waits for all answers. The server runs them one after the other without returning to
    /// its event loop, so no timer of the module comes between them.
    #[track_caller]
    pub fn call_in_one_step(&mut self, commands: &[Command]) -> Vec<Reply> {
        self.try_send(commands).expect("the server takes the commands");
        commands.iter().map(|_| self.reply()).collect()
    }

    /// Sends a command without waiting for the answer.
    #[track_caller]
    pub fn send(&mut self, command: impl Into<Command>) {
        self.try_send(&[command.into()]).expect("the server takes the command");
    }

    /// Sends commands in one write to a server that may have died already.
    pub fn try_send(&mut self, commands: &[Command]) -> io::Result<()> {
        let mut packed = Vec::new();
        for command in commands {
            let mut command = command.clone();
            self.family.translate(&mut command);
            command.pack_into(&mut packed);
        }
        self.stream.write_all(&packed)
    }

    /// Sends no more than so many bytes of a command, and returns how many it has.
    #[track_caller]
    pub fn send_beginning(&mut self, command: impl Into<Command>, count: usize) -> usize {
        let (mut command, mut packed) = (command.into(), Vec::new());
        self.family.translate(&mut command);
        command.pack_into(&mut packed);
        self.stream.write_all(&packed[..count.min(packed.len())]).expect("the server takes bytes");
        packed.len()
    }

    /// Reads so many bytes of what comes, and closes the connection.
    #[track_caller]
    pub fn read_bytes_and_close(mut self, count: usize) {
        self.stream.set_read_timeout(Some(PATIENCE)).expect("a socket");
        self.stream.read_exact(&mut vec![0; count]).expect("as many bytes");
    }

    /// The next answer.
    #[track_caller]
    pub fn reply(&mut self) -> Reply {
        match self.reply_within(PATIENCE) {
            Ok(reply) => reply,
            Err(error) => panic!("no answer: {error}"),
        }
    }

    /// No answer comes: so long the module had to do the wrong thing.
    #[track_caller]
    pub fn assert_waits(&mut self) {
        let answer = self.reply_within(Duration::from_millis(20));
        assert_eq!(answer.expect_err("it waits").kind(), ErrorKind::TimedOut);
    }

    /// The next answer, or `TimedOut`, or `UnexpectedEof` when the server has closed the connection.
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
                // A killed connection may end in a reset instead of an orderly close.
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

    /// Runs a command inside MULTI and hands out its own answer.
    #[track_caller]
    pub fn transaction(&mut self, command: impl Into<Command>) -> Reply {
        assert_eq!(self.call("MULTI"), "OK");
        assert_eq!(self.call(command), "QUEUED");
        self.call("EXEC").array()[0].clone()
    }

    /// Takes a lock and hands out its token. Fails if the lock is not granted.
    #[track_caller]
    pub fn acquire(&mut self, key_owner_and_options: &str) -> i64 {
        self.call(format!("LOCK.ACQUIRE {key_owner_and_options}")).int()
    }

    /// Takes a fair lock and hands out its token. Fails if the lock is not granted.
    #[track_caller]
    pub fn acquire_fair(&mut self, key_owner_and_options: &str) -> i64 {
        self.call(format!("RFAIRLOCK.ACQUIRE {key_owner_and_options}")).int()
    }

    /// The places of a fair lock in order, as "owner connected" or "owner detached".
    #[track_caller]
    pub fn places(&mut self, key: &str) -> Vec<String> {
        let waiters = self.call(format!("RFAIRLOCK.WAITERS {key}"));
        let stay = |waiter: &Reply| if waiter.field("connected") == 1 { "connected" } else { "detached" };
        waiters.array().iter().map(|waiter| format!("{} {}", waiter.field("owner").text(), stay(waiter))).collect()
    }

    /// Who holds a lock that has one holder at most.
    #[track_caller]
    pub fn holder(&mut self, key: &str) -> Option<Holder> {
        let info = self.call(format!("RLOCK.INFO {key}"));
        if info == Reply::Nil {
            return None;
        }
        let holders = info.field("holders");
        assert!(holders.array().len() <= 1, "more than one holder: {info:?}");
        // A semaphore is there when nobody holds.
        let holder = holders.array().first()?;
        Some(Holder {
            owner: holder.field("owner").text(),
            holds: holder.field("holds").int(),
            token: holder.field("token").int(),
            lease_ms: holder.field("lease-ms").int(),
            session: holder.field("session").int(),
        })
    }

    /// Whether nobody holds a lock any more, and its key has gone, if it is one that goes when idle.
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

    /// Has the append-only file rewritten, and waits until the server goes on with the new one. It counts a rewrite when it begins.
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
        // Another test may be starting a process right now, whose copy of the socket would keep it open a little longer.
        // A server that has closed it already is fine, too.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The command as the one call of a script.
pub fn in_script(command: Command) -> Command {
    let mut words = Command::from("EVAL _ 0").0;
    words[1] = b"return redis.call(unpack(ARGV))".to_vec();
    words.extend(command.0);
    Command(words)
}
