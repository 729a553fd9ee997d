//! `trial logs -f` of a trial that outlives its manager.

use nix::sys::signal::Signal;
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

#[test]
fn output_is_followed_from_one_manager_to_the_next_without_a_gap() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let command = "echo one €; echo >>../waits; read _ <../gate; echo two; echo score=1";
    let running = Search::new(command, 1).start(&bed);
    wait_for("the trial to wait", WAIT_TIMEOUT, || (!bed.read("waits").is_empty()).then_some(()));
    let logs = || {
        let mut command = bed.manager_command();
        bed.start(command.args(["trial", "logs", "-f", "0", "--data-dir"]).arg(bed.data_folder()))
    };
    let following = logs();
    wait_for("the first line", WAIT_TIMEOUT, || {
        (following.stdout() == "one €\n".as_bytes()).then_some(())
    });
    running.signal(Signal::SIGKILL);
    running.finish(WAIT_TIMEOUT);
    // A new reader gets the stored output and ends.
    let late = logs().finish(WAIT_TIMEOUT);
    assert_eq!(
        (late.code, late.stdout.as_slice()),
        (Some(1), "one €\n".as_bytes()),
        "{}",
        late.stderr
    );
    assert!(late.stderr.contains("has no manager"), "{}", late.stderr);
    gate.release(1);
    let id = bed.experiment_id();
    Outcome::run_resume(&bed, &id).expect_done(1, 0);
    let followed = following.finish(WAIT_TIMEOUT);
    let stdout = String::from_utf8(followed.stdout).unwrap();
    assert_eq!(
        (followed.code, stdout.as_str()),
        (Some(0), "one €\ntwo\nscore=1\n"),
        "{}",
        followed.stderr
    );
}
