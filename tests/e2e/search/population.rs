//! Population based training: trials continue from the checkpoints of other trials.

use nix::sys::signal::Signal;
use serde_json::json;
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

/// A trial whose result is the number of training steps of its model, including those of the checkpoints that
/// it continues.
const TRIAL_SCRIPT: &str = "
steps=0
[ -f {{load_checkpoint_dir}}/model ] && read steps < {{load_checkpoint_dir}}/model
steps=$((steps + 1))
mkdir -p {{save_checkpoint_dir}}
echo $steps > {{save_checkpoint_dir}}/model
echo score=$steps
";

fn search(command: &str) -> Search {
    let class_args = json!({"population_size": 4, "optimize_mode": "maximize", "seed": 3});
    Search::new(command, 12)
        .with("trialConcurrency", 2)
        .with("tuner", json!({"name": "PBT", "classArgs": class_args}))
}

fn expect_three_steps(outcome: &Outcome) {
    outcome.expect_done(12, 0);
    let mut steps: Vec<u64> =
        outcome.trials.iter().map(|trial| trial.final_result.as_u64().unwrap()).collect();
    steps.sort_unstable();
    assert_eq!(steps, [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3], "{outcome:#?}");
}

#[test]
fn a_population_is_trained_step_by_step() {
    let bed = TestBed::new();
    let outcome = search(TRIAL_SCRIPT).run(&bed);
    expect_three_steps(&outcome);
    let folder = bed.data_folder().join(&outcome.id).join("checkpoint");
    let member = |trial: usize| outcome.trials[trial].parameters["save_checkpoint_dir"].clone();
    assert_eq!(member(0), json!(folder.join("0/0")));
    assert_eq!(member(11), json!(folder.join("3/2")));
}

#[test]
fn a_population_continues_after_a_resume() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let waiting = "[ $NNI_TRIAL_SEQ_ID -lt 5 ] || { echo >>../waits; read _ <../gate; }";
    let running = search(&format!("{waiting}\n{TRIAL_SCRIPT}")).start(&bed);
    wait_for("a trial of the second step", WAIT_TIMEOUT, || {
        (!bed.read("waits").is_empty()).then_some(())
    });
    running.signal(Signal::SIGKILL);
    drop(running.finish(WAIT_TIMEOUT));
    let id = bed.experiment_id();
    let resumed = Outcome::start_resume(&bed, &id);
    gate.release(7);
    expect_three_steps(&Outcome::parse(resumed.finish(WAIT_TIMEOUT)));
}
