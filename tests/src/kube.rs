//! A scripted Kubernetes API server with a `FrameworkController` and a kubelet. It creates, reads, patches,
//! deletes and watches objects like the real server. Frameworks either replay a recording of a real cluster
//! or run as processes of this machine or as containers.
//!
//! The server knows nothing of the manager: it serves any client of the protocol.

mod admission;
mod api;
mod containers;
mod controller;
mod http;
mod job_sets;
mod jobs;
mod kubeflow;
mod kubelet;
mod kueue;
mod objects;
mod operators;
mod pods;
mod processes;
mod schema;
mod tls;
mod trainer;
mod volumes;

use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

pub use controller::{Behavior, read_recording};
use objects::{Deletion, Objects};
pub use tls::TlsProxy;

/// The first token that the server accepts.
const FIRST_TOKEN: &str = "scripted";

/// The server. Dropping it ends it.
pub struct Kube {
    shared: Arc<Shared>,
    address: SocketAddr,
}

type MutatingPolicy = Box<dyn Fn(&str, &mut Value) + Send>;

/// The state that the server's threads share.
struct Shared {
    objects: Objects,
    faults: api::Faults,
    folder: PathBuf,
    behavior: Box<dyn Fn(&Value) -> Behavior + Send + Sync>,
    controllers_running: AtomicBool,
    /// Some pods are containers.
    has_containers: AtomicBool,
    /// The number of queued objects that may run at a time.
    queue_quota: AtomicUsize,
    /// The number of Jobs' pods that the namespace's quota permits.
    pod_quota: AtomicUsize,
    /// Changes new objects, by their plural, as a mutating webhook does.
    policy: Mutex<MutatingPolicy>,
    is_ending: AtomicBool,
}

impl Kube {
    /// Starts a server whose kubelet keeps its pods below `folder`. `behavior` chooses the behaviour of each
    /// workload.
    pub fn start(
        folder: &Path,
        behavior: impl Fn(&Value) -> Behavior + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port is free");
        let address = listener.local_addr().expect("the listener has an address");
        let shared = Arc::new(Shared {
            objects: Objects::new(),
            faults: api::Faults::default(),
            folder: folder.to_owned(),
            behavior: Box::new(behavior),
            controllers_running: AtomicBool::new(true),
            has_containers: AtomicBool::new(false),
            queue_quota: AtomicUsize::new(kueue::QUOTA_WITHOUT_KUEUE),
            pod_quota: AtomicUsize::new(usize::MAX),
            policy: Mutex::new(Box::new(|_, _| ())),
            is_ending: AtomicBool::new(false),
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
        std::thread::spawn(move || controller::run_garbage_collector(&collector));
        Self { shared, address }
    }

    /// Writes a kubeconfig for this server.
    pub fn write_kubeconfig(&self, path: &Path) {
        let cluster = format!("{{server: 'http://{}'}}", self.address);
        write_kubeconfig(path, &cluster, &format!("{{token: {}}}", self.shared.faults.token()));
    }

    /// Replaces the accepted token. The old one becomes invalid.
    pub fn set_token(&self, token: &str) {
        self.shared.faults.set_token(token);
    }

    /// The address of the server.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns all present objects of a kind, by its plural.
    pub fn list(&self, plural: &str) -> Vec<Value> {
        self.shared.objects.list(plural)
    }

    /// Returns `true` if no object of a manager is left: trials' workloads, their pods, and their Secrets and
    /// config maps.
    pub fn is_empty(&self) -> bool {
        let workloads = [
            "frameworks",
            "jobs",
            "jobsets",
            "trainjobs",
            "trainingruntimes",
            "tfjobs",
            "pytorchjobs",
            "xgboostjobs",
            "paddlejobs",
        ];
        let dependents = ["pods", "secrets", "configmaps"];
        workloads.iter().chain(&dependents).all(|kind| self.list(kind).is_empty())
    }

    /// Waits until no object of a manager is left. Deleted pods may take their grace period to end.
    pub fn wait_until_empty(&self) {
        crate::wait_for("an empty cluster", crate::WAIT_TIMEOUT, || self.is_empty().then_some(()));
    }

    /// Returns an object in its present state.
    pub fn get(&self, plural: &str, name: &str) -> Option<Value> {
        self.shared.objects.get(plural, name)
    }

    /// Returns every object of a kind that was ever created, as it was created.
    pub fn created_objects(&self, plural: &str) -> Vec<Value> {
        self.shared.objects.created_objects(plural)
    }

    /// Returns the first time at which each object of a kind satisfied `fits`, within the history that is
    /// left.
    pub fn first_matches(
        &self,
        plural: &str,
        fits: impl Fn(&Value) -> bool,
    ) -> Vec<(Value, Instant)> {
        self.shared.objects.first_matches(plural, fits)
    }

    /// Returns the time at which this version of an object was first sent to a watch.
    pub fn first_sent_at(&self, object: &Value) -> Option<Instant> {
        self.shared.objects.first_sent_at(object)
    }

    /// With `true`, cuts every connection and answers no request. With `false`, serves again.
    pub fn set_unreachable(&self, is_unreachable: bool) {
        self.shared.faults.set_unreachable(is_unreachable);
        self.shared.objects.cut_watches();
    }

    /// Returns the requests so far, except watches, as `VERB plural`.
    pub fn requests(&self) -> Vec<String> {
        self.shared.faults.requests()
    }

    /// Answers the next `count` requests of the form `pattern` (`POST frameworks`) with a status code. With code
    /// 0, the server cuts the connection and does nothing. With code 1, it handles the request and then cuts
    /// the connection.
    pub fn fail_requests(&self, pattern: &str, code: u16, count: usize, message: &str) {
        self.shared.faults.fail_requests(pattern, code, count, message);
    }

    /// Cuts every open watch in the middle of its stream.
    pub fn cut_watches(&self) {
        self.shared.objects.cut_watches();
    }

    /// Drops the history. A watch from an older version gets `410 Gone`.
    pub fn drop_history(&self) {
        self.shared.objects.drop_history();
    }

    /// Deletes an object, as `kubectl delete` does.
    pub fn delete_object(&self, plural: &str, name: &str) {
        self.shared.objects.delete(plural, name, Deletion::default());
    }

    /// Deletes a pod for a reason of the cluster, as a scheduler, a drain or a node controller does. The
    /// pod's conditions contain the reason.
    pub fn disrupt_pod(&self, pod: &str, reason: &str, message: &str) {
        pods::disrupt_pod(&self.shared, pod, reason, message);
    }

    /// Delays the answers to the next `count` requests of the form `pattern` (`POST frameworks`), after handling
    /// them.
    pub fn delay_requests(&self, pattern: &str, time: Duration, count: usize) {
        self.shared.faults.delay_requests(pattern, time, count);
    }

    /// Starts or stops the controllers of all kinds. The kubelet and the garbage collector work on.
    pub fn set_controllers_running(&self, works: bool) {
        self.shared.controllers_running.store(works, Ordering::SeqCst);
        self.shared.objects.wake_watches();
    }

    /// Removes the kind Framework.
    pub fn remove_framework_kind(&self) {
        self.remove_kind("frameworks");
    }

    /// Creates an active queue of Kueue.
    pub fn create_queue(&self, name: &str) {
        let active = json!({"type": "Active", "status": "True", "reason": "Ready"});
        let queue = json!({
            "kind": "LocalQueue", "metadata": {"name": name, "namespace": "lab"},
            "spec": {"clusterQueue": "all", "stopPolicy": "None"}, "status": {"conditions": [active]},
        });
        self.create_object("localqueues", queue);
    }

    /// Sets the number of queued objects that Kueue lets run at a time. If more objects run, the last ones
    /// are preempted.
    pub fn set_queue_quota(&self, quota: usize) {
        self.shared.queue_quota.store(quota, Ordering::SeqCst);
    }

    /// Sets the number of Jobs' pods that may exist. Further pods are refused, as by a quota of the
    /// namespace.
    pub fn set_pod_quota(&self, quota: usize) {
        self.shared.pod_quota.store(quota, Ordering::SeqCst);
    }

    /// Changes each object that a client creates, also in a dry run, as a mutating webhook does. The policy gets the
    /// plural of the kind.
    pub fn set_policy(&self, policy: impl Fn(&str, &mut Value) + Send + 'static) {
        *self.shared.policy.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(policy);
    }

    /// Removes a kind (by its plural) or a version of a group (`GROUP/VERSION`).
    pub fn remove_kind(&self, plural: &str) {
        self.shared.faults.remove_kind(plural);
    }

    /// Restores a removed kind.
    pub fn restore_kind(&self, plural: &str) {
        self.shared.faults.restore_kind(plural);
    }

    /// Removes a right, such as `create frameworks`.
    pub fn remove_right(&self, right: &str) {
        self.shared.faults.remove_right(right);
    }

    /// Limits the account to these rights, given as `group/plural verb`.
    pub fn limit_rights(&self, rights: Vec<String>) {
        self.shared.faults.limit_rights(rights);
    }

    /// Returns the namespaced rights used so far, sorted, in the form `group/plural verb`.
    pub fn used_rights(&self) -> Vec<String> {
        self.shared.faults.used_rights()
    }

    /// Returns the rights that clients have asked about, sorted, in the form `group/plural verb`.
    pub fn checked_rights(&self) -> Vec<String> {
        self.shared.faults.checked_rights()
    }

    /// Changes an object, as another client would.
    pub fn change_object(&self, plural: &str, name: &str, change: impl FnOnce(&mut Value)) {
        drop(self.shared.objects.change(plural, name, change));
    }

    /// Creates an object, as another client would.
    pub fn create_object(&self, plural: &str, object: Value) {
        drop(self.shared.objects.create(plural, object));
    }

    /// Creates an event about a pod.
    pub fn create_pod_event(&self, pod: &str, reason: &str, message: &str) {
        controller::create_event(&self.shared, ("Pod", pod), reason, message);
    }
}

/// Writes a kubeconfig with one cluster and one user.
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
        self.shared.is_ending.store(true, Ordering::SeqCst);
        self.shared.objects.cut_watches();
        // This connection wakes the listener.
        drop(std::net::TcpStream::connect(self.address));
        if self.shared.has_containers.load(Ordering::SeqCst) {
            containers::remove_all(&self.shared.folder);
        }
    }
}
