//! The median stopping rule (Golovin and others, "Google Vizier", 2017), after NNI 3.0's
//! `nni/algorithms/hpo/medianstop_assessor.py`. Each successful trial has an average of its results up to the same
//! step. A trial is stopped when its best result so far is worse than the median of these averages.

use trial_protocol::Direction;

use super::{Assessment, Assessor, Bounds, Error};
use crate::search::class_args::Arguments;

/// The maximum number of steps for which bounds are returned.
const MAX_BOUNDS: usize = 1000;

/// NNI's `Medianstop`.
#[derive(Debug)]
pub(super) struct Medianstop {
    direction: Direction,
    /// The number of results before which a trial is not judged.
    start_step: usize,
    /// For each step, the averages of the successful trials up to that step, in rising order.
    averages: Vec<Vec<f64>>,
}

impl Medianstop {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>) -> Result<Self, Error> {
        let direction = arguments.optimize_mode()?.unwrap_or(Direction::Maximize);
        let start_step = arguments.integer("start_step", 0..=9999)?.unwrap_or(0);
        let start_step = usize::try_from(start_step).unwrap_or(usize::MAX);
        Ok(Self { direction, start_step, averages: Vec::new() })
    }

    /// Returns a result as a goodness, where larger is better. NaN is the worst.
    fn goodness(&self, result: f64) -> f64 {
        let goodness = match self.direction {
            Direction::Maximize => result,
            Direction::Minimize => -result,
        };
        if goodness.is_nan() { f64::NEG_INFINITY } else { goodness }
    }
}

impl Assessor for Medianstop {
    fn assess(&mut self, _trial: &str, history: &[f64]) -> Assessment {
        let step = history.len();
        if step == 0 || step < self.start_step {
            return Assessment::Good;
        }
        let Some(averages) = self.averages.get(step - 1).filter(|averages| !averages.is_empty())
        else {
            return Assessment::Good;
        };
        // Of an even number of averages, the worse of the two in the middle.
        let median = match self.direction {
            Direction::Maximize => averages[(averages.len() - 1) / 2],
            Direction::Minimize => averages[averages.len() / 2],
        };
        let best =
            history.iter().copied().max_by(|a, b| self.goodness(*a).total_cmp(&self.goodness(*b)));
        match best {
            Some(best) if self.goodness(best) < self.goodness(median) => Assessment::Bad {
                reason: format!(
                    "its best of {step} results, {best}, is worse than the median {median} of {} finished trials",
                    averages.len()
                ),
            },
            _ => Assessment::Good,
        }
    }

    fn record_end(&mut self, _trial: &str, history: &[f64], success: bool) {
        if !success {
            return;
        }
        let (mut sum, mut count) = (0.0, 0.0);
        for (step, result) in history.iter().enumerate() {
            sum += result;
            count += 1.0;
            let average: f64 = sum / count;
            if average.is_nan() {
                return; // All later averages are NaN, too.
            }
            if self.averages.len() <= step {
                self.averages.push(Vec::new());
            }
            // The trial has an average for every earlier step, so the entry for this step exists now.
            let sorted = &mut self.averages[step];
            sorted.insert(sorted.partition_point(|other| *other < average), average);
        }
    }

    /// Returns the medians for the case that the `others` trials have the worst possible results.
    fn bounds(&self, results: usize, others: usize) -> Option<Bounds> {
        let from = self.start_step.max(results + 1);
        let steps = self.averages.get(from - 1..).unwrap_or_default().iter().take(MAX_BOUNDS);
        let bounds = steps.map_while(|averages| {
            let all = averages.len() + others;
            let at = match self.direction {
                Direction::Maximize => (all.checked_sub(1)? / 2).checked_sub(others)?,
                Direction::Minimize => all / 2,
            };
            averages.get(at).copied().filter(|bound| bound.is_finite())
        });
        let bounds: Vec<_> = bounds.collect();
        (!bounds.is_empty()).then_some(Bounds { direction: self.direction, from, bounds })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::{AssessorSpec, build};
    use super::*;

    fn assessor(class_args: &Value) -> Result<Box<dyn Assessor>, Error> {
        let class_args = class_args.as_object().unwrap().clone();
        AssessorSpec::new("medianstop", class_args).and_then(|spec| build(&spec))
    }

    fn numbers(list: &Value) -> Vec<f64> {
        list.as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
    }

    #[test]
    fn trials_are_judged_as_in_nni() {
        let stories: Vec<Value> =
            serde_json::from_str(include_str!("../../../fixtures/tuner/nni_medianstop.json"))
                .unwrap();
        for story in stories {
            let (direction, start) = (&story["optimize_mode"], &story["start_step"]);
            let mut assessor =
                assessor(&json!({"optimize_mode": direction, "start_step": start})).unwrap();
            let mut histories: HashMap<u64, Vec<f64>> = HashMap::new();
            for event in story["events"].as_array().unwrap() {
                let trial = event[1].as_u64().unwrap();
                if event[0] == "ended" {
                    assessor.record_end("t", &histories[&trial], event[2].as_bool().unwrap());
                    continue;
                }
                let history = numbers(&event[2]);
                let assessment = assessor.assess("t", &history);
                assert_eq!(
                    assessment == Assessment::Good,
                    event[3],
                    "{direction} {event}: {assessment:?}"
                );
                histories.insert(trial, history);
            }
        }
    }

    #[test]
    fn a_bad_judgement_has_a_reason() {
        let mut assessor = assessor(&json!({})).unwrap();
        assessor.record_end("t", &[0.5, 0.7], true);
        assessor.record_end("t", &[0.1, 0.1], false);
        let reason =
            "its best of 2 results, 0.4, is worse than the median 0.6 of 1 finished trials";
        let expected = Assessment::Bad { reason: reason.to_owned() };
        assert_eq!(assessor.assess("t", &[0.4, f64::NAN]), expected);
        assert_eq!(assessor.assess("t", &[0.4, 0.6]), Assessment::Good);
        // No other trial has reached this step.
        assert_eq!(assessor.assess("t", &[0.1, 0.1, 0.1]), Assessment::Good);
        assert_eq!(assessor.assess("t", &[]), Assessment::Good);
        // A history with only NaN is worse than everything.
        assert_ne!(assessor.assess("t", &[f64::NAN]), Assessment::Good);
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let refused = |args| assessor(&args).unwrap_err().to_string();
        assert_eq!(
            refused(json!({"start_stp": 1})),
            "assessor.classArgs.start_stp: is not an argument of Medianstop; did you mean `start_step`? \
             Allowed: optimize_mode, start_step"
        );
        assert_eq!(
            refused(json!({"start_step": -1})),
            "assessor.classArgs.start_step: expected an integer of at least 0 and at most 9999, found -1"
        );
    }

    /// Returns whether an agent with these bounds stops a trial after these results.
    fn is_stopped_by(bounds: &Bounds, history: &[f64]) -> bool {
        let at = history.len().checked_sub(bounds.from).and_then(|at| bounds.bounds.get(at));
        let best = match bounds.direction {
            Direction::Maximize => history.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            Direction::Minimize => history.iter().copied().fold(f64::INFINITY, f64::min),
        };
        at.is_some_and(|bound| match bounds.direction {
            Direction::Maximize => best < *bound,
            Direction::Minimize => best > *bound,
        })
    }

    fn histories(most: usize) -> impl Strategy<Value = Vec<Vec<f64>>> {
        // Few different numbers, so that equal numbers occur.
        let number = prop_oneof![9 => (0..10_i8).prop_map(f64::from), 1 => Just(f64::NAN)];
        prop::collection::vec(prop::collection::vec(number, 0..6), 0..most)
    }

    proptest! {
        #[test]
        fn bounds_stop_only_trials_that_the_assessor_stops(
            before in histories(12), after in histories(4), more in 0..3_usize, maximize: bool,
            start_step in 0..4, judged in histories(2),
        ) {
            let direction = if maximize { "maximize" } else { "minimize" };
            let args = json!({"optimize_mode": direction, "start_step": start_step});
            let mut assessor = assessor(&args).unwrap();
            for history in &before {
                assessor.record_end("t", history, true);
            }
            let others = after.len() + more;
            let histories = judged.iter().flat_map(|all| (0..=all.len()).map(|to| &all[..to]));
            let left: Vec<_> = histories
                .clone()
                .map(|history| assessor.bounds(history.len().saturating_sub(1), others))
                .collect();
            for history in &after {
                assessor.record_end("t", history, true);
            }
            for (history, bounds) in histories.zip(left) {
                if bounds.is_some_and(|bounds| is_stopped_by(&bounds, history)) {
                    prop_assert_ne!(assessor.assess("t", history), Assessment::Good);
                }
            }
        }
    }

    #[test]
    fn bounds_are_medians_that_allow_for_the_other_trials() {
        let bounds = |direction, results, others| {
            let mut assessor =
                assessor(&json!({"optimize_mode": direction, "start_step": 2})).unwrap();
            for average in [1.0, 2.0, 3.0, 4.0, 5.0] {
                assessor.record_end("t", &[average; 3], true);
            }
            assessor.bounds(results, others).map(|found| (found.from, found.bounds))
        };
        #[rustfmt::skip]
        let table = [
            ("the medians",             "maximize", 0, 0, Some((2, vec![3.0, 3.0]))),
            ("of what is left",         "maximize", 2, 0, Some((3, vec![3.0]))),
            ("with room for two",       "maximize", 2, 2, Some((3, vec![2.0]))),
            ("with room for four",      "maximize", 2, 4, Some((3, vec![1.0]))),
            ("more than are known",     "maximize", 2, 5, None),
            ("no trial got so far",     "maximize", 3, 0, None),
            ("small is good",           "minimize", 2, 0, Some((3, vec![3.0]))),
            ("and there is room",       "minimize", 2, 3, Some((3, vec![5.0]))),
            ("and then none",           "minimize", 2, 5, None),
        ];
        for (label, direction, results, others, expected) in table {
            assert_eq!(bounds(direction, results, others), expected, "{label}");
        }
    }
}
