//! A network with faults between a client and one server. It parses RESP, so that it can lose the reply to
//! one command, or answer a command itself.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

use crate::clock::now_us;

/// The treatment of a command, or of a message on a channel.
#[derive(Clone, Debug)]
pub enum Fate {
    Pass,
    /// The server receives the command. The connection is cut when the reply arrives.
    LoseReply,
    /// The connection is cut before the server receives the command.
    Cut,
    /// The proxy sends this reply, and the server does not receive the command.
    Answer(String),
    /// The message, or the reply to the command, disappears.
    Drop,
    /// The command or message, and everything behind it on its connection, arrives after this number of milliseconds.
    Late(u64),
    /// The same for the reply.
    LateReply(u64),
}

impl Fate {
    /// An error reply.
    pub fn error(text: &str) -> Fate {
        Fate::Answer(format!("-{text}\r\n"))
    }
}

/// A command that passed the proxy.
#[derive(Clone, Debug)]
pub struct Seen {
    pub at_us: i64,
    /// The first word is in capital letters.
    pub words: Vec<String>,
}

impl Seen {
    pub fn is(&self, verb: &str) -> bool {
        is(&self.words, verb)
    }

    /// The value of an option.
    pub fn option(&self, name: &str) -> Option<&str> {
        option(&self.words, name)
    }

    pub fn owner(&self) -> Option<&str> {
        owner(&self.words)
    }
}

/// The value of an option of a command.
pub fn option<'a>(words: &'a [String], name: &str) -> Option<&'a str> {
    let at = words.iter().position(|word| word.eq_ignore_ascii_case(name))?;
    words.get(at + 1).map(String::as_str)
}

/// The owner in a command: it follows the key, or the number of keys and the keys.
pub fn owner(words: &[String]) -> Option<&str> {
    let is_many = words.first()?.starts_with("RLOCK.M");
    let keys = if is_many { words.get(1)?.parse().ok()? } else { 0 };
    words.get(2_usize.checked_add(keys)?).map(String::as_str)
}

/// Whether it is that command of one of the families: `ACQUIRE` is `RLOCK.ACQUIRE`, `RLOCK.MACQUIRE` and so on.
pub fn is(words: &[String], verb: &str) -> bool {
    let (family, command) = words.first().and_then(|word| word.split_once('.')).unwrap_or_default();
    family.starts_with('R') && (command == verb || command.strip_prefix('M') == Some(verb))
}

type Rule = Box<dyn FnMut(&[String]) -> Fate + Send>;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stall {
    None,
    Replies,
    All,
}

struct Sky {
    upstream: AtomicU16,
    delay_us: AtomicU64,
    stalled: watch::Sender<Stall>,
    /// All connections of earlier generations are cut.
    generation: watch::Sender<u64>,
    refuses: AtomicBool,
    /// Integers in the replies to lock commands become strings.
    stringifies: AtomicBool,
    /// How many bytes of replies and messages still pass before everything is cut.
    budget: Mutex<Option<usize>>,
    rule: Mutex<Rule>,
    messages: Mutex<Rule>,
    seen: Mutex<Vec<Seen>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

pub struct Proxy {
    pub port: u16,
    sky: Arc<Sky>,
    acceptor: tokio::task::JoinHandle<()>,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.acceptor.abort();
        self.cut();
    }
}

impl Proxy {
    /// A proxy in front of a server, without faults.
    pub async fn before(port: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.expect("a free port");
        let own_port = listener.local_addr().expect("an address").port();
        let sky = Arc::new(Sky {
            upstream: AtomicU16::new(port),
            delay_us: AtomicU64::new(0),
            stalled: watch::Sender::new(Stall::None),
            generation: watch::Sender::new(0),
            refuses: AtomicBool::new(false),
            stringifies: AtomicBool::new(false),
            budget: Mutex::new(None),
            rule: Mutex::new(Box::new(|_| Fate::Pass)),
            messages: Mutex::new(Box::new(|_| Fate::Pass)),
            seen: Mutex::default(),
        });
        let above = sky.clone();
        let acceptor = tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                if !above.refuses.load(Ordering::Relaxed) {
                    tokio::spawn(serve(client, above.clone()));
                }
            }
        });
        Proxy { port: own_port, sky, acceptor }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// Sets the delay in each direction.
    pub fn delay(&self, ms: u64) {
        self.sky.delay_us.store(ms * 1000, Ordering::Relaxed);
    }

    /// Stops the traffic without closing connections. Clients can still connect.
    pub fn stall(&self) {
        self.sky.stalled.send_replace(Stall::All);
    }

    /// The same for replies and messages only: requests still arrive.
    pub fn stall_replies(&self) {
        self.sky.stalled.send_replace(Stall::Replies);
    }

    /// Ends the stall and delivers the delayed bytes.
    pub fn flow(&self) {
        self.sky.stalled.send_replace(Stall::None);
    }

    /// Cuts all existing connections.
    pub fn cut(&self) {
        self.sky.generation.send_modify(|generation| *generation += 1);
    }

    /// Whether new connections are closed at once.
    pub fn refuse(&self, refuses: bool) {
        self.sky.refuses.store(refuses, Ordering::Relaxed);
    }

    pub fn stringify(&self) {
        self.sky.stringifies.store(true, Ordering::Relaxed);
    }

    /// Cuts all connections once, after this number of further bytes to the client.
    pub fn cut_after(&self, bytes: usize) {
        *lock(&self.sky.budget) = Some(bytes);
    }

    /// Sets the rule for commands.
    pub fn on_command(&self, rule: impl FnMut(&[String]) -> Fate + Send + 'static) {
        *lock(&self.sky.rule) = Box::new(rule);
    }

    /// Applies `fate` to the next `times` commands of a kind.
    pub fn next(&self, verb: &'static str, mut times: usize, fate: Fate) {
        self.on_command(move |words| {
            if times > 0 && is(words, verb) {
                times -= 1;
                return fate.clone();
            }
            Fate::Pass
        });
    }

    /// Sets the rule for messages on channels, which it receives as words.
    pub fn on_message(&self, rule: impl FnMut(&[String]) -> Fate + Send + 'static) {
        *lock(&self.sky.messages) = Box::new(rule);
    }

    /// Ends all faults.
    pub fn clear(&self) {
        self.on_command(|_| Fate::Pass);
        self.on_message(|_| Fate::Pass);
        *lock(&self.sky.budget) = None;
        self.delay(0);
        self.refuse(false);
        self.flow();
    }

    /// All lock commands and subscriptions that passed.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.sky.seen).clone()
    }

    /// Clears the list of commands.
    pub fn forget(&self) {
        lock(&self.sky.seen).clear();
    }

    /// The owners whose acquisitions were settled.
    pub fn settled(&self) -> HashSet<String> {
        self.seen_of("CANCEL").iter().filter_map(|seen| seen.owner().map(str::to_owned)).collect()
    }

    pub fn seen_of(&self, verb: &str) -> Vec<Seen> {
        self.seen().into_iter().filter(|seen| seen.is(verb)).collect()
    }
}

/// The treatment of the next reply.
enum Expected {
    Pass { stringified: bool, late: Duration },
    Lost,
    Dropped,
    Own(Vec<u8>),
}

enum Piece {
    Bytes(Instant, Vec<u8>),
    Close,
}

async fn serve(client: TcpStream, sky: Arc<Sky>) {
    let mut generation = sky.generation.subscribe();
    generation.mark_unchanged();
    let Ok(server) = TcpStream::connect(("127.0.0.1", sky.upstream.load(Ordering::Relaxed))).await else { return };
    let _ = (client.set_nodelay(true), server.set_nodelay(true));
    let ((from_client, to_client), (from_server, to_server)) = (client.into_split(), server.into_split());
    let expected = Mutex::new(VecDeque::new());
    let (up, up_pieces) = mpsc::unbounded_channel();
    let (down, down_pieces) = mpsc::unbounded_channel();
    // The first direction that ends closes the connection.
    tokio::select! {
        () = commands(from_client, &up, &down, &expected, &sky) => {}
        () = async {
            replies(from_server, &down, &expected, &sky).await;
            // The last replies still arrive, and a stall hides that the server has closed the connection.
            tokio::time::sleep(Duration::from_micros(sky.delay_us.load(Ordering::Relaxed)) + Duration::from_millis(2)).await;
            let _ = sky.stalled.subscribe().wait_for(|stalled| *stalled == Stall::None).await;
        } => {}
        () = write(to_server, up_pieces, &sky, false) => {}
        () = write(to_client, down_pieces, &sky, true) => {}
        _ = generation.changed() => {}
    }
}

fn due(sky: &Sky) -> Instant {
    Instant::now() + Duration::from_micros(sky.delay_us.load(Ordering::Relaxed))
}

type Pieces = mpsc::UnboundedSender<Piece>;

async fn commands(
    mut from: OwnedReadHalf,
    up: &Pieces,
    down: &Pieces,
    expected: &Mutex<VecDeque<Expected>>,
    sky: &Sky,
) {
    let mut buffer = Vec::new();
    while from.read_buf(&mut buffer).await.is_ok_and(|length| length > 0) {
        while let Some(length) = frame(&buffer) {
            let bytes: Vec<u8> = buffer.drain(..length).collect();
            let mut words = words(&bytes);
            if let Some(word) = words.first_mut() {
                word.make_ascii_uppercase();
            }
            let is_ours = words.first().is_some_and(|word| word.starts_with('R') && word.contains('.'));
            // The replies to subscriptions are pushes, or look like them.
            let is_subscription = words.first().is_some_and(|word| word.contains("SUBSCRIBE"));
            if is_ours || is_subscription {
                lock(&sky.seen).push(Seen { at_us: now_us(), words: words.clone() });
            }
            let fate = lock(&sky.rule)(&words);
            let (late, late_reply) = match fate {
                Fate::Late(ms) => (Duration::from_millis(ms), Duration::ZERO),
                Fate::LateReply(ms) => (Duration::ZERO, Duration::from_millis(ms)),
                _ => (Duration::ZERO, Duration::ZERO),
            };
            let mut expected = lock(expected);
            match fate {
                Fate::Cut => {
                    let _ = down.send(Piece::Close);
                    continue;
                }
                Fate::Answer(text) => expected.push_back(Expected::Own(text.into_bytes())),
                Fate::Drop => expected.push_back(Expected::Dropped),
                Fate::LoseReply => expected.push_back(Expected::Lost),
                Fate::Pass if is_subscription => {}
                Fate::Pass | Fate::Late(_) | Fate::LateReply(_) => {
                    let stringified = is_ours && sky.stringifies.load(Ordering::Relaxed);
                    expected.push_back(Expected::Pass { stringified, late: late_reply });
                }
            }
            if !matches!(expected.back(), Some(Expected::Own(_))) {
                let _ = up.send(Piece::Bytes(due(sky) + late, bytes));
            }
            flush(&mut expected, down, sky);
        }
    }
}

/// Sends the proxy's own replies, once the server has answered all earlier commands.
fn flush(expected: &mut VecDeque<Expected>, down: &Pieces, sky: &Sky) {
    while let Some(Expected::Own(_)) = expected.front() {
        if let Some(Expected::Own(bytes)) = expected.pop_front() {
            let _ = down.send(Piece::Bytes(due(sky), bytes));
        }
    }
}

async fn replies(mut from: OwnedReadHalf, down: &Pieces, expected: &Mutex<VecDeque<Expected>>, sky: &Sky) {
    let mut buffer = Vec::new();
    while from.read_buf(&mut buffer).await.is_ok_and(|length| length > 0) {
        while let Some(length) = frame(&buffer) {
            let mut bytes: Vec<u8> = buffer.drain(..length).collect();
            let words = words(&bytes);
            if is_push(&bytes, &words) {
                let is_message = words.first().is_some_and(|word| word.ends_with("message"));
                match if is_message { lock(&sky.messages)(&words) } else { Fate::Pass } {
                    Fate::Drop => continue,
                    Fate::Cut | Fate::LoseReply => {
                        let _ = down.send(Piece::Close);
                    }
                    fate => {
                        let late = if let Fate::Late(ms) = fate { ms } else { 0 };
                        let _ = down.send(Piece::Bytes(due(sky) + Duration::from_millis(late), bytes));
                    }
                }
                continue;
            }
            let mut expected = lock(expected);
            match expected.pop_front() {
                Some(Expected::Lost) => {
                    let _ = down.send(Piece::Close);
                }
                Some(Expected::Dropped) => {}
                other => {
                    let (is_text, late) = match other {
                        Some(Expected::Pass { stringified, late }) => (stringified, late),
                        _ => (false, Duration::ZERO),
                    };
                    if is_text {
                        bytes = stringified(&bytes);
                    }
                    let _ = down.send(Piece::Bytes(due(sky) + late, bytes));
                }
            }
            flush(&mut expected, down, sky);
        }
    }
}

async fn write(mut to: OwnedWriteHalf, mut pieces: mpsc::UnboundedReceiver<Piece>, sky: &Sky, is_down: bool) {
    let mut stalled = sky.stalled.subscribe();
    while let Some(piece) = pieces.recv().await {
        let Piece::Bytes(due, mut bytes) = piece else { return };
        tokio::time::sleep_until(due).await;
        let _ = stalled.wait_for(|stalled| *stalled == Stall::None || *stalled == Stall::Replies && !is_down).await;
        let mut is_last = false;
        if is_down {
            let mut budget = lock(&sky.budget);
            if let Some(left) = budget.as_mut() {
                is_last = *left <= bytes.len();
                bytes.truncate(*left);
                *left -= bytes.len();
            }
            if is_last {
                *budget = None;
            }
        }
        if to.write_all(&bytes).await.is_err() {
            return;
        }
        if is_last {
            let _ = to.flush().await;
            sky.generation.send_modify(|generation| *generation += 1);
            return;
        }
    }
}

/// The length of the first RESP value, if it is whole.
fn frame(bytes: &[u8]) -> Option<usize> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    let first = *bytes.first()?;
    let number = || std::str::from_utf8(&bytes[1..end]).ok()?.parse::<i64>().ok();
    let mut length = end + 2;
    match first {
        b'$' | b'=' | b'!' => {
            if let Ok(text) = usize::try_from(number()?) {
                length += text + 2;
            }
        }
        b'*' | b'>' | b'~' | b'%' | b'|' => {
            let mut elements = number()?.max(0);
            if matches!(first, b'%' | b'|') {
                elements *= 2;
            }
            // An attribute belongs to the value behind it.
            elements += i64::from(first == b'|');
            for _ in 0..elements {
                length += frame(bytes.get(length..)?)?;
            }
        }
        _ => {}
    }
    (length <= bytes.len()).then_some(length)
}

/// The strings and numbers of a value, in their order.
fn words(bytes: &[u8]) -> Vec<String> {
    let mut words = Vec::new();
    let mut rest = bytes;
    while let Some(end) = rest.windows(2).position(|pair| pair == b"\r\n") {
        let line = String::from_utf8_lossy(&rest[1..end]).into_owned();
        let first = rest[0];
        rest = &rest[end + 2..];
        match first {
            b'$' | b'=' => {
                if let Ok(length) = line.parse::<usize>() {
                    words.push(String::from_utf8_lossy(rest.get(..length).unwrap_or_default()).into_owned());
                    rest = rest.get(length + 2..).unwrap_or_default();
                }
            }
            b'*' | b'>' | b'%' | b'~' | b'|' => {}
            _ => words.push(line),
        }
    }
    words
}

/// Whether this is not a reply: a push of RESP3, or a message or confirmation on a subscribed connection of RESP2.
fn is_push(bytes: &[u8], words: &[String]) -> bool {
    let kinds = ["message", "smessage", "pmessage", "subscribe", "ssubscribe", "psubscribe"];
    let is_kind = |word: &String| kinds.contains(&word.as_str()) || word.ends_with("unsubscribe");
    bytes.starts_with(b">") || bytes.starts_with(b"*") && words.first().is_some_and(is_kind)
}

fn stringified(bytes: &[u8]) -> Vec<u8> {
    let text = String::from_utf8_lossy(bytes);
    let lines = text.split_inclusive("\r\n").map(|line| match line.strip_prefix(':') {
        Some(number) => format!("${}\r\n{number}", number.len() - 2),
        None => line.to_owned(),
    });
    lines.collect::<String>().into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_of_both_protocols_are_told_apart() {
        let whole: [&[u8]; 7] = [
            b"+OK\r\n",
            b":1\r\n",
            b"$3\r\nabc\r\n",
            b"$-1\r\n",
            b"*2\r\n:1\r\n$1\r\na\r\n",
            b"%1\r\n+a\r\n*0\r\n",
            b"_\r\n",
        ];
        for bytes in whole {
            let with_more = [bytes, b"+next\r\n"].concat();
            assert_eq!(frame(&with_more), Some(bytes.len()), "{:?}", String::from_utf8_lossy(bytes));
            for cut in 0..bytes.len() {
                assert_eq!(frame(&bytes[..cut]), None, "{:?}", String::from_utf8_lossy(&bytes[..cut]));
            }
        }
    }

    #[test]
    fn integers_become_strings_and_nothing_else_does() {
        assert_eq!(stringified(b":12\r\n"), b"$2\r\n12\r\n");
        assert_eq!(stringified(b"*2\r\n:1\r\n+OK\r\n"), b"*2\r\n$1\r\n1\r\n+OK\r\n");
    }

    #[test]
    fn a_message_is_a_push_in_both_protocols() {
        for bytes in
            ["*3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n", ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$2\r\nhi\r\n"]
        {
            assert!(is_push(bytes.as_bytes(), &words(bytes.as_bytes())));
        }
        assert!(!is_push(b"*1\r\n$4\r\npong\r\n", &words(b"*1\r\n$4\r\npong\r\n")));
    }
}
