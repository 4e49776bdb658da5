//! Commands that many tasks send over one connection at the same time, in one message.
//!
//! What a command costs this side is less its bytes than the messages to the task of the connection and back, each of which wakes somebody. So
//! a command that is asked while others are under way waits until those who can run now have asked too, and one message takes them all.
//!
//! The order is kept: a command that takes another one back never comes before it. For that the connection must have room for each message at once,
//! see [`MESSAGES`]. Nobody waits for an answer longer than is said, also when the runtime of the connection stands still: that is noticed for each
//! message by [`Answers`], and not for each command.

use std::borrow::Cow;
use std::collections::{BTreeMap, VecDeque};
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use crate::answers::{Answers, NoAnswer, Patience, Place};

/// All that is in one message is answered in one: the first of it is not to wait long for the last.
const MOST_TOGETHER: usize = 128;

/// How many messages a connection must have room for: so many that it always has. Where messages wait for room, they may pass each other.
pub(crate) const MESSAGES: usize = 1 << 24;

/// The commands of one connection that wait to be sent, or for their answers.
pub(crate) struct Together {
    connection: MultiplexedConnection,
    /// Where the connection lives.
    home: Handle,
    answers: Arc<Answers>,
    asked: Mutex<VecDeque<Asked>>,
    /// Those whose commands were sent, by the numbers of the messages.
    sent: Mutex<BTreeMap<u64, Vec<Asker>>>,
    /// Locked while commands go from `asked` to the connection, so that they stay in order. The number of the last message.
    order: Mutex<u64>,
    /// Each command that waits to be sent, or whose answer somebody waits for, has a copy.
    under_way: Arc<()>,
}

type Answer = Result<Value, RedisError>;

/// What waits to be sent in one message.
struct Asked {
    commands: Vec<Cmd>,
    askers: Vec<Asker>,
    /// How long the answers may take.
    span: Duration,
    place: Place,
}

struct Asker {
    answer: oneshot::Sender<Result<Answer, NoAnswer>>,
    _under_way: Arc<()>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Together {
    pub(crate) fn new(connection: MultiplexedConnection, home: Handle, answers: Arc<Answers>) -> Arc<Self> {
        let (asked, sent, order, under_way) = Default::default();
        Arc::new(Self { connection, home, answers, asked, sent, order, under_way })
    }

    /// Sends a command and waits for its answer, which may be an error of the server's.
    ///
    /// Cancel safety: when dropped, the command may be sent later. What is asked here after that is sent after it.
    pub(crate) async fn ask(self: &Arc<Self>, command: Cow<'_, Cmd>, patience: Patience) -> Result<Answer, NoAnswer> {
        let is_alone = Arc::strong_count(&self.under_way) == 1;
        let under_way = self.under_way.clone();
        if !is_alone {
            let answer = self.put(command.into_owned(), patience, under_way)?;
            return answer.await.unwrap_or(Err(NoAnswer::Closed));
        }
        // What was asked before is answered, or was given up before it was sent, or is asked by somebody else at this moment.
        let answer = pin!(async {
            let answer = self.connection.clone().send_packed_command(&command).await;
            self.answers.note();
            answer.and_then(Value::extract_error)
        });
        let answer = self.answers.until(answer, patience).await;
        drop(under_way);
        answer
    }

    /// Puts a command to those that wait to be sent.
    fn put(
        self: &Arc<Self>,
        command: Cmd,
        patience: Patience,
        under_way: Arc<()>,
    ) -> Result<oneshot::Receiver<Result<Answer, NoAnswer>>, NoAnswer> {
        let (asker, answer) = oneshot::channel();
        let asker = Asker { answer: asker, _under_way: under_way };
        let mut asked = locked(&self.asked);
        // Nobody has less time because of others.
        let takes_more = |last: &&mut Asked| last.commands.len() < MOST_TOGETHER && last.span == patience.span;
        match asked.back_mut().filter(takes_more) {
            Some(last) => {
                last.commands.push(command);
                last.askers.push(asker);
            }
            None => {
                let place = self.answers.watch(patience, Waker::from(self.clone())).ok_or(NoAnswer::Closed)?;
                let (commands, askers) = ([command].into(), [asker].into());
                asked.push_back(Asked { commands, askers, span: patience.span, place });
                drop(asked);
                self.send_soon();
            }
        }
        Ok(answer)
    }

    /// Has one message sent, when all have asked who can do so now.
    fn send_soon(self: &Arc<Self>) {
        let turn = Turn { together: self.clone(), has_come: false };
        drop(self.home.spawn(turn.take()));
    }

    async fn send(self: &Arc<Self>) {
        let (sent, first_look, mut answers) = {
            let mut last = locked(&self.order);
            let Some(Asked { commands, askers, place, .. }) = locked(&self.asked).pop_front() else { return };
            let (mut connection, mut message) = (self.connection.clone(), Pipeline::with_capacity(commands.len()));
            let count = commands.len();
            for command in commands {
                message.add_command(command);
            }
            *last += 1;
            locked(&self.sent).insert(*last, askers);
            let sent = Sent { together: self, number: *last, _place: place };
            let mut answers = Box::pin(async move { connection.send_packed_commands(&message, 0, count).await });
            // From here on it has its place at the connection. Polled again below, it gets to know whom to wake.
            let first_look = answers.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            (sent, first_look, answers)
        };
        let answers = match first_look {
            Poll::Ready(answers) => answers,
            Poll::Pending => tokio::select! {
                biased;
                answers = &mut answers => answers,
                () = self.answers.closed().cancelled() => return,
            },
        };
        self.answers.note();
        sent.tell(answers);
    }
}

/// A message that was sent. When this is dropped, nobody waits for its answers any more: also if its runtime ends.
struct Sent<'a> {
    together: &'a Together,
    number: u64,
    _place: Place,
}

impl Sent<'_> {
    fn take_askers(&self) -> Vec<Asker> {
        locked(&self.together.sent).remove(&self.number).unwrap_or_default()
    }

    /// Gives each who has asked its own answer, or all the one error.
    fn tell(self, answers: Result<Vec<Value>, RedisError>) {
        let askers = self.take_askers();
        // Who does not wait any more is not told.
        match answers {
            Ok(answers) => {
                for (asker, answer) in askers.into_iter().zip(answers) {
                    drop(asker.answer.send(Ok(answer.extract_error())));
                }
            }
            Err(error) => {
                for asker in askers {
                    drop(asker.answer.send(Ok(Err(error.clone()))));
                }
            }
        }
    }
}

impl Drop for Sent<'_> {
    fn drop(&mut self) {
        drop(self.take_askers());
    }
}

/// An answer is late, or the connection is closed: there will be no other answer.
impl Wake for Together {
    fn wake(self: Arc<Self>) {
        let why = if self.answers.is_closed() { NoAnswer::Closed } else { NoAnswer::Late };
        let asked = std::mem::take(&mut *locked(&self.asked));
        let sent = std::mem::take(&mut *locked(&self.sent));
        // Wakes this once more, for whoever has asked meanwhile.
        self.answers.close();
        for asker in asked.into_iter().flat_map(|asked| asked.askers).chain(sent.into_values().flatten()) {
            drop(asker.answer.send(Err(why)));
        }
    }
}

/// The turn of a task that will send a message. If its runtime ends before it has come, nobody waits for the answers any more.
struct Turn {
    together: Arc<Together>,
    has_come: bool,
}

impl Turn {
    async fn take(mut self) {
        // Whoever can run now runs first. Not by `yield_now` of tokio: that ties the task to its thread, which may be taken up by another task.
        let mut has_waited = false;
        std::future::poll_fn(|context| {
            if std::mem::replace(&mut has_waited, true) {
                return Poll::Ready(());
            }
            context.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
        self.has_come = true;
        self.together.send().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.has_come {
            let unsent = locked(&self.together.asked).pop_front();
            drop(unsent);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;

    use crate::clock::Moment;

    use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::task::yield_now;
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_secs(20);

    /// The other end of a connection.
    struct Other {
        stream: DuplexStream,
        heard: Vec<u8>,
    }

    impl Other {
        /// What the next commands say, so many at least.
        async fn hears(&mut self, count: usize) -> Vec<String> {
            loop {
                // Each is *2, $4, ECHO, the length, and what it says.
                let whole = self.heard.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
                let lines: Vec<String> = whole.map(|line| String::from_utf8_lossy(line).trim().to_owned()).collect();
                let commands: Vec<&[String]> = lines.chunks_exact(5).collect();
                if commands.len() >= count {
                    let length: usize =
                        commands.iter().flat_map(|command| command.iter()).map(|line| line.len() + 2).sum();
                    let said = commands.iter().map(|command| command[4].clone()).collect();
                    self.heard.drain(..length);
                    return said;
                }
                let read = timeout(LONG, self.stream.read_buf(&mut self.heard)).await.expect("in time");
                assert!(read.expect("no error") > 0, "the connection is open");
            }
        }

        async fn says(&mut self, answers: &str) {
            self.stream.write_all(answers.as_bytes()).await.expect("the connection is open");
        }
    }

    /// A connection, with one command under way over it: what is asked now waits for others.
    async fn busy(home: Handle) -> (Arc<Together>, Other, Asking) {
        let (here, there) = duplex(1 << 12);
        let info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(None).set_pipeline_buffer_size(MESSAGES);
        let connecting = MultiplexedConnection::new_with_config(&info, here, config);
        let (connection, work) = connecting.await.expect("nothing is asked");
        tokio::spawn(work);
        let together = Together::new(connection, home, Answers::new());
        let mut other = Other { stream: there, heard: Vec::new() };
        let first = asking(&together, 0);
        assert_eq!(other.hears(1).await, ["0"]);
        (together, other, first)
    }

    type Asking = Pin<Box<dyn Future<Output = Result<Answer, NoAnswer>>>>;

    /// Somebody who has asked.
    fn asking(together: &Arc<Together>, what: usize) -> Asking {
        asking_for(together, what, LONG * 2)
    }

    fn asking_for(together: &Arc<Together>, what: usize, span: Duration) -> Asking {
        let mut asking = will_ask(together, what, span);
        assert!(asking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        asking
    }

    /// Asks as soon as it is looked at.
    fn will_ask(together: &Arc<Together>, what: usize, span: Duration) -> Asking {
        let (together, patience) = (together.clone(), Patience { since: Moment::now(), span });
        Box::pin(async move { together.ask(Cow::Borrowed(redis::cmd("ECHO").arg(what)), patience).await })
    }

    async fn answer(asking: Asking) -> Result<Answer, NoAnswer> {
        timeout(LONG, asking).await.expect("in time")
    }

    #[tokio::test]
    async fn commands_come_in_order_also_those_that_nobody_waits_for_any_more_and_each_has_its_own_answer() {
        let (together, mut other, first) = busy(Handle::current()).await;
        let count = 3 * MOST_TOGETHER;
        let mut all: Vec<_> = (1..=count).map(|number| asking(&together, number)).collect();
        drop(all.remove(6));
        all.push(asking(&together, count + 1));
        let heard = other.hears(count + 1).await;
        assert!(heard.iter().eq((1..=count + 1).map(|number| number.to_string()).collect::<Vec<_>>().iter()));

        let says = |number: usize| if number == 9 { "-NO nine\r\n".to_owned() } else { format!(":{number}\r\n") };
        other.says(&(0..=count + 1).map(says).collect::<String>()).await;
        assert_eq!(answer(first).await, Ok(Ok(Value::Int(0))));
        for (asking, number) in all.into_iter().zip((1..).filter(|number| *number != 7)) {
            let answer = answer(asking).await.expect("it is open");
            match number {
                9 => assert_eq!(answer.expect_err("an error").code(), Some("NO")),
                _ => assert_eq!(answer, Ok(Value::Int(number))),
            }
        }
        assert_eq!(Arc::strong_count(&together.under_way), 1, "none is under way");
    }

    #[tokio::test]
    async fn nobody_waits_for_an_answer_over_a_closed_connection() {
        let (together, mut other, _first) = busy(Handle::current()).await;
        let second = asking(&together, 1);
        assert_eq!(other.hears(1).await, ["1"]);
        together.answers.close();
        assert_eq!(answer(second).await, Err(NoAnswer::Closed));
    }

    #[tokio::test]
    async fn nobody_waits_for_a_runtime_that_has_ended() {
        let home = tokio::runtime::Runtime::new().expect("a runtime");
        let (together, _other, _first) = busy(home.handle().clone()).await;
        home.shutdown_background();
        assert_eq!(answer(will_ask(&together, 1, LONG * 2)).await, Err(NoAnswer::Closed));
        assert_eq!(locked(&together.asked).len(), 0, "nothing is kept for it");
    }

    #[tokio::test]
    async fn nobody_waits_for_an_answer_on_a_runtime_that_has_ended() {
        let home = tokio::runtime::Runtime::new().expect("a runtime");
        let (together, mut other, _first) = busy(home.handle().clone()).await;
        let second = asking(&together, 1);
        assert_eq!(other.hears(1).await, ["1"]);
        home.shutdown_background();
        assert_eq!(answer(second).await, Err(NoAnswer::Closed));
        assert!(locked(&together.sent).is_empty(), "nothing is kept for it");
    }

    /// Neither the other end nor the runtime of the connection does anything.
    #[tokio::test]
    async fn nobody_waits_longer_than_is_said_and_the_shortest_time_ends_the_connection_for_all() {
        let idle = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        for home in [Handle::current(), idle.handle().clone()] {
            let (together, _other, _first) = busy(home).await;
            let patient = asking(&together, 1);
            let began = Moment::now();
            let hasty = asking_for(&together, 2, Duration::from_millis(50));
            assert_eq!(answer(hasty).await, Err(NoAnswer::Late));
            assert!(answer(patient).await.is_err());
            assert!(together.answers.is_closed(), "the connection is of no more use");
            assert!(began.until(Moment::now()) >= Duration::from_millis(50));
            assert_eq!(answer(will_ask(&together, 3, LONG * 2)).await, Err(NoAnswer::Closed));
        }
        drop(tokio::task::spawn_blocking(move || drop(idle)).await);
    }

    /// Many messages wait for the other end to read, on a runtime whose threads take them in any order.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn messages_stay_in_order_however_many_wait_for_the_other_end() {
        let (together, mut other, first) = busy(Handle::current()).await;
        let count = 60 * MOST_TOGETHER;
        let all: Vec<_> = (1..=count).map(|number| asking(&together, number)).collect();
        // All of them have gone to the connection, whose buffer takes a few.
        while !locked(&together.asked).is_empty() {
            yield_now().await;
        }
        let mut heard = Vec::new();
        while heard.len() < count {
            heard.extend(other.hears(1).await);
        }
        assert!(heard.iter().map(|number| number.parse::<usize>().expect("a number")).eq(1..=count));
        drop((all, first));
    }
}
