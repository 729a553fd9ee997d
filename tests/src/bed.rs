//! The test bed: a folder, the programs, and the guarantee that no process outlives its test.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::{SigHandler, Signal, kill, signal};
use nix::unistd::Pid;
use rusqlite::{Connection, OpenFlags};
use tempfile::TempDir;

use crate::{RunningProgram, WAIT_TIMEOUT, programs, wait_for};

/// The environment variable that marks every process of a bed, including indirect children. The agent removes
/// variables whose names begin like its own from a trial's environment, so this name begins differently.
const BED_VARIABLE: &str = "TEST_BED";

/// Restores the default action of INT, HUP and QUIT for the programs under test. If the caller of the tests
/// ignores these signals, as `nohup` and background jobs do, its child processes would ignore them too.
fn restore_default_signals() {
    for which in [Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT] {
        #[expect(unsafe_code, reason = "nix has no safe function to set a signal's action")]
        // SAFETY: the default action runs no code of this program.
        let set = unsafe { signal(which, SigHandler::SigDfl) };
        set.expect("these signals can be set");
    }
}

/// A folder and the processes that belong to it. Dropping the bed kills the remaining processes.
#[derive(Debug)]
pub struct TestBed {
    folder: TempDir,
}

impl TestBed {
    /// Creates an empty folder.
    pub fn new() -> Self {
        restore_default_signals();
        let folder = tempfile::Builder::new().prefix("trialkeeper-").tempdir();
        Self { folder: folder.expect("a temporary folder can be made") }
    }

    /// The bed's folder.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// The folder of the programs under test.
    pub fn program_folder(&self) -> &'static Path {
        programs::program_folder()
    }

    /// A path in the bed's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The data directory of the manager.
    pub fn data_folder(&self) -> PathBuf {
        self.path("data")
    }

    /// Returns the folder of the experiment, once it exists. The bed has one experiment.
    pub fn find_experiment_folder(&self) -> Option<PathBuf> {
        let mut paths = fs::read_dir(self.data_folder()).ok()?.flatten().map(|entry| entry.path());
        paths.find(|path| path.file_name().is_some_and(|name| name.as_encoded_bytes()[0] != b'.'))
    }

    /// Returns the folder of the experiment.
    pub fn experiment_folder(&self) -> PathBuf {
        self.find_experiment_folder().expect("a search was started")
    }

    /// Returns the experiment's id, once it exists.
    pub fn find_experiment_id(&self) -> Option<String> {
        self.find_experiment_folder()?.file_name()?.to_str().map(str::to_owned)
    }

    /// Returns the experiment's id.
    pub fn experiment_id(&self) -> String {
        self.find_experiment_id().expect("a search was started")
    }

    /// Returns the URL of the experiment's manager, once the manager listens.
    pub fn find_manager_url(&self) -> Option<String> {
        let url = fs::read_to_string(self.find_experiment_folder()?.join("manager.url")).ok()?;
        Some(url.trim().to_owned())
    }

    /// Returns the URL of the experiment's manager.
    pub fn manager_url(&self) -> String {
        self.find_manager_url().expect("the manager listens")
    }

    /// Opens the database of the only experiment for reading, once it exists.
    pub fn find_store(&self) -> Option<Connection> {
        let path = self.find_experiment_folder()?.join("trialkeeper.db");
        let store = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).ok()?;
        store.busy_timeout(WAIT_TIMEOUT).ok()?;
        Some(store)
    }

    /// Returns the token that gives a user's program access to the experiment.
    pub fn user_token(&self) -> String {
        let token = fs::read_to_string(self.experiment_folder().join("user.token"));
        token.expect("the manager has written the file").trim().to_owned()
    }

    /// Writes a file, and creates its parent folders.
    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().expect("the path is below the bed's folder"))
            .expect("the bed is writable");
        fs::write(&path, text).expect("the bed is writable");
        path
    }

    /// Writes an executable file.
    pub fn write_script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.write(name, text);
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755))
            .expect("this function created the file");
        path
    }

    /// Reads a file of the bed. Returns an empty string if the file does not exist.
    pub fn read(&self, name: &str) -> String {
        fs::read_to_string(self.path(name)).unwrap_or_default()
    }

    /// Waits until a file of the bed has `count` lines.
    pub fn wait_for_lines(&self, name: &str, count: usize) {
        wait_for(&format!("{count} lines in {name}"), WAIT_TIMEOUT, || {
            (self.read(name).lines().count() == count).then_some(())
        });
    }

    /// Returns a command for `trial-manager` with a minimal environment: `PATH` and a few other variables.
    pub fn manager_command(&self) -> Command {
        self.program_command("trial-manager")
    }

    /// Returns a command for `trialkeeper` with the same environment as [`manager_command`](Self::manager_command).
    pub fn agent_command(&self) -> Command {
        self.program_command("trialkeeper")
    }

    /// Returns a Bash command with the programs in its `PATH`, for lines that a user would type. The first
    /// failing line ends it. Experiments are in [`data_folder`](Self::data_folder), and managers use free ports.
    pub fn shell_command(&self, lines: &str) -> Command {
        let mut command = self.program_command("bash");
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", self.program_folder().display()));
        command.env("TRIAL_MANAGER_DATA_DIR", self.data_folder()).env("TRIAL_MANAGER_PORT", "0");
        command.args(["-e", "-o", "pipefail", "-c", lines]);
        command
    }

    fn program_command(&self, name: &str) -> Command {
        // A name that is not a program of this workspace is searched in `PATH`.
        let own = self.program_folder().join(name);
        let mut command = Command::new(if own.exists() { own } else { name.into() });
        command.current_dir(self.folder()).env_clear();
        // `TRIAL_MANAGER_AGENT` lets a benchmark measure the released agent.
        let kept =
            ["PATH", "LLVM_PROFILE_FILE", "PYENV_ROOT", "PYENV_VERSION", "TRIAL_MANAGER_AGENT"];
        for kept in kept {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command.env("HOME", self.folder()).env("XDG_DATA_HOME", self.path("xdg"));
        command.env(BED_VARIABLE, self.folder());
        command
    }

    /// Starts a command and collects its output.
    pub fn start(&self, command: &mut Command) -> RunningProgram {
        RunningProgram::start(command)
    }

    /// Serves the pages of a stored experiment. Returns the server process and the URL.
    pub fn serve(&self, experiment: &str) -> (RunningProgram, String) {
        let mut serve = self.manager_command();
        serve.args(["serve", "--experiment", experiment, "--port", "0", "--data-dir"]);
        let serving = self.start(serve.arg(self.data_folder()));
        let file = self.data_folder().join(experiment).join("view.url");
        let url = wait_for("the pages to be served", WAIT_TIMEOUT, || {
            Some(fs::read_to_string(&file).ok()?.trim().to_owned())
        });
        (serving, url)
    }

    /// Returns every running process that descends from this bed, with its command line.
    pub fn processes(&self) -> Vec<(Pid, String)> {
        let mut mark = format!("{BED_VARIABLE}={}", self.folder().display()).into_bytes();
        mark.push(0);
        let pids = fs::read_dir("/proc")
            .expect("/proc is mounted")
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        pids.filter_map(|pid| {
            // The environment of an ended process, or of another user's process, is not readable.
            let environment = fs::read(format!("/proc/{pid}/environ")).ok()?;
            if !environment.windows(mark.len()).any(|part| part == mark) {
                return None;
            }
            let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
            Some((Pid::from_raw(pid), String::from_utf8_lossy(&words).replace('\0', " ")))
        })
        .collect()
    }

    /// Waits until no process of this bed is left. A failure lists the remaining processes.
    pub fn wait_until_empty(&self) {
        let began = Instant::now();
        loop {
            let left = self.processes();
            if left.is_empty() {
                return;
            }
            assert!(
                began.elapsed() < WAIT_TIMEOUT,
                "waited {WAIT_TIMEOUT:?} without success for the end of {left:?}"
            );
            std::thread::park_timeout(Duration::from_millis(2));
        }
    }
}

impl Default for TestBed {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for TestBed {
    fn drop(&mut self) {
        // Parents may start children between two passes.
        for _ in 0..20 {
            let left = self.processes();
            if left.is_empty() {
                break;
            }
            for (pid, _) in left {
                // Ignored: the process may have ended.
                let _ended = kill(pid, Signal::SIGKILL);
            }
            std::thread::park_timeout(std::time::Duration::from_millis(5));
        }
        if std::thread::panicking() && std::env::var_os("TRIALKEEPER_TEST_KEEP").is_some() {
            self.folder.disable_cleanup(true);
            #[expect(clippy::print_stderr, reason = "the user asked to keep the folder")]
            {
                eprintln!("kept {}", self.folder().display());
            }
        }
    }
}
