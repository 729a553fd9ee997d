//! Tests the example as a plugin.

use std::path::PathBuf;

use serde_json::json;
use trialkeeper_tests::{Search, TestBed, WAIT_TIMEOUT};

/// The number of cases of the conformance test.
const CONFORMANCE_CASES: usize = 22;

/// The path of the example, which cargo builds together with this test.
fn processes() -> PathBuf {
    let test = std::env::current_exe().expect("the test is a program");
    test.ancestors().nth(2).expect("the test is in a folder").join("examples/processes")
}

#[test]
fn the_example_passes_the_conformance_scenario() {
    let bed = TestBed::new();
    let mut command = bed.manager_command();
    command.args(["conformance", "--parallel", "4", "--"]).arg(processes());
    let finished = bed.start(command.current_dir(bed.folder())).finish(WAIT_TIMEOUT);
    let stdout = String::from_utf8(finished.stdout).unwrap();
    assert_eq!(stdout.lines().count(), CONFORMANCE_CASES, "{stdout}{}", finished.stderr);
    assert!(stdout.lines().all(|line| line.starts_with("ok ")), "{stdout}{}", finished.stderr);
    assert_eq!(finished.code, Some(0));
    bed.wait_until_empty();
}

#[test]
fn a_search_runs_on_the_example() {
    let bed = TestBed::new();
    let service = json!({"platform": "plugin", "command": [processes()], "settings": {"jobs": 2}});
    let search = Search::new("echo score=0.5", 3)
        .with("objective", "score")
        .with("trialConcurrency", 2)
        .with("trainingService", service);
    search.run(&bed).expect_done(3, 0);
    bed.wait_until_empty();
}

#[test]
fn invalid_settings_are_refused_before_the_search() {
    let bed = TestBed::new();
    let service =
        json!({"platform": "plugin", "command": [processes()], "settings": {"jobs": "all"}});
    let search = Search::new("true", 1).with("trainingService", service);
    let finished = search.start(&bed).finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(2), "{}", finished.stderr);
    let message = "settings.jobs: \"all\" is not a number";
    assert!(finished.stderr.contains(message), "{}", finished.stderr);
}
