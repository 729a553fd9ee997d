//! Completions, as the shells themselves compute them.

use std::process::Command;

use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, seed};

/// A shell, and a script that prints its completions for the words `@WORDS@`. The last word has the index
/// `@LAST@` and the text `@TYPED@`. `@PROGRAM@` is the manager.
const SHELLS: [(&str, &str); 3] = [
    (
        "bash",
        r#"source <('@PROGRAM@' completions bash); COMP_WORDS=(@WORDS@); COMP_CWORD=@LAST@
_clap_complete_trial_manager trial-manager '@TYPED@'; printf '%s\n' "${COMPREPLY[@]}""#,
    ),
    (
        "zsh",
        r#"compdef() { }; _describe() { print -rl -- "${(@P)3}" }
source <('@PROGRAM@' completions zsh); words=(@WORDS@); CURRENT=$((@LAST@ + 1)); _clap_dynamic_completer_trial_manager"#,
    ),
    ("fish", "'@PROGRAM@' completions fish | source; complete -C (string join ' ' -- @WORDS@)"),
];

/// Returns the completions of the last word, sorted.
fn shell_completions(bed: &TestBed, (shell, script): (&str, &str), words: &[&str]) -> Vec<String> {
    let quoted: Vec<_> = words.iter().map(|word| format!("'{word}'")).collect();
    let script = script
        .replace("@PROGRAM@", &bed.program_folder().join("trial-manager").display().to_string())
        .replace("@WORDS@", &quoted.join(" "))
        .replace("@LAST@", &(words.len() - 1).to_string())
        .replace("@TYPED@", words.last().expect("the command line has words"));
    let mut command = Command::new(shell);
    command.args(["-c", &script]).env("HOME", bed.path("home")).env_remove("ZDOTDIR");
    let output = command.env("TRIAL_MANAGER_DATA_DIR", bed.data_folder()).output();
    let output = output.unwrap_or_else(|error| panic!("{shell}: {error}"));
    let why = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && why.is_empty(), "{shell}: {why}");
    let stdout = String::from_utf8(output.stdout).expect("completions are UTF-8");
    // Zsh and fish append a description to a value.
    let value = |line: &str| line.split([':', '\t']).next().unwrap_or_default().to_owned();
    let mut offered: Vec<_> = stdout.lines().map(value).filter(|value| !value.is_empty()).collect();
    offered.sort();
    offered
}

#[test]
fn bash_completes_commands_and_values() {
    check_completions(SHELLS[0]);
}

#[test]
#[ignore = "needs zsh and fish"]
fn zsh_and_fish_complete_commands_and_values() {
    check_completions(SHELLS[1]);
    check_completions(SHELLS[2]);
}

/// Checks that a shell completes commands, ids, states, columns and metrics.
fn check_completions(shell: (&str, &str)) {
    let bed = TestBed::new();
    let running = Search::new("echo score=1; test {{x}} != 3", 2)
        .with("searchSpace", serde_json::json!({"x": {"_type": "choice", "_value": [1, 3]}}))
        .with("tuner", serde_json::json!({"name": "GridSearch"}))
        .start(&bed);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    let mut ids: Vec<&str> = done.trials.iter().map(|trial| trial.id.as_str()).collect();
    ids.sort_unstable();
    let none = bed.path("none").display().to_string();
    let elsewhere = ["trial-manager", "trial", "show", "--data-dir", &none, "a"];
    #[rustfmt::skip]
    let table: [(&[&str], &[&str]); 12] = [
        (&["trial-manager", "exp"],                            &["experiment"]),
        (&["trial-manager", "trial", "l"],                     &["log-level", "logs", "ls"]),
        (&["trial-manager", "experiment", "sh"],               &["show"]),
        (&["trial-manager", "trial", "ls", "--st"],            &["--state"]),
        (&["trial-manager", "experiment", "export", "--fo"],   &["--format"]),
        (&["trial-manager", "trial", "ls", "--state", "FAILED,run"], &["FAILED,RUNNING"]),
        (&["trial-manager", "trial", "ls", "--sort", "par"],   &["parameters.x"]),
        (&["trial-manager", "trial", "ls", "--cause", "ex"],   &["exit"]),
        (&["trial-manager", "experiment", "show", "-e", &done.id[..2]], &[&done.id]),
        (&["trial-manager", "trial", "stop", &ids[0][..3]],    &[ids[0]]),
        (&["trial-manager", "metrics", "0", "--name", "sc"],   &["score"]),
        (&elsewhere,                                           &[]),
    ];
    for (words, expected) in table {
        assert_eq!(shell_completions(&bed, shell, words), expected, "{}: {words:?}", shell.0);
    }
}

#[test]
fn common_aliases_are_accepted() {
    let bed = TestBed::new();
    seed::create_store(&bed.data_folder(), "small", 2, 1, 1).unwrap();
    #[rustfmt::skip]
    let table: [(&[&str], &str); 11] = [
        (&["version"],               "trial-manager "),
        (&["ls"],                    ""),
        (&["list"],                  ""),
        (&["experiments", "list"],   ""),
        (&["experiment", "ls"],      ""),
        (&["trial", "list", "-e", "small"], ""),
        (&["trials", "ls", "-e", "small"], ""),
        (&["trials", "list", "-e", "small"], ""),
        (&["trial", "kill", "--help"], "Stop trials"),
        (&["trial", "retry", "--help"], "Rerun trials"),
        (&["completions", "bash"],   "\n_clap_complete_trial_manager"),
    ];
    for (words, expected) in table {
        let mut command = bed.manager_command();
        let output = command.args(words).env("TRIAL_MANAGER_DATA_DIR", bed.data_folder()).output();
        let output = output.expect("the manager can be started");
        let (stdout, why) = (output.stdout, String::from_utf8_lossy(&output.stderr).into_owned());
        assert_eq!(output.status.code(), Some(0), "{words:?}: {why}");
        assert!(String::from_utf8_lossy(&stdout).starts_with(expected), "{words:?}");
    }
}
