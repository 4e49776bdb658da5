//! Cleans up after an acquisition whose caller got no hold: the server may still have its waiter or
//! its hold.

use std::sync::Arc;

use tokio::time::{sleep, timeout};

use crate::core::Pauses;
use crate::owners::{Desks, Turn};
use crate::request::Request;
use crate::transport::Link;

/// Sends `CANCEL` in the background, until it has a final answer or the lease has passed. It uses
/// the connection of the request, so that it cannot overtake it. If that has closed, it uses another
/// one: a request that the server reads after it may be granted, and the claim ends that hold.
///
/// Later requests of a named owner find its `desks` and wait for the `turn`: until this is done, or
/// the server has refused the CANCEL for now (a slot that moves).
///
/// At most 1,000 acquisitions are cleaned up at a time; the others end with their `BLOCK` time or
/// claim.
pub(crate) fn settle(request: Arc<Request>, id: u64, link: Option<Arc<Link>>, desks: Option<Desks>, turn: Turn) {
    let core = request.core.clone();
    let Ok(permit) = core.settlements.clone().try_acquire_owned() else { return };
    let cancel = request.subject.cancel(id);
    let ended = core.common.ended.clone();
    core.in_background(async move {
        let _permit = permit;
        let mut turn = Some((desks, turn));
        let mut pauses = Pauses::default();
        let settling = async {
            while let Err(error) = request.ask_over(link.as_ref(), &cancel).await {
                if !error.is_retryable() {
                    return;
                }
                if !error.is_lost_reply() {
                    turn = None;
                }
                sleep(pauses.next()).await;
            }
        };
        let settling = timeout(request.lease, settling);
        if ended.run_until_cancelled(settling).await.is_none_or(|settled| settled.is_err()) {
            tracing::debug!(key = %request.key(), "could not clean up an acquisition; its claim ends it");
        }
    });
}
