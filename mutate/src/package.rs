//! The packages whose code is changed, and the tests of each.

use clap::ValueEnum;

/// A package whose code is changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Package {
    /// The core, by its own tests and those of the module.
    Core,
    /// The module, by its tests on real servers.
    Module,
    /// The client, by its tests on real servers.
    Client,
}

/// The tests that the changes of a package are shown to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Builds {
    /// Its own.
    Own,
    /// And those of the module, for the core.
    All,
}

/// The module itself, which the tests on servers load.
const MODULE: &[&str] = &["build", "--package", "rlock"];
const TESTS_OF_MODULE: &[&str] = &["test", "--no-run", "--package", "rlock", "--test", "integration"];
const TESTS_OF_CORE: &[&str] = &["test", "--no-run", "--package", "rlock-core", "--lib"];
const TESTS_OF_CLIENT: &[&str] =
    &["test", "--no-run", "--package", "rlock-client", "--features", "tls-rustls", "--lib", "--tests"];

/// Some of its tests run them.
const EXAMPLES_OF_CLIENT: &[&str] = &["build", "--package", "rlock-client", "--features", "tls-rustls", "--examples"];

impl Package {
    pub const ALL: [Self; 3] = [Self::Core, Self::Module, Self::Client];

    /// What it is called on the command line, and its files.
    pub fn name(self) -> &'static str {
        match self {
            Self::Core => "core",
            Self::Module => "module",
            Self::Client => "client",
        }
    }

    /// What cargo calls it.
    pub fn cargo_name(self) -> &'static str {
        match self {
            Self::Core => "rlock-core",
            Self::Module => "rlock",
            Self::Client => "rlock-client",
        }
    }

    /// The folder of its sources, below the root of the tree.
    pub fn sources(self) -> &'static str {
        match self {
            Self::Core => "core/src",
            Self::Module => "src",
            Self::Client => "client/src",
        }
    }

    /// What cargo is asked to build, one after the other. The core's own tests need no server.
    pub fn builds(self, builds: Builds) -> &'static [&'static [&'static str]] {
        match self {
            Self::Core if builds == Builds::Own => &[TESTS_OF_CORE],
            Self::Core => &[TESTS_OF_CORE, MODULE, TESTS_OF_MODULE],
            Self::Module => &[MODULE, TESTS_OF_MODULE],
            Self::Client => &[TESTS_OF_CLIENT, EXAMPLES_OF_CLIENT, MODULE],
        }
    }
}
