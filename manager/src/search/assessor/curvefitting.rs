//! Curve fitting (Domhan and others, "Speeding up Automatic Hyperparameter Optimization of Deep Neural Networks by
//! Extrapolation of Learning Curves", 2015), after NNI 3.0's `nni/algorithms/hpo/curvefitting_assessor`. It fits
//! twelve families of curves to the results so far. If enough curves agree, it stops a trial whose forecast does not
//! reach a share of the best final result.
//!
//! Larger results must be better. There are three differences from NNI:
//!
//! * The weights of the curves are equal. NNI draws weights from an unseeded generator; they differ from equal weights
//!   by less than a hundredth.
//! * Each fit starts from the same values. NNI's start depends on earlier fits.
//! * The best final result is that of the ended trials. NNI takes the results of the trial that it judged last.

mod curves;

use self::curves::{CURVE_FAMILIES, FittedCurve};
use super::{Assessment, Assessor, Error};
use crate::search::class_args::Arguments;

/// The minimum number of curves for an assessment.
const MIN_AGREEING_CURVES: usize = 4;

/// NNI's `Curvefitting`.
#[derive(Debug)]
pub(super) struct Curvefitting {
    /// `epoch_num`: the step to forecast.
    target: u32,
    /// The number of results before which a trial is not judged.
    start_step: usize,
    /// The share of the best result that a trial must be able to reach.
    threshold: f64,
    /// The number of steps between two assessments of a trial.
    assessment_gap: usize,
    /// The best last result of the successful trials.
    best_success: Option<f64>,
}

impl Curvefitting {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>) -> Result<Self, Error> {
        let mut integer = |name, least, plain| {
            arguments.integer(name, least..=9999).map(|found| found.unwrap_or(plain))
        };
        let target = integer("epoch_num", 1, 20)?;
        let start_step = integer("start_step", 0, 6)?;
        let gap = integer("gap", 1, 1)?;
        let threshold = arguments.number("threshold", 0.0)?.unwrap_or(0.95);
        Ok(Self {
            target: u32::try_from(target).unwrap_or(u32::MAX),
            start_step: usize::try_from(start_step).unwrap_or(usize::MAX),
            threshold,
            assessment_gap: usize::try_from(gap).unwrap_or(usize::MAX),
            best_success: None,
        })
    }
}

impl Assessor for Curvefitting {
    fn assess(&mut self, _trial: &str, history: &[f64]) -> Assessment {
        let Some(best) = self.best_success else { return Assessment::Good };
        let due = history
            .len()
            .checked_sub(self.start_step)
            .is_some_and(|n| n % self.assessment_gap == 0);
        if !due {
            return Assessment::Good;
        }
        let Some(Forecast { value, curves }) = forecast_result(history, self.target) else {
            return Assessment::Good;
        };
        let (wanted, step) = (best * self.threshold, self.target);
        if value > wanted {
            return Assessment::Good;
        }
        let share = self.threshold;
        Assessment::Bad {
            reason: format!(
                "its forecast for step {step} is {value:.6} ({curves}), not above {wanted:.6}, {share} of the best result {best}"
            ),
        }
    }

    fn record_end(&mut self, _trial: &str, history: &[f64], success: bool) {
        if let Some(last) = history.last().filter(|last| success && last.is_finite()) {
            self.best_success = Some(self.best_success.map_or(*last, |best| best.max(*last)));
        }
    }
}

/// The forecast of the agreeing curves for a step.
#[derive(Debug)]
struct Forecast {
    value: f64,
    /// The names of the curves.
    curves: String,
}

/// Returns the forecast for step `target`, or `None` if too few curves agree.
fn forecast_result(history: &[f64], target: u32) -> Option<Forecast> {
    if history.is_empty() || history.iter().any(|result| !result.is_finite()) {
        return None;
    }
    let curves = agreeing_curves(history, target);
    if curves.len() < MIN_AGREEING_CURVES {
        return None;
    }
    let values: Vec<f64> = curves.iter().map(|curve| curve.value_at(f64::from(target))).collect();
    let names: Vec<&str> = curves.iter().map(|curve| curve.family.name).collect();
    Some(Forecast { value: mean(&values), curves: names.join(", ") })
}

/// Returns the fitted curves that are plausible for the history and at the target step.
fn agreeing_curves(history: &[f64], target: u32) -> Vec<FittedCurve> {
    let steps = || (1..).zip(history).map(|(step, result): (u32, &f64)| (f64::from(step), *result));
    // As in NNI, a curve is dropped if its squared errors exceed those of predicting twice the mean.
    let limit = mean(history) * history.iter().sum::<f64>();
    let mut fitted: Vec<FittedCurve> =
        CURVE_FAMILIES.iter().map(|family| FittedCurve::fit_to(family, history)).collect();
    fitted
        .retain(|curve| steps().map(|(x, y)| (curve.value_at(x) - y).powi(2)).sum::<f64>() < limit);
    let last = steps().last().map_or(1.0, |(step, _)| step);
    let mut here: Vec<f64> = fitted.iter().map(|curve| curve.value_at(last)).collect();
    here.sort_by(f64::total_cmp);
    let Some(middle) = median(&here) else { return Vec::new() };
    let average = mean(&here);
    let variance: Vec<f64> = here.iter().map(|y| (y - average).powi(2)).collect();
    let margin = last / 10.0 * mean(&variance).sqrt();
    fitted.retain(|curve| (curve.value_at(f64::from(target)) - middle).abs() < margin);
    fitted
}

fn mean(values: &[f64]) -> f64 {
    let (sum, count) = values.iter().fold((0.0, 0.0), |(sum, count), y| (sum + y, count + 1.0));
    sum / count
}

/// Returns the median of values in rising order.
fn median(sorted: &[f64]) -> Option<f64> {
    let upper = *sorted.get(sorted.len() / 2)?;
    match sorted.len() % 2 {
        0 => Some(f64::midpoint(sorted[sorted.len() / 2 - 1], upper)),
        _ => Some(upper),
    }
}

#[cfg(test)]
mod tests;
