//! The results of a measurement, and how they are shown: one line per question, as a table and as
//! JSON.
//!
//! A line keeps the figure of every round. The figures of the table are derived here and nowhere
//! else. A missed aim is shown, but does not fail the run.

use comfy_table::presets::UTF8_FULL;
use comfy_table::{CellAlignment, ContentArrangement, Table};
use serde::{Serialize, Serializer};

/// Figures of the same quantity, one per round or per sample, in the order in which they were
/// taken.
#[derive(Clone, Debug, Default, Serialize)]
#[serde(transparent)]
pub struct Series(Vec<f64>);

impl Series {
    /// Adds a figure.
    pub fn push(&mut self, figure: f64) {
        self.0.push(figure);
    }

    /// The number of figures.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The ratios of two series that were taken in turns, round by round.
    pub fn ratio(&self, denominator: &Self) -> Self {
        debug_assert_eq!(self.0.len(), denominator.0.len());
        let pairs = self.0.iter().zip(&denominator.0);
        Self(pairs.map(|(above, below)| above / below).collect())
    }

    /// The smallest figure that at least `share` of all figures do not exceed (nearest rank); NaN
    /// for an empty series.
    pub fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.max(1) - 1).copied().unwrap_or(f64::NAN)
    }

    /// The middle figure, or the mean of the two middle ones.
    pub fn median(&self) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let middle = sorted.len() / 2;
        match (sorted.len() % 2, sorted.get(middle)) {
            (1, Some(figure)) => *figure,
            (_, Some(above)) => f64::midpoint(sorted[middle - 1], *above),
            (_, None) => f64::NAN,
        }
    }

    /// The smallest figure.
    pub fn min(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::min)
    }

    /// The largest figure.
    pub fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NAN, f64::max)
    }
}

/// The unit of a figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// A ratio of two figures of the same unit.
    Ratio,
    /// Microseconds.
    Us,
    /// Milliseconds.
    Ms,
    /// Bytes.
    Bytes,
    /// Events per second.
    PerSecond,
    /// Percent, without decimals.
    Percent,
    /// Percent, with two decimals, for small values.
    PercentParts,
    /// A number of things.
    Count,
}

impl Unit {
    fn show(self, figure: f64) -> String {
        match self {
            Self::Ratio => format!("{figure:.3}"),
            Self::Us => format!("{figure:.2} µs"),
            Self::Ms => format!("{figure:.2} ms"),
            Self::Bytes => format!("{figure:.1} B"),
            Self::PerSecond => format!("{figure:.0}/s"),
            Self::Percent => format!("{figure:.0} %"),
            Self::PercentParts => format!("{figure:.2} %"),
            Self::Count => format!("{figure:.2}"),
        }
    }
}

/// Which figure of a series represents it.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Statistic {
    /// The median.
    Median,
    /// The 99th percentile.
    P99,
    /// The largest.
    Max,
}

impl Statistic {
    fn of(self, series: &Series) -> f64 {
        match self {
            Self::Median => series.median(),
            Self::P99 => series.quantile(0.99),
            Self::Max => series.max(),
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Median => "median",
            Self::P99 => "p99",
            Self::Max => "max",
        }
    }
}

/// The target for a figure.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Aim {
    /// At most this.
    AtMost(f64),
    /// At least this.
    AtLeast(f64),
}

impl Aim {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtMost(limit) => figure <= limit,
            Self::AtLeast(limit) => figure >= limit,
        }
    }

    fn show(self, unit: Unit) -> String {
        match self {
            Self::AtMost(limit) => format!("≤ {}", unit.show(limit)),
            Self::AtLeast(limit) => format!("≥ {}", unit.show(limit)),
        }
    }
}

/// A raw figure behind a line, of either side or of the environment.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    name: String,
    unit: Unit,
    statistic: Statistic,
    rounds: Series,
}

impl Figure {
    /// A figure that is represented by its median.
    pub fn new(name: impl Into<String>, unit: Unit, rounds: &Series) -> Self {
        Self::of(Statistic::Median, name, unit, rounds)
    }

    /// A figure that is represented by `statistic`.
    pub fn of(statistic: Statistic, name: impl Into<String>, unit: Unit, rounds: &Series) -> Self {
        Self { name: name.into(), unit, statistic, rounds: rounds.clone() }
    }

    fn show(&self) -> String {
        let value = self.statistic.of(&self.rounds);
        format!("{} {}", self.name, self.unit.show(value))
    }
}

/// The answer to one question.
#[derive(Clone, Debug, Serialize)]
pub struct Line {
    measure: String,
    unit: Unit,
    statistic: Statistic,
    #[serde(serialize_with = "summary")]
    result: Series,
    aim: Option<Aim>,
    figures: Vec<Figure>,
}

impl Line {
    /// A line whose result is the ratio of two figures, round by round.
    pub fn ratio(measure: impl Into<String>, above: Figure, below: Figure) -> Self {
        let result = above.rounds.ratio(&below.rounds);
        Self::value(measure, Statistic::Median, Unit::Ratio, result).figure(above).figure(below)
    }

    /// A line whose result is a single figure.
    pub fn value(measure: impl Into<String>, statistic: Statistic, unit: Unit, result: Series) -> Self {
        Self { measure: measure.into(), unit, statistic, result, aim: None, figures: Vec::new() }
    }

    /// The ratio of this measurement to another one of the same quantity.
    pub fn against(&self, other: &Self) -> Self {
        Self::value(self.measure.clone(), Statistic::Median, Unit::Ratio, self.result.ratio(&other.result))
    }

    /// Adds the result of another round.
    pub fn add_round(&mut self, round: &Self) {
        self.result.push(round.result.median());
    }

    /// Sets the aim.
    pub fn aim(mut self, aim: Aim) -> Self {
        self.aim = Some(aim);
        self
    }

    /// Adds a raw figure.
    pub fn figure(mut self, figure: Figure) -> Self {
        self.figures.push(figure);
        self
    }

    /// The cells of the table: measure, result, minimum, maximum, aim, whether it is met, and the
    /// raw figures, one per line.
    pub fn cells(&self) -> [String; 7] {
        let value = self.statistic.of(&self.result);
        let (aim, met) = match self.aim {
            Some(aim) => (aim.show(self.unit), if aim.is_met(value) { "yes" } else { "NO" }),
            None => (String::new(), ""),
        };
        let figures: Vec<String> = self.figures.iter().map(Figure::show).collect();
        [
            self.measure.clone(),
            format!("{} {}", self.statistic.name(), self.unit.show(value)),
            self.unit.show(self.result.min()),
            self.unit.show(self.result.max()),
            aim,
            met.to_owned(),
            figures.join("\n"),
        ]
    }
}

/// All rounds of a result, and the derived figures of the table.
fn summary<S: Serializer>(series: &Series, serializer: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Summary<'a> {
        median: f64,
        min: f64,
        max: f64,
        p99: f64,
        rounds: &'a Series,
    }
    Summary {
        median: series.median(),
        min: series.min(),
        max: series.max(),
        p99: series.quantile(0.99),
        rounds: series,
    }
    .serialize(serializer)
}

/// Where and when a measurement was made.
#[derive(Debug, Serialize)]
pub struct Header {
    /// The CPUs that this process may use.
    pub cpu_count: usize,
    /// The date and time, in UTC.
    pub date: String,
    /// The number of rounds of each side.
    pub rounds: usize,
}

/// All results of a run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// Where and when it was made.
    pub header: Header,
    /// The sections, in the order in which they were measured.
    pub sections: Vec<SectionReport>,
}

/// The results of one section.
#[derive(Debug, Serialize)]
pub struct SectionReport {
    /// The name, as on the command line.
    pub name: String,
    /// The names of its servers.
    pub servers: String,
    /// The lines of its table.
    pub lines: Vec<Line>,
}

impl std::fmt::Display for Report {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let header = &self.header;
        writeln!(formatter, "{} CPUs, {}, {} rounds per side, in turns", header.cpu_count, header.date, header.rounds)?;
        for section in &self.sections {
            writeln!(formatter, "\n{} on {}\n{}", section.name, section.servers, table(&section.lines))?;
        }
        Ok(())
    }
}

fn table(lines: &[Line]) -> Table {
    let mut table = Table::new();
    table
        .load_style(UTF8_FULL)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(["measure", "result", "min", "max", "aim", "met", "figures"]);
    for line in lines {
        table.add_row(line.cells());
    }
    for column in table.column_iter_mut().skip(1).take(3) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_are_taken_by_rank() {
        let hundred = Series((1..=100).rev().map(f64::from).collect());
        assert_eq!(hundred.quantile(0.99), 99.0);
        assert_eq!(hundred.median(), 50.5);
        assert_eq!((hundred.min(), hundred.max()), (1.0, 100.0));
        assert_eq!(Series(vec![3.0, 1.0, 2.0]).median(), 2.0);
        assert_eq!(Series(vec![7.0]).quantile(0.99), 7.0);
        assert!(Series::default().median().is_nan());
    }

    #[test]
    fn a_ratio_is_taken_round_by_round() {
        let above = Series(vec![2.0, 9.0, 4.0]);
        let below = Series(vec![1.0, 3.0, 4.0]);
        assert_eq!(above.ratio(&below).0, [2.0, 3.0, 1.0]);
    }

    #[test]
    fn an_aim_is_met_at_its_limit() {
        assert!(Aim::AtMost(1.3).is_met(1.3) && !Aim::AtMost(1.3).is_met(1.31));
        assert!(Aim::AtLeast(0.9).is_met(0.9) && !Aim::AtLeast(0.9).is_met(0.89));
        assert!(!Aim::AtMost(1.0).is_met(f64::NAN));
    }
}
