//! The engine in a world without a server: stories in `testdata/`, and random histories against an oracle.

mod deadlocks;
mod model;
mod safety;
mod steps;
mod tokens;
mod transcripts;
mod world;
mod worlds;
