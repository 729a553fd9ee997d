//! Objects that the cluster refuses, or cannot check: the manager reports the cluster's message, at once or
//! while trials wait.

use serde_json::{Value, json};
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::{run, run_command, search_with_service, service_section, start_cluster};

const DENIAL: &str =
    "admission webhook \"validate.kyverno.svc-fail\" denied the request: images need a digest";

/// Returns a search of Jobs.
fn search(bed: &TestBed, kube: &Kube, trials: u32) -> Search {
    let own = json!({"platform": "kubernetes", "dockerImage": "any"});
    search_with_service(bed, kube, "echo score=1", trials, service_section(bed, own, &json!({})))
}

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
        let search = search(&bed, &kube, 1);
        let finished = bed.start(&mut run_command(&bed, &search)).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        for words in [message, advice] {
            assert!(finished.stderr.contains(words), "{words:?} is not in {}", finished.stderr);
        }
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

/// Returns whether an object is a trial's, and not the check of the controller.
fn is_trial(object: &Value) -> bool {
    object.pointer("/metadata/labels/trialkeeper~1trial").is_some()
}

#[test]
fn a_policy_with_which_no_trial_could_run_is_refused_before_the_search() {
    let train_job = json!({"platform": "trainer", "dockerImage": "any"});
    let job = json!({"platform": "kubernetes", "dockerImage": "any"});
    for (own, plural, kept) in [(job, "jobs", 0), (train_job, "trainjobs", 0)] {
        let bed = TestBed::new();
        let kube = start_cluster(&bed);
        kube.set_policy(move |kind, object| {
            if kind == plural && is_trial(object) {
                object["spec"]["managedBy"] = json!("kueue.x-k8s.io/multikueue");
            }
        });
        let search = search_with_service(
            &bed,
            &kube,
            "echo score=1",
            1,
            service_section(&bed, own, &json!({})),
        );
        let finished = bed.start(&mut run_command(&bed, &search)).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(2), "{plural}: {}", finished.stderr);
        for words in [
            "so that no trial could run: `managedBy: kueue.x-k8s.io/multikueue`",
            "ask its administrator",
        ] {
            assert!(finished.stderr.contains(words), "{words:?} is not in {}", finished.stderr);
        }
        assert_eq!(
            kube.created_objects(plural).iter().filter(|object| is_trial(object)).count(),
            kept
        );
        kube.wait_until_empty();
    }
}

#[test]
fn a_policy_that_suspends_jobs_and_adds_a_mirror_and_limits_is_reported_and_waited_for() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    kube.set_policy(|kind, object| {
        if kind == "jobs" && is_trial(object) {
            object["spec"]["suspend"] = json!(true);
            object["spec"]["ttlSecondsAfterFinished"] = json!(600);
            object["spec"]["template"]["spec"]["containers"][0]["image"] = json!("mirror/any");
            object["spec"]["template"]["spec"]["nodeSelector"] = json!({"pool": "spot"});
        }
        if kind == "pods" && is_trial(object) {
            object["spec"]["containers"][0]["resources"]["limits"]["memory"] = json!("512Mi");
        }
    });
    let search = search(&bed, &kube, 1);
    let doctor = {
        let mut doctor = bed.manager_command();
        bed.start(doctor.arg("doctor").arg(search.write(&bed))).finish(WAIT_TIMEOUT)
    };
    let told = String::from_utf8_lossy(&doctor.stdout).into_owned();
    assert!(told.contains("the image `mirror/any` instead of `any`"), "{told} {}", doctor.stderr);
    let running = bed.start(&mut run_command(&bed, &search));
    wait_for_stderr(&running, "it is suspended, but not by the manager");
    for words in [
        "objects of trials: `suspend: true` without a queue: trials wait",
        "objects of trials: `ttlSecondsAfterFinished: 600`: the cluster deletes it",
        "objects of trials: a limit of 512Mi of memory",
    ] {
        assert!(running.stderr().contains(words), "{words:?} is not in {}", running.stderr());
    }
    assert!(!running.stderr().contains("spot"), "{}", running.stderr());
    // The cluster's own queue controller admits the Job.
    let job = kube.list("jobs").into_iter().find(is_trial).expect("the Job waits");
    kube.change_object(
        "jobs",
        job["metadata"]["name"].as_str().expect("a Job has a name"),
        |job| {
            job["spec"]["suspend"] = json!(false);
        },
    );
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
        run(&bed, &search(&bed, &kube, 1)).expect_done(1, 0);
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
        let outcome = run(&bed, &search(&bed, &kube, 1));
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
    let search = search(&bed, &kube, 2);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for("the test of the controller", WAIT_TIMEOUT, || {
                (!kube.created_objects("jobs").is_empty()).then_some(())
            });
            kube.fail_requests("POST jobs", 403, 1, DENIAL);
        });
        run(&bed, &search)
    });
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
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, 1)));
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
    let begun = ["kubernetes", "trainer"].map(|platform| {
        let bed = TestBed::new();
        let kube = start_cluster(&bed);
        kube.set_pod_quota(1);
        let own = json!({"platform": platform, "dockerImage": "any", "taskNumber": 2});
        let search =
            search_with_service(&bed, &kube, line, 1, service_section(&bed, own, &json!({})));
        let running = bed.start(&mut run_command(&bed, &search));
        (bed, kube, running)
    });
    for (_bed, kube, running) in begun {
        wait_for_stderr(&running, "cannot create its pod: Error creating: pods \"");
        for words in ["is forbidden: exceeded quota: small", "`kubectl describe quota` shows"] {
            assert!(running.stderr().contains(words), "{words:?} is not in {}", running.stderr());
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
    let running = bed.start(&mut run_command(&bed, &search(&bed, &kube, 1)));
    let job =
        wait_for("the trial's Job", WAIT_TIMEOUT, || kube.list("jobs").into_iter().find(is_trial));
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
    let own = json!({"platform": "kubernetes", "dockerImage": "any"});
    let line = "echo up >>\"$TEST_BED/up\"; until [ -e \"$TEST_BED/go\" ]; do sleep 0.02; done; echo score=1";
    let search = search_with_service(bed, kube, line, 2, service_section(bed, own, &json!({})));
    let running = bed.start(&mut run_command(bed, &search));
    wait_for("the first trial", WAIT_TIMEOUT, || (!bed.read("up").is_empty()).then_some(()));
    running
}

fn wait_for_stderr(running: &RunningProgram, words: &str) {
    wait_for(words, WAIT_TIMEOUT, || running.stderr().contains(words).then_some(()));
}

#[test]
fn a_removed_kind_is_waited_for_and_no_trial_fails() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let running = start_first(&bed, &kube);
    kube.remove_kind("jobs");
    bed.write("go", "");
    wait_for_stderr(&running, "does not serve Jobs: it does not serve batch/v1");
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
    wait_for_stderr(&running, missing);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(2, 0);
    assert_eq!(kube.created_objects("secrets").into_iter().filter(shared).count(), 2);
    kube.wait_until_empty();
}
