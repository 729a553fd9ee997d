//! Creates the store of a search without running it. The same seed always creates the same store. It serves
//! to test pages and API with much data, and to compare the pages of a small search.
//!
//! The schema is not copied here: it is read from the manager's migrations.

use std::path::{Path, PathBuf};

use rusqlite::{Connection, params};
use serde_json::{Value, json};

use crate::rng::Rng;

/// The folder of the manager's migrations. Each file is one step of the schema, and their names sort in the
/// order of the steps.
const MIGRATION_FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../manager/migrations");

/// `PRAGMA application_id` of the manager's databases.
const APPLICATION_ID: i64 = 0x544b_6462;

/// The time of the first event, in milliseconds since the Unix epoch.
const FIRST_EVENT_MS: i64 = 1_780_000_000_000;

/// The number of a trial's first report. Agents do not count from 0.
pub const FIRST_REPORT_SEQ: i64 = 3_677_864_190_728_193;

/// The number of samples per trial, one second apart.
const SAMPLES_PER_TRIAL: i64 = 8;

/// Creates the store of experiment `id` below the data folder `data`, with `trials` trials of `steps` steps
/// each.
///
/// # Errors
///
/// Returns an error if the store exists or cannot be written.
pub fn create_store(
    data: &Path,
    id: &str,
    trials: i64,
    steps: i64,
    seed: u64,
) -> Result<PathBuf, String> {
    let folder = data.join(id);
    let path = folder.join("trialkeeper.db");
    if path.exists() {
        return Err(format!("{} exists", path.display()));
    }
    std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
        .recursive(true)
        .create(&folder)
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    let schema = read_migrations().map_err(|error| format!("{MIGRATION_FOLDER}: {error}"))?;
    fill_store(&path, &schema, id, trials, steps, seed).map_err(|error| error.to_string())?;
    Ok(path)
}

/// Reads the steps of the schema in order.
fn read_migrations() -> std::io::Result<Vec<String>> {
    let mut files = std::fs::read_dir(MIGRATION_FOLDER)?
        .map(|entry| entry.map(|entry| entry.path()))
        .collect::<Result<Vec<_>, _>>()?;
    files.retain(|path| path.extension().is_some_and(|extension| extension == "sql"));
    files.sort();
    files.iter().map(std::fs::read_to_string).collect()
}

/// Returns a sample of a machine with two GPUs. The trial uses mostly the first GPU.
fn sample_body(reading: i64, random: &mut Rng) -> Value {
    let (gigabyte, grown) = (1_000_000_000_i64, reading.min(4));
    let mut gpu = |index: i64, busy: f64| {
        let used = (4 + 14 * grown - 11 * index * grown) * gigabyte;
        let busy = busy - 12.0 * random.fraction();
        json!({
            "index": index, "name": "NVIDIA H200", "utilization_percent": busy.round(), "memory_used_bytes": used,
            "memory_total_bytes": 150 * gigabyte, "power_watts": (90.0 + 5.5 * busy).round(), "power_limit_watts": 700,
        })
    };
    let gpus = [gpu(0, 99.0), gpu(1, 45.0)];
    json!({
        "kind": "sample", "gpus": gpus,
        "process": {"processes": 1, "memory_bytes": 500_000_000 + grown * 400_000_000, "cpu_percent": 97.5},
        "cgroup": {"memory_bytes": 600_000_000 + grown * 450_000_000, "memory_limit_bytes": 4 * gigabyte},
    })
}

#[expect(clippy::too_many_lines, reason = "a statement for each table")]
fn fill_store(
    path: &Path,
    schema: &[String],
    id: &str,
    trials: i64,
    steps: i64,
    seed: u64,
) -> Result<(), rusqlite::Error> {
    let mut random = Rng::new(seed);
    let mut connection = Connection::open(path)?;
    connection.pragma_update_and_check(None, "journal_mode", "WAL", |_| Ok(()))?;
    connection.pragma_update(None, "synchronous", "OFF")?;
    for (version, step) in (1_i64..).zip(schema) {
        connection.execute_batch(step)?;
        connection.pragma_update(None, "user_version", version)?;
    }
    connection.pragma_update(None, "application_id", APPLICATION_ID)?;
    let transaction = connection.transaction()?;
    let canonical = json!({
        "experimentName": "a large search", "experimentType": "hpo", "trialCommand": "python3 train.py",
        "trialCodeDirectory": "/tmp", "trialConcurrency": 8, "maxTrialNumber": trials, "useAnnotation": false,
        "searchSpace": {
            "lr": {"_type": "loguniform", "_value": [0.0001, 0.1]},
            "momentum": {"_type": "uniform", "_value": [0, 1]},
            "units": {"_type": "choice", "_value": [32, 64, 128, 256]},
            "activation": {"_type": "choice", "_value": ["relu", "elu", "tanh"]},
        },
        "tuner": {"name": "TPE", "classArgs": {"optimize_mode": "maximize"}},
        "trainingService": {"platform": "local"},
    });
    let end = FIRST_EVENT_MS + trials * 1000;
    transaction.execute(
        "INSERT INTO experiment (id, canonical, seed, state, created_at_ms, ended_at_ms, elapsed_ms) \
         VALUES (?, ?, 1, 'DONE', ?, ?, ?)",
        params![id, canonical.to_string(), FIRST_EVENT_MS, end, end - FIRST_EVENT_MS],
    )?;
    {
        let mut trial = transaction.prepare(
            "INSERT INTO trial (key, id, sequence, parameter_id, parameters, attempt, state, intent, created_at_ms, \
             started_at_ms, ended_at_ms, message, exit_code) VALUES (?1, ?2, ?3, ?3, ?4, ?5, ?6, NULL, ?7, ?7, ?8, ?9, ?10)",
        )?;
        let mut event = transaction.prepare("INSERT INTO trial_event (trial, at_ms, state, attempt, message, exit_code) VALUES (?, ?, ?, ?, ?, ?)")?;
        let mut attempt =
            transaction.prepare("INSERT INTO attempt VALUES (?1, ?1, ?2, ?3, ?4, ?5, 1)")?;
        let mut report =
            transaction.prepare("INSERT INTO report VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6, ?7)")?;
        let mut log = transaction.prepare("INSERT INTO log_chunk (trial, attempt, seq, stream, offset_bytes, observed_at_ms, bytes) VALUES (?1, ?1, 0, 'stdout', 0, ?2, ?3)")?;
        let units = [32, 64, 128, 256];
        let activations = ["relu", "elu", "tanh"];
        let pick = |part: f64, count: usize| {
            (0..count - 1)
                .take_while(|at| {
                    part > f64::from(u32::try_from(*at + 1).unwrap_or(0))
                        / f64::from(u32::try_from(count).unwrap_or(1))
                })
                .count()
        };
        for key in 1..=trials {
            let (lr, momentum) = (10_f64.powf(-4.0 + 3.0 * random.fraction()), random.fraction());
            let (unit, kind) =
                (pick(random.fraction(), units.len()), pick(random.fraction(), activations.len()));
            let name = format!("t{key:05}");
            let numbered = format!("{name}-1");
            let begun = FIRST_EVENT_MS + key * 1000 - 8000;
            let failed = random.fraction() < 0.03;
            let state = if failed { "FAILED" } else { "SUCCEEDED" };
            let parameters = json!({"lr": lr, "momentum": momentum, "units": units[unit], "activation": activations[kind]});
            let message = failed.then_some("it exited with 1");
            let code = i64::from(failed);
            trial.execute(params![
                key,
                name,
                key - 1,
                parameters.to_string(),
                numbered,
                state,
                begun,
                begun + 8000,
                message,
                code
            ])?;
            event.execute(params![key, begun, "WAITING", numbered, None::<String>, None::<i64>])?;
            event.execute(params![key, begun, "RUNNING", numbered, None::<String>, None::<i64>])?;
            event.execute(params![key, begun + 8000, state, numbered, message, code])?;
            let last = FIRST_REPORT_SEQ + steps + 2;
            attempt.execute(params![key, numbered, begun + 8000, last, SAMPLES_PER_TRIAL])?;
            let started = json!({"kind": "started", "command": ["sh", "-c", "python3 train.py"], "pid": 2, "host": "node-1", "agent_version": "0.1.0"});
            report.execute(params![
                key,
                0,
                FIRST_REPORT_SEQ,
                begun,
                "started",
                started.to_string(),
                0
            ])?;
            let top = 0.95 - (lr.log10() + 2.5).powi(2) / 8.0 - momentum * 0.05;
            for step in 0..steps {
                let grown = 1.0 - (-f64::from(u32::try_from(step).unwrap_or(0)) / 120.0).exp();
                let value = top * grown + 0.01 * random.fraction();
                let body = json!({"kind": "metric", "name": "default", "type": "intermediate", "sequence": step, "value": value});
                report.execute(params![
                    key,
                    0,
                    FIRST_REPORT_SEQ + step + 1,
                    begun + step * 8,
                    "metric",
                    body.to_string(),
                    0
                ])?;
            }
            if !failed {
                let body = json!({"kind": "metric", "name": "default", "type": "final", "sequence": 0, "value": top});
                report.execute(params![
                    key,
                    0,
                    FIRST_REPORT_SEQ + steps + 1,
                    begun + 7900,
                    "metric",
                    body.to_string(),
                    1
                ])?;
            }
            let (cause, class) =
                if failed { ("exit", "user-error") } else { ("succeeded", "none") };
            let verdict = json!({"kind": "ended", "cause": cause, "class": class, "confidence": "certain", "exit": {"code": code}, "message": format!("it exited with {code}"), "evidence": {}});
            report.execute(params![key, 0, last, begun + 8000, "ended", verdict.to_string(), 1])?;
            // A generator of its own, so that the samples do not change the other random values.
            let mut readings = Rng::new(seed ^ key.unsigned_abs());
            for reading in 1..=SAMPLES_PER_TRIAL {
                let body = sample_body(reading, &mut readings).to_string();
                report.execute(params![
                    key,
                    1,
                    reading,
                    begun + reading * 1000 - 500,
                    "sample",
                    body,
                    0
                ])?;
            }
            log.execute(params![key, begun, format!("trial {key}\n").into_bytes()])?;
        }
    }
    transaction.commit()?;
    connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
}
