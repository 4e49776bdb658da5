//! Wrong rules. Each gives the core a different input than the right rule would.

/// A wrong rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    RenewsAtOnce,
    RenewsLater,
    Reenters,
    AnswersOnce,
    AnswersRetries,
    ChangesModes,
    Drains,
    TimerGrants,
    CountsConnected,
    OneTooFew,
    StampsWhenRead,
    ClockAfterOffset,
    CountsAtOnce,
    CountsTwice,
    CountsForged,
    GoesOn,
    TooShort,
    NoQuarantine,
    NotAnew,
    ChangesAtOnce,
}

impl Fault {
    /// The wrong rule in words.
    pub(super) fn told(self) -> &'static str {
        match self {
            Self::None => "nothing",
            Self::RenewsAtOnce => "RENEW works before the right to grant begins",
            Self::RenewsLater => "an owner renews after its belief has ended",
            Self::Reenters => "an owner acquires again in the quarantine",
            Self::AnswersOnce => "the quarantine lets ONCE repeat a grant",
            Self::AnswersRetries => "the quarantine lets the last REQ repeat a grant",
            Self::ChangesModes => "a holder acquires in another mode in the quarantine",
            Self::Drains => "DRAIN works in the quarantine",
            Self::TimerGrants => "the timer does not look at the right to grant",
            Self::CountsConnected => "every connected replica counts",
            Self::OneTooFew => "one replica less is enough",
            Self::StampsWhenRead => "an acknowledgement counts from when it is read",
            Self::ClockAfterOffset => "the clock is read after the offset",
            Self::CountsAtOnce => "the vote of a replica counts at once",
            Self::CountsTwice => "two connections of a replica count twice",
            Self::CountsForged => "an acknowledgement beyond the offset counts",
            Self::GoesOn => "a right that lapsed goes on whoever follows",
            Self::TooShort => "the quarantine is one tick shorter",
            Self::ChangesAtOnce => "a change of the settings counts at once",
            Self::NotAnew => "a right that begins anew in a quarantine does not begin that anew",
            Self::NoQuarantine => "there is no quarantine",
        }
    }
}
