//! The verdict on a trial's page: the cause of the end, and its evidence.

use maud::{Markup, html};
use serde_json::Value;
use trial_protocol::{Cause, Class, Evidence, GpuSample, TrialExit, Verdict};

use super::super::display;

/// Renders the verdict of a trial with its evidence.
pub(super) fn verdict_section(verdict: &Verdict, kind: &str) -> Markup {
    let word = |value: Result<Value, serde_json::Error>| {
        value.ok().and_then(|value| value.as_str().map(str::to_owned)).unwrap_or_default()
    };
    let Evidence { memory_peak_bytes, memory_limit_bytes, oom_kills, .. } = &verdict.evidence;
    let Evidence { cgroup_memory_peak_bytes, wait_status, signal_sender, gpus, .. } =
        &verdict.evidence;
    let sender = signal_sender.as_ref().map(|sender| match (&sender.name, sender.kernel) {
        (_, true) => "the kernel: a key was pressed, or the terminal was closed".to_owned(),
        (Some(name), false) => {
            format!("{}, process {} of user {}", display::sanitize(name), sender.pid, sender.uid)
        }
        (None, false) => format!("process {} of user {}", sender.pid, sender.uid),
    });
    html! {
        section class=(kind) {
            h2 { "Verdict" }
            p { (display::sanitize(&verdict.message)) }
            dl.parameters {
                // The state of a success and the message already contain these facts.
                @if verdict.cause != Cause::Succeeded { div { dt { "Cause" } dd { (display::cause(&word(serde_json::to_value(verdict.cause)))) } } }
                @if verdict.class != Class::None {
                    div { dt { "A retry" } dd { (display::class(&word(serde_json::to_value(verdict.class)))) } }
                }
                div { dt { "Certainty" } dd { (word(serde_json::to_value(verdict.confidence))) } }
                @if let Some(exit) = verdict.exit.filter(|exit| !has_exit(&verdict.message, *exit)) {
                    div { dt { "Ended by" } dd { @match exit { TrialExit::Code(code) => { "exit code " (code) }, TrialExit::Signal(signal) => { "signal " (signal) } } } }
                } @else if let (None, Some(status)) = (verdict.exit, wait_status) {
                    div { dt { "Wait status" } dd { (status) } }
                }
                @if let Some(stop) = verdict.stop { div { dt { "Requested by" } dd { (word(serde_json::to_value(stop)).replace('_', " ")) } } }
                @if let Some(sender) = sender { div { dt { "Signal sent by" } dd { (sender) } } }
                @if let Some(reason) = &verdict.evidence.platform { div { dt { "Platform's reason" } dd { (display::sanitize(reason)) } } }
                @if let Some(ms) = verdict.duration_ms { div { dt { "Duration" } dd { (display::format_duration(ms)) } } }
                @if let Some(bytes) = memory_peak_bytes { div { dt { "Peak memory" } dd { (memory_amount(*bytes)) } } }
                @if let Some(bytes) = cgroup_memory_peak_bytes { div { dt { "Peak memory of the control group" } dd { (memory_amount(*bytes)) } } }
                @for gpu in gpus { div { dt { "GPU " (gpu.index) " at the end" } dd { (last_reading(gpu)) } } }
                @if let Some(bytes) = memory_limit_bytes { div { dt { "Memory limit" } dd { (memory_amount(*bytes)) } } }
                @if let Some(kills) = oom_kills { div { dt { "Out-of-memory kills" } dd { (kills) } } }
                @if !verdict.evidence.leftovers.is_empty() {
                    div { dt { "Remaining processes" } dd { (display::sanitize(&verdict.evidence.leftovers.join(", "))) } }
                }
            }
            @if !verdict.evidence.stderr_tail.is_empty() {
                details { summary { "Last lines of standard error" } pre.file tabindex="0" { (display::sanitize(&verdict.evidence.stderr_tail)) } }
            }
            @if !verdict.evidence.stdout_tail.is_empty() {
                details { summary { "Last lines of standard output" } pre.file tabindex="0" { (display::sanitize(&verdict.evidence.stdout_tail)) } }
            }
        }
    }
}

/// Returns whether a verdict's message states the exit code or the signal.
fn has_exit(message: &str, exit: TrialExit) -> bool {
    let (words, number): (&[&str], u8) = match exit {
        TrialExit::Code(code) => (&["code", "with"], code),
        TrialExit::Signal(signal) => (&["signal"], signal),
    };
    let number = number.to_string();
    let mut pairs = message.split([' ', ',', '.', ':', ';', '(', ')']);
    let mut before = "";
    pairs.any(|word| {
        let found = word == number && words.contains(&before);
        before = word;
        found
    })
}

/// Returns the last known reading of a GPU, as text.
fn last_reading(gpu: &GpuSample) -> String {
    let memory = gpu.memory_used_bytes.map(|used| match gpu.memory_total_bytes {
        Some(total) => format!("{} of {}", memory_amount(used), memory_amount(total)),
        None => memory_amount(used),
    });
    let use_of = gpu.utilization_percent.map(|percent| format!("{percent} % in use"));
    let temperature = gpu.temperature_celsius.map(|degrees| format!("{degrees} °C"));
    let name = gpu.name.as_deref().map(display::sanitize);
    [name, memory, use_of, temperature].into_iter().flatten().collect::<Vec<_>>().join(", ")
}

fn memory_amount(bytes: u64) -> String {
    display::bytes(bytes.to_string().parse().unwrap_or(f64::NAN))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_evidence_of_a_verdict_is_shown() {
        let verdict = json!({
            "cause": "stopped", "class": "none", "confidence": "certain", "message": "it was stopped",
            "exit": {"signal": 15}, "stop": "user", "duration_ms": 65000,
            "evidence": {
                "cgroup_memory_peak_bytes": 3_000_000, "signal_sender": {"pid": 7, "uid": 0, "name": "<b>"},
                "platform": "Preempting: <u>",
                "gpus": [{"index": 1, "name": "H200", "memory_used_bytes": 2_000_000_000_u64, "memory_total_bytes": 4_000_000_000_u64}],
            },
        });
        let verdict: Verdict = serde_json::from_value(verdict).unwrap();
        let page = verdict_section(&verdict, "best").into_string();
        for part in [
            "<dd>signal 15</dd>",
            "<dt>Requested by</dt><dd>user</dd>",
            "<dd>&lt;b&gt;, process 7 of user 0</dd>",
            "<dt>Platform's reason</dt><dd>Preempting: &lt;u&gt;</dd>",
            "<dt>Duration</dt><dd>1 min 5 s</dd>",
            "<dd>3.0 MB</dd>",
            "<dt>GPU 1 at the end</dt><dd>H200, 2.0 GB of 4.0 GB</dd>",
        ] {
            assert!(page.contains(part), "{part} in {page}");
        }
    }

    #[test]
    fn a_verdict_states_each_fact_once() {
        let verdict = |cause: &str, message: &str, exit: Value| -> String {
            let verdict = json!({"cause": cause, "class": "none", "confidence": "certain", "message": message, "exit": exit, "evidence": {}});
            verdict_section(&serde_json::from_value(verdict).unwrap(), "best").into_string()
        };
        let (code, signal) = (json!({"code": 0}), json!({"signal": 9}));
        #[rustfmt::skip]
        let table = [
            ("succeeded", "The trial exited with code 0.",    &code,   [false, false]),
            ("succeeded", "it exited with 0",                 &code,   [false, false]),
            ("succeeded", "it ran with 10 workers",           &code,   [false, true]),
            ("stopped",   "it then exited with code 0",       &code,   [true, false]),
            ("oom-kernel", "killed by signal 9, out of memory", &signal, [true, false]),
            ("signal",    "the kernel ended it",              &signal, [true, true]),
        ];
        for (cause, message, exit, shown) in table {
            let page = verdict(cause, message, exit.clone());
            let found = ["<dt>Cause</dt>", "<dt>Ended by</dt>"].map(|part| page.contains(part));
            assert_eq!(found, shown, "{cause}, {message}: {page}");
            assert!(page.contains(message), "{page}");
        }
    }
}
