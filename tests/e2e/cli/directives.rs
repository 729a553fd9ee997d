//! The directives of a user to the agent of a running trial.

use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

#[test]
fn a_running_agent_obeys_directives_for_log_level_and_flush() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command = format!("read _ <'{}'; echo score=1", gate.path().display());
    let running = Search::new(&command, 1).start(&bed);
    let log = wait_for("the agent's log", WAIT_TIMEOUT, || {
        let experiments = std::fs::read_dir(bed.data_folder()).ok()?.flatten();
        let mut trials = experiments.filter_map(|one| std::fs::read_dir(one.path()).ok()).flatten();
        trials.find_map(|trial| {
            let log = trial.ok()?.path().join("trialkeeper.log");
            log.exists().then_some(log)
        })
    });
    let trial = log.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let order = |words: &[&str]| {
        let mut command = bed.manager_command();
        command.arg("trial").args(words).arg("--data-dir").arg(bed.data_folder());
        bed.start(&mut command).finish(WAIT_TIMEOUT)
    };
    let log_contains = |words: &str| std::fs::read_to_string(&log).unwrap().contains(words);

    let finished = order(&["log-level", "debug", &trial]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    wait_for("the agent to log more", WAIT_TIMEOUT, || {
        log_contains("log level set to Debug").then_some(())
    });
    assert!(!log_contains("sending buffered output"), "there was no `flush` yet");
    let finished = order(&["flush", &trial]);
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    wait_for("the agent to send", WAIT_TIMEOUT, || {
        log_contains("sending buffered output").then_some(())
    });

    for (words, code, why) in [
        (["log-level", "loud", trial.as_str()], 2, "possible values: error, warn, info, debug"),
        (["log-level", "info", "nobody"], 2, "there is no trial nobody"),
    ] {
        let refused = order(&words);
        assert_eq!(refused.code, Some(code), "{words:?}: {}", refused.stderr);
        assert!(refused.stderr.contains(why), "{words:?}: {}", refused.stderr);
    }
    gate.release(1);
    Outcome::parse(running.finish(WAIT_TIMEOUT)).expect_done(1, 0);
    let late = order(&["flush", &trial]);
    assert_ne!(late.code, Some(0), "an ended trial has no agent");
}
