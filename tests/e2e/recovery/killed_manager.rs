//! The manager is killed during a search, and the trials keep running. After `resume`, every metric of every
//! trial is stored exactly once.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

const TRIAL_COUNT: u32 = 6;
const STEP_COUNT: usize = 10;

/// A trial that takes ten steps, each after a release of the gate. It prints a metric and then records the
/// print for the test.
const GATED_TRIAL: &str = r#"#!/bin/sh
step=0
while [ $step -lt 10 ]; do
    read _ <"$BED/gate"
    value=0.$((1000 + NNI_TRIAL_SEQ_ID * 100 + step))
    echo "score=$value"
    echo "$NNI_TRIAL_JOB_ID $value" >>"$BED/record"
    step=$((step + 1))
done
"#;

/// Returns the values that the trials recorded, in order, by trial.
fn recorded_values(bed: &TestBed) -> BTreeMap<String, Vec<Value>> {
    let mut record: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for line in bed.read("record").lines() {
        let (trial, value) = line.split_once(' ').unwrap();
        let value = serde_json::from_str(value).unwrap();
        record.entry(trial.to_owned()).or_default().push(value);
    }
    record
}

/// Returns the kind and value of every stored metric by trial, in the order of attempts and numbers.
fn stored_metrics(bed: &TestBed, id: &str) -> BTreeMap<String, Vec<(String, Value)>> {
    let file = bed.data_folder().join(id).join("trialkeeper.db");
    let store = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let mut select = store
        .prepare(
            "SELECT trial.id, report.body FROM report
             JOIN attempt ON report.attempt = attempt.key JOIN trial ON attempt.trial = trial.key
             WHERE report.kind = 'metric' ORDER BY attempt.key, report.seq",
        )
        .unwrap();
    let rows = select.query_map([], |row| Ok((row.get(0)?, row.get::<_, String>(1)?))).unwrap();
    let mut stored: BTreeMap<String, Vec<(String, Value)>> = BTreeMap::new();
    for row in rows {
        let (trial, body) = row.unwrap();
        let body: Value = serde_json::from_str(&body).unwrap();
        let kind = body["type"].as_str().unwrap().to_owned();
        stored.entry(trial).or_default().push((kind, body["value"].clone()));
    }
    stored
}

fn wait_for_steps(bed: &TestBed, steps: usize) {
    wait_for(&format!("{steps} steps"), WAIT_TIMEOUT, || {
        (bed.read("record").lines().count() == steps).then_some(())
    });
}

/// The numbers of steps before each kill, and before the following resume.
type KillSteps = Vec<(usize, usize)>;

#[test]
fn a_killed_manager_resumes_without_losing_or_duplicating_a_metric() {
    #[rustfmt::skip]
    let kills: [(&str, KillSteps); 6] = [
        ("before the first metric",          vec![(0, 3)]),
        ("at the first metric",              vec![(1, 0)]),
        ("in mid-trial",                     vec![(7, 5)]),
        ("while both trials end",            vec![(2 * STEP_COUNT, 0)]),
        ("and both trials end without it",   vec![(13, 2 * STEP_COUNT - 13)]),
        ("again and again",                  vec![(3, 2), (9, 4), (6, 1), (11, 0)]),
    ];
    for (case, kills) in kills {
        println!("killed {case}");
        search_with_kills(&kills);
    }
}

#[test]
fn a_manager_killed_at_random_points_loses_no_metric() {
    for seed in 1..=6_usize {
        // Knuth's multiplicative generator. Its upper bits are random enough.
        let mut state = seed;
        let mut below = |limit: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % limit
        };
        let kills: KillSteps = (0..=below(3)).map(|_| (below(9), below(9))).collect();
        println!("seed {seed}: {kills:?}");
        search_with_kills(&kills);
    }
}

fn search_with_kills(kills: &[(usize, usize)]) {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    bed.write_script("code/steady.sh", GATED_TRIAL);
    let search = Search::new(&format!("BED='{}' ./steady.sh", bed.folder().display()), TRIAL_COUNT)
        .with("trialConcurrency", 2);
    let mut manager = search.start(&bed);
    let id = wait_for("the experiment's folder", WAIT_TIMEOUT, || bed.find_experiment_id());

    let mut steps = 0;
    for (before, during) in kills {
        // Both trials must run, so that they can take steps after the kill.
        wait_for("two trials to run", WAIT_TIMEOUT, || {
            let words = bed.processes().into_iter().map(|(_, words)| words);
            let trials = words.filter(|words| words == "/bin/sh ./steady.sh ").count();
            (trials == 2).then_some(())
        });
        gate.release(*before);
        steps += before;
        wait_for_steps(&bed, steps);
        manager.signal(Signal::SIGKILL);
        assert_eq!(manager.finish(WAIT_TIMEOUT).code, None);
        // Trials continue without a manager. At most the remaining steps can be taken.
        let left: usize =
            recorded_values(&bed).values().map(|values| STEP_COUNT - values.len()).sum();
        let during = left.min(*during);
        gate.release(during);
        steps += during;
        wait_for_steps(&bed, steps);
        manager = Outcome::start_resume(&bed, &id);
    }
    let all = usize::try_from(TRIAL_COUNT).unwrap() * STEP_COUNT;
    gate.release(all - steps);
    let search = Outcome::parse(manager.finish(WAIT_TIMEOUT));

    search.expect_done(TRIAL_COUNT.try_into().unwrap(), 0);
    let printed = recorded_values(&bed);
    let stored = stored_metrics(&bed, &id);
    assert_eq!(printed.len(), search.trials.len());
    for trial in &search.trials {
        assert_eq!(printed[&trial.id].len(), STEP_COUNT, "a trial ran twice");
        assert_eq!(trial.intermediate, printed[&trial.id], "{trial:?}");
        assert_eq!(Some(&trial.final_result), trial.intermediate.last(), "{trial:?}");

        let intermediate = trial.intermediate.iter().map(|value| ("intermediate", value));
        let all = intermediate.chain([("final", &trial.final_result)]);
        let all: Vec<_> = all.map(|(kind, value)| (kind.to_owned(), value.clone())).collect();
        assert_eq!(
            stored[&trial.id], all,
            "the store does not contain each metric once: {trial:?}"
        );
    }
    bed.wait_until_empty();
}
