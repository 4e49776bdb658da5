//! Collections for a thread that must never stall: no step copies or rehashes a whole collection.
//!
//! `make bench-collections` measures what each gains over an ordinary one.

mod chunked;
pub(crate) mod deadlines;
mod name_table;
mod optional;
mod slots;
mod small_set;
#[cfg(test)]
mod tests;

pub(crate) use chunked::Chunked;
pub(crate) use deadlines::DeadlineRef;
pub use deadlines::{Alarm, Deadlines};
pub(crate) use name_table::NameTable;
pub(crate) use optional::Optional;
pub(crate) use slots::Slots;
pub(crate) use small_set::{SmallSet, bytes_in_set};
