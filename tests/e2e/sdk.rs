//! Trials that use NNI's own SDK, unmodified.

use std::fs;
use std::path::Path;

use serde_json::json;
use trialkeeper_tests::{Search, TestBed, examples, nni_python};

fn command(python: &Path, script: &str) -> String {
    format!("'{}' {script}", python.display())
}

#[test]
fn the_digits_example_runs_unmodified() {
    let Some(python) = nni_python() else { return };
    let bed = TestBed::new();
    let source = fs::read_to_string(examples().join("digits/train.py")).unwrap();
    bed.write("code/train.py", &source);
    let search = Search::new(&command(&python, "train.py"), 2)
        .with("trialConcurrency", 2)
        .with(
            "searchSpace",
            json!({
                "hidden_units": {"_type": "choice", "_value": [16, 32]},
                "learning_rate": {"_type": "loguniform", "_value": [0.001, 0.01]},
                "alpha": {"_type": "loguniform", "_value": [0.00001, 0.01]},
            }),
        )
        .run(&bed);
    search.expect_done(2, 0);
    for trial in &search.trials {
        assert_eq!(trial.intermediate.len(), 8, "{trial:?}");
        assert_eq!(Some(&trial.final_result), trial.intermediate.last(), "{trial:?}");
        assert!(trial.number() > 0.7, "{trial:?}");
    }
}

#[test]
fn every_value_an_sdk_trial_reports_arrives_as_it_was_reported() {
    let Some(python) = nni_python() else { return };
    let bed = TestBed::new();
    bed.write(
        "code/odd.py",
        r#"
import nni
x = nni.get_next_parameter()["x"]
print("accuracy=0.1 is printed too, but the SDK decides")
nni.report_intermediate_result(x)
nni.report_intermediate_result({"default": 0.75, "note": "it's \"quoted\" \u00e9"})
nni.report_intermediate_result(float("nan"))
nni.report_intermediate_result(float("-inf"))
for step in range(200):
    nni.report_intermediate_result(step)
nni.report_final_result({"default": 0.875, "loss": 1.0, "worst": float("inf")})
"#,
    );
    let search = Search::new(&command(&python, "odd.py"), 1).run(&bed);
    search.expect_done(1, 0);
    let trial = search.trial(0);
    let mut reported = vec![
        trial.parameters["x"].clone(),
        json!({"default": 0.75, "note": "it's \"quoted\" é"}),
        json!("NaN"),
        json!("-Infinity"),
    ];
    reported.extend((0..200).map(|step| json!(step)));
    assert_eq!(trial.intermediate, reported);
    assert_eq!(trial.final_result, json!({"default": 0.875, "loss": 1.0, "worst": "Infinity"}));
}
