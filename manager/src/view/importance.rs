//! PURE: the share of the spread of the results that each parameter explains by itself.
//!
//! The trials are grouped by the parameter's value (numbers: into up to ten groups of equal size) and the
//! spread of the results' ranks between the groups is compared with that within them: epsilon squared of an
//! analysis of variance (Kelley 1935). Ranks, so that one wild result does not decide; epsilon, so that a
//! parameter with many values and no influence gets about 0. What two parameters do only together is not
//! seen. A parameter that some trials lack, a member of a nested choice, is judged among those that have it:
//! that they have it at all is what the choice explains.

use std::collections::BTreeMap;

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

/// The most groups that a numeric parameter is cut into.
const GROUPS: usize = 10;

/// Fewer results say nothing.
const LEAST: usize = 8;

/// A parameter and what it explains.
#[derive(Debug, Clone, PartialEq, Serialize, ToSchema)]
pub struct Importance {
    /// The parameter's name; members of nested choices as `outer.inner`.
    pub name: String,
    /// Share of the spread of the results that it explains by itself, 0 to 1.
    pub share: f64,
}

/// The importance of each parameter, the largest first. Empty where there are too few results.
pub fn importance(results: &[(Vec<(String, &Value)>, f64)]) -> Vec<Importance> {
    let results: Vec<_> = results.iter().filter(|(_, result)| !result.is_nan()).collect();
    if results.len() < LEAST {
        return Vec::new();
    }
    let numbers: Vec<f64> = results.iter().map(|(_, result)| *result).collect();
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
            let (values, results): (Vec<_>, Vec<_>) = column
                .into_iter()
                .zip(&numbers)
                .filter_map(|(value, n)| Some((value?, *n)))
                .unzip();
            let share = explained(&groups(&values), &ranks(&results));
            Importance {
                name: name.to_owned(),
                share: if results.len() < LEAST { 0.0 } else { share },
            }
        })
        .collect();
    shares.sort_by(|a, b| b.share.total_cmp(&a.share));
    shares
}

/// The rank of each number, equals sharing the mean of theirs.
fn ranks(numbers: &[f64]) -> Vec<f64> {
    let mut order: Vec<usize> = (0..numbers.len()).collect();
    order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]));
    let mut ranks = vec![0.0; numbers.len()];
    let mut at = 0;
    while at < order.len() {
        let equal = order[at..]
            .iter()
            .take_while(|i| numbers[**i].total_cmp(&numbers[order[at]]).is_eq())
            .count();
        for i in &order[at..at + equal] {
            ranks[*i] = real(at) + real(equal - 1) / 2.0;
        }
        at += equal;
    }
    ranks
}

/// Which group each trial belongs to.
fn groups(column: &[&Value]) -> Vec<usize> {
    let numbers: Option<Vec<f64>> = column.iter().map(|value| value.as_f64()).collect();
    if let Some(numbers) = numbers {
        let mut distinct = numbers.clone();
        distinct.sort_by(f64::total_cmp);
        distinct.dedup();
        if distinct.len() > GROUPS {
            let wanted = GROUPS.min(numbers.len() / 4).max(2);
            let places = ranks(&numbers);
            // A rank is at most the number of trials: the quotient is below `wanted`.
            let width = real(numbers.len()) / real(wanted);
            let group =
                |place: f64| (1..wanted).take_while(|edge| place >= real(*edge) * width).count();
            return places.into_iter().map(group).collect();
        }
    }
    let mut known = BTreeMap::new();
    column
        .iter()
        .map(|value| {
            let next = known.len();
            *known.entry(value.to_string()).or_insert(next)
        })
        .collect()
}

/// Epsilon squared of the ranks over the groups.
fn explained(groups: &[usize], ranks: &[f64]) -> f64 {
    let mut sums: BTreeMap<usize, (f64, f64)> = BTreeMap::new();
    for (group, rank) in groups.iter().zip(ranks) {
        let (count, sum) = sums.entry(*group).or_default();
        (*count, *sum) = (*count + 1.0, *sum + rank);
    }
    let (n, k) = (real(ranks.len()), real(sums.len()));
    if sums.len() < 2 || n <= k {
        return 0.0;
    }
    let mean = ranks.iter().sum::<f64>() / n;
    let total: f64 = ranks.iter().map(|rank| (rank - mean).powi(2)).sum();
    let between: f64 = sums.values().map(|(count, sum)| count * (sum / count - mean).powi(2)).sum();
    if total <= 0.0 {
        return 0.0;
    }
    let within = (total - between) / (n - k);
    ((between - (k - 1.0) * within) / total).clamp(0.0, 1.0)
}

fn real(count: usize) -> f64 {
    u32::try_from(count).map_or(f64::MAX, f64::from)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    #[test]
    fn what_decides_the_result_comes_first() {
        // A fixed scramble stands in for chance.
        let noise = |i: u64| json!((i.wrapping_mul(2_654_435_761) % 1000));
        let trials: Vec<(Value, f64)> = (0..200_u32)
            .map(|i| {
                let lr = f64::from(i % 40) / 40.0;
                let kind = if i % 3 == 0 { "a" } else { "b" };
                let result = (lr - 0.5).powi(2) + if i % 3 == 0 { 0.05 } else { 0.0 };
                (json!({"noise": noise(i.into()), "kind": kind, "lr": lr, "same": 1}), result)
            })
            .collect();
        let results: Vec<_> =
            trials.iter().map(|(value, result)| (super::super::flat(value), *result)).collect();
        let found = importance(&results);
        let names: Vec<_> = found.iter().map(|one| one.name.as_str()).collect();
        assert_eq!(names[..2], ["lr", "kind"], "{found:?}");
        let share = |name| found.iter().find(|one| one.name == name).unwrap().share;
        assert!(share("lr") > 0.5 && share("noise") < 0.1 && share("same") == 0.0, "{found:?}");
        assert_eq!(importance(&results[..7]), []);
    }

    #[test]
    fn a_member_of_a_choice_explains_nothing_of_the_choice() {
        let trials: Vec<(Value, f64)> = (0..120_u32)
            .map(|i| {
                let noise = f64::from(i.wrapping_mul(2_654_435_761) % 1000) / 1000.0;
                let kind = if i % 2 == 0 {
                    json!({"_name": "a", "idle": noise})
                } else {
                    json!({"_name": "b", "other": noise})
                };
                (json!({ "kind": kind }), f64::from(i % 2) + f64::from(i % 7) / 10.0)
            })
            .collect();
        let results: Vec<_> =
            trials.iter().map(|(value, result)| (super::super::flat(value), *result)).collect();
        let found = importance(&results);
        assert_eq!(found[0].name, "kind._name", "{found:?}");
        assert!(found[0].share > 0.6 && found[1].share < 0.2, "{found:?}");
    }

    proptest! {
        #[test]
        fn shares_are_shares(rows in prop::collection::vec((any::<f64>(), 0_i64..5, any::<f64>()), 0..60)) {
            let rows: Vec<_> = rows.into_iter().map(|(x, c, y)| (json!({"x": x, "c": c}), y)).collect();
            let rows: Vec<_> = rows.iter().map(|(v, y)| (super::super::flat(v), *y)).collect();
            for one in importance(&rows) {
                prop_assert!((0.0..=1.0).contains(&one.share), "{one:?}");
            }
        }
    }
}
