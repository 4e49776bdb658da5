//! Histories of what clients observed of a server's locks, and the rules that check them against
//! the guarantees of `docs/guarantees.md`.
//!
//! | | |
//! |---|---|
//! | [`history`] | the records: each call, when it was sent and answered, and its position in the server's order |
//! | [`timeline`] | turns the calls of each owner into spans in which it surely held, and in which it may have held |
//! | [`takeovers`] | what a history proves when a server took over that may lack the latest changes |
//! | [`rules`] | the rules, each a sweep over those spans in the order of time |
//! | [`drive`] | clients that record a history on real servers, under faults |
//! | [`beliefs`] | what owners believed, for a checker that is not ours |
//! | [`record`] | a history as lines of text, to investigate a violation |
//! | [`invented`] | histories without a server, to test the rules and their speed |
//! | [`document`] | tables that a run writes into a document |
//! | [`mutants`] | builds that are broken on purpose, and the checks that notice them |
//!
//! The checker trusts no server. It knows what the clients sent and received, by one steady clock,
//! and nothing of the module's code. Only the order in which requests reached the server comes
//! from the server (`MONITOR`).

pub mod beliefs;
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
