//! The figures of a run: one row per cell, peer and round, and the summaries of the rounds.

use std::collections::BTreeSet;
use std::path::Path;

use anyhow::{Context, Result};

use crate::cell::Work;

/// The measurement of one peer, in one cell, in one round.
#[derive(Clone, Debug)]
pub struct Sample {
    pub work: Work,
    pub cell: String,
    /// The id of the contestant.
    pub peer: String,
    pub round: usize,
    pub figures: Vec<(&'static str, f64)>,
}

/// The summary of a figure over the rounds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub median: f64,
    pub min: f64,
    pub max: f64,
}

/// All samples of a run.
#[derive(Debug, Default)]
pub struct Samples(Vec<Sample>);

impl Summary {
    /// The summary of some figures; `None` if there are none.
    pub fn of(figures: &[f64]) -> Option<Self> {
        let mut sorted = figures.to_vec();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        let above = *sorted.get(middle)?;
        let median = match sorted.len() % 2 {
            1 => above,
            _ => f64::midpoint(*sorted.get(middle - 1)?, above),
        };
        Some(Self { median, min: *sorted.first()?, max: *sorted.last()? })
    }
}

impl Samples {
    pub fn push(&mut self, sample: Sample) {
        self.0.push(sample);
    }

    /// The kinds of work with samples.
    pub fn works(&self) -> Vec<Work> {
        let works: BTreeSet<Work> = self.0.iter().map(|sample| sample.work).collect();
        works.into_iter().collect()
    }

    /// A figure over the rounds.
    pub fn summary(&self, work: Work, cell: &str, peer: &str, figure: &str) -> Option<Summary> {
        let figures: Vec<f64> = self.of(work, cell, peer, figure).map(|(_, value)| value).collect();
        Summary::of(&figures)
    }

    /// The ratios of two peers' figures, round by round.
    pub fn ratio(&self, work: Work, cell: &str, (above, below): (&str, &str), figure: &str) -> Option<Summary> {
        let quotients: Vec<f64> = self
            .of(work, cell, above, figure)
            .filter_map(|(round, value)| {
                let (_, other) = self.of(work, cell, below, figure).find(|(of, _)| *of == round)?;
                Some(value / other)
            })
            .filter(|quotient| quotient.is_finite())
            .collect();
        Summary::of(&quotients)
    }

    /// The ratios of one peer's figures in two cells, round by round.
    pub fn growth(&self, work: Work, (large, small): (&str, &str), peer: &str, figure: &str) -> Option<Summary> {
        let quotients: Vec<f64> = self
            .of(work, large, peer, figure)
            .filter_map(|(round, value)| {
                let (_, other) = self.of(work, small, peer, figure).find(|(of, _)| *of == round)?;
                Some(value / other)
            })
            .filter(|quotient| quotient.is_finite())
            .collect();
        Summary::of(&quotients)
    }

    fn of<'a>(
        &'a self,
        work: Work,
        cell: &'a str,
        peer: &'a str,
        figure: &'a str,
    ) -> impl Iterator<Item = (usize, f64)> + 'a {
        let of_cell = self.0.iter().filter(move |s| s.work == work && s.cell == cell && s.peer == peer);
        of_cell.filter_map(move |sample| {
            let (_, value) = sample.figures.iter().find(|(name, _)| *name == figure)?;
            Some((sample.round, *value))
        })
    }

    /// Writes a file for each kind of work, with a row for each sample.
    pub fn write(&self, folder: &Path) -> Result<()> {
        for work in self.works() {
            let path = folder.join(format!("{}.csv", work.name()));
            self.write_work(work, &path).with_context(|| format!("cannot write {}", path.display()))?;
        }
        Ok(())
    }

    fn write_work(&self, work: Work, path: &Path) -> Result<()> {
        let samples: Vec<&Sample> = self.0.iter().filter(|sample| sample.work == work).collect();
        let names: BTreeSet<&str> =
            samples.iter().flat_map(|sample| sample.figures.iter().map(|(name, _)| *name)).collect();
        let mut writer = csv::Writer::from_path(path)?;
        writer.write_record(["cell", "peer", "round"].into_iter().chain(names.iter().copied()))?;
        for sample in samples {
            let value = |name: &str| {
                let figure = sample.figures.iter().find(|(of, _)| *of == name);
                figure.map_or(String::new(), |(_, value)| format!("{value:.4}"))
            };
            let head = [sample.cell.clone(), sample.peer.clone(), sample.round.to_string()];
            writer.write_record(head.into_iter().chain(names.iter().map(|name| value(name))))?;
        }
        Ok(writer.flush()?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(peer: &str, round: usize, value: f64) -> Sample {
        let figures = vec![("rate", value)];
        Sample { work: Work::Contended, cell: "c".into(), peer: peer.into(), round, figures }
    }

    #[test]
    fn a_summary_has_the_middle_and_the_ends() {
        assert_eq!(Summary::of(&[3.0, 1.0, 2.0]), Some(Summary { median: 2.0, min: 1.0, max: 3.0 }));
        assert_eq!(Summary::of(&[1.0, 2.0]), Some(Summary { median: 1.5, min: 1.0, max: 2.0 }));
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn a_ratio_compares_within_rounds_and_leaves_out_those_that_miss_one() {
        let mut samples = Samples::default();
        for sample in [sample("a", 1, 10.0), sample("a", 2, 90.0), sample("b", 1, 5.0)] {
            samples.push(sample);
        }
        let ratio = samples.ratio(Work::Contended, "c", ("a", "b"), "rate");
        assert_eq!(ratio, Some(Summary { median: 2.0, min: 2.0, max: 2.0 }));
    }
}
