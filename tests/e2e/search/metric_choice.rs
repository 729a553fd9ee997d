//! The user names no metric, or optimises a metric in the wrong direction.

use serde_json::json;
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

#[test]
fn the_chosen_metric_and_a_doubtful_direction_are_shown_everywhere() {
    let bed = TestBed::new();
    let command = "echo val_loss=0.5 device=0; echo val_loss=0.4 device=0";
    let search = Search::new(command, 1).with("tuner", json!({"name": "Random"}));
    let search = search.with("objective", json!({"direction": "maximize"}));
    let done = search.run(&bed);
    done.expect_done(1, 0);
    let doubt = "the search maximises `val_loss`, although its name suggests the opposite";
    assert!(done.stderr.contains(doubt), "{}", done.stderr);
    let show = |format: &str| {
        let mut show = bed.manager_command();
        show.args(["experiment", "show", &done.id, "--output", format, "--data-dir"]);
        let shown = bed.start(show.arg(bed.data_folder())).finish(WAIT_TIMEOUT);
        String::from_utf8(shown.stdout).unwrap()
    };
    let shown: serde_json::Value = serde_json::from_str(&show("json")).unwrap();
    assert_eq!(shown["chosen_objective"], "val_loss");
    assert!(shown["direction_warning"].as_str().unwrap().starts_with(doubt), "{shown}");
    let shown = show("table");
    assert!(
        shown.contains("maximize: val_loss, chosen from the metrics that trials print"),
        "{shown}"
    );

    let named = Search::new("echo val_loss=0.5", 1).with("objective", "val_loss");
    let mut doctor = bed.manager_command();
    doctor.arg("doctor").arg(named.write(&bed));
    let output = bed.start(&mut doctor).finish(WAIT_TIMEOUT);
    let output = String::from_utf8(output.stdout).unwrap();
    assert!(output.contains(doubt), "{output}");
    let meant =
        named.with("tuner", json!({"name": "Random", "classArgs": {"optimize_mode": "minimize"}}));
    let done = meant.run(&bed);
    done.expect_done(1, 0);
    assert!(!done.stderr.contains("suggests the opposite"), "{}", done.stderr);
}

/// Returns the output of `doctor` for a search.
fn run_doctor(bed: &TestBed, search: &Search, probe: bool) -> String {
    let mut doctor = bed.manager_command();
    doctor.args(["doctor", "--port", "0"]).args(probe.then_some("--probe")).arg(search.write(bed));
    String::from_utf8(bed.start(&mut doctor).finish(WAIT_TIMEOUT).stdout).unwrap()
}

#[test]
fn a_minimizing_search_uses_the_loss_that_keras_prints() {
    let bed = TestBed::new();
    let line = "echo 'loss: 0.5{{x}} - val_loss: 0.6{{x}} - val_accuracy: 0.8{{x}}'";
    let search = Search::new(line, 2)
        .with("searchSpace", json!({"x": {"_type": "choice", "_value": [1, 2]}}))
        .with("tuner", json!({"name": "GridSearch"}));
    let metric = |search: Search| {
        let done = search.run(&bed);
        done.expect_done(2, 0);
        (done.trials[0].final_result.clone(), done.stderr)
    };
    let (value, output) =
        metric(search.clone().with("objective", json!({"direction": "minimize"})));
    assert_eq!(value, 0.61, "{output}");
    assert!(output.contains("\"val_loss\" was chosen as the result"), "{output}");
    let (value, output) = metric(search);
    assert_eq!(value, 0.81, "{output}");
}

#[test]
fn a_class_without_a_direction_argument_is_named() {
    let bed = TestBed::new();
    let search = Search::new("echo score=1", 1)
        .with("tuner", json!({"name": "TPE", "classArgs": {"optimize_mode": "minimize"}}))
        .with("assessor", json!({"className": "mine.Strict"}));
    let warning = "`mine.Strict` does not learn that the search minimises";
    assert_eq!(run_doctor(&bed, &search, false).matches(warning).count(), 1);
    let done = search.run(&bed);
    assert_eq!(done.stderr.matches(warning).count(), 1, "{}", done.stderr);
    let mut show = bed.manager_command();
    show.args(["experiment", "show", &done.id, "--data-dir"]).arg(bed.data_folder());
    let shown = String::from_utf8(bed.start(&mut show).finish(WAIT_TIMEOUT).stdout).unwrap();
    assert!(shown.contains(warning), "{shown}");
    let with_direction =
        json!({"className": "mine.Strict", "classArgs": {"optimize_mode": "minimize"}});
    let output = run_doctor(&bed, &search.with("assessor", with_direction), false);
    assert!(!output.contains("does not learn"), "{output}");
}

#[test]
fn an_assumed_direction_is_stated_once_by_run_and_by_the_portal() {
    let bed = TestBed::new();
    let gate = trialkeeper_tests::Gate::new(&bed.path("gate"));
    let search = Search::new("read _ <\"$GATE\"; echo score=1 step=2", 2)
        .with("trialConcurrency", 1)
        .with("tuner", json!({"name": "TPE"}));
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    let address = running.wait_for_manager_url();
    let (_, page) = trialkeeper_tests::http_get(&address, "/").unwrap();
    let hint = "The experiment file states no direction; minimize is assumed";
    assert_eq!(page.matches(hint).count(), 1, "{page}");
    gate.release(2);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    done.expect_done(2, 0);
    let sentence = "the experiment file states no direction; minimize is assumed";
    assert_eq!(done.stderr.matches(sentence).count(), 1, "{}", done.stderr);
}

#[test]
fn a_chosen_metric_is_named_by_the_probe_the_overview_and_the_timeline() {
    let bed = TestBed::new();
    let gate = trialkeeper_tests::Gate::new(&bed.path("gate"));
    let printing = "echo loss=0.5 accuracy=0.75 hit=3";
    let search = Search::new(printing, 2).with("trialConcurrency", 1);
    let output = run_doctor(&bed, &search, true);
    assert!(
        output.contains("\"accuracy\" was chosen as the result; name another with"),
        "{output}"
    );
    assert!(output.contains("objective: {metric: NAME}"), "{output}");

    let line = format!("{printing}; test $NNI_TRIAL_SEQ_ID = 0 || read _ <\"$GATE\"");
    let search = search.with("trialCommand", line);
    let running = bed.start(search.command(&bed).env("GATE", gate.path()));
    let address = running.wait_for_manager_url();
    let get = |path: &str| trialkeeper_tests::http_get(&address, path).map(|(_, page)| page);
    wait_for("the hint on the overview", WAIT_TIMEOUT, || {
        let page = get("/")?;
        let hint = "names no objective, so <code>accuracy</code> was chosen";
        (page.contains(hint) && page.contains("Set <code>objective</code>")).then_some(())
    });
    let trials: serde_json::Value = serde_json::from_str(&get("/api/v1/trials").unwrap()).unwrap();
    let trials = trials["trials"].as_array().unwrap();
    let first = trials.iter().find(|trial| trial["sequence"] == 0).unwrap();
    let page = get(&format!("/trials/{}", first["id"].as_str().unwrap())).unwrap();
    assert!(
        page.contains("objective-chosen") && page.contains("was chosen as the result"),
        "{page}"
    );
    gate.release(1);
    let done = Outcome::parse(running.finish(WAIT_TIMEOUT));
    done.expect_done(2, 0);
    assert_eq!(done.stderr.matches("was chosen as the result").count(), 1, "{}", done.stderr);
}
