//! An experiment as a user writes it, and the one JSON object that tells how it ended.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::{BOUND, Finished, Running, TestBed};

/// The folder of the experiments a newcomer runs.
pub fn examples() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .canonicalize()
        .expect("it is committed")
}

/// The folder of the documentation.
pub fn docs() -> PathBuf {
    examples().join("../docs").canonicalize().expect("it is committed")
}

/// An experiment file in the making.
#[derive(Debug, Clone)]
pub struct Search(Value);

impl Search {
    /// `trials` trials of `command`, one at a time, over `x` in 0 to 1, drawn by Random, made large. The
    /// code directory is the bed's `code`.
    pub fn new(command: &str, trials: u32) -> Self {
        Self(json!({
            "trialCommand": command,
            "trialCodeDirectory": "code",
            "trialConcurrency": 1,
            "maxTrialNumber": trials,
            "searchSpace": {"x": {"_type": "uniform", "_value": [0, 1]}},
            "tuner": {"name": "Random", "classArgs": {"optimize_mode": "maximize", "seed": 7}},
            "trainingService": {"platform": "local"},
        }))
    }

    /// Sets a field of the file.
    #[must_use]
    pub fn with(mut self, field: &str, value: impl Into<Value>) -> Self {
        self.0[field] = value.into();
        self
    }

    /// Leaves a field out.
    #[must_use]
    pub fn without(mut self, field: &str) -> Self {
        self.0.as_object_mut().expect("it is one").remove(field);
        self
    }

    /// Writes the file, and makes the code directory.
    pub fn write(&self, bed: &TestBed) -> PathBuf {
        std::fs::create_dir_all(bed.path("code")).expect("the bed is writable");
        // Every JSON text is a YAML text.
        bed.write("experiment.yml", &self.0.to_string())
    }

    /// `trial-manager run` with JSON output on a port of its own.
    pub fn command(&self, bed: &TestBed) -> Command {
        run_command(bed, &self.write(bed))
    }

    /// Starts the search.
    pub fn start(&self, bed: &TestBed) -> Running {
        bed.start(&mut self.command(bed))
    }

    /// Runs the search to its end.
    pub fn run(&self, bed: &TestBed) -> Outcome {
        Outcome::of(self.start(bed).finish(BOUND))
    }
}

/// `trial-manager run FILE` with JSON output on a port of its own.
fn run_command(bed: &TestBed, file: &Path) -> Command {
    let mut command = bed.manager();
    command.arg("run").arg(file).args(["--port", "0", "--output", "json", "--data-dir"]);
    command.arg(bed.data());
    command
}

/// What `--output json` promises, checked.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code of the manager.
    pub code: i32,
    /// What it said.
    pub stderr: String,
    /// `experiment.id`.
    pub id: String,
    /// `experiment.state`.
    pub state: String,
    /// `trials`.
    pub trials: Vec<Trial>,
    /// `best`.
    pub best: Option<Trial>,
}

/// One trial of an [`Outcome`].
#[derive(Debug, Clone, PartialEq)]
pub struct Trial {
    /// `id`.
    pub id: String,
    /// `sequence`, from 0.
    pub sequence: u64,
    /// `state`.
    pub state: String,
    /// `parameters`.
    pub parameters: Map<String, Value>,
    /// `final`: a number, an object or one of three strings; null if there is none.
    pub final_result: Value,
    /// `intermediate`, in order.
    pub intermediate: Vec<Value>,
}

impl Outcome {
    /// Runs an experiment file to its end.
    pub fn of_file(bed: &TestBed, file: &Path) -> Self {
        Self::of(bed.start(&mut run_command(bed, file)).finish(BOUND))
    }

    /// `trial-manager resume ID`, to its end.
    pub fn of_resume(bed: &TestBed, id: &str) -> Self {
        Self::of(Self::resume(bed, id).finish(BOUND))
    }

    /// Starts `trial-manager resume ID`.
    pub fn resume(bed: &TestBed, id: &str) -> Running {
        bed.start(&mut Self::resume_command(bed, id))
    }

    /// `trial-manager resume ID` with JSON output on a port of its own.
    pub fn resume_command(bed: &TestBed, id: &str) -> Command {
        let mut command = bed.manager();
        command.args(["resume", id, "--port", "0", "--output", "json", "--data-dir"]);
        command.arg(bed.data());
        command
    }

    /// Reads the object a manager printed; panics where it is not what is promised.
    pub fn of(finished: Finished) -> Self {
        let Finished { code, stdout, stderr } = finished;
        let text = String::from_utf8(stdout).expect("JSON is UTF-8");
        let read = serde_json::from_str::<Value>(&text);
        let whole = read.unwrap_or_else(|error| {
            panic!("not one JSON object ({error}), exit code {code:?}: {text:?}\n{stderr}")
        });
        let trials: Vec<Trial> = array(&whole, "trials").iter().map(Trial::read).collect();
        let best = member(&whole, "best");
        let best = (!best.is_null()).then(|| Trial::read(best));
        if let Some(best) = &best {
            assert!(trials.contains(best), "the best is not one of the trials:\n{text}");
        }
        let experiment = member(&whole, "experiment");
        let (id, state) = (string(experiment, "id"), string(experiment, "state"));
        let code = code.unwrap_or_else(|| panic!("a signal killed the manager: {stderr}"));
        Self { code, stderr, id, state, trials, best }
    }

    /// The trial that was submitted as number `sequence`.
    pub fn trial(&self, sequence: u64) -> &Trial {
        let found = self.trials.iter().find(|trial| trial.sequence == sequence);
        found.unwrap_or_else(|| panic!("no trial number {sequence} in {self:#?}"))
    }

    /// Checks that the experiment came to its end with these numbers of trials.
    #[track_caller]
    pub fn expect_done(&self, succeeded: usize, failed: usize) {
        let count = |state| self.trials.iter().filter(|trial| trial.state == state).count();
        let seen = (count("SUCCEEDED"), count("FAILED"), self.trials.len());
        assert_eq!(seen, (succeeded, failed, succeeded + failed), "{self:#?}");
        assert_eq!(self.state, "DONE", "{self:#?}");
        assert_eq!(self.code, i32::from(self.best.is_none()), "{self:#?}");
        let mut sequences: Vec<u64> = self.trials.iter().map(|trial| trial.sequence).collect();
        sequences.sort_unstable();
        assert!((0..).zip(&sequences).all(|(place, number)| place == *number), "{sequences:?}");
    }
}

const STATES: [&str; 9] = [
    "WAITING",
    "RUNNING",
    "SUCCEEDED",
    "FAILED",
    "USER_CANCELED",
    "SYS_CANCELED",
    "EARLY_STOPPED",
    "UNKNOWN",
    "LOST",
];

impl Trial {
    fn read(trial: &Value) -> Self {
        let read = Self {
            id: string(trial, "id"),
            sequence: member(trial, "sequence").as_u64().expect("`sequence` is a number from 0"),
            state: string(trial, "state"),
            parameters: member(trial, "parameters").as_object().expect("`parameters`").clone(),
            final_result: member(trial, "final").clone(),
            intermediate: array(trial, "intermediate").clone(),
        };
        assert!(STATES.contains(&read.state.as_str()), "{read:?}");
        read
    }

    /// The final result as a number.
    pub fn number(&self) -> f64 {
        let scalar = self.final_result.get("default").unwrap_or(&self.final_result);
        scalar.as_f64().unwrap_or_else(|| panic!("no final number: {self:?}"))
    }
}

fn member<'a>(of: &'a Value, name: &str) -> &'a Value {
    of.get(name).unwrap_or_else(|| panic!("`{name}` is missing in {of}"))
}

fn array<'a>(of: &'a Value, name: &str) -> &'a Vec<Value> {
    member(of, name).as_array().unwrap_or_else(|| panic!("`{name}` is no array in {of}"))
}

fn string(of: &Value, name: &str) -> String {
    let text = member(of, name).as_str();
    text.unwrap_or_else(|| panic!("`{name}` is no string in {of}")).to_owned()
}
