//! Trials that use NNI's unmodified SDK.

use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use trialkeeper_tests::{Search, TestBed, examples_folder, nni_python};

fn trial_command(python: &Path, script: &str) -> String {
    format!("'{}' {script}", python.display())
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn the_digits_example_runs_unmodified() {
    let python = nni_python();
    let bed = TestBed::new();
    let source = fs::read_to_string(examples_folder().join("digits/train.py")).unwrap();
    bed.write("code/train.py", &source);
    let search = Search::new(&trial_command(&python, "train.py"), 2)
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
        assert!(trial.final_number() > 0.7, "{trial:?}");
    }
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn every_value_an_sdk_trial_reports_arrives_as_it_was_reported() {
    let python = nni_python();
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
    let search = Search::new(&trial_command(&python, "odd.py"), 1).run(&bed);
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

#[test]
#[ignore = "needs NNI from PyPI"]
fn a_trial_may_redirect_its_output() {
    let python = nni_python();
    let bed = TestBed::new();
    bed.write(
        "code/quiet.py",
        "import nni\nx = nni.get_next_parameter()['x']\nnni.report_intermediate_result(x)\nnni.report_final_result(x)\n",
    );
    let command = trial_command(&python, "quiet.py >log.txt 2>&1");
    let search = Search::new(&command, 2).run(&bed);
    search.expect_done(2, 0);
    for trial in &search.trials {
        assert_eq!(trial.intermediate, [trial.parameters["x"].clone()], "{trial:?}");
        assert_eq!(trial.final_result, trial.parameters["x"], "{trial:?}");
    }
}

/// Threads, forks and new interpreters report in parallel, as data loaders and launchers do.
const WORKER_SCRIPT: &str = r#"
import multiprocessing, sys, threading
import nni

def work(worker, padding, fresh):
    if fresh:
        nni.get_next_parameter()
    for step in range(20):
        nni.report_intermediate_result({"default": step, "worker": worker, "padding": padding})

if __name__ == "__main__":
    nni.get_next_parameter()
    padding = "it's " * int(sys.argv[1])
    makers = [threading.Thread] + [multiprocessing.get_context(way).Process for way in ("fork", "spawn")]
    for maker in makers:
        fresh = maker.__name__ == "SpawnProcess"
        workers = [maker(target=work, args=(f"{maker.__name__} {n}", padding, fresh)) for n in range(2)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    nni.report_final_result(0.5)
"#;

#[test]
#[ignore = "needs NNI from PyPI"]
fn metrics_of_all_processes_of_a_trial_arrive() {
    let python = nni_python();
    // Long values are written to a pipe in parts. Only the HTTP channel keeps the parts of different
    // processes separate.
    for (way, padding) in [("stdout", "1"), ("http", "4000")] {
        let bed = TestBed::new();
        bed.write("workers.py", WORKER_SCRIPT);
        let mut agent = bed.agent_command();
        agent.args(["run", "--sdk-channel", way, "--output-dir", "out", "--"]);
        agent.arg(&python).args(["workers.py", padding]);
        let finished = bed.start(&mut agent).finish(Duration::from_mins(2));
        assert_eq!(finished.code, Some(0), "{way}: {}", finished.stderr);

        let mut inspect = bed.agent_command();
        inspect.args(["inspect", "out", "--output", "json"]);
        let shown = bed.start(&mut inspect).finish(Duration::from_mins(1)).stdout;
        let shown: Value = serde_json::from_slice(&shown).unwrap();
        let metrics = shown["intermediate"].as_array().unwrap();
        let metrics: Vec<_> = metrics.iter().map(|metric| &metric["value"]).collect();
        for maker in ["Thread", "ForkProcess", "SpawnProcess"] {
            for worker in [format!("{maker} 0"), format!("{maker} 1")] {
                let own = metrics.iter().filter(|metric| metric["worker"] == worker);
                let steps: Vec<_> = own.filter_map(|metric| metric["default"].as_u64()).collect();
                assert_eq!(steps, (0..20).collect::<Vec<_>>(), "{way}, {worker}");
            }
        }
        assert_eq!((metrics.len(), &shown["final"]["value"]), (120, &json!(0.5)), "{way}");
    }
}
