mod canonical;
mod files;
mod goals;
mod hybrid;
mod legacy;
mod messages;
mod openpai;
mod points;
mod problem_list;
pub(super) mod reference;

use std::time::Duration;

use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::*;

/// Returns the results of NNI's own reader for some documents.
fn nni_results(part: &str) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(include_str!("../../fixtures/config/nni_configs.json")).unwrap();
    all[part].as_array().unwrap().clone()
}

/// Creates a directory with an experiment file.
fn write_experiment_file(text: &str) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("experiment.yml");
    std::fs::write(&file, text).unwrap();
    (directory, file)
}

fn load_text(text: &str) -> Result<ExperimentSpec, String> {
    let (_directory, file) = write_experiment_file(text);
    load(&file).map_err(|error| {
        assert_eq!(error.file, file, "{error}");
        error.problem
    })
}

/// Returns a valid document with some fields replaced. A `null` removes a field.
fn document_with(changes: &Value) -> Value {
    let mut document = json!({
        "searchSpace": {"lr": {"_type": "uniform", "_value": [0, 1]}},
        "trialCommand": "python3 trial.py",
        "trialConcurrency": 2,
        "tuner": {"name": "Random"},
        "trainingService": {"platform": "local"}
    });
    for (name, value) in changes.as_object().unwrap() {
        document[name] = value.clone();
    }
    document
}

#[test]
fn a_plain_experiment_is_read() {
    let text = "
experimentName: iris
searchSpace:
  lr: {_type: loguniform, _value: [1e-4, 0.1]}
trialCommand: python3 trial.py --lr {{lr}}
trial_concurrency: 2
maxTrialNumber: 20
maxExperimentDuration: 1h
maxTrialDuration: 30s
tuner:
  name: random
  classArgs: {optimize_mode: minimize, seed: 7}
trainingService: {platform: local}
objective: accuracy
";
    let (directory, file) = write_experiment_file(text);
    let spec = load(&file).unwrap();
    assert_eq!(spec.name.as_deref(), Some("iris"));
    assert_eq!(spec.search_space.names().collect::<Vec<_>>(), ["lr"]);
    assert_eq!(spec.trial_command, "python3 trial.py --lr {{lr}}");
    assert_eq!(spec.trial_code_directory, directory.path().canonicalize().unwrap());
    assert_eq!((spec.trial_concurrency, spec.max_trial_number), (2, Some(20)));
    assert_eq!(spec.max_experiment_duration, Some(Duration::from_hours(1)));
    assert_eq!(spec.max_trial_duration, Some(Duration::from_secs(30)));
    assert_eq!((spec.tuner.name(), spec.trial_gpu_number), ("Random", None));
    assert_eq!(spec.direction, Direction::Minimize);
    assert_eq!(spec.objective.as_deref(), Some("accuracy"));
    assert_eq!(spec.canonical["objective"], "accuracy");
}

#[test]
fn the_canonical_form_equals_nnis_and_reads_back_as_the_same_spec() {
    for case in nni_results("canonical") {
        let (directory, file) = write_experiment_file(&case["document"].to_string());
        let base = directory.path().canonicalize().unwrap();
        let expected = case["canonical"]
            .to_string()
            .replace("BASE", base.to_str().unwrap())
            .replace("HOME", &std::env::var("HOME").unwrap());
        let spec = load(&file).unwrap();
        assert_eq!(spec.canonical.to_string(), expected);
        // The document in the form that the store returns.
        let stored: Value = serde_json::from_str(&spec.canonical.to_string()).unwrap();
        assert_eq!(from_canonical(&stored).unwrap(), spec);
    }
}

#[test]
fn an_empty_string_counts_as_an_unset_field() {
    // NNI 3.0 writes it for FrameworkController and Kubeflow, and an older loader may have written it to a local file.
    let service = json!({"platform": "local", "trialCommand": "", "trialCodeDirectory": ""});
    let spec = load_text(&document_with(&json!({"trainingService": service})).to_string()).unwrap();
    assert_eq!(spec.trial_command, "python3 trial.py");
    let nowhere = json!({"trialCommand": "", "trainingService": service});
    let problem = load_text(&document_with(&nowhere).to_string()).unwrap_err();
    assert_eq!(problem, "trialCommand: is missing; for example: python3 trial.py");
}

#[test]
fn durations_and_memory_are_read_as_in_nni() {
    for case in nni_results("durations") {
        if let Some(seconds) = case[1].as_u64() {
            assert_eq!(units::parse_duration(&case[0]), Ok(Duration::from_secs(seconds)), "{case}");
        }
    }
    for case in nni_results("memory") {
        if let Some(mib) = case[1].as_u64() {
            assert_eq!(units::parse_memory_mib(&case[0]), Ok(mib), "{case}");
        }
    }
}

#[test]
fn machines_use_the_address_of_their_section_or_of_the_file() {
    let section = json!({"platform": "remote", "machineList": [{"host": "h"}]});
    let mut own = section.clone();
    own["nniManagerIp"] = json!("10.0.0.2");
    for (section, expected) in [(section, "10.0.0.1"), (own, "10.0.0.2")] {
        let file = document_with(&json!({"trainingService": section, "nniManagerIp": "10.0.0.1"}));
        let spec = load_text(&file.to_string()).unwrap();
        assert_eq!(spec.training_service.section().advertise(), Some(expected));
        assert_eq!(from_canonical(&spec.canonical).unwrap(), spec);
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn a_wrong_field_is_named_with_what_is_allowed() {
    let machine = |fields: Value| {
        let mut machine = json!({"host": "h"});
        machine.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        json!({"trainingService": {"platform": "remote", "machineList": [machine]}})
    };
    #[rustfmt::skip]
    let table = [
        (json!({"trialComand": "x"}),                 "trialComand: unknown field; did you mean `trialCommand`? Allowed: experimentName, "),
        (json!({"trial_command": "x"}),               "trialCommand: is given twice, here as `trial_command`"),
        (json!({"trialCommand": null}),               "trialCommand: is missing; for example: python3 trial.py"),
        (json!({"trialCommand": " "}),                "trialCommand: must not be empty"),
        (json!({"trialCommand": "a\0b"}),            "trialCommand: must not contain a NUL character"),
        (json!({"trialCommand": "t {{lr --x {{lr}}"}), "trialCommand: {{lr is not closed; write {{lr}}"),
        (json!({"trialCommand": "t {{ lr }"}),        "trialCommand: {{lr is not closed; write {{lr}}"),
        (json!({"trialCommand": "t {{rl}}"}),         "trialCommand: {{rl}} names no parameter of the search space; did you mean `lr`? Allowed: lr"),
        (json!({"experimentName": 5}),                "experimentName: expected a string, found 5; put it in quotes"),
        (json!({"experimentType": "nas"}),            "experimentType: `nas` is not known; allowed: hpo"),
        (json!({"trialConcurrency": null}),           "trialConcurrency: is missing; say how many trials may run at a time"),
        (json!({"trialConcurrency": 1_000_000}),      "trialConcurrency: is 1000000; at most 100000 is possible"),
        (json!({"trialConcurrency": 0}),              "trialConcurrency: expected an integer of at least 1, found 0"),
        (json!({"trialConcurrency": "2"}),            "trialConcurrency: expected an integer of at least 1, found the string \"2\"; remove the quotes"),
        (json!({"trialConcurrency": "two"}),          "trialConcurrency: expected an integer of at least 1, found the string \"two\""),
        (json!({"maxTrialNumber": 2.5}),              "maxTrialNumber: expected an integer of at least 1, found 2.5"),
        (json!({"maxTrialNumber": 1e3}),              "maxTrialNumber: expected an integer of at least 1, found 1000.0; write it in digits, without a point or an exponent"),
        (json!({"maxTrialNumber": 1e20}),             "maxTrialNumber: expected an integer of at least 1, found 1e+20; the number is too large"),
        (json!({"maxTrialDuration": "soon"}),         "maxTrialDuration: expected a duration such as 90, 90s, 10m, 1.5h or 2d, found the string \"soon\""),
        (json!({"tunerPatience": "a while"}),         "tunerPatience: expected a duration such as 90, 90s, 10m, 1.5h or 2d, found the string \"a while\""),
        (json!({"tunerPatience": "900ms"}),           "tunerPatience: expected a duration from 1s to 7d, found 0.9 s"),
        (json!({"tunerPatience": "8d"}),              "tunerPatience: expected a duration from 1s to 7d, found 691200 s"),
        (json!({"useAnnotation": true}),              "useAnnotation: NNI 3.0 dropped annotations; describe the space in `searchSpace` instead"),
        (json!({"debug": "yes"}),                     "debug: expected true or false, found the string \"yes\""),
        (json!({"logLevel": "warn"}),                 "logLevel: `warn` is not known; allowed: trace, debug, info, warning, error, fatal, critical"),
        (json!({"tunerGpuIndices": [0, 0]}),          "tunerGpuIndices: names the index 0 twice"),
        (json!({"searchSpace": null}),                "searchSpace: has no value; indent its parameters below it, or give a `searchSpaceFile`"),
        (json!({"searchSpaceFile": "s.json"}),        "searchSpaceFile: "),
        (json!({"maxTrialNumPerGpu": 2}),             "maxTrialNumPerGpu: unknown field; here it is `trainingService.maxTrialNumberPerGpu`"),
        (json!({"searchSpace": {"lr": {"_type": "uniform", "_value": [1, 0]}}}), "searchSpace.lr._value: the low end 1 must be less than the high end 0"),
        (json!({"tuner": null}),                      "tuner: is missing; for example {name: Random}"),
        (json!({"tuner": "Random"}),                  "tuner: expected fields (name, className, codeDirectory, command, classArgs), found the string \"Random\"; write {name: Random}"),
        (json!({"tuner": ["Random"]}),                "tuner: expected fields (name, className, codeDirectory, command, classArgs), found a list"),
        (json!({"tuner": {"name": "Rndom"}}),         "tuner.name: `Rndom` is not a tuner; did you mean `Random`?"),
        (json!({"tuner": {"name": "Random", "classArgs": [1]}}), "tuner.classArgs: expected arguments by name, found a list"),
        (json!({"tuner": {"name": "Random", "classArgs": {"sed": 1}}}), "tuner.classArgs.sed: is not an argument of Random; did you mean `seed`?"),
        (json!({"tuner": {"name": "Batch"}}),         "searchSpace.lr: for the tuner Batch it must be a `choice` of whole parameter sets"),
        (json!({"tuner": {"className": "C"}}),        "tuner.className: expected `module.Class`, found `C`"),
        (json!({"tuner": {"className": "m.C", "codeDirectory": "none"}}), "tuner.codeDirectory: "),
        (json!({"tuner": {"name": "TPE", "command": ["a"]}}), "tuner.command: is given besides the name of an algorithm"),
        (json!({"tuner": {"command": "a b"}}),        "tuner.command: expected a program and its arguments as a list, such as [python3, search.py], found the string"),
        (json!({"tuner": {"command": []}}),           "tuner.command: expected a program"),
        (json!({"assessor": {"command": ["a"]}}),     "assessor.command: belongs to `tuner`"),
        (json!({"tuner": null, "advisor": {"className": "nni.algorithms.hpo.bohb_advisor.BOHB"}, "assessor": {"name": "Medianstop"}}), "assessor: is given besides an advisor"),
        (json!({"pythonInterpreter": "no/python"}),   "pythonInterpreter: program "),
        (json!({"advisor": {"name": "Random"}}),      "advisor: is given besides `tuner`; keep one of them"),
        (json!({"assessor": {"name": "Medianstopp"}}), "assessor.name: `Medianstopp` is not an assessor; did you mean `Medianstop`?"),
        (json!({"assessor": {"name": "Medianstop", "classArgs": {"stp": 1}}}), "assessor.classArgs.stp: is not an argument of Medianstop; allowed: optimize_mode, start_step"),
        (json!({"trainingService": null}),            "trainingService: is missing; for example {platform: local}"),
        (json!({"trainingService": "local"}),         "trainingService: expected fields (platform, trialCommand, trialCodeDirectory, trialGpuNumber, nniManagerIp, debug, useActiveGpu, maxTrialNumberPerGpu, gpuIndices, reuseMode), found the string \"local\"; write {platform: local}"),
        (json!({"trainingService": {"platform": "remote", "machineList": ["gpu1"]}}), "trainingService.machineList[0]: expected fields (host, port, user, password, sshKeyFile, passwordFile, sshPassphrase, sshPassphraseFile, knownHosts, proxyJump, sshOptions, useActiveGpu, maxTrialNumberPerGpu, gpuIndices, maxTrialNumber, pythonPath, remoteDirectory, name), found the string \"gpu1\"; write {host: gpu1}"),
        (json!({"trainingService": {}}),              "trainingService.platform: is missing; allowed: local"),
        (json!({"trainingService": {"platform": "lokal"}}),  "trainingService.platform: `lokal` is not a platform; did you mean `local`? This build has local"),
        (json!({"trainingService": {"platform": "aml"}}), "trainingService.platform: `aml` is not supported; the platforms are local, remote, plugin, openpai, "),
        (json!({"trainingService": {"platform": "openpay"}}), "trainingService.platform: `openpay` is not a platform; did you mean `openpai`?"),
        (json!({"trainingService": [{"platform": "aml"}]}), "trainingService[0].platform: `aml` is not supported"),
        (json!({"trainingService": {"platform": "local", "gpuIndexes": 1}}), "trainingService.gpuIndexes: unknown field; did you mean `gpuIndices`?"),
        (json!({"trainingService": {"platform": "local", "maxTrialNumberPerGpu": 2}}), "trainingService.maxTrialNumberPerGpu: 2 has no meaning unless `trialGpuNumber` is above 0; remove it"),
        (json!({"trialGpuNumber": 1}),                "trainingService.useActiveGpu: is missing, because `trialGpuNumber` is above 0; write true if trials"),
        (json!({"trialGpuNumber": -1}),               "trialGpuNumber: expected an integer of at least 0, found -1"),
        (json!({"sharedStorage": {}}),                "sharedStorage: is not supported; mount the disk on every machine, or name a disk for pods in `trainingService.storage`"),
        (json!({"name": "iris"}),                     "name: unknown field; here it is `experimentName`"),
        (json!({"searchSpacePath": "s.json"}),        "searchSpacePath: unknown field; here it is `searchSpaceFile`"),
        (json!({"maxExecDuration": "1h"}),            "maxExecDuration: unknown field; here it is `maxExperimentDuration`"),
        (json!({"tuner": {"builtinTunerName": "TPE"}}), "tuner.builtinTunerName: unknown field; here it is `name`"),
        (json!({"assessor": {"builtinAssessorName": "Medianstop"}}), "assessor.builtinAssessorName: unknown field; here it is `name`"),
        (json!({"max_trials": 9}),                    "max_trials: unknown field; here it is `maxTrialNumber`"),
        (json!({"max_evals": 9}),                     "max_evals: unknown field; here it is `maxTrialNumber`"),
        (json!({"gpuNumber": 1}),                     "gpuNumber: unknown field; here it is `trialGpuNumber`"),
        (json!({"concurrency": 2}),                   "concurrency: unknown field; here it is `trialConcurrency`"),
        (json!({"n_trials": 9}),                      "n_trials: unknown field; here it is `maxTrialNumber`"),
        (json!({"parallelTrialCount": 2}),            "parallelTrialCount: unknown field; here it is `trialConcurrency`"),
        (json!({"direction": "minimize"}),            "direction: unknown field; here it is `tuner.classArgs.optimize_mode`"),
        (json!({"trainingService": {"platform": "local", "n_jobs": 2}}), "trainingService.n_jobs: unknown field; allowed: "),
        (json!({"objective": ""}),                    "objective: must not be empty"),
        (json!({"objective": ["loss"]}),              "objective: expected a string, found a list; several objectives belong in `objectives`"),
        (machine(json!({"password": "p"})),           "trainingService.machineList[0].password: other users can read this secret; run `chmod 600 "),
        (machine(json!({"maxTrialNumber": 0})),       "trainingService.machineList[0].maxTrialNumber: expected an integer of at least 1"),
        (json!({"trainingService": {"platform": "remote", "machineList": [{"host": "h"}], "machinePatience": "soon"}}), "trainingService.machinePatience: expected a duration such as "),
    ];
    assert_eq!(load_text(&document_with(&json!({})).to_string()).err(), None);
    for (changes, message) in table {
        let problem = load_text(&document_with(&changes).to_string()).unwrap_err();
        assert!(problem.starts_with(message), "{changes}: {problem}");
    }
}

#[test]
fn the_allowed_fields_are_listed_once_for_several_unknown_fields() {
    let words = json!({"n_jobs": 2, "x": 1, "y": 1, "run_cap": 9});
    let problem = load_text(&document_with(&words).to_string()).unwrap_err();
    let lines: Vec<&str> = problem.lines().collect();
    assert_eq!(lines.len(), 5, "{problem}");
    let ends = [
        "here it is `trialConcurrency`",
        "x: unknown field",
        "owner, tags",
        "here it is `maxTrialNumber`",
    ];
    for (line, end) in lines[1..].iter().zip(ends) {
        assert!(line.ends_with(end), "{end}: {problem}");
    }
    assert_eq!(problem.matches("allowed: ").count(), 1, "{problem}");
}

#[test]
fn a_users_own_tuner_may_have_any_search_space() {
    let class = json!({"className": "m.C"});
    let own = json!({"layers": {"min": 1, "max": 5}, "mode": "fast", "none": null});
    let nas = json!({"conv": {"_type": "layer_choice", "_value": ["a", "b"]}});
    #[rustfmt::skip]
    let table = [
        (json!({"tuner": class, "searchSpace": {}}),                  None),
        (json!({"tuner": class, "searchSpace": own}),                 None),
        (json!({"tuner": {"class_name": "m.C"}, "searchSpace": own}), None),
        (json!({"tuner": null, "advisor": class, "searchSpace": own}), None),
        (json!({"tuner": {"command": ["search"]}, "searchSpace": own}), None),
        (json!({"tuner": {"name": "PPOTuner"}, "searchSpace": nas}),  None),
        // The parameters' names are unknown, so the placeholder is accepted.
        (json!({"tuner": class, "searchSpace": own, "trialCommand": "t {{depth}}"}), None),
        (json!({"tuner": class, "trialCommand": "t {{depth}}"}),      Some("trialCommand: {{depth}} names no parameter")),
        (json!({"tuner": class, "searchSpace": [own]}),               Some("searchSpace: expected an object of parameters, found a list")),
        (json!({"tuner": class, "searchSpace": null}),                Some("searchSpace: has no value")),
        (json!({"tuner": {"name": "TPE"}, "searchSpace": own}),       Some("3 problems\n  line 1, column 27: searchSpace.layers.min: unknown")),
        (json!({"tuner": {"name": "PBT"}, "searchSpace": {}}),        Some("searchSpace: is empty")),
        (json!({"tuner": null, "searchSpace": {}}),                   Some("2 problems\n  line 1, column 2: searchSpace: is empty")),
        // A typing error in the tuner is reported, rather than a problem of the space for another tuner.
        (json!({"tuner": {"clasName": "m.C"}, "searchSpace": own, "debug": 1}), Some("2 problems\n  line 1, column 135: tuner.clasName: unknown field; did you mean `className`? Allowed: name, className, codeDirectory, command, classArgs\n  line 1, column 192: debug: ")),
    ];
    for (changes, message) in table {
        let document = document_with(&changes);
        let (_directory, file) = write_experiment_file(&document.to_string());
        match (load(&file).map_err(|error| error.problem), message) {
            (Ok(spec), None) => {
                assert_eq!(spec.search_space.as_json(), &document["searchSpace"]);
                assert_eq!(spec.canonical["searchSpace"], document["searchSpace"]);
                let stored: Value = serde_json::from_str(&spec.canonical.to_string()).unwrap();
                assert_eq!(from_canonical(&stored).unwrap(), spec);
            }
            (Err(problem), Some(message)) => {
                assert!(problem.starts_with(message), "{changes}: {problem}");
            }
            (loaded, _) => panic!("{changes}: {loaded:?}"),
        }
    }
}

#[test]
fn an_assessor_is_checked_and_stored() {
    let given = json!({"assessor": {"name": "medianStop", "classArgs": {"start_step": 2}}});
    let spec = load_text(&document_with(&given).to_string()).unwrap();
    let canonical = json!({"name": "Medianstop", "classArgs": {"start_step": 2}});
    assert_eq!(spec.canonical["assessor"], canonical);
    assert_eq!(spec.assessor.as_ref().map(AssessorChoice::name), Some("Medianstop"));
}

#[test]
fn a_code_directory_must_be_a_directory() {
    let (directory, file) =
        write_experiment_file(&document_with(&json!({"trialCodeDirectory": "code"})).to_string());
    let code = directory.path().canonicalize().unwrap().join("code");
    let problem = |path: &Path| load(path).unwrap_err().problem;
    assert_eq!(problem(&file), format!("trialCodeDirectory: {} does not exist", code.display()));
    std::fs::write(&code, "").unwrap();
    assert_eq!(
        problem(&file),
        format!("trialCodeDirectory: {} is not a directory", code.display())
    );
    std::fs::remove_file(&code).unwrap();
    std::fs::create_dir(&code).unwrap();
    assert_eq!(load(&file).unwrap().trial_code_directory, code);
}

#[test]
fn a_search_space_file_is_read_as_json_or_yaml_and_named_in_errors() {
    let document = document_with(&json!({"searchSpace": null, "searchSpaceFile": "space"}));
    let (directory, file) = write_experiment_file(&document.to_string());
    let space = directory.path().canonicalize().unwrap().join("space");
    let problem = load(&file).unwrap_err();
    assert_eq!(problem.file, file);
    assert!(problem.problem.starts_with("searchSpaceFile: "), "{problem}");
    #[rustfmt::skip]
    let table = [
        ("x: {_type: uniform, _value: [1e-3, 1]}",        None),
        (r#"{"x": {"_type": "uniform", "_value": [0, 1]}}"#, None),
        ("x: {_type: uniform, _value: [1, 0]}",           Some("x._value: the low end 1 must be less than")),
        ("x: [1,",                                        Some("the search space: line ")),
        ("[]",                                            Some("searchSpace: expected an object of parameters")),
    ];
    for (text, message) in table {
        std::fs::write(&space, text).unwrap();
        match (load(&file), message) {
            (Ok(spec), None) => {
                assert_eq!(spec.search_space.names().collect::<Vec<_>>(), ["x"]);
                assert_eq!(spec.canonical.get("searchSpaceFile"), None);
            }
            (Err(error), Some(message)) => {
                assert!(error.file == space && error.problem.starts_with(message), "{error}");
            }
            (loaded, _) => panic!("{text}: {loaded:?}"),
        }
    }
    let text = "{\"x\": [1],\n\"y\": {\"_type\": \"uniform\", \"_value\": [1, 0]}}";
    std::fs::write(&space, text).unwrap();
    let lines: Vec<String> = load(&file).unwrap_err().problem.lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 3, "{lines:?}");
    for (line, place) in
        lines[1..].iter().zip(["line 1, column 2: x: ", "line 2, column 27: y._value: "])
    {
        assert!(line.starts_with(&format!("  {}: {place}", space.display())), "{line}");
    }
}

#[test]
fn a_search_space_file_counts_besides_a_search_space() {
    let current = document_with(&json!({"searchSpaceFile": "space"}));
    let legacy = json!({
        "trainingServicePlatform": "local", "trialConcurrency": 1, "trial": {"command": "true", "codeDir": "."},
        "tuner": {"builtinTunerName": "Random"}, "searchSpacePath": "space", "searchSpace": current["searchSpace"],
    });
    for document in [current, legacy] {
        let (directory, file) = write_experiment_file(&document.to_string());
        #[rustfmt::skip]
        let table = [
            (document["searchSpace"].to_string(),               vec![]),
            ("x: {_type: uniform, _value: [0, 2]}".to_owned(),  vec!["searchSpace"]),
        ];
        for (text, ignored) in table {
            std::fs::write(directory.path().join("space"), &text).unwrap();
            let spec = load(&file).unwrap();
            assert_eq!(spec.ignored, ignored, "{document}: {text}");
            let names: Vec<_> = spec.search_space.names().collect();
            assert_eq!(names == ["x"], !ignored.is_empty(), "{text}");
        }
    }
}

#[test]
fn a_working_directory_elsewhere_causes_a_warning() {
    let warning = |changes: Value| {
        let spec = load_text(&document_with(&changes).to_string()).unwrap();
        spec.working_directory_warning(Path::new("/data"))
    };
    assert_eq!(warning(json!({})), None);
    assert_eq!(warning(json!({"experimentWorkingDirectory": "/data"})), None);
    let elsewhere = warning(json!({"experimentWorkingDirectory": "/disk"})).unwrap();
    assert!(elsewhere.contains("`--data-dir /disk`"), "{elsewhere}");
    let spaced = warning(json!({"experimentWorkingDirectory": "/my disk"})).unwrap();
    assert!(spaced.contains("`--data-dir '/my disk'`"), "{spaced}");
}

#[test]
fn the_substitute_for_a_missing_search_space_has_no_problems() {
    let document = document_with(&json!({"searchSpace": null, "tuner": {"name": "Batch"}}));
    let problem = load_text(&document.to_string()).unwrap_err();
    assert!(problem.starts_with("searchSpace: has no value"), "{problem}");
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let missing = Path::new("/nowhere/experiment.yml");
    let message = load(missing).unwrap_err().to_string();
    assert!(message.starts_with("/nowhere/experiment.yml: cannot be read: "), "{message}");
    assert_eq!(load_text("").unwrap_err(), "is empty");
    for (text, found) in
        [("- a", "a list"), ("# nothing yet\n", "nothing"), ("iris", "the string \"iris\"")]
    {
        let expected =
            "the file: expected a mapping of fields, such as `trialConcurrency: 2`, found";
        assert_eq!(load_text(text).unwrap_err(), format!("{expected} {found}"));
    }
    let problem = load_text("trialCommand: [").unwrap_err();
    assert!(problem.starts_with("line "), "{problem}");
}

#[test]
fn placeholders_of_a_batch_may_use_names_in_every_set() {
    let space = json!({"sets": {"_type": "choice", "_value": [{"x": 1, "y": 2}, {"x": 3}]}});
    let batch = |command: &str| {
        document_with(
            &json!({"searchSpace": space, "tuner": {"name": "Batch"}, "trialCommand": command}),
        )
    };
    assert_eq!(load_text(&batch("t {{x}}").to_string()).err(), None);
    let problem = load_text(&batch("t {{y}}").to_string()).unwrap_err();
    assert!(problem.starts_with("trialCommand: {{y}} names no parameter"), "{problem}");
}

proptest! {
    #[test]
    fn fields_with_random_values_never_panic(
        name in prop::sample::select(vec![
            "searchSpace", "trialCommand", "trialConcurrency", "tuner", "trainingService", "assessor",
            "trainingServicePlatform", "trial", "advisor", "maxTrialDuration", "tunerGpuIndices",
            "tunerPatience", "machineList", "frameworkcontrollerConfig",
        ]),
        value in prop_oneof![
            Just(json!(null)), Just(json!([])), Just(json!({})), Just(json!([{}])), Just(json!("")),
            Just(json!({"name": {}})), Just(json!({"platform": 1})), any::<i64>().prop_map(Value::from),
            ".*".prop_map(Value::from),
        ],
    ) {
        drop(load_text(&document_with(&json!({name: value})).to_string()));
    }
}

#[test]
fn trials_on_other_machines_always_run_a_snapshot() {
    let remote = json!({"platform": "remote", "machineList": [{"host": "h"}]});
    let local = json!({"platform": "local"});
    #[rustfmt::skip]
    let table = [
        (&local,  Value::Null,  Ok(false)),
        (&local,  json!(false), Ok(false)),
        (&local,  json!(true),  Ok(true)),
        (&remote, Value::Null,  Ok(true)),
        (&remote, json!(true),  Ok(true)),
        (&remote, json!(false), Err("codeSnapshot: is false, but trials on other machines always run a copy")),
        (&local,  json!("yes"), Err("codeSnapshot: expected true or false")),
    ];
    for (service, wanted, expected) in table {
        let spec = load_text(
            &document_with(&json!({"trainingService": service, "codeSnapshot": wanted}))
                .to_string(),
        );
        let case = format!("{service} {wanted}");
        match (spec, expected) {
            (Ok(spec), Ok(copies)) => {
                assert_eq!(spec.training_service.section().needs_code(), copies, "{case}");
                assert_eq!(
                    spec.canonical.get("codeSnapshot"),
                    Some(&wanted).filter(|it| !it.is_null())
                );
            }
            (Err(problem), Err(expected)) => assert!(problem.starts_with(expected), "{problem}"),
            (spec, expected) => panic!("{case}: {:?}, not {expected:?}", spec.map(|_| ())),
        }
    }
}

/// Checks that the algorithms of `spec` have this `direction`, and that there is a warning for the user's own class
/// without a direction.
fn expect_direction(spec: &ExperimentSpec, direction: Direction, rule: &str) {
    let tuner = match &spec.tuner {
        TunerChoice::BuiltIn(tuner) => &tuner.class_args,
        TunerChoice::Nni { algorithm, .. } => &algorithm.class_args,
        TunerChoice::Command { .. } => panic!("{rule}"),
    };
    assert_eq!(tuner["optimize_mode"], direction.as_str(), "{rule}");
    let (name, assessor) = match &spec.assessor {
        Some(AssessorChoice::BuiltIn(native)) => (native.name.as_str(), &native.class_args),
        Some(AssessorChoice::Nni(algorithm)) => (algorithm.name(), &algorithm.class_args),
        None => ("none", tuner),
    };
    let warning = spec.missing_direction_warning();
    if ["Curvefitting", "mine.Strict"].contains(&name) {
        assert!(assessor.is_empty(), "{rule}");
        assert_eq!(warning.is_some(), name == "mine.Strict", "{rule}: {warning:?}");
    } else {
        assert_eq!(assessor["optimize_mode"], direction.as_str(), "{rule}");
        assert_eq!(warning, None, "{rule}");
    }
}

#[test]
fn an_experiment_has_one_direction() {
    use Direction::{Maximize, Minimize};
    let tuner = |name: &str, direction: Option<&str>| match direction {
        None => json!({"name": name}),
        Some(direction) => json!({"name": name, "classArgs": {"optimize_mode": direction}}),
    };
    let toward = |direction: &str| json!({"direction": direction});
    let class = |class: &str| json!({"className": class});
    let nni = |name: &str| class(&format!("nni.algorithms.hpo.{name}"));
    #[rustfmt::skip]
    let table = [
        ("an assessor follows the tuner",     tuner("TPE", Some("maximize")),    tuner("Medianstop", None),             Value::Null,        Ok((Maximize, false))),
        ("a tuner follows the assessor",      tuner("TPE", None),                tuner("ASHA", Some("maximize")),       Value::Null,        Ok((Maximize, false))),
        ("both follow the objective",         tuner("TPE", None),                tuner("ASHA", None),                   toward("maximize"), Ok((Maximize, false))),
        ("abbreviations are allowed",         tuner("Random", Some("Min")),      tuner("ASHA", Some("minimize")),       toward("min"),      Ok((Minimize, false))),
        ("NNI's default of TPE is assumed",   tuner("TPE", None),                tuner("Medianstop", None),             Value::Null,        Ok((Minimize, true))),
        ("so is NNI's default of Random",     tuner("Random", None),             Value::Null,                           Value::Null,        Ok((Maximize, true))),
        ("a contradiction is refused",        tuner("TPE", Some("minimize")),    tuner("Medianstop", Some("maximize")), Value::Null,        Err("assessor.classArgs.optimize_mode: is `maximize`, but `tuner.classArgs.optimize_mode` is `minimize`")),
        ("one with the objective, too",       tuner("TPE", Some("minimize")),    Value::Null,                           toward("maximize"), Err("tuner.classArgs.optimize_mode: is `minimize`, but `objective.direction` is `maximize`")),
        ("Curvefitting cannot minimise",      tuner("Random", Some("minimize")), tuner("Curvefitting", None),           Value::Null,        Err("assessor.name: Curvefitting expects results that grow")),
        ("it does not by default, either",    tuner("TPE", None),                tuner("Curvefitting", None),           Value::Null,        Err("assessor.name: Curvefitting expects results that grow, as NNI's does, and TPE minimises by default; state `objective: {direction: maximize}`")),
        ("Curvefitting maximises",            tuner("Random", None),             tuner("Curvefitting", None),           Value::Null,        Ok((Maximize, true))),
        ("so does NNI's class of it",         tuner("Random", Some("minimize")), nni("curvefitting_assessor.CurvefittingAssessor"), Value::Null, Err("assessor.className: nni.algorithms.hpo.curvefitting_assessor.CurvefittingAssessor expects results that grow")),
        ("an assessor by its class follows",  tuner("TPE", Some("minimize")),    nni("medianstop_assessor.MedianstopAssessor"), Value::Null, Ok((Minimize, false))),
        ("tuner and assessor by their class", nni("evolution_tuner.EvolutionTuner"), nni("medianstop_assessor.MedianstopAssessor"), toward("minimize"), Ok((Minimize, false))),
        ("the default of NNI's class holds",  nni("tpe_tuner.TpeTuner"),         nni("medianstop_assessor.MedianstopAssessor"), Value::Null, Ok((Minimize, true))),
        ("the user's class is unchanged",     tuner("TPE", Some("minimize")),    class("mine.Strict"),                  Value::Null,        Ok((Minimize, false))),
        ("a misspelt direction is named",     tuner("Random", None),             Value::Null,                           toward("maximise"), Err("objective.direction: `maximise` is not known; did you mean `maximize`?")),
    ];
    for (rule, tuner, assessor, objective, expected) in table {
        let changes = json!({"tuner": tuner, "assessor": assessor, "objective": objective});
        let (_directory, file) = write_experiment_file(&document_with(&changes).to_string());
        let spec = load(&file).map_err(|error| error.problem);
        match expected {
            Err(message) => assert!(
                spec.as_ref().is_err_and(|error| error.contains(message)),
                "{rule}: {spec:?}"
            ),
            Ok((direction, assumed)) => {
                let spec = spec.unwrap_or_else(|error| panic!("{rule}: {error}"));
                assert_eq!(
                    (spec.direction, spec.direction_assumed),
                    (direction, assumed),
                    "{rule}"
                );
                assert_eq!(spec.assumed_direction_hint().is_some(), assumed, "{rule}");
                expect_direction(&spec, direction, rule);
                // The stored form means the same when the experiment is resumed.
                let again = from_canonical(&spec.canonical).unwrap();
                assert_eq!(again, spec, "{rule}");
            }
        }
    }
}
