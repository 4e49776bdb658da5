//! Faults of this program on purpose.

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    #[default]
    None,
    /// `held` stays true, and no loss is reported.
    BelievesAfterDeadline,
    /// No loss is reported; `held` is right.
    TellsNothing,
    /// A loss is reported a second late.
    TellsLate,
    /// The first failed renewal ends a hold.
    GivesUpAtFirstTrouble,
    /// Nothing is renewed.
    NeverRenews,
    /// A release is not sent.
    KeepsWhatItReleases,
    /// The acquisition of a cancelled caller continues.
    LeavesWaiter,
    /// A cancelled request continues.
    IgnoresCancel,
    /// Waits last for longer than their timeout.
    WaitsTooLong,
    /// The work's result is replaced by an error.
    HidesResult,
    /// All locks are in database 0.
    IgnoresDatabase,
    /// All acquisitions have the same owner.
    SharesOwner,
    /// The caller continues some time after the grant, with a deadline computed at the grant.
    EntersLate,
    /// Closing a client does nothing.
    ClosesNothing,
    /// Sessions are not requested.
    IgnoresSession,
    /// The RELEASE that settles a cancelled acquisition has a higher id than later acquisitions.
    SettlesWithHighId,
}

const ALL: [(&str, Fault); 16] = [
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
    ("settles-with-high-id", Fault::SettlesWithHighId),
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
