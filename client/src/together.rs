//! Commands that many tasks send over one connection at the same time, in one message.
//!
//! What a command costs this side is less its bytes than the messages to the task of the connection and back, each of which wakes somebody. So
//! a command that is asked while others are under way waits until those who can run now have asked too, and one message takes them all.
//!
//! The order is kept: a command that takes another one back never comes before it.

use std::borrow::Cow;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use redis::aio::MultiplexedConnection;
use redis::{Cmd, Pipeline, RedisError, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::task::yield_now;

use crate::answers::Answers;

/// All that is in one message is answered in one: the first of it is not to wait long for the last.
const MOST_TOGETHER: usize = 128;

/// The commands that wait to be sent over one connection.
pub(crate) struct Together {
    connection: MultiplexedConnection,
    /// Where the connection lives.
    home: Handle,
    answers: Arc<Answers>,
    asked: Mutex<Vec<Asked>>,
    /// Taken while commands go from `asked` to the connection, so that they stay in order.
    sending: Mutex<()>,
    /// Each command that has no answer yet has a copy.
    under_way: Arc<()>,
}

type Answer = Result<Value, RedisError>;

/// A command that waits to be sent.
struct Asked {
    command: Cmd,
    asker: Asker,
}

struct Asker {
    answer: oneshot::Sender<Answer>,
    _under_way: Arc<()>,
}

impl Together {
    pub(crate) fn new(connection: MultiplexedConnection, home: Handle, answers: Arc<Answers>) -> Arc<Self> {
        let (asked, sending, under_way) = Default::default();
        Arc::new(Self { connection, home, answers, asked, sending, under_way })
    }

    /// Sends a command and waits for its answer, which may be an error of the server's. `None` if the connection or its runtime ends before.
    ///
    /// Cancel safety: when dropped, the command may be sent later. What is asked after that is sent after it.
    pub(crate) async fn ask(self: &Arc<Self>, command: Cow<'_, Cmd>) -> Option<Answer> {
        let is_alone = Arc::strong_count(&self.under_way) == 1;
        let under_way = self.under_way.clone();
        if is_alone {
            // Then none waits to be sent either.
            let answer = self.connection.clone().send_packed_command(&command).await;
            self.answers.note();
            drop(under_way);
            return Some(answer.and_then(Value::extract_error));
        }
        let (asker, answer) = oneshot::channel();
        let is_first = {
            let mut asked = self.asked();
            let asker = Asker { answer: asker, _under_way: under_way };
            asked.push(Asked { command: command.into_owned(), asker });
            asked.len() == 1
        };
        if is_first {
            self.send_soon();
        }
        answer.await.ok()
    }

    fn asked(&self) -> MutexGuard<'_, Vec<Asked>> {
        self.asked.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has what was asked sent, when all have asked who can do so now.
    fn send_soon(self: &Arc<Self>) {
        let turn = Turn { together: self.clone(), has_come: false };
        drop(self.home.spawn(turn.take()));
    }

    /// Takes what was asked, but no more than one message is to have.
    fn take(self: &Arc<Self>) -> (Pipeline, Vec<Asker>) {
        let mut asked = self.asked();
        let most = asked.len().min(MOST_TOGETHER);
        let (mut commands, mut askers) = (Pipeline::with_capacity(most), Vec::with_capacity(most));
        for Asked { command, asker } in asked.drain(..most) {
            commands.add_command(command);
            askers.push(asker);
        }
        let is_rest_to_send = !asked.is_empty();
        drop(asked);
        if is_rest_to_send {
            self.send_soon();
        }
        (commands, askers)
    }

    async fn send(self: &Arc<Self>) {
        let (askers, mut answers) = {
            let _alone = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
            let (commands, askers) = self.take();
            let (mut connection, count) = (self.connection.clone(), askers.len());
            let mut answers = Box::pin(async move { connection.send_packed_commands(&commands, 0, count).await });
            // From here on it stands in the line of the connection. Polled again below, it gets to know whom to wake.
            match answers.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(answers) => return tell(askers, answers),
                Poll::Pending => (askers, answers),
            }
        };
        tokio::select! {
            biased;
            answers = &mut answers => {
                self.answers.note();
                tell(askers, answers);
            }
            () = self.answers.closed().cancelled() => {}
        }
    }
}

/// Gives each its own answer, or all the one error.
fn tell(askers: Vec<Asker>, answers: Result<Vec<Value>, RedisError>) {
    // Who does not wait any more is not told.
    match answers {
        Ok(answers) => {
            for (asker, answer) in askers.into_iter().zip(answers) {
                drop(asker.answer.send(answer.extract_error()));
            }
        }
        Err(error) => {
            for asker in askers {
                drop(asker.answer.send(Err(error.clone())));
            }
        }
    }
}

/// The turn of a task that will send what was asked. If its runtime ends before it has come, nobody is to wait for an answer.
struct Turn {
    together: Arc<Together>,
    has_come: bool,
}

impl Turn {
    async fn take(mut self) {
        // Whoever can run now runs first.
        yield_now().await;
        self.has_come = true;
        self.together.send().await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.has_come {
            self.together.asked().clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::pin::Pin;
    use std::time::Duration;

    use redis::{AsyncConnectionConfig, ProtocolVersion, RedisConnectionInfo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::time::timeout;

    const LONG: Duration = Duration::from_secs(20);

    /// The other end of a connection.
    struct Other {
        stream: DuplexStream,
        heard: Vec<u8>,
    }

    impl Other {
        /// What the next commands say, so many.
        async fn hears(&mut self, count: usize) -> Vec<String> {
            loop {
                // Each is *2, $4, ECHO, the length, and what it says.
                let heard = String::from_utf8_lossy(&self.heard).into_owned();
                let lines: Vec<&str> = heard.split_terminator("\r\n").collect();
                if lines.len() >= 5 * count && heard.ends_with("\r\n") {
                    self.heard.clear();
                    return lines.chunks(5).map(|command| command[4].to_owned()).collect();
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
        let (here, there) = duplex(1 << 20);
        let info = RedisConnectionInfo::default().set_protocol(ProtocolVersion::RESP2).set_skip_set_lib_name();
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connecting = MultiplexedConnection::new_with_config(&info, here, config);
        let (connection, work) = connecting.await.expect("nothing is asked");
        tokio::spawn(work);
        let together = Together::new(connection, home, Answers::new());
        let mut other = Other { stream: there, heard: Vec::new() };
        let first = asking(&together, 0);
        assert_eq!(other.hears(1).await, ["0"]);
        (together, other, first)
    }

    type Asking = Pin<Box<dyn Future<Output = Option<Answer>>>>;

    /// Somebody who has asked.
    fn asking(together: &Arc<Together>, what: usize) -> Asking {
        let together = together.clone();
        let mut asking = Box::pin(async move { together.ask(Cow::Borrowed(redis::cmd("ECHO").arg(what))).await });
        assert!(asking.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        asking
    }

    async fn answer(asking: Asking) -> Option<Answer> {
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
        assert_eq!(answer(first).await, Some(Ok(Value::Int(0))));
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
        assert_eq!(answer(second).await, None);
    }

    #[tokio::test]
    async fn nobody_waits_for_a_runtime_that_has_ended() {
        let home = tokio::runtime::Runtime::new().expect("a runtime");
        let (together, _other, _first) = busy(home.handle().clone()).await;
        home.shutdown_background();
        assert_eq!(answer(asking(&together, 1)).await, None);
        assert_eq!(together.asked().len(), 0, "nothing is kept for it");
    }
}
