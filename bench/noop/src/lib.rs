//! no-op
