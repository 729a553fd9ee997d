//! Tests of the cache: its parts in the manifests of every kind, and its script, run by a real shell against a real
//! server.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::super::pod;
use super::super::tests::{job, workload_settings};
use super::*;
use crate::training_service::kubernetes::workload::workload;
use crate::util::digest::hexadecimal;

/// The agent that the test server serves. It prints its code archive.
const AGENT: &str =
    "#!/bin/sh\n[ \"$1\" = version ] || cat \"${TRIALKEEPER_CODE_ARCHIVE:-/dev/null}\"\n";
const CODE: &str = "the code";
/// The programs that the scripts use in every image, and the further programs of the usual image.
const BASE_PROGRAMS: [&str; 10] =
    ["cat", "chmod", "cp", "find", "mkdir", "mktemp", "mv", "rm", "tail", "touch"];
const IMAGE_PROGRAMS: [&str; 2] = ["curl", "sha256sum"];
const DAY: Duration = Duration::from_hours(24);

/// Programs of an image that the test replaces by scripts.
type Scripts<'a> = &'a [(&'a str, &'a str)];

/// A change that damages a file.
type Damage<'a> = &'a dyn Fn(&Path);

/// A server that serves agent and code, and records the requests.
struct Manager {
    url: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Manager {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::<Mutex<Vec<String>>>::default();
        let known = Arc::clone(&requests);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let known = Arc::clone(&known);
                std::thread::spawn(move || answer_request(&connection.unwrap(), &known));
            }
        });
        Self { url, requests }
    }

    /// Returns the requests since the last call, in alphabetical order.
    fn take_requests(&self) -> Vec<String> {
        let mut requests = std::mem::take(&mut *self.requests.lock().unwrap());
        requests.sort();
        requests
    }
}

fn answer_request(mut connection: &TcpStream, requests: &Mutex<Vec<String>>) {
    let head: Vec<String> = BufReader::new(connection)
        .lines()
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .collect();
    let path = head[0].split(' ').nth(1).unwrap();
    let what = path.strip_prefix("/api/v1/agent/").unwrap().to_owned();
    assert!(head.contains(&"Authorization: Bearer t".to_owned()), "{head:?}");
    let body = if what == "program" { AGENT } else { CODE };
    requests.lock().unwrap().push(what);
    write!(
        connection,
        "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
    .unwrap();
}

fn checksum(text: &str) -> String {
    hexadecimal(ring::digest::digest(&ring::digest::SHA256, text.as_bytes()).as_ref())
}

/// A node with a cache, on which pods start.
struct Node {
    manager: Manager,
    folder: tempfile::TempDir,
    /// The checksums of the agent and of the code that the pods receive.
    checksums: [String; 2],
}

impl Node {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("cache")).unwrap();
        Self { manager: Manager::start(), folder, checksums: [checksum(AGENT), checksum(CODE)] }
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    /// Returns the paths of the agent and the code in the cache.
    fn files(&self) -> [PathBuf; 2] {
        [checksum(AGENT), checksum(CODE)].map(|sum| self.cache().join(format!("trialkeeper-{sum}")))
    }

    /// Returns the names in the cache, in alphabetical order.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.cache()).unwrap().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Starts a pod whose image has these programs, with scripts in place of some of them.
    fn start_pod(
        &self,
        cache: &Path,
        programs: &[&str],
        scripts: Scripts<'_>,
    ) -> (tempfile::TempDir, Child) {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        fs::create_dir(at("programs")).unwrap();
        for program in BASE_PROGRAMS.iter().chain(programs) {
            symlink(program_path(program), at("programs").join(program)).unwrap();
        }
        for (name, script) in scripts {
            let file = at("programs").join(name);
            // The file is removed first, or the write would follow the link to the machine's own program.
            drop(fs::remove_file(&file));
            fs::write(&file, script).unwrap();
            fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).unwrap();
        }
        fs::write(at("token"), "t\n").unwrap();
        fs::write(at("manager.url"), format!("{}\n", self.manager.url)).unwrap();
        let mut shell = Command::new("/bin/sh");
        shell.args([
            "-c",
            &format!("{CACHE_SCRIPT}{}", pod::container::BOOTSTRAP_SCRIPT),
            "trialkeeper",
            "true",
        ]);
        shell.arg(folder.path()).arg(cache).args(&self.checksums).env_clear();
        shell.env("PATH", at("programs")).env("TRIALKEEPER_FETCH", "code");
        shell.env("TRIALKEEPER_TOKEN_FILE", at("token"));
        shell.env("TRIALKEEPER_MANAGER_FILE", at("manager.url"));
        let child = shell.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        (folder, child)
    }

    /// Runs a pod of the usual image to its end, checks that its trial has the code, and returns its messages about the
    /// cache.
    fn run_pod(&self) -> String {
        self.run_pod_with(&self.cache(), &IMAGE_PROGRAMS, &[])
    }

    fn run_pod_with(&self, cache: &Path, programs: &[&str], scripts: Scripts<'_>) -> String {
        let (_folder, child) = self.start_pod(cache, programs, scripts);
        let output = child.wait_with_output().unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert_eq!((output.status.code(), stdout.as_str()), (Some(0), CODE), "{stderr}");
        stderr
    }
}

/// Returns the path of a program. (The `python3` of a version manager is a script that needs a home directory.)
fn program_path(program: &str) -> PathBuf {
    let mut command = Command::new("sh");
    command.args([
        "-c",
        if program == "python3" {
            "python3 -c 'import sys; print(sys.executable)'"
        } else {
            "command -v \"$0\""
        },
    ]);
    let output = command.arg(program).output().unwrap();
    assert!(output.status.success(), "no {program}");
    PathBuf::from(String::from_utf8(output.stdout).unwrap().trim())
}

#[test]
fn the_second_pod_of_a_node_fetches_nothing() {
    for check in ["sha256sum", "python3"] {
        let node = Node::new();
        assert_eq!(node.run_pod_with(&node.cache(), &["curl", check], &[]), "");
        assert_eq!(node.manager.take_requests(), ["code", "program"], "{check}");
        for (file, text) in node.files().iter().zip([AGENT, CODE]) {
            assert_eq!(fs::read_to_string(file).unwrap(), text);
            assert_eq!(fs::metadata(file).unwrap().permissions().mode() & 0o777, 0o644);
        }
        // This image has no program that can fetch files.
        assert_eq!(node.run_pod_with(&node.cache(), &[check], &[]), "");
        assert!(node.manager.take_requests().is_empty(), "{check}");
        assert_eq!(node.names().len(), 2);
    }
}

#[test]
fn a_damaged_file_is_fetched_again() {
    let cut = |path: &Path| fs::write(path, &fs::read(path).unwrap()[..3]).unwrap();
    let link = |path: &Path| {
        fs::remove_file(path).unwrap();
        symlink("/dev/zero", path).unwrap();
    };
    let harms: [(&str, Damage<'_>); 4] = [
        ("changed", &|path| fs::write(path, "something else").unwrap()),
        ("cut off", &cut),
        ("a link", &link),
        ("gone", &|path| fs::remove_file(path).unwrap()),
    ];
    for (harm, spoil) in harms {
        for (number, what) in [(0, "program"), (1, "code")] {
            let node = Node::new();
            node.run_pod();
            node.manager.take_requests();
            let file = &node.files()[number];
            spoil(file);
            let output_text = node.run_pod();
            let is_told = ["changed", "cut off"].contains(&harm);
            assert_eq!(
                output_text.contains("is damaged or cannot be read"),
                is_told,
                "{harm}: {output_text}"
            );
            assert_eq!(node.manager.take_requests(), [what], "{harm}");
            assert_eq!(fs::read_to_string(file).unwrap(), [AGENT, CODE][number], "{harm}");
            assert!(fs::symlink_metadata(file).unwrap().is_file(), "{harm}");
            assert_eq!(node.run_pod(), "", "{harm}");
            assert!(node.manager.take_requests().is_empty(), "{harm}");
        }
    }
}

#[test]
fn an_unusable_cache_harms_no_trial() {
    let node = Node::new();
    let no_folder = node.folder.path().join("file");
    fs::write(&no_folder, "").unwrap();
    let full = "#!/bin/sh\ncase $2 in *-part-*) echo half >\"$2\"; echo 'cp: No space left on device' >&2; exit 1;; esac\nexec /bin/cp \"$@\"\n";
    let no_check = "the image has neither sha256sum nor python3";
    let (here, nowhere) = (node.cache(), node.folder.path().join("nowhere"));
    let file = |name| (name, "#!/bin/sh\nexit 127\n");
    #[rustfmt::skip]
    let table: [(&str, &Path, &[&str], Scripts<'_>, &str); 6] = [
        ("a file",             &no_folder, &IMAGE_PROGRAMS, &[],               "Not a directory"),
        ("a missing folder",   &nowhere,   &IMAGE_PROGRAMS, &[],               "No such file or directory"),
        ("a full disk",        &here,      &IMAGE_PROGRAMS, &[("cp", full)],   "(cp: No space left on device)"),
        ("no mktemp",          &here,      &IMAGE_PROGRAMS, &[file("mktemp")], "is not kept in the cache"),
        ("no check",           &here,      &["curl"],       &[],               no_check),
        ("a check that fails", &here,      &["curl"],       &[file("sha256sum")], no_check),
    ];
    for (case, cache, programs, scripts, expected) in table {
        let output_text = node.run_pod_with(cache, programs, scripts);
        assert!(output_text.contains(expected), "{case}: {output_text}");
        let lines = if expected == no_check { 1 } else { 2 };
        assert_eq!(output_text.lines().count(), lines, "one line for each file: {output_text}");
        assert_eq!(node.manager.take_requests(), ["code", "program"], "{case}");
        assert!(node.names().is_empty(), "{case}: no file remains: {:?}", node.names());
    }
}

#[test]
#[ignore = "needs root, to mount a small disk"]
fn a_full_or_read_only_disk_harms_no_trial() {
    let node = Node::new();
    let mount = |options: &str| {
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", options, "none"]).arg(node.cache());
        assert!(mount.status().unwrap().success());
    };
    mount("size=4k");
    fs::write(node.cache().join("data"), [0; 4096]).unwrap();
    let full = node.run_pod();
    mount("remount,ro");
    let read_only = node.run_pod();
    let names = node.names();
    assert!(Command::new("umount").arg(node.cache()).status().unwrap().success());
    for (output_text, expected) in
        [(full, "No space left on device"), (read_only, "Read-only file system")]
    {
        assert_eq!(output_text.matches(expected).count(), 2, "{output_text}");
    }
    assert_eq!(names, ["data"]);
}

#[test]
fn pods_that_start_together_cache_each_file_once() {
    let node = Node::new();
    let pods: Vec<_> =
        (0..6).map(|_| node.start_pod(&node.cache(), &IMAGE_PROGRAMS, &[])).collect();
    for (_folder, child) in pods {
        let output = child.wait_with_output().unwrap();
        assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), CODE.as_bytes()));
        assert_eq!(String::from_utf8(output.stderr).unwrap(), "");
    }
    assert_eq!(node.names().len(), 2, "{:?}", node.names());
    node.manager.take_requests();
    node.run_pod();
    assert!(node.manager.take_requests().is_empty());
}

#[test]
fn a_file_with_another_checksum_is_not_cached() {
    let mut node = Node::new();
    node.checksums = [checksum("an earlier agent"), checksum(CODE)];
    let output_text = node.run_pod();
    assert!(
        output_text.contains("bin/trialkeeper is not kept in the cache: the manager's file"),
        "{output_text}"
    );
    assert_eq!(node.names(), [format!("trialkeeper-{}", checksum(CODE))]);
}

#[test]
fn an_agent_of_the_image_uses_the_cache_for_the_code() {
    let mut node = Node::new();
    node.checksums[0] = String::new();
    let own = [("trialkeeper", AGENT)];
    node.run_pod_with(&node.cache(), &IMAGE_PROGRAMS, &own);
    assert_eq!(node.manager.take_requests(), ["code"]);
    node.run_pod_with(&node.cache(), &["sha256sum"], &own);
    assert!(node.manager.take_requests().is_empty());
    // When the pod cannot fetch the code, the agent does.
    fs::remove_file(&node.files()[1]).unwrap();
    let (_folder, child) = node.start_pod(&node.cache(), &["sha256sum"], &own);
    let output = child.wait_with_output().unwrap();
    assert_eq!((output.status.code(), output.stdout.as_slice()), (Some(0), &b""[..]));
    let (_folder, child) = node.start_pod(&node.cache(), &IMAGE_PROGRAMS, &[]);
    let output = child.wait_with_output().unwrap();
    let output_text = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(125), "{output_text}");
    assert!(output_text.contains("there is no trialkeeper in this container"), "{output_text}");
}

#[test]
fn files_unused_for_a_month_are_removed_and_the_users_files_stay() {
    let node = Node::new();
    let modified = |path: &Path| fs::metadata(path).unwrap().modified().unwrap();
    let age = |path: &Path, days: u32| {
        let then = modified(path) - DAY * days;
        fs::File::open(path).unwrap().set_modified(then).unwrap();
        then
    };
    for (name, days) in [("trialkeeper-old", 40), ("trialkeeper-new", 20), ("data.bin", 400)] {
        let path = node.cache().join(name);
        fs::write(&path, "").unwrap();
        age(&path, days);
    }
    node.run_pod();
    let [agent, code] =
        node.files().map(|path| path.file_name().unwrap().to_str().unwrap().to_owned());
    let mut expected = vec![agent, code, "data.bin".to_owned(), "trialkeeper-new".to_owned()];
    expected.sort();
    assert_eq!(node.names(), expected);
    // A use of a file renews its time.
    let then = node.files().map(|file| age(&file, 20));
    node.run_pod();
    for (file, then) in node.files().iter().zip(then) {
        assert!(modified(file) > then + DAY);
    }
}

/// Returns the spec of the first pod in an object, at any depth.
fn find_pod_spec(object: &Value) -> Option<&Value> {
    match object {
        Value::Object(members) if members.contains_key("containers") => Some(object),
        Value::Object(members) => members.values().find_map(find_pod_spec),
        Value::Array(list) => list.iter().find_map(find_pod_spec),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    }
}

#[test]
fn every_kind_mounts_the_cache_and_passes_the_checksums_to_its_pods() {
    let host = json!({"cache": {"hostPath": "/var/tk"}, "allowHostPath": true});
    let claim = json!({"cache": {"claimName": "agents"}});
    let of_host = json!({"name": VOLUME_NAME, "hostPath": {"path": "/var/tk"}});
    let of_claim = json!({"name": VOLUME_NAME, "persistentVolumeClaim": {"claimName": "agents"}});
    for platform in ["kubernetes", "frameworkcontroller", "kubeflow", "trainer"] {
        for (changes, volume, group) in
            [(&host, &of_host, Value::Null), (&claim, &of_claim, json!(65532))]
        {
            let mut section = if platform == "kubeflow" {
                let worker = json!({"replicas": 1, "dockerImage": "i", "command": "c"});
                json!({"platform": platform, "operator": "tf-operator", "worker": worker})
            } else {
                json!({"platform": platform, "taskRoles": [{"name": "worker", "dockerImage": "i"}]})
            };
            for (field, value) in changes.as_object().unwrap() {
                section[field] = value.clone();
            }
            let mut settings = workload_settings(&section);
            settings.cached_files =
                Some(CachedFiles { agent: Some("a1".to_owned()), code: Some("c0".to_owned()) });
            let kind = workload(settings.spec.workload);
            let made = kind.manifest(&settings, &job());
            let shared = kind.shared_objects(&settings);
            let runtime = shared.iter().find_map(|(_, object)| find_pod_spec(object));
            let pod = find_pod_spec(&made).or(runtime).unwrap();
            assert!(pod["volumes"].as_array().unwrap().contains(volume), "{platform}");
            let mount = json!({"name": VOLUME_NAME, "mountPath": "/trialkeeper-cache"});
            let container = &pod["containers"][0];
            assert!(container["volumeMounts"].as_array().unwrap().contains(&mount), "{platform}");
            assert_eq!(pod["securityContext"].get("fsGroup").unwrap_or(&Value::Null), &group);
            let command = made.pointer("/spec/trainer/command").unwrap_or(&container["command"]);
            let words = command.as_array().unwrap();
            let tail = json!(["/trialkeeper", "/trialkeeper-cache", "a1", "c0"]);
            assert_eq!(words[words.len() - 4..], tail.as_array().unwrap()[..], "{platform}");
            let script = words[words.len() - 7].as_str().unwrap().replace("$$", "$");
            assert_eq!(
                script,
                format!("{CACHE_SCRIPT}{}", pod::container::BOOTSTRAP_SCRIPT),
                "{platform}"
            );
        }
    }
}

#[test]
fn an_agent_of_the_image_has_no_checksum_and_a_mounted_claim_no_second_volume() {
    let sections = |changes: &Value| {
        let mut section =
            json!({"platform": "kubernetes", "dockerImage": "i", "cache": {"claimName": "agents"}});
        for (field, value) in changes.as_object().unwrap() {
            section[field] = value.clone();
        }
        let mut settings = workload_settings(&section);
        settings.cached_files = Some(CachedFiles { agent: None, code: Some("c0".to_owned()) });
        find_pod_spec(&workload(settings.spec.workload).manifest(&settings, &job()))
            .unwrap()
            .clone()
    };
    for (changes, agent) in [
        (json!({"agent": "image"}), "trialkeeper"),
        (json!({"agentImage": "a:1"}), "/trialkeeper/bin/trialkeeper"),
        (
            json!({"agent": "volume", "agentImage": "a:1"}),
            "/trialkeeper-agent/usr/local/bin/trialkeeper",
        ),
    ] {
        let pod = sections(&changes);
        let words = pod["containers"][0]["command"].as_array().unwrap();
        assert_eq!((words.len(), &words[3]), (9, &json!(agent)));
        assert_eq!(words[6..], [json!("/trialkeeper-cache"), json!(""), json!("c0")]);
    }
    let pod =
        sections(&json!({"mounts": [{"name": "data", "path": "/data", "claimName": "agents"}]}));
    let of_claim = |volume: &&Value| volume["persistentVolumeClaim"]["claimName"] == "agents";
    assert_eq!(pod["volumes"].as_array().unwrap().iter().filter(of_claim).count(), 1);
    let place = json!({"name": "data-data", "mountPath": "/trialkeeper-cache"});
    assert!(pod["containers"][0]["volumeMounts"].as_array().unwrap().contains(&place));
}
