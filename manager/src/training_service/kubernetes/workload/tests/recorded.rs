//! Replays recordings of real controllers to a tracker, for the tests of each kind.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use trial_protocol::{AttemptId, Cause, Class, TrialJobId};

use super::super::Workload;
use super::super::job_set::JobSet;
use super::super::kubeflow::{PYTORCH_JOB, TF_JOB};
use super::super::train_job::TrainJob;
use crate::config::kubernetes::KubernetesSpec;
use crate::training_service::kubernetes::client::WatchedObject;
use crate::training_service::kubernetes::manifest::tests::workload_settings;
use crate::training_service::kubernetes::manifest::{trial_containers, workload_of};
use crate::training_service::kubernetes::tracker::{
    PodKey, Tracker, TrackerAction, observe_missing_pod, observe_pod,
};
use crate::training_service::kubernetes::{kueue, pod_end};
use crate::training_service::{JobEnd, JobEndEvent, JobNews};

/// Returns the events of a recording, with each object complete. The job is called `tkx`.
fn recording(case: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/kubernetes")
        .join(format!("{case}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{case}: {error}"));
    let (_, name) = case.split_once('/').unwrap();
    // In a recording with two jobs, the preempted one is the trial's.
    let others = [format!("{name}-low"), format!("{name}-b")];
    let other = others.iter().find(|other| text.contains(&format!("\"{other}\"")));
    let name = other.map_or(name, String::as_str);
    let text =
        text.replace(&format!("\"{name}\""), "\"tkx\"").replace(&format!("\"{name}-"), "\"tkx-");
    let text = text.replace(&format!("/{name}-"), "/tkx-").replace(&format!(" {name}-"), " tkx-");
    let text = with_own_roles(case, text);
    let mut last: HashMap<(String, String), Value> = HashMap::new();
    let lines = text.lines().map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines
        .map(|mut line| {
            let name = line.pointer("/object/metadata/name").and_then(Value::as_str);
            let Some(name) = name.map(str::to_owned) else { return line };
            let key = (line["kind"].to_string(), name);
            for part in line["same"].as_array().cloned().unwrap_or_default() {
                let at = format!("/{}", part.as_str().unwrap().replace('.', "/"));
                let (above, field) = at.rsplit_once('/').unwrap();
                let known = last.get(&key).and_then(|object| object.pointer(&at)).cloned();
                if let Some(known) = known {
                    line["object"].pointer_mut(above).unwrap()[field] = known;
                }
            }
            last.insert(key, line["object"].clone());
            line
        })
        .collect()
}

/// Returns a recording of roles that TrialKeeper sends: its worker decides, as the recorded chief, and its parameter
/// server ends as the recorded worker.
fn with_own_roles(case: &str, text: String) -> String {
    if case != "tfjob/chief-ok-worker-fails" {
        return text;
    }
    let renamed = [("worker", "ps"), ("Worker", "PS"), ("chief", "worker"), ("Chief", "Worker")];
    renamed.iter().fold(text, |text, (recorded, own)| text.replace(recorded, own))
}

/// Returns the news about the recorded object in the recording `KIND/CASE`.
pub(in crate::training_service::kubernetes::workload) fn news_of_recording(
    kind: &'static dyn Workload,
    spec: &KubernetesSpec,
    case: &str,
) -> Vec<JobNews> {
    Player::play(kind, spec, case).news
}

/// Returns the news about the recorded object, including the deadlines that pass after the recording without further
/// events.
pub(in crate::training_service::kubernetes::workload) fn news_after(
    kind: &'static dyn Workload,
    spec: &KubernetesSpec,
    case: &str,
    later: Duration,
) -> Vec<JobNews> {
    let mut player = Player::play(kind, spec, case);
    let actions = player.tracker.tick(player.now + later);
    player.perform(actions);
    player.news
}

/// Returns the number of places that the recorded pods of the trial have. A recording may have other roles than the
/// specification.
fn count_places(kind: &dyn Workload, lines: &[Value]) -> u64 {
    let pods = lines.iter().filter(|line| line["kind"] == "Pod");
    let names = pods.filter_map(|pod| pod.pointer("/object/metadata/name")?.as_str());
    let own = names.filter(|name| workload_of(name) == "tkx");
    let places: HashSet<&str> = own.map(|name| kind.pod_place(name)).collect();
    u64::try_from(places.len()).unwrap().max(1)
}

/// Replays a recording to a tracker.
struct Player<'a> {
    kind: &'static dyn Workload,
    spec: &'a KubernetesSpec,
    case: &'a str,
    tracker: Tracker,
    now: Duration,
    news: Vec<JobNews>,
}

impl<'a> Player<'a> {
    /// Replays a recording.
    fn play(kind: &'static dyn Workload, spec: &'a KubernetesSpec, case: &'a str) -> Self {
        let (start_up, grace) = (Duration::from_mins(10), Duration::from_secs(30));
        let lines = recording(case);
        let pods = count_places(kind, &lines);
        let tracker = Tracker::new(kind, start_up, grace).with_queue(spec.queue.is_some());
        let mut tracker = tracker.with_pods(pods);
        tracker.begin_listing();
        tracker.complete_listing();
        let (trial, attempt) = (TrialJobId::new("x").unwrap(), AttemptId::new("x-1").unwrap());
        tracker.add_attempt("tkx", trial, attempt, Duration::ZERO);
        tracker.handle_submission("tkx", Ok(()), Duration::ZERO);
        let mut player = Self { kind, spec, case, tracker, now: Duration::ZERO, news: Vec::new() };
        for line in lines {
            // The preparation happened before the start of the recording.
            player.now = Duration::from_secs_f64(line["t"].as_f64().unwrap().max(0.0));
            let actions = player.observe_line(&line);
            player.perform(actions);
        }
        player
    }

    /// Passes a line of the recording to the tracker.
    fn observe_line(&mut self, line: &Value) -> Vec<TrackerAction> {
        let (tracker, now) = (&mut self.tracker, self.now);
        let gone = line["type"] == "DELETED";
        let own_kind = self.kind.resource().kind;
        let known = ["Pod", "Workload", own_kind];
        let seen = line["kind"].as_str().filter(|seen| known.contains(seen));
        let Some(seen) = seen else { return Vec::new() };
        // The object passes through the watch's type, which skips most fields.
        let object: WatchedObject = serde_json::from_value(line["object"].clone()).unwrap();
        let is_ours = object.name == "tkx" || object.owner.as_deref() == Some("tkx");
        match seen {
            seen if seen == own_kind && object.name != "tkx" => Vec::new(),
            seen if seen == own_kind && gone => tracker.handle_deleted_workload("tkx"),
            seen if seen == own_kind => {
                tracker.handle_phase("tkx", self.kind.phase(&object.body, self.spec), now)
            }
            "Pod" if gone => observe_missing_pod(tracker, &object, now).into_iter().collect(),
            "Pod" => {
                let actions = observe_pod(tracker, &object, now);
                if object.body.pointer("/metadata/deletionTimestamp").is_some() {
                    // A listing at the workload's end has the pod in this form.
                    tracker.observe_pod_end(
                        PodKey::of_pod(&object, self.kind.kind()),
                        pod_end::observed_fields(&object.name, &object.body),
                    );
                }
                actions
            }
            "Workload" if is_ours && !gone => {
                tracker.handle_queue_state("tkx", kueue::queue_state(&object.body), now)
            }
            _ => Vec::new(),
        }
    }

    /// Returns the names of the containers in which the trial runs.
    fn trial(&self) -> Vec<String> {
        trial_containers(self.spec, self.kind.container_name())
    }

    /// Carries out actions, as far as a recording allows.
    fn perform(&mut self, actions: Vec<TrackerAction>) {
        for action in actions {
            let more = match action {
                TrackerAction::Report(news) => {
                    self.news.push(news);
                    Vec::new()
                }
                TrackerAction::ExplainFromPods(name, outcome) => {
                    let pods = self.tracker.pods().with_ended_pods(&name, Vec::new());
                    self.tracker.complete_end(
                        &name,
                        self.kind.explain_outcome(outcome, &pods, &self.trial()),
                    )
                }
                TrackerAction::ConcludeFromPods(name) => {
                    let pods = self.tracker.pods().with_ended_pods(&name, Vec::new());
                    let outcome = self.kind.outcome_from_pods(self.spec, &pods, &self.trial());
                    outcome
                        .map(|outcome| self.tracker.complete_end(&name, outcome))
                        .unwrap_or_default()
                }
                // The workload is deleted because Kueue has given it up, and its pods no longer exist.
                TrackerAction::Stop(name) if self.case.starts_with("kueue/") => {
                    self.tracker.handle_deleted_workload(&name);
                    self.tracker.end_deleted_workload(&name)
                }
                // Another client deleted the workload, and the recording ends after its pods.
                TrackerAction::AwaitPods(name) => self.tracker.end_deleted_workload(&name),
                // The recording has the queue's messages, and no answers to queries.
                TrackerAction::WatchQueue
                | TrackerAction::ReadOutput(_)
                | TrackerAction::QueryMissingPod(_) => Vec::new(),
                TrackerAction::Stop(_)
                | TrackerAction::DeleteLeftover(_)
                | TrackerAction::DeleteUnstopped(_)
                | TrackerAction::DeleteRemains(_) => {
                    panic!("{}: {action:?}", self.case)
                }
            };
            self.perform(more);
        }
    }
}

/// Returns the ends among the news.
pub(in crate::training_service::kubernetes::workload) fn ends(
    news: &[JobNews],
) -> Vec<&JobEndEvent> {
    let ends = news.iter().filter_map(|news| match news {
        JobNews::Gone(event) => Some(event),
        JobNews::Waits(_)
        | JobNews::Requeued(_)
        | JobNews::Image(_)
        | JobNews::PodLeft(_)
        | JobNews::Placed(_) => None,
    });
    ends.collect()
}

/// Returns the only end among the news.
pub(in crate::training_service::kubernetes::workload) fn only_end<'a>(
    case: &str,
    news: &'a [JobNews],
) -> &'a JobEnd {
    let ends = ends(news);
    let [event] = ends.as_slice() else { panic!("{case}: {news:?}") };
    &event.end
}

/// The class of an end by a deletion, and of an end by a limit of the trial.
pub(in crate::training_service::kubernetes::workload) const TRANSIENT: Option<Class> =
    Some(Class::Transient);
pub(in crate::training_service::kubernetes::workload) const OVER_LIMIT: Option<Class> =
    Some(Class::Permanent);

/// An expected end: the exit code, the beginning of the message, the class, and the first word of the disruption.
type ExpectedEnd<'a> = (Option<i32>, &'a str, Option<Class>, Option<&'a str>);

/// Asserts that the news about a recording contain this end and no other. The cause follows from the recording's name.
pub(in crate::training_service::kubernetes::workload) fn assert_ends(
    case: &str,
    news: &[JobNews],
    (exit_code, message, class, disruption): ExpectedEnd<'_>,
) {
    let end = only_end(case, news);
    assert_eq!((end.exit_code, end.class), (exit_code, class), "{case}: {end:?}");
    assert_eq!(end.cause, case.contains("oom").then_some(Cause::OomKernel), "{case}");
    let actual = end.message.as_deref().unwrap_or_default();
    assert!(actual.starts_with(message), "{case}: {actual}");
    let actual = end.disruption.as_deref().and_then(|text| text.split(':').next());
    assert_eq!(actual, disruption, "{case}");
}

#[test]
fn a_queued_workload_of_every_kind_ends_as_without_a_queue() {
    let role = json!({"replicas": 1, "dockerImage": "i:1", "command": "x", "cpuNumber": 1, "memorySize": 512, "gpuNumber": 1});
    let roles = ["worker", "ps"].map(|name| {
        json!({"name": name, "taskNumber": 1, "dockerImage": "i:1", "command": "x", "cpuNumber": 1, "memorySize": 512,
            "gpuNumber": 1, "frameworkAttemptCompletionPolicy": {"minFailedTaskCount": 1, "minSucceedTaskCount": 1}})
    });
    #[rustfmt::skip]
    let table: [(&'static dyn Workload, &str, Value); 4] = [
        (&JobSet,      "kueue/jobset-exit0",     json!({"platform": "kubernetes", "taskRoles": roles})),
        (&TrainJob,    "kueue/trainjob-exit0",   json!({"platform": "trainer", "dockerImage": "i:1"})),
        (&TF_JOB,      "kueue/tfjob-exit0",      json!({"platform": "kubeflow", "operator": "tf-operator", "worker": role})),
        (&PYTORCH_JOB, "kueue/pytorchjob-exit0", json!({"platform": "kubeflow", "operator": "pytorch-operator", "master": role})),
    ];
    for (kind, case, mut section) in table {
        (section["queue"], section["agent"]) = (json!("team"), json!("image"));
        let news = news_of_recording(kind, &workload_settings(&section).spec, case);
        let end = only_end(case, &news);
        assert!(end.succeeded && end.exit_code == Some(0), "{case}: {end:?}");
    }
}

/// The recordings that no test replays, by the reason.
const UNREPLAYED_RECORDINGS: &[(&str, &[&str])] = &[
    (
        "TrialKeeper's Jobs have another failure policy",
        &[
            "job/evicted-codes-first",
            "job/evicted-only-codes",
            "job/evicted-rule-count",
            "job/evicted-rule-ignore",
            "job/exit1-backoff2-no-policy",
            "jobset/max-restarts-1",
            "jobset/template-defaults-exit1",
        ],
    ),
    (
        "TrialKeeper's jobs have the restart policy Never",
        &[
            "tfjob/exitcode-permanent",
            "tfjob/exitcode-retry",
            "tfjob/pod-deleted-exitcode",
            "tfjob/policy-unset-exit1",
            "pytorchjob/exitcode-permanent",
            "pytorchjob/exitcode-retry",
            "pytorchjob/pod-deleted-exitcode",
            "pytorchjob/policy-unset-exit1",
        ],
    ),
    (
        "TrialKeeper's jobs have the clean-up policy Running",
        &[
            "tfjob/clean-all",
            "tfjob/clean-none",
            "tfjob/two-clean-none",
            "pytorchjob/clean-all",
            "pytorchjob/clean-none",
            "pytorchjob/two-clean-none",
        ],
    ),
    (
        "TrialKeeper sets no deadline that the operator would have to keep",
        &["tfjob/deadline", "pytorchjob/deadline"],
    ),
    ("TrialKeeper sends no such role", &["tfjob/lower-case-role", "tfjob/unknown-role"]),
    (
        "they record the answers to requests",
        &[
            "job/create-twice",
            "kueue/dry-run",
            "jobset/refused",
            "tfjob/refused",
            "pytorchjob/refused",
            "trainjob/runtime-missing",
        ],
    ),
];

/// The tests of each kind, which name a recording with or without its kind.
const TEST_SOURCES: [(&str, &str); 6] = [
    ("job", include_str!("../job/tests.rs")),
    ("kueue", include_str!("../job/tests.rs")),
    ("jobset", include_str!("../job_set/tests.rs")),
    ("tfjob", include_str!("../kubeflow/tests.rs")),
    ("pytorchjob", include_str!("../kubeflow/tests.rs")),
    ("trainjob", include_str!("../train_job/tests.rs")),
];
/// The other tests that use recordings, which name them with their kind.
const OTHER_TEST_SOURCES: [&str; 2] =
    [include_str!("recorded.rs"), include_str!("../../pending_reason.rs")];

/// Returns whether a test names the recording `KIND/CASE`.
fn is_named(kind: &str, case: &str) -> bool {
    let (whole, short, any_kind) =
        (format!("\"{kind}/{case}\""), format!("\"{case}\""), format!("{{kind}}/{case}\""));
    let all = TEST_SOURCES.iter().map(|(_, text)| *text).chain(OTHER_TEST_SOURCES);
    let own = TEST_SOURCES.iter().filter(|(known, _)| *known == kind).map(|(_, text)| *text);
    all.into_iter().any(|text| text.contains(&whole))
        || own.into_iter().any(|text| text.contains(&short) || text.contains(&any_kind))
}

/// The number of recordings that exist.
const RECORDING_COUNT: usize = 204;

#[test]
fn every_recording_is_replayed_or_has_a_reason() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = here.join("../tests/fixtures/kubernetes");
    let mut kept = Vec::new();
    for kind in ["job", "kueue", "jobset", "tfjob", "pytorchjob", "trainjob"] {
        for file in std::fs::read_dir(folder.join(kind)).unwrap() {
            let name = file.unwrap().path().file_stem().unwrap().to_string_lossy().into_owned();
            assert!(is_named(kind, &name), "no test replays {kind}/{name}");
            kept.push(format!("{kind}/{name}"));
        }
    }
    let left: Vec<&str> =
        UNREPLAYED_RECORDINGS.iter().flat_map(|(_, cases)| *cases).copied().collect();
    for case in &left {
        assert!(!kept.iter().any(|kept| kept == case), "{case}");
    }
    assert_eq!(kept.len() + left.len(), RECORDING_COUNT);
}
