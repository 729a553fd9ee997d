//! At an interactive terminal: the trial reads from it, is interrupted and stopped by its keys, and gives it back.

use std::io::{Read, Write};
use std::process::{Child, ChildStdin, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use tempfile::TempDir;

use crate::test_agent::{wait_until, with_default_signals};

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
        session.wait_for_text("ready> ");
        session
    }

    fn press(&mut self, keys: &str) -> &mut Self {
        self.keys.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
        self
    }

    /// Waits until `text` appears, after the text of the previous wait.
    fn wait_for_text(&mut self, text: &str) -> &mut Self {
        let find = || {
            let screen = self.screen.lock().unwrap();
            let new = String::from_utf8_lossy(&screen[self.seen..]).into_owned();
            new.find(text).map(|at| self.seen + at + text.len())
        };
        wait_until(&format!("{text:?} on the screen"), || find().is_some());
        self.seen = find().unwrap();
        self
    }

    /// Waits until all of `texts` appear, in any order, because two programs print them.
    fn wait_for_texts(&mut self, texts: &[&str]) -> &mut Self {
        let from = self.seen;
        let mut last = from;
        for text in texts {
            self.seen = from;
            last = last.max(self.wait_for_text(text).seen);
        }
        self.seen = last;
        self
    }

    /// Starts a trial from a shell line.
    fn start_trial(&mut self, line: &str, after: &str) -> &mut Self {
        let command = format!("\"$KEEPER\" run --output-dir out --shell '{line}' {after}\n");
        self.press(&command).wait_for_text("\n")
    }

    /// Lists the shell's jobs repeatedly until one is in `state`.
    fn wait_for_job(&mut self, state: &str) -> &mut Self {
        loop {
            let from = self.seen;
            self.press("jobs; echo the\"\"se\n")
                .wait_for_text("these\r\n")
                .wait_for_text("ready> ");
            let screen = self.screen.lock().unwrap();
            if String::from_utf8_lossy(&screen[from..self.seen]).contains(state) {
                break;
            }
        }
        self
    }

    /// Waits until the shell has the terminal and reads from it.
    fn wait_for_prompt(&mut self) {
        self.press("echo an\"\"swer\n").wait_for_text("answer\r\n").wait_for_text("ready> ");
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
    session
        .start_trial("echo who; read x; echo it is $x", "")
        .wait_for_text("who\r\n")
        .press("me\n");
    session
        .wait_for_text("it is me\r\n")
        .wait_for_text("exit code  0")
        .wait_for_text("ready> ")
        .wait_for_prompt();
}

#[test]
fn in_a_pipeline_the_pager_gets_the_terminal() {
    let mut session = Session::new();
    // Acts like a pager: reads a line, configures the terminal, which would stop a background job, and reads the rest.
    let pager = "sh -c 'read x; stty -echo </dev/tty; wc -c; stty echo </dev/tty'";
    session.start_trial("echo first; seq 1 50000", &format!("2>/dev/null | {pager}"));
    session.wait_for_text("288894").wait_for_text("ready> ").wait_for_prompt();
}

#[test]
fn a_trial_in_a_pipeline_can_read_from_the_terminal() {
    let mut session = Session::new();
    session
        .start_trial("echo who; read x; echo it is $x", "| cat")
        .wait_for_text("who\r\n")
        .press("me\n");
    session
        .wait_for_texts(&["it is me\r\n", "exit code  0"])
        .wait_for_text("ready> ")
        .wait_for_prompt();
}

#[test]
fn an_interrupt_reaches_the_trial_and_the_verdict() {
    let mut session = Session::new();
    session.start_trial("echo up; exec sleep 1000", "").wait_for_text("up\r\n").press("\x03");
    session
        .wait_for_text("A user interrupted the trial")
        .wait_for_text("ready> ")
        .press("echo code $?\n")
        .wait_for_text("code 130")
        .wait_for_text("ready> ")
        .wait_for_prompt();
}

#[test]
fn an_interrupt_ends_a_loop_and_a_script_of_trials() {
    let trial = r#""$KEEPER" run --output-dir out$i --shell "echo up $i; exec sleep 1000""#;
    let start = format!("for i in 1 2; do {trial}; done");
    for line in [start.clone(), format!("bash -c '{}'", start.replace('\'', "'\\''"))] {
        let mut session = Session::new();
        session.press(&format!("{line}\n")).wait_for_text("\n");
        session.wait_for_text("up 1\r\n").press("\x03");
        session.wait_for_text("A user interrupted the trial").wait_for_text("ready> ");
        session.wait_for_prompt();
        let screen = session.screen.lock().unwrap().clone();
        assert!(!String::from_utf8_lossy(&screen).contains("up 2\r\n"), "{line}");
    }
}

#[test]
fn a_trial_that_is_stopped_and_continued_has_the_terminal_again() {
    let mut session = Session::new();
    session
        .start_trial("echo who; read x; echo it is $x", "")
        .wait_for_text("who\r\n")
        .press("\x1a");
    session.wait_for_text("Stopped").wait_for_text("ready> ").wait_for_prompt();
    session
        .press("fg\n")
        .wait_for_text("run --output-dir")
        .press("me\n")
        .wait_for_text("it is me\r\n");
    session.wait_for_text("exit code  0").wait_for_text("ready> ").wait_for_prompt();
}

#[test]
fn a_background_trial_leaves_the_terminal_to_the_shell_until_fg() {
    let mut session = Session::new();
    // The trial reads only after the shell has registered the job, because Bash loses an earlier stop.
    let line = "echo who; until [ -e ready ]; do sleep 0.01; done; read x; echo it is $x";
    session.start_trial(line, "&").wait_for_prompt();
    session.press("touch ready\n").wait_for_prompt();
    session.wait_for_job("Stopped").press("fg\n");
    session
        .wait_for_text("run --output-dir")
        .press("me\n")
        .wait_for_text("it is me\r\n")
        .wait_for_text("ready> ")
        .wait_for_prompt();
}

#[test]
fn the_terminal_modes_are_restored_after_a_kill() {
    let mut session = Session::new();
    session
        .start_trial("stty -echo -icanon; kill -9 $$", "; echo code $?")
        .wait_for_text("code 137");
    session
        .wait_for_text("ready> ")
        .press("stty -a\n")
        .wait_for_text(" icanon ")
        .wait_for_text(" echo ")
        .wait_for_prompt();
}

#[test]
fn a_trial_that_cannot_be_started_leaves_the_terminal_to_the_shell() {
    let mut session = Session::new();
    session
        .press("\"$KEEPER\" run --output-dir out -- no-such-program-here\n")
        .wait_for_text("cannot find");
    session.wait_for_text("ready> ").wait_for_prompt();
}
