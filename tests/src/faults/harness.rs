//! A search of real programs behind the proxy, and the actions on it.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use nix::fcntl::OFlag;
use nix::sys::signal::{Signal, kill};
use nix::sys::stat::Mode;
use nix::unistd::{Pid, mkfifo};

use super::network_state::NetworkState;
use super::plan::{AgentRestart, FaultPlan};
use super::proxy::FaultProxy;
use super::{spool_reader, verification};
use crate::{
    FinishedProgram, Gate, Outcome, RunningProgram, Search, SmallDisk, TestBed, WAIT_TIMEOUT,
    wait_for,
};

/// A trial's process. All its output is derived from its process id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrialProcess {
    /// The id of the trial.
    pub trial: String,
    /// The process id.
    pub pid: i64,
    /// The number of steps that the process has recorded.
    pub steps: usize,
    /// The metrics in the spool or in the store when the agent was killed. `None` if it was not killed.
    pub preserved: Option<BTreeSet<i64>>,
}

/// A search and its environment.
#[derive(Debug)]
pub struct Harness {
    /// The folder and the processes.
    pub bed: TestBed,
    /// The proxy between agents and manager.
    pub proxy: FaultProxy,
    gate: Gate,
    restart_pipe: File,
    clocks: [File; 2],
    manager: Option<RunningProgram>,
    /// The manager's exit code and output, once it has ended.
    finished: Option<FinishedProgram>,
    /// The experiment's id.
    pub id: String,
    plan: FaultPlan,
    killed: BTreeMap<i64, BTreeSet<i64>>,
    spool_disk: Option<SmallDisk>,
}

impl Harness {
    /// Starts the plan's search and waits for its trials.
    pub fn start(plan: &FaultPlan) -> Self {
        let bed = TestBed::new();
        let proxy = FaultProxy::start(plan.seed);
        bed.write("proxy.url", &format!("{}\n", proxy.url(plan.non_loopback)));
        let gate = Gate::new(&bed.path("gate"));
        mkfifo(&bed.path("restart"), Mode::S_IRWXU).expect("the bed is writable");
        let restart_pipe = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NONBLOCK.bits())
            .open(bed.path("restart"))
            .expect("a pipe open for both directions does not wait");
        let clocks = ["manager.clock", "agents.clock"].map(|name| {
            let file = File::create(bed.path(name)).expect("the bed is writable");
            file.write_all_at(&0_i64.to_ne_bytes(), 0).expect("the bed is writable");
            file
        });
        bed.write_script("container", include_str!("container.sh"));
        bed.write_script("code/trial.sh", include_str!("trial.sh"));
        let spool_disk = plan
            .spool_kib
            .map(|kib| SmallDisk::mount(&bed.path("spools"), &format!("size={kib}k")));
        let mut harness = Self {
            bed,
            proxy,
            gate,
            restart_pipe,
            clocks,
            manager: None,
            finished: None,
            id: String::new(),
            plan: plan.clone(),
            killed: BTreeMap::new(),
            spool_disk,
        };
        harness.start_search();
        harness
    }

    /// Starts the manager, kills it early if the plan requires it, and waits for the trials.
    fn start_search(&mut self) {
        let trials = self.plan.trials;
        let search = Search::new("exec ./trial.sh", trials).with("trialConcurrency", trials);
        self.manager = Some(self.start_manager(search.command(&self.bed)));
        if let Some(after) = self.plan.early_kill_ms {
            pause(after);
            self.kill_manager();
        }
        self.id = if self.manager.is_some() {
            wait_for("the experiment's folder", WAIT_TIMEOUT, || self.bed.find_experiment_id())
        } else {
            match self.bed.find_experiment_id().filter(|id| self.is_recorded(id)) {
                Some(id) => id,
                None => {
                    // The manager ended before it recorded the experiment, so it cannot have started a trial.
                    assert_eq!(self.processes(), [], "a trial was started that is not recorded");
                    drop(fs::remove_dir_all(self.bed.data_folder()));
                    self.manager = Some(self.start_manager(search.command(&self.bed)));
                    wait_for("the experiment's folder", WAIT_TIMEOUT, || {
                        self.bed.find_experiment_id()
                    })
                }
            }
        };
        self.proxy.forward_to(&self.bed.data_folder().join(&self.id).join("manager.url"));
        if self.manager.is_none() {
            self.resume();
        }
        let all = usize::try_from(trials).expect("a small number");
        wait_for("all trials to begin", WAIT_TIMEOUT, || {
            (self.processes().len() >= all).then_some(())
        });
    }

    fn is_recorded(&self, id: &str) -> bool {
        verification::open_store(&self.bed, id)
            .and_then(|store| store.query_row("SELECT 1 FROM experiment", [], |_| Ok(())).ok())
            .is_some()
    }

    fn start_manager(&self, mut command: Command) -> RunningProgram {
        let plan = &self.plan;
        command.args(["--agent".as_ref(), self.bed.path("container").as_os_str()]);
        command
            .env("BED", self.bed.folder())
            .env("KEEPER", self.bed.program_folder().join("trialkeeper"));
        command.env("STEPS", plan.steps.saturating_mul(plan.burst).to_string());
        command.env("BURST", plan.burst.to_string()).env("PAD", plan.padding());
        command.env("FLUSH", format!("{}ms", plan.flush_ms));
        command.env("IN_PLACE", if plan.agent_restart == AgentRestart::Never { "" } else { "yes" });
        let spool_disk =
            self.spool_disk.as_ref().map_or(OsStr::new(""), |disk| disk.path().as_os_str());
        command.env("SPOOLS", spool_disk);
        command.env("LD_PRELOAD", clock_shim()).env("FAULTS_CLOCK", self.bed.path("manager.clock"));
        self.bed.start(&mut command)
    }

    /// Kills the manager. Returns `false` if it had already ended.
    pub fn kill_manager(&mut self) -> bool {
        let Some(manager) = self.manager.take() else { return false };
        manager.signal(Signal::SIGKILL);
        let finished = manager.finish(WAIT_TIMEOUT);
        let killed = finished.code.is_none();
        if !killed {
            self.finished = Some(finished);
        }
        killed
    }

    /// Resumes the experiment.
    pub fn resume(&mut self) {
        let command = Outcome::resume_command(&self.bed, &self.id);
        self.manager = Some(self.start_manager(command));
    }

    /// Returns `true` if the experiment has ended.
    pub fn has_ended(&self) -> bool {
        self.finished.is_some()
    }

    /// Lets trials take steps. Returns the number of steps recorded before.
    pub fn release_steps(&self, steps: usize) -> usize {
        let taken = self.steps_taken();
        self.gate.release(steps);
        taken
    }

    /// Waits until `steps` more steps than `before` have been taken, or until no trial has steps left.
    pub fn wait_for_steps(&self, before: usize, steps: usize) {
        wait_for("the trials' steps", WAIT_TIMEOUT, || {
            (self.steps_taken() >= before + steps || self.running_processes().is_empty())
                .then_some(())
        });
    }

    fn steps_taken(&self) -> usize {
        self.processes().iter().map(|process| process.steps).sum()
    }

    /// Returns every process of a trial, in the order of their starts, by the record that the processes
    /// write.
    pub fn processes(&self) -> Vec<TrialProcess> {
        let mut processes: Vec<TrialProcess> = Vec::new();
        let record = self.bed.read("record");
        // A process may be writing the last line.
        for line in record.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<&str> = line.split(' ').collect();
            let [trial, pid, what] = words[..] else { panic!("the record contains {line:?}") };
            let pid = pid.parse().expect("the record contains process ids");
            match processes.iter_mut().find(|process| process.pid == pid) {
                Some(process) => process.steps += 1,
                None => {
                    assert_eq!(what, "start", "the record contains {line:?}");
                    let left = self.killed.get(&pid).cloned();
                    processes.push(TrialProcess {
                        trial: trial.to_owned(),
                        pid,
                        steps: 0,
                        preserved: left,
                    });
                }
            }
        }
        processes
    }

    /// Returns the running processes that have steps left.
    pub fn running_processes(&self) -> Vec<TrialProcess> {
        let mut processes = self.processes();
        processes.retain(|process| process.preserved.is_none() && process.steps < self.plan.steps);
        processes
    }

    /// Kills the agent of a running trial, and the trial with it. First, it notes the metrics that must not
    /// be lost. With `waits_for_spool`, it waits until all recorded metrics are preserved. Returns `None` if no trial
    /// runs.
    pub fn kill_agent(
        &mut self,
        agent_index: usize,
        waits_for_spool: bool,
    ) -> Option<TrialProcess> {
        let running_processes = self.running_processes();
        let process = running_processes.get(agent_index % running_processes.len().max(1))?.clone();
        let agent = self.agent_of(&process)?;
        if waits_for_spool && self.spool_disk.is_none() && self.manager.is_some() {
            // The agent spools soon what its trial prints, independently of the network.
            let printed = process.steps * self.plan.burst;
            wait_for("the printed metrics to be preserved", WAIT_TIMEOUT, || {
                (self.preserved_values(&process).len() >= printed).then_some(())
            });
        }
        // While the agent is stopped, its spool does not change.
        kill(agent, Signal::SIGSTOP).ok()?;
        wait_for("the agent to stop", WAIT_TIMEOUT, || {
            matches!(process_state(agent), None | Some('T' | 't' | 'Z' | 'X')).then_some(())
        });
        let left = self.preserved_values(&process);
        // Agent or trial may have ended in this moment. The spool would then contain more than metrics.
        let trial = Pid::from_raw(process.pid.try_into().expect("a process id is an i32"));
        if process_state(agent) != Some('T')
            || matches!(process_state(trial), None | Some('Z' | 'X'))
        {
            let _gone = kill(agent, Signal::SIGCONT);
            return None;
        }
        kill(agent, Signal::SIGKILL).ok()?;
        // The trial ends a moment after its agent, and takes no further step.
        for (what, pid) in [("the agent to be gone", agent), ("its trial to be gone", trial)] {
            wait_for(what, WAIT_TIMEOUT, || {
                matches!(process_state(pid), None | Some('Z' | 'X')).then_some(())
            });
        }
        self.killed.insert(process.pid, left);
        Some(process)
    }

    /// Returns the metrics of a process that are in its trial's spool or in the store.
    fn preserved_values(&self, process: &TrialProcess) -> BTreeSet<i64> {
        // The spool is read first: a report leaves it only after it is stored.
        let mut kept = spool_reader::metric_values(&self.spool_of(&process.trial));
        kept.extend(verification::stored_values(&self.bed, &self.id, &process.trial));
        kept.retain(|value| value / verification::PROCESS_FACTOR == process.pid);
        kept
    }

    fn spool_of(&self, trial: &str) -> PathBuf {
        self.bed.data_folder().join(&self.id).join(trial).join("spool")
    }

    /// Returns the agent that is the parent of a trial's process.
    fn agent_of(&self, process: &TrialProcess) -> Option<Pid> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", process.pid)).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        let words = fs::read(format!("/proc/{parent}/cmdline")).ok()?;
        let agent = self.bed.program_folder().join("trialkeeper");
        words.starts_with(agent.as_os_str().as_encoded_bytes()).then(|| Pid::from_raw(parent))
    }

    /// Lets the container of a killed agent start it again, and waits for its trial.
    pub fn restart_agent(&mut self, killed: &TrialProcess) {
        let answer: &[u8] = match self.plan.agent_restart {
            AgentRestart::Never => return,
            AgentRestart::SameAttempt => b"same\n",
            AgentRestart::NewAttempt => b"other\n",
        };
        self.restart_pipe.write_all(answer).expect("a pipe holds 64 KiB");
        let before =
            self.processes().iter().filter(|process| process.trial == killed.trial).count();
        wait_for("the trial to begin again", WAIT_TIMEOUT, || {
            let now =
                self.processes().iter().filter(|process| process.trial == killed.trial).count();
            (now > before).then_some(())
        });
    }

    /// Sets the clock of the manager, or of all agents, to `seconds` from the real time.
    pub fn set_clock(&self, of_manager: bool, seconds: i64) {
        let clock = &self.clocks[usize::from(!of_manager)];
        clock.write_all_at(&seconds.to_ne_bytes(), 0).expect("the bed is writable");
    }

    /// Lets the search run to its end.
    pub fn finish(&mut self) -> Outcome {
        self.proxy.set_network_state(NetworkState::Healthy);
        let all = self.plan.steps * usize::try_from(self.plan.trials).expect("a small number");
        // Steps of a killed trial are taken again. Surplus steps do no harm.
        self.gate.release((3 * all).min(20_000));
        if let Some(manager) = self.manager.take() {
            self.finished = Some(manager.finish(WAIT_TIMEOUT));
        }
        self.proxy.close();
        Outcome::parse(self.finished.take().expect("a manager that was killed was started again"))
    }
}

/// Returns the state letter of `/proc/PID/stat`, or `None` if the process does not exist.
fn process_state(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Pauses while faults happen. No result depends on the length of the pause.
pub fn pause(milliseconds: u64) {
    let until = std::time::Instant::now() + Duration::from_millis(milliseconds);
    while let Some(left) = until.checked_duration_since(std::time::Instant::now()) {
        std::thread::park_timeout(left);
    }
}

/// Returns a library that shifts a program's clock. It is built once, with the compiler that links Rust
/// programs.
///
/// The programs contain no hook for it, since a hook could be set in production. The library works because
/// the programs under test are linked dynamically.
fn clock_shim() -> &'static Path {
    static CLOCK_SHIM: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, built) = CLOCK_SHIM.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let (source, built) = (folder.path().join("clock.c"), folder.path().join("clock.so"));
        fs::write(&source, include_str!("clock.c")).expect("a temporary folder is writable");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&built).arg(&source);
        let status = cc.status().expect("`cc`, which links Rust programs, is installed");
        assert!(status.success(), "{cc:?}");
        (folder, built)
    });
    built
}
