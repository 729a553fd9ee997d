//! Objects of trials that the cluster would not take, or cannot judge: said with its words, at once or while trials wait.

use serde_json::json;
use trialkeeper_tests::kube::Kube;
use trialkeeper_tests::{BOUND, Outcome, Search, TestBed, wait_for};

use super::{cluster, command, run, search_in, section};

const DENIED: &str =
    "admission webhook \"validate.kyverno.svc-fail\" denied the request: images need a digest";

/// A search of Jobs.
fn search(bed: &TestBed, kube: &Kube, trials: u32) -> Search {
    let own = json!({"platform": "kubernetes", "dockerImage": "any"});
    search_in(bed, kube, "echo score=1", trials, section(bed, own, &json!({})))
}

#[test]
fn an_object_that_the_cluster_does_not_take_is_refused_before_the_search() {
    let field = "Job in version \"v1\" cannot be handled as a Job: strict decoding error: unknown field \"spec.template.spec.hostnameOverride\"";
    let invalid = "Job.batch \"x\" is invalid: spec.template.labels: Invalid value: \"x\": must be no more than 63 characters";
    for (code, message, advice) in [
        (400, field, "this cluster's version does not know that field"),
        (403, DENIED, "a webhook of the cluster's refuses it"),
        (400, DENIED, "a webhook of the cluster's refuses it"),
        (422, invalid, "the Job of a trial could not be made"),
    ] {
        let bed = TestBed::new();
        let kube = cluster(&bed);
        kube.fail("TRY jobs", code, 1, message);
        let search = search(&bed, &kube, 1);
        let finished = bed.start(&mut command(&bed, &search)).finish(BOUND);
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        for words in [message, advice] {
            assert!(finished.stderr.contains(words), "{words:?} is not in {}", finished.stderr);
        }
        assert!(!kube.requests().iter().any(|request| request == "POST jobs"));
        kube.wait_until_empty();
    }
}

#[test]
fn a_webhook_that_knows_no_dry_run_and_a_quota_stop_no_search() {
    for (code, message) in [
        (400, "admission webhook \"w\" does not support dry run"),
        (
            403,
            "jobs.batch \"x\" is forbidden: exceeded quota: small, requested: count/jobs.batch=1",
        ),
    ] {
        let bed = TestBed::new();
        let kube = cluster(&bed);
        kube.fail("TRY jobs", code, 1, message);
        run(&bed, &search(&bed, &kube, 1)).expect_done(1, 0);
        kube.wait_until_empty();
    }
}

#[test]
fn a_webhook_that_denies_a_trial_in_mid_search_fails_it_at_once_with_its_words() {
    let bed = TestBed::new();
    let kube = cluster(&bed);
    let search = search(&bed, &kube, 2);
    let outcome = std::thread::scope(|scope| {
        scope.spawn(|| {
            wait_for("the look at the controller", BOUND, || {
                (!kube.made("jobs").is_empty()).then_some(())
            });
            kube.fail("POST jobs", 403, 1, DENIED);
        });
        run(&bed, &search)
    });
    outcome.expect_done(1, 1);
    assert!(outcome.stderr.contains("FAILED: it could not be submitted: "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(DENIED), "{}", outcome.stderr);
    kube.wait_until_empty();
}

#[test]
fn a_webhook_that_is_away_is_waited_for_before_and_during_the_search() {
    let bed = TestBed::new();
    let kube = cluster(&bed);
    let away = "Internal error occurred: failed calling webhook \"mjob.kb.io\": failed to call webhook: Post \"https://kueue\": connection refused";
    kube.fail("TRY jobs", 500, 6, away);
    // The look at the controller is left out, and the first trial is told so twice.
    kube.fail("POST jobs", 500, 2, away);
    let running = bed.start(&mut command(&bed, &search(&bed, &kube, 1)));
    let outcome = Outcome::of(running.finish(BOUND));
    outcome.expect_done(1, 0);
    for words in ["trials wait until the webhook answers", "waits: the cluster at "] {
        assert!(outcome.stderr.contains(words), "{words:?} is not in {}", outcome.stderr);
    }
    assert!(outcome.stderr.contains("failed calling webhook \"mjob.kb.io\""), "{}", outcome.stderr);
    kube.wait_until_empty();
}

#[test]
fn a_pod_of_several_that_a_quota_refuses_is_said_in_its_words_and_waited_for() {
    let line = "echo score=$TRIALKEEPER_WORLD_SIZE";
    let begun = ["kubernetes", "trainer"].map(|platform| {
        let bed = TestBed::new();
        let kube = cluster(&bed);
        kube.pod_quota(1);
        let own = json!({"platform": platform, "dockerImage": "any", "taskNumber": 2});
        let search = search_in(&bed, &kube, line, 1, section(&bed, own, &json!({})));
        let running = bed.start(&mut command(&bed, &search));
        (bed, kube, running)
    });
    for (_bed, kube, running) in begun {
        let words = "cannot make its pod: Error creating: pods \"";
        wait_for(words, BOUND, || running.stderr().contains(words).then_some(()));
        for words in ["is forbidden: exceeded quota: small", "`kubectl describe quota` shows"] {
            assert!(running.stderr().contains(words), "{words:?} is not in {}", running.stderr());
        }
        kube.pod_quota(2);
        let outcome = Outcome::of(running.finish(BOUND));
        outcome.expect_done(1, 0);
        assert_eq!(outcome.trial(0).final_result, json!(2));
        kube.wait_until_empty();
    }
}
