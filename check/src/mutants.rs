//! Builds that are wrong on purpose.
