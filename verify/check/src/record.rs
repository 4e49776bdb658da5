//! The record of a run, as lines for a person. Where a rule was broken, they show what else
//! happened at that moment.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};

use crate::history::{Key, Operation};

/// Everything that clients recorded, before anything is removed for the rules, and the faults
/// of the servers.
#[derive(Clone, Debug, Default)]
pub struct Record {
    /// The locks.
    pub keys: Vec<Key>,
    /// The operations, in any order.
    pub operations: Vec<Operation>,
    /// The faults and pauses of the servers: begin, end, and description.
    pub spans: Vec<(u64, u64, &'static str)>,
}

impl Record {
    /// Writes one line for each call and each span, in the order in which they began: the
    /// microsecond of the beginning, that of the end, and a description.
    ///
    /// # Errors
    ///
    /// If the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<()> {
        let lines = self.lines();
        let write = || -> Result<()> {
            fs::create_dir_all(path.parent().context("the path of a record has no folder")?)?;
            let mut file = BufWriter::new(File::create(path)?);
            for line in lines {
                writeln!(file, "{line}")?;
            }
            Ok(file.flush()?)
        };
        write().with_context(|| format!("cannot write {}", path.display()))
    }

    fn lines(&self) -> Vec<String> {
        let of_spans = self.spans.iter().map(|(from_us, until_us, what)| (*from_us, *until_us, (*what).to_owned()));
        let of_operations = self.operations.iter().map(|one| {
            let name = self.keys.get(one.key as usize).map_or("", |key| key.name.as_str());
            let Operation { owner, mode, order, call, outcome, .. } = one;
            (one.sent_us, one.answered_us, format!("{owner} {name} {mode:?} {call:?} -> {outcome:?}, order {order}"))
        });
        let mut lines: Vec<_> = of_spans.chain(of_operations).collect();
        lines.sort_unstable();
        lines.into_iter().map(|(from_us, until_us, what)| format!("{from_us:>12} {until_us:>12} {what}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Call, Kind, Mode, Outcome};

    #[test]
    fn calls_and_faults_are_listed_in_order() -> Result<()> {
        let keys = vec![Key { name: "k".into(), kind: Kind::Mutex, permits: 1 }];
        let look = Operation {
            key: 0,
            owner: 7,
            mode: Mode::Exclusive,
            sent_us: 20,
            answered_us: 25,
            order: 0,
            call: Call::Look,
            outcome: Outcome::Number(1),
        };
        let record = Record { keys, operations: vec![look], spans: vec![(30, 40, "a pause"), (10, 22, "a replica")] };
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("new/record");
        record.write(&path)?;
        let text = fs::read_to_string(&path)?;
        let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
        assert_eq!(
            lines,
            [
                "10           22 a replica",
                "20           25 7 k Exclusive Look -> Number(1), order 0",
                "30           40 a pause"
            ]
        );
        Ok(())
    }
}
