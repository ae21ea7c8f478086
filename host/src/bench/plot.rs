//! The result as an SVG: a band of panels for every length and temperature.

use std::collections::BTreeMap;
use std::ops::Range;

use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::report::BenchReport;
use super::row::Row;
use crate::backend::Stage;
use crate::error::{Error, Result};

const PANEL: (u32, u32) = (480, 360);
const BUDGET: &str = "tree budget; where it is auto, mean nodes a round";
const TITLE: (&str, u32) = ("sans-serif", 17);
const LABEL: (&str, u32) = ("sans-serif", 13);
/// What is drawn stays clear of the top of its panel by this share.
const HEADROOM: f64 = 1.15;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;
/// What plotters reports: the text is all that is needed of it.
type Drawn<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Points of one colour, joined.
struct Series {
    name: String,
    colour: RGBColor,
    points: Vec<(f64, f64)>,
}

/// A plot of `report`.
///
/// # Errors
/// [`Error::Request`] without rows to draw.
pub fn draw(report: &BenchReport) -> Result<String> {
    let mut bands: BTreeMap<(usize, String), Vec<&Row>> = BTreeMap::new();
    for row in report.rows.iter().filter(|row| row.decode_tok_s.is_some()) {
        bands.entry((row.case.max_tokens, row.case.temperature.to_string())).or_default().push(row);
    }
    if bands.is_empty() {
        return Err(Error::Request("there are no rows to plot: expected at least one with -n 2 or more".to_owned()));
    }
    let mut svg = String::new();
    draw_bands(&bands, &mut svg).map_err(|error| Error::Request(format!("the plot cannot be drawn: {error}")))?;
    Ok(svg)
}

fn draw_bands(bands: &BTreeMap<(usize, String), Vec<&Row>>, svg: &mut String) -> Drawn<()> {
    let size = (3 * PANEL.0, bands.len() as u32 * PANEL.1);
    let root = SVGBackend::with_string(svg, size).into_drawing_area();
    root.fill(&WHITE)?;
    for (band, ((max_tokens, temperature), rows)) in root.split_evenly((bands.len(), 1)).iter().zip(bands) {
        let [speed, tau, round] = &band.split_evenly((1, 3))[..] else { continue };
        let at = format!("{max_tokens} tokens, temperature {temperature}");
        draw_speed(speed, &format!("Decode, tok/s: {at}"), rows)?;
        draw_lines(tau, "Tokens a round (tau) by tree budget", BUDGET, &by_budget(rows, |row| row.tau))?;
        draw_stages(round, rows)?;
    }
    root.present()?;
    Ok(())
}

/// Speed by context where there are several, else one bar an arm.
fn draw_speed(area: &Area<'_>, title: &str, rows: &[&Row]) -> Drawn<()> {
    let mut arms: Vec<Series> = Vec::new();
    for row in rows {
        let point = (context(row), speed(row));
        match arms.iter_mut().find(|arm| arm.name == row.arm()) {
            Some(arm) => arm.points.push(point),
            None => {
                let budgets = arms.iter().filter(|arm| arm.name.split(' ').next() == Some(&row.spec)).count();
                arms.push(Series { name: row.arm(), colour: colour(&row.spec, budgets), points: vec![point] });
            }
        }
    }
    for arm in &mut arms {
        arm.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    if arms.iter().any(|arm| arm.points.len() > 1) {
        return draw_lines(area, &format!("{title}, by context"), "context tokens", &arms);
    }
    let ranges = || rows.iter().filter_map(|row| row.decode_tok_s.as_ref());
    let most = ranges().map(|speed| speed.max).fold(0.0, f64::max);
    let count = arms.len() as f64;
    let mut chart = chart(area, title, 0.0..most * 1.5, 0.0..count)?;
    let mut mesh = chart.configure_mesh();
    mesh.disable_mesh().y_labels(0).label_style(LABEL).x_label_formatter(&|x| format!("{x:.0}")).draw()?;
    for (index, (arm, range)) in arms.iter().zip(ranges()).enumerate() {
        let middle = count - index as f64 - 0.5;
        chart.draw_series([Rectangle::new(bar((0.0, range.median), middle), arm.colour.filled())])?;
        chart.draw_series([PathElement::new([(range.min, middle), (range.max, middle)], BLACK.stroke_width(1))])?;
        let text = format!("{} {:.0}", arm.name, range.median);
        chart.draw_series([Text::new(text, (range.max + most * 0.02, middle), beside())])?;
    }
    Ok(())
}

/// One bar an arm, the mean time of a round's stages end to end, at the shortest context of the rows.
fn draw_stages(area: &Area<'_>, rows: &[&Row]) -> Drawn<()> {
    let rows: Vec<&Row> = at_shortest(rows).collect();
    let total = |row: &Row| row.stage_ms.values().sum::<f64>();
    let most = rows.iter().map(|row| total(row)).fold(f64::MIN_POSITIVE, f64::max);
    let (x_end, count) = (most * 1.5, rows.len() as f64);
    // The key has a line of its own above the bars.
    let mut chart = chart(area, "Round, ms, by stage", 0.0..x_end, 0.0..count * 1.12)?;
    let digits = if most < 10.0 { 1 } else { 0 };
    let mut mesh = chart.configure_mesh();
    mesh.disable_mesh().y_labels(0).label_style(LABEL).x_label_formatter(&|x| format!("{x:.digits$}")).draw()?;
    for (index, stage) in Stage::ALL.into_iter().enumerate() {
        let (left, middle) = (x_end * index as f64 / Stage::ALL.len() as f64, count * 1.06);
        let square = [(left, middle - count * 0.02), (left + x_end * 0.025, middle + count * 0.02)];
        chart.draw_series([Rectangle::new(square, stage_colour(stage).filled())])?;
        chart.draw_series([Text::new(stage.name(), (left + x_end * 0.035, middle), beside())])?;
    }
    for (index, row) in rows.iter().enumerate() {
        let middle = count - index as f64 - 0.5;
        let mut left = 0.0;
        for stage in Stage::ALL {
            let right = left + row.stage_ms.get(stage.name()).copied().unwrap_or(0.0);
            chart.draw_series([Rectangle::new(bar((left, right), middle), stage_colour(stage).filled())])?;
            left = right;
        }
        let text = format!("{} {left:.2}", row.arm());
        chart.draw_series([Text::new(text, (left + most * 0.02, middle), beside())])?;
    }
    Ok(())
}

/// The corners of a bar around the height `middle`.
fn bar((left, right): (f64, f64), middle: f64) -> [(f64, f64); 2] {
    [(left, middle - 0.35), (right, middle + 0.35)]
}

/// Text that starts at its point.
fn beside() -> TextStyle<'static> {
    TextStyle::from(LABEL.into_font()).pos(Pos::new(HPos::Left, VPos::Center))
}

fn stage_colour(stage: Stage) -> RGBColor {
    match stage {
        Stage::Draft => RGBColor(40, 100, 190),
        Stage::Tree => RGBColor(20, 130, 70),
        Stage::Verify => RGBColor(110, 110, 110),
        Stage::Walk => RGBColor(150, 40, 130),
        Stage::Commit => RGBColor(214, 110, 20),
    }
}

/// The rows that decode behind the least context.
fn at_shortest<'a>(rows: &[&'a Row]) -> impl Iterator<Item = &'a Row> {
    let shortest = rows.iter().map(|row| context(row)).fold(f64::INFINITY, f64::min);
    rows.iter().copied().filter(move |row| context(row) == shortest)
}

/// One colour a mode, paler for each further budget.
fn colour(mode: &str, paler: usize) -> RGBColor {
    let (r, g, b) = match mode {
        "none" => (70, 70, 70),
        "ngram" => (214, 110, 20),
        "dflash" => (40, 100, 190),
        "auto" => (150, 40, 130),
        _ => (20, 130, 70),
    };
    let share = 0.72_f64.powi(paler.min(6) as i32);
    let pale = |part: u8| (255.0 - (255.0 - f64::from(part)) * share) as u8;
    RGBColor(pale(r), pale(g), pale(b))
}

/// One series a mode: the figure by budget, or by the mean of nodes where they are decided round by round, at the shortest
/// context of the rows; plain decode is budget 0.
fn by_budget(rows: &[&Row], figure: impl Fn(&Row) -> Option<f64>) -> Vec<Series> {
    let mut modes: Vec<Series> = Vec::new();
    for row in at_shortest(rows) {
        let Some(figure) = figure(row) else { continue };
        let nodes = if row.auto_budget { row.nodes_a_round.unwrap_or(0.0) } else { row.budget as f64 };
        let name = if row.auto_budget { row.arm() } else { row.spec.clone() };
        let point = (nodes, figure);
        match modes.iter_mut().find(|mode| mode.name == name) {
            Some(mode) => mode.points.push(point),
            None => modes.push(Series {
                name,
                colour: colour(&row.spec, usize::from(row.auto_budget && row.spec != "auto")),
                points: vec![point],
            }),
        }
    }
    for mode in &mut modes {
        mode.points.sort_by(|a, b| a.0.total_cmp(&b.0));
    }
    modes
}

fn draw_lines(area: &Area<'_>, title: &str, x_title: &str, series: &[Series]) -> Drawn<()> {
    let points = || series.iter().flat_map(|series| &series.points);
    let most = |figure: fn(&(f64, f64)) -> f64| points().map(figure).fold(0.0, f64::max);
    // The legend has the right end to itself.
    let x_end = most(|point| point.0).max(1.0) * 1.4;
    let mut chart = chart(area, title, 0.0..x_end, 0.0..most(|point| point.1).max(f64::MIN_POSITIVE) * HEADROOM)?;
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(x_title).label_style(LABEL).light_line_style(TRANSPARENT).x_label_formatter(&|x| format!("{x:.0}"));
    mesh.draw()?;
    for Series { name, colour, points } in series {
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 16, y)], colour.stroke_width(2)));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::MiddleRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.3))
        .label_font(LABEL)
        .draw()?;
    Ok(())
}

fn chart<'a, 'b>(area: &'a Area<'b>, title: &str, x: Range<f64>, y: Range<f64>) -> Drawn<Chart<'a, 'b>> {
    let mut builder = ChartBuilder::on(area);
    builder.caption(title, TITLE).margin(12).x_label_area_size(36).y_label_area_size(56);
    Ok(builder.build_cartesian_2d(x, y)?)
}

/// Mean tokens of context when decoding starts.
fn context(row: &Row) -> f64 {
    row.case.depth as f64 + row.prompt_tokens as f64 / row.prompts.len().max(1) as f64
}

fn speed(row: &Row) -> f64 {
    row.decode_tok_s.as_ref().map_or(0.0, |speed| speed.median)
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn one_context_gives_bars_and_several_give_lines() {
        let mut report = report();
        let bars = draw(&report).unwrap();
        assert!(bars.starts_with("<svg") && bars.trim_end().ends_with("</svg>"), "{bars}");
        assert!(bars.contains("none 80") && !bars.contains("by context"), "{bars}");
        let mut deeper = row(&[40]);
        deeper.case.depth = 640;
        report.rows.push(deeper);
        let lines = draw(&report).unwrap();
        assert!(lines.contains("by context") && lines.contains("context tokens"), "{lines}");
    }

    #[test]
    fn the_stages_of_a_round_are_in_the_key_and_their_sum_beside_the_bar() {
        let plot = draw(&report()).unwrap();
        for text in ["draft", "tree", "verify", "walk", "commit", "none 9.00"] {
            assert!(plot.lines().any(|line| line.trim() == text), "{text}: {plot}");
        }
    }

    #[test]
    fn a_run_without_speeds_is_no_plot() {
        let mut report = report();
        report.rows[0].decode_tok_s = None;
        assert!(draw(&report).unwrap_err().to_string().contains("no rows to plot"));
    }
}
