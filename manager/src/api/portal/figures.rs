//! PURE: the plots of the report as inline SVG without scripts. Horizontal positions are percentages, so a plot is as
//! wide as its place, and its text as large as the page's.

use maud::{Markup, html};
use serde_json::Value;

use super::display;
use super::plot::{axis_marks, value_range};
use crate::view::space::ParameterAxis;

/// The top and the bottom of the plotted area, in pixels.
const PLOT_TOP: f64 = 16.0;
const PLOT_BOTTOM: f64 = 236.0;
/// The height of a plot, in pixels.
const PLOT_HEIGHT: f64 = 272.0;
/// The width of the labels beside a plot, in pixels.
const LABEL_WIDTH: f64 = 60.0;
/// The size of the curves' own picture, which is stretched, in its own units.
const PICTURE_SIZE: f64 = 1000.0;
/// The share of the area that stays free at each end of an axis.
const AXIS_PADDING: f64 = 0.05;
/// The maximum number of options that have a label on an axis.
const MAX_LABELS: usize = 6;

/// An axis.
#[derive(Debug, Clone, Default)]
pub(super) struct Axis {
    /// The name of the values.
    pub(super) name: String,
    /// `true` for a logarithmic scale.
    is_log: bool,
    /// The names of the options, if the values are positions of options.
    options: Vec<String>,
}

impl Axis {
    /// Returns the axis of numbers on a linear scale.
    pub(super) fn of_numbers(name: &str) -> Self {
        Self { name: display::sanitize(name), ..Self::default() }
    }

    /// Returns the axis of a parameter, on the scale of the search space.
    pub(super) fn of_parameter(axis: &ParameterAxis) -> Self {
        let options = axis.options.iter().flatten().map(display::short_value);
        Self { is_log: axis.log, options: options.collect(), ..Self::of_numbers(&axis.name) }
    }

    /// Returns the position of a parameter's value. `None` if the axis does not contain it.
    pub(super) fn place(&self, value: &Value) -> Option<f64> {
        if self.options.is_empty() {
            return value.as_f64().filter(|number| !self.is_log || *number > 0.0);
        }
        let at = self.options.iter().position(|option| *option == display::short_value(value))?;
        Some(f64::from(u32::try_from(at).ok()?))
    }

    /// Returns the value on a linear scale.
    fn scaled(&self, value: f64) -> f64 {
        if self.is_log { value.log10() } else { value }
    }

    /// Returns the labels between two scaled values, each with its scaled position.
    fn labels(&self, low: f64, high: f64) -> Vec<(f64, String)> {
        if !self.options.is_empty() {
            let shown = self.options.iter().zip(0_u32..).take(MAX_LABELS);
            return shown.map(|(name, at)| (f64::from(at), name.clone())).collect();
        }
        if !self.is_log {
            // A sum with 0 is never the negative zero.
            return axis_marks(low, high)
                .into_iter()
                .map(|at| (at, display::number(at + 0.0)))
                .collect();
        }
        let powers = axis_marks(low, high).into_iter().filter(|at| at.fract() == 0.0);
        let labelled = |at: f64| (at, display::number(10_f64.powf(at)));
        let powers: Vec<_> = powers.map(labelled).collect();
        if powers.len() > 1 {
            return powers;
        }
        let steps = (0_i32..).map(|power| f64::from(power) + low.floor());
        let steps = steps.take_while(|power| *power <= high);
        let steps = steps.flat_map(|power| [1.0_f64, 2.0, 5.0].map(|step| power + step.log10()));
        let steps: Vec<_> = steps.filter(|at| (low..=high).contains(at)).map(labelled).collect();
        if steps.len() > 1 { steps } else { [low, high].map(labelled).into() }
    }
}

/// A kind of mark. Kinds differ in shape and in colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MarkShape {
    /// A filled circle.
    Succeeded,
    /// A hollow circle.
    Stopped,
    /// A cross.
    Failed,
}

/// The marks of one kind.
#[derive(Debug, Clone)]
pub(super) struct Marks {
    /// The name in the legend.
    pub(super) name: String,
    pub(super) shape: MarkShape,
    /// The positions. The vertical position `None` is the bottom of the plot.
    pub(super) points: Vec<(f64, Option<f64>)>,
    /// The number of trials of this kind, of which `points` may be only a part.
    pub(super) count: usize,
}

/// A curve.
#[derive(Debug, Clone)]
pub(super) struct Curve {
    pub(super) name: String,
    pub(super) points: Vec<(f64, f64)>,
}

/// The content of a plot.
#[derive(Debug, Clone, Default)]
pub(super) struct Figure {
    pub(super) title: String,
    pub(super) horizontal: Axis,
    pub(super) vertical: Axis,
    pub(super) marks: Vec<Marks>,
    pub(super) curves: Vec<Curve>,
}

/// A scale from values to shares of the plotted area.
struct Scale {
    low: f64,
    high: f64,
}

impl Scale {
    /// Returns the scale of these scaled values. `None` without a finite value.
    fn of(values: impl Iterator<Item = f64>) -> Option<Self> {
        let (low, high) = value_range(values)?;
        let pad = if high > low { (high - low) * AXIS_PADDING } else { low.abs().max(1.0) * 0.1 };
        Some(Self { low: low - pad, high: high + pad })
    }

    /// Returns the scale on which each of `count` options is in the middle of its part.
    fn of_options(count: usize) -> Self {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        Self { low: -0.5, high: f64::from(count) - 0.5 }
    }

    fn share(&self, value: f64) -> f64 {
        ((value - self.low) / (self.high - self.low)).clamp(0.0, 1.0)
    }
}

impl Figure {
    /// Renders the plot. Returns a sentence if it has no values.
    pub(super) fn render(&self) -> Markup {
        let marked = || self.marks.iter().flat_map(|marks| marks.points.iter());
        let drawn = || self.curves.iter().flat_map(|curve| curve.points.iter());
        let xs = marked().map(|(x, _)| *x).chain(drawn().map(|(x, _)| *x));
        let ys = marked().filter_map(|(_, y)| *y).chain(drawn().map(|(_, y)| *y));
        let horizontal = Scale::of(xs.map(|x| self.horizontal.scaled(x))).map(|scale| {
            let options = self.horizontal.options.len();
            if options == 0 { scale } else { Scale::of_options(options) }
        });
        let scales = horizontal.zip(Scale::of(ys.map(|y| self.vertical.scaled(y))));
        let Some((horizontal, vertical)) = scales else {
            return html! { p.hint { (self.title) ": no numeric result." } };
        };
        html! {
            figure.plot {
                div.plane {
                    svg aria-hidden="true" width=(LABEL_WIDTH) height=(PLOT_HEIGHT) { (self.vertical_labels(&vertical)) }
                    svg role="img" aria-label=(self.description()) width="100%" height=(PLOT_HEIGHT) {
                        (self.frame(&horizontal, &vertical))
                        svg x="0" y=(PLOT_TOP) width="100%" height=(PLOT_BOTTOM - PLOT_TOP) viewBox={ "0 0 " (PICTURE_SIZE) " " (PICTURE_SIZE) } preserveAspectRatio="none" {
                            @for (at, curve) in self.curves.iter().enumerate() {
                                polyline class={ "curve c" (at % 8) } points=(self.curve_corners(curve, &horizontal, &vertical)) vector-effect="non-scaling-stroke" {}
                            }
                        }
                        @for marks in &self.marks {
                            @for point in &marks.points { (self.mark(marks.shape, *point, &horizontal, &vertical)) }
                        }
                    }
                }
                (self.legend())
            }
        }
    }

    /// Returns the description for screen readers.
    fn description(&self) -> String {
        let counts = self.marks.iter().map(|marks| format!("{} {}", marks.count, marks.name));
        let counts = counts.collect::<Vec<_>>().join(", ");
        if counts.is_empty() { self.title.clone() } else { format!("{}: {counts}", self.title) }
    }

    /// Renders the labels of the vertical axis. They are beside the plot, where no mark covers them.
    fn vertical_labels(&self, vertical: &Scale) -> Markup {
        html! {
            @for (value, label) in self.vertical.labels(vertical.low, vertical.high) {
                @let y = format!("{:.1}", PLOT_BOTTOM - vertical.share(value) * (PLOT_BOTTOM - PLOT_TOP));
                text x=(LABEL_WIDTH - 8.0) y=(y) text-anchor="end" dominant-baseline="central" { (label) }
            }
        }
    }

    /// Renders the lines, and the labels and the name of the horizontal axis.
    fn frame(&self, horizontal: &Scale, vertical: &Scale) -> Markup {
        html! {
            @for (value, _) in self.vertical.labels(vertical.low, vertical.high) {
                @let y = format!("{:.1}", PLOT_BOTTOM - vertical.share(value) * (PLOT_BOTTOM - PLOT_TOP));
                line.rule x1="0" x2="100%" y1=(y) y2=(y) {}
            }
            @for (value, label) in self.horizontal.labels(horizontal.low, horizontal.high) {
                @let share = horizontal.share(value);
                @let side = if share < 0.08 { "start" } else if share > 0.92 { "end" } else { "middle" };
                text x=(format!("{:.2}%", share * 100.0)) y=(PLOT_BOTTOM + 16.0) text-anchor=(side) { (label) }
            }
            text x="50%" y=(PLOT_HEIGHT - 4.0) text-anchor="middle" { (self.horizontal.name) }
        }
    }

    fn curve_corners(&self, curve: &Curve, horizontal: &Scale, vertical: &Scale) -> String {
        let finite = curve.points.iter().filter(|(_, y)| y.is_finite());
        let corners = finite.map(|(x, y)| {
            let x = horizontal.share(self.horizontal.scaled(*x)) * PICTURE_SIZE;
            let y = (1.0 - vertical.share(self.vertical.scaled(*y))) * PICTURE_SIZE;
            format!("{x:.1},{y:.1}")
        });
        corners.collect::<Vec<_>>().join(" ")
    }

    fn mark(
        &self,
        shape: MarkShape,
        (x, y): (f64, Option<f64>),
        horizontal: &Scale,
        vertical: &Scale,
    ) -> Markup {
        let x = format!("{:.2}%", horizontal.share(self.horizontal.scaled(x)) * 100.0);
        let height = y.map_or(0.0, |y| vertical.share(self.vertical.scaled(y)));
        let y = format!("{:.1}", PLOT_BOTTOM - height * (PLOT_BOTTOM - PLOT_TOP));
        html! {
            @match shape {
                MarkShape::Succeeded => circle.succeeded cx=(x) cy=(y) r="3" {},
                MarkShape::Stopped => circle.stopped cx=(x) cy=(y) r="3" {},
                // A path has no percentages, so a cross is a character.
                MarkShape::Failed => text.failed x=(x) y=(y) text-anchor="middle" dominant-baseline="central" { "×" },
            }
        }
    }

    fn legend(&self) -> Markup {
        let class = |shape: MarkShape| match shape {
            MarkShape::Succeeded => "succeeded",
            MarkShape::Stopped => "stopped",
            MarkShape::Failed => "failed",
        };
        html! {
            @if self.marks.len() + self.curves.len() > 1 {
                figcaption {
                    @for marks in &self.marks {
                        span.key { span class={ "shape " (class(marks.shape)) } aria-hidden="true" { @if marks.shape == MarkShape::Failed { "×" } } (marks.count) " " (marks.name) }
                    }
                    @for (at, curve) in self.curves.iter().enumerate() {
                        span.key { span class={ "stroke c" (at % 8) } aria-hidden="true" {} (curve.name) }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parameter(log: bool, options: Option<Vec<Value>>) -> ParameterAxis {
        let name = "<x>".to_owned();
        ParameterAxis { name, r#type: "uniform", log, options, low: None, high: None, step: None }
    }

    #[test]
    fn a_figure_has_its_marks_its_curves_and_a_legend() {
        let marks = |name: &str, shape, points: Vec<_>| {
            let count = points.len();
            Marks { name: name.to_owned(), shape, points, count }
        };
        let figure = Figure {
            title: "History".to_owned(),
            horizontal: Axis::of_numbers("trial"),
            vertical: Axis::of_numbers("loss"),
            marks: vec![
                marks(
                    "succeeded",
                    MarkShape::Succeeded,
                    vec![(0.0, Some(1.0)), (2.0, Some(f64::MAX))],
                ),
                marks("failed", MarkShape::Failed, vec![(1.0, None)]),
            ],
            curves: vec![Curve { name: "best".to_owned(), points: vec![(0.0, 1.0), (2.0, 0.5)] }],
        };
        let shown = figure.render().into_string();
        assert!(shown.contains("aria-label=\"History: 2 succeeded, 1 failed\""), "{shown}");
        assert_eq!(shown.matches("<circle").count(), 2, "{shown}");
        assert_eq!(shown.matches("text class=\"failed\"").count(), 1, "{shown}");
        assert_eq!(shown.matches("<polyline").count(), 1, "{shown}");
        assert!(!shown.contains("NaN") && !shown.contains("style="), "{shown}");
        let none = Figure { marks: Vec::new(), curves: Vec::new(), ..figure }.render();
        assert!(none.into_string().contains("no numeric result"));
    }

    #[test]
    fn the_mark_of_zero_has_no_sign() {
        let labels = Axis::of_numbers("x").labels(-0.4, 2.1).into_iter();
        assert_eq!(
            labels.map(|(_, label)| label).collect::<Vec<_>>(),
            ["0", "0.5", "1", "1.5", "2"]
        );
    }

    #[test]
    fn a_parameter_has_the_scale_of_its_search_space() {
        let log = Axis::of_parameter(&parameter(true, None));
        assert_eq!(log.name, "<x>", "maud escapes the name");
        assert_eq!((log.place(&json!(0.01)), log.place(&json!(0))), (Some(0.01), None));
        let labels = |low: f64, high: f64| {
            let labels = log.labels(low, high).into_iter();
            labels.map(|(_, label)| label).collect::<Vec<_>>()
        };
        assert_eq!(labels(-4.2, -0.9), ["0.0001", "0.001", "0.01", "0.1"]);
        assert_eq!(labels(-1.0, -0.9), ["0.1", "0.12589"]);
        assert_eq!(labels(1.14, 2.77), ["20", "50", "100", "200", "500"]);
        let choice = Axis::of_parameter(&parameter(false, Some(vec![json!("relu"), json!(true)])));
        let places = [json!("relu"), json!(true), json!(3)].map(|value| choice.place(&value));
        assert_eq!(places, [Some(0.0), Some(1.0), None]);
        let labels = choice.labels(-0.1, 1.1);
        assert_eq!(labels, [(0.0, "relu".to_owned()), (1.0, "true".to_owned())]);
    }
}
