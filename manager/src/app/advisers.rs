//! Builds an experiment's tuner and assessor, and starts the programs of external ones. It sends them no request.

use serde_json::{Map, json};
use trial_protocol::ExperimentId;

use super::Error;
use crate::advisers::{
    self, AdviserEvent, AdviserRequest, DEFAULT_PYTHON, ExternalAdviser, Program, ProgramSettings,
};
use crate::config::{AssessorChoice, ExperimentSpec, TunerChoice};
use crate::experiment::advisers::Advisers;
use crate::search::assessor;
use crate::search::tuner;
use crate::util::errors::error_chain;
use crate::util::ids;
use crate::util::layout::ExperimentDir;

/// Checks whether the external tuner and assessor can run, and returns the name and the problem of each.
pub(super) async fn check(spec: &ExperimentSpec) -> Vec<(String, Result<(), String>)> {
    let tuner = match &spec.tuner {
        TunerChoice::Nni { algorithm, .. } => Some(algorithm),
        TunerChoice::BuiltIn(_) | TunerChoice::Command { .. } => None,
    };
    let assessor = match &spec.assessor {
        Some(AssessorChoice::Nni(algorithm)) => Some(algorithm),
        Some(AssessorChoice::BuiltIn(_)) | None => None,
    };
    let python = spec.python_interpreter.as_deref().unwrap_or(DEFAULT_PYTHON);
    let mut found = Vec::new();
    if let TunerChoice::Command { command, .. } = &spec.tuner {
        let there = advisers::find_command(command, &spec.trial_code_directory);
        found.push((spec.tuner.name().to_owned(), there));
    }
    for algorithm in tuner.into_iter().chain(assessor) {
        found.push((
            algorithm.name().to_owned(),
            advisers::import_modules(python, algorithm, &spec.secret_variables()).await,
        ));
    }
    found
}

/// Starts an external tuner, asks it for one set of parameters, and ends it. `None` if the tuner is built in. A tuner
/// fails if it does not answer within the time after which `run` would warn the user. The folder of its output is
/// kept then.
pub(super) async fn try_tuner(spec: &ExperimentSpec) -> Option<(String, Result<(), String>)> {
    if let TunerChoice::BuiltIn(_) = spec.tuner {
        return None;
    }
    let name = spec.tuner.name().to_owned();
    let folder = match tempfile::Builder::new().prefix("trial-manager-doctor-").tempdir() {
        Ok(folder) => folder,
        Err(error) => return Some((name, Err(format!("cannot create a folder for it: {error}")))),
    };
    let id = ids::new_experiment_id();
    let dir = ExperimentDir::new(folder.path(), &id);
    let mut tuner = match build(spec, &id, &dir, ids::new_seed()) {
        Ok(advisers) => advisers.external?,
        Err(error) => return Some((name, Err(error_chain(&error)))),
    };
    tuner.send_request(AdviserRequest::Propose { id: 0 });
    let found = loop {
        match tuner.next_event().await {
            AdviserEvent::Proposed { .. } => break Ok(()),
            AdviserEvent::Trouble(Some(problem)) | AdviserEvent::Lost { message: problem } => {
                break Err(problem);
            }
            AdviserEvent::Trouble(None) | AdviserEvent::Ready | AdviserEvent::StopTrial { .. } => {}
        }
    };
    tuner.close().await;
    if found.is_err() {
        // The message contains the path of the output.
        drop(folder.keep());
    }
    Some((name, found))
}

/// Creates the advisers that `spec` configures.
pub(super) fn build(
    spec: &ExperimentSpec,
    id: &ExperimentId,
    dir: &ExperimentDir,
    seed: u64,
) -> Result<Advisers, Error> {
    let native = match &spec.tuner {
        TunerChoice::BuiltIn(native) => Some(tuner::build(native, &spec.search_space, seed)?),
        TunerChoice::Nni { .. } | TunerChoice::Command { .. } => None,
    };
    let (built_in_assessor, external_assessor) = match &spec.assessor {
        Some(AssessorChoice::BuiltIn(native)) => (Some(assessor::build(native)?), None),
        Some(AssessorChoice::Nni(algorithm)) => (None, Some(algorithm.clone())),
        None => (None, None),
    };
    let python = || spec.python_interpreter.clone().unwrap_or_else(|| DEFAULT_PYTHON.to_owned());
    let program = match (&spec.tuner, external_assessor) {
        (TunerChoice::BuiltIn(_), None) => None,
        (TunerChoice::BuiltIn(_), assessor) => {
            Some(Program::Nni { python: python(), tuner: None, assessor, advisor: false })
        }
        (TunerChoice::Nni { algorithm, advisor }, assessor) => Some(Program::Nni {
            python: python(),
            tuner: Some(algorithm.clone()),
            assessor,
            advisor: *advisor,
        }),
        (TunerChoice::Command { command, class_args }, _) => {
            let greeting = Map::from_iter([
                ("experiment".to_owned(), json!(id.as_str())),
                ("optimize_mode".to_owned(), json!(spec.direction.as_str())),
                ("seed".to_owned(), json!(seed)),
                ("concurrency".to_owned(), json!(spec.trial_concurrency)),
                ("class_args".to_owned(), json!(class_args)),
            ]);
            Some(Program::AskAndTell { command: command.clone(), greeting })
        }
    };
    let external = program.map(|program| {
        ExternalAdviser::start(ProgramSettings {
            program,
            experiment: id.as_str().to_owned(),
            space: spec.search_space.as_json().clone(),
            dir: dir.advisers(),
            code: spec.trial_code_directory.clone(),
            gpus: spec.tuner_gpu_indices.clone(),
            silence_timeout: spec.tuner_patience,
            secret_variables: spec.secret_variables(),
        })
    });
    Ok(Advisers { tuner: native, assessor: built_in_assessor, external })
}
