//! Credentials: certificates, and tokens that expire. Also the dry run of pods, and lists with several pages.

use serde_json::json;
use trialkeeper_tests::kube::{Behavior, Kube, TlsProxy};
use trialkeeper_tests::{Gate, Outcome, TestBed, WAIT_TIMEOUT, wait_for};

use super::{TRIAL, framework_section, run_command, search};

#[test]
fn the_cluster_s_authority_and_the_client_s_certificate_are_used() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let (tls, other_tls) = (TlsProxy::start(&kube), TlsProxy::start(&kube));
    let (certificate, key) = &tls.client;
    bed.write("ca.crt", &tls.ca);
    bed.write("client.crt", certificate);
    bed.write("client.key", key);
    let (ca, certificate, key) = (
        TlsProxy::encode_pem(&tls.ca),
        TlsProxy::encode_pem(certificate),
        TlsProxy::encode_pem(key),
    );
    let data = format!("client-certificate-data: {certificate}, client-key-data: {key}");
    let files = "client-certificate: client.crt, client-key: client.key";
    let known = format!("certificate-authority-data: {ca}");
    let other = format!("certificate-authority-data: {}", TlsProxy::encode_pem(&other_tls.ca));
    #[rustfmt::skip]
    let table = [
        ("all in the kubeconfig, as kind and k3s write it", known.as_str(), data.as_str(), "ok    place"),
        ("files beside the kubeconfig, as minikube has it", "certificate-authority: ca.crt", files, "ok    place"),
        ("an unchecked server", "insecure-skip-tls-verify: true", &data, "ok    place"),
        ("another cluster's authority", &other, &data, "no trusted connection to the cluster"),
        ("no known certificate",        &known, "username: ''", "no trusted connection to the cluster"),
        ("an invalid key", &known, &format!("client-certificate-data: {certificate}, client-key-data: {ca}"), "FAIL  place"),
    ];
    let search = search(&bed, &kube, TRIAL, 2).write(&bed);
    for (case, cluster, user, expected) in table {
        tls.write_kubeconfig(&bed.path("kubeconfig"), cluster, user);
        let mut doctor = bed.manager_command();
        doctor.arg("doctor").arg(&search);
        let finished = bed.start(&mut doctor).finish(WAIT_TIMEOUT);
        let whole = format!("{}{}", String::from_utf8_lossy(&finished.stdout), finished.stderr);
        assert!(whole.contains(expected), "{case}: {whole}");
        assert!(!whole.contains("panicked"), "{case}: {whole}");
    }
    tls.write_kubeconfig(&bed.path("kubeconfig"), &known, &data);
    let mut whole = bed.manager_command();
    whole.arg("run").arg(&search).args(["--output", "json", "--host", "127.0.0.1", "--port", "0"]);
    let whole = whole.arg("--data-dir").arg(bed.data_folder());
    Outcome::parse(bed.start(whole).finish(WAIT_TIMEOUT)).expect_done(2, 0);
}

#[test]
fn an_expired_certificate_is_reported_with_the_remedy() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let search = search(&bed, &kube, TRIAL, 1).write(&bed);
    #[rustfmt::skip]
    let table = [
        (None, Some(2020), "the client certificate in the kubeconfig ", " expired on 2020-12-31 00:00:00 UTC: log in again"),
        (Some(2020), None, "the certificate of the cluster at https://127.0.0.1:", " has expired on 2020-12-31 00:00:00 UTC: ask the cluster's administrator"),
    ];
    for (own, client, starts, refusal) in table {
        let tls = TlsProxy::start_with_expiry(&kube, own, client);
        let (certificate, key) =
            (TlsProxy::encode_pem(&tls.client.0), TlsProxy::encode_pem(&tls.client.1));
        let user = format!("client-certificate-data: {certificate}, client-key-data: {key}");
        let cluster = format!("certificate-authority-data: {}", TlsProxy::encode_pem(&tls.ca));
        tls.write_kubeconfig_without_token(&bed.path("kubeconfig"), &cluster, &user);
        let mut run = bed.manager_command();
        run.arg("run").arg(&search).arg("--data-dir").arg(bed.data_folder());
        let finished = bed.start(&mut run).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(2), "{}", finished.stderr);
        for part in [starts, refusal, "kubeadm certs renew", "clock"] {
            assert!(finished.stderr.contains(part), "{part:?} is not in {}", finished.stderr);
        }
    }
}

#[test]
fn a_token_renewed_in_the_kubeconfig_is_used() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let gate = Gate::new(&bed.path("gate"));
    let trial = format!("read _ <'{}'; {TRIAL}", bed.path("gate").display());
    let search = search(&bed, &kube, &trial, 3);
    let manager = bed.start(&mut run_command(&bed, &search));
    wait_for("the first trial", WAIT_TIMEOUT, || {
        (kube.created_objects("frameworks").len() == 2).then_some(())
    });
    kube.set_token("renewed");
    kube.cut_watches();
    kube.write_kubeconfig(&bed.path("kubeconfig"));
    gate.release(3);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(3, 0);
}

#[test]
fn a_program_returns_the_token_or_its_error_is_shown() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let search = search(&bed, &kube, TRIAL, 1).write(&bed);
    let direct = bed.read("kubeconfig");
    let credential = json!({
        "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
        "status": {"token": "scripted"},
    });
    let table = [
        (format!("echo '{credential}'"), "ok    place"),
        (
            "echo 'the login has ended' >&2; exit 3".to_owned(),
            "failed (exit status: 3): the login has ended",
        ),
    ];
    for (script, expected) in table {
        // The program gets no terminal, because `doctor` has none.
        let script = format!("#!/bin/sh\ngrep -q . && exit 1\n{script}\n");
        let program = bed.write_script("login", &script).display().to_string();
        let exec = json!({"apiVersion": "client.authentication.k8s.io/v1", "command": program});
        let changed = direct.replace("token: scripted", &format!("exec: {exec}"));
        assert_ne!(changed, direct);
        bed.write("kubeconfig", &changed);
        let mut doctor = bed.manager_command();
        let finished = bed.start(doctor.arg("doctor").arg(&search)).finish(WAIT_TIMEOUT);
        let whole = format!("{}{}", String::from_utf8_lossy(&finished.stdout), finished.stderr);
        assert!(whole.contains(expected), "{whole}");
    }
}

#[test]
fn a_missing_file_of_kubeconfig_is_ignored() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let section = framework_section(&bed, &json!({"kubeconfig": null}));
    let search = search(&bed, &kube, TRIAL, 1).with("trainingService", section).write(&bed);
    let (missing, present) = (bed.path("missing"), bed.path("kubeconfig"));
    let both = std::env::join_paths([&missing, &present]).unwrap();
    let table = [
        (both, "ok    place"),
        (missing.into_os_string(), "missing) cannot be used: no file there has a context"),
    ];
    for (files, expected) in table {
        let mut doctor = bed.manager_command();
        doctor.arg("doctor").arg(&search).env("KUBECONFIG", files);
        let finished = bed.start(&mut doctor).finish(WAIT_TIMEOUT);
        let whole = format!("{}{}", String::from_utf8_lossy(&finished.stdout), finished.stderr);
        assert!(whole.contains(expected), "{whole}");
    }
}

#[test]
fn a_pod_that_the_cluster_would_refuse_is_reported_before_anything_is_submitted() {
    #[rustfmt::skip]
    let table = [
        (403, "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": seccompProfile", Some(2)),
        (422, "Pod \"x\" is invalid: spec.containers[0].resources.requests: must be less than or equal to cpu limit", Some(2)),
        // Other objects may release the quota.
        (403, "pods \"x\" is forbidden: exceeded quota: q, requested: cpu=1, used: cpu=2, limited: cpu=2", Some(0)),
        (400, "admission webhook \"w\" does not support dry run", Some(0)),
        (503, "busy", Some(0)),
    ];
    for (code, message, ends) in table {
        let bed = TestBed::new();
        let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
        // The manager repeats a refused request, since the namespace may be new.
        kube.fail_requests("POST pods", code, if code == 403 { 2 } else { 1 }, message);
        let search = search(&bed, &kube, TRIAL, 1);
        let finished = bed.start(&mut run_command(&bed, &search)).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, ends, "{message}: {}", finished.stderr);
        if ends == Some(2) {
            let refusal = "a pod of the role `worker` could not be created: ";
            assert!(finished.stderr.contains(refusal), "{}", finished.stderr);
            assert_eq!(kube.created_objects("frameworks").len(), 0, "{message}");
        }
        let is_reported = finished.stderr.contains(message);
        assert_eq!(is_reported, !message.contains("dry run") && code != 503, "{}", finished.stderr);
    }
}

#[test]
fn lists_with_pages_and_expired_versions_are_read() {
    let bed = TestBed::new();
    let kube = Kube::start(bed.folder(), |_| Behavior::Processes);
    let gate = Gate::new(&bed.path("gate"));
    let trial = format!("read _ <'{}'; {TRIAL}", bed.path("gate").display());
    let search = search(&bed, &kube, &trial, 3).with("trialConcurrency", 3);
    let manager = bed.start(&mut run_command(&bed, &search));
    wait_for("all trials", WAIT_TIMEOUT, || {
        (kube.created_objects("frameworks").len() == 4).then_some(())
    });
    // Lists have pages of 500. The search's objects are on the first and on the last page.
    let labels = kube.list("frameworks").remove(0)["metadata"]["labels"].clone();
    for i in 0..1200 {
        let metadata = json!({"name": format!("tk{i:04}zz"), "namespace": "lab", "labels": labels});
        kube.create_object(
            "frameworks",
            json!({"metadata": metadata, "spec": {"executionType": "Create"}}),
        );
    }
    // The second page is requested after the history of the first page's version was dropped.
    kube.fail_requests("CONTINUE frameworks", 410, 1, "The provided continue parameter is too old");
    kube.drop_history();
    kube.cut_watches();
    wait_for("all pages", WAIT_TIMEOUT, || {
        let parts = kube.requests().iter().filter(|one| *one == "CONTINUE frameworks").count();
        (parts >= 3).then_some(())
    });
    gate.release(3);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(3, 0);
    let made = kube.created_objects("frameworks").into_iter();
    let made = made.filter(|made| made["spec"]["executionType"] == "Start").count();
    assert_eq!(made, 3, "a trial was submitted twice");
    kube.wait_until_empty();
}
