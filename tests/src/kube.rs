//! A Kubernetes API server that does what a test says, with a `FrameworkController` and a kubelet behind it. Objects
//! are created, read, patched, deleted and watched as with the real one. Frameworks either replay what was recorded on
//! a real cluster or run, as processes of this machine or as containers.
//!
//! It must not know the manager: it answers whoever speaks the protocol.

mod api;
mod containers;
mod controller;
mod http;
mod job_sets;
mod jobs;
mod kubeflow;
mod kueue;
mod objects;
mod pods;
mod processes;
mod schema;
mod tls;
mod trainer;
mod volumes;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use controller::{Play, recorded};
use objects::{Deletion, Objects};
pub use tls::Tls;

/// The token that the server knows at first.
const TOKEN: &str = "scripted";

/// The server; it ends when it is dropped.
pub struct Kube {
    shared: Arc<Shared>,
    address: SocketAddr,
}

/// What the server's threads share.
struct Shared {
    objects: Objects,
    faults: api::Faults,
    folder: PathBuf,
    play: Box<dyn Fn(&Value) -> Play + Send + Sync>,
    controller: AtomicBool,
    /// Some of its pods are containers.
    contains: AtomicBool,
    /// Queued objects that may run at a time.
    quota: AtomicUsize,
    /// Pods of Jobs that the namespace's quota lets be there.
    pod_quota: AtomicUsize,
    ended: AtomicBool,
}

impl Kube {
    /// Starts a server whose kubelet keeps its pods below `folder`. `play` says of each Framework what becomes
    /// of it.
    pub fn start(folder: &Path, play: impl Fn(&Value) -> Play + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("it listens");
        let shared = Arc::new(Shared {
            objects: Objects::new(),
            faults: api::Faults::default(),
            folder: folder.to_owned(),
            play: Box::new(play),
            controller: AtomicBool::new(true),
            contains: AtomicBool::new(false),
            quota: AtomicUsize::new(kueue::BY_HAND),
            pod_quota: AtomicUsize::new(usize::MAX),
            ended: AtomicBool::new(false),
        });
        let server = Arc::clone(&shared);
        std::thread::spawn(move || http::serve(&listener, &server));
        let controller = Arc::clone(&shared);
        std::thread::spawn(move || controller::run(&controller));
        let jobs = Arc::clone(&shared);
        std::thread::spawn(move || jobs::run(&jobs));
        let job_sets = Arc::clone(&shared);
        std::thread::spawn(move || job_sets::run(&job_sets));
        let trainer = Arc::clone(&shared);
        std::thread::spawn(move || trainer::run(&trainer));
        let operator = Arc::clone(&shared);
        std::thread::spawn(move || kubeflow::run(&operator));
        let queue = Arc::clone(&shared);
        std::thread::spawn(move || kueue::run(&queue));
        let collector = Arc::clone(&shared);
        std::thread::spawn(move || controller::collect(&collector));
        Self { shared, address }
    }

    /// Writes a kubeconfig that leads here.
    pub fn kubeconfig(&self, path: &Path) {
        let cluster = format!("{{server: 'http://{}'}}", self.address);
        write_kubeconfig(path, &cluster, &format!("{{token: {}}}", self.shared.faults.token()));
    }

    /// Knows another token from now on, and no longer the one before.
    pub fn renew_token(&self, token: &str) {
        self.shared.faults.renew_token(token);
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Every object of a kind (its plural) as it stands.
    pub fn all(&self, plural: &str) -> Vec<Value> {
        self.shared.objects.list(plural)
    }

    /// Nothing is left of what a manager makes: the trials' workloads, their pods, and the files and tokens these mount.
    pub fn is_empty(&self) -> bool {
        let workloads = [
            "frameworks",
            "jobs",
            "jobsets",
            "trainjobs",
            "trainingruntimes",
            "tfjobs",
            "pytorchjobs",
        ];
        let theirs = ["pods", "secrets", "configmaps"];
        workloads.iter().chain(&theirs).all(|kind| self.all(kind).is_empty())
    }

    /// Waits until nothing is left: pods that were deleted have their own time to end.
    pub fn wait_until_empty(&self) {
        crate::wait_for("an empty cluster", crate::BOUND, || self.is_empty().then_some(()));
    }

    /// An object as it stands.
    pub fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.shared.objects.get(plural, name)
    }

    /// Every object of a kind that ever was, as it was made.
    pub fn made(&self, plural: &str) -> Vec<Value> {
        self.shared.objects.made(plural)
    }

    /// When objects of a kind first were as `fits` says, as far as the past is not forgotten.
    pub fn since(&self, plural: &str, fits: impl Fn(&Value) -> bool) -> Vec<(Value, Instant)> {
        self.shared.objects.since(plural, fits)
    }

    /// When a watch first was told of an object as it is here.
    pub fn told(&self, object: &Value) -> Option<Instant> {
        self.shared.objects.told(object)
    }

    /// Cuts every connection and answers nobody, or is there again.
    pub fn away(&self, away: bool) {
        self.shared.faults.away(away);
        self.shared.objects.cut();
    }

    /// Requests so far that were no watches, as `VERB plural`.
    pub fn requests(&self) -> Vec<String> {
        self.shared.faults.requests()
    }

    /// Answers the next `count` requests that `fits` (`POST frameworks`) with a status code; 0 cuts the
    /// connection and does nothing, 1 does it and then cuts the connection.
    pub fn fail(&self, fits: &str, code: u16, count: usize, message: &str) {
        self.shared.faults.fail(fits, code, count, message);
    }

    /// Cuts every watch that runs, in the middle of what it says.
    pub fn cut_watches(&self) {
        self.shared.objects.cut();
    }

    /// Forgets the past: a watch that wants it is told `410 Gone`.
    pub fn forget_the_past(&self) {
        self.shared.objects.compact();
    }

    /// Takes an object away, as a person with `kubectl delete` does.
    pub fn delete(&self, plural: &str, name: &str) {
        self.shared.objects.delete(plural, name, Deletion::default());
    }

    /// Takes a pod away for a reason of the cluster's, as a scheduler, a drain or a node's controller does: says so in the
    /// pod's conditions, and deletes it.
    pub fn disrupt(&self, pod: &str, reason: &str, message: &str) {
        let condition = json!({
            "type": "DisruptionTarget", "status": "True", "reason": reason, "message": message,
        });
        let say = |object: &mut Value| object["status"]["conditions"] = json!([condition]);
        drop(self.shared.objects.change("pods", pod, say));
        self.delete("pods", pod);
    }

    /// Takes so long for the answers to the next `count` requests that `fits` (`POST frameworks`), after it has done what
    /// they ask.
    pub fn slow(&self, fits: &str, time: Duration, count: usize) {
        self.shared.faults.slow(fits, time, count);
    }

    /// Stops or starts the controllers: Frameworks and the training operator's jobs are left alone, or are not.
    pub fn controller(&self, works: bool) {
        self.shared.controller.store(works, Ordering::SeqCst);
        self.shared.objects.wake();
    }

    /// Takes the kind Framework away.
    pub fn without_frameworks(&self) {
        self.without_kind("frameworks");
    }

    /// Puts a queue of Kueue's that admits what it is given.
    pub fn queue(&self, name: &str) {
        let active = json!({"type": "Active", "status": "True", "reason": "Ready"});
        let queue = json!({
            "kind": "LocalQueue", "metadata": {"name": name, "namespace": "lab"},
            "spec": {"clusterQueue": "all", "stopPolicy": "None"}, "status": {"conditions": [active]},
        });
        self.put("localqueues", queue);
    }

    /// Lets so many queued objects run at a time from now on, as Kueue does; the last ones are taken back where more run.
    pub fn quota(&self, quota: usize) {
        self.shared.quota.store(quota, Ordering::SeqCst);
    }

    /// Lets no more pods of Jobs be there from here on; more are refused, as by a quota of the namespace.
    pub fn pod_quota(&self, quota: usize) {
        self.shared.pod_quota.store(quota, Ordering::SeqCst);
    }

    /// Takes a kind (its plural) or a version of a group (`GROUP/VERSION`) away.
    pub fn without_kind(&self, plural: &str) {
        self.shared.faults.without_kind(plural);
    }

    /// Gives a kind back that was taken away.
    pub fn with_kind(&self, plural: &str) {
        self.shared.faults.with_kind(plural);
    }

    /// Takes a right away, such as `create frameworks`.
    pub fn without_right(&self, right: &str) {
        self.shared.faults.without_right(right);
    }

    /// Leaves the account these rights, as `group/plural verb`, and no other.
    pub fn only_rights(&self, rights: Vec<String>) {
        self.shared.faults.only(rights);
    }

    /// What of the namespace's was used so far, in the same form and in order.
    pub fn used_rights(&self) -> Vec<String> {
        self.shared.faults.used()
    }

    /// Which rights were asked about before, in the same form and in order.
    pub fn asked_rights(&self) -> Vec<String> {
        self.shared.faults.asked()
    }

    /// Changes an object, as somebody else does.
    pub fn change(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        drop(self.shared.objects.change(plural, name, change));
    }

    /// Puts an object there, as somebody else does.
    pub fn put(&self, plural: &str, object: Value) {
        drop(self.shared.objects.create(plural, object));
    }

    /// Puts an event about a pod.
    pub fn event(&self, pod: &str, reason: &str, message: &str) {
        controller::event(&self.shared, ("Pod", pod), reason, message);
    }
}

/// A kubeconfig with one cluster and one user.
fn write_kubeconfig(path: &Path, cluster: &str, user: &str) {
    let text = format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: test\n\
         clusters: [{{name: test, cluster: {cluster}}}]\n\
         users: [{{name: test, user: {user}}}]\n\
         contexts: [{{name: test, context: {{cluster: test, user: test, namespace: lab}}}}]\n"
    );
    std::fs::write(path, text).expect("the bed is writable");
}

impl Drop for Kube {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::SeqCst);
        self.shared.objects.cut();
        // Wakes the listener.
        drop(std::net::TcpStream::connect(self.address));
        if self.shared.contains.load(Ordering::SeqCst) {
            containers::clear(&self.shared.folder);
        }
    }
}
