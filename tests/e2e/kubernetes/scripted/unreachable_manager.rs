//! Pods whose agents cannot reach the manager: the manager follows their output through the cluster.

use std::path::Path;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::json;
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Gate, Outcome, RunningProgram, TestBed, WAIT_TIMEOUT, wait_for};

use super::{framework_section, run_command, search};
use crate::kubernetes::deploy::manager_rights;

/// An address without a listener.
const UNREACHABLE_URL: &str = "http://127.0.0.1:9";

/// Starts a search whose pods cannot reach the manager. Returns once the trial's Framework exists.
fn start_unreachable(bed: &TestBed, kube: &Kube) -> (Gate, RunningProgram) {
    let gate = Gate::new(&bed.path("gate"));
    let place = bed.path("gate");
    let trial = format!("echo one €; read _ <'{}'; echo two; echo score=1", place.display());
    // The image contains an agent, so the trial can start without the manager.
    let agent = bed.agent_command();
    let folder = Path::new(agent.get_program()).parent().unwrap();
    let path = format!("{}:{}", folder.display(), std::env::var("PATH").unwrap());
    let container = json!({"image": "any", "env": [{"name": "PATH", "value": path}]});
    let role = json!({"name": "worker", "task": {"pod": {"spec": {"containers": [container]}}}});
    let changes = json!({
        "advertise": UNREACHABLE_URL, "template": {"spec": {"taskRoles": [role]}}, "taskRoles": null,
    });
    let search =
        search(bed, kube, &trial, 1).with("trainingService", framework_section(bed, &changes));
    let manager = bed.start(&mut run_command(bed, &search));
    // The first Framework tests the controller.
    wait_for("the trial", WAIT_TIMEOUT, || {
        (kube.created_objects("frameworks").len() == 2).then_some(())
    });
    (gate, manager)
}

fn follow_logs(bed: &TestBed) -> RunningProgram {
    let mut command = bed.manager_command();
    bed.start(command.args(["trial", "logs", "-f", "0", "--data-dir"]).arg(bed.data_folder()))
}

/// Gives the pods the manager's address.
fn publish_address(bed: &TestBed, kube: &Kube) {
    let id = bed.experiment_id();
    let url = format!("{}\n", bed.manager_url());
    let name = format!("tk{id}");
    let mut secret = kube.get("secrets", &name).unwrap();
    secret["data"]["manager.url"] = json!(BASE64_STANDARD.encode(url));
    kube.delete_object("secrets", &name);
    kube.create_object("secrets", secret);
}

#[test]
fn a_pod_s_output_is_followed_until_its_agent_reports() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let (gate, manager) = start_unreachable(&bed, &kube);
    let following = follow_logs(&bed);
    following.wait_for_stderr("the trial's agent does not report; the output of its job:\n");
    following.wait_for_stderr("one €\n");
    gate.release(1);
    following.wait_for_stderr("two\n");
    assert_eq!(following.stdout(), b"");
    publish_address(&bed, &kube);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    let followed = following.finish(WAIT_TIMEOUT);
    assert_eq!(
        (followed.code, String::from_utf8(followed.stdout).unwrap().as_str()),
        (Some(0), "one €\ntwo\nscore=1\n"),
        "{}",
        followed.stderr
    );
}

#[test]
fn an_account_without_rights_to_pod_logs_gets_the_command_to_run() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    kube.limit_rights(manager_rights());
    let (gate, manager) = start_unreachable(&bed, &kube);
    let following = follow_logs(&bed);
    for what in ["grant `get` on `pods/log`", "`kubectl -n lab logs tk"] {
        following.wait_for_stderr(what);
    }
    gate.release(1);
    publish_address(&bed, &kube);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    assert_eq!(following.finish(WAIT_TIMEOUT).stdout, "one €\ntwo\nscore=1\n".as_bytes());
}
