//! A cluster that cannot run trials: one message names the missing parts before the first submission.

use serde_json::{Value, json};
use trialkeeper_tests::kube::{Behavior, Kube};
use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::{expect_parameters_as_results, framework_section, run_command, search};

type BreakCluster = fn(&TestBed, &Kube, Search) -> Search;

fn with_changed_section(bed: &TestBed, search: Search, changes: &Value) -> Search {
    search.with("trainingService", framework_section(bed, changes))
}

#[test]
fn missing_rights_and_parts_are_reported_before_anything_is_submitted() {
    #[rustfmt::skip]
    let table: [(&str, BreakCluster, &[&str]); 11] = [
        ("no kubeconfig at all", |bed, _, search| with_changed_section(bed, search, &json!({"kubeconfig": null})),
            &["there is no kubeconfig", "KUBECONFIG", "~/.kube/config"]),
        ("no such kubeconfig", |bed, _, search| with_changed_section(bed, search, &json!({"kubeconfig": "nowhere"})),
            &["the kubeconfig", "nowhere"]),
        ("a wrong context", |bed, _, search| with_changed_section(bed, search, &json!({"context": "tset"})),
            &["it has no context `tset`; its contexts are test"]),
        ("no such namespace", |bed, _, search| with_changed_section(bed, search, &json!({"namespace": "lap"})),
            &["has no namespace `lap`", "kubectl create namespace lap"]),
        ("no such kind", |_, kube, search| { kube.remove_framework_kind(); search },
            &["does not serve Frameworks", "not installed"]),
        ("missing rights", |_, kube, search| {
            kube.remove_right("create frameworks");
            kube.remove_right("watch pods");
            search
        }, &["lacks these rights in the namespace `lab`: create frameworks; watch pods", "deploy/"]),
        ("a token that expired", |bed, _, search| {
            let text = bed.read("kubeconfig").replace("token: scripted", "token: old");
            bed.write("kubeconfig", &text);
            search
        }, &["rejected the credentials", "expired"]),
        ("an address without a listener", |bed, _, search| {
            let text = bed.read("kubeconfig");
            let (start, _) = text.split_once("http://").unwrap();
            let (_, end) = text.split_once("'}}]\nusers").unwrap();
            bed.write("kubeconfig", &format!("{start}http://127.0.0.1:9'}}}}]\nusers{end}"));
            search
        }, &["cannot be reached"]),
        ("a controller that is not at work", |_, kube, search| { kube.set_controllers_running(false); search },
            &["FrameworkController has not noticed", "does its pod run"]),
        ("an invalid advertised address", |bed, _, search| with_changed_section(bed, search, &json!({"advertise": "my manager"})),
            &["--advertise my manager", "host:port"]),
        ("a registry's password that is not there", |bed, _, search| with_changed_section(bed, search, &json!({
            "taskRoles": [{"name": "worker", "dockerImage": "any", "privateRegistryAuthPath": "auth.json"}],
        })), &["cannot read", "auth.json"]),
    ];
    for (case, change, words) in table {
        println!("{case}");
        let bed = TestBed::new();
        let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
        let good = search(&bed, &kube, super::TRIAL, 1);
        let search = change(&bed, &kube, good);
        let finished = bed.start(&mut run_command(&bed, &search)).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(2), "{case}: {}", finished.stderr);
        assert!(!finished.stderr.contains("panicked"), "{}", finished.stderr);
        for word in words {
            assert!(
                finished.stderr.contains(word),
                "{case}: {word:?} is not in {}",
                finished.stderr
            );
        }
        kube.wait_until_empty();
        let submitted = kube.created_objects("frameworks").into_iter();
        let submitted = submitted.filter(|made| made["spec"]["executionType"] == "Start").count();
        assert_eq!(submitted, 0, "{case}");
    }
}

#[test]
fn a_short_fault_is_waited_for_and_a_lasting_one_is_reported() {
    let run_with_faults = |count| {
        let bed = TestBed::new();
        let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
        let search = search(&bed, &kube, super::TRIAL, 1);
        for (what, code) in [
            ("GET namespaces", 503),
            ("POST selfsubjectaccessreviews", 429),
            ("POST selfsubjectaccessreviews", 0),
            ("GET frameworks", 500),
            ("POST frameworks", 1),
            ("DELETE frameworks", 429),
            ("POST secrets", 500),
        ] {
            kube.fail_requests(what, code, count, "busy");
        }
        let finished = bed.start(&mut run_command(&bed, &search)).finish(WAIT_TIMEOUT);
        kube.wait_until_empty();
        finished
    };
    let short = run_with_faults(1);
    assert_eq!(short.code, Some(0), "{}", short.stderr);
    let lasting = run_with_faults(1000);
    assert_eq!(lasting.code, Some(2), "{}", lasting.stderr);
    assert!(lasting.stderr.contains("is in trouble (503): busy"), "{}", lasting.stderr);
}

#[test]
fn a_slow_request_is_repeated_and_creates_no_object_twice() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    // The manager's timeout of a request. The first trial's Secret is created, but the answer comes too late.
    let timeout = std::time::Duration::from_secs(30);
    let search = search(&bed, &kube, super::TRIAL, 2);
    let manager = bed.start(&mut run_command(&bed, &search));
    wait_for("the experiment's own Secret", WAIT_TIMEOUT, || {
        (!kube.created_objects("secrets").is_empty()).then_some(())
    });
    kube.delay_requests("POST secrets", 2 * timeout, 1);
    // The watch reports the trial's end before this answer.
    kube.delay_requests("POST frameworks", 2 * timeout, 1);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT + timeout));
    search.expect_done(2, 0);
    expect_parameters_as_results(&search);
    let started = kube.created_objects("frameworks").into_iter();
    let started = started.filter(|made| made["spec"]["executionType"] == "Start").count();
    assert_eq!(
        (started, kube.created_objects("secrets").len()),
        (2, 2 + 1),
        "an object was created twice"
    );
    let asked = kube.requests().iter().filter(|one| *one == "POST secrets").count();
    assert_eq!(asked, 3 + 1, "{:?}", kube.requests());
    kube.wait_until_empty();
}
