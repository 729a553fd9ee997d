//! The GPUs of machines behind SSH: their distribution among trials, other users and experiments.

use std::collections::BTreeSet;

use nix::sys::signal::Signal;
use serde_json::json;
use trialkeeper_tests::{Gate, Machines, Outcome, TestBed, WAIT_TIMEOUT, wait_for};

use super::gated_trial::{TRAIN_SCRIPT, expect_complete_output, wait_for_starts};
use super::remote::search;

/// A fake `nvidia-smi` of a machine. `gpus` are pairs of an index and a letter, and the command `in_use` prints the
/// letters of the GPUs on which programs compute. The UUIDs differ between machines and beds.
fn nvidia_smi(gpus: &str, in_use: &str) -> String {
    format!(
        "#!/bin/sh\nmachine=\"${{TEST_BED##*/}}-$MACHINE\"\n\
         case $1 in\n*index*) printf \"%s, GPU-$machine-%s\\n\" {gpus} ;;\n\
         *) {{ {in_use}; }} | sed \"s/^/GPU-$machine-/\" ;;\nesac\n"
    )
}

#[test]
#[ignore = "needs sshd"]
fn a_trial_sees_only_its_own_gpus() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    bed.write_script("bin/nvidia-smi", &nvidia_smi("0 a 1 b 2 c 3 d", ":"));
    let mut machine = machines.add("one");
    machine["pythonPath"] = json!(bed.path("bin"));
    machine["gpuIndices"] = json!([1, 3]);
    let search = search(&bed, &[machine], 2).with("trialGpuNumber", 1);
    bed.write_script(
        "code/train.sh",
        &format!("{TRAIN_SCRIPT}echo \"$CUDA_VISIBLE_DEVICES\" >>\"$BED/gpus\"\n"),
    );
    let running = search.start(&bed);
    wait_for_starts(&bed, 2);
    gate.release(2);
    expect_complete_output(&bed, &Outcome::parse(running.finish(WAIT_TIMEOUT)), 2);
    let mut gpus: Vec<_> = bed.read("gpus").lines().map(str::to_owned).collect();
    gpus.sort();
    assert_eq!(gpus, ["1", "3"]);
}

#[test]
#[ignore = "needs sshd"]
fn trials_share_the_gpus_of_several_machines() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    // Another program computes on the first GPU of each machine.
    bed.write_script("bin/nvidia-smi", &nvidia_smi("0 a 1 b 2 c", "echo a"));
    let mut both = ["shared", "single"].map(|name| {
        let mut machine = machines.add(name);
        machine["pythonPath"] = json!(bed.path("bin"));
        machine
    });
    // Two trials on each of two GPUs.
    both[0]["gpuIndices"] = json!([0, 2]);
    both[0]["useActiveGpu"] = json!(true);
    both[0]["maxTrialNumberPerGpu"] = json!(2);
    let search = search(&bed, &both, 7).with("trialGpuNumber", 1).with("trialConcurrency", 7);
    let record = "echo \"$MACHINE $CUDA_VISIBLE_DEVICES\" >>\"$BED/gpus\"\ntrap";
    bed.write_script("code/train.sh", &TRAIN_SCRIPT.replacen("trap", record, 1));
    let running = search.start(&bed);
    wait_for_starts(&bed, 6);
    wait_for("the last trial to wait", WAIT_TIMEOUT, || {
        let shown = running.read_api("/api/v1/trials")?.to_string();
        (shown.contains("shared: ") && shown.contains("single: ")).then_some(())
    });
    let mut gpus: Vec<_> = bed.read("gpus").lines().map(str::to_owned).collect();
    gpus.sort();
    assert_eq!(gpus, ["shared 0", "shared 0", "shared 2", "shared 2", "single 1", "single 2"]);
    gate.release(7);
    expect_complete_output(&bed, &Outcome::parse(running.finish(WAIT_TIMEOUT)), 7);
}

#[test]
#[ignore = "needs sshd"]
fn gpus_of_adopted_trials_are_recognized_as_the_search_s() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let busy = bed.path("started").display().to_string();
    let in_use = format!("[ -e '{busy}' ] && echo a && echo b");
    bed.write_script("bin/nvidia-smi", &nvidia_smi("0 a 1 b", &in_use));
    let mut machine = machines.add("one");
    machine["pythonPath"] = json!(bed.path("bin"));
    let running = search(&bed, &[machine], 3).with("trialGpuNumber", 1).start(&bed);
    wait_for_starts(&bed, 2);
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    let id = bed.experiment_id();
    let resumed = Outcome::start_resume(&bed, &id);
    gate.release(3);
    expect_complete_output(&bed, &Outcome::parse(resumed.finish(WAIT_TIMEOUT)), 3);
}

#[test]
#[ignore = "needs sshd"]
fn a_gpu_that_another_user_releases_is_used() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    let gate = Gate::new(&bed.path("gate"));
    let busy = bed.write("busy", "b\n");
    bed.write_script(
        "bin/nvidia-smi",
        &nvidia_smi("0 a 1 b", &format!("cat '{}'", busy.display())),
    );
    let mut machine = machines.add("one");
    machine["pythonPath"] = json!(bed.path("bin"));
    let running = search(&bed, &[machine], 2).with("trialGpuNumber", 1).start(&bed);
    assert_eq!(wait_for_starts(&bed, 1).len(), 1, "another user uses the other GPU");
    bed.write("busy", "");
    wait_for_starts(&bed, 2);
    gate.release(2);
    expect_complete_output(&bed, &Outcome::parse(running.finish(WAIT_TIMEOUT)), 2);
}

/// Neither experiment sees the other's trials in `nvidia-smi`, as in the seconds before a trial computes.
#[test]
#[ignore = "needs sshd"]
fn experiments_that_start_together_never_share_a_gpu() {
    let bed = TestBed::new();
    let machines = Machines::new(&bed);
    bed.write_script("bin/nvidia-smi", &nvidia_smi("0 a 1 b", ":"));
    let mut machine = machines.add("one");
    machine["pythonPath"] = json!(bed.path("bin"));
    let search = search(&bed, &[machine], 6).with("trialGpuNumber", 1);
    bed.write_script(
        "code/train.sh",
        "#!/bin/sh\ngpu=\"$BED/gpu-$CUDA_VISIBLE_DEVICES\"\n\
         mkdir \"$gpu\" || echo \"$CUDA_VISIBLE_DEVICES\" >>\"$BED/shared\"\n\
         echo \"$CUDA_VISIBLE_DEVICES\" >>\"$BED/used\"\necho score=0.5\nsleep 0.3\nrmdir \"$gpu\"\nexit 0\n",
    );
    let mut commands = [search.command(&bed), search.command(&bed)];
    let both = commands.each_mut().map(|command| bed.start(command));
    for running in both {
        Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(6, 0);
    }
    assert_eq!(bed.read("shared"), "", "a GPU was used by two trials at once");
    let used: BTreeSet<String> = bed.read("used").lines().map(str::to_owned).collect();
    assert_eq!(Vec::from_iter(used), ["0", "1"]);
}
