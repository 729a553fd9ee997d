//! An experiment as a user writes it, and the JSON object that describes its result.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Map, Value, json};

use crate::{FinishedProgram, RunningProgram, TestBed, WAIT_TIMEOUT};

/// The folder of the examples.
pub fn examples_folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../examples")
        .canonicalize()
        .expect("the folder is in the repository")
}

/// The folder of the documentation.
pub fn docs_folder() -> PathBuf {
    examples_folder().join("../docs").canonicalize().expect("the folder is in the repository")
}

/// A builder of an experiment file.
#[derive(Debug, Clone)]
pub struct Search(Value);

impl Search {
    /// Creates a search of `trials` trials of `command`, one at a time. The Random tuner draws `x` from 0 to
    /// 1 and maximizes the result. The code directory is `code` in the bed.
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

    /// Removes a field.
    #[must_use]
    pub fn without(mut self, field: &str) -> Self {
        self.0.as_object_mut().expect("an experiment is an object").remove(field);
        self
    }

    /// Writes the file, and creates the code directory.
    pub fn write(&self, bed: &TestBed) -> PathBuf {
        std::fs::create_dir_all(bed.path("code")).expect("the bed is writable");
        // JSON is valid YAML.
        bed.write("experiment.yml", &self.0.to_string())
    }

    /// Returns `trial-manager run` with JSON output on a free port.
    pub fn command(&self, bed: &TestBed) -> Command {
        run_command(bed, &self.write(bed))
    }

    /// Starts the search.
    pub fn start(&self, bed: &TestBed) -> RunningProgram {
        bed.start(&mut self.command(bed))
    }

    /// Runs the search to its end.
    pub fn run(&self, bed: &TestBed) -> Outcome {
        Outcome::parse(self.start(bed).finish(WAIT_TIMEOUT))
    }
}

/// Returns `trial-manager run FILE` with JSON output on a free port.
fn run_command(bed: &TestBed, file: &Path) -> Command {
    let mut command = bed.manager_command();
    command.arg("run").arg(file).args(["--port", "0", "--output", "json", "--data-dir"]);
    command.arg(bed.data_folder());
    command
}

/// The output of `--output json`, with its structure checked.
#[derive(Debug)]
pub struct Outcome {
    /// Exit code of the manager.
    pub code: i32,
    /// Standard error of the manager.
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
    pub fn run_file(bed: &TestBed, file: &Path) -> Self {
        Self::parse(bed.start(&mut run_command(bed, file)).finish(WAIT_TIMEOUT))
    }

    /// Runs `trial-manager resume ID` to its end.
    pub fn run_resume(bed: &TestBed, id: &str) -> Self {
        Self::parse(Self::start_resume(bed, id).finish(WAIT_TIMEOUT))
    }

    /// Starts `trial-manager resume ID`.
    pub fn start_resume(bed: &TestBed, id: &str) -> RunningProgram {
        bed.start(&mut Self::resume_command(bed, id))
    }

    /// Returns `trial-manager resume ID` with JSON output on a free port.
    pub fn resume_command(bed: &TestBed, id: &str) -> Command {
        let mut command = bed.manager_command();
        command.args(["resume", id, "--port", "0", "--output", "json", "--data-dir"]);
        command.arg(bed.data_folder());
        command
    }

    /// Reads the object that a manager printed. Panics if the output does not have the documented form.
    pub fn parse(finished: FinishedProgram) -> Self {
        let FinishedProgram { code, stdout, stderr } = finished;
        let text = String::from_utf8(stdout).expect("JSON is UTF-8");
        let read = serde_json::from_str::<Value>(&text);
        let whole = read.unwrap_or_else(|error| {
            panic!("not one JSON object ({error}), exit code {code:?}: {text:?}\n{stderr}")
        });
        let trials: Vec<Trial> = array(&whole, "trials").iter().map(Trial::read).collect();
        let best = member(&whole, "best");
        let best = (!best.is_null()).then(|| Trial::read(best));
        if let Some(best) = &best {
            assert!(trials.contains(best), "the best trial is not in the list of trials:\n{text}");
        }
        let experiment = member(&whole, "experiment");
        let (id, state) = (string(experiment, "id"), string(experiment, "state"));
        let code = code.unwrap_or_else(|| panic!("a signal killed the manager: {stderr}"));
        Self { code, stderr, id, state, trials, best }
    }

    /// Returns the trial with this sequence number.
    pub fn trial(&self, sequence: u64) -> &Trial {
        let found = self.trials.iter().find(|trial| trial.sequence == sequence);
        found.unwrap_or_else(|| panic!("no trial number {sequence} in {self:#?}"))
    }

    /// Checks that the experiment is done and has these numbers of trials.
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

const TRIAL_STATES: [&str; 9] = [
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
        assert!(TRIAL_STATES.contains(&read.state.as_str()), "{read:?}");
        read
    }

    /// Returns the final result as a number.
    pub fn final_number(&self) -> f64 {
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
