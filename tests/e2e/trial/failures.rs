//! Failing trials: each one is FAILED with a visible reason, and the search continues.

use trialkeeper_tests::{Outcome, Search, TestBed, WAIT_TIMEOUT};

#[test]
fn a_failing_trial_does_not_end_the_search() {
    let bed = TestBed::new();
    bed.write_script(
        "code/odd.sh",
        r#"#!/bin/sh
case $NNI_TRIAL_SEQ_ID in
*[13579]) echo "no luck with number $NNI_TRIAL_SEQ_ID" >&2; exit 7;;
*) echo "score=0.$NNI_TRIAL_SEQ_ID";;
esac
"#,
    );
    let search = Search::new("./odd.sh", 6).with("trialConcurrency", 2).run(&bed);
    search.expect_done(3, 3);
    for trial in &search.trials {
        let state = if trial.sequence % 2 == 1 { "FAILED" } else { "SUCCEEDED" };
        assert_eq!(trial.state, state, "{trial:?}");
        assert_eq!(trial.final_result.is_null(), state == "FAILED", "{trial:?}");
    }
    assert_eq!(search.best.as_ref().unwrap().sequence, 4);
    for sequence in [1, 3, 5] {
        let failed = &search.trial(sequence).id;
        let shown = search.stderr.contains(failed.as_str())
            && search.stderr.contains(&format!("no luck with number {sequence}"));
        assert!(shown, "the last lines of {failed} are not shown:\n{}", search.stderr);
    }
    assert!(search.stderr.contains('7'), "the exit code is not shown:\n{}", search.stderr);
}

#[test]
fn a_search_in_which_every_trial_fails_exits_with_1() {
    #[rustfmt::skip]
    let table = [
        ("an exit code",          "echo out; exit 3",              vec!["3", "out"]),
        ("a signal",              "kill -SEGV $$",                 vec!["SIGSEGV"]),
        ("no such command",       "./there-is-no-such-program",    vec!["127", "there-is-no-such-program"]),
        ("no such word",          "no-such-word --flag",           vec!["127", "no-such-word"]),
        ("not executable",        "./text",                        vec!["126", "text"]),
        ("an unbalanced quote",   "echo 'oops",                    vec!["2"]),
        ("a metric, then failure", "echo score=1; exit 1",         vec!["1"]),
    ];
    for (case, command, shown) in table {
        let bed = TestBed::new();
        bed.write("code/text", "not a program\n");
        let search = Search::new(command, 2).with("maxConsecutiveFailures", 0).run(&bed);
        search.expect_done(0, 2);
        assert!(search.best.is_none(), "{case}");
        for word in shown {
            assert!(search.stderr.contains(word), "{case}: {word} not in\n{}", search.stderr);
        }
    }
}

#[test]
fn an_agent_that_does_not_start_has_a_reason() {
    let bed = TestBed::new();
    let search = Search::new("true", 1);
    let mut command = search.command(&bed);
    let outcome =
        Outcome::parse(bed.start(command.env("TRIALKEEPER_GRACE", "bogus")).finish(WAIT_TIMEOUT));
    outcome.expect_done(0, 1);
    let why = "the agent did not start: invalid value 'bogus'";
    assert!(outcome.stderr.contains(why), "{}", outcome.stderr);
}

#[test]
fn a_search_without_a_result_exits_with_1_and_the_remedy() {
    let bed = TestBed::new();
    let search = Search::new("true", 1).run(&bed);
    search.expect_done(1, 0);
    assert_eq!(search.code, 1, "{search:#?}");
    assert!(search.stderr.contains("print a result as name=value"), "{}", search.stderr);
    assert!(search.trial(0).final_result.is_null());
    assert!(search.trial(0).intermediate.is_empty());
    assert!(search.best.is_none());
}

#[test]
fn a_trial_that_exceeds_its_duration_is_ended() {
    let bed = TestBed::new();
    let search = Search::new("exec sleep 1000", 2).with("maxTrialDuration", "1s").run(&bed);
    assert_eq!((search.state.as_str(), search.trials.len()), ("DONE", 2), "{search:#?}");
    for trial in &search.trials {
        // NNI's state of a trial that exceeded its duration.
        assert_eq!(trial.state, "EARLY_STOPPED", "{search:#?}");
    }
    bed.wait_until_empty();
}
