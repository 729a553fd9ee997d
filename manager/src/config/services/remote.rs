//! The section `trainingService` of `platform: remote`: machines that are reached over SSH.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::super::TrainingServiceSpec;
use super::super::path_base::PathBase;
use super::super::secret_file::{SecretFile, SecretText};
use super::super::section::{Problem, Section};
use super::inherited::{GpuFields, Service, ServiceFields, ServiceSection, TopLevel};

/// The own fields of NNI 3.0's `RemoteConfig`, and TrialKeeper's, in the order of the canonical form.
pub(in crate::config) const FIELDS: [&str; 3] = ["reuseMode", "machinePatience", "machineList"];

/// The fields of NNI 3.0's `RemoteMachineConfig`, and TrialKeeper's, in the order of the canonical form.
pub(in crate::config) const MACHINE_FIELDS: [&str; 18] = [
    "host",
    "port",
    "user",
    "password",
    "sshKeyFile",
    "passwordFile",
    "sshPassphrase",
    "sshPassphraseFile",
    "knownHosts",
    "proxyJump",
    "sshOptions",
    "useActiveGpu",
    "maxTrialNumberPerGpu",
    "gpuIndices",
    "maxTrialNumber",
    "pythonPath",
    "remoteDirectory",
    "name",
];

/// The default of `machinePatience`. Kubernetes waits equally long before it evicts the pods of an unreachable node.
const DEFAULT_MACHINE_PATIENCE: Duration = Duration::from_mins(5);

/// The machines that run trials.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RemoteSpec {
    /// `machineList`, at least one machine. The names are distinct.
    pub machines: Vec<MachineSpec>,
    /// `machinePatience`: the time for which a machine may be out of reach before its trials run elsewhere.
    pub patience: Duration,
    /// `nniManagerIp`: the address at which the machines may reach the manager.
    pub advertise: Option<String>,
}

impl ServiceSection for RemoteSpec {
    fn take_secrets(&mut self, folder: &Path, canonical: &mut Value) -> Vec<SecretFile> {
        let taken = MachineSpec::take_secrets(&mut self.machines, folder);
        let record = |(number, field, file): (usize, &'static str, SecretFile)| {
            canonical["machineList"][number][field] = file.path.to_string_lossy().into();
            file
        };
        taken.into_iter().map(record).collect()
    }

    fn advertise(&self) -> Option<&str> {
        self.advertise.as_deref()
    }
}

/// A machine of `machineList`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineSpec {
    /// `name`, or else `host` with the user and the port if they are given.
    pub name: String,
    /// A host name, an address or an alias of the SSH configuration.
    pub host: String,
    /// The port. `None`: that of the SSH configuration.
    pub port: Option<u16>,
    /// The user. `None`: that of the SSH configuration.
    pub user: Option<String>,
    /// The key file. `None`: the keys and the agent of the SSH configuration.
    pub key_file: Option<PathBuf>,
    /// `password`, until it is in a file.
    #[serde(skip)]
    pub password: Option<SecretText>,
    /// `sshPassphrase`, until it is in a file.
    #[serde(skip)]
    pub passphrase: Option<SecretText>,
    /// `passwordFile`: the file with the password, which only its owner can read.
    pub password_file: Option<PathBuf>,
    /// `sshPassphraseFile`: the file with the key's passphrase, which only its owner can read.
    pub passphrase_file: Option<PathBuf>,
    /// `knownHosts: strict`: a machine with an unknown key is refused. Otherwise its first key is recorded.
    pub strict: bool,
    /// A jump host.
    pub proxy_jump: Option<String>,
    /// Further options for `ssh -o`.
    pub options: Vec<String>,
    /// The folder for the experiments' files. `None`: `~/.local/share/trialkeeper/remote`.
    pub directory: Option<String>,
    /// `useActiveGpu`.
    pub use_active_gpu: bool,
    /// `maxTrialNumberPerGpu`, at least 1.
    pub max_trial_number_per_gpu: u64,
    /// `gpuIndices`. `None`: all GPUs.
    pub gpu_indices: Option<Vec<u64>>,
    /// `maxTrialNumber`. `None`: as many as the GPUs allow, or one for each processor without GPUs.
    pub max_trial_number: Option<u64>,
    /// The folder of the interpreter, which a trial's PATH begins with.
    pub python_path: Option<String>,
}

impl MachineSpec {
    /// Returns a machine with default settings and this host.
    pub fn new(host: &str) -> Self {
        Self {
            name: host.to_owned(),
            host: host.to_owned(),
            port: None,
            user: None,
            key_file: None,
            password: None,
            passphrase: None,
            password_file: None,
            passphrase_file: None,
            strict: false,
            proxy_jump: None,
            options: Vec::new(),
            directory: None,
            use_active_gpu: false,
            max_trial_number_per_gpu: 1,
            gpu_indices: None,
            max_trial_number: None,
            python_path: None,
        }
    }

    /// Replaces the secrets of machines by files in `folder`, which the caller must write. Returns the files, each with
    /// the position of its machine and the field that names it.
    pub fn take_secrets(
        machines: &mut [Self],
        folder: &Path,
    ) -> Vec<(usize, &'static str, SecretFile)> {
        let mut taken = Vec::new();
        for (number, machine) in machines.iter_mut().enumerate() {
            let Self { password, password_file, passphrase, passphrase_file, .. } = machine;
            let secrets = [
                ("passwordFile", password, password_file),
                ("sshPassphraseFile", passphrase, passphrase_file),
            ];
            for (field, text, file) in secrets {
                if let Some(text) = text.take() {
                    let path = folder.join(format!("{number}-{field}"));
                    *file = Some(path.clone());
                    taken.push((number, field, SecretFile { path, text }));
                }
            }
        }
        taken
    }
}

/// Reads the section.
pub(in crate::config) fn read_section(value: Value, top: TopLevel<'_>) -> Result<Service, Problem> {
    let (mut section, inherited) = ServiceFields::open("remote", value, &FIELDS, top)?;
    let trial = inherited.into_trial_fields()?;
    section.boolean("reuseMode")?;
    let patience = section.duration("machinePatience")?.unwrap_or(DEFAULT_MACHINE_PATIENCE);
    let machines = read_machines(&mut section, trial.gpus, top.base)?;
    let spec = RemoteSpec { machines, patience, advertise: trial.advertise.clone() };
    Ok(trial.into_service(TrainingServiceSpec::Remote(spec), section))
}

/// Reads `machineList`.
fn read_machines(
    section: &mut Section,
    gpus: Option<u32>,
    base: PathBase<'_>,
) -> Result<Vec<MachineSpec>, Problem> {
    let list = read_machine_list(section)?;
    let (mut machines, mut recorded) = (Vec::<MachineSpec>::new(), Vec::new());
    for (i, value) in list.into_iter().enumerate() {
        let path = format!("{}[{i}]", section.field_path("machineList"));
        let (machine, canonical) = read_machine(&path, value, gpus, base)?;
        if machines.iter().any(|other| other.name == machine.name) {
            let problem =
                format!("`{}` is used twice; give each machine its own `name`", machine.name);
            return Err(Problem::new(format!("{path}.name"), problem));
        }
        machines.push(machine);
        recorded.push(canonical);
    }
    section.record("machineList", recorded);
    Ok(machines)
}

fn read_machine_list(section: &mut Section) -> Result<Vec<Value>, Problem> {
    let problem = match section.take("machineList") {
        Some(Value::Array(list)) if !list.is_empty() => return Ok(list),
        Some(Value::Array(_)) => "must name at least one machine",
        Some(_) => "expected a list of machines",
        None => "is missing; for example [{host: gpu1, user: me}]",
    };
    Err(section.problem("machineList", problem))
}

/// Reads one machine, and returns its canonical form with it.
fn read_machine(
    path: &str,
    value: Value,
    gpus: Option<u32>,
    base: PathBase<'_>,
) -> Result<(MachineSpec, Map<String, Value>), Problem> {
    let mut section = Section::open(path, value, &MACHINE_FIELDS)?;
    let password = read_secret(&mut section, "password", base)?;
    let passphrase = read_secret(&mut section, "sshPassphrase", base)?;
    let host = read_word(&mut section, "host")?;
    let host =
        host.ok_or_else(|| section.problem("host", "is missing; for example gpu1.example.org"))?;
    let port = read_port(&mut section)?;
    let user = read_word(&mut section, "user")?;
    let key = read_local_path(&mut section, "sshKeyFile", base)?;
    if let Some(file) = key.as_ref().filter(|file| base.is_file_missing(file)) {
        return Err(section.problem("sshKeyFile", format!("{} is not a file", file.display())));
    }
    let password_file = read_secret_file(&mut section, "passwordFile", base)?;
    let passphrase_file = read_secret_file(&mut section, "sshPassphraseFile", base)?;
    let strict = read_known_hosts(&mut section)?;
    let proxy_jump = read_word(&mut section, "proxyJump")?;
    let options = read_ssh_options(&mut section)?;
    let gpus = GpuFields::read(&mut section, gpus)?;
    let use_active_gpu = gpus.use_active.unwrap_or(false);
    section.record("useActiveGpu", use_active_gpu);
    let max_trial_number = section.integer("maxTrialNumber", 1)?;
    let python_path = section.string("pythonPath")?;
    let directory = section.string("remoteDirectory")?;
    if directory.as_ref().is_some_and(|folder| !folder.starts_with('/')) {
        return Err(section.problem("remoteDirectory", "expected an absolute path of the machine"));
    }
    let at = user.as_ref().map(|user| format!("{user}@")).unwrap_or_default();
    let of_port = port.map(|port| format!(":{port}")).unwrap_or_default();
    let name = section.string_or("name", &format!("{at}{host}{of_port}"))?;
    let machine = MachineSpec {
        name,
        host,
        port,
        user,
        key_file: key,
        password,
        passphrase,
        password_file,
        passphrase_file,
        strict,
        proxy_jump,
        options,
        directory,
        use_active_gpu,
        max_trial_number_per_gpu: gpus.max_trials_per_gpu,
        gpu_indices: gpus.indices,
        max_trial_number,
        python_path,
    };
    Ok((machine, section.into_canonical()))
}

/// Reads a secret. The experiment file may only contain one if other users cannot read the file.
fn read_secret(
    section: &mut Section,
    name: &str,
    base: PathBase<'_>,
) -> Result<Option<SecretText>, Problem> {
    let Some(text) = section.unrecorded_string(name)? else { return Ok(None) };
    let file = format!("{name}File");
    if section.peek(&file).is_some() {
        return Err(section.given_besides(&file, name));
    }
    match base.exposed_file() {
        None => Ok(Some(SecretText::new(text))),
        Some(exposed) => {
            let problem = format!(
                "other users can read this secret; run `chmod 600 {}`, or name a file of its own in `{file}`",
                exposed.display()
            );
            Err(section.problem(name, problem))
        }
    }
}

/// Reads the path of a file with a secret, which only its owner may be able to read.
fn read_secret_file(
    section: &mut Section,
    name: &str,
    base: PathBase<'_>,
) -> Result<Option<PathBuf>, Problem> {
    let Some(path) = read_local_path(section, name, base)? else { return Ok(None) };
    let shown = path.display();
    match path.metadata() {
        Ok(file) if !file.is_file() => Err(section.problem(name, format!("{shown} is not a file"))),
        Ok(file) if file.permissions().mode() & 0o077 != 0 => {
            let problem = format!("other users can read {shown}; run `chmod 600 {shown}`");
            Err(section.problem(name, problem))
        }
        Ok(_) => Ok(Some(path)),
        Err(error) if base.is_file_missing(&path) => {
            Err(section.problem(name, format!("cannot use {shown}: {error}")))
        }
        Err(_) => Ok(Some(path)),
    }
}

fn read_port(section: &mut Section) -> Result<Option<u16>, Problem> {
    let port = section.integer("port", 1)?.map(u16::try_from).transpose();
    port.map_err(|_| section.problem("port", "expected a port, 1 to 65535"))
}

/// Reads `knownHosts`. Returns true if a machine with an unknown key is refused.
fn read_known_hosts(section: &mut Section) -> Result<bool, Problem> {
    match section.string_or("knownHosts", "acceptNew")?.as_str() {
        "acceptNew" => Ok(false),
        "strict" => Ok(true),
        other => {
            let problem = format!("`{other}` is not allowed; allowed: acceptNew, strict");
            Err(section.problem("knownHosts", problem))
        }
    }
}

/// Reads a word that ssh cannot mistake for an option.
fn read_word(section: &mut Section, name: &str) -> Result<Option<String>, Problem> {
    let word = section.string(name)?;
    match word.as_deref() {
        Some(text) if text.starts_with('-') || text.contains(char::is_whitespace) => {
            Err(section.problem(name, format!("`{text}` begins with a dash or has blanks")))
        }
        Some(_) | None => Ok(word),
    }
}

/// Reads `sshOptions`. An option that disables the check of host keys is refused.
fn read_ssh_options(section: &mut Section) -> Result<Vec<String>, Problem> {
    let Some(value) = section.take("sshOptions") else { return Ok(Vec::new()) };
    let options: Option<Vec<String>> = serde_json::from_value(value).ok();
    let problem = "expected a list of options, such as [\"ForwardAgent=no\"]";
    let options = options.ok_or_else(|| section.problem("sshOptions", problem))?;
    for option in &options {
        let word = option.split(['=', ' ']).next().unwrap_or_default().to_lowercase();
        if word == "stricthostkeychecking" {
            let problem =
                format!("`{option}` is not allowed; set `knownHosts` to acceptNew or strict");
            return Err(section.problem("sshOptions", problem));
        }
    }
    section.record("sshOptions", Some(&options).filter(|options| !options.is_empty()));
    Ok(options)
}

/// Reads a path on this machine: `~/` is the user's home, and a relative path starts at the experiment file's folder.
fn read_local_path(
    section: &mut Section,
    name: &str,
    base: PathBase<'_>,
) -> Result<Option<PathBuf>, Problem> {
    let Some(text) = section.unrecorded_string(name)? else { return Ok(None) };
    let path = match (text.strip_prefix("~/"), std::env::home_dir()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => base.folder.join(text),
    };
    section.record(name, path.to_string_lossy());
    Ok(Some(path))
}
