//! Asynchronous successive halving (Li and others, "A System for Massively Parallel Hyperparameter Tuning", 2020), in
//! its stopping variant. The rungs are `min_steps`, `min_steps * eta`, `min_steps * eta^2`, ... At each rung, a trial
//! continues if its best result so far is among the better 1/`eta` of all trials that have reached the rung. No trial
//! waits for another. NNI has no such assessor.

use std::collections::BTreeMap;

use trial_protocol::Direction;

use super::{Assessment, Assessor, Error};
use crate::search::class_args::Arguments;

/// `ASHA`.
#[derive(Debug)]
pub(super) struct Asha {
    direction: Direction,
    /// One in `eta` trials continues.
    eta: usize,
    /// The numbers of results at which trials are compared, in rising order.
    rungs: Vec<usize>,
    /// For each rung, the best result until then of each trial that reached the rung.
    rung_results: Vec<BTreeMap<String, f64>>,
}

impl Asha {
    /// Reads `classArgs`.
    pub(super) fn from_arguments(arguments: &mut Arguments<'_>) -> Result<Self, Error> {
        let direction = arguments.optimize_mode()?.unwrap_or(Direction::Maximize);
        let mut steps = |name, least, plain| -> Result<usize, Error> {
            let given = arguments.integer(name, least..=1_000_000)?.unwrap_or(plain);
            Ok(usize::try_from(given).unwrap_or(usize::MAX))
        };
        let eta = steps("eta", 2, 3)?;
        let least = steps("min_steps", 1, 1)?;
        let most = steps("max_steps", 1, 1_000_000)?;
        if most < least {
            let problem = format!("is {most}, less than `min_steps`, which is {least}");
            return arguments.fault("max_steps", problem);
        }
        let rungs = std::iter::successors(Some(least), |rung| rung.checked_mul(eta));
        // A trial that has reached its last step is not stopped, because nothing would be saved.
        let rungs: Vec<usize> = rungs.take_while(|rung| *rung < most).collect();
        let reached = vec![BTreeMap::new(); rungs.len()];
        Ok(Self { direction, eta, rungs, rung_results: reached })
    }

    /// Returns the best result as a goodness, where larger is better. Without a number, it is the worst.
    fn goodness(&self, history: &[f64]) -> f64 {
        let goodness = history.iter().map(|result| match self.direction {
            Direction::Maximize => *result,
            Direction::Minimize => -*result,
        });
        goodness.filter(|number| !number.is_nan()).fold(f64::NEG_INFINITY, f64::max)
    }

    /// Records a trial at every rung that it has reached. Returns the last rung at which the trial is new.
    fn record(&mut self, trial: &str, history: &[f64]) -> Option<usize> {
        let mut last = None;
        for at in 0..self.rungs.len() {
            let Some(until) = history.get(..self.rungs[at]) else { break };
            if !self.rung_results[at].contains_key(trial) {
                let goodness = self.goodness(until);
                self.rung_results[at].insert(trial.to_owned(), goodness);
                last = Some(at);
            }
        }
        last
    }
}

impl Assessor for Asha {
    fn assess(&mut self, trial: &str, history: &[f64]) -> Assessment {
        let Some(at) = self.record(trial, history) else { return Assessment::Good };
        let (rung, others) = (self.rungs[at], &self.rung_results[at]);
        let own = others[trial];
        let better = others.values().filter(|other| **other > own).count();
        // Of fewer than `eta` trials, the best one continues.
        let places = (others.len() / self.eta).max(1);
        if better < places {
            return Assessment::Good;
        }
        let (count, eta) = (others.len(), self.eta);
        let reason = format!(
            "after {rung} results, it ranks {} of {count} trials; only the best one in {eta} continues",
            better + 1
        );
        Assessment::Bad { reason }
    }

    fn record_end(&mut self, trial: &str, history: &[f64], _success: bool) {
        self.record(trial, history);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::super::{AssessorSpec, build};
    use super::*;

    fn asha(class_args: &Value) -> Result<Box<dyn Assessor>, Error> {
        let class_args = class_args.as_object().unwrap().clone();
        AssessorSpec::new("asha", class_args).and_then(|spec| build(&spec))
    }

    fn is_bad(assessment: &Assessment) -> bool {
        *assessment != Assessment::Good
    }

    #[test]
    fn one_in_eta_trials_continues_at_each_rung() {
        let mut asha = asha(&json!({"eta": 2, "min_steps": 1, "max_steps": 4})).unwrap();
        #[rustfmt::skip]
        let table: [(&str, &str, &[f64], bool); 9] = [
            ("the first one is the best",          "a", &[0.5],                false),
            ("a worse one",                        "b", &[0.4],                true),
            ("a better one",                       "c", &[0.6],                false),
            ("one of the better half of four",     "d", &[0.55],               false),
            ("no assessment between the rungs",     "e", &[],                   false),
            ("the second rung, alone",             "a", &[0.5, 0.5],           false),
            ("its best so far counts",             "c", &[0.6, 0.1],           false),
            ("the worse of three",                 "d", &[0.55, 0.55],         true),
            ("no assessment at the last step",      "a", &[0.5, 0.5, 0.5, 0.0], false),
        ];
        for (label, trial, history, stops) in table {
            assert_eq!(is_bad(&asha.assess(trial, history)), stops, "{label}");
        }
        let Assessment::Bad { reason } = asha.assess("z", &[0.0]) else { panic!("the worst") };
        assert_eq!(
            reason,
            "after 1 results, it ranks 5 of 5 trials; only the best one in 2 continues"
        );
    }

    #[test]
    fn small_results_are_good_with_minimize_and_nan_never_is() {
        let mut asha = asha(&json!({"optimize_mode": "minimize", "eta": 2})).unwrap();
        assert!(!is_bad(&asha.assess("a", &[3.0])));
        assert!(!is_bad(&asha.assess("b", &[1.0])));
        assert!(is_bad(&asha.assess("c", &[f64::NAN])));
    }

    #[test]
    fn wrong_arguments_are_named() {
        let table = [
            (json!({"eta": 1}), "assessor.classArgs.eta"),
            (json!({"min_steps": 5, "max_steps": 4}), "assessor.classArgs.max_steps"),
            (json!({"min_step": 5}), "assessor.classArgs.min_step"),
        ];
        for (args, path) in table {
            assert_eq!(asha(&args).unwrap_err().path, path);
        }
    }

    proptest! {
        /// The assessment depends only on the results of the trials, not on earlier assessments.
        #[test]
        fn a_rebuilt_assessor_judges_the_same(
            seen in prop::collection::vec(prop::collection::vec(-1.0..1.0, 0..12), 0..12),
            next in prop::collection::vec(-1.0..1.0, 1..12),
        ) {
            let (mut lived, mut rebuilt) = (asha(&json!({})).unwrap(), asha(&json!({})).unwrap());
            for (number, history) in seen.iter().enumerate() {
                let name = number.to_string();
                for steps in 1..=history.len() {
                    drop(lived.assess(&name, &history[..steps]));
                }
                lived.record_end(&name, history, true);
                rebuilt.record_end(&name, history, true);
            }
            prop_assert_eq!(lived.assess("next", &next), rebuilt.assess("next", &next));
        }
    }
}
