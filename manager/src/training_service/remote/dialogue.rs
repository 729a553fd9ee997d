//! The dialogue with a machine's helper about its jobs: requests, answers and reports of ends.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep};
use tracing::warn;
use trial_protocol::{AttemptId, Class, TrialJobId};

use super::code_cache::ARCHIVE;
use super::machine_assignment::Job;
use super::session::{Facts, MESSAGE_BYTES, ROOM_ID, request};
use super::way_back::AUTHORITY;
use super::{Shared, TrialJobSpec};

/// The interval between repetitions of a stop to an agent that did not exist yet.
const STOP_AGAIN: Duration = Duration::from_secs(1);
/// The exit code of an agent that could not start.
const AGENT_FAULT: i32 = 125;
/// The size of a message without its parameters, in bytes.
const ENVELOPE_BYTES: usize = 200;

impl Shared {
    /// Sends a machine all requests that it may not have received.
    pub(super) fn say_everything(self: &Arc<Self>, number: usize) {
        let trials: Vec<TrialJobId> = self.assignments().on(number).cloned().collect();
        for trial in trials {
            self.say(number, &trial);
        }
    }

    /// Sends a machine the state of a trial: a submit or adopt, and a stop if one is requested.
    pub(super) fn say(self: &Arc<Self>, number: usize, trial: &TrialJobId) {
        let now = Instant::now();
        let mut assignments = self.assignments();
        let Some(job) = assignments.jobs.get(trial) else { return };
        let key = self.key(trial, &job.attempt);
        let (method, params) = match &job.spec {
            Some(spec) if !job.is_to_stop() => ("submit", self.submission(job, spec, &key)),
            Some(_) | None => {
                let secret = &self.settings.secret;
                let token = secret.trial_token(&self.settings.experiment, trial, secret.now_ms());
                ("adopt", json!({"key": key, "files": [{"name": "token", "text": token}]}))
            }
        };
        // A longer message would end the helper, and each later one.
        let length = request(0, method, &params).len() + ENVELOPE_BYTES;
        if u64::try_from(length).is_ok_and(|length| length > MESSAGE_BYTES) {
            let attempt = job.attempt.clone();
            drop(assignments);
            let message = format!(
                "its parameters and its command have {length} bytes; the maximum is {MESSAGE_BYTES}"
            );
            return self.ended(trial, &attempt, None, Some(message), Some(Class::Permanent));
        }
        let is_to_stop = job.is_to_stop();
        assignments.request(number, trial, method, &params, now);
        if is_to_stop {
            assignments.request(number, trial, "cancel", &json!({"key": key}), now);
        }
    }

    pub(super) fn key(&self, trial: &TrialJobId, attempt: &AttemptId) -> Value {
        json!({"experiment": self.settings.experiment, "trial": trial, "attempt": attempt})
    }

    fn submission(&self, job: &Job, spec: &TrialJobSpec, key: &Value) -> Value {
        let place = |of: &str, name: &str| json!({"in": of, "name": name});
        let mut args = vec![json!("run")];
        let mut say = |flag: &str, value: Value| args.extend([json!(flag), value]);
        say("--experiment", json!(spec.experiment));
        say("--trial", json!(spec.trial));
        say("--attempt", json!(spec.attempt));
        say("--platform", json!("remote"));
        say("--sequence", json!(spec.sequence.to_string()));
        say("--manager-file", place("shared", "manager.url"));
        if self.settings.direct.as_ref().is_some_and(|direct| direct.authority.is_some()) {
            say("--ca-file", place("shared", AUTHORITY));
        }
        say("--token-file", place("job", "token"));
        say("--output-dir", place("job", ""));
        say("--spool-dir", place("job", "spool"));
        say("--parameters", place("job", "parameter.cfg"));
        say("--code-archive", place("shared", ARCHIVE));
        say("--log-file", place("job", "agent.log"));
        say("--log-collection", json!("http"));
        if let Some(objective) = &self.settings.objective {
            say("--objective", json!(objective));
        }
        if let Some(direction) = self.settings.direction {
            say("--direction", json!(direction.word()));
        }
        say("--shell", json!(spec.command));
        let mut environment = json!({});
        if let Some(gpus) = &job.gpus {
            let indices: Vec<String> = gpus.iter().map(u64::to_string).collect();
            let visible = indices.join(",");
            environment["CUDA_VISIBLE_DEVICES"] = json!(visible);
            environment["CUDA_DEVICE_ORDER"] = json!("PCI_BUS_ID");
        }
        json!({
            "key": key,
            "sequence": spec.sequence,
            "args": args,
            "environment": environment,
            "files": [
                {"name": "token", "text": spec.token.0},
                {"name": "parameter.cfg", "text": spec.parameter_record.to_string()},
            ],
        })
    }

    /// Handles a line from a machine's helper.
    pub(super) fn heard(self: &Arc<Self>, number: usize, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return };
        if message["method"] == "gone" {
            return self.heard_gone(number, &message["params"]);
        }
        if message["id"] == ROOM_ID {
            let facts = Facts::read(&message["result"]);
            let too_few = self.assignments().enter_reading(number, &facts);
            self.warn_of_gpus(number, too_few);
            return self.place();
        }
        let Some(asked) =
            message["id"].as_u64().and_then(|id| self.assignments().answered(number, id))
        else {
            return;
        };
        let (trial, attempt) = (asked.trial, asked.attempt);
        match asked.method {
            "submit" => {
                if let Some(why) = message["error"]["message"].as_str() {
                    self.refused(number, &trial, &attempt, why);
                }
            }
            "adopt" if message["result"]["phase"] == "unknown" => {
                self.ended(&trial, &attempt, None, None, None);
            }
            "cancel" if message["result"]["known"] == false => {
                let shared = Arc::clone(self);
                let stopped = self.ended.clone();
                self.tasks.spawn(async move {
                    stopped.run_until_cancelled(sleep(STOP_AGAIN)).await;
                    let params = json!({"key": shared.key(&trial, &attempt)});
                    let now = Instant::now();
                    shared.assignments().request(number, &trial, "cancel", &params, now);
                });
            }
            _ => {}
        }
    }

    /// Warns of a machine that has too few GPUs for a trial.
    pub(super) fn warn_of_gpus(&self, number: usize, too_few: Option<String>) {
        if let Some(why) = too_few {
            let machine = &self.machines[number].name;
            warn!(%machine, "the machine gets no trial for now: {why}");
        }
    }

    /// Handles a machine's failure to start a trial. The trial has not run there, so the same attempt waits for another
    /// machine.
    fn refused(
        self: &Arc<Self>,
        number: usize,
        trial: &TrialJobId,
        attempt: &AttemptId,
        why: &str,
    ) {
        self.rest(number, why);
        if self.assignments().withdraw(trial, attempt) {
            self.place();
        } else {
            let message = format!("{}: {why}", self.machines[number].name);
            self.ended(trial, attempt, None, Some(message), Some(Class::Transient));
        }
    }

    /// Starts a pause for a machine that could not start a trial.
    fn rest(&self, number: usize, why: &str) {
        let pause = self.assignments().rest(number, why.to_owned(), Instant::now());
        let machine = &self.machines[number].name;
        warn!(%machine, "the machine cannot start a trial, and gets none for {} s: {why}", pause.as_secs());
        self.changed.notify_one();
    }

    fn heard_gone(self: &Arc<Self>, number: usize, params: &Value) {
        let text = |name: &str| params["key"][name].as_str();
        let ids = text("trial").zip(text("attempt"));
        let ids = ids.and_then(|(trial, attempt)| {
            Some((TrialJobId::new(trial).ok()?, AttemptId::new(attempt).ok()?))
        });
        let Some((trial, attempt)) = ids else { return };
        // The agent could not deliver its last reports to the manager, so they are requested.
        if params["spool"] == "left" && self.assignments().may_replay(number, &trial, &attempt) {
            let params = json!({"key": self.key(&trial, &attempt)});
            self.assignments().request(number, &trial, "adopt", &params, Instant::now());
            return;
        }
        let code = params["exit"]["code"].as_i64().and_then(|code| i32::try_from(code).ok());
        let mut message = None;
        if code == Some(AGENT_FAULT) {
            let why = format!("the agent could not start there (code {AGENT_FAULT})");
            message = Some(format!("{}: {why}", self.machines[number].name));
            self.rest(number, &why);
        } else {
            self.assignments().trust(number);
        }
        self.ended(&trial, &attempt, code, message, None);
    }
}
