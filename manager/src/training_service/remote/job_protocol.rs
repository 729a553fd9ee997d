//! PURE: the messages to and from a machine's helper about its jobs: requests, answers and reports of ends.

use serde_json::{Value, json};
use trial_protocol::{AttemptId, ExperimentId, TrialJobId};

use super::code_cache::ARCHIVE_NAME;
use super::machine_assignment::AssignedJob;
use super::manager_tunnel::AUTHORITY_FILE;
use super::session::{MAX_MESSAGE_BYTES, MachineFacts, ROOM_REQUEST_ID, request_line};
use super::{Settings, TrialJobSpec};
use crate::training_service::agent_arguments::{AgentArguments, AgentPath, redirects_output};

/// The code with which a helper refuses a job because another experiment has just taken one of its GPUs.
const GPU_IN_USE_CODE: i64 = -32011;
/// The size of a message without its parameters, in bytes.
const ENVELOPE_BYTES: usize = 200;

/// A line from a machine's helper.
#[derive(Debug)]
pub(super) enum HelperMessage {
    /// The machine's room changed.
    Room(MachineFacts),
    /// The answer to a request.
    Reply(Reply),
    /// A job has ended.
    End(JobEndReport),
}

/// The answer to a request.
#[derive(Debug)]
pub(super) struct Reply {
    /// The id of the request.
    pub(super) id: u64,
    /// The reason for a refusal.
    pub(super) refusal: Option<String>,
    /// `true` if the refusal is due to a GPU that another experiment has just taken.
    pub(super) is_gpu_in_use: bool,
    /// `true` if the answer says that the helper does not know the job.
    pub(super) is_unknown: bool,
}

/// The report of a job's end.
#[derive(Debug)]
pub(super) struct JobEndReport {
    pub(super) trial: TrialJobId,
    pub(super) attempt: AttemptId,
    /// The agent's exit code, if it is known.
    pub(super) exit_code: Option<i32>,
    /// `true` if the agent left reports that it could not deliver.
    pub(super) has_left_reports: bool,
}

impl HelperMessage {
    /// Reads a line. `None`: it is no message that the manager knows.
    pub(super) fn read(line: &str) -> Option<Self> {
        let message = serde_json::from_str::<Value>(line).ok()?;
        if message["method"] == "gone" {
            return JobEndReport::read(&message["params"]).map(Self::End);
        }
        let result = &message["result"];
        if message["id"] == ROOM_REQUEST_ID {
            return Some(Self::Room(MachineFacts::read(result)));
        }
        Some(Self::Reply(Reply {
            id: message["id"].as_u64()?,
            refusal: message["error"]["message"].as_str().map(str::to_owned),
            is_gpu_in_use: message["error"]["code"] == GPU_IN_USE_CODE,
            is_unknown: result["phase"] == "unknown" || result["known"] == false,
        }))
    }
}

impl JobEndReport {
    fn read(params: &Value) -> Option<Self> {
        let text = |name: &str| params["key"][name].as_str();
        Some(Self {
            trial: TrialJobId::new(text("trial")?).ok()?,
            attempt: AttemptId::new(text("attempt")?).ok()?,
            exit_code: params["exit"]["code"].as_i64().and_then(|code| i32::try_from(code).ok()),
            has_left_reports: params["spool"] == "left",
        })
    }
}

/// Returns the key of an attempt in all messages.
pub(super) fn attempt_key(
    experiment: &ExperimentId,
    trial: &TrialJobId,
    attempt: &AttemptId,
) -> Value {
    json!({"experiment": experiment, "trial": trial, "attempt": attempt})
}

/// Returns the length of a request if it is too long. It would end the helper, and each later one.
pub(super) fn excessive_length(method: &str, params: &Value) -> Option<usize> {
    let length = request_line(0, method, params).len() + ENVELOPE_BYTES;
    u64::try_from(length).is_ok_and(|length| length > MAX_MESSAGE_BYTES).then_some(length)
}

/// Returns the parameters of `adopt` with a new token.
pub(super) fn adopt_params(key: &Value, token: &str) -> Value {
    json!({"key": key, "files": [{"name": "token", "text": token}]})
}

/// Returns the parameters of `submit`.
pub(super) fn submit_params(
    settings: &Settings,
    job: &AssignedJob,
    spec: &TrialJobSpec,
    key: &Value,
) -> Value {
    let arguments = AgentArguments {
        settings: &settings.agents,
        job: spec,
        platform: "remote",
        requests_output: true,
        serves_sdk: redirects_output(&spec.command),
    };
    let has_authority = settings.direct.as_ref().is_some_and(|direct| direct.authority.is_some());
    let place = |folder: &str, name: &str| Some(json!({"in": folder, "name": name}));
    let args = arguments.message(|path| match path {
        AgentPath::ManagerUrl => place("shared", "manager.url"),
        AgentPath::Authority => has_authority.then(|| place("shared", AUTHORITY_FILE))?,
        AgentPath::Token => place("job", "token"),
        AgentPath::Output => place("job", ""),
        AgentPath::Spool => place("job", "spool"),
        AgentPath::Parameters => place("job", "parameter.cfg"),
        AgentPath::CodeArchive => place("shared", ARCHIVE_NAME),
        AgentPath::CodeBase => None,
        AgentPath::Log => place("job", "agent.log"),
    });
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
        "gpus": job.gpu_uuids,
        "exclusive": job.has_exclusive_gpus,
        "files": [
            {"name": "token", "text": spec.token.0},
            {"name": "parameter.cfg", "text": spec.parameter_record.to_string()},
        ],
    })
}
