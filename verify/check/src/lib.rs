//! Histories of what clients saw of a server's locks, and the rules that prove from them what `docs/guarantees.md` promises.
//!
//! | | |
//! |---|---|
//! | [`history`] | what is recorded: each call with the moment of its sending and of its answer, and its place in the server's order |
//! | [`timeline`] | from the calls of each owner to the spans of time in which it surely held, and in which it may have held |
//! | [`takeovers`] | what a history proves when a server took over that had not heard everything |
//! | [`rules`] | the rules, each a sweep over those spans in the order of time |
//! | [`drive`] | clients that make a history on real servers, under faults |
//! | [`record`] | the same as lines of text, for whoever looks into a violation |
//! | [`invented`] | histories without a server: to test the rules, and their speed |
//! | [`document`] | tables that a run writes into a document |
//! | [`mutants`] | builds that are wrong on purpose, and which rule notices |
//!
//! The checker believes no server. It knows what the clients sent and were answered, by one steady clock, and nothing of the
//! module's code; only the order in which requests came to the server is the server's word (`MONITOR`).

pub mod document;
pub mod drive;
pub mod history;
pub mod invented;
pub mod mutants;
pub mod record;
pub mod rules;
pub mod takeovers;
pub mod timeline;
pub mod tree;
