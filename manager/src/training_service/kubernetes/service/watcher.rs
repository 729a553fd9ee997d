//! Watches the cluster and passes the events to the tracker.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tokio::time::Instant;
use tracing::warn;

use super::{Settings, Shared};
use crate::training_service::kubernetes::client::{EVENTS, PODS, WatchEvent, WatchedObject, watch};
use crate::training_service::kubernetes::outcome::JobPhase;
use crate::training_service::kubernetes::tracker::{
    Act, Tracker, observe_missing_pod, observe_pod,
};
use crate::training_service::kubernetes::{
    image, kueue, manifest, pending_reason, pod_end, preflight,
};

/// A kind of object that is watched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watched {
    /// The objects that run the trials.
    Workload,
    /// The pods of the trials.
    Pod,
    /// The events about the pods.
    Event,
    /// Kueue's Workloads, which hold its messages.
    Queue,
}

impl Shared {
    /// Watches all objects of a kind.
    pub(super) async fn watch(self: Arc<Self>, watched: Watched) {
        let Settings { cluster, common, .. } = &self.settings;
        let selector = manifest::selector(&common.experiment);
        let (resource, labels, fields) = match watched {
            Watched::Workload => (self.kind.resource(), Some(selector.as_str()), None),
            Watched::Pod => (PODS, Some(selector.as_str()), None),
            // Neither events nor Kueue's objects carry TrialKeeper's labels.
            Watched::Event => (EVENTS, None, Some("involvedObject.kind=Pod,type=Warning")),
            Watched::Queue => {
                let served = || preflight::queue::served_version(cluster);
                let Some(served) = self.until_done("the queues", served).await else { return };
                // If neither version is served, the watch reports the error and tries again.
                (kueue::workloads(served.unwrap_or(kueue::VERSIONS[1])), None, None)
            }
        };
        let mut seen = watch(cluster, resource, labels, fields);
        let mut last_trouble = self.first_outage().unwrap_or_default().to_owned();
        while let Some(seen) = seen.next().await {
            if let WatchEvent::Trouble(trouble) = seen {
                if trouble != last_trouble {
                    warn!("watching {}: {trouble}; trying again", resource.plural);
                    last_trouble = trouble;
                }
                match watched {
                    Watched::Workload => self.clock().interrupt(Instant::now()),
                    Watched::Queue => self.tracker().observe_queue_watch(false, self.now()),
                    Watched::Pod | Watched::Event => {}
                }
                continue;
            }
            // The beginning of a listing precedes the request.
            if watched == Watched::Workload
                && !matches!(seen, WatchEvent::Begin)
                && self.clock().resume(Instant::now())
            {
                self.nearer.notify_one();
            }
            let mut tracker = self.tracker();
            let acts = match watched {
                Watched::Workload => self.workload(&mut tracker, seen),
                Watched::Pod | Watched::Event | Watched::Queue => {
                    self.others(watched, &mut tracker, seen)
                }
            };
            let listed = tracker.is_listed();
            drop(tracker);
            if listed {
                self.listed.send_if_modified(|was| !std::mem::replace(was, true));
            }
            self.perform(acts);
        }
    }

    /// Passes an event of another watch than that of the workloads to the tracker.
    fn others(&self, watched: Watched, tracker: &mut Tracker, seen: WatchEvent) -> Vec<Act> {
        let is_pod = watched == Watched::Pod;
        match seen {
            WatchEvent::There(object) => {
                let image = self.image(watched, &object);
                let image = image.and_then(|(name, image)| tracker.report_image(name, image));
                let acts = news_of(watched, tracker, &object, self.now());
                if is_pod {
                    let remains = pod_end::outlives_trial(&object.body, &self.trial_containers());
                    tracker.observe_pod_remains(&object.name, remains, self.now());
                }
                if !acts.is_empty() || is_pod {
                    self.nearer.notify_one();
                }
                acts.into_iter().chain(image).collect()
            }
            WatchEvent::Gone(object) if is_pod => {
                observe_missing_pod(tracker, &object, self.now()).into_iter().collect()
            }
            WatchEvent::Begin if is_pod => {
                tracker.begin_pod_listing();
                Vec::new()
            }
            WatchEvent::Complete if is_pod => tracker.complete_pod_listing(self.now()),
            WatchEvent::Complete if watched == Watched::Queue => {
                tracker.observe_queue_watch(true, self.now());
                self.nearer.notify_one();
                Vec::new()
            }
            WatchEvent::Begin
            | WatchEvent::Complete
            | WatchEvent::Gone(_)
            | WatchEvent::Trouble(_) => Vec::new(),
        }
    }

    /// Returns the workload and the image of a pod whose metrics are the trial's.
    fn image<'a>(&self, watched: Watched, pod: &'a WatchedObject) -> Option<(&'a str, String)> {
        let spec = &self.settings.common.spec;
        let name = pending_reason::workload_of(&pod.name);
        let reporter = self.kind.reporter(spec, name, std::slice::from_ref(&pod.name));
        reporter.filter(|reporter| watched == Watched::Pod && *reporter == pod.name)?;
        let container = manifest::reporting_container(&self.settings.common);
        Some((name, image::of_pod(&pod.body, &container)?))
    }

    /// Passes the observation of a workload to the tracker.
    fn workload(&self, tracker: &mut Tracker, seen: WatchEvent) -> Vec<Act> {
        match seen {
            WatchEvent::Begin => {
                tracker.begin_listing();
                Vec::new()
            }
            WatchEvent::Complete => tracker.complete_listing(),
            WatchEvent::There(object) => {
                tracker.observe_id(&object.name, object.uid.as_deref());
                tracker.observe_queue_name(&object.name, object.labels.queue.as_deref());
                let phase = self.kind.phase(&object.body, &self.settings.common.spec);
                let has_deadline =
                    matches!(phase, JobPhase::Running | JobPhase::Suspended | JobPhase::Ending);
                let acts = tracker.handle_phase(&object.name, phase, self.now());
                tracker.observe_unadopted(&object);
                if has_deadline {
                    self.nearer.notify_one();
                }
                acts
            }
            WatchEvent::Gone(object) => tracker.handle_deleted_workload(&object.name),
            WatchEvent::Trouble(_) => Vec::new(),
        }
    }
}

/// Passes the observation of a pod, an event or a queue to the tracker.
fn news_of(
    watched: Watched,
    tracker: &mut Tracker,
    object: &WatchedObject,
    now: Duration,
) -> Vec<Act> {
    match watched {
        Watched::Workload => Vec::new(),
        Watched::Pod => observe_pod(tracker, object, now),
        Watched::Event => match pending_reason::of_event(&object.body) {
            Some((pod, why)) => {
                tracker.set_wait_reason(pending_reason::workload_of(&pod), Some(why))
            }
            None => Vec::new(),
        },
        Watched::Queue => match object.owner.as_deref() {
            Some(name) => tracker.handle_queue_state(name, kueue::read(&object.body), now),
            None => Vec::new(),
        },
    }
}
