//! An optional number in the space of a number, for records of which there are millions.

/// A number below `u64::MAX`, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Optional(u64);

impl Optional {
    /// The number.
    pub(crate) fn get(self) -> Option<u64> {
        (self.0 != u64::MAX).then_some(self.0)
    }
}

impl From<Option<u64>> for Optional {
    fn from(number: Option<u64>) -> Self {
        Self(number.unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn optional_round_trips() {
        for number in [None, Some(0), Some(1), Some(u64::MAX - 1)] {
            assert_eq!(Optional::from(number).get(), number);
        }
    }
}
