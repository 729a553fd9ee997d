//! The user names no metric, or optimises one the wrong way round.

use serde_json::json;
use trialkeeper_tests::{BOUND, Search, TestBed};

#[test]
fn the_chosen_metric_and_a_doubtful_direction_are_shown_everywhere() {
    let bed = TestBed::new();
    let command = "echo val_loss=0.5 device=0; echo val_loss=0.4 device=0";
    let search = Search::new(command, 1).with("tuner", json!({"name": "Random"}));
    let search = search.with("objective", json!({"direction": "maximize"}));
    let done = search.run(&bed);
    done.expect_done(1, 0);
    let doubt = "the search maximizes `val_loss`, although its name suggests the opposite";
    assert!(done.stderr.contains(doubt), "{}", done.stderr);
    let show = |format: &str| {
        let mut show = bed.manager();
        show.args(["experiment", "show", &done.id, "--output", format, "--data-dir"]);
        let shown = bed.start(show.arg(bed.data())).finish(BOUND);
        String::from_utf8(shown.stdout).unwrap()
    };
    let shown: serde_json::Value = serde_json::from_str(&show("json")).unwrap();
    assert_eq!(shown["chosen_objective"], "val_loss");
    assert!(shown["direction_warning"].as_str().unwrap().starts_with(doubt), "{shown}");
    let shown = show("table");
    assert!(shown.contains("maximize: val_loss, chosen from what trials print"), "{shown}");

    let named = Search::new("echo val_loss=0.5", 1).with("objective", "val_loss");
    let mut doctor = bed.manager();
    doctor.arg("doctor").arg(named.write(&bed));
    let said = bed.start(&mut doctor).finish(BOUND);
    let said = String::from_utf8(said.stdout).unwrap();
    assert!(said.contains(doubt), "{said}");
    let meant =
        named.with("tuner", json!({"name": "Random", "classArgs": {"optimize_mode": "minimize"}}));
    let done = meant.run(&bed);
    done.expect_done(1, 0);
    assert!(!done.stderr.contains("suggests the opposite"), "{}", done.stderr);
}
