//! PURE: the trials whose curves represent a whole search: the best and the newest.

use std::collections::BTreeSet;

use trial_protocol::Direction;

use super::{Snapshot, TrialSummary};
use crate::job_state::JobState;

/// Returns the trials whose curves are shown: one half the best succeeded ones, from the best on, then the newest, from
/// the last on. Returns at most `count` trials.
pub fn chosen_curves(
    snapshot: &Snapshot,
    direction: Direction,
    count: usize,
) -> Vec<&TrialSummary> {
    let has_reports = |trial: &&TrialSummary| trial.facts_through.is_some();
    let trials = || snapshot.trials.iter().map(AsRef::as_ref).filter(has_reports);
    let result = |trial: &TrialSummary| {
        let number = trial.number().filter(|number| number.is_finite());
        number.filter(|_| trial.state == JobState::Succeeded)
    };
    let mut best: Vec<(f64, &TrialSummary)> =
        trials().filter_map(|trial| Some((result(trial)?, trial))).collect();
    best.sort_by(|(a, _), (b, _)| match direction {
        Direction::Minimize => a.total_cmp(b),
        Direction::Maximize => b.total_cmp(a),
    });
    let newest: Vec<_> = trials().collect();
    let best = best.into_iter().map(|(_, trial)| trial).take(count.div_ceil(2));
    let mut taken = BTreeSet::new();
    let each_once = best.chain(newest.into_iter().rev()).filter(|one| taken.insert(one.sequence));
    each_once.take(count).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns trials whose results are their positions. Every third trial is still running.
    fn snapshot(count: u32) -> Snapshot {
        let trial = |at: u32| {
            let running = at % 3 == 2;
            TrialSummary {
                state: if running { JobState::Running } else { JobState::Succeeded },
                final_value: Some(json!(at)).filter(|_| !running),
                // Agents do not count their reports from 0.
                facts_through: Some(3_677_864_190_728_227),
                ..super::super::trial::tests::summary(at.into(), at.into())
            }
        };
        let mut snapshot = Snapshot::default();
        snapshot.trials.extend((0..count).map(|at| trial(at).into()));
        snapshot
    }

    #[test]
    fn the_best_and_the_newest_are_shown() {
        let of = |snapshot: &Snapshot, direction, count| -> Vec<u64> {
            chosen_curves(snapshot, direction, count).iter().map(|trial| trial.sequence).collect()
        };
        let (minimize, maximize) = (Direction::Minimize, Direction::Maximize);
        let few = snapshot(4);
        assert_eq!(of(&few, minimize, 10), [0, 1, 3, 2]);
        let many = snapshot(100);
        assert_eq!(of(&many, minimize, 4), [0, 1, 99, 98]);
        assert_eq!(of(&many, maximize, 4), [99, 97, 98, 96]);
        assert_eq!(of(&Snapshot::default(), minimize, 100), [0_u64; 0]);
    }
}
