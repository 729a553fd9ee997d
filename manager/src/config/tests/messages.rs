//! Tests of the locations and the lists in messages.

use super::*;

#[test]
fn every_problem_names_its_line_and_column() {
    let v2 = "\
searchSpace: {x: {_type: uniform, _value: [0, 1]}}
trialConcurrency: 0
trial_command: true
maxTrialDuration: soon
tuner:
  name: Random
  classArgs: {sed: 1}
trainingService:
  platform: local
  maxTrialNumberPerGpu: none
";
    let v1 = "\
trainingServicePlatform: local
trialConcurrency: 1
searchSpacePath: space.json
tuner: {builtinTunerName: Random}
trial: {command: 'true'}
localConfig:
  gpuIndices: x
";
    let json = "{\n\t\"searchSpace\": {\"x\": {\"_type\": \"uniform\", \"_value\": [0, 1]}},\n\t\"tuner\": {\"nmae\": \"TPE\"}\n}";
    #[rustfmt::skip]
    let table = [
        (v2, vec![
            "line 3, column 1: trialCommand: expected a string, found true; put it in quotes",
            "line 2, column 1: trialConcurrency: ",
            "line 4, column 1: maxTrialDuration: ",
            "line 7, column 15: tuner.classArgs.sed: ",
        ]),
        ("searchSpace: {x: {_type: uniform, _value: [0, one]}}\ntrialConcurrency: 1", vec!["line 1, column 47: searchSpace.x._value[1]: "]),
        (v1, vec!["space.json: line 2, column 8: x._type: "]),
        (json, vec!["  trialConcurrency: is missing", "line 3, column 12: tuner.nmae: unknown field; did you mean `name`?"]),
        ("tuner: 1\nmethod: x\n", vec!["line 2, column 1: method: unknown field; allowed: "]),
    ];
    for (text, expected) in table {
        let (folder, file) = write_experiment_file(text);
        let space = "{\n \"x\": {\"_type\": \"gauss\", \"_value\": [0, 1]}\n}";
        std::fs::write(folder.path().join("space.json"), space).unwrap();
        let problem = load(&file).unwrap_err().to_string();
        for line in expected {
            assert!(problem.contains(line), "{line}: {problem}");
        }
    }
}

#[test]
fn the_allowed_fields_of_an_object_are_listed_once() {
    let text = "\
trialComand: x
colour: red
shape: round
searchSpace: {x: {_type: uniform, _value: [0, 1]}}
trialConcurrency: 1
tuner: {name: Random, clasArgs: {}, mode: max}
trainingService: {platform: local}
trialCommand: 'true'
";
    let problem = load_text(text).unwrap_err();
    let lines: Vec<&str> = problem.lines().collect();
    let lists = lines.iter().filter(|line| line.contains("llowed: "));
    assert_eq!(lists.count(), 2, "{problem}");
    #[rustfmt::skip]
    let expected = [
        "5 problems",
        "  line 1, column 1: trialComand: unknown field; did you mean `trialCommand`?",
        "  line 2, column 1: colour: unknown field",
        "  line 3, column 1: shape: unknown field; allowed: experimentName, experimentType, ",
        "  line 6, column 23: tuner.clasArgs: unknown field; did you mean `classArgs`?",
        "  line 6, column 37: tuner.mode: unknown field; allowed: name, ",
    ];
    assert_eq!(lines.len(), expected.len(), "{problem}");
    for (line, start) in lines.iter().zip(expected) {
        assert!(line.starts_with(start), "{start}: {problem}");
    }
}

#[test]
fn a_file_of_another_tool_is_refused_with_the_counterparts_of_its_fields() {
    let sweep = "program: t.py\nmethod: bayes\nparameters: {lr: {min: 0, max: 1}}\n";
    let problem = load_text(sweep).unwrap_err();
    assert!(problem.starts_with("looks like a W&B sweep (by its `program`, "), "{problem}");
    assert!(problem.contains("\n  program, command    trialCommand\n"), "{problem}");
}
