//! Recordings of real controllers, told to a tracker, for the tests of each kind.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;
use trial_protocol::{AttemptId, TrialJobId};

use super::Workload;
use crate::config::kubernetes::KubernetesSpec;
use crate::training_service::kubernetes::client::WatchedObject;
use crate::training_service::kubernetes::tracker::{Act, Tracker};
use crate::training_service::kubernetes::watching::enter_pod;
use crate::training_service::kubernetes::{kueue, pod_end};
use crate::training_service::{JobEvent, JobNews};

/// The events of a recording, each object whole; the job is called `tkx`.
fn recording(case: &str) -> Vec<Value> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures/kubernetes")
        .join(format!("{case}.jsonl"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{case}: {error}"));
    let (_, name) = case.split_once('/').unwrap();
    // The job of a recording with two is the one that was preempted.
    let others = [format!("{name}-low"), format!("{name}-b")];
    let other = others.iter().find(|other| text.contains(&format!("\"{other}\"")));
    let name = other.map_or(name, String::as_str);
    let text =
        text.replace(&format!("\"{name}\""), "\"tkx\"").replace(&format!("\"{name}-"), "\"tkx-");
    let text = text.replace(&format!("/{name}-"), "/tkx-").replace(&format!(" {name}-"), " tkx-");
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

/// Returns the news about the recorded object, whose recording is `KIND/CASE`.
pub(super) fn told(kind: &'static dyn Workload, spec: &KubernetesSpec, case: &str) -> Vec<JobNews> {
    let (start_up, grace) = (Duration::from_mins(10), Duration::from_secs(30));
    let mut tracker = Tracker::new(kind, start_up, grace).queued(spec.queue.is_some());
    tracker.listing();
    tracker.listing_done();
    let (trial, attempt) = (TrialJobId::new("x").unwrap(), AttemptId::new("x-1").unwrap());
    tracker.submit("tkx", trial, attempt, Duration::ZERO);
    tracker.submitted("tkx", Ok(()), Duration::ZERO);
    let mut told = Vec::new();
    for line in recording(case) {
        let acts = see(&mut tracker, kind, spec, &line);
        for act in acts {
            match act {
                Act::Tell(news) => told.push(news),
                Act::Inspect(name, outcome) => {
                    let outcome = kind.explain(outcome, &tracker.ended_pods(&name));
                    let acts = tracker.explained(&name, outcome);
                    let [Act::Tell(news)] = acts.as_slice() else { panic!("{case}: {acts:?}") };
                    told.push(news.clone());
                }
                // What Kueue has given up is deleted, and its pods are gone by then.
                Act::Stop(name) if case.starts_with("kueue/") => {
                    tracker.workload_gone(&name);
                    let acts = tracker.pods_gone(&name);
                    let [Act::Tell(news)] = acts.as_slice() else { panic!("{case}: {acts:?}") };
                    told.push(news.clone());
                }
                // The recording has the queue's words, if there are any.
                Act::WatchQueue => {}
                Act::Stop(_)
                | Act::Settle(_)
                | Act::Discard(_)
                | Act::Listen(_)
                | Act::Ask(_)
                | Act::Delete(_)
                | Act::AwaitPods(_)
                | Act::Tidy(_) => panic!("{case}: {act:?}"),
            }
        }
    }
    told
}

/// Enters a line of a recording into the tracker.
fn see(
    tracker: &mut Tracker,
    kind: &dyn Workload,
    spec: &KubernetesSpec,
    line: &Value,
) -> Vec<Act> {
    let gone = line["type"] == "DELETED";
    let known = ["Pod", "Workload", kind.resource().kind];
    let seen = line["kind"].as_str().filter(|seen| known.contains(seen));
    let Some(seen) = seen else { return Vec::new() };
    // As the watch has it, which passes most of an object over.
    let thing: WatchedObject = serde_json::from_value(line["object"].clone()).unwrap();
    let is_ours = thing.name == "tkx" || thing.owner.as_deref() == Some("tkx");
    match seen {
        seen if seen == kind.resource().kind && thing.name != "tkx" => Vec::new(),
        seen if seen == kind.resource().kind && gone => tracker.workload_gone("tkx"),
        seen if seen == kind.resource().kind => {
            tracker.workload("tkx", kind.phase(&thing.body, spec), Duration::ZERO)
        }
        "Pod" => {
            // As a listing at the workload's end has it.
            if gone || thing.body.pointer("/metadata/deletionTimestamp").is_some() {
                tracker.pod_ends(&thing.name, pod_end::as_seen(&thing.name, &thing.body));
            }
            if gone { Vec::new() } else { enter_pod(tracker, &thing, Duration::ZERO) }
        }
        "Workload" if is_ours && !gone => {
            tracker.queue("tkx", kueue::read(&thing.body), Duration::ZERO)
        }
        _ => Vec::new(),
    }
}

/// The ends among what was told.
pub(super) fn ends(told: &[JobNews]) -> Vec<&JobEvent> {
    let ends = told.iter().filter_map(|news| match news {
        JobNews::Gone(event) => Some(event),
        JobNews::Waits(_)
        | JobNews::Requeued(_)
        | JobNews::Image(_)
        | JobNews::PodLeft(_)
        | JobNews::Placed(_) => None,
    });
    ends.collect()
}
