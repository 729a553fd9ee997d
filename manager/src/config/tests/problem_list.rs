//! The list of all problems of an experiment file. It contains no consequence of another problem or of a repair.

use super::*;

/// Returns the paths of the problems that an error lists.
fn listed_paths(problem: &str) -> Vec<&str> {
    let Some((head, lines)) = problem.split_once('\n') else { return vec![path_of_line(problem)] };
    let paths: Vec<&str> = lines.lines().map(path_of_line).collect();
    assert_eq!(head, format!("{} problems", paths.len()));
    paths
}

/// Returns the path of a problem, without its location. A missing field has no location.
fn path_of_line(line: &str) -> &str {
    let line = line.trim_start();
    let rest = line.strip_prefix("line 1, column ").and_then(|rest| Some(rest.split_once(": ")?.1));
    rest.unwrap_or(line).split_once(": ").unwrap().0
}

fn check_table<const ROWS: usize>(table: [(Value, &[&str]); ROWS]) {
    for (changes, expected) in table {
        let problem = load_text(&document_with(&changes).to_string()).unwrap_err();
        assert_eq!(listed_paths(&problem), expected, "{changes}: {problem}");
    }
}

#[test]
fn independent_problems_are_reported_at_once() {
    #[rustfmt::skip]
    check_table([
        // The changes, and the paths of the problems.
        (json!({"trialConcurrency": 0, "maxTrialNumber": 0, "maxExperimentDuration": "soon", "tuner": {"name": "Oracle"}, "trainingService": {"platform": "moon"}}),
         &["trialConcurrency", "tuner.name", "trainingService.platform", "maxTrialNumber", "maxExperimentDuration"][..]),
        (json!({"trialComand": "x", "trialCommand": null, "trialConcurrency": null, "colour": 1}),
         &["trialConcurrency", "trialComand", "colour"]),
        // Each parameter is checked, and the placeholders against their names.
        (json!({"searchSpace": {"lr": {"_type": "gauss"}, "a": [1], "b": {"_type": "choice", "_value": []}}, "trialCommand": "t {{lr}} {{c}}"}),
         &["searchSpace.lr", "searchSpace.a", "searchSpace.b._value", "trialCommand"]),
        // A problem of the tuner does not hide those of the service.
        (json!({"tuner": {"name": "TPE", "classArgs": {"sed": 1}}, "trainingService": {"platform": "local", "gpus": 1}}),
         &["tuner.classArgs.sed", "trainingService.gpus"]),
        (json!({"trainingService": {"platform": "local", "gpus": 1}, "trialGpuNumber": 1, "objective": 5}),
         &["trainingService.useActiveGpu", "trainingService.gpus", "objective"]),
        // The tuner's name does not depend on the parameters.
        (json!({"searchSpace": {"lr": {"_type": "choice", "_value": []}}, "tuner": {"name": "TPEE", "classArgs": {"seed": -1}}, "trialCommand": "t {{lrr}}"}),
         &["searchSpace.lr._value", "tuner.name"]),
        // Each argument is checked, and so are its assessor and its objective.
        (json!({"tuner": {"name": "TPE", "classArgs": {"seed": -1, "foo": 1, "bar": 1}}, "objective": {"direction": "minimise"}, "assessor": {"name": "Medianstop", "classArgs": {"start_step": "a"}}, "colour": 1}),
         &["tuner.classArgs.seed", "tuner.classArgs.foo", "tuner.classArgs.bar", "objective.direction", "assessor.classArgs.start_step", "colour"]),
        (json!({"objective": {"metrc": "acc"}, "tuner": {"name": "TPE", "classArgs": {"optimize_mode": "up"}}}),
         &["tuner.classArgs.optimize_mode", "objective.metrc"]),
        (json!({"tuner": {"nmae": "TPE"}, "maxTrialNumber": 0}), &["tuner.nmae", "maxTrialNumber"]),
        // The message `expected a number` does not name the argument `nu`.
        (json!({"tuner": {"name": "GP", "classArgs": {"nu": 3, "alpha": -1}}}), &["tuner.classArgs.nu", "tuner.classArgs.alpha"]),
        // A misspelt field does not hide the problem of the field that is also given.
        (json!({"trialConcurency": 4, "trialConcurrency": 0}), &["trialConcurrency", "trialConcurency"]),
        // A wrong type depends on nothing.
        (json!({"searchSpace": null, "trialCommand": 5}), &["searchSpace", "trialCommand"]),
        (json!({"objective": 5, "targetMetric": "x", "constraints": 5}), &["objective", "targetMetric", "constraints"]),
        // The substitute for a tuner or a space hides nothing.
        (json!({"tuner": {"name": "Oracle"}, "objective": "acc", "constraints": [{"metric": "ms", "max": 5}], "trainingService": {"platform": "moon"}}),
         &["tuner.name", "trainingService.platform"]),
        (json!({"searchSpace": {"lr": {"_type": "choice", "_value": []}}, "tuner": {"name": "Batch"}, "owner": 5}), &["searchSpace.lr._value", "owner"]),
        // A name with a dot is the name of a field at the top.
        (json!({"tuner.name": "TPE", "owner": 5}), &["tuner.name", "owner"]),
        // The command of a notification is not the trials'.
        (json!({"tuner": "TPE", "notifications": {"command": 5}, "maxTrialNumber": 0}),
         &["tuner", "notifications.command", "maxTrialNumber"]),
    ]);
}

#[test]
fn consequences_of_a_problem_are_not_reported() {
    #[rustfmt::skip]
    check_table([
        // The values that a faulty tuner would supply are unknown, also in the commands of the service.
        (json!({"tuner": {"name": "Hyperband", "classArgs": {"typo": 1}}, "maxTrialNumber": 0, "trialCommand": null,
                "trainingService": {"platform": "local", "trialCommand": "t {{TRIAL_BUDGET}}"}}),
         &["tuner.classArgs.typo", "maxTrialNumber"][..]),
        // An argument is not compared with the default of a faulty one.
        (json!({"tuner": {"name": "BOHB", "classArgs": {"max_budget": "x", "min_budget": 50}}, "maxTrialNumber": 0}),
         &["tuner.classArgs.max_budget", "maxTrialNumber"]),
        (json!({"assessor": {"name": "ASHA", "classArgs": {"max_steps": 9, "min_steps": "x"}}, "maxTrialNumber": 0}),
         &["assessor.classArgs.min_steps", "maxTrialNumber"]),
        (json!({"tuner": {"name": "Oracle"}, "trialRepeats": 2, "maxTrialNumber": 0}), &["tuner.name", "maxTrialNumber"]),
        // The name may be that of a tuner that NNI lacks, and not that of the most similar one, `PPO`.
        (json!({"tuner": {"name": "PSO"}, "trialRepeats": 3}), &["tuner.name"]),
        // A section without its only field would be another one.
        (json!({"tuner": {"class": "m.C"}, "searchSpace": {"layers": {"min": 1}}}), &["tuner.class"]),
        (json!({"assessor": {"colour": 1}}), &["assessor.colour"]),
        // The misspelt mode is probably `maximize`, for which the assessor is right.
        (json!({"tuner": {"name": "TPE", "classArgs": {"optimize_mode": "maximise"}}, "assessor": {"name": "Curvefitting"}}),
         &["tuner.classArgs.optimize_mode"]),
        (json!({"tuner": {"name": "TPE", "classArgs": {"optimize_mode": "up"}}, "assessor": {"name": "Curvefitting", "classArgs": {"epoch_num": 9}}}),
         &["tuner.classArgs.optimize_mode"]),
        // The objective has a name, although the rest of it is wrong.
        (json!({"objective": {"metric": "acc", "direction": "up"}, "constraints": [{"metric": "ms", "max": 5}]}), &["objective.direction"]),
        // The direction or the objective may be what an unknown field meant.
        (json!({"tuner": {"name": "TPE"}, "assessor": {"name": "Curvefitting", "classArgs": {"epoch_num": 9}}, "objective": {"metric": "acc", "goal": "maximize"}}), &["objective.goal"]),
        (json!({"tuner": {"name": "TPE", "optimize_mode": "maximize"}, "assessor": {"name": "Curvefitting", "classArgs": {"epoch_num": 9}}}), &["tuner.optimize_mode"]),
        (json!({"tuner": {"name": "TPE"}, "assessor": {"name": "Curvefitting", "classArgs": {"epoch_num": 9}}, "direction": "maximize"}), &["direction"]),
        (json!({"metric": "acc", "constraints": [{"metric": "ms", "max": 5}], "tuner": {"name": "TPE"}}), &["metric"]),
        (json!({"tuner": {"type": "TPE", "classArgs": {"seed": 1}}}), &["tuner.type"]),
        (json!({"tuner": {"name": "TPE"}, "objectives": [{"name": "acc", "direction": "maximize"}, {"metric": "ms", "direction": "minimize"}]}), &["objectives[0].name"]),
        // The commands of several services are equal, although both are wrong.
        (json!({"trialCommand": null, "trainingService": [{"platform": "local", "trialCommand": "t {{rl}}"}, {"platform": "plugin", "command": ["s"], "trialCommand": "t {{rl}}"}]}),
         &["trainingService[0].trialCommand"]),
        (json!({"trialCommand": "t {{zz}}", "trainingService": [{"platform": "local"}, {"platform": "plugin", "command": ["s"], "trialCommand": "t {{zz}}"}]}),
         &["trialCommand"]),
        // A field under two names.
        (json!({"search_space": {"lr": {"_type": "uniform", "_value": [0, 1]}}}), &["searchSpace"]),
        (json!({"searchSpaceFile": "s.yml", "search_space_file": "s.yml"}), &["searchSpaceFile"]),
        (json!({"trialConcurency": 4, "trial_concurrency": 0, "trialConcurrency": 2}), &["trialConcurrency", "trialConcurency"]),
    ]);
}

#[test]
fn problems_that_depend_on_a_faulty_search_space_are_not_reported() {
    #[rustfmt::skip]
    check_table([
        (json!({"searchSpace": {"lr": {"_type": "gauss", "_value": []}}, "trialCommand": "t {{lr}}", "maxTrialNumber": "x"}),
         &["searchSpace.lr._type", "maxTrialNumber"][..]),
        // The space of a tuner is not checked after a repair.
        (json!({"searchSpace": null, "tuner": {"name": "Batch"}, "trialCommand": "t {{lr}}", "maxTrialNumber": 0}),
         &["searchSpace", "maxTrialNumber"]),
        (json!({"searchSpace": {"lr": {"_type": "choice", "_value": []}}, "tuner": {"name": "Batch"}, "maxTrialNumber": 0}), &["searchSpace.lr._value", "maxTrialNumber"]),
        (json!({"searchSpace": {"lr": {"_type": "choise", "_value": [1]}, "b": {"_type": "uniform", "_value": [2, 1]}}, "tuner": {"name": "GridSearch"}, "trialConcurrency": 0}),
         &["searchSpace.lr._type", "searchSpace.b._value", "trialConcurrency"]),
        // Initial points are checked against a valid space only.
        (json!({"initialTrials": [{"lr": 2}], "maxTrialNumber": 0}), &["initialTrials[0].lr", "maxTrialNumber"]),
        (json!({"initialTrials": [{"lr": 2}], "searchSpace": {"lr": {"_type": "choice", "_value": []}}, "maxTrialNumber": 0}),
         &["searchSpace.lr._value", "maxTrialNumber"]),
    ]);
}

#[test]
fn problems_of_a_search_space_file_name_the_file() {
    let document = document_with(
        &json!({"searchSpaceFile": "space.yml", "searchSpaces": 1, "searchSpacePath": "s"}),
    );
    let (directory, file) = write_experiment_file(&document.to_string());
    std::fs::write(directory.path().join("space.yml"), "x: [1]\ny: {_type: choice, _value: []}\n")
        .unwrap();
    let problem = load(&file).unwrap_err().problem;
    let in_space_file: Vec<bool> =
        problem.lines().map(|line| line.contains("space.yml: line ")).collect();
    assert_eq!(in_space_file, [false, false, false, true, true], "{problem}");
}

#[test]
fn at_most_twenty_problems_are_reported() {
    let unknown: serde_json::Map<String, Value> =
        (0..30_000).map(|i| (format!("word{i}"), json!(i))).collect();
    let legacy = json!({"trainingServicePlatform": "local", "trial": {"command": "true"}});
    for base in [document_with(&json!({})), legacy] {
        let mut document = base;
        document.as_object_mut().unwrap().extend(unknown.clone());
        let problem = load_text(&document.to_string()).unwrap_err();
        assert_eq!(problem.lines().next(), Some("more than 20 problems"));
        assert_eq!(problem.lines().count(), 21, "{problem}");
    }
}
