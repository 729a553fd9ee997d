//! PURE: the importance of each parameter for reaching the best tenth of the results, by PED-ANOVA (Watanabe, Bansal,
//! Hutter: PED-ANOVA, IJCAI 2023, with the treatment of members of nested choices of Conditional PED-ANOVA, 2026).
//!
//! For each parameter, two densities are compared on a grid of up to 50 places: that of the best tenth of the trials,
//! and that of all trials. The Pearson divergence between the two measures the effect of the parameter. Each
//! divergence is divided by the sum over all parameters. The densities are sums of Gaussians with Scott's bandwidth,
//! as in Optuna's `PedAnovaImportanceEvaluator`, with which a test compares the numbers. Only the order of the
//! results counts, so a single outlier does not decide.

use std::collections::{BTreeMap, HashMap};
use std::f64::consts::SQRT_2;

use serde::Serialize;
use serde_json::Value;
use trial_protocol::Direction;
use utoipa::ToSchema;

use super::space::ParameterAxis;

/// The name of the method, for the API and the pages.
pub const IMPORTANCE_METHOD: &str = "PED-ANOVA";

/// The share of the trials that counts as the best.
const BEST_SHARE: f64 = 0.1;

/// The maximum number of places of a numeric parameter's grid.
const GRID_STEPS: usize = 50;

/// The minimum number of results for an importance.
pub const MIN_RESULTS: usize = 8;

/// The minimum of a density, so that the quotient of two densities exists.
const MIN_DENSITY: f64 = 1e-12;

/// The minimum width of a Gaussian, in places of the grid: nine tenths of it are within its own place.
const MIN_BANDWIDTH: f64 = 0.5 / 1.64;

/// A parameter and its importance.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Importance {
    /// The parameter's name. A member of a nested choice is `outer.inner`.
    pub name: String,
    /// The parameter's share of the importance of all parameters, from 0 to 1, by PED-ANOVA. All shares add up to 1.
    pub share: f64,
}

/// Returns the importance of each parameter, the largest first. Empty if there are too few results, or if they do not
/// distinguish the parameters.
pub fn importance(
    results: &[(Vec<(String, &Value)>, f64)],
    axes: &[ParameterAxis],
    direction: Direction,
) -> Vec<Importance> {
    let results: Vec<_> = results.iter().filter(|(_, result)| result.is_finite()).collect();
    if results.len() < MIN_RESULTS {
        return Vec::new();
    }
    let losses: Vec<f64> = results
        .iter()
        .map(|(_, result)| if direction == Direction::Maximize { -result } else { *result })
        .collect();
    let is_best = mark_best(&losses);
    let mut columns: BTreeMap<&str, Vec<Option<&Value>>> = BTreeMap::new();
    for (at, (parameters, _)) in results.iter().enumerate() {
        for (name, value) in parameters {
            let column = columns.entry(name).or_insert_with(|| vec![None; results.len()]);
            column[at] = Some(value);
        }
    }
    let mut shares: Vec<_> = columns
        .into_iter()
        .map(|(name, column)| {
            let own = axes.iter().find(|axis| axis.name == name);
            Importance { name: name.to_owned(), share: divergence(&column, &is_best, own) }
        })
        .collect();
    let sum: f64 = shares.iter().map(|one| one.share).sum();
    // A smaller sum is only the rounding error of equal densities.
    if sum < 1e-9 {
        return Vec::new();
    }
    for one in &mut shares {
        one.share /= sum;
    }
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

/// Marks the trials of the best tenth, including those that equal the last of them.
fn mark_best(losses: &[f64]) -> Vec<bool> {
    let mut sorted = losses.to_vec();
    sorted.sort_by(f64::total_cmp);
    let ranks = (1..=sorted.len()).zip(&sorted);
    let wanted = BEST_SHARE * to_f64(sorted.len());
    let cut = ranks.filter(|(rank, _)| to_f64(*rank) >= wanted).map(|(_, loss)| *loss).next();
    losses.iter().map(|loss| cut.is_some_and(|cut| *loss <= cut)).collect()
}

/// Returns the Pearson divergence between a parameter's density among the best trials and among all trials. A
/// parameter that some trials lack is compared among the trials that have it, and weighted by their share.
fn divergence(column: &[Option<&Value>], is_best: &[bool], axis: Option<&ParameterAxis>) -> f64 {
    let present: Vec<(&Value, bool)> =
        column.iter().zip(is_best).filter_map(|(value, best)| Some(((*value)?, *best))).collect();
    let values: Vec<&Value> = present.iter().map(|(value, _)| *value).collect();
    let Some(grid) = Grid::of(&values, axis) else { return 0.0 };
    let mut all = vec![0_u32; grid.size];
    let mut best = all.clone();
    for (place, (_, is_best)) in grid.places.iter().zip(&present) {
        let Some(place) = *place else { continue };
        all[place] += 1;
        best[place] += u32::from(*is_best);
    }
    let total = |counts: &[u32]| counts.iter().map(|count| f64::from(*count)).sum::<f64>();
    let (of_all, of_best) = (total(&all), total(&best));
    if of_all < 2.0 || of_best < 1.0 {
        return 0.0;
    }
    let best_share = of_best / to_f64(is_best.iter().filter(|best| **best).count());
    let all_share = of_all / to_f64(is_best.len());
    let (all, best) = (grid.density(&all), grid.density(&best));
    let spread: f64 =
        all.iter().zip(&best).map(|(all, best)| all * (best / all - 1.0).powi(2)).sum();
    best_share * best_share / all_share * spread
}

/// The grid on which a parameter's values are counted.
struct Grid {
    size: usize,
    is_categorical: bool,
    /// The place of each value. `None` if its type differs from the axis.
    places: Vec<Option<usize>>,
}

impl Grid {
    /// Returns the grid of a parameter. `None` if all values are equal, or there is no value.
    fn of(values: &[&Value], axis: Option<&ParameterAxis>) -> Option<Self> {
        let options = axis.and_then(|axis| axis.options.as_deref());
        let numbers: Vec<Option<f64>> = values.iter().map(|value| value.as_f64()).collect();
        let is_numeric = match (axis, options) {
            (_, Some(_)) => false,
            (Some(_), None) => true,
            (None, None) => numbers.iter().all(Option::is_some),
        };
        if is_numeric { Self::numeric(&numbers, axis) } else { Self::categorical(values, options) }
    }

    fn numeric(numbers: &[Option<f64>], axis: Option<&ParameterAxis>) -> Option<Self> {
        let log = axis.is_some_and(|axis| axis.log);
        let scale = |value: f64| if log { value.ln() } else { value };
        let scaled =
            || numbers.iter().flatten().map(|value| scale(*value)).filter(|x| x.is_finite());
        let stated = |bound: Option<f64>| bound.map(scale).filter(|x| x.is_finite());
        let low = axis.and_then(|axis| stated(axis.low)).unwrap_or(scaled().reduce(f64::min)?);
        let high = axis.and_then(|axis| stated(axis.high)).unwrap_or(scaled().reduce(f64::max)?);
        let span = high - low;
        if !(span > 0.0 && span.is_finite()) {
            return None;
        }
        let steps = axis.and_then(|axis| axis.step).filter(|step| !log && *step > 0.0);
        let size = steps.map_or(GRID_STEPS, |step| {
            (1..GRID_STEPS)
                .find(|size| to_f64(*size) >= (span / step).round())
                .map_or(GRID_STEPS, |n| n + 1)
        });
        let width = span / to_f64(size - 1);
        // A value between two places belongs to the lower one.
        let place = |value: f64| {
            let x = scale(value);
            let upper = (1..size).find(|place| (x - low) / width - 0.5 <= to_f64(*place) - 1.0);
            x.is_finite().then(|| upper.map_or(size - 1, |upper| upper - 1))
        };
        let places = numbers.iter().map(|value| place((*value)?)).collect();
        Some(Self { size, is_categorical: false, places })
    }

    fn categorical(values: &[&Value], options: Option<&[Value]>) -> Option<Self> {
        let mut known: HashMap<String, usize> = HashMap::new();
        for option in options.unwrap_or_default() {
            let next = known.len();
            known.entry(option.to_string()).or_insert(next);
        }
        let places = values
            .iter()
            .map(|value| {
                let next = known.len();
                Some(*known.entry(value.to_string()).or_insert(next))
            })
            .collect();
        let size = known.len();
        (size > 1).then_some(Self { size, is_categorical: true, places })
    }

    /// Returns the density at each place, including a prior of one trial.
    fn density(&self, counts: &[u32]) -> Vec<f64> {
        let kernels: Vec<(f64, f64)> = (0_u32..)
            .zip(counts)
            .filter(|(_, count)| **count > 0)
            .map(|(place, count)| (f64::from(place), f64::from(*count)))
            .collect();
        let density = if self.is_categorical {
            categorical_density(counts, to_f64(kernels.len() + 1))
        } else {
            numeric_density(&kernels, to_f64(self.size - 1))
        };
        density.into_iter().map(|value| value + MIN_DENSITY).collect()
    }
}

/// Returns the mixture of a distribution around each category that occurs, and a uniform one.
fn categorical_density(counts: &[u32], kernels: f64) -> Vec<f64> {
    let categories = to_f64(counts.len());
    let total: f64 = counts.iter().map(|count| f64::from(*count)).sum();
    let elsewhere = 1.0 / kernels / (categories / kernels + 1.0);
    let own = (1.0 / kernels + 1.0) / (categories / kernels + 1.0);
    let at = |count: f64| count * own + (total - count) * elsewhere + 1.0 / categories;
    counts.iter().map(|count| at(f64::from(*count)) / (total + 1.0)).collect()
}

/// Returns the mixture of a Gaussian around each weighted place, and a wide one, cut off outside the places 0 to
/// `last`.
fn numeric_density(kernels: &[(f64, f64)], last: f64) -> Vec<f64> {
    let total: f64 = kernels.iter().map(|(_, weight)| weight).sum();
    let bandwidth = bandwidth(kernels, total);
    let wide = (last / 2.0, 1.0, last + 1.0);
    let parts: Vec<(f64, f64, f64)> = kernels
        .iter()
        .map(|(mu, weight)| (*mu, *weight, bandwidth))
        .chain([wide])
        .map(|(mu, weight, sigma)| {
            let within = normal_mass((-0.5 - mu) / sigma, (last + 0.5 - mu) / sigma);
            (mu, weight / within / (total + 1.0), sigma)
        })
        .collect();
    let places = std::iter::successors(Some(0.0), |at| Some(at + 1.0)).take_while(|at| *at <= last);
    places
        .map(|at: f64| {
            let part = |(mu, weight, sigma): &(f64, f64, f64)| {
                weight * normal_mass((at - 0.5 - mu) / sigma, (at + 0.5 - mu) / sigma)
            };
            parts.iter().map(part).sum()
        })
        .collect()
}

/// Returns Scott's bandwidth (Scott 1992), from the lesser of the deviation and the distance of the quartiles.
fn bandwidth(kernels: &[(f64, f64)], total: f64) -> f64 {
    let mean = kernels.iter().map(|(at, weight)| at * weight).sum::<f64>() / total;
    let squares = kernels.iter().map(|(at, weight)| weight * (at - mean).powi(2)).sum::<f64>();
    let deviation = (squares / (total - 1.0).max(1.0)).sqrt();
    let mut reached = 0.0;
    let (mut lower, mut upper) = (None, None);
    for (at, weight) in kernels {
        reached += weight;
        if reached >= (total / 4.0).floor() {
            lower = lower.or(Some(*at));
        }
        if reached > (total * 3.0 / 4.0).floor() {
            upper = upper.or(Some(*at));
        }
    }
    let last = kernels.last().map(|(at, _)| *at);
    let quartiles = upper.or(last).zip(lower).map_or(0.0, |(upper, lower)| upper - lower);
    (1.059 * (quartiles / 1.34).min(deviation) * total.powf(-0.2)).max(MIN_BANDWIDTH)
}

/// Returns the share of the standard normal distribution between two places, exact in both tails.
fn normal_mass(from: f64, to: f64) -> f64 {
    let below = |z: f64| libm::erfc(-z / SQRT_2) / 2.0;
    if from > 0.0 { below(-from) - below(-to) } else { below(to) - below(from) }
}

fn to_f64(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests;
