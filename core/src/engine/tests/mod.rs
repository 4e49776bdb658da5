//! The engine in a world without a server: stories in `testdata/`, and random histories against an
//! oracle.

mod between_parts;
mod checks;
mod crowd;
mod databases;
mod deadlocks;
mod effects;
mod given_back;
mod kept;
mod keyspace;
mod model;
mod offers;
mod one_owner;
mod refused_writes;
mod request_path;
mod safety;
mod steps;
mod subscribers;
mod tokens;
mod transcripts;
mod used_meanwhile;
mod views;
mod world;
mod worlds;
