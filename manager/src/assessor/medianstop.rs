//! The median stopping rule (Golovin and others, "Google Vizier", 2017), after NNI 3.0's
//! `nni/algorithms/hpo/medianstop_assessor.py`: a trial is stopped when its best result so far is worse than
//! the median of the averages that the successful trials had reached by the same step.

use super::{Assessor, Error, Judgement};
use crate::class_args::{Arguments, OptimizeMode};

/// NNI's `Medianstop`.
#[derive(Debug)]
pub(super) struct Medianstop {
    mode: OptimizeMode,
    /// No trial is judged before it has so many results.
    start_step: usize,
    /// Step -> averages of the successful trials up to that step, in rising order.
    averages: Vec<Vec<f64>>,
}

impl Medianstop {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>) -> Result<Self, Error> {
        let mode = arguments.optimize_mode()?.unwrap_or(OptimizeMode::Maximize);
        let start_step = arguments.integer("start_step", 0..=9999)?.unwrap_or(0);
        let start_step = usize::try_from(start_step).unwrap_or(usize::MAX);
        Ok(Self { mode, start_step, averages: Vec::new() })
    }

    /// The larger the better: what is no number is the worst.
    fn goodness(&self, result: f64) -> f64 {
        let goodness = match self.mode {
            OptimizeMode::Maximize => result,
            OptimizeMode::Minimize => -result,
        };
        if goodness.is_nan() { f64::NEG_INFINITY } else { goodness }
    }
}

impl Assessor for Medianstop {
    fn judge(&mut self, _trial: &str, history: &[f64]) -> Judgement {
        let step = history.len();
        if step == 0 || step < self.start_step {
            return Judgement::Good;
        }
        let Some(averages) = self.averages.get(step - 1).filter(|averages| !averages.is_empty())
        else {
            return Judgement::Good;
        };
        // Of an even number the worse of the two in the middle.
        let median = match self.mode {
            OptimizeMode::Maximize => averages[(averages.len() - 1) / 2],
            OptimizeMode::Minimize => averages[averages.len() / 2],
        };
        let best =
            history.iter().copied().max_by(|a, b| self.goodness(*a).total_cmp(&self.goodness(*b)));
        match best {
            Some(best) if self.goodness(best) < self.goodness(median) => Judgement::Bad {
                reason: format!(
                    "its best of {step} results, {best}, is worse than the median {median} of {} finished trials",
                    averages.len()
                ),
            },
            _ => Judgement::Good,
        }
    }

    fn ended(&mut self, _trial: &str, history: &[f64], success: bool) {
        if !success {
            return;
        }
        let (mut sum, mut count) = (0.0, 0.0);
        for (step, result) in history.iter().enumerate() {
            sum += result;
            count += 1.0;
            let average: f64 = sum / count;
            if average.is_nan() {
                return; // Nor will a later one be a number.
            }
            if self.averages.len() <= step {
                self.averages.push(Vec::new());
            }
            // A trial whose averages were numbers up to here has one in every earlier step.
            let sorted = &mut self.averages[step];
            sorted.insert(sorted.partition_point(|other| *other < average), average);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

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
    fn trials_are_judged_as_nni_judges_them() {
        let stories: Vec<Value> =
            serde_json::from_str(include_str!("../../fixtures/tuner/nni_medianstop.json")).unwrap();
        for story in stories {
            let (mode, start) = (&story["optimize_mode"], &story["start_step"]);
            let mut assessor =
                assessor(&json!({"optimize_mode": mode, "start_step": start})).unwrap();
            let mut histories: HashMap<u64, Vec<f64>> = HashMap::new();
            for event in story["events"].as_array().unwrap() {
                let trial = event[1].as_u64().unwrap();
                if event[0] == "ended" {
                    assessor.ended("t", &histories[&trial], event[2].as_bool().unwrap());
                    continue;
                }
                let history = numbers(&event[2]);
                let judgement = assessor.judge("t", &history);
                assert_eq!(judgement == Judgement::Good, event[3], "{mode} {event}: {judgement:?}");
                histories.insert(trial, history);
            }
        }
    }

    #[test]
    fn a_bad_judgement_says_why() {
        let mut assessor = assessor(&json!({})).unwrap();
        assessor.ended("t", &[0.5, 0.7], true);
        assessor.ended("t", &[0.1, 0.1], false);
        let reason =
            "its best of 2 results, 0.4, is worse than the median 0.6 of 1 finished trials";
        let expected = Judgement::Bad { reason: reason.to_owned() };
        assert_eq!(assessor.judge("t", &[0.4, f64::NAN]), expected);
        assert_eq!(assessor.judge("t", &[0.4, 0.6]), Judgement::Good);
        // Nobody has come so far.
        assert_eq!(assessor.judge("t", &[0.1, 0.1, 0.1]), Judgement::Good);
        assert_eq!(assessor.judge("t", &[]), Judgement::Good);
        // Only what is no number is worse than everything.
        assert_ne!(assessor.judge("t", &[f64::NAN]), Judgement::Good);
    }

    #[test]
    fn wrong_arguments_are_refused() {
        let refused = |args| assessor(&args).unwrap_err().to_string();
        assert_eq!(
            refused(json!({"start_stp": 1})),
            "assessor.classArgs.start_stp: is no argument of Medianstop; did you mean `start_step`? \
             Allowed: optimize_mode, start_step"
        );
        assert_eq!(
            refused(json!({"start_step": -1})),
            "assessor.classArgs.start_step: expected an integer of at least 0 and at most 9999, found -1"
        );
    }
}
