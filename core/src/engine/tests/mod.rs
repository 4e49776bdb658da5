//! The engine in a world without a server: stories in `testdata/`, and random histories against an oracle.

mod between_parts;
mod checks;
mod databases;
mod deadlocks;
mod effects;
mod kept;
mod keyspace;
mod model;
mod offers;
mod safety;
mod steps;
mod subscribers;
mod tokens;
mod transcripts;
mod views;
mod world;
mod worlds;
