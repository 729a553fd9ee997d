//! PURE: the changes that the policies of a cluster make to the objects of a trial. A dry run answers with the object
//! as the cluster's webhooks changed it.

use serde_json::Value;

use crate::training_service::kubernetes::workload::{PRIORITY_LABEL, QUEUE_LABEL};

/// The controllers that process the objects of a cluster itself.
const CLUSTER_CONTROLLERS: [&str; 4] = [
    "kubernetes.io/job-controller",
    "jobset.sigs.k8s.io/jobset-controller",
    "trainer.kubeflow.org/trainjob-controller",
    "kubeflow.org/training-operator",
];
/// The prefix of the labels by which the manager finds its objects.
const OWN_LABEL_PREFIX: &str = "trialkeeper/";

/// The consequence of a change for the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Consequence {
    /// No trial could run.
    Fatal,
    /// Trials run, but may end or wait in a way that the user does not expect.
    Warning,
    /// Trials run.
    Note,
}

/// A change of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Change {
    /// The consequence.
    pub consequence: Consequence,
    /// The change and its consequence, for the user.
    pub text: String,
}

impl Change {
    fn fatal(text: String) -> Self {
        Self { consequence: Consequence::Fatal, text }
    }

    fn warning(text: String) -> Self {
        Self { consequence: Consequence::Warning, text }
    }

    fn note(text: String) -> Self {
        Self { consequence: Consequence::Note, text }
    }
}

/// Returns the changes between an object and the cluster's answer that matter for a trial. Changes of the nodes on
/// which the trial may run do not matter, and neither do defaults.
pub fn find_changes(sent: &Value, answered: &Value) -> Vec<Change> {
    let mut found = Vec::new();
    let queue = answered["metadata"]["labels"][QUEUE_LABEL].as_str();
    visit_differences(&mut Vec::new(), sent, answered, &mut |path, sent, answered| {
        found.extend(judge_difference(path, sent, answered, queue));
    });
    found.sort();
    found.dedup();
    found
}

/// Calls `judge` with each difference and its path. The elements of a list are identified by their names. A new element
/// is a single difference.
fn visit_differences<'a>(
    path: &mut Vec<&'a str>,
    sent: &'a Value,
    answered: &'a Value,
    judge: &mut impl FnMut(&[&str], &Value, &Value),
) {
    let is_container = matches!(path.as_slice(), [.., "containers", _]);
    if is_container && !sent.is_null() {
        judge(path, sent, answered);
    }
    let is_new = sent.is_null() && (is_container || path.contains(&"initContainers"));
    match (sent, answered) {
        (_, Value::Object(_)) if is_new => judge(path, sent, answered),
        (Value::Object(_), _) | (_, Value::Object(_)) => {
            let members = [sent, answered].into_iter().filter_map(Value::as_object);
            let mut fields: Vec<&str> = members.flatten().map(|(name, _)| name.as_str()).collect();
            fields.sort_unstable();
            fields.dedup();
            // The API server sets the other metadata.
            let is_metadata = path.last() == Some(&"metadata");
            for field in fields.into_iter().filter(|field| !is_metadata || *field == "labels") {
                path.push(field);
                visit_differences(path, &sent[field], &answered[field], judge);
                path.pop();
            }
        }
        (_, Value::Array(list)) if list.iter().all(|item| item["name"].is_string()) => {
            for item in list {
                let known = sent.as_array().into_iter().flatten();
                let known = known.into_iter().find(|known| known["name"] == item["name"]);
                path.push(item["name"].as_str().unwrap_or_default());
                visit_differences(path, known.unwrap_or(&Value::Null), item, judge);
                path.pop();
            }
        }
        _ if sent != answered => judge(path, sent, answered),
        _ => {}
    }
}

/// Returns a difference that matters. `queue` is the queue in the cluster's answer.
fn judge_difference(
    path: &[&str],
    sent: &Value,
    answered: &Value,
    queue: Option<&str>,
) -> Option<Change> {
    let &[.., above, field] = path else { return None };
    if above == "containers" {
        return judge_container(field, sent, answered);
    }
    if above == "labels" {
        return judge_label(field, sent, answered);
    }
    let is_pod = !path.iter().any(|part| matches!(*part, "containers" | "initContainers"));
    let value = answered.as_str().map_or_else(|| answered.to_string(), str::to_owned);
    let setting = format!("`{field}: {value}`");
    let is_added = !answered.is_null();
    match field {
        "managedBy" if is_added && !CLUSTER_CONTROLLERS.contains(&value.as_str()) => {
            Some(Change::fatal(format!(
                "{setting}: no controller of this cluster creates pods for it; MultiKueue, for example, would send it to \
                 another cluster, which lacks the Secrets of the trial: name a queue without it"
            )))
        }
        "suspend" if *answered == true => Some(suspension_change(&setting, queue)),
        "ttlSecondsAfterFinished" if is_added => Some(Change::warning(format!(
            "{setting}: the cluster deletes it {value} s after its end; a trial whose object was deleted while no manager \
             ran, and whose result is not recorded, runs again"
        ))),
        "activeDeadlineSeconds" if is_added => Some(Change::warning(format!(
            "{setting}: the cluster ends each trial after {value} s; a shorter `maxTrialDuration` keeps the results"
        ))),
        "backoffLimit" if is_added && !sent.is_null() => Some(Change::warning(format!(
            "{setting}: the cluster runs a killed trial again in another pod, which does not count as a retry"
        ))),
        "restartPolicy" if is_pod && is_added && *sent == "Never" => Some(Change::fatal(format!(
            "{setting}: a failed trial would start again in its pod, and would never count as failed"
        ))),
        "parallelism" | "completions" | "replicas" | "taskNumber" | "numNodes"
            if !sent.is_null() =>
        {
            Some(Change::fatal(format!(
                "{setting} instead of {sent}: a trial would wait for pods that do not exist, or have too many"
            )))
        }
        "terminationGracePeriodSeconds" if is_added && answered.as_u64() < sent.as_u64() => {
            Some(Change::warning(format!(
                "{setting} instead of {sent}: a stopped trial may be killed before its last results have arrived"
            )))
        }
        "memory" if above == "limits" && sent.is_null() && path.contains(&"containers") => {
            Some(Change::warning(format!(
                "a limit of {value} of memory, as of a LimitRange: a trial that needs more is killed; `memorySize` sets \
                 another limit"
            )))
        }
        _ => None,
    }
}

/// Returns the change of an object that the cluster suspends.
fn suspension_change(setting: &str, queue: Option<&str>) -> Change {
    match queue {
        Some(queue) => Change::note(format!(
            "{setting} and the label `{QUEUE_LABEL}: {queue}`: trials wait in this queue of Kueue"
        )),
        None => Change::warning(format!(
            "{setting} without a queue: trials wait until another controller of the cluster resumes them; if it is \
             Kueue, set `queue`"
        )),
    }
}

fn judge_label(label: &str, sent: &Value, answered: &Value) -> Option<Change> {
    let Value::String(sent) = sent else { return None };
    let now = answered.as_str().map_or("nothing".to_owned(), |value| format!("`{value}`"));
    if label.starts_with(OWN_LABEL_PREFIX) {
        let text = format!(
            "the label `{label}` becomes {now}: the manager would not find the trial's objects"
        );
        return Some(Change::fatal(text));
    }
    let field = match label {
        QUEUE_LABEL => "queue",
        PRIORITY_LABEL => "priorityClass",
        _ => return None,
    };
    let text = format!("`{field}: {sent}` becomes {now}: trials wait there instead");
    Some(Change::warning(text))
}

/// Returns the change of a container: another one, another image, or another command.
fn judge_container(name: &str, sent: &Value, answered: &Value) -> Option<Change> {
    if sent.is_null() {
        return Some(Change::warning(format!(
            "the container `{name}`: if it does not end with the trial, the manager deletes the pod up to two minutes after \
             the trial's end; leave it out for pods with the label `trialkeeper/experiment`"
        )));
    }
    let own = strings(&sent["command"]);
    let all: Vec<&str> =
        strings(&answered["command"]).into_iter().chain(strings(&answered["args"])).collect();
    // Another program may start the agent, as for secrets.
    if !own.is_empty() && !all.ends_with(&own) {
        return Some(Change::fatal(format!(
            "another command of the container `{name}`: the trial's agent would not start"
        )));
    }
    let (old, new) = (sent["image"].as_str()?, answered["image"].as_str()?);
    (old != new).then(|| Change::note(format!("the image `{new}` instead of `{old}`")))
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests;
