//! Ctrl-C: trials get SIGTERM, no process is left, and the search can be resumed.

use std::os::unix::process::CommandExt;
use std::process::Command;

use nix::sys::signal::Signal;
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

/// A trial that records its start and waits at the gate. On TERM, it cleans up, which takes a moment, and
/// ends.
const CLEANING_TRIAL: &str = r#"#!/bin/sh
trap 'echo cleaned >>"$BED/cleaned"; exit 143' TERM
echo "$NNI_TRIAL_JOB_ID" >>"$BED/started"
echo score=0.25
# A shell runs its trap only between commands, so the wait is a child that TERM reaches too.
read _ <"$BED/gate"
echo score=0.5
"#;

#[test]
fn ctrl_c_ends_the_trials_with_sigterm_and_resume_finishes_the_search() {
    for (case, signal) in [("Ctrl-C", Signal::SIGINT), ("a service manager", Signal::SIGTERM)] {
        println!("{case}");
        let bed = TestBed::new();
        let gate = Gate::new(&bed.path("gate"));
        bed.write_script("code/polite.sh", CLEANING_TRIAL);
        let search = Search::new(&format!("BED='{}' ./polite.sh", bed.folder().display()), 4)
            .with("trialConcurrency", 2);
        let running = bed.start(search.command(&bed).process_group(0));
        wait_for("two trials to start", WAIT_TIMEOUT, || {
            (bed.read("started").lines().count() == 2).then_some(())
        });

        running.signal_group(signal);
        let finished = running.finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(130), "{}", finished.stderr);
        assert_eq!(bed.read("cleaned").lines().count(), 2, "a trial could not clean up");
        bed.wait_until_empty();

        let id = bed.experiment_id();
        assert!(finished.stderr.contains(&id), "the remedy is missing: {}", finished.stderr);

        gate.release(100);
        let search = Outcome::run_resume(&bed, &id);
        assert_eq!(search.id, id);
        // The two stopped trials ran again, as new attempts.
        search.expect_done(4, 0);
        assert!(search.trials.iter().all(|trial| trial.final_result == 0.5), "{search:#?}");
        assert!(search.trials.iter().all(|trial| trial.intermediate.len() == 2), "{search:#?}");
        bed.wait_until_empty();
    }
}

#[test]
fn a_moved_manager_leaves_its_trials_and_a_stopped_one_does_not() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write_script("code/polite.sh", CLEANING_TRIAL);
    let search = Search::new(&format!("BED='{}' ./polite.sh", bed.folder().display()), 2)
        .with("trialConcurrency", 2);
    let running = bed.start(search.command(&bed).args(["--on-term", "leave"]));
    let started = |trials: usize| {
        wait_for("trials to start", WAIT_TIMEOUT, || {
            (bed.read("started").lines().count() == trials).then_some(())
        });
    };
    started(2);
    running.signal(Signal::SIGTERM);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(143), "{}", finished.stderr);
    assert_eq!(
        String::from_utf8_lossy(&finished.stdout),
        "",
        "an interrupted search has no result"
    );
    assert!(!bed.path("cleaned").exists());

    let id = bed.experiment_id();
    let store = rusqlite::Connection::open(bed.experiment_folder().join("trialkeeper.db")).unwrap();
    let (state, elapsed): (String, i64) = store
        .query_row("SELECT state, elapsed_ms FROM experiment", [], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })
        .unwrap();
    assert_eq!(state, "NO_MORE_TRIAL", "the state must not change");
    assert!(elapsed > 0, "the elapsed time must be stored");
    drop(store);

    // A resumed manager that was asked to stop does stop, even if it gets SIGTERM.
    let mut resume = bed.manager_command();
    resume
        .args(["resume", &id, "--port", "0", "--on-term", "leave", "--data-dir"])
        .arg(bed.data_folder());
    let running = bed.start(&mut resume);
    wait_for("the next manager", WAIT_TIMEOUT, || {
        running.stderr().contains("experiment ").then_some(())
    });
    let mut stop = bed.manager_command();
    stop.args(["experiment", "stop", "--data-dir"]).arg(bed.data_folder());
    let stop = bed.start(&mut stop).finish(WAIT_TIMEOUT);
    assert_eq!(stop.code, Some(0), "{}", stop.stderr);
    running.signal(Signal::SIGTERM);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    assert_eq!(bed.read("cleaned").lines().count(), 2);
    assert_eq!(bed.read("started").lines().count(), 2, "a trial ran twice");
    bed.wait_until_empty();
    drop(gate);
}

/// `nohup` and background jobs of scripts ignore these signals.
#[test]
fn ignored_hup_and_int_stay_ignored() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write_script("code/polite.sh", CLEANING_TRIAL);
    let search = Search::new(&format!("BED='{}' ./polite.sh", bed.folder().display()), 2);
    let wanted = search.command(&bed);
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP INT; exec \"$0\" \"$@\""]).arg(wanted.get_program());
    command.args(wanted.get_args()).current_dir(bed.folder()).env_clear();
    command.envs(wanted.get_envs().filter_map(|(name, value)| Some((name, value?))));
    let running = bed.start(&mut command);
    let started = |trials: usize| {
        wait_for("a trial to start", WAIT_TIMEOUT, || {
            (bed.read("started").lines().count() == trials).then_some(())
        });
    };
    started(1);
    running.signal(Signal::SIGHUP);
    running.signal(Signal::SIGINT);
    gate.release(1);
    started(2);
    assert!(!running.stderr().contains("stopping"), "{}", running.stderr());
    running.signal(Signal::SIGTERM);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "TERM must stop the search: {}", finished.stderr);
    bed.wait_until_empty();
}

#[test]
fn a_second_ctrl_c_does_not_wait_for_a_trial_that_ignores_sigterm() {
    let bed = TestBed::new();
    let _gate = Gate::new(&bed.path("gate"));
    bed.write_script(
        "code/deaf.sh",
        "#!/bin/sh\ntrap '' TERM INT HUP\necho up >>\"$BED/started\"\nwhile :; do read _ <\"$BED/gate\"; done\n",
    );
    let search = Search::new(&format!("BED='{}' ./deaf.sh", bed.folder().display()), 1);
    let running = bed.start(&mut search.command(&bed));
    wait_for("the trial to start", WAIT_TIMEOUT, || {
        (!bed.read("started").is_empty()).then_some(())
    });
    running.signal(Signal::SIGINT);
    wait_for("the reaction to the first Ctrl-C", WAIT_TIMEOUT, || {
        running.stderr().contains("stopping the trials").then_some(())
    });
    // The manager takes a second signal within 50 ms for a repetition, as GNU `timeout` sends it.
    wait_for("the reaction to the second Ctrl-C", WAIT_TIMEOUT, || {
        running.signal(Signal::SIGINT);
        running.stderr().contains("exiting while 1 trial still runs").then_some(())
    });
    // The agent waits for its trial until the end of the grace period.
    assert_eq!(running.finish(WAIT_TIMEOUT).code, Some(130));
    assert!(!bed.processes().is_empty());
}

#[test]
fn commands_report_a_search_without_its_manager() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write_script("code/polite.sh", CLEANING_TRIAL);
    let search = Search::new(&format!("BED='{}' ./polite.sh", bed.folder().display()), 1);
    let running = search.start(&bed);
    wait_for("the trial to start", WAIT_TIMEOUT, || {
        (!bed.read("started").is_empty()).then_some(())
    });
    let stdout_of = |words: &[&str]| {
        let mut command = bed.manager_command();
        let finished = bed
            .start(command.args(words).arg("--data-dir").arg(bed.data_folder()))
            .finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(0), "{words:?}: {}", finished.stderr);
        String::from_utf8(finished.stdout).unwrap()
    };
    let looks = [&["experiment", "ls"][..], &["experiment", "show"], &["top"]];
    for words in looks {
        assert!(
            !stdout_of(words).contains("its manager was killed"),
            "{words:?}: the manager runs"
        );
    }
    let id = bed.experiment_id();
    let mut second = bed.manager_command();
    second.args(["resume", &id, "--port", "0", "--data-dir"]).arg(bed.data_folder());
    let second = bed.start(&mut second).finish(WAIT_TIMEOUT);
    assert_eq!(second.code, Some(2), "{}", second.stderr);
    let address = format!("experiment {id} already runs on http://127.0.0.1:");
    assert!(second.stderr.contains(&address), "{}", second.stderr);
    let process = format!("(pid {})", running.pid());
    assert!(second.stderr.contains(&process), "{}", second.stderr);

    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    for words in looks {
        let shown = stdout_of(words).split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(shown.to_lowercase().contains("interrupted"), "{words:?}: {shown}");
        assert!(shown.contains("its manager was killed"), "{words:?}: {shown}");
        assert!(shown.contains(&format!("trial-manager resume {id}")), "{words:?}: {shown}");
    }
    gate.release(1);
    Outcome::run_resume(&bed, &id).expect_done(1, 0);
    assert!(!stdout_of(&["experiment", "ls"]).contains("its manager was killed"));
    bed.wait_until_empty();
}
