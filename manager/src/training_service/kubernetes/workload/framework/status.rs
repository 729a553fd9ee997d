//! PURE: the reader of a Framework's status. The fields are those that the controller at commit d6e7078 writes. Every
//! field may be missing, and the watch may skip any state.

use std::borrow::Cow;
use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use serde_json::Value;
use trial_protocol::{Cause, Class, Confidence, Verdict};

use crate::config::kubernetes::WorkloadKind;
use crate::training_service::kubernetes::admission_advice;
use crate::training_service::kubernetes::disruption;
use crate::training_service::kubernetes::outcome::{DecidingPod, WorkloadOutcome, WorkloadPhase};
use crate::util::excerpt::shortened;

/// The greatest size of a decompressed status, in bytes: 10,000 tasks take some 20 MB.
const MAX_STATUS_BYTES: u64 = 64 << 20;

/// The message of a completed Framework whose status has no outcome.
const NO_OUTCOME_MESSAGE: &str = "the Framework is completed, but its status has no outcome";

/// The kubelet's reason for a container that the kernel killed for its memory.
const OOM_REASON: &str = "OOMKilled";
/// The code for such a container in FrameworkController's usual configuration.
const OOM_CODE: i64 = -1200;
/// The explanation of such an end for the user.
const OUT_OF_MEMORY_MESSAGE: &str =
    "out of memory: the pod was killed for using more than `memorySize`";

/// Reads a Framework without its metadata. `main` is the role and index of the pod to use if the status does not name
/// the deciding pod.
pub fn read(framework: &Value, main: (&str, u64)) -> WorkloadPhase {
    let status = framework.get("status").filter(|status| status.is_object());
    let Some(state) = status.and_then(|status| status.get("state")?.as_str()) else {
        return WorkloadPhase::Unseen;
    };
    let status = status.unwrap_or(&Value::Null);
    let completion = status.pointer("/attemptStatus/completionStatus").filter(|c| c.is_object());
    match state {
        "AttemptCreationPending" | "AttemptCreationRequested" | "AttemptPreparing" => {
            WorkloadPhase::Waiting
        }
        "AttemptRunning" if is_starting(status) => WorkloadPhase::Starting,
        "AttemptRunning" => WorkloadPhase::Running,
        "Completed" => WorkloadPhase::Completed(read_outcome(status, completion, main)),
        // The task is terminating, or about to be retried.
        _ if completion.is_some() => WorkloadPhase::Ending,
        _ => WorkloadPhase::Waiting,
    }
}

/// Returns whether a pod of a running Framework has not started.
fn is_starting(status: &Value) -> bool {
    let waits = ["AttemptCreationPending", "AttemptCreationRequested", "AttemptPreparing"];
    let waits = |task: &Value| {
        task.get("state").and_then(Value::as_str).is_some_and(|state| waits.contains(&state))
    };
    role_statuses(status).iter().any(|role| {
        role.get("taskStatuses")
            .and_then(Value::as_array)
            .is_some_and(|tasks| tasks.iter().any(waits))
    })
}

fn read_outcome(status: &Value, completion: Option<&Value>, main: (&str, u64)) -> WorkloadOutcome {
    let Some(completion) = completion else {
        return WorkloadOutcome::failure(NO_OUTCOME_MESSAGE.to_owned());
    };
    let text = |at: &str| completion.pointer(at).and_then(Value::as_str).unwrap_or_default();
    let succeeded = text("/type/name") == "Succeeded";
    let code = completion.get("code").and_then(Value::as_i64);
    let trigger = completion.get("trigger").and_then(|trigger| {
        Some((trigger.get("taskRoleName")?.as_str()?, trigger.get("taskIndex")?.as_u64()?))
    });
    let pod = deciding_pod(status, completion, trigger.unwrap_or(main));
    let containers = pod.as_ref().and_then(|pod| pod.get("containers")?.as_array());
    let container = containers.and_then(|list| deciding_container(list));
    let exit_code = exit_code(container.as_ref(), succeeded);
    let reason = container.as_ref().and_then(|container| container.get("reason")?.as_str());
    // The pod's own reason and message, if its containers were not the cause of the end.
    let of_pod = |field: &str| pod.as_ref().and_then(|pod| pod.get(field)?.as_str());
    let pods = ["reason", "message"].map(|field| of_pod(field).unwrap_or_default().trim());
    let message = if succeeded {
        "the pod succeeded".to_owned()
    } else {
        // The trial's container has the usual name, or is the last one: init containers come first.
        let other = container.as_ref().is_some_and(|container| {
            container["name"] != "framework"
                && containers.and_then(|list| list.last()) != Some(container)
        });
        let container = (container.as_ref(), other);
        // The controller's diagnostics quote the whole status of the pod, so the pod's own message is preferred.
        let diagnostics = if pods[1].is_empty() { text("/diagnostics") } else { pods[1] };
        failure_message(code, text("/phrase"), diagnostics, container, exit_code)
    };
    let decided_by = trigger.map(|(role, index)| DecidingPod {
        role: role.to_owned(),
        index,
        is_main: (role, index) == main,
    });
    let message =
        if succeeded { message } else { DecidingPod::with_pod_name(decided_by.as_ref(), message) };
    let starved = !succeeded && (reason == Some(OOM_REASON) || code == Some(OOM_CODE));
    let permanent = starved || disruption::is_over_own_limit(pods[0], pods[1]);
    let outcome = WorkloadOutcome {
        succeeded,
        exit_code,
        message,
        class: if permanent { Some(Class::Permanent) } else { retry_class(completion) },
        cause: starved.then_some(Cause::OomKernel),
        decided_by,
        ..WorkloadOutcome::failure(String::new())
    };
    let taken = match pods[0] {
        "" => disruption::of_code(code, text("/phrase")),
        reason => disruption::of_reason(reason, pods[1]),
    };
    match taken.filter(|_| !succeeded) {
        Some(taken) => outcome.with_disruption(taken),
        None => outcome,
    }
}

/// Returns the exit code of the container that decided. `None` for a failure with code 0: after a node went down, its
/// failed pods contain containers that "exited with 0".
fn exit_code(container: Option<&Value>, succeeded: bool) -> Option<i32> {
    let code = container?.get("code")?.as_i64()?;
    if succeeded || code != 0 { i32::try_from(code).ok() } else { None }
}

/// Returns the status of the pod that ended the Framework, or else of the pod `(role, index)`.
fn deciding_pod(status: &Value, completion: &Value, (role, index): (&str, u64)) -> Option<Value> {
    completion.get("pod").filter(|pod| pod.is_object()).cloned().or_else(|| {
        let task = task_status(status, role, index)?;
        task.pointer("/attemptStatus/completionStatus/pod").cloned()
    })
}

/// Returns the prospect of a retry according to the controller.
fn retry_class(completion: &Value) -> Option<Class> {
    let attributes = completion.pointer("/type/attributes")?.as_array()?;
    let has = |name: &str| attributes.iter().any(|attribute| attribute == name);
    let classes = [("Permanent", Class::Permanent), ("Transient", Class::Transient)];
    classes.into_iter().find(|(name, _)| has(name)).map(|(_, class)| class)
}

/// Returns the reason for a failure, for the user.
fn failure_message(
    code: Option<i64>,
    phrase: &str,
    diagnostics: &str,
    (container, other): (Option<&Value>, bool),
    exit_code: Option<i32>,
) -> String {
    let text = |field: &str| {
        let found = container.and_then(|container| container.get(field)?.as_str());
        found.unwrap_or_default().trim().to_owned()
    };
    let (reason, termination_message) = (text("reason"), text("message"));
    let what =
        if other { format!("the container {}", text("name")) } else { "the container".to_owned() };
    let known = known_cause(code, &reason);
    if let Ok(verdict) = serde_json::from_str::<Verdict>(&termination_message) {
        return failure_message_by_verdict(&verdict, known);
    }
    let termination_message = termination_message
        .lines()
        .rfind(|line| !line.trim().is_empty())
        .unwrap_or_default()
        .trim();
    let termination_message = if termination_message.is_empty() {
        String::new()
    } else {
        format!(": {}", shortened(termination_message))
    };
    let quoted = quoted_answer(diagnostics);
    let diagnostics = quoted.as_deref().unwrap_or(diagnostics);
    match (known.unwrap_or_default(), exit_code) {
        ("", Some(code)) => {
            let reason = match reason.as_str() {
                "" | "Error" | "Completed" => String::new(),
                other => format!(" ({other})"),
            };
            format!("{what} ended with exit code {code}{reason}{termination_message}")
        }
        ("", None) => {
            let phrase = if phrase.is_empty() { "failed" } else { phrase };
            format!("{phrase}: {}", shortened(first_line(diagnostics)))
        }
        (known, _) if !termination_message.is_empty() => format!("{known}{termination_message}"),
        (known, _) if diagnostics.is_empty() => known.to_owned(),
        (known, _) if matches!(code, Some(-101 | -210 | -220 | OOM_CODE)) => known.to_owned(),
        (known, _) => {
            let detail = shortened(first_line(diagnostics));
            // No pod was created, so the API server's message is the only source of a reason.
            let refused = matches!(code, Some(-200 | -310));
            let detail = if refused {
                admission_advice::with_advice(detail, WorkloadKind::Framework)
            } else {
                detail
            };
            format!("{known}: {detail}")
        }
    }
}

/// Returns the reason for a failure of which the agent has left a verdict. `known` is the certain cause according to
/// the controller or the kubelet.
fn failure_message_by_verdict(verdict: &Verdict, known: Option<&str>) -> String {
    // The agent's verdict counts if the agent saw the end. A verdict that was written in advance, or that is derived
    // from a signal, is only a guess. The statements of the controller and the kubelet then take precedence.
    let saw_end = verdict.exit.is_some()
        && verdict.cause != Cause::Stopped
        && verdict.confidence == Confidence::Certain;
    match known {
        Some(known) if !saw_end => format!("{known}{}", memory_usage_phrase(verdict)),
        Some(_) | None => shortened(&verdict.message),
    }
}

/// Returns the certain cause of an end, from the controller's code, or from the kubelet's reason if the controller is
/// not configured to derive a code from it.
fn known_cause(code: Option<i64>, reason: &str) -> Option<&'static str> {
    Some(match code {
        Some(-100) => "the trial's config map was deleted, but not by the manager",
        Some(-101) => "the trial's pod was deleted, but not by the manager",
        Some(-110 | -111) => "the controller created the pod but never observed it",
        Some(-120) => "the pod could not be created at the time",
        Some(-200) => "the cluster refuses the pod",
        Some(-210) => "stopped on request",
        Some(-220) => "stopped because the rest of its Framework was complete",
        Some(-230) => "its task was removed",
        Some(-300) => {
            "the pod failed although none of its containers failed; was its node restarted?"
        }
        Some(-310) => "the pod could not be created",
        Some(-1000) => "the pod was evicted",
        Some(-1001) => "the pod's node was lost",
        Some(-1002 | -1005 | -1006) => "the pod's node refused it",
        Some(OOM_CODE) => OUT_OF_MEMORY_MESSAGE,
        _ if reason == OOM_REASON => OUT_OF_MEMORY_MESSAGE,
        _ => return None,
    })
}

/// Returns the memory usage that the agent measured, if known.
fn memory_usage_phrase(verdict: &Verdict) -> String {
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    let evidence = &verdict.evidence;
    match (evidence.cgroup_memory_peak_bytes, evidence.memory_limit_bytes) {
        (Some(peak), Some(limit)) => {
            format!(" (a few seconds before: at most {} of {})", mib(peak), mib(limit))
        }
        _ => String::new(),
    }
}

/// Returns the container whose exit code counts: the first that failed, or else the trial's.
fn deciding_container(containers: &[Value]) -> Option<Value> {
    let code = |container: &Value| container.get("code").and_then(Value::as_i64);
    let named = |container: &&Value| container.get("name").is_some_and(|name| name == "framework");
    let failed = containers.iter().find(|container| code(container).is_some_and(|code| code != 0));
    failed.or_else(|| containers.iter().find(named)).or(containers.last()).cloned()
}

/// Returns the statuses of all roles, compressed or not.
fn role_statuses(status: &Value) -> Cow<'_, [Value]> {
    let attempt = status.get("attemptStatus").unwrap_or(&Value::Null);
    if let Some(roles) = attempt.get("taskRoleStatuses").and_then(Value::as_array) {
        return Cow::Borrowed(roles);
    }
    let folded = attempt.get("taskRoleStatusesCompressed").and_then(Value::as_str);
    match folded.and_then(decompress) {
        Some(Value::Array(roles)) => Cow::Owned(roles),
        Some(_) | None => Cow::Borrowed(&[]),
    }
}

/// Returns the status of one task.
fn task_status(status: &Value, role: &str, index: u64) -> Option<Value> {
    let roles = role_statuses(status);
    let role = roles.iter().find(|known| known.get("name").is_some_and(|name| name == role))?;
    let tasks = role.get("taskStatuses")?.as_array()?;
    tasks.iter().find(|task| task.get("index").and_then(Value::as_u64) == Some(index)).cloned()
}

/// Decodes base64(gzip(JSON)), the form in which large Frameworks store their status.
fn decompress(text: &str) -> Option<Value> {
    let packed = STANDARD.decode(text.trim()).ok()?;
    let mut json = Vec::new();
    GzDecoder::new(packed.as_slice()).take(MAX_STATUS_BYTES).read_to_end(&mut json).ok()?;
    serde_json::from_slice(&json).ok()
}

/// Returns the API server's answer if the controller quotes it in full.
fn quoted_answer(diagnostics: &str) -> Option<String> {
    let answer: Value = serde_json::from_str(&diagnostics[diagnostics.find('{')?..]).ok()?;
    Some(answer.pointer("/ErrStatus/message")?.as_str()?.to_owned())
}

fn first_line(text: &str) -> &str {
    text.lines().find(|line| !line.trim().is_empty()).unwrap_or_default().trim()
}

#[cfg(test)]
mod tests;
