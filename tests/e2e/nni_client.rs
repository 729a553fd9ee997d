//! NNI's own Python client, unchanged, against this manager.

use std::process::Command;

use serde_json::{Value, json};
use trialkeeper_tests::{BOUND, Gate, Search, TestBed, nni_python, wait_for};

/// Tells what it sees, then asks for what it may not.
const CLIENT: &str = r#"
import json, sys
from nni.experiment import Experiment

experiment = Experiment.connect(int(sys.argv[1]))
jobs = experiment.list_trial_jobs()
metrics = experiment.get_job_metrics(jobs[0].trialJobId)[jobs[0].trialJobId]
try:
    experiment.kill_trial_job(jobs[1].trialJobId)
    refused = None
except Exception as error:
    refused = error.response.status_code
try:
    experiment.get_trial_job("nobody")
    unknown = None
except Exception as error:
    unknown = error.response.status_code
print(json.dumps({
    "status": experiment.get_status(),
    "states": [job.status for job in jobs],
    "parameters": list(jobs[0].hyperParameters[0].parameters),
    "finals": [metric.data for metric in jobs[0].finalMetricData],
    "metrics": [[metric.type, metric.sequence, metric.data] for metric in metrics],
    "latest": experiment.get_trial_job(jobs[0].trialJobId).status,
    "exported": [result.value for result in experiment.export_data()],
    "limit": experiment.get_experiment_profile()["params"]["maxTrialNumber"],
    "refused": refused,
    "unknown": unknown,
}))
"#;

#[test]
fn nni_s_python_client_reads_a_running_search() {
    let Some(python) = nni_python() else { return };
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    // The first trial ends by itself, the second waits.
    bed.script(
        "code/trial.sh",
        "#!/bin/sh\necho score=0.25\necho score=0.5\n\
         if [ \"$NNI_TRIAL_SEQ_ID\" != 0 ]; then echo >>\"$BED/waits\"; read _ <\"$BED/gate\"; fi\n",
    );
    let command = format!("BED='{}' ./trial.sh", bed.folder().display());
    let running = Search::new(&command, 2).start(&bed);
    wait_for("the second trial to start", BOUND, || (!bed.read("waits").is_empty()).then_some(()));
    let folder = std::fs::read_dir(bed.data()).unwrap().next().unwrap().unwrap().path();
    let url = std::fs::read_to_string(folder.join("manager.url")).unwrap();
    let port = url.trim().rsplit(':').next().unwrap().to_owned();
    // A trial is RUNNING a moment after it has started.
    let client = bed.write("client.py", CLIENT);
    let told = wait_for("both trials to stand where they are", BOUND, || {
        let output = Command::new(&python).arg(&client).arg(&port).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        // NNI logs on standard output, too.
        let said = String::from_utf8(output.stdout).unwrap();
        let told: Value = serde_json::from_str(said.lines().last().unwrap()).unwrap();
        (told["states"] == json!(["SUCCEEDED", "RUNNING"])).then_some(told)
    });
    gate.open(1);
    let expected = json!({
        "status": "NO_MORE_TRIAL",
        "states": ["SUCCEEDED", "RUNNING"],
        "parameters": ["x"],
        "finals": [0.5],
        "metrics": [["PERIODICAL", 0, 0.25], ["PERIODICAL", 1, 0.5], ["FINAL", 0, 0.5]],
        "latest": "SUCCEEDED",
        "exported": [0.5],
        "limit": 2,
        "refused": 401,
        "unknown": 404,
    });
    assert_eq!(told, expected);
    let finished = running.finish(BOUND);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}
