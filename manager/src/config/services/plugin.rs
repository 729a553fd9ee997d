//! The section `trainingService` of `platform: plugin`: a program that runs trials somewhere.

use serde_json::{Map, Value};

use super::super::TrainingServiceSpec;
use super::super::section::{Problem, Section};
use super::inherited::{Service, ServiceFields, ServiceSection, TopLevel};

/// The fields, in the order of the canonical form.
pub(in crate::config) const FIELDS: [&str; 9] = [
    "platform",
    "command",
    "settings",
    "trialCommand",
    "trialCodeDirectory",
    "trialGpuNumber",
    "nniManagerIp",
    "debug",
    "reuseMode",
];

/// The user's own training service.
#[derive(Debug, Clone, PartialEq)]
pub struct PluginSpec {
    /// `command`: a program and its arguments, at least one word. It runs in the trial code directory.
    pub command: Vec<String>,
    /// `settings`: an object that the program receives unchanged.
    pub settings: Value,
    /// `nniManagerIp`: the address at which trials reach the manager. `None`: `--advertise`, or else a guess.
    pub advertise: Option<String>,
    /// The address of the platform that runs the trials, if known. The manager then listens for connections from there.
    /// `None`: the manager listens as for trials on this machine, unless the user configures otherwise.
    pub api_server: Option<String>,
}

impl ServiceSection for PluginSpec {
    fn advertise(&self) -> Option<&str> {
        self.advertise.as_deref()
    }
}

/// Reads the section.
pub(in crate::config) fn read_section(value: Value, top: TopLevel<'_>) -> Result<Service, Problem> {
    let (mut section, inherited) = ServiceFields::open_ordered("plugin", value, &FIELDS, top)?;
    let trial = inherited.into_trial_fields()?;
    let command = read_program(&mut section)?;
    let settings = match section.take("settings") {
        None | Some(Value::Null) => Value::Object(Map::new()),
        Some(settings @ Value::Object(_)) => settings,
        Some(_) => {
            return Err(section.problem("settings", "expected an object, such as {partition: gpu}"));
        }
    };
    section.record("settings", &settings);
    section.boolean("reuseMode")?;
    let advertise = trial.advertise.clone();
    let spec = PluginSpec { command, settings, advertise, api_server: None };
    Ok(trial.into_service(TrainingServiceSpec::Plugin(spec), section))
}

/// Reads `command`.
fn read_program(section: &mut Section) -> Result<Vec<String>, Problem> {
    let expected = "expected a program and its arguments, such as [python3, my_service.py]";
    let Some(value) = section.take("command") else {
        return Err(section.problem("command", format!("is missing; {expected}")));
    };
    let words: Option<Vec<String>> = serde_json::from_value(value).ok();
    let good = |words: &Vec<String>| words.first().is_some_and(|program| !program.is_empty());
    let words = words.filter(good).ok_or_else(|| section.problem("command", expected))?;
    section.record("command", &words);
    Ok(words)
}
