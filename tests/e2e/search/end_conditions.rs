//! Conditions that end or pause a search before all its trials have run.

use serde_json::json;
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT};

#[test]
fn a_result_that_is_good_enough_ends_the_search() {
    let bed = TestBed::new();
    let outcome = Search::new("echo score={{x}}", 50)
        .with("searchSpace", json!({"x": {"_type": "choice", "_value": [0.1, 0.5, 0.75, 0.9]}}))
        .with("tuner", json!({"name": "GridSearch"}))
        .with("targetMetric", 0.5)
        .run(&bed);
    outcome.expect_done(2, 0);
    assert!(
        outcome.stderr.contains("a result of 0.5 reaches targetMetric 0.5"),
        "{}",
        outcome.stderr
    );
}

#[test]
fn consecutive_failures_pause_the_search_until_a_repair() {
    let bed = TestBed::new();
    bed.write("code/trial.sh", "echo broken >&2; exit 3");
    let outcome = Search::new("sh trial.sh", 6).with("maxConsecutiveFailures", 2).run(&bed);
    assert_eq!((outcome.state.as_str(), outcome.trials.len()), ("STOPPED", 2), "{outcome:#?}");
    assert_eq!(outcome.code, 1, "a paused search must exit with 1");
    let message = "2 trials in a row failed because of the command or its parameters";
    assert_eq!(outcome.stderr.matches(message).count(), 1, "{}", outcome.stderr);

    bed.write("code/trial.sh", "echo score=1");
    let resumed = Outcome::run_resume(&bed, &outcome.id);
    resumed.expect_done(4, 2);
}

#[test]
fn a_failing_search_is_paused_by_default_and_can_be_resumed() {
    for (command, mended, trials) in [("sh trial.sh", "trial.sh", 5), ("./absent", "absent", 1)] {
        let bed = TestBed::new();
        bed.write("code/trial.sh", "echo broken >&2; exit 3");
        let held = Search::new(command, 12).run(&bed);
        assert_eq!((held.state.as_str(), held.trials.len()), ("STOPPED", trials), "{held:#?}");
        assert_eq!(held.code, 1, "{held:#?}");
        let message = "`maxConsecutiveFailures: 0` in the file turns this check off";
        assert_eq!(held.stderr.matches(message).count(), 1, "{}", held.stderr);
        let remedy = "which uses the recorded experiment file; if the mistake is in that file";
        assert!(held.stderr.contains(remedy), "{}", held.stderr);
        assert!(listed_trouble(&bed, &held.id).as_str().is_some_and(|text| text.contains(message)));
        assert!(!held.stderr.contains(".;"), "a message within a sentence: {}", held.stderr);

        // A resume without a remedy permits new failures, and then pauses the search again.
        let again = Outcome::run_resume(&bed, &held.id);
        let seen = (again.state.as_str(), again.trials.len());
        assert_eq!(seen, ("STOPPED", trials * 2), "{again:#?}");
        bed.write_script(&format!("code/{mended}"), "#!/bin/sh\necho score=1\n");
        let resumed = Outcome::run_resume(&bed, &held.id);
        resumed.expect_done(12 - trials * 2, trials * 2);
        assert_eq!(listed_trouble(&bed, &held.id), json!(null), "the trouble must end");
    }
}

/// Returns the trouble of an experiment, as `experiment ls` shows it.
fn listed_trouble(bed: &TestBed, id: &str) -> serde_json::Value {
    let mut command = bed.manager_command();
    command.args(["experiment", "ls", "--output", "json", "--data-dir"]).arg(bed.data_folder());
    let listed = bed.start(&mut command).finish(WAIT_TIMEOUT);
    let listed: Vec<serde_json::Value> = serde_json::from_slice(&listed.stdout).unwrap();
    let found = listed.into_iter().find(|one| one["id"] == id);
    found.expect("the experiment is listed")["trouble"].clone()
}

#[test]
fn the_default_limit_on_failures_can_be_turned_off() {
    let bed = TestBed::new();
    let outcome = Search::new("exit 3", 7).with("maxConsecutiveFailures", 0).run(&bed);
    outcome.expect_done(0, 7);
    let hint = format!("`trial-manager trial why 0 -e {}` shows why trial 0 failed", outcome.id);
    assert!(outcome.stderr.contains(&hint), "{}", outcome.stderr);
}

#[test]
fn failed_trials_run_again_on_request_in_a_done_or_paused_search() {
    for (case, limit, state, trials) in [("done", 9, "DONE", 2), ("held", 2, "STOPPED", 3)] {
        let bed = TestBed::new();
        bed.write("code/trial.sh", "exit 3");
        let search = Search::new("sh trial.sh", trials).with("maxConsecutiveFailures", limit);
        let outcome = search.run(&bed);
        assert_eq!((outcome.state.as_str(), outcome.trials.len()), (state, 2), "{case}");

        bed.write("code/trial.sh", "echo score=1");
        let retry = |which: &str| {
            let mut command = bed.manager_command();
            command.args(["trial", "rerun", which, "--experiment", &outcome.id, "--data-dir"]);
            bed.start(command.arg(bed.data_folder())).finish(WAIT_TIMEOUT)
        };
        let marked = retry("--failed");
        assert_eq!(marked.code, Some(0), "{case}: {}", marked.stderr);
        let remedy = format!("`trial-manager resume {}` runs them", outcome.id);
        assert!(marked.stderr.contains(&remedy), "{case}: {}", marked.stderr);
        // The command accepts the trial's number. A second request changes nothing.
        assert_eq!(retry("#1").code, Some(0), "{case}");
        assert_eq!(retry("7").code, Some(2), "{case}: trial 7 does not exist");
        if state == "DONE" {
            let command = format!("`trial-manager resume {}`", outcome.id);
            let waiting = format!("2 trials waiting to run again: run {command}");
            assert_eq!(listed_trouble(&bed, &outcome.id), waiting);
        }

        let resumed = Outcome::run_resume(&bed, &outcome.id);
        resumed.expect_done(usize::try_from(trials).unwrap(), 0);
        let again = Outcome::run_resume(&bed, &outcome.id);
        assert_eq!(again.trials, resumed.trials, "{case}: a second resume must change nothing");
    }
}
