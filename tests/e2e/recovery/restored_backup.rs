//! A backup replaces the database while the trials' agents keep running.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;
use rusqlite::{Connection, OpenFlags};
use serde_json::Value;
use trialkeeper_tests::{
    FinishedProgram, Gate, Outcome, RunningProgram, Search, TestBed, WAIT_TIMEOUT, http_get,
    wait_for,
};

const STEP_COUNT: usize = 10;

/// A trial that takes ten steps, each after a release of the gate, and prints a metric at each.
const GATED_TRIAL: &str = r#"#!/bin/sh
step=0
while [ $step -lt 10 ]; do
    read _ <"$BED/gate$NNI_TRIAL_SEQ_ID"
    echo "loss=$step"
    echo "$NNI_TRIAL_JOB_ID" >>"$BED/record"
    step=$((step + 1))
done
"#;

struct Scenario {
    bed: TestBed,
    gates: [Gate; 2],
    id: String,
    manager: RunningProgram,
}

fn database_file(bed: &TestBed, id: &str) -> PathBuf {
    bed.data_folder().join(id).join("trialkeeper.db")
}

/// Returns the number of stored metrics, and the last number of each attempt's facts: trial, attempt, number.
fn stored_numbers(bed: &TestBed, id: &str) -> (isize, Vec<(String, String, i64)>) {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY;
    let store = Connection::open_with_flags(database_file(bed, id), flags).unwrap();
    let metrics = "SELECT count(*) FROM report WHERE kind = 'metric'";
    let metrics = store.query_row(metrics, [], |row| row.get(0)).unwrap();
    let query =
        "SELECT t.id, a.name, a.facts_through FROM attempt a JOIN trial t ON t.key = a.trial";
    let mut attempts = store.prepare(query).unwrap();
    let rows = attempts.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    (metrics, rows.collect::<Result<_, _>>().unwrap())
}

fn run_manager(bed: &TestBed, words: &[&str]) -> FinishedProgram {
    let mut command = bed.manager_command();
    command.args(words).arg("--data-dir").arg(bed.data_folder());
    bed.start(&mut command).finish(WAIT_TIMEOUT)
}

impl Scenario {
    fn start() -> Self {
        let bed = TestBed::new();
        let gates = ["gate0", "gate1"].map(|gate| Gate::new(&bed.path(gate)));
        bed.write_script("code/steady.sh", GATED_TRIAL);
        let command = format!("BED='{}' ./steady.sh", bed.folder().display());
        let manager = Search::new(&command, 2).with("trialConcurrency", 2).start(&bed);
        let id = wait_for("the experiment's folder", WAIT_TIMEOUT, || bed.find_experiment_id());
        Self { bed, gates, id, manager }
    }

    /// Lets each trial take steps, and waits until the store has `so_far` metrics.
    fn take_steps(&self, steps: usize, so_far: isize) {
        self.gates.iter().for_each(|gate| gate.release(steps));
        wait_for(&format!("{so_far} metrics in the store"), WAIT_TIMEOUT, || {
            // The tables may not exist yet.
            database_file(&self.bed, &self.id).exists().then_some(())?;
            let lines = self.bed.read("record").lines().count().cast_signed();
            (lines == so_far && stored_numbers(&self.bed, &self.id).0 == so_far).then_some(())
        });
    }

    /// Waits until every agent has recorded that all its facts are acknowledged.
    fn wait_for_acks(&self) {
        wait_for("the agents to record the acks", WAIT_TIMEOUT, || {
            let (_, attempts) = stored_numbers(&self.bed, &self.id);
            let all = attempts.iter().all(|(trial, attempt, through)| {
                let file = format!("data/{}/{trial}/spool/{attempt}/facts.ack", self.id);
                self.bed.read(&file).trim() == through.to_string()
            });
            (attempts.len() == 2 && all).then_some(())
        });
    }

    /// Copies the database after six steps, lets the trials take six more, and kills the manager. Then calls
    /// `meanwhile` with each attempt's spool folder, and restores the copy.
    fn restore_backup(meanwhile: impl Fn(&Path)) -> Self {
        let scenario = Self::start();
        scenario.take_steps(3, 6);
        let copy = scenario.bed.path("copy.db");
        let made = run_manager(&scenario.bed, &["backup", &scenario.id, copy.to_str().unwrap()]);
        assert_eq!(made.code, Some(0), "{}", made.stderr);
        scenario.take_steps(3, 12);
        scenario.wait_for_acks();
        let Self { bed, gates, id, manager } = scenario;
        manager.signal(Signal::SIGKILL);
        manager.finish(WAIT_TIMEOUT);
        for (trial, attempt, _) in stored_numbers(&bed, &id).1 {
            meanwhile(&bed.data_folder().join(&id).join(trial).join("spool").join(attempt));
        }
        let database = database_file(&bed, &id);
        for more in ["-wal", "-shm"] {
            fs::remove_file(format!("{}{more}", database.display())).unwrap();
        }
        fs::rename(copy, database).unwrap();
        let manager = Outcome::start_resume(&bed, &id);
        Self { bed, gates, id, manager }
    }

    fn finish(self) -> (TestBed, String, Outcome) {
        self.gates.iter().for_each(|gate| gate.release(STEP_COUNT - 6));
        (self.bed, self.id, Outcome::parse(self.manager.finish(WAIT_TIMEOUT)))
    }
}

fn all_steps() -> Vec<Value> {
    (0..STEP_COUNT).map(Value::from).collect()
}

#[test]
fn agents_resend_the_reports_that_a_restored_backup_lacks() {
    let (bed, id, outcome) = Scenario::restore_backup(|_| ()).finish();
    outcome.expect_done(2, 0);
    for trial in &outcome.trials {
        assert_eq!(trial.intermediate, all_steps(), "{trial:?}\n{}", outcome.stderr);
    }
    assert_eq!(bed.read("record").lines().count(), 2 * STEP_COUNT, "a trial ran twice");
    assert!(outcome.stderr.contains("reports that it has acknowledged"), "{}", outcome.stderr);
    let check = run_manager(&bed, &["check", &id]);
    assert_eq!((check.code, check.stdout.as_slice()), (Some(0), &b""[..]), "{}", check.stderr);
}

#[test]
fn reports_that_a_restored_backup_loses_are_named() {
    let forget = |spool: &Path| {
        for entry in fs::read_dir(spool).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "seg") {
                fs::remove_file(path).unwrap();
            }
        }
    };
    let scenario = Scenario::restore_backup(forget);
    // The page uses several queries, so a report may be visible in only some of them.
    let shown = ["may be lost", "class=\"trouble\"", "reports-lost"];
    wait_for("the trial's page to report the loss", WAIT_TIMEOUT, || {
        let url =
            fs::read_to_string(scenario.bed.data_folder().join(&scenario.id).join("manager.url"))
                .ok()?;
        let (trial, ..) = stored_numbers(&scenario.bed, &scenario.id).1.into_iter().next()?;
        let (_, page) = http_get(url.trim(), &format!("/trials/{trial}"))?;
        shown.iter().all(|text| page.contains(text)).then_some(())
    });
    let (bed, id, outcome) = scenario.finish();

    outcome.expect_done(2, 0);
    let check = run_manager(&bed, &["check", &id]);
    let wrong = String::from_utf8(check.stdout).unwrap();
    assert_eq!((check.code, wrong.lines().count()), (Some(1), 2), "{wrong}");
    for trial in &outcome.trials {
        assert!(trial.intermediate.len() < STEP_COUNT, "{trial:?}");
        assert!(wrong.contains(&format!("trial {}", trial.id)), "{wrong}");
        let why = run_manager(&bed, &["trial", "why", &trial.id, "--experiment", &id]);
        let why = String::from_utf8(why.stdout).unwrap();
        assert!(why.contains("reports-lost"), "{why}");
    }
    let export =
        run_manager(&bed, &["experiment", "export", "--format", "csv", "--experiment", &id]);
    let export = String::from_utf8(export.stdout).unwrap();
    let (head, lines) = export.split_once("\r\n").unwrap();
    assert!(head.ends_with(",lost"), "{export}");
    assert_eq!(lines.matches("may be lost").count(), 2, "{export}");
}

#[test]
fn a_database_without_its_log_is_reported_as_incomplete() {
    let bed = TestBed::new();
    let outcome = Search::new("echo score=1", 1).run(&bed);
    let id = outcome.id.as_str();
    // The header of a database whose pages were all in the log.
    let file = database_file(&bed, id);
    fs::remove_file(&file).unwrap();
    let blank = Connection::open(&file).unwrap();
    blank.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(())).unwrap();
    drop(blank);
    let before = fs::read(&file).unwrap();

    let check = run_manager(&bed, &["check", id]);
    let wrong = String::from_utf8(check.stdout).unwrap();
    assert_eq!(check.code, Some(1), "{wrong}{}", check.stderr);
    assert!(wrong.contains("record is lost"), "{wrong}");
    let resume = bed.start(&mut Outcome::resume_command(&bed, id)).finish(WAIT_TIMEOUT);
    assert_eq!(resume.code, Some(2), "{}", resume.stderr);
    assert!(resume.stderr.contains("is lost"), "{}", resume.stderr);
    assert!(resume.stderr.contains("trialkeeper.db-wal"), "{}", resume.stderr);
    assert_eq!(fs::read(&file).unwrap(), before, "the database must not change");
}
