//! The manifests in `deploy/` are valid and consistent, and give the manager exactly the rights that it
//! needs.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use trialkeeper_tests::{RunningProgram, TestBed, WAIT_TIMEOUT, wait_for};

fn deploy_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").canonicalize().unwrap()
}

/// Returns all resources of a kustomization by kind and name, and the kustomization itself.
fn resources_of(folder: &Path) -> (BTreeMap<(String, String), Value>, Value) {
    let read = |path: &Path| {
        let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let documents = serde_saphyr::from_multiple::<Value>(&text);
        documents.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let own = read(&folder.join("kustomization.yaml")).remove(0);
    let mut found = BTreeMap::new();
    for resource in own["resources"].as_array().unwrap() {
        let path = folder.join(resource.as_str().unwrap());
        if path.is_dir() {
            found.extend(resources_of(&path).0);
            continue;
        }
        for object in read(&path) {
            let name = object["metadata"]["name"].as_str().unwrap().to_owned();
            found.insert((object["kind"].as_str().unwrap().to_owned(), name), object);
        }
    }
    (found, own)
}

/// Returns the rules of a role, as `group/resource verb`.
fn granted_rights(role: &Value) -> Vec<String> {
    let texts = |rule: &Value, field: &str| -> Vec<String> {
        let list = rule[field].as_array().unwrap().iter();
        list.map(|text| text.as_str().unwrap().to_owned()).collect()
    };
    let mut granted = Vec::new();
    for rule in role["rules"].as_array().unwrap() {
        for group in texts(rule, "apiGroups") {
            for resource in texts(rule, "resources") {
                let verbs = texts(rule, "verbs").into_iter();
                granted.extend(verbs.map(|verb| format!("{group}/{resource} {verb}")));
            }
        }
    }
    granted
}

/// Returns the rights of the manager's role, as `group/resource verb`.
pub(crate) fn manager_rights() -> Vec<String> {
    let (resources, _) = resources_of(&deploy_folder().join("rights"));
    granted_rights(&resources[&("Role".to_owned(), "trial-manager".to_owned())])
}

#[test]
fn the_manager_s_account_is_bound_to_its_role() {
    let (resources, _) = resources_of(&deploy_folder().join("rights"));
    let named = |kind: &str| &resources[&(kind.to_owned(), "trial-manager".to_owned())];
    let binding = named("RoleBinding");
    assert_eq!(binding["roleRef"]["kind"], "Role");
    assert_eq!(binding["roleRef"]["name"], named("Role")["metadata"]["name"]);
    let account =
        json!([{"kind": "ServiceAccount", "name": named("ServiceAccount")["metadata"]["name"]}]);
    assert_eq!(binding["subjects"], account);
}

#[test]
fn frameworkcontroller_gets_an_account_with_its_rights() {
    let (resources, _) = resources_of(&deploy_folder().join("frameworkcontroller"));
    let named = |kind: &str| &resources[&(kind.to_owned(), "frameworkcontroller".to_owned())];
    let pod = &named("StatefulSet")["spec"]["template"];
    assert_eq!(pod["spec"]["serviceAccountName"], named("ServiceAccount")["metadata"]["name"]);
    assert_eq!(named("StatefulSet")["spec"]["selector"]["matchLabels"], pod["metadata"]["labels"]);
    assert_eq!(named("StatefulSet")["spec"]["replicas"], 1, "two controllers would conflict");
    let binding = named("ClusterRoleBinding");
    assert_eq!(binding["roleRef"]["name"], named("ClusterRole")["metadata"]["name"]);
    let subject = &binding["subjects"][0];
    assert_eq!(subject["namespace"], named("Namespace")["metadata"]["name"]);
    let rights = granted_rights(named("ClusterRole"));
    assert!(rights.iter().all(|right| !right.starts_with("*/") && !right.contains("secrets")));
    let image = pod["spec"]["containers"][0]["image"].as_str().unwrap();
    assert!(image.contains(':') && !image.ends_with(":latest"), "{image}");
}

#[test]
fn the_manager_s_manifests_are_consistent() {
    let folder = deploy_folder().join("manager");
    let (resources, own) = resources_of(&folder);
    let named = |kind: &str| &resources[&(kind.to_owned(), "trial-manager".to_owned())];
    let (set, service) = (&named("StatefulSet")["spec"], &named("Service")["spec"]);
    let pod = &set["template"];
    let container = &pod["spec"]["containers"][0];
    assert_eq!(pod["spec"]["serviceAccountName"], named("ServiceAccount")["metadata"]["name"]);
    for selector in [&set["selector"]["matchLabels"], &service["selector"]] {
        let wanted = selector.as_object().unwrap();
        assert!(!wanted.is_empty());
        assert!(wanted.iter().all(|(name, value)| pod["metadata"]["labels"][name] == *value));
    }
    // Trials' pods have no sidecar, so they could not reach a manager behind a mesh's TLS.
    assert_eq!(pod["metadata"]["labels"]["sidecar.istio.io/inject"], "false");
    assert_eq!(pod["metadata"]["annotations"]["linkerd.io/inject"], "disabled");
    assert_eq!(set["serviceName"], named("Service")["metadata"]["name"]);
    assert_eq!(service["ports"][0]["targetPort"], container["ports"][0]["name"]);
    assert_eq!(service["ports"][0]["port"], container["ports"][0]["containerPort"]);
    let generated = &own["configMapGenerator"][0];
    let mut volumes: Vec<&Value> = pod["spec"]["volumes"].as_array().unwrap().iter().collect();
    assert!(volumes.iter().any(|volume| volume["configMap"]["name"] == generated["name"]));
    for file in generated["files"].as_array().unwrap() {
        assert!(folder.join(file.as_str().unwrap()).is_file(), "{file}");
    }
    volumes.extend(
        set["volumeClaimTemplates"].as_array().unwrap().iter().map(|claim| &claim["metadata"]),
    );
    for mount in container["volumeMounts"].as_array().unwrap() {
        assert!(volumes.iter().any(|volume| volume["name"] == mount["name"]), "{mount}");
    }
    // The requirements of the pod security profile "restricted".
    assert_eq!(pod["spec"]["securityContext"]["runAsNonRoot"], true);
    assert_eq!(pod["spec"]["securityContext"]["fsGroupChangePolicy"], "OnRootMismatch");
    assert_eq!(pod["spec"]["securityContext"]["seccompProfile"]["type"], "RuntimeDefault");
    assert_eq!(container["securityContext"]["allowPrivilegeEscalation"], false);
    assert_eq!(container["securityContext"]["capabilities"]["drop"], json!(["ALL"]));
    // A quota may require requests and limits of every container.
    for (bound, resource) in
        [("requests", "cpu"), ("requests", "memory"), ("limits", "cpu"), ("limits", "memory")]
    {
        assert!(!container["resources"][bound][resource].is_null(), "{bound} {resource}");
    }
}

#[test]
#[ignore = "needs kubectl"]
fn kubectl_builds_all_manifests() {
    for folder in ["frameworkcontroller", "rights", "manager"] {
        let mut kubectl = std::process::Command::new("kubectl");
        let built = kubectl.arg("kustomize").arg(deploy_folder().join(folder)).output();
        let built = built.expect("kubectl is installed");
        let stderr = String::from_utf8_lossy(&built.stderr);
        assert!(built.status.success() && stderr.is_empty(), "{folder}: {stderr}");
        let text = String::from_utf8(built.stdout).unwrap();
        let objects = serde_saphyr::from_multiple::<Value>(&text).unwrap();
        let (resources, own) = resources_of(&deploy_folder().join(folder));
        let generated = own["configMapGenerator"].as_array().map_or(0, Vec::len);
        assert_eq!(objects.len(), resources.len() + generated, "{folder}: {text}");
    }
}

#[test]
fn images_are_built_with_the_pinned_toolchain() {
    let root = deploy_folder().join("..");
    let read = |file: &str| fs::read_to_string(root.join(file)).unwrap();
    let toolchain = read("rust-toolchain.toml");
    let channel = toolchain.lines().find_map(|line| line.strip_prefix("channel = ")).unwrap();
    for file in ["Dockerfile.manager", "Dockerfile.trial"] {
        let text = read(file);
        let image = format!("ARG RUST=rust:{}-", channel.trim_matches('"'));
        assert!(text.contains(&image), "{file}: {image}");
        // Before the copy of the toolchain file, rustup would install the target for the image's own
        // toolchain.
        let (copied, added) = (text.find("COPY . ."), text.find("rustup target add"));
        assert!(copied.is_some() && copied < added, "{file}");
    }
}

/// A replacement of `trial-manager`: records its arguments, creates a database, optionally waits, and ends
/// with the exit code in `END`.
const MANAGER_SCRIPT: &str = r#"#!/bin/sh
trap '[ "$TRIAL_MANAGER_ON_TERM" = leave ] && exit 143; exit 130' TERM
[ "$1" = resume ] || { mkdir -p "$TRIAL_MANAGER_DATA_DIR/abc"; : >"$TRIAL_MANAGER_DATA_DIR/abc/trialkeeper.db"; }
echo "$@" >>"$TRIAL_MANAGER_DATA_DIR/../asked"
[ "$END" != never ] || { sleep 600 >/dev/null 2>&1 & wait; }
exit "$END"
"#;

/// Starts the script of the manager's pod. The manager ends with the code `end`.
fn start_pod_script(bed: &TestBed, end: &str) -> RunningProgram {
    bed.write_script("bin/trial-manager", MANAGER_SCRIPT);
    let mut command = bed.manager_command();
    let mut shell = std::process::Command::new("sh");
    shell.arg(deploy_folder().join("manager/manager.sh")).current_dir(bed.folder()).env_clear();
    shell.envs(command.env("END", end).get_envs().filter_map(|(k, v)| Some((k, v?))));
    let path = std::env::var("PATH").unwrap();
    shell.env("PATH", format!("{}:{path}", bed.path("bin").display()));
    shell
        .env("TRIAL_MANAGER_DATA_DIR", bed.data_folder())
        .env("EXPERIMENT_DIR", bed.path("experiment"));
    bed.start(&mut shell)
}

fn wait_until_idle(bed: &TestBed, pod: &mut RunningProgram) {
    wait_for("the pod to sleep", WAIT_TIMEOUT, || {
        bed.processes().iter().any(|(_, words)| words.starts_with("sleep infinity")).then_some(())
    });
    assert!(pod.is_running());
}

#[test]
fn the_manager_s_pod_starts_its_search_once_resumes_it_and_stays_when_it_is_done() {
    let bed = TestBed::new();
    bed.write("experiment/experiment.yml", "x");
    bed.write("experiment/old.py", "x");
    let asked = |lines: usize| {
        wait_for("the manager's start", WAIT_TIMEOUT, || {
            let asked = bed.read("asked");
            (asked.lines().count() == lines).then_some(asked)
        })
    };
    // The pod moves to another node during the search.
    let first = start_pod_script(&bed, "never");
    assert_eq!(
        asked(1),
        format!("run {}\n", bed.data_folder().join("code/experiment.yml").display())
    );
    assert!(bed.data_folder().join("code/old.py").is_file());
    first.signal(Signal::SIGTERM);
    assert_eq!(
        first.finish(WAIT_TIMEOUT).code,
        Some(143),
        "the manager must leave its trials running"
    );
    // The manager continues there, fails, and is started again.
    fs::remove_file(bed.path("experiment/old.py")).unwrap();
    assert_eq!(
        start_pod_script(&bed, "3").finish(WAIT_TIMEOUT).code,
        Some(3),
        "the pod must end with the manager's code"
    );
    assert!(asked(2).ends_with("resume abc\n"));
    assert!(!bed.data_folder().join("code/old.py").exists(), "a removed file must disappear");
    // The search is done.
    let mut last = start_pod_script(&bed, "1");
    assert!(asked(3).ends_with("resume abc\n"));
    wait_until_idle(&bed, &mut last);
    last.signal(Signal::SIGTERM);
    last.finish(WAIT_TIMEOUT);
}

#[test]
fn a_stopped_search_stays_stopped_until_it_is_resumed() {
    let bed = TestBed::new();
    bed.write("experiment/experiment.yml", "x");
    let asked = || bed.read("asked").lines().count();
    // Stopped with `experiment stop`, and then started on another node.
    for _ in 0..2 {
        let mut stopped = start_pod_script(&bed, "130");
        wait_until_idle(&bed, &mut stopped);
        assert_eq!(asked(), 1);
        stopped.signal(Signal::SIGTERM);
        stopped.finish(WAIT_TIMEOUT);
        bed.wait_until_empty();
    }
    fs::remove_file(bed.data_folder().join("stopped")).unwrap();
    let mut last = start_pod_script(&bed, "0");
    wait_until_idle(&bed, &mut last);
    assert_eq!(asked(), 2);
    last.signal(Signal::SIGTERM);
    last.finish(WAIT_TIMEOUT);
}
