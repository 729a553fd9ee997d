//! The flags of the limits that a user can change, for `experiment limit` and `resume`.

use clap::Args;
use serde_json::{Value, json};

use super::integer;
use crate::experiment::command::{NewLimits, WrittenDuration};

/// The new limits of a search.
#[derive(Debug, Args)]
#[group(skip)]
pub(super) struct LimitArgs {
    /// Maximum number of trials that run at the same time.
    #[arg(long, value_name = "N", value_parser = integer::<usize>(1..=u64::MAX), allow_negative_numbers = true)]
    trial_concurrency: Option<usize>,
    /// Maximum number of trials in total.
    #[arg(long, value_name = "N", value_parser = integer::<u64>(1..=u64::MAX), allow_negative_numbers = true)]
    max_trial_number: Option<u64>,
    /// Maximum run time of the experiment, such as 90m.
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    max_experiment_duration: Option<WrittenDuration>,
}

fn parse_duration(text: &str) -> Result<WrittenDuration, String> {
    WrittenDuration::parse(&Value::from(text))
}

impl LimitArgs {
    /// Returns the limits for an experiment without a manager.
    pub(super) fn new_limits(self) -> NewLimits {
        NewLimits {
            concurrency: self.trial_concurrency,
            trials: self.max_trial_number,
            duration: self.max_experiment_duration,
        }
    }

    /// Returns the body of a request to the manager.
    pub(super) fn body(self) -> Value {
        json!({
            "trial_concurrency": self.trial_concurrency,
            "max_trial_number": self.max_trial_number,
            "max_experiment_duration": self.max_experiment_duration.map(|duration| duration.written),
        })
    }
}
