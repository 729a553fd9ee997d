//! Watches all objects that a selector matches: a listing first, then changes. After a gap (a cut connection, `410
//! Gone`) a new listing reveals the missed changes.

use std::borrow::Cow;
use std::time::Duration;

use futures_util::{Stream, StreamExt as _, stream};
use kube::api::ObjectMeta;
use kube::core::{ApiResource, DynamicResourceScope, Resource};
use kube::runtime::watcher as follow;
use kube::runtime::watcher::{self, Event};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use tokio::time::sleep;

use super::{Cluster, Resource as Kind, error};
use crate::config::kubernetes::WorkloadKind;
use crate::util::backoff::Backoff;
use crate::util::errors::error_chain;

/// The pauses after the first failure of a watch and after many failures.
const FIRST_WATCH_PAUSE: Duration = Duration::from_millis(100);
const MAX_WATCH_PAUSE: Duration = Duration::from_secs(5);

/// The time limit of one watch request at the server, in seconds. A silently cut connection is noticed 5 s later.
const WATCH_TIMEOUT_S: u32 = 60;

/// An object, reduced to the fields that the manager reads. Most of an object is its spec and the record of field
/// owners. The reader skips both, since each trial produces many versions.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "RawObject")]
pub struct WatchedObject {
    /// The name of the object.
    pub name: String,
    /// The `status`, `metadata.deletionTimestamp`, and the fields of `spec` that determine whether the object may run.
    /// For an event, its message and its subject.
    pub body: Value,
    /// The unique id, which differs even between objects of the same name.
    pub uid: Option<String>,
    /// The time of the object's creation by the API server's clock, in RFC 3339.
    pub created: Option<String>,
    /// The name of the object's first owner.
    pub owner: Option<String>,
    /// The labels that the manager reads.
    pub labels: WatchedLabels,
    /// The name and version, in the form that the library needs.
    metadata: ObjectMeta,
}

/// The labels of an object that the manager reads.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct WatchedLabels {
    /// The attempt that the object belongs to.
    #[serde(rename = "trialkeeper/attempt")]
    pub attempt: Option<String>,
    /// The queue of Kueue in which the object waits.
    #[serde(rename = "kueue.x-k8s.io/queue-name")]
    pub queue: Option<String>,
    #[serde(rename = "FC_FRAMEWORK_NAME")]
    framework: Option<String>,
    #[serde(rename = "jobset.sigs.k8s.io/jobset-name")]
    job_set: Option<String>,
    #[serde(rename = "training.kubeflow.org/job-name")]
    training_job: Option<String>,
    #[serde(rename = "batch.kubernetes.io/job-name")]
    job: Option<String>,
}

impl WatchedLabels {
    /// Returns the workload of a pod, which the kind's controller names in a label. A pod may also have labels of other
    /// controllers: those of a `JobSet`'s Jobs, or copies in the user's template.
    pub fn workload(&self, kind: WorkloadKind) -> Option<&str> {
        let name = match kind {
            WorkloadKind::Framework => &self.framework,
            WorkloadKind::TrainJob | WorkloadKind::JobSet => &self.job_set,
            WorkloadKind::Job => &self.job,
            WorkloadKind::TfJob
            | WorkloadKind::PyTorchJob
            | WorkloadKind::XgBoostJob
            | WorkloadKind::PaddleJob => &self.training_job,
        };
        name.as_deref()
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawObject {
    metadata: RawMetadata,
    spec: Option<RunSpec>,
    status: Option<Value>,
    involved_object: Option<Value>,
    r#type: Option<Value>,
    reason: Option<Value>,
    message: Option<Value>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawMetadata {
    name: Option<String>,
    uid: Option<String>,
    resource_version: Option<String>,
    creation_timestamp: Option<String>,
    deletion_timestamp: Option<Value>,
    labels: Option<WatchedLabels>,
    #[serde(default)]
    owner_references: Vec<RawOwner>,
}

#[derive(Deserialize)]
struct RawOwner {
    name: Option<String>,
}

/// The fields of a `spec` that determine whether the object may run, and in how many pods. JSON `null` counts as
/// absent.
#[derive(Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
struct RunSpec {
    #[serde(skip_serializing_if = "Option::is_none")]
    suspend: Option<bool>,
    /// The number of pods of a Job, which its queue may lower.
    #[serde(skip_serializing_if = "Option::is_none")]
    parallelism: Option<i64>,
    /// The field of the training operator's jobs.
    #[serde(skip_serializing_if = "Option::is_none")]
    run_policy: Option<RunPolicy>,
    /// The field of Kueue's Workloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    active: Option<bool>,
    /// The scheduling gates of a pod.
    #[serde(skip_serializing_if = "Option::is_none")]
    scheduling_gates: Option<Vec<Value>>,
}

#[derive(Deserialize, Serialize)]
struct RunPolicy {
    #[serde(skip_serializing_if = "Option::is_none")]
    suspend: Option<bool>,
}

impl RunSpec {
    fn used_fields(&self) -> Option<Value> {
        let policy = self.run_policy.as_ref().and_then(|policy| policy.suspend);
        let is_stated = self.suspend.or(policy).or(self.active).is_some();
        let is_used = is_stated || self.parallelism.is_some() || self.scheduling_gates.is_some();
        is_used.then(|| json!(self))
    }
}

impl From<RawObject> for WatchedObject {
    fn from(read: RawObject) -> Self {
        let RawObject { metadata, spec, status, involved_object, r#type, reason, message } = read;
        let spec = spec.as_ref().and_then(RunSpec::used_fields);
        let deleted = metadata.deletion_timestamp;
        let deleted = deleted.map(|moment| json!({"deletionTimestamp": moment}));
        let fields = [
            ("metadata", deleted),
            ("spec", spec),
            ("status", status),
            ("involvedObject", involved_object),
            ("type", r#type),
            ("reason", reason),
            ("message", message),
        ];
        let there = fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Self {
            name: metadata.name.clone().unwrap_or_default(),
            owner: metadata.owner_references.into_iter().find_map(|owner| owner.name),
            uid: metadata.uid,
            created: metadata.creation_timestamp,
            labels: metadata.labels.unwrap_or_default(),
            body: Value::Object(there.collect::<Map<_, _>>()),
            metadata: ObjectMeta {
                name: metadata.name,
                resource_version: metadata.resource_version,
                ..ObjectMeta::default()
            },
        }
    }
}

/// The kind comes from the [`ApiResource`] of the request.
impl Resource for WatchedObject {
    type DynamicType = ApiResource;
    type Scope = DynamicResourceScope;

    fn kind(resource: &ApiResource) -> Cow<'_, str> {
        Cow::from(&resource.kind)
    }

    fn group(resource: &ApiResource) -> Cow<'_, str> {
        Cow::from(&resource.group)
    }

    fn version(resource: &ApiResource) -> Cow<'_, str> {
        Cow::from(&resource.version)
    }

    fn plural(resource: &ApiResource) -> Cow<'_, str> {
        Cow::from(&resource.plural)
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// An event of a watch.
#[derive(Debug)]
pub enum WatchEvent {
    /// A complete listing begins here.
    Begin,
    /// The current state of an object.
    Present(WatchedObject),
    /// The listing is complete: objects not listed since [`Self::Begin`] are gone.
    Complete,
    /// An object is gone.
    Gone(WatchedObject),
    /// The watch was interrupted, and resumes automatically.
    Trouble(String),
}

/// Returns the pause that an item of a watch requires before the next try. The pauses are short at first, a few seconds
/// at most, and short again after an event. A watch that is often cut must not lag for half a minute, as with kube's own
/// pauses.
fn pause_after<T>(
    item: &Result<Event<T>, watcher::Error>,
    backoff: &mut Backoff,
) -> Option<Duration> {
    match item {
        Err(_) => return Some(backoff.next_pause()),
        // It precedes the request.
        Ok(Event::Init) => {}
        Ok(_) => backoff.reset(),
    }
    None
}

/// Returns whether the server rejects the version at which a watch resumes. The library would try it again for ever.
fn is_outdated(item: &Result<Event<WatchedObject>, watcher::Error>) -> bool {
    matches!(item, Err(watcher::Error::WatchStartFailed(kube::Error::Api(status))) if status.code == 410)
}

/// Watches objects without end.
pub fn watch(
    cluster: &Cluster,
    resource: Kind,
    labels: Option<&str>,
    fields: Option<&str>,
) -> impl Stream<Item = WatchEvent> + Send + Unpin + use<> {
    let config = watcher::Config {
        label_selector: labels.map(str::to_owned),
        field_selector: fields.map(str::to_owned),
        timeout: Some(WATCH_TIMEOUT_S),
        ..watcher::Config::default()
    };
    let (server, api) = (cluster.server.clone(), cluster.watched_api(resource));
    let begin = move || Box::pin(follow(api.clone(), config.clone()));
    let backoff = Backoff::new(FIRST_WATCH_PAUSE, MAX_WATCH_PAUSE);
    let state = (begin(), None, backoff, begin);
    let stream = stream::unfold(state, async |(mut watch, pause, mut backoff, begin)| {
        if let Some(pause) = pause {
            sleep(pause).await;
        }
        let item = watch.next().await?;
        let pause = pause_after(&item, &mut backoff);
        if is_outdated(&item) {
            watch = begin();
        }
        Some((item, (watch, pause, backoff, begin)))
    });
    Box::pin(stream.map(move |event| match event {
        Ok(Event::Init) => WatchEvent::Begin,
        Ok(Event::InitApply(object) | Event::Apply(object)) => WatchEvent::Present(object),
        Ok(Event::InitDone) => WatchEvent::Complete,
        Ok(Event::Delete(object)) => WatchEvent::Gone(object),
        Err(
            watcher::Error::InitialListFailed(source)
            | watcher::Error::WatchStartFailed(source)
            | watcher::Error::WatchFailed(source),
        ) => WatchEvent::Trouble(error::from_kube(&server, source).to_string()),
        Err(error @ (watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion)) => {
            WatchEvent::Trouble(error_chain(&error))
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_that_fails_again_and_again_is_tried_less_often() {
        let failure = || Err(watcher::Error::NoResourceVersion);
        let mut backoff = Backoff::new(FIRST_WATCH_PAUSE, MAX_WATCH_PAUSE);
        let mut pause = |item| pause_after::<()>(&item, &mut backoff);
        let waited: Vec<u128> = (0..9)
            .filter_map(|_| {
                // A listing begins with an item before its request.
                assert_eq!(pause(Ok(Event::Init)), None);
                pause(failure()).map(|pause| pause.as_millis())
            })
            .collect();
        assert_eq!(waited, [100, 200, 400, 800, 1600, 3200, 5000, 5000, 5000]);
        assert_eq!(pause(Ok(Event::InitDone)), None);
        assert_eq!(pause(failure()), Some(FIRST_WATCH_PAUSE));
    }

    #[test]
    fn a_watch_whose_version_is_too_old_begins_again() {
        let status = |code| {
            let status = kube::core::Status { code, ..kube::core::Status::default() };
            kube::Error::Api(Box::new(status))
        };
        assert!(is_outdated(&Err(watcher::Error::WatchStartFailed(status(410)))));
        assert!(!is_outdated(&Err(watcher::Error::WatchStartFailed(status(500)))));
        // The library lists again by itself.
        assert!(!is_outdated(&Err(watcher::Error::InitialListFailed(status(410)))));
        assert!(!is_outdated(&Ok(Event::InitDone)));
    }

    #[test]
    fn only_the_used_fields_of_an_object_are_read() {
        let framework = json!({
            "apiVersion": "frameworkcontroller.microsoft.com/v1", "kind": "Framework",
            "metadata": {"name": "f", "resourceVersion": "7", "managedFields": [{"fieldsV1": {"f:spec": {}}}]},
            "spec": {"taskRoles": []}, "status": {"state": "Completed"},
        });
        let object: WatchedObject = serde_json::from_value(framework).unwrap();
        assert_eq!(object.body, json!({"status": {"state": "Completed"}}));
        assert_eq!(
            (object.name.as_str(), object.meta().resource_version.as_deref()),
            ("f", Some("7"))
        );
        let event = json!({
            "metadata": {"name": "e"}, "type": "Warning", "reason": "FailedMount", "message": "no",
            "involvedObject": {"kind": "Pod", "name": "p"}, "source": {}, "eventTime": null,
        });
        let object: WatchedObject = serde_json::from_value(event.clone()).unwrap();
        for field in ["type", "reason", "message", "involvedObject"] {
            assert_eq!(object.body[field], event[field]);
        }
        let job = json!({
            "metadata": {
                "name": "j", "deletionTimestamp": "2026-11-23T00:00:00Z", "ownerReferences": [{"name": "o"}],
                "labels": {"trialkeeper/attempt": "a-1", "kueue.x-k8s.io/queue-name": "q", "other": "x"},
            },
            "spec": {"suspend": true, "parallelism": 2, "template": {}},
        });
        let object: WatchedObject = serde_json::from_value(job).unwrap();
        let expected = json!({"metadata": {"deletionTimestamp": "2026-11-23T00:00:00Z"}, "spec": {"suspend": true, "parallelism": 2}});
        assert_eq!((object.body, object.owner.as_deref()), (expected, Some("o")));
        let labels = (object.labels.attempt.as_deref(), object.labels.queue.as_deref());
        assert_eq!(labels, (Some("a-1"), Some("q")));
        let parts = [
            json!({"runPolicy": {"suspend": true, "cleanPodPolicy": "Running"}, "tfReplicaSpecs": {}}),
            json!({"active": false, "podSets": []}),
        ];
        for spec in parts {
            let whole = json!({"metadata": {"name": "x", "uid": "u"}, "spec": spec.clone()});
            let thing: WatchedObject = serde_json::from_value(whole).unwrap();
            assert_eq!(thing.uid.as_deref(), Some("u"));
            let suspended = thing.body.pointer("/spec/runPolicy/suspend");
            assert!(suspended == spec.pointer("/runPolicy/suspend"), "{}", thing.body);
            assert!(
                thing.body.pointer("/spec/active") == spec.pointer("/active"),
                "{}",
                thing.body
            );
        }
        let gates = json!([{"name": "kueue.x-k8s.io/admission"}]);
        let pod = json!({"metadata": {"name": "p"}, "spec": {"schedulingGates": gates, "containers": []}});
        let pod: WatchedObject = serde_json::from_value(pod).unwrap();
        assert_eq!(pod.body, json!({"spec": {"schedulingGates": gates}}));
        // An object that no controller has examined yet.
        let unused = json!({"metadata": {"name": "f"}, "spec": {}, "status": null});
        let object: WatchedObject = serde_json::from_value(unused).unwrap();
        assert_eq!(object.body, json!({}));
    }
}
