//! Listening to what happens to the keys of a hold, as long as it is kept.

use std::sync::Arc;
use std::task::Poll;

use tokio::sync::watch;

use crate::link::{Link, Subscription};
use crate::request::Request;

/// What the server tells of the keys of a hold, over one connection.
pub(crate) struct News {
    /// None if it tells nothing.
    events: Vec<Subscription<watch::Receiver<()>>>,
}

impl News {
    pub(crate) async fn of(request: &Arc<Request>, link: Arc<Link>) -> Self {
        let mut events = Vec::new();
        for key in request.subject.keys.iter() {
            events.extend(link.listen(key, request.client.settings.response_timeout).await);
        }
        Self { events }
    }

    /// Resolves when something has happened that may have ended the hold. False if nobody tells.
    pub(crate) async fn come(&mut self) -> bool {
        if self.events.is_empty() {
            return false;
        }
        let mut changes: Vec<_> = self.events.iter_mut().map(|key| Box::pin(key.events.changed())).collect();
        std::future::poll_fn(|context| {
            let mut has_come = false;
            changes.retain_mut(|change| match change.as_mut().poll(context) {
                Poll::Pending => true,
                Poll::Ready(told) => {
                    has_come |= told.is_ok();
                    false
                }
            });
            if has_come { Poll::Ready(true) } else { Poll::Pending }
        })
        .await
    }
}
