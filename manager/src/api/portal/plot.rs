//! PURE: a plot of step curves as inline SVG, for pages that are complete without JavaScript. Horizontal positions
//! are percentages, so a plot is as wide as its page, and its text as large as the page's.

use maud::{Markup, html};

use super::display;

/// A curve that keeps its value until the next point.
pub(in crate::api) struct StepCurve {
    /// The name in the legend.
    pub(in crate::api) name: String,
    /// The positions and values, by position.
    pub(in crate::api) points: Vec<(f64, f64)>,
    /// The position up to which the last value holds.
    pub(in crate::api) until: f64,
}

/// The height of a plot, and the top and the bottom of its curves, in pixels.
const PLOT_HEIGHT: f64 = 280.0;
const PLOT_TOP: f64 = 16.0;
const PLOT_BOTTOM: f64 = 250.0;
/// The size of the curves' own picture, which is stretched, in its own units.
const PICTURE_SIZE: f64 = 1000.0;
/// The approximate number of marks on an axis.
const MARKS_PER_AXIS: f64 = 5.0;

/// Returns marks between two numbers: multiples of 1, 2 or 5 times a power of ten.
pub(super) fn axis_marks(low: f64, high: f64) -> Vec<f64> {
    let span = high - low;
    if !(span.is_finite() && span > 0.0) {
        return vec![low];
    }
    let power = 10_f64.powf((span / MARKS_PER_AXIS).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0].map(|step| step * power);
    let step = step.into_iter().find(|step| span / step <= MARKS_PER_AXIS).unwrap_or(span);
    let first = (low / step).ceil();
    let numbers = std::iter::successors(Some(first), |at| Some(at + 1.0));
    numbers.map(|at| at * step).take_while(|mark| *mark <= high + step * 1e-9).take(20).collect()
}

/// The largest number that a plot draws. A larger number is drawn at this value.
const MAX_NUMBER: f64 = f64::MAX / 8.0;

pub(super) fn value_range(numbers: impl Iterator<Item = f64>) -> Option<(f64, f64)> {
    // Beyond this value, the difference of two numbers may not be finite.
    let finite = numbers
        .filter(|number| number.is_finite())
        .map(|number| number.clamp(-MAX_NUMBER, MAX_NUMBER));
    finite.fold(None, |range: Option<(f64, f64)>, number| {
        let (low, high) = range.unwrap_or((number, number));
        Some((low.min(number), high.max(number)))
    })
}

/// Returns the corners of a curve, in the units of its picture.
fn curve_corners(
    curve: &StepCurve,
    horizontal: impl Fn(f64) -> f64,
    vertical: impl Fn(f64) -> f64,
) -> String {
    let mut corners = Vec::new();
    let mut last: Option<f64> = None;
    let end = [(curve.until, curve.points.last().map_or(0.0, |(_, value)| *value))];
    for (place, value) in curve.points.iter().copied().chain(end) {
        let (x, y) = (horizontal(place) * PICTURE_SIZE, vertical(value) * PICTURE_SIZE);
        corners.extend(last.map(|before| format!("{x:.1},{before:.1}")));
        corners.push(format!("{x:.1},{y:.1}"));
        last = Some(y);
    }
    corners.join(" ")
}

/// Renders a plot with its legend. `format_position` formats a position on the horizontal axis.
pub(in crate::api) fn plot(
    title: &str,
    below: &str,
    curves: &[StepCurve],
    format_position: impl Fn(f64) -> String,
) -> Markup {
    let values =
        value_range(curves.iter().flat_map(|curve| curve.points.iter().map(|(_, value)| *value)));
    let Some((low, high)) = values else {
        return html! { p.hint { "Nothing to show yet: no trial has succeeded with a numeric result." } };
    };
    let pad = if high > low { (high - low) * 0.06 } else { low.abs().max(1.0) * 0.1 };
    let (low, high) = (low - pad, high + pad);
    let places = curves
        .iter()
        .flat_map(|curve| curve.points.iter().map(|(place, _)| *place).chain([curve.until]));
    let (from, to) = value_range(places).unwrap_or((0.0, 1.0));
    let to = if to > from { to } else { from + 1.0 };
    let horizontal = |place: f64| (place - from) / (to - from);
    let vertical = |value: f64| (high - value.clamp(-MAX_NUMBER, MAX_NUMBER)) / (high - low);
    html! {
        figure.plot {
            svg role="img" aria-label=(title) width="100%" height=(PLOT_HEIGHT) {
                @for mark in axis_marks(low, high) {
                    @let y = PLOT_TOP + vertical(mark) * (PLOT_BOTTOM - PLOT_TOP);
                    line.rule x1="0" x2="100%" y1=(format!("{y:.1}")) y2=(format!("{y:.1}")) {}
                    text x="2" y=(format!("{:.1}", y - 4.0)) { (display::number(mark)) }
                }
                svg x="0" y=(PLOT_TOP) width="100%" height=(PLOT_BOTTOM - PLOT_TOP) viewBox={ "0 0 " (PICTURE_SIZE) " " (PICTURE_SIZE) } preserveAspectRatio="none" {
                    @for (at, curve) in curves.iter().enumerate() {
                        polyline class={ "curve c" (at % 8) } points=(curve_corners(curve, horizontal, vertical)) vector-effect="non-scaling-stroke" {}
                    }
                }
                @for mark in axis_marks(from, to) {
                    @let part = horizontal(mark);
                    @let side = if part < 0.08 { "start" } else if part > 0.92 { "end" } else { "middle" };
                    text x=(format!("{:.2}%", part * 100.0)) y=(PLOT_BOTTOM + 16.0) text-anchor=(side) { (format_position(mark)) }
                }
                text x="50%" y=(PLOT_HEIGHT - 2.0) text-anchor="middle" { (below) }
            }
            @if curves.len() > 1 {
                figcaption {
                    @for (at, curve) in curves.iter().enumerate() {
                        span.key { span class={ "mark c" (at % 8) } aria-hidden="true" {} (display::sanitize(&curve.name)) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_are_round_numbers_within_the_range() {
        #[rustfmt::skip]
        let table: [(f64, f64, &[f64]); 4] = [
            (0.0, 10.0, &[0.0, 2.0, 4.0, 6.0, 8.0, 10.0]), (0.13, 0.51, &[0.2, 0.3, 0.4, 0.5]), (3.0, 3.0, &[3.0]), (-1.0, 1.0, &[-1.0, -0.5, 0.0, 0.5, 1.0]),
        ];
        for (low, high, expected) in table {
            let found = axis_marks(low, high);
            assert_eq!(found.len(), expected.len(), "{found:?}");
            assert!(found.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-9), "{found:?}");
        }
    }

    #[test]
    fn a_plot_has_its_curve_and_its_title() {
        let curve =
            StepCurve { name: "<a>".to_owned(), points: vec![(0.0, 3.0), (4.0, 1.0)], until: 10.0 };
        let other = StepCurve { name: "b".to_owned(), points: vec![(1.0, f64::MAX)], until: 2.0 };
        let one = plot("Best so far", "trial", &[curve], |place| place.to_string()).into_string();
        assert!(one.contains("aria-label=\"Best so far\"") && !one.contains("NaN"), "{one}");
        let two = plot("t", "x", &[other], |place| place.to_string()).into_string();
        assert!(!two.contains("NaN") && !two.contains("style="), "{two}");
        let none = plot("t", "x", &[], |place| place.to_string()).into_string();
        assert!(none.contains("Nothing to show yet"), "{none}");
    }
}
