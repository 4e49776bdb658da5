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
    /// `held` says that two thirds of the lease are left, whatever the server has answered.
    BelievesWhatItAsked,
    /// The largest duration makes it hang.
    HangsOnExtremes,
    /// A wait that ends in an outage is not acquired, as if another owner held the lock.
    HidesOutage,
    /// A wait that times out is an outage.
    BlamesServer,
    /// `run` calls the work and returns its result, whatever happens to the lock.
    IgnoresLoss,
    /// The work of `run` takes a step after the loss.
    StepsAfterLoss,
    /// The release of a lost hold succeeds.
    HidesLoss,
    /// A second release of a hold ends the outer one.
    ClosesTwice,
    /// It lists B29 and B32, and keeps neither: a fixed lease ends after a second, and an owner that
    /// has lost a hold gets no other.
    DeclaresAll,
}

const ALL: [(&str, Fault); 25] = [
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
    ("believes-what-it-asked", Fault::BelievesWhatItAsked),
    ("hangs-on-extremes", Fault::HangsOnExtremes),
    ("hides-outage", Fault::HidesOutage),
    ("blames-server", Fault::BlamesServer),
    ("ignores-loss", Fault::IgnoresLoss),
    ("steps-after-loss", Fault::StepsAfterLoss),
    ("hides-loss", Fault::HidesLoss),
    ("closes-twice", Fault::ClosesTwice),
    ("declares-all", Fault::DeclaresAll),
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
