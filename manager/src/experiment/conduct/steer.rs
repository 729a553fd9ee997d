//! What a person gives the tuner of an experiment that runs: results from elsewhere, another search space. Both are
//! recorded first, so that a resumed search has them, too.

use std::collections::HashSet;

use serde_json::Value;

use super::ExperimentTask;
use super::command::Asked;
use crate::config::{self, TunerChoice};
use crate::experiment::command::Refused;
use crate::experiment::notice::Notice;
use crate::experiment::state::Steer;
use crate::search::search_space::Parameters;
use crate::search::tuner::import::{Learner, samples};
use crate::search::tuner::{self, Outcome, Sample};
use crate::store::ImportedRow;

impl ExperimentTask {
    /// Lets the tuner know results from elsewhere. Those that it knows already are passed over, so that a file
    /// may be given twice.
    pub(super) async fn import(&mut self, list: &Value) -> Result<Asked, Refused> {
        self.goes_on()?;
        let spec = &self.deps.spec;
        let (native, budget) = match &spec.tuner {
            TunerChoice::Native(native) => (Some(native), native.name == "Hyperband"),
            TunerChoice::Nni { advisor, .. } => (None, *advisor),
            TunerChoice::Command { .. } => (None, false),
        };
        let learner = Learner { space: &spec.search_space, native, budget };
        let given = samples(list, learner).map_err(|error| Refused::Wrong(told(&error)))?;
        let text = |row: &ImportedRow| (row.parameters.to_string(), row.value.to_string());
        let mut known: HashSet<_> = self.deps.store.imported().await?.iter().map(text).collect();
        let rows = given.into_iter().map(|sample| ImportedRow {
            parameters: Value::Object(sample.parameters),
            value: sample.value.as_json().clone(),
        });
        let fresh: Vec<ImportedRow> = rows.filter(|row| known.insert(text(row))).collect();
        let now = self.deps.clock.now_ms();
        self.deps.store.import(fresh.clone(), now).await?;
        let count = fresh.len();
        self.deps.advice.import(learnt(fresh));
        self.notify(Notice::Told(format!("the tuner has learnt {count} results from elsewhere")));
        Ok(Asked::Steer(Steer::Taught))
    }

    /// Has another space searched. A built-in tuner is made anew for it and taught everything, as on a resume: so
    /// a search goes on alike whether it was interrupted since or not. What does not fit into the new space
    /// teaches it nothing.
    pub(super) async fn space(&mut self, space: Value) -> Result<Asked, Refused> {
        self.goes_on()?;
        let mut canonical = self.deps.spec.canonical.clone();
        if let Some(members) = canonical.as_object_mut() {
            members.insert("searchSpace".to_owned(), space);
        }
        // All that depends on the space is looked at again: the command's parameters, the tuner's arguments.
        let spec = config::from_canonical(&canonical);
        let spec = spec.map_err(|error| Refused::Wrong(error.problem))?;
        let Some(row) = self.deps.store.experiment().await? else {
            return Err(Refused::NotRunning);
        };
        let native = match &spec.tuner {
            TunerChoice::Native(native) => {
                tuner::build(native, &spec.search_space, row.seed).map(Some)
            }
            TunerChoice::Nni { .. } | TunerChoice::Command { .. } => Ok(None),
        };
        let mut native = native.map_err(|error| Refused::Wrong(told(&error)))?;
        let mut open = Vec::new();
        if let Some(tuner) = &mut native {
            tuner.import(&learnt(self.deps.store.imported().await?));
            for row in self.deps.store.trials().await? {
                let none = Parameters::new();
                let ended = !Self::is_interrupted(&row) && row.state.is_final();
                let Some(id) = row.parameter_id else {
                    let parameters = row.parameters.as_object().unwrap_or(&none).clone();
                    let outcome = Self::outcome(&self.deps.store, &self.deps.spec, &row).await?;
                    if let (true, Outcome::Result(value)) = (ended, outcome) {
                        tuner.import(&[Sample { parameters, value }]);
                    }
                    continue;
                };
                tuner.adopt(id, row.parameters.as_object().unwrap_or(&none));
                if ended {
                    tuner.observe(
                        id,
                        &Self::outcome(&self.deps.store, &self.deps.spec, &row).await?,
                    );
                } else {
                    open.push((row.id, id));
                }
            }
        }
        let stored = spec.canonical.clone();
        self.deps.store.set_canonical(stored).await?;
        self.deps.advice.space(spec.search_space.as_json(), native);
        self.deps.spec.search_space = spec.search_space;
        self.deps.spec.canonical = spec.canonical;
        self.notify(Notice::Told("the search space is another from now on".to_owned()));
        Ok(Asked::Steer(Steer::Space { open }))
    }
}

/// Results as the store keeps them, for a tuner.
pub(super) fn learnt(rows: Vec<ImportedRow>) -> Vec<Sample> {
    let sample = |row: ImportedRow| {
        let parameters = row.parameters.as_object()?.clone();
        Some(Sample { parameters, value: row.value.into() })
    };
    rows.into_iter().filter_map(sample).collect()
}

/// A path and what is wrong there.
fn told(error: &tuner::Error) -> String {
    if error.path.is_empty() { error.problem.clone() } else { error.to_string() }
}
