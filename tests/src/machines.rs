//! Remote machines for tests, reached with the real `ssh` and `sshd`. Each `sshd` serves one connection on
//! its standard streams, so the tests need no port and no daemon.

use std::fs;
use std::path::Path;
use std::process::Command;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::TestBed;

const SSHD_PATH: &str = "/usr/sbin/sshd";

/// Machines in a bed. Each has its own host key and folder.
#[derive(Debug)]
pub struct Machines<'a> {
    bed: &'a TestBed,
}

impl<'a> Machines<'a> {
    /// Creates the user's SSH key.
    ///
    /// # Panics
    ///
    /// If `sshd` is missing. A test that calls this function must be ignored.
    pub fn new(bed: &'a TestBed) -> Self {
        assert!(Path::new(SSHD_PATH).exists(), "{SSHD_PATH} is missing; install openssh-server");
        if nix::unistd::geteuid().is_root() {
            fs::create_dir_all("/run/sshd").expect("root can create sshd's folder");
        }
        let machines = Self { bed };
        machines.create_key("id");
        machines
    }

    /// Creates a machine, and returns its entry for `machineList`.
    pub fn add(&self, name: &str) -> Value {
        self.create_key(&format!("{name}-host"));
        let path = |file: &str| self.bed.path(file).display().to_string();
        // With `SHLVL=1`, bash does not read the developer's `.bashrc` for a connection.
        let config = format!(
            "HostKey {}\nAuthorizedKeysFile {}\nPidFile none\nUsePAM no\nStrictModes no\n\
             PasswordAuthentication no\nPermitRootLogin yes\nSetEnv TEST_BED={} MACHINE={name} SHLVL=1\n",
            path(&format!("{name}-host")),
            path("id.pub"),
            self.bed.folder().display(),
        );
        let config = self.bed.write(&format!("{name}.conf"), &config).display().to_string();
        let (pids, away) = (path(&format!("{name}.pids")), path(&format!("{name}.away")));
        let line = format!(
            "#!/bin/sh\n[ -e {away} ] && exit 1\necho $$ >>{pids}\nexec {SSHD_PATH} -i -f {config} -E {config}.log\n"
        );
        let connect = self.bed.write_script(&format!("{name}.sh"), &line).display().to_string();
        json!({
            "name": name,
            "host": name,
            "sshKeyFile": path("id"),
            "remoteDirectory": path(name),
            "sshOptions": [format!("ProxyCommand={connect}"), format!("UserKnownHostsFile={}", path("known_hosts"))],
        })
    }

    /// Cuts all connections to a machine. Its trials keep running.
    pub fn cut_connections(&self, name: &str) {
        let pids = self.bed.read(&format!("{name}.pids"));
        let pids = pids.lines().filter_map(|line| line.parse().ok());
        for pid in pids.filter(|pid| is_connection(*pid, name)) {
            // Ignored: the connection may have ended.
            kill(Pid::from_raw(pid), Signal::SIGKILL).ok();
        }
    }

    /// Makes a machine unreachable until [`reconnect`](Self::reconnect). Its trials keep running.
    pub fn disconnect(&self, name: &str) {
        self.bed.write(&format!("{name}.away"), "");
        self.cut_connections(name);
    }

    /// Makes a machine reachable again.
    pub fn reconnect(&self, name: &str) {
        fs::remove_file(self.bed.path(&format!("{name}.away")))
            .expect("the machine was disconnected");
    }

    /// Adds an option to the configuration of a machine's `sshd`. It applies from the next connection.
    pub fn add_sshd_option(&self, name: &str, option: &str) {
        let config = self.bed.read(&format!("{name}.conf"));
        self.bed.write(&format!("{name}.conf"), &format!("{config}{option}\n"));
    }

    /// Gives a machine another host key, as if a different machine had its address.
    pub fn replace_host_key(&self, name: &str) {
        let host = fs::read_to_string(self.bed.path(&format!("{name}-host.pub")));
        let known = format!("{name} {}", host.expect("the machine was added"));
        self.bed.write("known_hosts", &known);
        self.create_key(&format!("{name}-host"));
    }

    /// Makes a machine accept only this password of the superuser. The password is valid only in the mount namespace
    /// of the machine's `sshd`, which needs root.
    ///
    /// # Panics
    ///
    /// If the user is not root, or `openssl` is missing.
    pub fn require_password(&self, name: &str, password: &str) {
        let mut openssl = Command::new("openssl");
        let hash = openssl.args(["passwd", "-6", password]).output().expect("openssl is installed");
        let hash = String::from_utf8_lossy(&hash.stdout).trim().to_owned();
        let shadow = fs::read_to_string("/etc/shadow").expect("root can read the file");
        let others = shadow.lines().filter(|line| !line.starts_with("root:"));
        let lines: Vec<_> =
            others.map(str::to_owned).chain([format!("root:{hash}:1::::::")]).collect();
        self.bed.write(&format!("{name}.shadow"), &format!("{}\n", lines.join("\n")));
        let config = self.bed.read(&format!("{name}.conf"));
        let password = "PasswordAuthentication yes\nPubkeyAuthentication no";
        let config = config.replace("PasswordAuthentication no", password);
        self.bed.write(&format!("{name}.conf"), &config);
        self.replace_file(name, &format!("{name}.shadow"), "/etc/shadow");
    }

    /// Replaces a file of a machine by one of the bed, in the mount namespace of each later connection.
    pub fn replace_file(&self, name: &str, file: &str, place: &str) {
        let file = self.bed.path(file).display().to_string();
        let connect = self.bed.read(&format!("{name}.sh"));
        let inside =
            format!("unshare -m sh -c 'mount --bind {file} {place} && exec \"$@\"' sh {SSHD_PATH}");
        self.bed.write_script(&format!("{name}.sh"), &connect.replacen(SSHD_PATH, &inside, 1));
    }

    fn create_key(&self, name: &str) {
        let path = self.bed.path(name);
        // If the file exists, `ssh-keygen` asks before it overwrites it.
        fs::remove_file(&path).ok();
        let mut keygen = Command::new("ssh-keygen");
        let made = keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).status();
        assert!(made.expect("ssh-keygen is installed").success());
    }
}

/// Returns whether a process serves a connection to a machine, as the script that becomes `sshd` or as `sshd`. The id of
/// an ended connection may belong to another process.
fn is_connection(pid: i32, name: &str) -> bool {
    let words = fs::read_to_string(format!("/proc/{pid}/cmdline"));
    words.is_ok_and(|words| words.contains("sshd") || words.contains(&format!("/{name}.sh")))
}
