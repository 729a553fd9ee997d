//! PURE: the trials whose curves represent a whole search: the best and the newest, as many as can be read within a
//! bounded time.

use std::collections::BTreeSet;

use super::{Snapshot, TrialSummary};
use crate::job_state::JobState;
use crate::search::tuner::OptimizeMode;

/// Returns the trials whose curves are shown, by position: one half the best succeeded ones, the other half the
/// newest. Returns at most `count` trials, with at most `most_reports` reports together, except for a single trial.
pub fn chosen_curves(
    snapshot: &Snapshot,
    mode: OptimizeMode,
    count: usize,
    most_reports: u64,
) -> Vec<&TrialSummary> {
    let has_reports = |trial: &&TrialSummary| trial.facts_through.is_some();
    let trials = || snapshot.trials.iter().map(AsRef::as_ref).filter(has_reports);
    let result = |trial: &TrialSummary| {
        let number = trial.number().filter(|number| number.is_finite());
        number.filter(|_| trial.state == JobState::Succeeded)
    };
    let mut best: Vec<(f64, &TrialSummary)> =
        trials().filter_map(|trial| Some((result(trial)?, trial))).collect();
    best.sort_by(|(a, _), (b, _)| match mode {
        OptimizeMode::Minimize => a.total_cmp(b),
        OptimizeMode::Maximize => b.total_cmp(a),
    });
    let newest: Vec<_> = trials().collect();
    let best = best.into_iter().map(|(_, trial)| trial).take(count.div_ceil(2));
    let mut taken = BTreeSet::new();
    let mut chosen = Vec::new();
    let mut reports = 0_u64;
    for trial in best.chain(newest.into_iter().rev()) {
        let own = trial.facts_through.unwrap_or(0);
        let is_full = chosen.len() >= count || reports.saturating_add(own) > most_reports;
        if is_full && !chosen.is_empty() {
            break;
        }
        if taken.insert(trial.sequence) {
            reports = reports.saturating_add(own);
            chosen.push(trial);
        }
    }
    chosen.sort_by_key(|trial| trial.sequence);
    chosen
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// Returns trials whose results are their positions, each with `reports` reports. Every third trial is still
    /// running.
    fn snapshot(count: u32, reports: u64) -> Snapshot {
        let trial = |at: u32| {
            let running = at % 3 == 2;
            TrialSummary {
                state: if running { JobState::Running } else { JobState::Succeeded },
                last: Some(json!(at)).filter(|_| !running),
                facts_through: Some(reports),
                ..super::super::trial::tests::summary(at.into(), at.into())
            }
        };
        let mut snapshot = Snapshot::default();
        snapshot.trials.extend((0..count).map(|at| trial(at).into()));
        snapshot
    }

    #[test]
    fn the_best_and_the_newest_are_shown() {
        let of = |snapshot: &Snapshot, mode, count, most| -> Vec<u64> {
            chosen_curves(snapshot, mode, count, most).iter().map(|trial| trial.sequence).collect()
        };
        let (minimize, maximize) = (OptimizeMode::Minimize, OptimizeMode::Maximize);
        let few = snapshot(4, 10);
        assert_eq!(of(&few, minimize, 10, 1000), [0, 1, 2, 3]);
        let many = snapshot(100, 10);
        assert_eq!(of(&many, minimize, 4, 1000), [0, 1, 98, 99]);
        assert_eq!(of(&many, maximize, 4, 1000), [96, 97, 98, 99]);
        // Fewer trials are returned if they are long, and one trial whatever its length.
        assert_eq!(of(&many, minimize, 100, 35), [0, 1, 3]);
        assert_eq!(of(&many, minimize, 100, 5), [0]);
        assert_eq!(of(&Snapshot::default(), minimize, 100, 5), [0_u64; 0]);
    }
}
