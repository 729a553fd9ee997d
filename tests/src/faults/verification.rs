//! Compares the output of trials with the store.

use std::collections::{BTreeMap, BTreeSet};

use rusqlite::{Connection, OpenFlags};
use serde_json::Value;

use super::harness::{Harness, TrialProcess};
use super::plan::{AgentRestart, FaultPlan};
use super::spool_reader::to_integer;
use crate::{Outcome, TestBed, WAIT_TIMEOUT};

/// The factor between process ids in values: a value is its process id times this factor, plus its step.
pub const PROCESS_FACTOR: i64 = 100_000;

/// A fact that the comparison needs.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fact {
    Metric(i64),
    /// The final result that the agent derived from the last metric.
    Final(i64),
    Ended,
}

/// Opens the experiment's store, read-only.
pub fn open_store(bed: &TestBed, id: &str) -> Option<Connection> {
    let file = bed.data_folder().join(id).join("trialkeeper.db");
    let store = Connection::open_with_flags(file, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
    store.busy_timeout(std::time::Duration::from_secs(5)).ok()?;
    Some(store)
}

/// Returns the values of all stored metrics of a trial.
pub fn stored_values(bed: &TestBed, id: &str, trial: &str) -> BTreeSet<i64> {
    let values = stored_facts(&open_store(bed, id).expect("the store exists"), trial).into_iter();
    values
        .filter_map(|fact| if let Fact::Metric(value) = fact { Some(value) } else { None })
        .collect()
}

fn stored_facts(store: &Connection, trial: &str) -> Vec<Fact> {
    let mut select = store
        .prepare(
            "SELECT r.kind, r.body FROM report r JOIN attempt a ON r.attempt = a.key \
             JOIN trial t ON a.trial = t.key WHERE t.id = ? AND r.lane = 0 \
             AND r.kind IN ('metric', 'ended') ORDER BY a.key, r.seq",
        )
        .expect("the store has these tables");
    let rows = select.query_map([trial], |row| Ok((row.get(0)?, row.get(1)?)));
    let rows = rows.expect("the store can be read").map(|row| {
        let (kind, body): (String, String) = row.expect("the store can be read");
        let body: Value = serde_json::from_str(&body).expect("a report is JSON");
        match kind.as_str() {
            "ended" => Fact::Ended,
            _ if body["type"] == "final" => Fact::Final(metric_integer(&body["value"])),
            _ => Fact::Metric(metric_integer(&body["value"])),
        }
    });
    rows.collect()
}

/// The times of reports, in the order of their numbers.
#[derive(Debug)]
pub struct ReportTimes {
    /// `observed_at_ms`, by the agent's clock.
    pub observed: Vec<i64>,
    /// `stored_at_ms`, by the manager's clock.
    pub stored: Vec<i64>,
}

/// Returns the times of all facts.
pub fn report_times(bed: &TestBed, id: &str) -> ReportTimes {
    let store = open_store(bed, id).expect("the store exists");
    let column = |name: &str| -> Vec<i64> {
        let sql = format!("SELECT {name} FROM report WHERE lane = 0 ORDER BY attempt, seq");
        let mut select = store.prepare(&sql).expect("the store has these columns");
        let rows = select.query_map([], |row| row.get(0)).expect("the store can be read");
        rows.map(|row| row.expect("the store can be read")).collect()
    };
    ReportTimes { observed: column("observed_at_ms"), stored: column("stored_at_ms") }
}

fn metric_integer(value: &Value) -> i64 {
    value.as_i64().unwrap_or_else(|| to_integer(value.as_f64().expect("a number was printed")))
}

/// Returns the stored output of a trial's stream. Each text begins at offset 0.
fn stored_output(store: &Connection, trial: &str, stream: &str) -> Vec<String> {
    let mut select = store
        .prepare(
            "SELECT l.offset_bytes, l.bytes FROM log_chunk l JOIN attempt a ON l.attempt = a.key \
             JOIN trial t ON a.trial = t.key WHERE t.id = ? AND l.stream = ? ORDER BY a.key, l.seq",
        )
        .expect("the store has these tables");
    let rows = select.query_map([trial, stream], |row| Ok((row.get(0)?, row.get(1)?)));
    let mut texts: Vec<String> = Vec::new();
    for row in rows.expect("the store can be read") {
        let (offset, bytes): (i64, Vec<u8>) = row.expect("the store can be read");
        let offset = usize::try_from(offset).expect("the output of trials is short");
        let text = String::from_utf8(bytes).expect("trials print ASCII");
        match texts.last_mut() {
            Some(last) if offset == last.len() && offset > 0 => last.push_str(&text),
            _ => {
                assert_eq!(offset, 0, "{trial}: a part of {stream} is missing before {text:?}");
                texts.push(text);
            }
        }
    }
    texts
}

/// Panics unless the store contains exactly the output of the trials.
pub fn verify(harness: &Harness, plan: &FaultPlan, outcome: &Outcome) {
    assert_eq!(outcome.state, "DONE", "{outcome:#?}");
    let trials = usize::try_from(plan.trials).expect("a small number");
    assert_eq!(outcome.trials.len(), trials, "{outcome:#?}");
    let store = open_store(&harness.bed, &harness.id).expect("the store exists");
    let mut processes: BTreeMap<String, Vec<TrialProcess>> = BTreeMap::new();
    for process in harness.processes() {
        processes.entry(process.trial.clone()).or_default().push(process);
    }
    for trial in &outcome.trials {
        let processes =
            processes.get(&trial.id).unwrap_or_else(|| panic!("{trial:?} has no process"));
        let stored = stored_facts(&store, &trial.id);
        let expected = expected_facts(plan, processes, &stored);
        assert!(
            stored == expected,
            "{} {processes:?}\n{}",
            trial.id,
            describe_difference(&stored, &expected)
        );
        let padding = plan.padding();
        let printed = |pid, step| {
            format!("line {pid} {step}{padding}\nscore={}\n", pid * PROCESS_FACTOR + step)
        };
        let errors = |pid, step| format!("oops {pid} {step}\n");
        let streams: [(&str, StepOutput<'_>); 2] = [("stdout", &printed), ("stderr", &errors)];
        // On a full disk, agents drop output.
        for (stream, print) in streams.into_iter().filter(|_| plan.spool_kib.is_none()) {
            verify_output(plan, processes, &stored_output(&store, &trial.id, stream), print);
        }
        let last = processes.last().expect("a trial has a process");
        // The manager accepts only the attempt that it started.
        let is_own_attempt = plan.agent_restart != AgentRestart::NewAttempt || processes.len() == 1;
        let succeeded = last.preserved.is_none() && is_own_attempt;
        let state = if succeeded { "SUCCEEDED" } else { "FAILED" };
        assert_eq!(trial.state, state, "{trial:?} {processes:?}");
        if processes.len() == 1 {
            let shown: Vec<i64> = trial.intermediate.iter().map(metric_integer).collect();
            let metrics = stored.iter().filter_map(|fact| match fact {
                Fact::Metric(value) => Some(*value),
                Fact::Final(_) | Fact::Ended => None,
            });
            assert_eq!(shown, metrics.collect::<Vec<_>>(), "{trial:?}");
        }
    }
    let mut check = harness.bed.manager_command();
    check.args(["check", &harness.id, "--data-dir"]).arg(harness.bed.data_folder());
    let checked = harness.bed.start(&mut check).finish(WAIT_TIMEOUT);
    let stdout = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!((checked.code, stdout.as_str()), (Some(0), ""), "{}", checked.stderr);
}

/// Returns the facts that the store must contain: those of all processes of a trial in order, and the
/// preserved ones of a killed process.
fn expected_facts(plan: &FaultPlan, processes: &[TrialProcess], stored: &[Fact]) -> Vec<Fact> {
    let mut expected = Vec::new();
    for process in processes {
        let all = i64::try_from(plan.steps * plan.burst).expect("a small number");
        let metrics = |count: i64| (0..count).map(move |step| process.pid * PROCESS_FACTOR + step);
        match &process.preserved {
            None => {
                assert_eq!(process.steps, plan.steps, "{process:?} has not taken all steps");
                expected.extend(metrics(all).map(Fact::Metric));
                expected.extend([Fact::Final(process.pid * PROCESS_FACTOR + all - 1), Fact::Ended]);
            }
            Some(left) => {
                // On a full disk, the agent sends reports that its spool cannot hold. They may have been in
                // transit.
                let sent = stored
                    .iter()
                    .filter(|fact| matches!(fact, Fact::Metric(value) if value / PROCESS_FACTOR == process.pid));
                let sent = if plan.spool_kib.is_some() { sent.count() } else { 0 };
                let least = i64::try_from(left.len()).expect("a small number");
                let count = i64::try_from(sent).expect("a small number").max(least);
                let prefix: BTreeSet<i64> = metrics(least).collect();
                assert_eq!(*left, prefix, "the preserved metrics of {process:?} have gaps");
                expected.extend(metrics(count).map(Fact::Metric));
            }
        }
    }
    expected
}

/// A function that returns a process's output on one stream in one step.
type StepOutput<'a> = &'a dyn Fn(i64, i64) -> String;

/// Checks that the output of every process is stored once and complete. The output of a killed process may be
/// cut off or missing.
fn verify_output(
    plan: &FaultPlan,
    processes: &[TrialProcess],
    texts: &[String],
    print: StepOutput<'_>,
) {
    let mut texts = texts.iter().peekable();
    for process in processes {
        let all = i64::try_from(plan.steps * plan.burst).expect("a small number");
        let printed: String = (0..all).map(|step| print(process.pid, step)).collect();
        if process.preserved.is_none() {
            let text = texts.next().unwrap_or_else(|| panic!("no output of {process:?} is stored"));
            assert!(
                *text == printed,
                "output of {process:?}\n{}",
                describe_difference(&[text], &[&printed])
            );
        } else {
            // If no output of the killed process arrived, the next text belongs to the next process.
            texts.next_if(|text| printed.starts_with(text.as_str()));
        }
    }
    assert_eq!(texts.next(), None, "this output belongs to no process: {processes:?}");
}

fn describe_difference<T: std::fmt::Debug + PartialEq>(stored: &[T], expected: &[T]) -> String {
    let same =
        stored.iter().zip(expected).take_while(|(stored, expected)| stored == expected).count();
    let show = |from: &[T]| format!("{:?}", from.iter().skip(same).take(8).collect::<Vec<_>>());
    format!(
        "{} stored, {} printed; after {same} equal elements the store has\n{}\nbut the trial printed\n{}",
        stored.len(),
        expected.len(),
        show(stored),
        show(expected),
    )
}
