//! Trials whose pods are containers: their memory limit and their image.

use serde_json::json;
use trialkeeper_tests::TestBed;

use super::on_each_kind;

#[test]
#[ignore = "needs a cluster whose pods are containers"]
fn a_kill_for_memory_is_reported() {
    on_each_kind(|cluster| {
        cluster.expect_containers();
        let bed = TestBed::new();
        let allocation = "python3 -c 'a = bytearray(600 << 20); print(len(a))'";
        let search = cluster.run(&bed, &cluster.single_role_search(allocation, 1));
        search.expect_done(0, 1);
        assert!(
            search.stderr.contains("memory") || search.stderr.contains("OOM"),
            "{}",
            search.stderr
        );
    });
}

#[test]
#[ignore = "needs a cluster whose pods are containers"]
fn an_image_that_cannot_be_pulled_is_reported() {
    on_each_kind(|cluster| {
        cluster.expect_containers();
        let bed = TestBed::new();
        let mut role = cluster.role("worker");
        // A node fails here without DNS and without Internet access.
        role["dockerImage"] = json!("127.0.0.1:9/none:1");
        let mut service = cluster.service_section(&json!([role]));
        // A real node needs some seconds to report the failure.
        let seconds = if cluster.scripted.is_some() { 10 } else { 45 };
        service["startUpDeadline"] = json!(format!("{seconds}s"));
        let search = cluster.single_role_search("true", 1).with("trainingService", service);
        let search = cluster.run(&bed, &search);
        search.expect_done(0, 1);
        let late = format!("did not start within {seconds} s");
        for message in ["waits: the image 127.0.0.1:9/none:1 cannot be pulled", &late] {
            assert!(search.stderr.contains(message), "{message:?} is not in {}", search.stderr);
        }
    });
}

#[test]
#[ignore = "needs a cluster and an image with the agent"]
fn an_agent_is_in_the_image_or_is_copied_from_one() {
    on_each_kind(|cluster| {
        let image = cluster.agent_image.as_ref().expect("TRIALKEEPER_TEST_AGENT_IMAGE is set");
        let mut with_agent = cluster.role("worker");
        with_agent["dockerImage"] = json!(image);
        for (role, changes) in [
            (with_agent, json!({"agent": "image"})),
            (cluster.role("worker"), json!({"agentImage": image})),
        ] {
            let bed = TestBed::new();
            bed.write("code/train.py", "import sys\nprint('score=%s' % sys.argv[1], flush=True)\n");
            let mut service = cluster.service_section(&json!([role]));
            for (name, value) in changes.as_object().unwrap() {
                service[name] = value.clone();
            }
            let search = cluster.single_role_search("exec python3 train.py {{x}}", 2);
            let search = cluster.run(&bed, &search.with("trainingService", service));
            search.expect_done(2, 0);
            for trial in &search.trials {
                assert_eq!(trial.final_result, trial.parameters["x"], "{trial:?}");
            }
        }
    });
}
