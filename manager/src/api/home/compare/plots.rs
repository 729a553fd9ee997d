//! PURE: the plots of a comparison: data for the script, and fixed plots without one.

use maud::{Markup, html};
use serde_json::{Value, json};

use super::experiment::{ComparedExperiment, result_name};
use crate::api::portal::display;
use crate::api::portal::plot::{StepCurve, plot};

/// Returns the data that the script needs to fetch and draw the experiments.
pub(super) fn script_data(columns: &[ComparedExperiment]) -> Value {
    let column = |column: &ComparedExperiment| {
        let ComparedExperiment { entry, name, begun_ms, until_ms, .. } = column;
        json!({
            "id": entry.summary.id, "name": name, "mode": entry.summary.optimize_mode, "metric": result_name(column),
            "begun": begun_ms, "until": until_ms, "runs": entry.is_running,
        })
    };
    columns.iter().map(column).collect()
}

/// Renders the plots for browsers without JavaScript.
pub(super) fn static_plots(columns: &[ComparedExperiment]) -> Markup {
    let curves = |of: fn(&ComparedExperiment) -> &StepCurve, unit: f64| -> Vec<StepCurve> {
        let named = |column: &ComparedExperiment| {
            let StepCurve { points, until, .. } = of(column);
            let points = points.iter().map(|(place, value)| (place / unit, *value)).collect();
            StepCurve { name: column.name.clone(), points, until: until / unit }
        };
        columns.iter().map(named).collect()
    };
    let (unit, in_unit) = time_unit(columns.iter().map(|column| column.over_time.until));
    html! {
        div.plots {
            (plot("Best so far over trials", "trial", &curves(|column| &column.over_trials, 1.0), display::number))
            (plot("Best so far over time", &format!("{in_unit} since the start"), &curves(|column| &column.over_time, unit), display::rate))
        }
    }
}

/// Returns the unit of a time axis up to the longest of these times, in milliseconds, and its name.
fn time_unit(times: impl Iterator<Item = f64>) -> (f64, &'static str) {
    const TIME_UNITS: [(f64, &str); 4] =
        [(86_400e3, "days"), (3600e3, "hours"), (60e3, "minutes"), (1e3, "seconds")];
    let longest = times.fold(0.0, f64::max);
    TIME_UNITS.into_iter().find(|(unit, _)| longest >= 2.0 * unit).unwrap_or(TIME_UNITS[3])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_axis_has_the_largest_unit_that_gives_several_ticks() {
        let table = [
            (0.0, "seconds"),
            (90e3, "seconds"),
            (300e3, "minutes"),
            (8e6, "hours"),
            (3e8, "days"),
        ];
        for (longest, expected) in table {
            assert_eq!(time_unit([1.0, longest].into_iter()).1, expected, "{longest}");
        }
    }
}
