//! Bars on a logarithmic scale, as SVG.

use std::path::Path;

use anyhow::{Result, anyhow};
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use crate::report::number;
use crate::samples::Summary;

const WIDTH: i32 = 900;
const TOP: i32 = 44;
const ROW: i32 = 26;
const BOTTOM: i32 = 40;
/// The left end of all bars, and the right end of the longest.
const LEFT: i32 = 300;
const RIGHT: i32 = 790;
const FONT: &str = "sans-serif";
const OURS: RGBColor = RGBColor(200, 60, 40);
const THEIRS: RGBColor = RGBColor(120, 140, 165);
const INK: RGBColor = RGBColor(40, 40, 40);
const GRID: RGBColor = RGBColor(225, 225, 225);

/// One bar.
pub struct Bar {
    pub label: String,
    pub summary: Summary,
    pub is_ours: bool,
}

/// Draws bars, each with a line from the smallest to the largest figure of the rounds. Bars without
/// a positive figure are left out.
pub fn bars(path: &Path, title: &str, bars: &[Bar]) -> Result<()> {
    let bars: Vec<&Bar> = bars.iter().filter(|bar| bar.summary.min > 0.0).collect();
    let height = TOP + ROW * i32::try_from(bars.len())? + BOTTOM;
    let size = (u32::try_from(WIDTH)?, u32::try_from(height)?);
    let area = SVGBackend::new(path, size).into_drawing_area();
    let draw = || -> Result<(), Box<dyn std::error::Error>> {
        area.fill(&WHITE)?;
        area.draw(&Text::new(title.to_owned(), (16, 12), (FONT, 18).into_font().color(&INK)))?;
        let scale = Scale::of(&bars);
        for power in scale.low..=scale.high {
            let x = scale.x(10f64.powi(power));
            area.draw(&PathElement::new([(x, TOP), (x, height - BOTTOM)], GRID))?;
            let style = (FONT, 12).into_font().color(&INK).pos(Pos::new(HPos::Center, VPos::Top));
            area.draw(&Text::new(number(10f64.powi(power)), (x, height - BOTTOM + 8), style))?;
        }
        let style = (FONT, 12).into_font().color(&INK).pos(Pos::new(HPos::Right, VPos::Top));
        area.draw(&Text::new("logarithmic scale:", (LEFT - 30, height - BOTTOM + 8), style))?;
        for (row, bar) in (0..).zip(&bars) {
            draw_bar(&area, &scale, bar, TOP + ROW * row)?;
        }
        area.present()?;
        Ok(())
    };
    draw().map_err(|error| anyhow!("cannot draw {}: {error}", path.display()))
}

fn draw_bar(
    area: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    scale: &Scale,
    bar: &Bar,
    y: i32,
) -> Result<(), Box<dyn std::error::Error>> {
    let middle = y + ROW / 2;
    let colour = if bar.is_ours { OURS } else { THEIRS };
    let text = |anchor| (FONT, 14).into_font().color(&INK).pos(Pos::new(anchor, VPos::Center));
    area.draw(&Text::new(bar.label.clone(), (LEFT - 10, middle), text(HPos::Right)))?;
    let end = scale.x(bar.summary.median);
    area.draw(&Rectangle::new([(LEFT, y + 4), (end, y + ROW - 4)], colour.filled()))?;
    let (low, high) = (scale.x(bar.summary.min), scale.x(bar.summary.max));
    area.draw(&PathElement::new([(low, middle), (high, middle)], INK))?;
    area.draw(&Text::new(number(bar.summary.median), (end.max(high) + 8, middle), text(HPos::Left)))?;
    Ok(())
}

/// Maps figures to positions, on a logarithmic scale.
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn of(bars: &[&Bar]) -> Self {
        let least = bars.iter().map(|bar| bar.summary.min).fold(f64::INFINITY, f64::min);
        let most = bars.iter().map(|bar| bar.summary.max).fold(0.0, f64::max);
        if bars.is_empty() {
            return Self { low: 0, high: 1 };
        }
        let low = least.log10().floor() as i32;
        Self { low, high: (most.log10().ceil() as i32).max(low + 1) }
    }

    fn x(&self, figure: f64) -> i32 {
        let share = (figure.log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        LEFT + (f64::from(RIGHT - LEFT) * share.clamp(0.0, 1.0)) as i32
    }
}
