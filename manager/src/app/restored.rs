//! Detects, when `resume` opens a database, that it is older than what it has confirmed to agents, as a restored backup
//! is. It reports this and changes nothing: agents themselves send which reports were confirmed to them
//! (`store/gap.rs`).

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use trial_protocol::TrialJobId;

use crate::store::{self, Store};
use crate::util::layout::ExperimentDir;

/// The trials that the folders of an experiment know more of than its database does.
#[derive(Debug, Default, PartialEq, Eq)]
struct StoreBehindAgents {
    /// Trials that had not ended when the copy was made, and reported more since.
    reported: Vec<String>,
    /// Trials that began after the copy was made: the database does not know them.
    unknown: Vec<String>,
}

/// Logs what a resumed experiment does about trials that went on after its database was copied, if there are any.
pub(super) async fn announce(store: &Store, dir: &ExperimentDir) -> Result<(), store::Error> {
    if let Some(words) = look(store, dir).await?.words() {
        tracing::warn!("{words}");
    }
    Ok(())
}

async fn look(store: &Store, dir: &ExperimentDir) -> Result<StoreBehindAgents, store::Error> {
    let trials = store.trials().await?;
    let known: HashSet<&str> = trials.iter().map(|trial| trial.id.as_str()).collect();
    let mut ahead = StoreBehindAgents::default();
    for trial in trials.iter().filter(|trial| !trial.state.is_final()) {
        let attempt = dir.trial(&trial.id).spool().join(trial.attempt.as_str());
        let stored = store.attempt_state(&trial.id, &trial.attempt).await?.facts_through;
        if acknowledged(&attempt) > stored {
            ahead.reported.push(trial.id.to_string());
        }
    }
    for entry in fs::read_dir(dir.path()).into_iter().flatten().flatten() {
        let Ok(name) = entry.file_name().into_string() else { continue };
        let Ok(id) = TrialJobId::new(&name) else { continue };
        // Of the folders beside the database only a trial's has this file.
        if !known.contains(name.as_str()) && dir.trial(&id).parameters().exists() {
            ahead.unknown.push(name);
        }
    }
    ahead.unknown.sort();
    Ok(ahead)
}

/// Returns how far an attempt's facts were acknowledged, as its agent has noted. `None`: nothing, or it is not noted yet.
fn acknowledged(attempt: &Path) -> Option<u64> {
    fs::read_to_string(attempt.join("facts.ack")).ok()?.trim().parse().ok()
}

impl StoreBehindAgents {
    /// Returns the warning for the user. `None`: the database is as new as the folders.
    fn words(&self) -> Option<String> {
        let mut sentences = vec![
            "the database is older than what it has confirmed to its trials, as a restored backup is."
                .to_owned(),
        ];
        if !self.reported.is_empty() {
            sentences.push(format!(
                "Agents that still run send again what they have kept; a trial that has ended since then runs again as a \
                 new attempt. What is gone for good is noted in the trial's timeline and named by `check`. Trials: {}.",
                self.reported.join(", ")
            ));
        }
        if !self.unknown.is_empty() {
            sentences.push(format!(
                "Trials that began later are not in it: their results are not counted, agents of theirs that still run \
                 are not stopped, and their folders stay. Trials: {}.",
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
            (&["a", "b"], &[],         &["send again", "Trials: a, b."]),
            (&[],         &["c"],      &["not counted", "Trials: c."]),
            (&["a"],      &["c", "d"], &["send again", "Trials: a.", "not counted", "Trials: c, d."]),
        ];
        for (reported, unknown, expected) in table {
            let ahead = StoreBehindAgents { reported: names(reported), unknown: names(unknown) };
            let words = ahead.words();
            assert_eq!(words.is_some(), !expected.is_empty(), "{ahead:?}");
            for part in expected {
                assert!(words.as_ref().unwrap().contains(part), "{part:?} is not in {words:?}");
            }
        }
    }
}
