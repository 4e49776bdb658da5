//! The oracle: which holds each owner believes to have, as docs/guarantees.md defines it. It knows
//! the requests of owners and their answers, and nothing of the servers.
//!
//! A belief begins with the answer to an ACQUIRE. It ends one lease after the owner sent the last
//! answered ACQUIRE or RENEW, by its own clock, or when the owner sends RELEASE; after a wait, it
//! lasts for as long as the answer says. With SESSION and a lost connection, it ends after the
//! smaller of lease and grace. An owner renews while it believes. If it acquires again while it
//! believes, only the first ACQUIRE counts.

use std::vec::Vec;

use crate::kind::Mode;

/// The knowledge of one owner about one hold.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) key: usize,
    pub(super) mode: Mode,
    pub(super) count: u32,
    /// The token in the last answer.
    pub(super) token: u64,
    /// When the last answered request was sent.
    pub(super) sent: u64,
    /// How long the owner believes after that.
    lasts: u64,
}

impl Claim {
    /// When the belief ends.
    pub(super) fn until(&self) -> u64 {
        self.sent.saturating_add(self.lasts)
    }
}

/// The beliefs of one owner.
#[derive(Clone, Debug, Default)]
pub(super) struct Beliefs(Vec<Claim>);

impl Beliefs {
    pub(super) fn claims(&self) -> &[Claim] {
        &self.0
    }

    pub(super) fn of(&self, key: usize, mode: Mode) -> Option<&Claim> {
        self.0.iter().find(|claim| (claim.key, claim.mode) == (key, mode))
    }

    pub(super) fn believes(&self, key: usize, mode: Mode, now: u64) -> bool {
        self.of(key, mode).is_some_and(|claim| claim.until() > now)
    }

    /// An ACQUIRE that was sent at some moment is granted now.
    #[allow(clippy::too_many_arguments, reason = "a grant has as many parts")]
    pub(super) fn granted(&mut self, key: usize, mode: Mode, count: u32, token: u64, lease: u64, sent: u64, now: u64) {
        let before = self.of(key, mode).filter(|claim| claim.until() > now).map(|claim| claim.count);
        let count = before.unwrap_or(count);
        self.forget(key, mode);
        self.0.push(Claim { key, mode, count, token, sent, lasts: lease });
    }

    /// A RENEW was sent and answered now.
    pub(super) fn renewed(&mut self, key: usize, mode: Mode, lease: u64, now: u64) {
        if let Some(claim) = self.0.iter_mut().find(|claim| (claim.key, claim.mode) == (key, mode)) {
            (claim.sent, claim.lasts) = (now, lease);
        }
    }

    /// RELEASE was sent.
    pub(super) fn forget(&mut self, key: usize, mode: Mode) {
        self.0.retain(|claim| (claim.key, claim.mode) != (key, mode));
    }

    /// An owner that acquires with SESSION has lost its connection.
    pub(super) fn disconnected(&mut self, grace: u64) {
        for claim in &mut self.0 {
            claim.lasts = claim.lasts.min(grace);
        }
    }
}

/// Whether two owners hold beliefs at the same time that exclude each other.
pub(super) fn overlap(owners: &[Beliefs], permits: u32, now: u64) -> bool {
    let believed = |owner: &Beliefs| owner.0.iter().filter(|claim| claim.until() > now).cloned().collect::<Vec<_>>();
    let believed: Vec<Vec<Claim>> = owners.iter().map(believed).collect();
    let pairs = (0..believed.len()).flat_map(|first| (0..first).map(move |second| (first, second)));
    let excludes = |first: &Claim, second: &Claim| {
        first.key == second.key
            && match (first.mode, second.mode) {
                (Mode::Read, Mode::Read) => false,
                (Mode::Permits, Mode::Permits) => first.count + second.count > permits,
                _ => true,
            }
    };
    pairs.into_iter().any(|(first, second)| {
        believed[first].iter().any(|first| believed[second].iter().any(|second| excludes(first, second)))
    })
}
