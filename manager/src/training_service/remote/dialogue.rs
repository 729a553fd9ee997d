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
use super::{Shared, TrialJobSpec, advice};

/// The interval between repetitions of a stop to an agent that did not exist yet.
const STOP_REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// The exit code of an agent that could not start.
const AGENT_ERROR: i32 = 125;
/// The size of a message without its parameters, in bytes.
const ENVELOPE_BYTES: usize = 200;

impl Shared {
    /// Sends a machine all requests that it may not have received.
    pub(super) fn send_all(self: &Arc<Self>, number: usize) {
        let trials: Vec<TrialJobId> = self.assignments().trials_on(number).cloned().collect();
        for trial in trials {
            self.send_state(number, &trial);
        }
    }

    /// Sends a machine the state of a trial: a submit or adopt, and a stop if one is requested.
    pub(super) fn send_state(self: &Arc<Self>, number: usize, trial: &TrialJobId) {
        let now = Instant::now();
        let mut assignments = self.assignments();
        let Some(job) = assignments.jobs.get(trial) else { return };
        let key = self.key(trial, &job.attempt);
        let (method, params) = match &job.spec {
            Some(spec) if !job.is_stop_requested() => {
                ("submit", self.submit_params(job, spec, &key))
            }
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
        let is_stop_requested = job.is_stop_requested();
        assignments.request(number, trial, method, &params, now);
        if is_stop_requested {
            assignments.request(number, trial, "cancel", &json!({"key": key}), now);
        }
    }

    pub(super) fn key(&self, trial: &TrialJobId, attempt: &AttemptId) -> Value {
        json!({"experiment": self.settings.experiment, "trial": trial, "attempt": attempt})
    }

    fn submit_params(&self, job: &Job, spec: &TrialJobSpec, key: &Value) -> Value {
        let place = |of: &str, name: &str| json!({"in": of, "name": name});
        let mut args = vec![json!("run")];
        let mut add_flag = |flag: &str, value: Value| args.extend([json!(flag), value]);
        add_flag("--experiment", json!(spec.experiment));
        add_flag("--trial", json!(spec.trial));
        add_flag("--attempt", json!(spec.attempt));
        add_flag("--platform", json!("remote"));
        add_flag("--sequence", json!(spec.sequence.to_string()));
        add_flag("--manager-file", place("shared", "manager.url"));
        if self.settings.direct.as_ref().is_some_and(|direct| direct.authority.is_some()) {
            add_flag("--ca-file", place("shared", AUTHORITY));
        }
        add_flag("--token-file", place("job", "token"));
        add_flag("--output-dir", place("job", ""));
        add_flag("--spool-dir", place("job", "spool"));
        add_flag("--parameters", place("job", "parameter.cfg"));
        add_flag("--code-archive", place("shared", ARCHIVE));
        add_flag("--log-file", place("job", "agent.log"));
        add_flag("--log-collection", json!("http"));
        if let Some(objective) = &self.settings.objective {
            add_flag("--objective", json!(objective));
        }
        if let Some(direction) = self.settings.direction {
            add_flag("--direction", json!(direction.as_str()));
        }
        add_flag("--shell", json!(spec.command));
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
    pub(super) fn handle_line(self: &Arc<Self>, number: usize, line: &str) {
        let Ok(message) = serde_json::from_str::<Value>(line) else { return };
        if message["method"] == "gone" {
            return self.handle_gone(number, &message["params"]);
        }
        if message["id"] == ROOM_ID {
            let facts = Facts::read(&message["result"]);
            let too_few = self.assignments().enter_reading(number, &facts);
            self.warn_of_gpus(number, too_few);
            return self.place();
        }
        let Some(request) =
            message["id"].as_u64().and_then(|id| self.assignments().answered(number, id))
        else {
            return;
        };
        let (trial, attempt) = (request.trial, request.attempt);
        match request.method {
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
                    stopped.run_until_cancelled(sleep(STOP_REPEAT_INTERVAL)).await;
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
        let why = &advice::explain(why).unwrap_or_else(|| why.to_owned());
        self.pause_machine(number, why);
        if self.assignments().withdraw(trial, attempt) {
            self.place();
        } else {
            let message = format!("{}: {why}", self.machines[number].name);
            self.ended(trial, attempt, None, Some(message), Some(Class::Transient));
        }
    }

    /// Starts a pause for a machine that could not start a trial.
    fn pause_machine(&self, number: usize, why: &str) {
        let pause = self.assignments().pause_machine(number, why.to_owned(), Instant::now());
        let machine = &self.machines[number].name;
        warn!(%machine, "the machine cannot start a trial, and gets none for {} s: {why}", pause.as_secs());
        self.changed.notify_one();
    }

    fn handle_gone(self: &Arc<Self>, number: usize, params: &Value) {
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
        if code == Some(AGENT_ERROR) {
            let why = format!("the agent could not start there (code {AGENT_ERROR})");
            message = Some(format!("{}: {why}", self.machines[number].name));
            self.pause_machine(number, &why);
        } else {
            self.assignments().reset_pauses(number);
        }
        self.ended(&trial, &attempt, code, message, None);
    }
}
