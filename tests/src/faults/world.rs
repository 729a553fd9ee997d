//! A search of real programs behind the proxy, and what can be done to it.

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

use super::plan::{Container, Plan};
use super::proxy::Proxy;
use super::weather::Weather;
use super::{spooled, truth};
use crate::{BOUND, Finished, Gate, Outcome, Running, Search, TestBed, wait_for};

/// A trial's process: everything it prints follows from its process id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Life {
    /// Which trial.
    pub trial: String,
    /// Its process id.
    pub pid: i64,
    /// How many steps it is known to have taken.
    pub steps: usize,
    /// What was left of it when its agent was killed: the metrics that were in the spool or in the store.
    /// `None`: it was not killed.
    pub left: Option<BTreeSet<i64>>,
}

/// A search, and everything around it.
#[derive(Debug)]
pub struct World {
    /// Folder and processes.
    pub bed: TestBed,
    /// Between agents and manager.
    pub proxy: Proxy,
    gate: Gate,
    restart: File,
    clocks: [File; 2],
    manager: Option<Running>,
    /// The manager's end, where it has come.
    finished: Option<Finished>,
    /// The experiment.
    pub id: String,
    plan: Plan,
    killed: BTreeMap<i64, BTreeSet<i64>>,
    spools: Option<Disk>,
}

/// A small file system in memory; unmounted when it is dropped.
#[derive(Debug)]
pub struct Disk(PathBuf);

impl Disk {
    /// Mounts one of so many KiB at `path`. `None`, with the reason printed, where that is not allowed.
    pub fn mount(path: &Path, kib: u64) -> Option<Self> {
        fs::create_dir_all(path).expect("the bed is writable");
        let options = format!("size={kib}k");
        let flags = nix::mount::MsFlags::empty();
        let mounted =
            nix::mount::mount(Some("tmpfs"), path, Some("tmpfs"), flags, Some(options.as_str()));
        match mounted {
            Ok(()) => Some(Self(path.to_owned())),
            Err(error) => {
                #[expect(clippy::print_stderr, reason = "what is left out is said")]
                {
                    eprintln!("left out: a small disk cannot be mounted here ({error})");
                }
                None
            }
        }
    }

    /// Uses up all of its room.
    pub fn fill(&self) {
        let mut ballast = File::create(self.ballast()).expect("it is writable");
        // Large pieces first, then what is left in small ones.
        for piece in [1 << 20, 4096, 1] {
            while ballast.write_all(&vec![b'x'; piece]).is_ok() {}
        }
    }

    /// Gives the room back.
    pub fn empty(&self) {
        fs::remove_file(self.ballast()).expect("it was filled");
    }

    /// Hidden, and no experiment's name.
    fn ballast(&self) -> PathBuf {
        self.0.join(".ballast")
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // Detached: whoever still has a file open keeps it until it is closed.
        let _gone = nix::mount::umount2(&self.0, nix::mount::MntFlags::MNT_DETACH);
    }
}

impl World {
    /// Starts the plan's search and waits for its trials.
    pub fn start(plan: &Plan) -> Self {
        let bed = TestBed::new();
        let proxy = Proxy::start(plan.seed);
        bed.write("proxy.url", &format!("{}\n", proxy.url(plan.far)));
        let gate = Gate::new(&bed.path("gate"));
        mkfifo(&bed.path("restart"), Mode::S_IRWXU).expect("the bed is writable");
        let restart = OpenOptions::new()
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
        bed.script("container", include_str!("container.sh"));
        bed.script("code/trial.sh", include_str!("trial.sh"));
        let spools = plan.spool_kib.and_then(|kib| Disk::mount(&bed.path("spools"), kib));
        let mut world = Self {
            bed,
            proxy,
            gate,
            restart,
            clocks,
            manager: None,
            finished: None,
            id: String::new(),
            plan: plan.clone(),
            killed: BTreeMap::new(),
            spools,
        };
        world.begin();
        world
    }

    /// Starts the manager, kills it early if that is planned, and waits for the trials.
    fn begin(&mut self) {
        let trials = self.plan.trials;
        let search = Search::new("exec ./trial.sh", trials).with("trialConcurrency", trials);
        self.manager = Some(self.start_manager(search.command(&self.bed)));
        if let Some(after) = self.plan.early_kill_ms {
            pause(after);
            self.end_manager();
        }
        self.id = if self.manager.is_some() {
            wait_for("the experiment's folder", BOUND, || self.experiment())
        } else {
            match self.experiment().filter(|id| self.is_recorded(id)) {
                Some(id) => id,
                None => {
                    // It died before it had recorded anything: then nothing has been started either.
                    assert_eq!(self.lives(), [], "a trial was started that is not recorded");
                    drop(fs::remove_dir_all(self.bed.data()));
                    self.manager = Some(self.start_manager(search.command(&self.bed)));
                    wait_for("the experiment's folder", BOUND, || self.experiment())
                }
            }
        };
        self.proxy.forward_to(&self.bed.data().join(&self.id).join("manager.url"));
        if self.manager.is_none() {
            self.resume();
        }
        let all = usize::try_from(trials).expect("few");
        wait_for("all trials to begin", BOUND, || (self.lives().len() >= all).then_some(()));
    }

    fn experiment(&self) -> Option<String> {
        let entry = fs::read_dir(self.bed.data()).ok()?.next()?.ok()?;
        entry.file_name().into_string().ok()
    }

    fn is_recorded(&self, id: &str) -> bool {
        truth::open(&self.bed, id)
            .and_then(|store| store.query_row("SELECT 1 FROM experiment", [], |_| Ok(())).ok())
            .is_some()
    }

    fn start_manager(&self, mut command: Command) -> Running {
        let plan = &self.plan;
        command.args(["--agent".as_ref(), self.bed.path("container").as_os_str()]);
        command
            .env("BED", self.bed.folder())
            .env("KEEPER", self.bed.programs().join("trialkeeper"));
        command.env("STEPS", plan.steps.saturating_mul(plan.burst).to_string());
        command.env("BURST", plan.burst.to_string()).env("PAD", plan.padding());
        command.env("FLUSH", format!("{}ms", plan.flush_ms));
        command.env("IN_PLACE", if plan.container == Container::Gone { "" } else { "yes" });
        let spools = self.spools.as_ref().map_or(OsStr::new(""), |disk| disk.path().as_os_str());
        command.env("SPOOLS", spools);
        command.env("LD_PRELOAD", clock_shim()).env("FAULTS_CLOCK", self.bed.path("manager.clock"));
        self.bed.start(&mut command)
    }

    /// Kills the manager; `false` if it had come to its end by itself.
    pub fn end_manager(&mut self) -> bool {
        let Some(manager) = self.manager.take() else { return false };
        manager.signal(Signal::SIGKILL);
        let finished = manager.finish(BOUND);
        let killed = finished.code.is_none();
        if !killed {
            self.finished = Some(finished);
        }
        killed
    }

    /// Goes on with the experiment.
    pub fn resume(&mut self) {
        let command = Outcome::resume_command(&self.bed, &self.id);
        self.manager = Some(self.start_manager(command));
    }

    /// Whether the experiment has come to its end.
    pub fn is_over(&self) -> bool {
        self.finished.is_some()
    }

    /// Lets trials take steps, and says how many are known to have been taken before.
    pub fn open(&self, steps: usize) -> usize {
        let taken = self.taken();
        self.gate.open(steps);
        taken
    }

    /// Waits until so many steps more than `before` have been taken, or all that are left.
    pub fn wait_for_steps(&self, before: usize, steps: usize) {
        wait_for("the trials' steps", BOUND, || {
            (self.taken() >= before + steps || self.living().is_empty()).then_some(())
        });
    }

    fn taken(&self) -> usize {
        self.lives().iter().map(|life| life.steps).sum()
    }

    /// Every process that was ever a trial's, by its own record, in order of their starts.
    pub fn lives(&self) -> Vec<Life> {
        let mut lives: Vec<Life> = Vec::new();
        let record = self.bed.read("record");
        // The last line may be in the making.
        for line in record.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let words: Vec<&str> = line.split(' ').collect();
            let [trial, pid, what] = words[..] else { panic!("the record says {line:?}") };
            let pid = pid.parse().expect("a process id");
            match lives.iter_mut().find(|life| life.pid == pid) {
                Some(life) => life.steps += 1,
                None => {
                    assert_eq!(what, "start", "the record says {line:?}");
                    let left = self.killed.get(&pid).cloned();
                    lives.push(Life { trial: trial.to_owned(), pid, steps: 0, left });
                }
            }
        }
        lives
    }

    /// The trials' present processes, as far as they have steps to take.
    pub fn living(&self) -> Vec<Life> {
        let mut lives = self.lives();
        lives.retain(|life| life.left.is_none() && life.steps < self.plan.steps);
        lives
    }

    /// Kills the agent of a living trial, and its trial with it, at a moment when it is known what must not
    /// get lost. With `settled` that is everything the trial has recorded. `None` if no trial lives.
    pub fn kill_agent(&mut self, which: usize, settled: bool) -> Option<Life> {
        let living = self.living();
        let life = living.get(which % living.len().max(1))?.clone();
        let agent = self.agent_of(&life)?;
        if settled && self.spools.is_none() && self.manager.is_some() {
            // Nothing depends on the network: what is printed is in the spool soon.
            let printed = life.steps * self.plan.burst;
            wait_for("what was printed to be kept", BOUND, || {
                (self.kept(&life).len() >= printed).then_some(())
            });
        }
        // Stopped first, so that spool and store can be compared with what comes of them.
        kill(agent, Signal::SIGSTOP).ok()?;
        wait_for("the agent to stop", BOUND, || {
            matches!(state_of(agent), None | Some('T' | 't' | 'Z' | 'X')).then_some(())
        });
        let left = self.kept(&life);
        // It, or its trial, may have ended by itself in the very moment; then there is more to tell than metrics.
        let trial = Pid::from_raw(life.pid.try_into().expect("a process id is an i32"));
        if state_of(agent) != Some('T') || matches!(state_of(trial), None | Some('Z' | 'X')) {
            let _gone = kill(agent, Signal::SIGCONT);
            return None;
        }
        kill(agent, Signal::SIGKILL).ok()?;
        // The trial goes with it, a moment later, and takes no step after this.
        for (what, pid) in [("the agent to be gone", agent), ("its trial to be gone", trial)] {
            wait_for(what, BOUND, || matches!(state_of(pid), None | Some('Z' | 'X')).then_some(()));
        }
        self.killed.insert(life.pid, left);
        Some(life)
    }

    /// The metrics of a life that are in its trial's spool or in the store.
    fn kept(&self, life: &Life) -> BTreeSet<i64> {
        // The spool first: what leaves it is in the store before.
        let mut kept = spooled::values(&self.spool_of(&life.trial));
        kept.extend(truth::values(&self.bed, &self.id, &life.trial));
        kept.retain(|value| value / truth::LIFE == life.pid);
        kept
    }

    fn spool_of(&self, trial: &str) -> PathBuf {
        self.bed.data().join(&self.id).join(trial).join("spool")
    }

    /// The agent that a trial's process runs below.
    fn agent_of(&self, life: &Life) -> Option<Pid> {
        let stat = fs::read_to_string(format!("/proc/{}/stat", life.pid)).ok()?;
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        let words = fs::read(format!("/proc/{parent}/cmdline")).ok()?;
        let keeper = self.bed.programs().join("trialkeeper");
        words.starts_with(keeper.as_os_str().as_encoded_bytes()).then(|| Pid::from_raw(parent))
    }

    /// Has a killed agent's container start it again, and waits for its trial.
    pub fn restart(&mut self, killed: &Life) {
        let answer: &[u8] = match self.plan.container {
            Container::Gone => return,
            Container::SameAttempt => b"same\n",
            Container::OtherAttempt => b"other\n",
        };
        self.restart.write_all(answer).expect("a pipe holds 64 KiB");
        let before = self.lives().iter().filter(|life| life.trial == killed.trial).count();
        wait_for("the trial to begin again", BOUND, || {
            let now = self.lives().iter().filter(|life| life.trial == killed.trial).count();
            (now > before).then_some(())
        });
    }

    /// Sets the manager's clock, or all agents', off by so many seconds.
    pub fn set_clock(&self, managers: bool, seconds: i64) {
        let clock = &self.clocks[usize::from(!managers)];
        clock.write_all_at(&seconds.to_ne_bytes(), 0).expect("the bed is writable");
    }

    /// Lets everything come to its end.
    pub fn finish(&mut self) -> Outcome {
        self.proxy.set(Weather::Calm);
        let all = self.plan.steps * usize::try_from(self.plan.trials).expect("few");
        // Steps that died with a trial are taken again; a step too many harms nobody.
        self.gate.open((3 * all).min(20_000));
        if let Some(manager) = self.manager.take() {
            self.finished = Some(manager.finish(BOUND));
        }
        self.proxy.close();
        Outcome::of(self.finished.take().expect("a manager that was killed was started again"))
    }
}

/// One letter of `/proc/PID/stat`; `None` if there is no such process.
fn state_of(pid: Pid) -> Option<char> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(')')?.1.trim_start().chars().next()
}

/// Lets time go by in which faults happen; nothing depends on how much it is.
pub fn pause(milliseconds: u64) {
    let until = std::time::Instant::now() + Duration::from_millis(milliseconds);
    while let Some(left) = until.checked_duration_since(std::time::Instant::now()) {
        std::thread::park_timeout(left);
    }
}

/// The library that sets a program's clock off; built once, with the compiler that links Rust programs too.
///
/// The programs themselves know nothing of it: no hook in them could be set in production. It works since
/// the programs under test are linked dynamically.
fn clock_shim() -> &'static Path {
    static BUILT: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, built) = BUILT.get_or_init(|| {
        let folder = tempfile::tempdir().expect("a temporary folder can be made");
        let (source, built) = (folder.path().join("clock.c"), folder.path().join("clock.so"));
        fs::write(&source, include_str!("clock.c")).expect("a temporary folder is writable");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&built).arg(&source);
        let status = cc.status().expect("`cc`, which links Rust programs, is there");
        assert!(status.success(), "{cc:?}");
        (folder, built)
    });
    built
}
