//! Observation from outside: samples, GPUs, stalls.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;
use trial_protocol::{Cause, Class, Report, ReportBody, Sample};

use crate::manager::Manager;
use crate::test_agent::{TestAgent, is_alive, wait_until};

fn samples(reports: &[Report]) -> Vec<Sample> {
    let sample = |report: &Report| {
        let ReportBody::Sample(sample) = &report.body else { return None };
        Some((**sample).clone())
    };
    reports.iter().filter_map(sample).collect()
}

/// Returns a row of `nvidia-smi`.
fn gpu(index: u32, uuid: &str, used: u32, watts: u32) -> String {
    format!(
        "{index}, {uuid}, {used}, 1024, 81920, {watts}, 700, 60, 1980, 0, Disabled, NVIDIA H200"
    )
}

/// Creates a `fake-smi` that prints the same rows repeatedly.
fn create_fake_smi(agent: &TestAgent, rows: &[&str]) {
    let rows = rows.join("\n");
    let script =
        format!("#!/bin/sh\necho $$ > probe\nwhile :; do echo '{rows}'; sleep 0.05; done\n");
    let program = agent.dir.path().join("fake-smi");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
}

#[test]
fn samples_contain_processes_and_gpus() {
    let manager = Manager::start(vec![]);
    let options = ["--sample-interval", "100ms", "--gpu-program", "./fake-smi"];
    let agent = TestAgent::shell(&manager.options(&options), "sleep 1000 & exec sleep 1000");
    create_fake_smi(&agent, &[&gpu(0, "GPU-5f0c", 97, 350), &gpu(1, "GPU-1d1e", 0, 90)]);
    let running = agent.start();
    let probe = running.wait_for_pid("probe");
    let is_whole = |sample: &&Sample| {
        let gpu = sample.gpus.first();
        gpu.is_some_and(|gpu| gpu.utilization_percent == Some(97.0))
            && sample.process.as_ref().is_some_and(|process| process.processes == 2)
    };
    wait_until("samples with both", || {
        samples(&manager.state.lock().unwrap().bulk).iter().filter(is_whole).count() >= 3
    });
    running.send_signal(Signal::SIGTERM);
    let ended = running.wait();
    assert_eq!(ended.code, Some(143));
    let evidence = ended.verdict().evidence;
    assert_eq!(evidence.gpus[0].uuid.as_deref(), Some("GPU-5f0c"));
    assert!(evidence.gpu_idle_ms.keys().eq(["GPU-1d1e"]), "{:?}", evidence.gpu_idle_ms);
    assert!(evidence.memory_peak_bytes.is_some());
    assert!(evidence.leftovers.is_empty(), "the probe is the agent's: {:?}", evidence.leftovers);
    wait_until("the probe is gone too", || !is_alive(probe));
}

#[test]
fn a_stalled_trial_is_reported_and_stopped_on_request() {
    let options = ["--sample-interval", "100ms", "--stall-after", "500ms", "--stop-on-stall"];
    let ended = TestAgent::shell(&options, "exec sleep 1000").run();
    assert_eq!(ended.code, Some(143));
    assert_eq!(ended.verdict().cause, Cause::Stalled);
    assert!(ended.stderr.contains("warning: No metric, no output"), "{}", ended.stderr);
}

#[test]
fn work_on_a_hidden_gpu_does_not_count() {
    let options = ["--sample-interval", "100ms", "--stall-after", "2s", "--stop-on-stall"];
    let options = [&options[..], &["--gpu-program", "./fake-smi"]].concat();
    // The trial prints until there are readings, so that it does not stall before.
    let line = "until [ -s probe ]; do echo waiting; sleep 0.05; done; exec sleep 1000";
    let mut agent = TestAgent::shell(&options, line);
    create_fake_smi(&agent, &[&gpu(0, "GPU-5f0c", 97, 350), &gpu(1, "GPU-1d1e", 0, 90)]);
    agent.command.env("CUDA_VISIBLE_DEVICES", "1");
    let verdict = agent.run().verdict();
    assert_eq!(verdict.cause, Cause::Stalled);
    let uuids = verdict.evidence.gpus.iter().map(|gpu| gpu.uuid.as_deref());
    assert!(uuids.eq([Some("GPU-1d1e")]), "{:?}", verdict.evidence.gpus);
}

#[test]
fn a_trial_with_idle_or_hanging_gpus_is_stopped_on_request() {
    let (idle, hung) = (gpu(0, "GPU-1", 0, 90), gpu(0, "GPU-1", 100, 120));
    #[rustfmt::skip]
    let table = [
        (["--gpu-idle-after", "300ms", "--stop-on-gpu-idle"], &idle, Class::UserError, "GPU-1 has had no work"),
        (["--gpu-hang-after", "300ms", "--stop-on-gpu-hang"], &hung, Class::Transient, "GPU-1 has been fully used"),
    ];
    for (stop, row, class, warning) in table {
        let options = ["--sample-interval", "100ms", "--gpu-program", "./fake-smi"];
        // Work on the processor does not count as work on a GPU.
        let agent = TestAgent::shell(&[&options[..], &stop].concat(), "while :; do :; done");
        create_fake_smi(&agent, &[row]);
        let ended = agent.run();
        let verdict = ended.verdict();
        assert_eq!((ended.code, verdict.cause), (Some(143), Cause::Stalled), "{stop:?}");
        assert_eq!(verdict.class, class, "{}", verdict.message);
        assert!(verdict.message.contains(stop[2]), "{}", verdict.message);
        assert!(ended.stderr.contains(warning), "{}", ended.stderr);
        assert_eq!(verdict.evidence.gpus[0].uuid.as_deref(), Some("GPU-1"));
    }
}
