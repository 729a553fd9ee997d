//! Watches the cluster and passes the events to the tracker.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use tracing::warn;

use super::action_runner::ActionRunner;
use super::context::ServiceContext;
use crate::training_service::kubernetes::client::{EVENTS, PODS, WatchEvent, WatchedObject, watch};
use crate::training_service::kubernetes::outcome::WorkloadPhase;
use crate::training_service::kubernetes::tracker::{
    PodKey, Tracker, TrackerAction, observe_missing_pod, observe_pod,
};
use crate::training_service::kubernetes::{
    image, kueue, manifest, pending_reason, pod_end, preflight,
};

/// The objects that a watch follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum WatchTarget {
    /// The objects that run the trials.
    Workload,
    /// The pods of the trials.
    Pod,
    /// The events about the pods.
    Event,
    /// Kueue's Workloads, which hold its messages.
    Queue,
}

/// Watches the cluster and passes the events to the tracker.
#[derive(Clone)]
pub(super) struct Watcher {
    context: Arc<ServiceContext>,
    runner: ActionRunner,
}

impl Watcher {
    /// Starts the watches. The queues are watched from the start only if the experiment names one.
    pub(super) fn start(context: &Arc<ServiceContext>, runner: &ActionRunner) {
        let watcher = Self { context: Arc::clone(context), runner: runner.clone() };
        for target in [WatchTarget::Workload, WatchTarget::Pod, WatchTarget::Event] {
            context.spawn_until_closing(watcher.clone().watch(target));
        }
        let names_queue = context.spec().queue.is_some();
        context.spawn_until_closing(async move {
            if !names_queue {
                watcher.runner.queue_watch_requested().await;
            }
            watcher.watch(WatchTarget::Queue).await;
        });
    }

    /// Watches all objects of a target.
    async fn watch(self, watched: WatchTarget) {
        let (context, kind) = (&self.context, self.context.kind());
        let cluster = context.cluster();
        let selector = manifest::experiment_selector(&context.workload_settings().experiment);
        let (resource, labels, fields) = match watched {
            WatchTarget::Workload => (kind.resource(), Some(selector.as_str()), None),
            WatchTarget::Pod => (PODS, Some(selector.as_str()), None),
            // Neither events nor Kueue's objects carry TrialKeeper's labels.
            WatchTarget::Event => (EVENTS, None, Some("involvedObject.kind=Pod,type=Warning")),
            WatchTarget::Queue => {
                let served = || preflight::queue::served_kueue_version(cluster);
                let Some(served) = context.retry_until_done("the queues", served).await else {
                    return;
                };
                // If neither version is served, the watch reports the error and tries again.
                (kueue::workloads(served.unwrap_or(kueue::API_VERSIONS[1])), None, None)
            }
        };
        let mut seen = watch(cluster, resource, labels, fields);
        let mut last_trouble = context.first_outage().unwrap_or_default().to_owned();
        while let Some(seen) = seen.next().await {
            if let WatchEvent::Trouble(trouble) = seen {
                if trouble != last_trouble {
                    warn!("watching {}: {trouble}; trying again", resource.plural);
                    last_trouble = trouble;
                }
                match watched {
                    WatchTarget::Workload => context.stop_clock(),
                    WatchTarget::Queue => {
                        context.tracker().observe_queue_watch(false, context.now());
                    }
                    WatchTarget::Pod | WatchTarget::Event => {}
                }
                continue;
            }
            // The beginning of a listing precedes the request.
            if watched == WatchTarget::Workload && !matches!(seen, WatchEvent::Begin) {
                context.resume_clock();
            }
            let mut tracker = context.tracker();
            let actions = match watched {
                WatchTarget::Workload => self.handle_workload(&mut tracker, seen),
                WatchTarget::Pod | WatchTarget::Event | WatchTarget::Queue => {
                    self.handle_other_object(watched, &mut tracker, seen)
                }
            };
            let listed = tracker.is_listed();
            drop(tracker);
            if listed {
                context.mark_listed();
            }
            self.runner.perform(actions);
        }
    }

    /// Passes an event of any watch but that of the workloads to the tracker.
    fn handle_other_object(
        &self,
        watched: WatchTarget,
        tracker: &mut Tracker,
        seen: WatchEvent,
    ) -> Vec<TrackerAction> {
        let is_pod = watched == WatchTarget::Pod;
        match seen {
            WatchEvent::Present(object) => {
                let image = self.trial_image(watched, &object);
                let image = image.and_then(|(name, image)| tracker.report_image(name, image));
                let actions = observe_object(watched, tracker, &object, self.context.now());
                if is_pod {
                    let remains =
                        pod_end::has_outlived_trial(&object.body, &self.context.trial_containers());
                    let pod = PodKey::of_pod(&object, tracker.kind());
                    tracker.observe_outliving_pod(pod, remains, self.context.now());
                }
                if !actions.is_empty() || is_pod {
                    self.context.wake_timekeeper();
                }
                actions.into_iter().chain(image).collect()
            }
            WatchEvent::Gone(object) if is_pod => {
                observe_missing_pod(tracker, &object, self.context.now()).into_iter().collect()
            }
            WatchEvent::Begin if is_pod => {
                tracker.begin_pod_listing();
                Vec::new()
            }
            WatchEvent::Complete if is_pod => tracker.complete_pod_listing(self.context.now()),
            WatchEvent::Complete if watched == WatchTarget::Queue => {
                tracker.observe_queue_watch(true, self.context.now());
                self.context.wake_timekeeper();
                Vec::new()
            }
            WatchEvent::Begin
            | WatchEvent::Complete
            | WatchEvent::Gone(_)
            | WatchEvent::Trouble(_) => Vec::new(),
        }
    }

    /// Returns the workload and the image of a pod whose metrics are the trial's.
    fn trial_image<'a>(
        &self,
        watched: WatchTarget,
        pod: &'a WatchedObject,
    ) -> Option<(&'a str, String)> {
        let spec = self.context.spec();
        let name = PodKey::of_pod(pod, self.context.kind().kind()).workload;
        let reporter =
            self.context.kind().reporting_pod(spec, name, std::slice::from_ref(&pod.name));
        reporter.filter(|reporter| watched == WatchTarget::Pod && *reporter == pod.name)?;
        let container = manifest::reporting_container(self.context.workload_settings());
        Some((name, image::of_pod(&pod.body, &container)?))
    }

    /// Passes the observation of a workload to the tracker.
    fn handle_workload(&self, tracker: &mut Tracker, seen: WatchEvent) -> Vec<TrackerAction> {
        match seen {
            WatchEvent::Begin => {
                tracker.begin_listing();
                Vec::new()
            }
            WatchEvent::Complete => tracker.complete_listing(),
            WatchEvent::Present(object) => {
                tracker.observe_id(&object.name, object.uid.as_deref());
                tracker.observe_queue_name(&object.name, object.labels.queue.as_deref());
                let phase = self.context.kind().phase(&object.body, self.context.spec());
                let has_deadline = matches!(
                    phase,
                    WorkloadPhase::Running | WorkloadPhase::Suspended | WorkloadPhase::Ending
                );
                let actions = tracker.handle_phase(&object.name, phase, self.context.now());
                tracker.observe_unadopted(&object);
                if has_deadline {
                    self.context.wake_timekeeper();
                }
                actions
            }
            WatchEvent::Gone(object) => tracker.handle_deleted_workload(&object.name),
            WatchEvent::Trouble(_) => Vec::new(),
        }
    }
}

/// Passes the observation of a pod, an event or a queue to the tracker.
fn observe_object(
    watched: WatchTarget,
    tracker: &mut Tracker,
    object: &WatchedObject,
    now: Duration,
) -> Vec<TrackerAction> {
    match watched {
        WatchTarget::Workload => Vec::new(),
        WatchTarget::Pod => observe_pod(tracker, object, now),
        WatchTarget::Event => match pending_reason::event_problem(&object.body) {
            Some((pod, why)) => tracker.set_wait_reason(manifest::workload_of(&pod), Some(why)),
            None => Vec::new(),
        },
        WatchTarget::Queue => match object.owner.as_deref() {
            Some(name) => tracker.handle_queue_state(name, kueue::queue_state(&object.body), now),
            None => Vec::new(),
        },
    }
}
