//! NNI's unchanged keeper in the trials of a search. Its posts to the old server's address reach the tuner.

use std::net::TcpListener;

use serde_json::json;
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, nni_python};

const TRIAL_SCRIPT: &str = "import nni
x = nni.get_next_parameter()['x']
nni.report_intermediate_result(x / 2)
nni.report_final_result(x)
";

/// As in NNI's run script, only the keeper gets the trial's output.
#[test]
#[ignore = "needs NNI from PyPI"]
fn a_result_that_nni_s_keeper_posts_reaches_the_trial() {
    let python = nni_python();
    let bed = TestBed::new();
    bed.write("code/trial.py", TRIAL_SCRIPT);
    let free = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = free.local_addr().unwrap().port().to_string();
    drop(free);
    let python = python.display();
    let keeper = format!(
        "NNI_PLATFORM=frameworkcontroller {python} -m nni.tools.trial_tool.trial_keeper --trial_command '{python} trial.py' \
         --nnimanager_ip 127.0.0.1 --nnimanager_port {port} --nni_manager_version 3.0 --log_collection none \
         1>\"$NNI_OUTPUT_DIR/trialkeeper_stdout\" 2>\"$NNI_OUTPUT_DIR/trialkeeper_stderr\""
    );
    let search = Search::new(&keeper, 2).with("trialConcurrency", 2);
    let mut command = search.command(&bed);
    command.args(["--legacy-port", &port]);
    let outcome = Outcome::parse(bed.start(&mut command).finish(WAIT_TIMEOUT));
    outcome.expect_done(2, 0);
    for trial in &outcome.trials {
        let x = trial.parameters["x"].as_f64().unwrap();
        assert_eq!(trial.final_result, json!(x), "{trial:?}");
        assert_eq!(trial.intermediate, [json!(x / 2.0)], "{trial:?}");
    }
}
