//! One connection to a server, which tells when it is closed.

use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, ErrorKind, Pipeline, ProtocolVersion, PushInfo, PushKind,
    RedisError, Value,
};
use tokio_util::sync::CancellationToken;

/// A connection that many requests may share.
pub(crate) struct Link {
    connection: MultiplexedConnection,
    info: ConnectionInfo,
    closed: CancellationToken,
}

impl Link {
    /// Connects. RESP3 is what tells at once that the server has closed the connection, also when nothing is being asked.
    pub(crate) async fn connect(info: ConnectionInfo, patience: Duration) -> Result<Arc<Self>, RedisError> {
        let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let client = Client::open(info.clone().set_redis_settings(settings))?;
        let closed = CancellationToken::new();
        let on_push = closed.clone();
        let hear = move |push: PushInfo| {
            if push.kind == PushKind::Disconnection {
                on_push.cancel();
            }
            Ok::<(), ()>(())
        };
        // How long an answer may take depends on the request, see `ask`.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(patience))
            .set_response_timeout(None)
            .set_push_sender(hear);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await?;
        Ok(Arc::new(Self { connection, info, closed }))
    }

    /// Sends a command and waits for the answer, for ever if there is no `patience`. A connection whose answer does not come
    /// in time is closed: what comes over it later would not be worth more.
    pub(crate) async fn ask(&self, command: &Cmd, patience: Option<Duration>) -> Result<Value, RedisError> {
        let mut connection = self.connection.clone();
        let answer = async move { connection.send_packed_command(command).await?.extract_error() };
        self.answered(answer, patience).await
    }

    /// The same for several commands in one write. Each has its own answer, which may be an error.
    pub(crate) async fn ask_all(
        &self,
        commands: &Pipeline,
        count: usize,
        patience: Duration,
    ) -> Result<Vec<Value>, RedisError> {
        let mut connection = self.connection.clone();
        let answer = async move { connection.send_packed_commands(commands, 0, count).await };
        self.answered(answer, Some(patience)).await
    }

    async fn answered<T>(
        &self,
        answer: impl Future<Output = Result<T, RedisError>>,
        patience: Option<Duration>,
    ) -> Result<T, RedisError> {
        let timeout = async {
            match patience {
                Some(patience) => tokio::time::sleep(patience).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            outcome = answer => outcome,
            () = self.closed.cancelled() => return Err(lost("the connection was closed")),
            () = timeout => {
                self.close();
                return Err(lost("no answer in time"));
            }
        };
        if let Err(error) = &outcome
            && (error.is_unrecoverable_error() || error.is_io_error())
        {
            self.close();
        }
        outcome
    }

    /// Where it leads to.
    pub(crate) fn info(&self) -> &ConnectionInfo {
        &self.info
    }

    pub(crate) fn is_closed(&self) -> bool {
        self.closed.is_cancelled()
    }

    /// Resolves when the connection is closed, by whichever side.
    pub(crate) async fn closed(&self) {
        self.closed.cancelled().await;
    }

    /// Uses it no more. Whoever waits for an answer over it hears that it is closed, and the socket closes with the last of them.
    pub(crate) fn close(&self) {
        self.closed.cancel();
    }
}

fn lost(why: &'static str) -> RedisError {
    RedisError::from((ErrorKind::Io, why))
}
