//! What this program does wrong if it is asked to.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// `held` stays true for ever, and no loss is told.
    BelievesAfterDeadline,
    /// No loss is told; `held` is right.
    TellsNothing,
    /// A loss is told a second late.
    TellsLate,
    /// A hold is given up at the first renewal that fails.
    GivesUpAtFirstTrouble,
    /// Nothing is renewed.
    NeverRenews,
    /// A release is not sent.
    KeepsWhatItReleases,
    /// A cancelled caller goes away, and its acquisition goes on.
    LeavesWaiter,
    /// A request that is cancelled goes on.
    IgnoresCancel,
    /// Waits last for longer than their timeout.
    WaitsTooLong,
    /// The work's result is replaced by an error.
    HidesResult,
    /// Everything is in database 0.
    IgnoresDatabase,
    /// All acquisitions have the same owner.
    SharesOwner,
    /// The caller continues some time after the grant, and is told of the deadline that it had then.
    EntersLate,
    /// Closing a client leaves all as it is.
    ClosesNothing,
    /// The session is not asked for.
    IgnoresSession,
}

const ALL: [(&str, Fault); 15] = [
    ("believes-after-deadline", Fault::BelievesAfterDeadline),
    ("tells-nothing", Fault::TellsNothing),
    ("tells-late", Fault::TellsLate),
    ("gives-up-at-first-trouble", Fault::GivesUpAtFirstTrouble),
    ("never-renews", Fault::NeverRenews),
    ("keeps-what-it-releases", Fault::KeepsWhatItReleases),
    ("leaves-waiter", Fault::LeavesWaiter),
    ("ignores-cancel", Fault::IgnoresCancel),
    ("waits-too-long", Fault::WaitsTooLong),
    ("hides-result", Fault::HidesResult),
    ("ignores-database", Fault::IgnoresDatabase),
    ("shares-owner", Fault::SharesOwner),
    ("enters-late", Fault::EntersLate),
    ("closes-nothing", Fault::ClosesNothing),
    ("ignores-session", Fault::IgnoresSession),
];

impl Fault {
    pub fn from_environment() -> Fault {
        let Ok(name) = std::env::var("RLOCK_CONFORMANCE_FAULT") else { return Fault::None };
        let known = ALL.into_iter().find(|(known, _)| *known == name);
        known.map_or_else(|| panic!("unknown fault {name:?}"), |(_, fault)| fault)
    }

    pub fn url(self, url: &str) -> String {
        match url.rsplit_once('/') {
            Some((server, _)) if self == Fault::IgnoresDatabase => format!("{server}/0"),
            _ => url.to_owned(),
        }
    }
}
