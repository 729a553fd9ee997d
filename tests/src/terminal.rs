//! A pseudoterminal for tests: it records the output of a program, sends keys, and changes its size.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};

use nix::pty::{Winsize, openpty};
use nix::sys::termios::{LocalFlags, tcgetattr};

/// A pseudoterminal and the program that runs on it.
#[derive(Debug)]
pub struct Terminal {
    master: File,
    slave: OwnedFd,
    output: Arc<Mutex<Vec<u8>>>,
    child: Child,
}

impl Terminal {
    /// Starts a command with a new terminal of this size as its controlling terminal.
    pub fn start(command: &Command, columns: u16, rows: u16) -> Self {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        let pair = openpty(Some(&size), None).expect("the system has pseudoterminals");
        let end = || Stdio::from(pair.slave.try_clone().expect("a descriptor can be copied"));
        // `setsid` of util-linux gives the program its own session and this terminal.
        let mut session = Command::new("setsid");
        session.args(["--ctty", "--"]).arg(command.get_program()).args(command.get_args());
        if let Some(folder) = command.get_current_dir() {
            session.current_dir(folder);
        }
        session.env_clear();
        let variables = command.get_envs().filter_map(|(name, value)| Some((name, value?)));
        session.envs(variables).env("TERM", "xterm");
        let child = session.stdin(end()).stdout(end()).stderr(end()).spawn();
        let child = child.unwrap_or_else(|error| panic!("setsid (Debian's util-linux): {error}"));
        let master = File::from(pair.master);
        let mut reader = master.try_clone().expect("a descriptor can be copied");
        let output = Arc::<Mutex<Vec<u8>>>::default();
        let sink = Arc::clone(&output);
        std::thread::spawn(move || {
            let mut chunk = vec![0; 64 * 1024];
            while let Ok(length @ 1..) = reader.read(&mut chunk) {
                sink.lock().expect("no other thread panics").extend_from_slice(&chunk[..length]);
            }
        });
        Self { master, slave: pair.slave, output, child }
    }

    /// Returns all output so far.
    pub fn output(&self) -> String {
        String::from_utf8_lossy(&self.output.lock().expect("no other thread panics")).into_owned()
    }

    /// Returns the lines of the newest complete screen: from cursor home to the erasure of the remaining
    /// screen.
    pub fn screen(&self) -> Vec<String> {
        let output = self.output();
        let Some((whole, _)) = output.rsplit_once("\u{1b}[J") else { return Vec::new() };
        let newest = whole.rsplit_once("\u{1b}[H").map_or(whole, |(_, newest)| newest);
        newest.split("\r\n").map(|line| line.replace("\u{1b}[K", "")).collect()
    }

    /// Sends keys to the program.
    pub fn press_keys(&self, keys: &str) {
        (&self.master).write_all(keys.as_bytes()).expect("the terminal is open");
    }

    /// Changes the size of the terminal.
    pub fn resize(&self, columns: u16, rows: u16) {
        let slave = self.slave.try_clone().expect("a descriptor can be copied");
        let mut stty = Command::new("stty");
        stty.args(["cols", &columns.to_string(), "rows", &rows.to_string()]).stdin(slave);
        assert!(stty.status().expect("coreutils are installed").success());
    }

    /// Returns `true` if the terminal echoes input and turns Ctrl-C into a signal, as a shell expects.
    pub fn is_in_line_mode(&self) -> bool {
        let modes = tcgetattr(&self.slave).expect("the terminal is open").local_flags;
        modes.contains(LocalFlags::ECHO | LocalFlags::ICANON | LocalFlags::ISIG)
    }

    /// The program's exit code, once it has ended.
    pub fn exit_code(&mut self) -> Option<Option<i32>> {
        self.child
            .try_wait()
            .expect("the process is a child of this process")
            .map(|status| status.code())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // Both calls fail only if the process has ended.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
