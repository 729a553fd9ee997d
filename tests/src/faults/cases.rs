//! Faults with a name, each with its own expectation.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;

use super::harness::{Harness, pause};
use super::network_state::{Fault, NetworkState};
use super::plan::{AgentRestart, FaultPlan};
use super::verification;
use crate::{Gate, Outcome, Search, SmallDisk, TestBed, WAIT_TIMEOUT, wait_for};

/// A plan without faults.
fn plan_without_faults(trials: u32, steps: usize) -> FaultPlan {
    FaultPlan {
        seed: 0,
        trials,
        steps,
        burst: 1,
        flush_ms: 5_000,
        early_kill_ms: None,
        agent_restart: AgentRestart::Never,
        spool_kib: None,
        non_loopback: false,
        rounds: Vec::new(),
    }
}

/// The event that ends a full disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskRelief {
    /// Space is freed.
    SpaceFreed,
    /// The manager is stopped, space is freed, and the experiment is resumed.
    Restart,
}

/// The form of a manager's outage.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outage {
    /// Connections are refused.
    Refused,
    /// Every request is answered with 503.
    Status503,
}

/// Runs a trial with 200 metrics and 200 lines over about ten seconds, with no manager from the fourth second
/// to the ninth. NNI 3.0 loses 100 of each.
pub fn check_outage(kind: Outage) {
    // The reports that accumulate during the outage make a large batch.
    let plan = FaultPlan { non_loopback: true, ..plan_without_faults(1, 200) };
    let mut harness = Harness::start(&plan);
    let network = match kind {
        Outage::Refused => NetworkState::Refusing,
        Outage::Status503 => NetworkState::Always(Fault::Answer503WithoutRetryAfter),
    };
    let began = Instant::now();
    for step in 0..200_u32 {
        match step {
            80 => harness.proxy.set_network_state(network),
            180 => harness.proxy.set_network_state(NetworkState::Healthy),
            _ => {}
        }
        let before = harness.release_steps(1);
        harness.wait_for_steps(before, 1);
        // The pace of the output is part of the test. No wait depends on it.
        let due = Duration::from_millis(50) * (step + 1);
        pause(u64::try_from(due.saturating_sub(began.elapsed()).as_millis()).unwrap_or(0));
    }
    let outcome = harness.finish();
    assert!(harness.proxy.fault_counts().1 > 0, "no request passed the proxy");
    assert!(harness.proxy.compressed_requests() > 0, "no request was compressed");
    verification::verify(&harness, &plan, &outcome);
}

/// Answers every request with an error until the agent has ended. The trial must still succeed, the agent
/// must end in time, and the reports of its spool must be delivered afterwards.
pub fn check_manager_that_always_fails() {
    let plan = FaultPlan { flush_ms: 300, ..plan_without_faults(1, 200) };
    let mut harness = Harness::start(&plan);
    harness.proxy.set_network_state(NetworkState::Always(Fault::Answer503WithoutRetryAfter));
    let before = harness.release_steps(200);
    harness.wait_for_steps(before, 200);
    // When the agent gives up, the manager starts a delivery of its spool. The network must then work again.
    wait_for("the agent to end", WAIT_TIMEOUT, || {
        let words = harness.bed.processes().into_iter().map(|(_, words)| words);
        words.into_iter().all(|words| !words.contains("trialkeeper run")).then_some(())
    });
    let outcome = harness.finish();
    verification::verify(&harness, &plan, &outcome);
}

/// Sets the clocks of manager and agent forwards and back, between any two metrics.
pub fn check_clock_jumps() {
    let plan = plan_without_faults(1, 8);
    let mut harness = Harness::start(&plan);
    for (step, seconds) in (0_u8..).zip([0, 86_400, -86_400, 31_536_000, -30, 3_600, 0, -1]) {
        harness.set_clock(false, seconds);
        harness.set_clock(true, -seconds);
        let before = harness.release_steps(1);
        harness.wait_for_steps(before, 1);
        wait_for("the metric", WAIT_TIMEOUT, || {
            let trial = &harness.processes()[0].trial;
            (verification::stored_values(&harness.bed, &harness.id, trial).len()
                > usize::from(step))
            .then_some(())
        });
    }
    let outcome = harness.finish();
    verification::verify(&harness, &plan, &outcome);
    let times = verification::report_times(&harness.bed, &harness.id);
    let day = 80_000_000;
    let jumped = |times: &[i64]| times.windows(2).any(|two| (two[0] - two[1]).abs() > day);
    assert!(
        jumped(&times.observed) && jumped(&times.stored),
        "the recorded times do not jump: {times:?}"
    );
}

/// The durations of a restart with many running trials.
#[derive(Debug, Clone, Copy)]
pub struct RestartTimes {
    /// From the kill to the first new metric in the store.
    pub back_after: Duration,
    /// From the start of `resume` until the store contains all metrics that the trials printed during the
    /// outage.
    pub caught_up_after: Duration,
}

/// Kills a manager with `trials` running trials, and resumes the experiment after each trial has printed
/// more. No trial may be started again, and no metric may be lost.
pub fn check_restart(trials: u32) -> RestartTimes {
    let plan = plan_without_faults(trials, 4);
    let mut harness = Harness::start(&plan);
    let all = usize::try_from(trials).expect("the number of trials fits");
    // One step per trial on average. The distribution is random.
    let before = harness.release_steps(all);
    harness.wait_for_steps(before, all);
    assert!(harness.kill_manager(), "the manager had ended before the kill");
    let killed = Instant::now();
    let before = harness.release_steps(all);
    harness.wait_for_steps(before, all);
    let resumed = Instant::now();
    harness.resume();
    let stored = || {
        let processes = harness.processes();
        let trials = processes.iter().map(|process| process.trial.as_str());
        trials
            .map(|trial| verification::stored_values(&harness.bed, &harness.id, trial).len())
            .sum::<usize>()
    };
    let had = stored();
    let back_after = wait_for("the first new metric", WAIT_TIMEOUT, || {
        (stored() > had || had == 2 * all).then(|| killed.elapsed())
    });
    let caught_up_after =
        wait_for("all metrics", WAIT_TIMEOUT, || (stored() == 2 * all).then(|| resumed.elapsed()));
    assert_eq!(harness.processes().len(), all, "a trial was started again");
    let outcome = harness.finish();
    verification::verify(&harness, &plan, &outcome);
    RestartTimes { back_after, caught_up_after }
}

/// Fills the disk of the store while some trials run and others wait. The manager must not acknowledge what
/// it cannot store, must start no trial, and must report the problem. It must continue when space is free.
pub fn check_full_disk(relief: DiskRelief) {
    let bed = TestBed::new();
    let disk = SmallDisk::mount(&bed.data_folder(), "size=32m");
    let gate = Gate::new(&bed.path("gate"));
    // More metrics than the free space in the database's log can hold.
    let steps = 200;
    let script = format!(
        "#!/bin/sh\necho \"$NNI_TRIAL_JOB_ID\" >>'{0}/started'\nfor step in $(seq {steps}); do\n\
         read -r _ <'{0}/gate'\necho \"score=$step\"\necho x >>'{0}/taken'\ndone\n",
        bed.folder().display()
    );
    bed.write_script("code/trial.sh", &script);
    let search = Search::new("exec ./trial.sh", 4).with("trialConcurrency", 2);
    let mut command = search.command(&bed);
    // The test covers only the store, so the agents' spools are on another disk.
    bed.write_script(
        "agent",
        &format!(
            "#!/bin/sh\n[ \"$1\" = run ] || exec '{0}' \"$@\" --flush 300ms\nfor word; do case $word in {1}/*/parameter*) \
             mkdir -p '{2}'/\"${{word#{1}/}}.spool\"; ln -sfn '{2}'/\"${{word#{1}/}}.spool\" \
             \"${{word%/*}}/spool\" ;; esac; done\nexec '{0}' \"$@\"\n",
            bed.program_folder().join("trialkeeper").display(),
            bed.data_folder().display(),
            bed.path("spools").display(),
        ),
    );
    command.arg("--agent").arg(bed.path("agent"));
    let manager = bed.start(&mut command);
    let lines = |name: &str| bed.read(name).lines().count();
    wait_for("two trials", WAIT_TIMEOUT, || (lines("started") == 2).then_some(()));
    let id = wait_for("the experiment", WAIT_TIMEOUT, || {
        let entry = std::fs::read_dir(bed.data_folder()).ok()?.flatten().next()?;
        entry.file_name().into_string().ok()
    });
    let stored = || {
        let trials = bed.read("started");
        trials
            .lines()
            .map(|trial| verification::stored_values(&bed, &id, trial).len())
            .sum::<usize>()
    };
    gate.release(3);
    wait_for("three metrics", WAIT_TIMEOUT, || (stored() == 3).then_some(()));

    // An open read transaction prevents a checkpoint, which would free space in the log.
    let reader = rusqlite::Connection::open(bed.data_folder().join(&id).join("trialkeeper.db"))
        .expect("the database exists");
    // Without this, the manager would write the log from its beginning again, within the space that it
    // already has.
    reader
        .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
        .expect("a checkpoint is possible");
    reader.execute_batch("BEGIN; SELECT count(*) FROM trial").expect("the database can be read");
    // This fills the disk completely, including the rest of the last page.
    disk.fill();
    gate.release(2 * steps - 3);
    wait_for("both trials' last steps", WAIT_TIMEOUT, || {
        (lines("taken") == 2 * steps).then_some(())
    });
    let url = || std::fs::read_to_string(bed.data_folder().join(&id).join("manager.url")).ok();
    let url = url().expect("the file was written before the disk was full");
    let (status, health) =
        wait_for("the manager to report that it is degraded", WAIT_TIMEOUT, || {
            let (status, body) = crate::http_get(url.trim(), "/healthz")?;
            (status == 503).then_some((status, body))
        });
    let health: Value = serde_json::from_str(&health).expect("health is JSON");
    assert_eq!((status, health["status"].as_str()), (503, Some("degraded")), "{health}");
    let reason = health["reason"].as_str().unwrap_or_default().to_owned();
    assert!(reason.contains("no space is left"), "{reason}");
    // The trials end, and the store cannot record their ends.
    wait_for("the agents to end", WAIT_TIMEOUT, || {
        let words = bed.processes().into_iter().map(|(_, words)| words);
        words.into_iter().all(|words| !words.contains("trialkeeper r")).then_some(())
    });
    // Long enough for several failed attempts to write.
    pause(2_500);
    assert_eq!(lines("started"), 2, "a trial was started");
    assert!(stored() < 2 * steps, "all metrics were stored on a full disk");
    assert!(manager.stderr().contains("cannot be written"), "{}", manager.stderr());
    // A user's request in this state fails at once with the reason.
    let trial = bed.read("started").lines().next().unwrap_or_default().to_owned();
    let mut stop = bed.manager_command();
    stop.args(["trial", "stop", &trial, "--experiment", &id, "--data-dir"]).arg(bed.data_folder());
    let refused = bed.start(&mut stop).finish(WAIT_TIMEOUT);
    assert!(
        refused.code != Some(0) && refused.stderr.contains("was not carried out"),
        "{refused:?}"
    );
    assert!(refused.stderr.contains("no space is left"), "{}", refused.stderr);

    drop(reader);
    let manager = match relief {
        DiskRelief::SpaceFreed => {
            disk.remove_filler();
            manager
        }
        DiskRelief::Restart => {
            manager.signal(Signal::SIGINT);
            let left = manager.finish(WAIT_TIMEOUT);
            assert_eq!(left.code, Some(130), "{}", left.stderr);
            assert!(left.stderr.contains("was not stopped, because"), "{}", left.stderr);
            disk.remove_filler();
            let mut resume = Outcome::resume_command(&bed, &id);
            bed.start(resume.arg("--agent").arg(bed.path("agent")))
        }
    };
    gate.release(2 * steps);
    let outcome = Outcome::parse(manager.finish(WAIT_TIMEOUT));
    outcome.expect_done(4, 0);
    if relief == DiskRelief::SpaceFreed {
        assert!(
            outcome.stderr.contains("no space is left"),
            "the problem was not reported: {}",
            outcome.stderr
        );
    }
    for trial in &outcome.trials {
        let expected: Vec<Value> = (1..=steps).map(Value::from).collect();
        assert_eq!(trial.intermediate, expected, "{trial:?}");
    }
}
