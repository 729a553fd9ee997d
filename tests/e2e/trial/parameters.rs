//! The ways in which a trial without an SDK can read its parameters.

use std::fs;

use serde_json::{Value, json};
use trialkeeper_tests::{Search, TestBed};

#[test]
fn a_script_prints_its_accuracy_and_nothing_else() {
    let bed = TestBed::new();
    let search = Search::new("echo accuracy=0.93", 3).run(&bed);
    search.expect_done(3, 0);
    assert!(search.trials.iter().all(|trial| trial.final_result == json!(0.93)));
    assert!(search.trials.iter().all(|trial| trial.intermediate == [json!(0.93)]));
}

#[test]
fn parameters_are_in_the_environment_in_a_file_and_in_the_command() {
    #[rustfmt::skip]
    let table = [
        ("a variable of its own", r#"echo "score=$TRIALKEEPER_PARAM_x""#),
        ("all as one variable",   r#"echo "$TRIALKEEPER_PARAMETERS" | sed 's/.*"x": *\([^,}]*\).*/score=\1/'"#),
        ("all as one file",       r#"tr -d '\n' <"$TRIALKEEPER_PARAMETERS_FILE" | sed 's/.*"x": *\([^,}]*\).*/score=\1\n/'"#),
        ("a placeholder",         "echo score={{x}}"),
        ("NNI's own file",        r#"tr -d '\n' <"$NNI_SYS_DIR/parameter.cfg" | sed 's/.*"x": *\([^,}]*\).*/score=\1\n/'"#),
        ("a JSON line",           r#"echo "{\"score\": $TRIALKEEPER_PARAM_x}""#),
    ];
    for (case, command) in table {
        let bed = TestBed::new();
        let search = Search::new(command, 2).run(&bed);
        search.expect_done(2, 0);
        for trial in &search.trials {
            assert_eq!(trial.final_result, trial.parameters["x"], "{case}: {trial:?}");
        }
    }
}

#[test]
fn a_placeholder_is_one_shell_word_for_any_value() {
    let words = ["plain", "two words", "it's", "$HOME; `id` \"&", "-e", "*", "", "ü\t\\n"];
    let bed = TestBed::new();
    bed.write_script(
        "code/show.sh",
        r#"#!/bin/sh
[ $# -eq 2 ] && [ "$2" = end ] || exit 9
printf %s "$1" >"$NNI_OUTPUT_DIR/word"
echo score=1
"#,
    );
    let search = Search::new("./show.sh {{word}} end", 8)
        .with("searchSpace", json!({"word": {"_type": "choice", "_value": words}}))
        .with("tuner", json!({"name": "GridSearch"}))
        .run(&bed);
    search.expect_done(words.len(), 0);
    for trial in &search.trials {
        let word =
            fs::read_to_string(bed.data_folder().join(&search.id).join(&trial.id).join("word"));
        assert_eq!(trial.parameters["word"], Value::from(word.unwrap()));
    }
}

#[test]
fn a_trial_has_nni_s_environment_variables() {
    let bed = TestBed::new();
    let search =
        Search::new("env >\"$NNI_OUTPUT_DIR/env\"; pwd >\"$NNI_OUTPUT_DIR/pwd\"; echo a=1", 1);
    let search = search.run(&bed);
    search.expect_done(1, 0);
    let folder = bed.data_folder().join(&search.id).join(&search.trial(0).id);
    let environment = fs::read_to_string(folder.join("env")).unwrap();
    let value = |name: &str| {
        let line = environment.lines().find_map(|line| line.strip_prefix(&format!("{name}=")));
        line.unwrap_or_else(|| panic!("{name} is not in\n{environment}")).to_owned()
    };
    assert_eq!(value("NNI_PLATFORM"), "local");
    assert_eq!(value("NNI_EXP_ID"), search.id);
    assert_eq!(value("NNI_TRIAL_JOB_ID"), search.trial(0).id);
    assert_eq!(value("NNI_TRIAL_SEQ_ID"), "0");
    let code = bed.path("code").canonicalize().unwrap();
    assert_eq!(value("NNI_CODE_DIR"), code.to_str().unwrap());
    let pwd = fs::read_to_string(folder.join("pwd")).unwrap();
    assert_eq!(pwd.trim_end(), code.to_str().unwrap());
    assert_eq!(value("NNI_SYS_DIR"), folder.canonicalize().unwrap().to_str().unwrap());
}
