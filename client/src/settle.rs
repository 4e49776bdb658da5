//! Cleans up after an acquisition whose caller got no hold: the server may still have its waiter or
//! its hold.

use std::sync::Arc;

use tokio::time::{sleep, timeout};

use crate::Error;
use crate::core::Pauses;
use crate::owners::{Desks, Turn};
use crate::request::Request;
use crate::transport::Link;
use crate::wire;

/// Sends `CANCEL` and then `RELEASE` in the background, until `CANCEL` has ended the wait, both
/// have a final answer, or the lease has passed. They use the connection of the request, so that
/// they cannot overtake it. If that has closed, they use another one: a request that the server
/// reads after them may be granted, and its claim or lease ends that hold.
///
/// Later requests of a named owner find its `desks` and wait for the `turn`: until this is done, or
/// the server has answered both commands, but refused one for now (a slot that moves). The id of
/// the RELEASE is lower than theirs, so the server refuses it as `STALE` should it come late.
///
/// At most 1,000 acquisitions are cleaned up at a time; the others end with their `BLOCK` time,
/// claim or lease.
pub(crate) fn settle(request: Arc<Request>, id: u64, link: Option<Arc<Link>>, desks: Option<Desks>, turn: Turn) {
    let core = request.core.clone();
    let Ok(permit) = core.settlements.clone().try_acquire_owned() else { return };
    let subject = &request.subject;
    let commands = [subject.cancel(id), subject.release(&[], subject.permits, 0, id + 1)];
    let ended = core.common.ended.clone();
    core.in_background(async move {
        let _permit = permit;
        let mut turn = Some((desks, turn));
        let subject = &request.subject;
        let mut pauses = Pauses::default();
        let settling = async {
            loop {
                let answers = request.ask_all(link.as_ref(), &commands).await;
                match answers.as_deref() {
                    Ok([Ok(cancelled), _]) if wire::number(cancelled) == Ok(1) => return,
                    Ok([cancelled, released]) if !is_to_repeat(cancelled) && !is_to_repeat(released) => {
                        if released.is_err() && subject.is_many() {
                            request.release_each(&[], id + 1).await;
                        }
                        return;
                    }
                    answers => {
                        if answers.is_ok_and(|answers| answers.iter().all(is_known)) {
                            turn = None;
                        }
                        sleep(pauses.next()).await;
                    }
                }
            }
        };
        let settling = timeout(request.lease, settling);
        if ended.run_until_cancelled(settling).await.is_none_or(|settled| settled.is_err()) {
            tracing::debug!(key = %request.key(), "could not clean up an acquisition; its lease ends it");
        }
    });
}

fn is_to_repeat(answer: &Result<redis::Value, Error>) -> bool {
    answer.as_ref().is_err_and(Error::is_retryable)
}

fn is_known(answer: &Result<redis::Value, Error>) -> bool {
    !answer.as_ref().is_err_and(Error::is_lost_reply)
}
