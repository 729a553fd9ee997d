//! At an interactive terminal: the trial reads from it, is interrupted and stopped by its keys, and gives it back.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use crate::bed::{until, with_default_signals};

/// An interactive shell at a terminal of its own, created by `script` (util-linux).
struct Session {
    script: Child,
    keys: Option<ChildStdin>,
    screen: Arc<Mutex<Vec<u8>>>,
    seen: usize,
    _dir: TempDir,
}

impl Session {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        // The prompt cannot come from the environment: the shell that `script` starts removes it.
        std::fs::write(dir.path().join("rc"), "PS1='ready> '\n").unwrap();
        let mut script = with_default_signals("script")
            .args(["--quiet", "--command", "bash --rcfile rc -i", "/dev/null"])
            .env("KEEPER", env!("CARGO_BIN_EXE_trialkeeper"))
            .env("TERM", "dumb")
            .current_dir(&dir)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let screen = Arc::new(Mutex::new(Vec::new()));
        let (mut output, drawn) = (script.stdout.take().unwrap(), Arc::clone(&screen));
        thread::spawn(move || {
            let mut some = [0; 4096];
            while let Ok(length @ 1..) = output.read(&mut some) {
                drawn.lock().unwrap().extend_from_slice(&some[..length]);
            }
        });
        let keys = script.stdin.take();
        let mut session = Self { script, keys, screen, seen: 0, _dir: dir };
        session.expect("ready> ");
        session
    }

    fn press(&mut self, keys: &str) -> &mut Self {
        self.keys.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
        self
    }

    /// Waits until `text` appears, after the text of the previous wait.
    fn expect(&mut self, text: &str) -> &mut Self {
        let find = || {
            let screen = self.screen.lock().unwrap();
            let new = String::from_utf8_lossy(&screen[self.seen..]).into_owned();
            new.find(text).map(|at| self.seen + at + text.len())
        };
        until(&format!("{text:?} on the screen"), || find().is_some());
        self.seen = find().unwrap();
        self
    }

    /// Waits until all of `texts` appear, in any order, because two programs print them.
    fn expect_all(&mut self, texts: &[&str]) -> &mut Self {
        let from = self.seen;
        let mut last = from;
        for text in texts {
            self.seen = from;
            last = last.max(self.expect(text).seen);
        }
        self.seen = last;
        self
    }

    /// Starts a trial from a shell line.
    fn trial(&mut self, line: &str, after: &str) -> &mut Self {
        let command = format!("\"$KEEPER\" run --output-dir out --shell '{line}' {after}\n");
        self.press(&command).expect("\n")
    }

    /// Lists the shell's jobs repeatedly until one is in `state`.
    fn until_a_job_is(&mut self, state: &str) -> &mut Self {
        loop {
            let from = self.seen;
            self.press("jobs; echo the\"\"se\n").expect("these\r\n").expect("ready> ");
            let screen = self.screen.lock().unwrap();
            if String::from_utf8_lossy(&screen[from..self.seen]).contains(state) {
                break;
            }
        }
        self
    }

    /// Waits until the shell has the terminal and reads from it.
    fn answers(&mut self) {
        self.press("echo an\"\"swer\n").expect("answer\r\n").expect("ready> ");
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        if thread::panicking() {
            let screen = self.screen.lock().unwrap();
            drop(writeln!(std::io::stderr(), "{}", String::from_utf8_lossy(&screen)));
            self.script.kill().unwrap();
        } else {
            self.press("exit\n");
        }
        drop(self.keys.take());
        self.script.wait().unwrap();
    }
}

#[test]
fn the_trial_reads_from_the_terminal_and_gives_it_back() {
    let mut session = Session::new();
    session.trial("echo who; read x; echo it is $x", "").expect("who\r\n").press("me\n");
    session.expect("it is me\r\n").expect("exit code  0").expect("ready> ").answers();
}

#[test]
fn in_a_pipeline_the_pager_gets_the_terminal() {
    let mut session = Session::new();
    // Acts like a pager: reads a line, configures the terminal, which would stop a background job, and reads the rest.
    let pager = "sh -c 'read x; stty -echo </dev/tty; wc -c; stty echo </dev/tty'";
    session.trial("echo first; seq 1 50000", &format!("2>/dev/null | {pager}"));
    session.expect("288894").expect("ready> ").answers();
}

#[test]
fn a_trial_in_a_pipeline_can_read_from_the_terminal() {
    let mut session = Session::new();
    session.trial("echo who; read x; echo it is $x", "| cat").expect("who\r\n").press("me\n");
    session.expect_all(&["it is me\r\n", "exit code  0"]).expect("ready> ").answers();
}

#[test]
fn an_interrupt_reaches_the_trial_and_the_verdict() {
    let mut session = Session::new();
    session.trial("echo up; exec sleep 1000", "; echo code $?").expect("up\r\n").press("\x03");
    session.expect("A user interrupted the trial").expect("code 130").expect("ready> ").answers();
}

#[test]
fn a_trial_that_is_stopped_and_continued_has_the_terminal_again() {
    let mut session = Session::new();
    session.trial("echo who; read x; echo it is $x", "").expect("who\r\n").press("\x1a");
    session.expect("Stopped").expect("ready> ").answers();
    session.press("fg\n").expect("run --output-dir").press("me\n").expect("it is me\r\n");
    session.expect("exit code  0").expect("ready> ").answers();
}

#[test]
fn a_background_trial_leaves_the_terminal_to_the_shell_until_fg() {
    let mut session = Session::new();
    // The trial reads only after the shell has registered the job, because Bash loses an earlier stop.
    let line = "echo who; until [ -e ready ]; do sleep 0.01; done; read x; echo it is $x";
    session.trial(line, "&").answers();
    session.press("touch ready\n").answers();
    session.until_a_job_is("Stopped").press("fg\n");
    session
        .expect("run --output-dir")
        .press("me\n")
        .expect("it is me\r\n")
        .expect("ready> ")
        .answers();
}

#[test]
fn the_terminal_modes_are_restored_after_a_kill() {
    let mut session = Session::new();
    session.trial("stty -echo -icanon; kill -9 $$", "; echo code $?").expect("code 137");
    session.expect("ready> ").press("stty -a\n").expect(" icanon ").expect(" echo ").answers();
}

#[test]
fn a_trial_that_cannot_be_started_leaves_the_terminal_to_the_shell() {
    let mut session = Session::new();
    session
        .press("\"$KEEPER\" run --output-dir out -- no-such-program-here\n")
        .expect("cannot find");
    session.expect("ready> ").answers();
}
