//! The limits that a search has reached, and the way to continue it with higher ones.

use std::fmt;
use std::time::Duration;

use trial_protocol::ExperimentId;

use crate::config::ExperimentSpec;
use crate::util::clock::to_ms;
use crate::view::format_duration;

/// A limit that a search has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReachedLimit {
    /// `maxTrialNumber`.
    Trials {
        /// The limit.
        limit: u64,
        /// The number of trials so far.
        trials: u64,
    },
    /// `maxExperimentDuration`.
    Duration {
        /// The limit.
        limit: Duration,
        /// The running time so far.
        elapsed: Duration,
    },
}

impl ReachedLimit {
    /// Returns the limits that a search with this number of trials and this running time has reached.
    pub fn of_search(spec: &ExperimentSpec, trials: u64, elapsed: Duration) -> Vec<Self> {
        let of_trials = spec.max_trial_number.filter(|limit| trials >= *limit);
        let of_time = spec.max_experiment_duration.filter(|limit| elapsed >= *limit);
        let of_trials = of_trials.map(|limit| Self::Trials { limit, trials });
        of_trials
            .into_iter()
            .chain(of_time.map(|limit| Self::Duration { limit, elapsed }))
            .collect()
    }

    /// Returns the sentence that tells how to continue a search beyond limits. `None`: there are no limits.
    pub fn remedy(id: &ExperimentId, reached: &[Self]) -> Option<String> {
        let flags: Vec<_> = reached.iter().map(|limit| limit.flag()).collect();
        (!flags.is_empty()).then(|| {
            let flags = flags.join(" ");
            let noun = if reached.len() == 1 { "a higher limit" } else { "higher limits" };
            format!("`trial-manager resume {id} {flags}` continues it with {noun}")
        })
    }

    /// Returns limits as a part of a sentence.
    pub fn describe(reached: &[Self]) -> String {
        reached.iter().map(ToString::to_string).collect::<Vec<_>>().join(", and ")
    }

    fn flag(self) -> &'static str {
        match self {
            Self::Trials { .. } => "--max-trial-number N",
            Self::Duration { .. } => "--max-experiment-duration TIME",
        }
    }
}

impl fmt::Display for ReachedLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let time = |time: &Duration| format_duration(to_ms(*time));
        match self {
            Self::Trials { limit, trials } => {
                let plural = if *trials == 1 { "" } else { "s" };
                write!(f, "it has {trials} trial{plural}, and maxTrialNumber is {limit}")
            }
            Self::Duration { limit, elapsed } => {
                let (limit, elapsed) = (time(limit), time(elapsed));
                write!(f, "it has run for {elapsed}, and maxExperimentDuration is {limit}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::config;

    #[test]
    fn the_remedy_names_the_flag_of_each_reached_limit() {
        let canonical = json!({
            "trialCommand": "true", "trialCodeDirectory": "/", "trialConcurrency": 1,
            "maxTrialNumber": 4, "maxExperimentDuration": "2m",
            "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
            "tuner": {"name": "Random"}, "trainingService": {"platform": "local"},
        });
        let spec = config::from_canonical(&canonical).unwrap();
        let id = ExperimentId::new("e").unwrap();
        let (number, time) = ("--max-trial-number N", "--max-experiment-duration TIME");
        #[rustfmt::skip]
        let table = [
            (3, 119, "",                                                                                   None),
            (4, 119, "it has 4 trials, and maxTrialNumber is 4",                                             Some(format!("{number}` continues it with a higher limit"))),
            (3, 120, "it has run for 2 min, and maxExperimentDuration is 2 min",                             Some(format!("{time}` continues it with a higher limit"))),
            (5, 130, "it has 5 trials, and maxTrialNumber is 4, and it has run for 2 min 10 s, and maxExperimentDuration is 2 min", Some(format!("{number} {time}` continues it with higher limits"))),
        ];
        for (trials, seconds, list, remedy) in table {
            let reached = ReachedLimit::of_search(&spec, trials, Duration::from_secs(seconds));
            assert_eq!(ReachedLimit::describe(&reached), list);
            let remedy = remedy.map(|remedy| format!("`trial-manager resume e {remedy}"));
            assert_eq!(ReachedLimit::remedy(&id, &reached), remedy);
        }
    }
}
