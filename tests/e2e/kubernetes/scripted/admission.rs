//! Objects that the cluster refuses, or cannot check: the manager reports the cluster's message, at once or
//! while trials wait.

use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Outcome, RunningProgram, TestBed, WAIT_TIMEOUT, wait_for};

use super::scenarios::{
    JOB, TRAIN_JOB, WAITING_TRIAL, expect_refusal, is_of_trial, trial_object_name, wait_for_starts,
};
use super::{run, run_command, search_with_service, service_section, start_cluster};

const DENIAL: &str =
    "admission webhook \"validate.kyverno.svc-fail\" denied the request: images need a digest";

#[test]
fn an_object_that_the_cluster_refuses_is_reported_before_the_search() {
    let field = "Job in version \"v1\" cannot be handled as a Job: strict decoding error: unknown field \"spec.template.spec.hostnameOverride\"";
    let invalid = "Job.batch \"x\" is invalid: spec.template.labels: Invalid value: \"x\": must be no more than 63 characters";
    for (code, message, advice) in [
        (400, field, "this cluster's version does not support that field"),
        (403, DENIAL, "a webhook of the cluster refuses the pod"),
        (400, DENIAL, "a webhook of the cluster refuses the pod"),
        (422, invalid, "the Job of a trial could not be created"),
    ] {
        let bed = TestBed::new();
        let kube = start_cluster(&bed);
        kube.fail_requests("TRY jobs", code, 1, message);
        let search = JOB.search(&bed, &kube, "echo score=1", 1, &json!({}));
        expect_refusal(&bed, &search, &[message, advice]);
        assert!(!kube.requests().iter().any(|request| request == "POST jobs"));
        kube.wait_until_empty();
    }
}

#[test]
fn a_pod_field_that_only_the_cluster_knows_reaches_it_and_an_unknown_one_is_refused_in_its_words() {
    let refusal = "strict decoding error: unknown field \"spec.template.spec.hostnameOverride\"";
    #[rustfmt::skip]
    let table = [
        ("kubernetes", "jobs",             "/spec/template/spec"),
        ("trainer",    "trainingruntimes", "/spec/template/spec/replicatedJobs/0/template/spec/template/spec"),
    ];
    for (platform, plural, at) in table {
        let container = json!({"image": "any", "newerStill": {"a": 1}});
        let pod = json!({"spec": {"hostnameOverride": "trial", "containers": [container]}});
        let template = json!({"template": {"spec": {"template": pod}}});
        let own = json!({"platform": platform});
        for is_known in [true, false] {
            let bed = TestBed::new();
            let kube = start_cluster(&bed);
            if !is_known {
                kube.fail_requests(&format!("TRY {plural}"), 400, 1, refusal);
            }
            let section = service_section(&bed, own.clone(), &template);
            let search = search_with_service(&bed, &kube, "echo score=1", 1, section);
            let finished = bed.start(&mut run_command(&bed, &search)).finish(WAIT_TIMEOUT);
            kube.wait_until_empty();
            if !is_known {
                assert_eq!(finished.code, Some(2), "{platform}: {}", finished.stderr);
                assert!(finished.stderr.contains(refusal), "{platform}: {}", finished.stderr);
                continue;
            }
            Outcome::parse(finished).expect_done(1, 0);
            let made = kube.created_objects(plural);
            let pods = made.iter().filter_map(|object| object.pointer(at));
            let newer = pods.filter(|pod| pod["hostnameOverride"] == "trial");
            let newer = newer.filter(|pod| pod["containers"][0]["newerStill"]["a"] == 1);
            assert_eq!(newer.count(), 1, "{platform}: {made:?}");
        }
    }
}

#[test]
fn a_policy_with_which_no_trial_could_run_is_refused_before_the_search() {
    for kind in [JOB, TRAIN_JOB] {
        let bed = TestBed::new();
        let kube = start_cluster(&bed);
        kube.set_policy(move |plural, object| {
            if plural == kind.plural && is_of_trial(object) {
                object["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
            }
        });
        let words = "so that no trial could run: `managedBy: kueue.x-k8s.io/multikueue`";
        let search = kind.search(&bed, &kube, "echo score=1", 1, &json!({}));
        expect_refusal(&bed, &search, &[words, "ask its administrator"]);
        assert!(!kube.created_objects(kind.plural).iter().any(is_of_trial), "{}", kind.plural);
        kube.wait_until_empty();
    }
}

#[test]
fn a_policy_that_suspends_jobs_and_adds_a_mirror_and_limits_is_reported_and_waited_for() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    kube.set_policy(|kind, object| {
        if kind == "jobs" && is_of_trial(object) {
            object["spec"]["suspend"] = json!(true);
            object["spec"]["ttlSecondsAfterFinished"] = json!(600);
            object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("mirror/any");
            object["spec"]["template"]["spec"]["nodeSelector"] = json!({"pool": "spot"});
        }
        if kind == "pods" && is_of_trial(object) {
            object["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("512Mi");
        }
    });
    let search = JOB.search(&bed, &kube, "echo score=1", 1, &json!({}));
    let doctor = {
        let mut doctor = bed.manager_command();
        bed.start(doctor.arg("doctor").arg(search.write(&bed))).finish(WAIT_TIMEOUT)
    };
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(told.contains("the image `mirror/any` instead of `any`"), "{told} {}", doctor.stderr);
    let running = bed.start(&mut run_command(&bed, &search));
    running.wait_for_stderr("it is suspended, but not by the manager");
    for words in [
        "objects of trials: `suspend: true` without a queue: trials wait",
        "objects of trials: `ttlSecondsAfterFinished: 600`: the cluster deletes it",
        "objects of trials: a limit of 512Mi of memory",
    ] {
        running.wait_for_stderr(words);
    }
    assert!(!running.stderr().contains("spot"), "{}", running.stderr());
    // The cluster's own queue controller admits the Job.
    kube.change_object("jobs", &trial_object_name(&kube, "jobs"), |job| {
        job["spec"]["suspend"] = json!(false);
    });
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    kube.wait_until_empty();
}

#[test]
fn a_webhook_without_dry_run_and_a_quota_stop_no_search() {
    for (code, message) in [
        (400, "admission webhook \"w\" does not support dry run"),
        (
            403,
            "jobs.batch \"x\" is forbidden: exceeded quota: small, requested: count/jobs.batch=1",
        ),
    ] {
        let bed = TestBed::new();
        let kube = start_cluster(&bed);
        kube.fail_requests("TRY jobs", code, 1, message);
        run(&bed, &JOB.search(&bed, &kube, "echo score=1", 1, &json!({}))).expect_done(1, 0);
        kube.wait_until_empty();
    }
}

#[test]
fn a_refusal_of_the_controller_s_test_stops_no_search() {
    for message in [
        "jobs.batch \"x\" is forbidden: exceeded quota: small, requested: count/jobs.batch=1",
        "admission webhook \"validate.kyverno.svc-fail\" denied the request: image `none` is not allowed",
    ] {
        let bed = TestBed::new();
        let kube = start_cluster(&bed);
        kube.fail_requests("POST jobs", 403, 1, message);
        let outcome = run(&bed, &JOB.search(&bed, &kube, "echo score=1", 1, &json!({})));
        outcome.expect_done(1, 0);
        for words in ["cannot check whether", message] {
            assert!(outcome.stderr.contains(words), "{words:?} is not in {}", outcome.stderr);
        }
        kube.wait_until_empty();
    }
}

#[test]
fn a_webhook_that_denies_a_trial_fails_it_at_once_with_its_message() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = start_first(&bed, &kube);
    kube.fail_requests("POST jobs", 403, 1, DENIAL);
    bed.write("go", "");
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 1);
    assert!(
        outcome.stderr.contains("FAILED: the trial could not be submitted: "),
        "{}",
        outcome.stderr
    );
    assert!(outcome.stderr.contains(DENIAL), "{}", outcome.stderr);
    kube.wait_until_empty();
}

#[test]
fn an_unreachable_webhook_is_waited_for_before_and_during_the_search() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let away = "Internal error occurred: failed calling webhook \"mjob.kb.io\": failed to call webhook: Post \"https://kueue\": connection refused";
    kube.fail_requests("TRY jobs", 500, 6, away);
    // The test of the controller is skipped, and the first trial's submission fails twice.
    kube.fail_requests("POST jobs", 500, 2, away);
    let running =
        bed.start(&mut run_command(&bed, &JOB.search(&bed, &kube, "echo score=1", 1, &json!({}))));
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(1, 0);
    for words in ["trials wait until the webhook answers", "waits: the cluster at "] {
        assert!(outcome.stderr.contains(words), "{words:?} is not in {}", outcome.stderr);
    }
    assert!(outcome.stderr.contains("failed calling webhook \"mjob.kb.io\""), "{}", outcome.stderr);
    kube.wait_until_empty();
}

#[test]
fn a_pod_that_a_quota_refuses_is_reported_and_waited_for() {
    let line = "echo score=$TRIALKEEPER_WORLD_SIZE";
    let begun = [JOB, TRAIN_JOB].map(|kind| {
        let bed = TestBed::new();
        let kube = start_cluster(&bed);
        kube.set_pod_quota(1);
        let running = kind.start(&bed, &kube, line, &json!({"taskNumber": 2}));
        (bed, kube, running)
    });
    for (_bed, kube, running) in begun {
        running.wait_for_stderr("cannot create its pod: Error creating: pods \"");
        for words in ["is forbidden: exceeded quota: small", "`kubectl describe quota` shows"] {
            running.wait_for_stderr(words);
        }
        kube.set_pod_quota(2);
        let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
        outcome.expect_done(1, 0);
        assert_eq!(outcome.trial(0).final_result, json!(2));
        kube.wait_until_empty();
    }
}

#[test]
fn a_pod_that_a_rule_of_the_cluster_denies_again_fails_its_trial() {
    let denial = "Error creating: pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": restricted volume types";
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    kube.set_pod_quota(0);
    let running =
        bed.start(&mut run_command(&bed, &JOB.search(&bed, &kube, "echo score=1", 1, &json!({}))));
    let job = wait_for("the trial's Job", WAIT_TIMEOUT, || {
        kube.list("jobs").into_iter().find(is_of_trial)
    });
    for (name, second) in [("first", 1), ("second", 2)] {
        let time = format!("2026-11-23T17:00:0{second}Z");
        let event = json!({
            "kind": "Event", "type": "Warning", "metadata": {"name": name, "namespace": "lab"},
            "involvedObject": {"kind": "Job", "name": job["metadata"]["name"], "namespace": "lab"},
            "reason": "FailedCreate", "message": denial, "firstTimestamp": time, "lastTimestamp": time,
        });
        kube.create_object("events", event);
    }
    let outcome = Outcome::parse(running.finish(WAIT_TIMEOUT));
    outcome.expect_done(0, 1);
    let words = format!("FAILED: the cluster's Job controller cannot create its pod: {denial}");
    assert!(outcome.stderr.contains(&words), "{}", outcome.stderr);
    kube.wait_until_empty();
}

/// Starts a search of two Jobs, one at a time. Returns once the first one runs. Jobs end when the file `go`
/// exists.
fn start_first(bed: &TestBed, kube: &Kube) -> RunningProgram {
    let search = JOB.search(bed, kube, WAITING_TRIAL, 2, &json!({}));
    let running = bed.start(&mut run_command(bed, &search));
    wait_for_starts(bed, 1);
    running
}

#[test]
fn a_removed_kind_is_waited_for_and_no_trial_fails() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = start_first(&bed, &kube);
    kube.remove_kind("jobs");
    bed.write("go", "");
    running.wait_for_stderr("does not serve Jobs: it does not serve batch/v1");
    kube.restore_kind("jobs");
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(2, 0);
    kube.wait_until_empty();
}

#[test]
fn a_recreated_namespace_gets_the_shared_secret_again() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = start_first(&bed, &kube);
    let missing = "namespaces \"lab\" not found";
    kube.fail_requests("POST secrets", 404, 1, missing);
    let shared = |secret: &Value| secret.pointer("/data/manager.url").is_some();
    let secret = kube.list("secrets").into_iter().find(shared).expect("the Secret exists");
    let name = secret["metadata"]["name"].as_str().expect("a Secret has a name");
    kube.delete_object("secrets", name);
    bed.write("go", "");
    running.wait_for_stderr(missing);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(2, 0);
    assert_eq!(kube.created_objects("secrets").into_iter().filter(shared).count(), 2);
    kube.wait_until_empty();
}
