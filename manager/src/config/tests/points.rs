//! Tests of points that are tried several times, and of populations that are trained in steps.

use serde_json::{Value, json};

use super::{document_with, load_text};
use crate::config::TunerChoice;

fn load_error(changes: &Value) -> String {
    load_text(&document_with(changes).to_string())
        .map_or_else(|problem| problem, |_| "good".to_owned())
}

#[test]
fn repeats_reach_the_tuner_and_are_stored() {
    let spec = load_text(&document_with(&json!({"trialRepeats": 3})).to_string()).unwrap();
    let TunerChoice::BuiltIn(tuner) = &spec.tuner else { panic!("Random is built in") };
    assert_eq!((spec.trial_repeats, tuner.repeats), (3, 3));
    assert_eq!(crate::config::from_canonical(&spec.canonical).unwrap(), spec);
    assert_eq!(load_text(&document_with(&json!({})).to_string()).unwrap().trial_repeats, 1);
}

#[test]
fn the_folder_of_checkpoints_is_stored_if_the_file_names_none() {
    let pbt = json!({"tuner": {"name": "PBT"}, "trialCommand": "t {{load_checkpoint_dir}}"});
    let mut spec = load_text(&document_with(&pbt).to_string()).unwrap();
    spec.set_checkpoint_folder(std::path::Path::new("/e/checkpoint"));
    let again = crate::config::from_canonical(&spec.canonical).unwrap();
    assert_eq!(again, spec);
    let mut listed = pbt;
    listed["trainingService"] = json!([{"platform": "local"}]);
    assert_eq!(load_error(&listed), "good", "all its trials run on this machine");
    spec.set_checkpoint_folder(std::path::Path::new("/other"));
    assert_eq!(spec.canonical["tuner"]["classArgs"]["all_checkpoint_dir"], "/e/checkpoint");
}

#[test]
fn unsupported_repeats_and_steps_are_refused() {
    let population = json!({"name": "PBT"});
    let machines = json!({"platform": "plugin", "command": ["sh"]});
    #[rustfmt::skip]
    let table = [
        (json!({"trialRepeats": 0}),                                              "trialRepeats: "),
        (json!({"trialRepeats": 1001}),                                           "trialRepeats: must be at most 1000"),
        (json!({"trialRepeats": 2, "tuner": {"command": ["a"]}}),                 "trialRepeats: needs a built-in tuner"),
        (json!({"trialRepeats": 2, "tuner": {"name": "SMAC"}}),                   "trialRepeats: needs a built-in tuner"),
        (json!({"trialRepeats": 2, "tuner": population}),                         "trialRepeats: cannot be used with PBT"),
        (json!({"trialRepeats": 2, "maxTrialNumber": 3, "initialTrials": [{"lr": 1}, {"lr": 0}]}), "initialTrials: asks for 4 trials, but maxTrialNumber is 3"),
        (json!({"tuner": population, "assessor": {"name": "Medianstop"}}),        "assessor: is given besides PBT"),
        (json!({"tuner": population, "trainingService": machines}),               "tuner.classArgs.all_checkpoint_dir: is missing"),
        (json!({"tuner": {"name": "Hyperband"}, "trialCommand": "t {{TRIAL_BUDGET}}"}), "good"),
        (json!({"tuner": population, "trialCommand": "t {{TRIAL_BUDGET}}"}),      "trialCommand: {{TRIAL_BUDGET}} names no parameter"),
    ];
    for (changes, start) in table {
        let error = load_error(&changes);
        assert!(error.starts_with(start), "{changes}: {error}");
    }
}
