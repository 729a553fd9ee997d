//! Pods fetch their code and the addresses of their peers from the manager. Also the doctor's probe.

use serde_json::json;
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{TestBed, WAIT_TIMEOUT};

use super::{framework_section, run, search};

/// A trial that needs a file of the code, records its rank and its peers, and waits until all pods have done
/// so.
const TRAIN_SCRIPT: &str = r#"#!/bin/sh
value=$(cat value) || exit 3
echo "$TRIALKEEPER_RANK/$TRIALKEEPER_WORLD_SIZE $FB_WORKER_ADDRESSES $FB_PS_ADDRESSES" >>"$1"
until [ "$(wc -l <"$1")" -ge 3 ]; do sleep 0.05; done
echo "score=$value"
"#;

#[test]
fn the_pods_of_a_trial_fetch_its_code_and_find_one_another() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    bed.write_script("code/train.sh", TRAIN_SCRIPT);
    bed.write("code/value", "0.25");
    let seen = bed.path("seen");
    let line = format!("./train.sh '{}'", seen.display());
    let changes = json!({
        "storage": {"storageType": "nfs", "server": "nas", "path": "/export"},
        "taskRoles": [
            {"name": "worker", "taskNumber": 2, "dockerImage": "any"},
            {"name": "ps", "taskNumber": 1, "dockerImage": "any"},
        ],
    });
    let search =
        search(&bed, &kube, &line, 1).with("trainingService", framework_section(&bed, &changes));
    let outcome = run(&bed, &search);
    outcome.expect_done(1, 0);
    let trial = outcome.trial(0);
    assert_eq!(trial.final_result, json!(0.25));
    assert_eq!(trial.intermediate, [json!(0.25)], "only one pod must report");
    let seen = bed.read("seen");
    let mut lines: Vec<&str> = seen.lines().collect();
    lines.sort_unstable();
    let peers = "127.0.0.1:4000,127.0.0.1:4000 127.0.0.1:4001";
    let expected = [0, 1, 2].map(|rank| format!("{rank}/3 {peers}"));
    assert_eq!(lines, expected);
    kube.wait_until_empty();
}

fn run_doctor(bed: &TestBed, kube: &Kube, options: &[&str]) -> (Option<i32>, String, String) {
    let search = search(bed, kube, "echo score=1", 5);
    let search =
        search.with("trainingService", framework_section(bed, &json!({"storage": "http"})));
    let mut command = bed.manager_command();
    command.arg("doctor").arg(search.write(bed)).args(["--host", "127.0.0.1", "--port", "0"]);
    let finished = bed.start(command.args(options)).finish(WAIT_TIMEOUT);
    (finished.code, String::from_utf8(finished.stdout).unwrap(), finished.stderr)
}

#[test]
fn the_doctor_s_probe_runs_like_a_trial_and_leaves_no_object() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    bed.write("code/train.py", "print(1)\n");
    let (code, stdout, stderr) = run_doctor(&bed, &kube, &["--probe"]);
    assert_eq!(code, Some(0), "{stdout}{stderr}");
    for part in
        ["ok    code   ", ": 1 entries, ", "ok    place  it responds", "ok    probe  a trial ran"]
    {
        assert!(stdout.contains(part), "{part}: {stdout}");
    }
    kube.wait_until_empty();
}

#[test]
fn later_pods_of_a_node_find_agent_and_code_in_its_cache() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    // A pod that fetched a file again would replace it, which changes its inode.
    let script = "#!/bin/sh\nls -i \"$TEST_BED/shares/trialkeeper-cache\" >>\"$1\"\necho score=1\n";
    bed.write_script("code/look.sh", script);
    let line = format!("./look.sh '{}'", bed.path("seen").display());
    let changes = json!({
        "storage": "http",
        "cache": {"hostPath": "/var/lib/trialkeeper"},
        "allowHostPath": true,
    });
    let search = search(&bed, &kube, &line, 3)
        .with("trialConcurrency", 1)
        .with("trainingService", framework_section(&bed, &changes));
    run(&bed, &search).expect_done(3, 0);
    let seen = bed.read("seen");
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines.len(), 6, "each trial must see agent and code: {seen}");
    assert_eq!((&lines[..2], &lines[..2]), (&lines[2..4], &lines[4..]), "{seen}");
    kube.wait_until_empty();
}
