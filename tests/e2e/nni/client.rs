//! NNI's unchanged Python client with this manager.

use std::process::Command;

use serde_json::{Value, json};
use trialkeeper_tests::{
    Gate, RunningProgram, Search, TestBed, WAIT_TIMEOUT, nni_python, wait_for,
};

/// A client that prints what it reads, and requests a trial that does not exist.
const READING_CLIENT: &str = r#"
import json, sys
from nni.experiment import Experiment

experiment = Experiment.connect(int(sys.argv[1]))
jobs = experiment.list_trial_jobs()
metrics = experiment.get_job_metrics(jobs[0].trialJobId)[jobs[0].trialJobId]
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
    "unknown": unknown,
}))
"#;

/// A client that makes every change that NNI's API offers.
const STEERING_CLIENT: &str = r#"
import json, os, sys
from nni.experiment import Experiment

experiment = Experiment.connect(int(sys.argv[1]))
running = []
while not running:  # A trial is RUNNING a moment after it has started; the test has a bound.
    running = [job for job in experiment.list_trial_jobs() if job.status == "RUNNING"]
done = {}
def tried(name, call):
    try:
        call()
        done[name] = "done"
    except Exception as error:
        done[name] = error.response.status_code
tried("concurrency", lambda: experiment.update_trial_concurrency(3))
tried("trials", lambda: experiment.update_max_trial_number(77))
tried("duration", lambda: experiment.update_max_experiment_duration("3h"))
tried("space", lambda: experiment.update_search_space({"y": {"_type": "choice", "_value": [1]}}))
tried("kill", lambda: experiment.kill_trial_job(running[0].trialJobId))
tried("kill nobody", lambda: experiment.kill_trial_job("nobody"))
params = experiment.get_experiment_profile()["params"]
print(json.dumps({
    "done": done,
    "limits": [params[name] for name in ("trialConcurrency", "maxTrialNumber", "maxExperimentDuration")],
    "space": list(params["searchSpace"]),
    "statistics": sorted(entry["trialJobStatus"] for entry in experiment.get_job_statistics()),
    "all metrics": len(experiment.get_job_metrics()) > 0,
    "metadata": experiment.get_experiment_metadata(experiment.id)["port"] == int(sys.argv[1]),
    "experiments": len(experiment.get_all_experiments_metadata()),
    "logs": os.path.exists(os.path.join(running[0].logPath, "stdout")),
    "killed": running[0].trialJobId,
}), flush=True)
experiment.stop()
print("stopped", flush=True)
"#;

#[test]
#[ignore = "needs NNI from PyPI"]
fn nni_s_python_client_steers_a_search_of_the_same_user_and_stops_it() {
    let python = nni_python();
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command = "echo score=1; echo >>../waits; read _ <../gate";
    let search = Search::new(command, 9).start(&bed);
    let reported = || (!bed.read("waits").is_empty()).then_some(());
    wait_for("the first trial to wait", WAIT_TIMEOUT, reported);
    let url = bed.manager_url();
    let port = url.rsplit(':').next().unwrap().to_owned();
    let mode = std::os::unix::fs::PermissionsExt::mode(
        &std::fs::metadata(bed.experiment_folder().join("netrc")).unwrap().permissions(),
    );
    assert_eq!(mode & 0o777, 0o600);

    let client = bed.write("client.py", STEERING_CLIENT);
    let mut command = Command::new(&python);
    command.arg(&client).arg(&port);
    let client = bed.start(&mut command);
    // The client waits for the manager's end. A stopped search does not wait for the gate.
    let stopped = search.finish(WAIT_TIMEOUT);
    let client = client.finish(WAIT_TIMEOUT);
    gate.release(1);
    assert_eq!(client.code, Some(0), "{}", client.stderr);
    let stdout = String::from_utf8(client.stdout).unwrap();
    let mut lines = stdout.lines().filter(|line| line.starts_with('{') || *line == "stopped");
    let seen: Value = serde_json::from_str(lines.next().unwrap()).unwrap();
    assert_eq!(lines.next(), Some("stopped"), "{stdout}");
    let mut expected = json!({
        "done": {
            "concurrency": "done", "trials": "done", "duration": "done", "kill": "done",
            "space": "done", "kill nobody": 404,
        },
        "space": ["y"],
        "limits": [3, 77, "3h"],
        "statistics": seen["statistics"],
        "all metrics": true,
        "metadata": true,
        "experiments": 1,
        "logs": true,
    });
    expected["killed"] = seen["killed"].clone();
    assert_eq!(seen, expected);
    assert_eq!(stopped.code, Some(130), "{}", stopped.stderr);
    let outcome = trialkeeper_tests::Outcome::parse(stopped);
    let killed = seen["killed"].as_str().unwrap();
    let killed = outcome.trials.iter().find(|trial| trial.id == killed).unwrap();
    assert_eq!(killed.state, "USER_CANCELED");
}

/// Sends a request with these header lines to the port, and returns the answer. `before` is a command that
/// selects the user.
fn send_request_lines(before: &str, port: &str, lines: &str) -> String {
    let script = format!(
        "exec 3<>/dev/tcp/127.0.0.1/{port}; printf 'DELETE /api/v1/nni/experiment HTTP/1.1\\r\\nConnection: close\\r\\n\
         {lines}\\r\\n' >&3; cat <&3"
    );
    let line = format!("{before} bash -c \"$SCRIPT\"");
    let output = Command::new("sh").args(["-c", &line]).env("SCRIPT", script).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Starts a search whose trials wait for the gate, and returns the port of its manager.
fn start_waiting_search(bed: &TestBed) -> (RunningProgram, Gate, String) {
    let gate = Gate::new(&bed.path("gate"));
    let search = Search::new("echo >>../waits; read _ <../gate", 9).start(bed);
    let reported = || (!bed.read("waits").is_empty()).then_some(());
    wait_for("the first trial to wait", WAIT_TIMEOUT, reported);
    let url = bed.manager_url();
    let port = url.rsplit(':').next().unwrap().to_owned();
    (search, gate, port)
}

#[test]
fn without_a_token_only_local_requests_of_programs_change_a_search() {
    let bed = TestBed::new();
    let (search, gate, port) = start_waiting_search(&bed);
    let host = "Host: localhost\\r\\n";
    #[rustfmt::skip]
    let table = [
        ("a page of another site",  "", format!("{host}Origin: http://evil.example\\r\\n"), "403"),
        ("any page",                "", format!("{host}Sec-Fetch-Site: same-origin\\r\\n"), "401"),
        ("a proxy's client",        "", format!("{host}X-Forwarded-For: 192.0.2.1\\r\\n"),  "401"),
        ("another name",            "", "Host: evil.example\\r\\n".to_owned(),              "401"),
        ("a wrong token",           "", format!("{host}Authorization: Bearer no\\r\\n"),    "401"),
    ];
    for (case, before, lines, code) in table {
        let answer = send_request_lines(before, &port, &lines);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{case}: {answer}");
    }
    let answer = send_request_lines("", &port, host);
    assert!(answer.starts_with("HTTP/1.1 200"), "the manager's own user: {answer}");
    gate.release(9);
    assert_eq!(search.finish(WAIT_TIMEOUT).code, Some(130));
}

#[test]
#[ignore = "needs root, to become another user"]
fn without_a_token_another_user_of_the_machine_changes_no_search() {
    let bed = TestBed::new();
    let (search, gate, port) = start_waiting_search(&bed);
    let host = "Host: localhost\\r\\n";
    let other = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let answer = send_request_lines(other, &port, host);
    assert!(answer.starts_with("HTTP/1.1 401"), "another user: {answer}");
    let answer = send_request_lines("", &port, host);
    assert!(answer.starts_with("HTTP/1.1 200"), "the manager's own user: {answer}");
    gate.release(9);
    assert_eq!(search.finish(WAIT_TIMEOUT).code, Some(130));
}

#[test]
#[ignore = "needs NNI from PyPI"]
fn nni_s_python_client_reads_a_running_search() {
    let python = nni_python();
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    // The first trial ends, and the second waits.
    bed.write_script(
        "code/trial.sh",
        "#!/bin/sh\necho score=0.25\necho score=0.5\n\
         if [ \"$NNI_TRIAL_SEQ_ID\" != 0 ]; then echo >>\"$BED/waits\"; read _ <\"$BED/gate\"; fi\n",
    );
    let command = format!("BED='{}' ./trial.sh", bed.folder().display());
    let running = Search::new(&command, 2).start(&bed);
    wait_for("the second trial to start", WAIT_TIMEOUT, || {
        (!bed.read("waits").is_empty()).then_some(())
    });
    let url = bed.manager_url();
    let port = url.rsplit(':').next().unwrap().to_owned();
    // A trial becomes RUNNING a moment after its start.
    let client = bed.write("client.py", READING_CLIENT);
    let seen = wait_for("both trials to reach their states", WAIT_TIMEOUT, || {
        let output = Command::new(&python).arg(&client).arg(&port).output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{errors}");
        // NNI also logs on standard output.
        let stdout = String::from_utf8(output.stdout).unwrap();
        let seen: Value = serde_json::from_str(stdout.lines().last().unwrap()).unwrap();
        (seen["states"] == json!(["SUCCEEDED", "RUNNING"])).then_some(seen)
    });
    gate.release(1);
    let expected = json!({
        "status": "NO_MORE_TRIAL",
        "states": ["SUCCEEDED", "RUNNING"],
        "parameters": ["x"],
        "finals": [0.5],
        "metrics": [["PERIODICAL", 0, 0.25], ["PERIODICAL", 1, 0.5], ["FINAL", 0, 0.5]],
        "latest": "SUCCEEDED",
        "exported": [0.5],
        "limit": 2,
        "unknown": 404,
    });
    assert_eq!(seen, expected);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}

/// A trial that reports objects, as NNI's test case `metrics-dict` does.
const REPORTING_TRIAL: &str = r#"
import nni
nni.get_next_parameter()
for step in range(3):
    nni.report_intermediate_result({"default": step / 4, "loss": 1.5, "other": 0.666})
nni.report_final_result({"default": 0.6, "loss": 0.66, "other": 0.666})
"#;

/// A client that prints every result.
const RESULT_CLIENT: &str = r#"
import json, sys
from nni.experiment import Experiment

experiment = Experiment.connect(int(sys.argv[1]))
job = experiment.list_trial_jobs()[0]
metrics = experiment.get_job_metrics()[job.trialJobId]
print(json.dumps({
    "metrics": [metric.data for metric in metrics],
    "finals": [metric.data for metric in job.finalMetricData or []],
    "exported": [result.value for result in experiment.export_data()],
}))
"#;

#[test]
#[ignore = "needs NNI from PyPI"]
fn nni_s_python_client_reads_objects_with_all_their_members() {
    let python = nni_python();
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write("code/reporter.py", REPORTING_TRIAL);
    // The second trial keeps the search running while the client reads the first one.
    let first = format!("'{}' reporter.py", python.display());
    let command = format!("if [ $NNI_TRIAL_SEQ_ID = 0 ]; then {first}; else read _ <../gate; fi");
    let running = Search::new(&command, 2).start(&bed);
    let client = bed.write("client.py", RESULT_CLIENT);
    let port = wait_for("the manager to listen", WAIT_TIMEOUT, || {
        bed.find_manager_url()?.rsplit(':').next().map(str::to_owned)
    });
    let seen = wait_for("the first trial to succeed", WAIT_TIMEOUT, || {
        let output = Command::new(&python).arg(&client).arg(&port).output().unwrap();
        // The client fails until the first trial exists.
        let stdout = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
        let seen: Value = serde_json::from_str(stdout.lines().last()?).ok()?;
        (seen["finals"] != json!([])).then_some(seen)
    });
    gate.release(1);
    let step = |value: f64| json!({"default": value, "loss": 1.5, "other": 0.666});
    let last = json!({"default": 0.6, "loss": 0.66, "other": 0.666});
    let expected = json!({
        "metrics": [step(0.0), step(0.25), step(0.5), last],
        "finals": [last],
        "exported": [last],
    });
    assert_eq!(seen, expected);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
}
