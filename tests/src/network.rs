//! Machines in network namespaces. Each has its own `sshd` and its own virtual cable. No packet leaves the
//! namespaces.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::{TestBed, WAIT_TIMEOUT, wait_for};

const SSHD_PATH: &str = "/usr/sbin/sshd";
/// The first three bytes of all addresses. The manager is number 1, and the machines follow.
const ADDRESS_PREFIX: &str = "10.213.77";

/// The machines and the manager's namespace. Dropping the network kills all processes on the machines.
#[derive(Debug)]
pub struct Network<'a> {
    bed: &'a TestBed,
    /// The prefix of the namespaces' names.
    prefix: String,
    machines: Mutex<Vec<Machine>>,
}

#[derive(Debug)]
struct Machine {
    name: String,
    sshd: Child,
}

impl<'a> Network<'a> {
    /// Creates the manager's namespace.
    ///
    /// # Panics
    ///
    /// If the user is not root, the kernel has no network namespaces, or `sshd` is missing. A test
    /// that calls this function must be ignored.
    pub fn new(bed: &'a TestBed) -> Self {
        let number = bed.folder().file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let letters = number.chars().filter(char::is_ascii_alphanumeric).collect::<String>();
        let prefix = format!("tk{}", &letters[letters.len().saturating_sub(6)..]);
        let network = Self { bed, prefix, machines: Mutex::default() };
        let is_root = nix::unistd::geteuid().is_root();
        let is_ready =
            is_root && Path::new(SSHD_PATH).exists() && network.create_manager_namespace();
        assert!(is_ready, "root, `ip netns` and {SSHD_PATH} are needed");
        fs::create_dir_all("/run/sshd").expect("root can create sshd's folder");
        create_key(&bed.path("id"));
        network
    }

    fn create_manager_namespace(&self) -> bool {
        let manager = self.namespace("m");
        let made = run_ip(&["netns", "add", &manager]);
        let has_bridge = made && run_ip(&["-n", &manager, "link", "add", "hub", "type", "bridge"]);
        let address = format!("{ADDRESS_PREFIX}.1/24");
        has_bridge
            && run_ip(&["-n", &manager, "addr", "add", &address, "dev", "hub"])
            && run_ip(&["-n", &manager, "link", "set", "hub", "up"])
            && run_ip(&["-n", &manager, "link", "set", "lo", "up"])
    }

    fn namespace(&self, name: &str) -> String {
        format!("{}-{name}", self.prefix)
    }

    /// Creates a machine, and returns its entry for `machineList`. `ssh` notices a lost connection within 3
    /// s.
    pub fn add(&self, name: &str) -> Value {
        let mut machines = self.machines.lock().expect("no other thread panics");
        let (machine, manager) = (self.namespace(name), self.namespace("m"));
        let (cable, host) =
            (format!("to-{name}"), format!("{ADDRESS_PREFIX}.{}", machines.len() + 2));
        let address = format!("{host}/24");
        #[rustfmt::skip]
        let steps: [&[&str]; 7] = [
            &["netns", "add", &machine],
            &["link", "add", &cable, "netns", &manager, "type", "veth", "peer", "name", "cable", "netns", &machine],
            &["-n", &manager, "link", "set", &cable, "master", "hub"],
            &["-n", &manager, "link", "set", &cable, "up"],
            &["-n", &machine, "addr", "add", &address, "dev", "cable"],
            &["-n", &machine, "link", "set", "cable", "up"],
            &["-n", &machine, "link", "set", "lo", "up"],
        ];
        for step in steps {
            assert!(run_ip(step), "ip {step:?}");
        }
        let path = |file: &str| self.bed.path(file).display().to_string();
        create_key(&self.bed.path(&format!("{name}-host")));
        let config = format!(
            "ListenAddress {host}\nHostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nPermitRootLogin yes\nSetEnv TEST_BED={} MACHINE={name} SHLVL=1\n",
            path(&format!("{name}-host")),
            path("id.pub"),
            self.bed.folder().display(),
        );
        self.bed.write(&format!("{name}.conf"), &config);
        machines.push(Machine { name: name.to_owned(), sshd: self.start_sshd(name) });
        json!({
            "name": name,
            "host": host,
            "user": "root",
            "sshKeyFile": path("id"),
            "remoteDirectory": path(name),
            "maxTrialNumber": 1,
            "sshOptions": [
                format!("UserKnownHostsFile={}", path("known_hosts")),
                "ServerAliveInterval=1",
                "ServerAliveCountMax=2",
                "ConnectTimeout=2",
            ],
        })
    }

    fn start_sshd(&self, name: &str) -> Child {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.namespace(name), SSHD_PATH, "-D", "-f"]);
        command.arg(self.bed.path(&format!("{name}.conf")));
        command.arg("-E").arg(self.bed.path(&format!("{name}.log")));
        command.stdin(Stdio::null()).spawn().expect("sshd can be started")
    }

    /// Wraps a command so that it runs in the manager's namespace.
    pub fn in_manager_namespace(&self, command: &Command) -> Command {
        let mut inside = Command::new("ip");
        inside.args(["netns", "exec", &self.namespace("m")]);
        inside.arg(command.get_program()).args(command.get_args());
        inside.env_clear();
        for (name, value) in command.get_envs() {
            if let Some(value) = value {
                inside.env(name, value);
            }
        }
        if let Some(folder) = command.get_current_dir() {
            inside.current_dir(folder);
        }
        inside
    }

    /// Connects or disconnects a machine's cable.
    pub fn set_link(&self, name: &str, is_connected: bool) {
        let word = if is_connected { "up" } else { "down" };
        assert!(run_ip(&["-n", &self.namespace("m"), "link", "set", &format!("to-{name}"), word]));
    }

    /// Sends a signal to all processes of a machine. `SIGSTOP` freezes the machine; `SIGKILL` simulates a
    /// power failure.
    pub fn signal(&self, name: &str, signal: Signal) {
        for pid in self.processes(name) {
            // Ignored: the process may have ended.
            kill(pid, signal).ok();
        }
    }

    /// Kills a machine's `sshd` and all its connections, and starts it again.
    pub fn restart_sshd(&self, name: &str) {
        for pid in self.processes(name) {
            let program = fs::read_link(format!("/proc/{pid}/exe"));
            if program.is_ok_and(|program| program == Path::new(SSHD_PATH)) {
                kill(pid, Signal::SIGKILL).ok();
            }
        }
        let mut machines = self.machines.lock().expect("no other thread panics");
        let machine = machines.iter_mut().find(|machine| machine.name == name);
        let machine = machine.expect("the machine was added");
        machine.sshd.wait().expect("the process is a child of this process");
        machine.sshd = self.start_sshd(name);
    }

    fn processes(&self, name: &str) -> Vec<Pid> {
        let output = Command::new("ip").args(["netns", "pids", &self.namespace(name)]).output();
        let text = output.expect("ip is installed").stdout;
        let text = String::from_utf8_lossy(&text).into_owned();
        text.lines().filter_map(|line| line.trim().parse().ok()).map(Pid::from_raw).collect()
    }

    /// Waits until `sshd` is the only program on a machine.
    pub fn wait_until_idle(&self, name: &str) {
        wait_for("the machine to be idle", WAIT_TIMEOUT, || {
            let is_other = |pid: &Pid| {
                let program = fs::read_link(format!("/proc/{pid}/exe"));
                program.is_ok_and(|program| program != Path::new(SSHD_PATH))
            };
            (!self.processes(name).iter().any(is_other)).then_some(())
        });
    }
}

impl Drop for Network<'_> {
    fn drop(&mut self) {
        let machines = std::mem::take(&mut *self.machines.lock().expect("no other thread panics"));
        for mut machine in machines {
            self.signal(&machine.name, Signal::SIGKILL);
            machine.sshd.kill().ok();
            machine.sshd.wait().ok();
            run_ip(&["netns", "del", &self.namespace(&machine.name)]);
        }
        run_ip(&["netns", "del", &self.namespace("m")]);
    }
}

fn run_ip(words: &[&str]) -> bool {
    let status = Command::new("ip").args(words).stdin(Stdio::null()).stderr(Stdio::null()).status();
    status.is_ok_and(|status| status.success())
}

fn create_key(path: &Path) {
    // If the file exists, `ssh-keygen` asks before it overwrites it.
    fs::remove_file(path).ok();
    let mut keygen = Command::new("ssh-keygen");
    let made = keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
    assert!(made.expect("ssh-keygen is installed").success());
}
