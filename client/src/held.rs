//! The guards' shares of holds, and re-entry.

use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::Error;
use crate::hold::{End, Hold};
use crate::owners::{Desk, Desks};
use crate::wire::Subject;

/// One guard's share of a hold. Dropping it releases in the background.
pub(crate) struct Held {
    pub(crate) hold: Arc<Hold>,
    is_left: bool,
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let hold = &self.hold;
        f.debug_struct("Held").field("key", &hold.request.key()).field("tokens", &hold.tokens).finish_non_exhaustive()
    }
}

impl Held {
    /// The first guard's share.
    pub(crate) fn first(hold: Arc<Hold>) -> Self {
        Self { hold, is_left: false }
    }

    /// A re-entry. The server does not count it, only the client does.
    pub(crate) fn again(hold: &Arc<Hold>) -> Result<Self, Error> {
        hold.enter()?;
        Ok(Self { hold: hold.clone(), is_left: false })
    }

    /// Releases the hold if this is its last guard. With `keep` the lock stays closed for that
    /// time.
    ///
    /// Cancel safety: if the future is dropped, the release goes on in the background.
    #[tracing::instrument(level = "debug", skip_all, fields(key = %self.hold.request.key()))]
    pub(crate) async fn release(mut self, keep: Option<Duration>) -> Result<(), Error> {
        self.is_left = true;
        match self.hold.leave(keep).map_err(End::error)? {
            Some(mut releasing) => releasing.run().await,
            None if keep.is_some() => {
                Err(Error::Argument("keep needs the only guard of a hold; others keep the lock".to_owned()))
            }
            None => Ok(()),
        }
    }

    /// Gives up the hold without releasing it: it lives until its lease expires.
    pub(crate) fn detach(mut self) {
        self.is_left = true;
        self.hold.end(End::Released);
        self.hold.done.cancel();
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.is_left {
            // Dropped at once, the release goes on in the background.
            drop(self.hold.leave(None));
        }
    }
}

/// Re-enters a hold that the owner already has on exactly these keys, in this mode.
///
/// # Errors
///
/// [`Error::Argument`] if the owner holds only some of the keys, or another number of permits;
/// [`Error::Lost`] if the hold is lost at this moment.
pub(crate) fn reenter(desks: &Desks, subject: &Subject) -> Result<Option<Held>, Error> {
    let mut found = None;
    for hold in holds(desks) {
        let present = &hold.request.subject;
        let is_other_mode = present.family.is_shared_lock() && present.family != subject.family;
        if is_other_mode || is_ending(&hold) {
            continue;
        }
        if present.keys != subject.keys || present.permits != subject.permits || present.family != subject.family {
            let keys: Vec<_> = present.keys.iter().map(|key| String::from_utf8_lossy(key)).collect();
            return Err(Error::Argument(format!(
                "owner already holds {keys:?} with {} permits; expected the same keys and permits, or another owner",
                present.permits
            )));
        }
        found = Some(hold);
    }
    found.as_ref().map(Held::again).transpose()
}

/// Finds a hold of the owner that is lost or has no guards, and whose release has not ended. The
/// token is cancelled when it has.
pub(crate) fn leaving(desks: &Desks) -> Option<CancellationToken> {
    holds(desks).into_iter().find(|hold| is_ending(hold) && !hold.done.is_cancelled()).map(|hold| hold.done.clone())
}

fn is_ending(hold: &Arc<Hold>) -> bool {
    hold.guards() == 0 || !hold.is_held()
}

fn holds(desks: &Desks) -> Vec<Arc<Hold>> {
    let holds = |desk: &Arc<Desk>| desk.holds().iter().filter_map(Weak::upgrade).collect::<Vec<_>>();
    desks.iter().flat_map(holds).filter_map(|hold| hold.downcast().ok()).collect()
}
