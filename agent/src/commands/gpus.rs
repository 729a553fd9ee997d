//! One reading of all GPUs, for `trialkeeper gpu` and for the doctor.
//!
//! This process calls no NVIDIA library, because a call of the driver can block forever. A separate tool makes the
//! calls, and is killed if it takes too long.

use std::fmt::Write as _;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use trial_protocol::GpuSample;

use crate::cli::Output;
use crate::commands::tools::print;
use crate::observe::sample::amd;
use crate::observe::sample::gpu::{ProbeCommand, ProbeRow, parse_row};

/// The maximum time for a reading. The tool takes seconds on a machine with many GPUs.
const READING_TIMEOUT: Duration = Duration::from_secs(20);

/// The result of one reading of the GPUs.
#[derive(Debug, Clone, PartialEq)]
pub enum GpuReading {
    /// GPUs, at least one.
    Gpus(Vec<GpuSample>),
    /// No GPUs, because there is neither a tool nor a card.
    None,
    /// An error of the tool or the driver.
    Failed(String),
}

/// Runs the command. Returns exit code 0 with GPUs, 1 without.
pub fn main(nvidia_smi: &Path, output: Output) -> ExitCode {
    let reading = read_gpus(nvidia_smi);
    let shown = match output {
        Output::Text => render_text(&reading),
        Output::Json => format!("{}\n", to_json(&reading)),
    };
    match (reading, print(&shown)) {
        (GpuReading::Gpus(_), code) => code,
        (GpuReading::None | GpuReading::Failed(_), _) => ExitCode::FAILURE,
    }
}

/// Reads NVIDIA's GPUs, or AMD's if there are none.
pub fn read_gpus(nvidia_smi: &Path) -> GpuReading {
    match query_tool(nvidia_smi, READING_TIMEOUT) {
        GpuReading::None => match amd::read_gpus(Path::new("/")) {
            found if found.is_empty() => GpuReading::None,
            found => GpuReading::Gpus(found),
        },
        reading @ (GpuReading::Gpus(_) | GpuReading::Failed(_)) => reading,
    }
}

fn query_tool(nvidia_smi: &Path, timeout: Duration) -> GpuReading {
    let mut probe = ProbeCommand::new(nvidia_smi, Duration::from_secs(1));
    probe.args.retain(|word| !word.starts_with("--loop"));
    let started = Command::new(&probe.program)
        .args(&probe.args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let tool = nvidia_smi.display();
    match started {
        Ok(child) => match read_output(child, timeout) {
            Some(output) => parse_output(&output),
            None => GpuReading::Failed(format!("{tool} does not answer; the driver hangs")),
        },
        Err(error) if error.kind() == io::ErrorKind::NotFound => GpuReading::None,
        Err(error) => GpuReading::Failed(format!("cannot start {tool}: {error}")),
    }
}

/// Returns everything that `child` prints, or `None` if it takes longer than `timeout`.
fn read_output(mut child: Child, timeout: Duration) -> Option<String> {
    let (sender, receiver) = mpsc::channel();
    let pipes = (child.stdout.take(), child.stderr.take());
    // The thread is never joined, because a tool that hangs in the driver cannot even be killed.
    thread::spawn(move || {
        let mut bytes = Vec::new();
        // Output before a read error is used.
        if let (Some(mut stdout), Some(mut stderr)) = pipes {
            stdout.read_to_end(&mut bytes).ok();
            stderr.read_to_end(&mut bytes).ok();
        }
        sender.send(String::from_utf8_lossy(&bytes).into_owned()).ok();
    });
    let output = receiver.recv_timeout(timeout).ok();
    if output.is_none() {
        // Ignored: the tool may have ended since the timeout.
        child.kill().ok();
    } else {
        child.wait().ok();
    }
    output
}

/// PURE: parses the output of the tool.
fn parse_output(output: &str) -> GpuReading {
    let mut found = Vec::new();
    for line in output.lines() {
        match parse_row(line) {
            ProbeRow::Reading(gpu) => found.push(gpu),
            ProbeRow::Lost { line } => return GpuReading::Failed(line),
            ProbeRow::Other => {}
        }
    }
    if found.is_empty() {
        let line = output.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        return GpuReading::Failed(format!("nvidia-smi printed {line:.200}"));
    }
    GpuReading::Gpus(found)
}

fn to_json(reading: &GpuReading) -> serde_json::Value {
    match reading {
        GpuReading::Gpus(gpus) => serde_json::json!({"gpus": gpus}),
        GpuReading::None => serde_json::json!({"gpus": []}),
        GpuReading::Failed(why) => serde_json::json!({"gpus": [], "error": why}),
    }
}

/// PURE: returns the reading for people, with a dash for each unknown value.
fn render_text(reading: &GpuReading) -> String {
    let gpus = match reading {
        GpuReading::Gpus(gpus) => gpus,
        GpuReading::None => return "no GPUs\n".to_owned(),
        GpuReading::Failed(why) => return format!("GPUs cannot be read: {why}\n"),
    };
    let mut text = format!(
        "{:<3}  {:<28}  {:>4}  {:>19}  {:>13}  {:>5}  {:>8}\n",
        "GPU", "name", "use", "memory", "power", "temp", "clock"
    );
    for gpu in gpus {
        let name = gpu.name.as_deref().unwrap_or("-");
        let of = |used: Option<String>, total: Option<String>, unit: &str| match (used, total) {
            (Some(used), Some(total)) => format!("{used} / {total} {unit}"),
            (Some(used), None) => format!("{used} {unit}"),
            (None, _) => "-".to_owned(),
        };
        let mib = |bytes: Option<u64>| bytes.map(|bytes| (bytes >> 20).to_string());
        let whole = |number: Option<f64>| number.map(|number| format!("{number:.0}"));
        let with = |value: Option<String>, unit: &str| {
            value.map_or_else(|| "-".to_owned(), |value| format!("{value}{unit}"))
        };
        let memory = of(mib(gpu.memory_used_bytes), mib(gpu.memory_total_bytes), "MiB");
        let power = of(whole(gpu.power_watts), whole(gpu.power_limit_watts), "W");
        let usage = with(whole(gpu.utilization_percent), "%");
        let temperature = with(whole(gpu.temperature_celsius), "C");
        let clock = with(gpu.sm_clock_mhz.map(|clock| clock.to_string()), " MHz");
        writeln!(
            text,
            "{:<3}  {name:<28.28}  {usage:>4}  {memory:>19}  {power:>13}  {temperature:>5}  {clock:>8}",
            gpu.index
        )
        .expect("writing to a String cannot fail");
    }
    text
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const ROW: &str =
        "0, GPU-1, 37, 1024, 81559, 310.5, 700.00, 41, 1980, 0, Disabled, NVIDIA H200";

    fn gpu() -> GpuSample {
        match parse_row(ROW) {
            ProbeRow::Reading(gpu) => gpu,
            ProbeRow::Lost { .. } | ProbeRow::Other => panic!("a row"),
        }
    }

    #[test]
    fn a_tool_is_run_once_with_a_timeout() {
        let dir = tempfile::tempdir().unwrap();
        let trouble = |text: &str| GpuReading::Failed(text.to_owned());
        let hang = dir.path().join("hang");
        let table = [
            ("well", GpuReading::Gpus(vec![gpu()])),
            ("lost", trouble("GPU is lost")),
            ("error", trouble("nvidia-smi printed no permission")),
            ("silent", trouble("nvidia-smi printed nothing")),
            ("hang", trouble(&format!("{} does not answer; the driver hangs", hang.display()))),
        ];
        for (name, reading) in table {
            let tool = dir.path().join(name);
            // A link, because a file that was just written may still be open in a child of another test.
            symlink(concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/gpu/tool.sh"), &tool).unwrap();
            let timeout = if name == "hang" { Duration::from_millis(50) } else { READING_TIMEOUT };
            assert_eq!(query_tool(&tool, timeout), reading, "{name}");
        }
        assert_eq!(query_tool(&dir.path().join("absent"), READING_TIMEOUT), GpuReading::None);
    }

    #[test]
    fn a_reading_is_shown_for_people_and_programs() {
        let bare = GpuSample { index: 1, ..GpuSample::default() };
        let reading = GpuReading::Gpus(vec![gpu(), bare]);
        let expected = "\
GPU  name                           use               memory          power   temp     clock
0    NVIDIA H200                    37%     1024 / 81559 MiB    310 / 700 W    41C  1980 MHz
1    -                                -                    -              -      -         -
";
        assert_eq!(render_text(&reading), expected);
        assert_eq!(to_json(&reading)["gpus"][0]["index"], 0);
        assert_eq!(to_json(&GpuReading::None).to_string(), r#"{"gpus":[]}"#);
        assert_eq!(to_json(&GpuReading::Failed("x".to_owned()))["error"], "x");
    }
}
