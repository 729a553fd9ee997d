//! Detects, when `resume` opens a database, that the database is older than the reports that it has acknowledged, as
//! after restoring a backup. It only logs this: the agents themselves report what was acknowledged to them
//! (`store/gap.rs`).

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use trial_protocol::TrialJobId;

use crate::store::{self, Store};
use crate::util::layout::ExperimentDir;

/// The trials for which the experiment's folders contain more than its database.
#[derive(Debug, Default, PartialEq, Eq)]
struct BackupGap {
    /// Trials that had not ended when the database was copied, and have reported more since.
    reported: Vec<String>,
    /// Trials that began after the database was copied, so that it does not contain them.
    unknown: Vec<String>,
}

/// Logs a warning about trials that continued after the database was copied, if there are any.
pub(super) async fn warn_if_older(store: &Store, dir: &ExperimentDir) -> Result<(), store::Error> {
    if let Some(warning) = compare(store, dir).await?.warning() {
        tracing::warn!("{warning}");
    }
    Ok(())
}

async fn compare(store: &Store, dir: &ExperimentDir) -> Result<BackupGap, store::Error> {
    let trials = store.trials().all().await?;
    let known: HashSet<&str> = trials.iter().map(|trial| trial.id.as_str()).collect();
    let mut behind = BackupGap::default();
    for trial in trials.iter().filter(|trial| !trial.state.is_final()) {
        let attempt = dir.trial(&trial.id).spool().join(trial.attempt.as_str());
        let stored = store.reports().attempt_state(&trial.id, &trial.attempt).await?.facts_through;
        if acknowledged_facts(&attempt) > stored {
            behind.reported.push(trial.id.to_string());
        }
    }
    for entry in fs::read_dir(dir.path()).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(id) = TrialJobId::new(&name) else { continue };
        // Among the folders beside the database, only a trial's folder has this file.
        if !known.contains(name.as_str()) && dir.trial(&id).parameters().exists() {
            behind.unknown.push(name);
        }
    }
    behind.unknown.sort();
    Ok(behind)
}

/// Returns the number up to which an attempt's facts were acknowledged, as its agent has recorded. `None` if nothing
/// is recorded.
fn acknowledged_facts(attempt: &Path) -> Option<u64> {
    fs::read_to_string(attempt.join("facts.ack")).ok()?.trim().parse().ok()
}

impl BackupGap {
    /// Returns the warning for the user. `None` if the database is as new as the folders.
    fn warning(&self) -> Option<String> {
        let mut sentences = vec![
            "the database is older than the reports that it has acknowledged, as after restoring a backup."
                .to_owned(),
        ];
        if !self.reported.is_empty() {
            sentences.push(format!(
                "Running agents send the reports again that they have kept; a trial that has ended since then runs again as a \
                 new attempt. The trial's timeline and `check` list the reports that are permanently lost. Trials: {}.",
                self.reported.join(", ")
            ));
        }
        if !self.unknown.is_empty() {
            sentences.push(format!(
                "Trials that began later are not in the database: their results are not counted, their running agents \
                 are not stopped, and their folders are kept. Trials: {}.",
                self.unknown.join(", ")
            ));
        }
        (sentences.len() > 1).then(|| sentences.join(" "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_older_database_is_reported() {
        let names = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        #[rustfmt::skip]
        let table = [
            (&[][..],     &[][..],     &[][..]),
            (&["a", "b"], &[],         &["the reports again", "Trials: a, b."]),
            (&[],         &["c"],      &["not counted", "Trials: c."]),
            (&["a"],      &["c", "d"], &["the reports again", "Trials: a.", "not counted", "Trials: c, d."]),
        ];
        for (reported, unknown, expected) in table {
            let behind = BackupGap { reported: names(reported), unknown: names(unknown) };
            let warning = behind.warning();
            assert_eq!(warning.is_some(), !expected.is_empty(), "{behind:?}");
            for part in expected {
                assert!(warning.as_ref().unwrap().contains(part), "{part:?} is not in {warning:?}");
            }
        }
    }
}
