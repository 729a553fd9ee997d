//! Tests of several objectives and constraints in an experiment file.

use serde_json::{Value, json};
use trial_protocol::Direction;

use super::super::load;
use super::write_experiment_file;
use super::{document_with, load_text};
use crate::config::TunerChoice;

fn load_error(changes: &Value) -> String {
    load_text(&document_with(changes).to_string())
        .map_or_else(|problem| problem, |_| "good".to_owned())
}

fn two_objectives() -> Value {
    json!([
        {"metric": "loss", "direction": "minimize"},
        {"metric": "speed", "direction": "maximize"}
    ])
}

#[test]
fn several_objectives_and_constraints_reach_the_tuner_and_are_stored() {
    let limits = json!([{"metric": "memory", "max": 16}]);
    let changes =
        json!({"objectives": two_objectives(), "constraints": limits, "tuner": {"name": "tpe"}});
    let (_directory, file) = write_experiment_file(&document_with(&changes).to_string());
    let spec = load(&file).unwrap();
    assert_eq!(spec.objective.as_deref(), Some("loss"));
    assert_eq!((spec.direction, spec.direction_assumed), (Direction::Minimize, false));
    assert_eq!(spec.goals.metrics(), ["loss", "speed", "memory"]);
    let TunerChoice::BuiltIn(tuner) = &spec.tuner else { panic!("TPE is built in") };
    assert_eq!(tuner.goals, spec.goals);
    let again = crate::config::from_canonical(&spec.canonical).unwrap();
    assert_eq!(again, spec);
}

#[test]
fn one_objective_forms_goals_only_with_constraints() {
    let limits = json!([{"metric": "memory", "min": 1, "max": 16}]);
    let changes = json!({"objective": "acc", "constraints": limits, "targetMetric": 1});
    let spec = load_text(&document_with(&changes).to_string()).unwrap();
    assert_eq!(spec.goals.metrics(), ["acc", "memory"]);
    assert!(!spec.goals.has_several_objectives());
    let alone = json!({"objectives": [{"metric": "acc", "direction": "max"}], "targetMetric": 1});
    let spec = load_text(&document_with(&alone).to_string()).unwrap();
    assert!(spec.goals.is_default());
    assert_eq!((spec.objective.as_deref(), spec.direction), (Some("acc"), Direction::Maximize));
}

#[test]
fn bad_goals_are_refused_with_the_remedy() {
    let limit = |limit: Value| json!({"objective": "acc", "constraints": [limit]});
    let twice = json!([{"metric": "a", "direction": "min"}, {"metric": "a", "direction": "max"}]);
    #[rustfmt::skip]
    let table = [
        (json!({"objectives": two_objectives(), "objective": "loss"}),        "objectives: is given besides `objective`"),
        (json!({"objectives": two_objectives(), "targetMetric": 0.5}),        "targetMetric: is for one objective"),
        (json!({"objectives": two_objectives(), "tuner": {"name": "GP"}}),    "tuner.name: GP supports only one objective; for several objectives, use TPE or NSGA-II"),
        (json!({"objectives": two_objectives(), "tuner": {"name": "Metis"}}), "tuner: Metis supports only one objective without constraints; with `objectives`"),
        (json!({"objectives": two_objectives(), "tuner": {"command": ["a"]}}),"tuner: a supports only one objective"),
        (json!({"objectives": "loss"}),                                       "objectives: expected a list, found the string"),
        (json!({"objectives": []}),                                           "objectives: is empty"),
        (json!({"objectives": [{"metric": "a"}]}),                            "objectives[0].direction: is missing"),
        (json!({"objectives": [{"direction": "min"}]}),                       "objectives[0].metric: is missing"),
        (json!({"objectives": [{"metric": "a", "direction": "up"}]}),         "objectives[0].direction: `up` is not known"),
        (json!({"objectives": twice}),                                        "objectives[1].metric: `a` is listed as an objective twice"),
        (json!({"constraints": [{"metric": "m", "max": 1}]}),                 "constraints: need the objective's name"),
        (limit(json!({"metric": "m"})),                                       "constraints[0].max: is missing"),
        (limit(json!({"metric": "m", "min": 2, "max": 1})),                   "constraints[0].min: is 2, more than `max`, 1"),
        (limit(json!({"metric": "m", "max": "1"})),                           "constraints[0].max: expected a number"),
        (json!({"objective": "acc", "constraints": [{"metric": "m", "max": 1}], "tuner": {"name": "GP"}}),
            "tuner.name: GP supports no constraints; for constraints, use TPE, NSGA-II or CMA-ES"),
        (json!({"searchSpace": {"n": {"_type": "lograndint", "_value": [1, 9]}}, "tuner": {"name": "SMAC"}}),
            "searchSpace: has a `lograndint`, which NNI's tuners do not support"),
    ];
    for (changes, start) in table {
        let error = load_error(&changes);
        assert!(error.contains(start), "{changes}: {error}");
    }
    for name in ["TPE", "NSGA-II", "QMC", "Random", "GridSearch"] {
        assert_eq!(
            load_error(&json!({"objectives": two_objectives(), "tuner": {"name": name}})),
            "good",
            "{name}"
        );
    }
}

#[test]
fn bohb_as_advisor_is_the_built_in_tuner_with_all_arguments_of_nni() {
    let class_args = json!({
        "optimize_mode": "minimize", "min_budget": 1, "max_budget": 27, "eta": 3, "min_points_in_model": 7,
        "top_n_percent": 15, "num_samples": 64, "random_fraction": 0.33, "bandwidth_factor": 3.0,
        "min_bandwidth": 0.001,
    });
    let section = json!({"name": "bohb", "classArgs": class_args});
    let as_tuner = load_text(&document_with(&json!({"tuner": section})).to_string()).unwrap();
    let as_advisor = json!({"tuner": null, "advisor": section});
    let (_directory, file) = write_experiment_file(&document_with(&as_advisor).to_string());
    let as_advisor = load(&file).unwrap();
    assert!(matches!(&as_advisor.tuner, TunerChoice::BuiltIn(spec) if spec.name == "BOHB"));
    assert_eq!(as_advisor.tuner, as_tuner.tuner);
    assert_eq!(crate::config::from_canonical(&as_advisor.canonical).unwrap(), as_advisor);

    let class = json!({"className": "nni.algorithms.hpo.bohb_advisor.BOHB"});
    let (_directory, file) = write_experiment_file(
        &document_with(&json!({"tuner": null, "advisor": class})).to_string(),
    );
    assert!(matches!(load(&file).unwrap().tuner, TunerChoice::Nni { advisor: true, .. }));
}
