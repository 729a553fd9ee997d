//! Plugins: a user's training services, which the manager starts, loses and starts again.

use std::fs;
use std::path::{Path, PathBuf};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

use super::gated_trial::{TRAIN_SCRIPT, expect_complete_output, wait_for_starts};

/// A plugin that runs each job and violates the protocol: banners, debug output, incomplete lines, repeated
/// and unexpected answers. It reports an end before the answer and again afterwards, and the end of a job
/// that does not exist.
const NOISY_PLUGIN: &str = r#"
import json, subprocess, sys
def say(message): print(json.dumps(message), flush=True)
print("Welcome to the cluster!", flush=True)
print("[]\n\n{\"id\": 99, \"result\": 1}", flush=True)
sys.stdout.buffer.write(b"\xff\x00\n" + b"x" * 1100000 + b"\n"); sys.stdout.flush()
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message["params"]
    answer = {"jsonrpc": "2.0", "id": message["id"], "result": {}}
    if method == "initialize":
        answer["result"] = {"protocol": 1, "surprise": [None]}
    if method == "open":
        files = {file["name"]: file["path"] for file in params["files"]}
        agent = params["agent"]
    if method == "submit":
        job = {file["name"]: file["path"] for file in params["files"]}
        where = {"shared": lambda name: files[name], "job": lambda name: job[name],
                 "work": lambda name: params["folder"] + "/" + name}
        words = [word if isinstance(word, str) else where[word["in"]](word["name"]) for word in params["args"]]
        code = subprocess.run([agent, *words], stdout=sys.stderr).returncode
        gone = {"method": "gone", "params": {"key": params["key"], "exit": {"code": code}, "reason": "exit"}}
        say({"method": "gone", "params": {"key": {**params["key"], "trial": "nobody"}}})
        say({"method": "gone", "params": {"key": "?"}})
        say({"method": "sings"})
        say(gone)
        say(answer)
        say(gone)
    print("debug output", flush=True)
    say(answer)
"#;

/// A plugin that reports much while it opens, and then pulls an image for minutes. The check of the experiment file
/// starts the plugin without opening it.
const OPENING_PLUGIN: &str = r#"
import json, os, sys, time
def say(message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    if message["method"] == "open":
        for number in range(30000):
            say({"method": "log", "params": {"level": "debug", "message": str(number)}})
        open(os.environ["TEST_BED"] + "/opening", "w").close()
        time.sleep(300)
    say({"id": message["id"], "result": {"protocol": 1} if message["method"] == "initialize" else {}})
"#;

/// A plugin that runs each job and is slow: each answer arrives late, in pieces, and after the answers to later
/// requests.
const SLOW_PLUGIN: &str = r#"
import itertools, json, subprocess, sys, threading, time
lock = threading.Lock()
def say(message):
    line = json.dumps({"jsonrpc": "2.0", **message}) + "\n"
    with lock:
        for at in range(0, len(line), 40):
            sys.stdout.write(line[at:at + 40]); sys.stdout.flush(); time.sleep(0.01)
def handle(message, pause):
    method, params = message["method"], message["params"]
    result = {"protocol": 1} if method == "initialize" else {}
    if method == "open":
        files.update({file["name"]: file["path"] for file in params["files"]}, agent=params["agent"])
    time.sleep(pause)
    say({"id": message["id"], "result": result})
    if method == "submit":
        job = {file["name"]: file["path"] for file in params["files"]}
        where = {"shared": lambda name: files[name], "job": lambda name: job[name],
                 "work": lambda name: params["folder"] + "/" + name}
        words = [word if isinstance(word, str) else where[word["in"]](word["name"]) for word in params["args"]]
        code = subprocess.run([files["agent"], *words], stdout=sys.stderr).returncode
        say({"method": "gone", "params": {"key": params["key"], "exit": {"code": code}, "reason": "exit"}})
files, pauses = {}, itertools.cycle([0.6, 0.3, 0.1])
for line in sys.stdin:
    threading.Thread(target=handle, args=[json.loads(line), next(pauses)], daemon=True).start()
"#;

/// A plugin whose machine has no memory left: each job is killed before its agent has reported.
const STARVED_PLUGIN: &str = r#"
import json, sys
def say(message): print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)
for line in sys.stdin:
    message = json.loads(line)
    result = {"protocol": 1} if message["method"] == "initialize" else {}
    say({"id": message["id"], "result": result})
    if message["method"] == "submit":
        gone = {"key": message["params"]["key"], "exit": {"signal": 9}, "reason": "oom"}
        say({"method": "gone", "params": gone})
"#;

/// The number of cases of the conformance test.
const CONFORMANCE_CASES: usize = 22;

/// A plugin without optional capabilities, whose jobs are processes. `list` names them.
const PLAIN_PLUGIN: &str = r#"
import json, os, signal, subprocess, sys
file = "jobs.json"
def alive(job):
    try: return open(f"/proc/{job['handle']}/stat").read().split(") ")[1][0] != "Z"
    except OSError: return False
for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message["params"]
    jobs = json.load(open(file)) if os.path.exists(file) else []
    result = {}
    if method == "initialize":
        result = {"protocol": 1}
        print(json.dumps({"method": "log", "params": {"message": "hello"}}), flush=True)
    if method == "submit":
        job = subprocess.Popen(["sleep", "600"], stdin=subprocess.DEVNULL, stdout=2, start_new_session=True)
        jobs.append({"key": params["key"], "handle": job.pid})
        json.dump(jobs, open(file, "w"))
    if method == "cancel":
        for job in jobs:
            if job["key"] == params["key"] and alive(job): os.kill(job["handle"], signal.SIGKILL)
        result = {"known": True}
    if method == "list":
        result = {"jobs": [{**job, "phase": "running" if alive(job) else "gone"} for job in jobs]}
    print(json.dumps({"id": message["id"], "result": result}), flush=True)
"#;

/// A plugin whose first process for the jobs stops answering after the start. The next one answers all requests.
const SILENT_PLUGIN: &str = r#"
import json, sys
with open("processes", "a+") as processes:
    processes.write("one\n")
    processes.seek(0)
    # `run` has checked the plugin with a process of its own.
    first = len(processes.readlines()) == 2
for line in sys.stdin:
    message = json.loads(line)
    result = {"protocol": 1, "capabilities": {"room": True}} if message["method"] == "initialize" else {}
    if message["method"] == "room" and first and message["id"] > 3: continue
    print(json.dumps({"id": message["id"], "result": result}), flush=True)
    if message["method"] == "submit" and not first:
        gone = {"key": message["params"]["key"], "exit": {"code": 3}, "reason": "exit", "class": "permanent"}
        print(json.dumps({"method": "gone", "params": gone}), flush=True)
"#;

pub(super) fn repository_root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .expect("the package is in the workspace")
        .to_owned()
}

/// Returns the section of the example plugin that runs jobs as processes.
pub(super) fn process_plugin() -> Value {
    let module = repository_root().join("python/src").display().to_string();
    let program = repository_root().join("examples/plugins/processes.py");
    json!({"platform": "plugin", "command": ["env", format!("PYTHONPATH={module}"), "python3", program]})
}

fn search(bed: &TestBed, service: &Value, trials: u32) -> Search {
    bed.write_script("code/train.sh", TRAIN_SCRIPT);
    let command = format!("BED='{}' ./train.sh", bed.folder().display());
    Search::new(&command, trials)
        .with("trialConcurrency", 2)
        .with("trialCodeDirectory", "code")
        .with("trainingService", service.clone())
}

/// Waits for the plugin's process, which must differ from `before`.
fn wait_for_plugin(bed: &TestBed, before: Option<Pid>) -> Pid {
    wait_for("the plugin's process", WAIT_TIMEOUT, || {
        let is_plugin = |words: &str| words.contains("processes.py");
        let found = bed.processes().into_iter().find(|(_, words)| is_plugin(words))?.0;
        (Some(found) != before).then_some(found)
    })
}

#[test]
fn a_search_runs_on_a_plugin() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    gate.release(6);
    let done = search(&bed, &process_plugin(), 6).run(&bed);
    expect_complete_output(&bed, &done, 6);
    bed.wait_until_empty();
}

#[test]
fn a_killed_plugin_is_restarted_and_no_trial_runs_twice() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let manager = search(&bed, &process_plugin(), 4).start(&bed);
    wait_for_starts(&bed, 2);
    let first = wait_for_plugin(&bed, None);
    kill(first, Signal::SIGKILL).unwrap();
    let second = wait_for_plugin(&bed, Some(first));
    gate.release(1);
    wait_for_starts(&bed, 3);
    kill(second, Signal::SIGKILL).unwrap();
    gate.release(3);
    expect_complete_output(&bed, &Outcome::parse(manager.finish(WAIT_TIMEOUT)), 4);
    bed.wait_until_empty();
}

#[test]
fn a_resumed_manager_finds_its_trials_on_the_plugin() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let manager = search(&bed, &process_plugin(), 3).start(&bed);
    wait_for_starts(&bed, 2);
    manager.signal(Signal::SIGKILL);
    manager.finish(WAIT_TIMEOUT);
    let id = bed.experiment_id();
    let resumed = Outcome::start_resume(&bed, &id);
    gate.release(3);
    expect_complete_output(&bed, &Outcome::parse(resumed.finish(WAIT_TIMEOUT)), 3);
}

#[test]
fn an_interrupted_search_ends_its_trials_on_the_plugin() {
    let bed = TestBed::new();
    let _gate = Gate::new(&bed.path("gate"));
    let manager = search(&bed, &process_plugin(), 4).start(&bed);
    let mut trials = wait_for_starts(&bed, 2);
    manager.signal(Signal::SIGINT);
    let finished = manager.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    let mut cleaned: Vec<_> = bed.read("cleaned").lines().map(str::to_owned).collect();
    trials.sort();
    cleaned.sort();
    assert_eq!(cleaned, trials, "a trial did not get SIGTERM");
    bed.wait_until_empty();
}

#[test]
fn a_search_runs_on_a_plugin_that_violates_the_protocol() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    gate.release(3);
    let program = bed.write("noisy.py", NOISY_PLUGIN);
    let service = json!({"platform": "plugin", "command": ["python3", program]});
    let done = search(&bed, &service, 3).with("trialConcurrency", 1).run(&bed);
    expect_complete_output(&bed, &done, 3);
    let name = format!("the plugin `python3 {}`", program.display());
    #[rustfmt::skip]
    let expected = [
        format!("a line of {name} is not a JSON object; a plugin must not print to its standard output, so print to standard error instead: \"Welcome to the cluster!\""),
        format!("{name} answered request 99, which is not pending; a plugin must answer each request once"),
    ];
    for message in expected {
        assert!(done.stderr.contains(&message), "{message}: {}", done.stderr);
    }
}

#[test]
fn an_interrupt_ends_a_search_whose_plugin_opens() {
    let bed = TestBed::new();
    let service = json!({"platform": "plugin", "command": ["python3", bed.write_script("slow.py", OPENING_PLUGIN)]});
    let running = search(&bed, &service, 1).start(&bed);
    wait_for("the plugin to report everything", WAIT_TIMEOUT, || {
        bed.path("opening").exists().then_some(())
    });
    running.signal(Signal::SIGINT);
    let finished = running.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(130), "{}", finished.stderr);
    bed.wait_until_empty();
}

#[test]
fn a_search_runs_on_a_plugin_that_answers_late() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    gate.release(4);
    let program = bed.write("slow.py", SLOW_PLUGIN);
    let service = json!({"platform": "plugin", "command": ["python3", program]});
    expect_complete_output(&bed, &search(&bed, &service, 4).run(&bed), 4);
}

#[test]
fn clean_cancels_the_jobs_of_a_plugin_without_clean_up() {
    let bed = TestBed::new();
    let program = bed.write("plain.py", PLAIN_PLUGIN);
    let service = json!({"platform": "plugin", "command": ["python3", program]});
    let manager = search(&bed, &service, 2).start(&bed);
    let jobs = || {
        let sleeping = |words: &str| words.starts_with("sleep 600");
        bed.processes().into_iter().filter(|(_, words)| sleeping(words)).count()
    };
    wait_for("both jobs", WAIT_TIMEOUT, || (jobs() == 2).then_some(()));
    // The plugin writes its file after it starts a job.
    wait_for("the record of both jobs", WAIT_TIMEOUT, || {
        let record: Value = serde_json::from_str(&bed.read("code/jobs.json")).ok()?;
        (record.as_array()?.len() == 2).then_some(())
    });
    manager.signal(Signal::SIGKILL);
    manager.finish(WAIT_TIMEOUT);
    let id = bed.experiment_id();
    let mut clean = bed.manager_command();
    clean.arg("clean").arg(&id).arg("--data-dir").arg(bed.data_folder());
    let cleaned = bed.start(&mut clean).finish(WAIT_TIMEOUT);
    assert_eq!((cleaned.code, jobs()), (Some(0), 0), "{}", cleaned.stderr);
    assert!(cleaned.stderr.contains("has no capability `clean_up`"), "{}", cleaned.stderr);
    bed.wait_until_empty();
}

#[test]
fn a_plugin_that_does_not_answer_is_replaced() {
    let bed = TestBed::new();
    let program = bed.write("silent.py", SILENT_PLUGIN);
    let service = json!({"platform": "plugin", "command": ["python3", program]});
    let done = search(&bed, &service, 1).run(&bed);
    done.expect_done(0, 1);
    let name = format!("the plugin `python3 {}`: no answer to room within 30 s", program.display());
    assert!(done.stderr.contains(&name), "{}", done.stderr);
    bed.wait_until_empty();
}

#[test]
fn a_trial_that_the_platform_killed_for_memory_has_that_cause() {
    let bed = TestBed::new();
    let program = bed.write("starved.py", STARVED_PLUGIN);
    let service = json!({"platform": "plugin", "command": ["python3", program]});
    let done = search(&bed, &service, 1).run(&bed);
    done.expect_done(0, 1);
    let message = "FAILED (exit code 137): the job used more memory than the platform allows";
    assert!(done.stderr.contains(message), "{}", done.stderr);
    let trial = |words: &[&str]| {
        let mut command = bed.manager_command();
        command.arg("trial").args(words).arg("--data-dir").arg(bed.data_folder());
        String::from_utf8(bed.start(&mut command).finish(WAIT_TIMEOUT).stdout).unwrap()
    };
    let why: Vec<_> = trial(&["why", "0"]).split_whitespace().map(str::to_owned).collect();
    assert!(why.join(" ").contains("cause oom-kernel class user-error"), "{why:?}");
    let found = trial(&["ls", "--cause", "oom-kernel", "--output", "json"]);
    assert!(found.contains(&done.trial(0).id), "{found}");
}

#[test]
fn an_unusable_plugin_is_refused_before_the_search() {
    let answers = |answer: &str| {
        json!([
            "python3",
            "-c",
            format!("import sys\nfor line in sys.stdin: print({answer:?}, flush=True)")
        ])
    };
    #[rustfmt::skip]
    let table = [
        (json!(["./nothing"]),   "trainingService.command: `", "cannot be started: No such file or directory"),
        (json!(["false"]),       "trainingService.command: `false`", "it ended before it answered"),
        (json!(["sh", "-c", "echo no licence >&2"]), "trainingService.command: `", "no licence"),
        (answers(r#"{"id": 1, "result": {"protocol": 7}}"#), "trainingService.command: `", "uses version 7 of the protocol, and this trial-manager uses version 1; update trial-manager"),
        (answers(r#"{"id": 1, "result": {"protocol": 0}}"#), "trainingService.command: `", "uses version 0 of the protocol, and this trial-manager uses version 1; update the plugin"),
        (answers(r#"{"id": 1, "result": {}}"#), "trainingService.command: the answer of `", "to initialize cannot be read"),
        (answers(r#"{"id": 1, "error": {"code": -32008, "message": "settings.partition: there is none"}}"#), "trainingService: the plugin `", "reports: settings.partition: there is none"),
    ];
    for (command, start, message) in table {
        let bed = TestBed::new();
        let service = json!({"platform": "plugin", "command": command});
        let finished = search(&bed, &service, 1).start(&bed).finish(WAIT_TIMEOUT);
        assert_eq!(finished.code, Some(2), "{command}: {}", finished.stderr);
        let stderr = &finished.stderr;
        assert!(stderr.contains(start) && stderr.contains(message), "{command}: {stderr}");
        let left = fs::read_dir(bed.data_folder()).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{command}: a folder remains");
    }
}

/// Python lines that delay the agent of each job of the example.
macro_rules! slow_start {
    () => {
        "SHELL[2] = SHELL[2].replace('exec', 'sleep 1 && exec')\n"
    };
}

/// Runs `trial-manager conformance` on the example, changed by these lines of Python.
fn run_conformance(bed: &TestBed, changes: &str, only: &str) -> (Option<i32>, String) {
    let folder = repository_root().join("examples/plugins").display().to_string();
    let program = format!(
        "import sys; sys.path.insert(0, {folder:?})\nfrom processes import *\nfrom trialkeeper.service import Refused, agent_lives\n{changes}\nProcesses().serve()\n"
    );
    let program = bed.write("processes_under_test.py", &program);
    let module = format!("PYTHONPATH={}", repository_root().join("python/src").display());
    let mut command = bed.manager_command();
    command
        .args(["conformance", "--parallel", "4", "--case", only, "--", "env", &module, "python3"])
        .arg(program);
    let finished = bed.start(command.current_dir(bed.folder())).finish(WAIT_TIMEOUT);
    (finished.code, String::from_utf8(finished.stdout).unwrap())
}

#[test]
fn the_example_passes_the_conformance_scenario() {
    let bed = TestBed::new();
    let (code, stdout) = run_conformance(&bed, "", "");
    assert_eq!(stdout.lines().count(), CONFORMANCE_CASES, "{stdout}");
    assert!(stdout.lines().all(|line| line.starts_with("ok ")), "{stdout}");
    assert_eq!(code, Some(0));
    // A stop that arrives before the agent has its lock.
    let (code, stdout) = run_conformance(&bed, slow_start!(), "right after");
    assert_eq!(code, Some(0), "{stdout}");
    bed.wait_until_empty();
}

#[test]
fn a_plugin_that_violates_the_protocol_fails_the_conformance_scenario() {
    let good = "ok    reports the end of a job that succeeds\n";
    #[rustfmt::skip]
    let table = [
        ("Processes.look = lambda self, handle, job: Running() if agent_lives(job.folder) or not Path(job.folder, 'stdout').exists() else Gone(code=0)",
         "reports the e", "FAIL  reports the exit code of a job that fails: its end: (Some(0), Exit) instead of (Some(3), Exit)"),
        ("Processes._initialize = lambda self, params: {'protocol': 1}",
         "version", "FAIL  refuses an unsupported version: it accepts versions 7 to 9"),
        ("Processes._cancel = lambda self, record, params: {}",
         "stopped before", "FAIL  never starts an attempt that was stopped before its submit: the answer to cancel is {}, without `known`"),
        ("Processes.room = lambda self: 0\nProcesses._result = lambda self, method, params, own=Processes._result: {'free': 'two'} if method == 'room' else own(self, method, params)",
         "its room", "FAIL  reports its room as a number of jobs: the answer to `room` is \"two\", which is not a number of jobs"),
        ("Processes.poll = lambda self, jobs, own=Processes.poll: ([self._tell_gone(record) for record in self._all()], own(self, jobs))[1]",
         "that succeeds", "FAIL  reports the end of a job that succeeds: reports of its end: "),
        ("Processes.stop = lambda self, handle, job, force: os.kill(int(handle), signal.SIGKILL) if agent_lives(job.folder) else None",
         "ignores SIGTERM", "FAIL  kills a stopped job that ignores SIGTERM: SIGTERM received by the trial: false instead of true"),
        ("Processes.look = lambda self, handle, job: Running() if agent_lives(job.folder) or not Path(job.folder, 'spool', 'lock').exists() else Gone(code=0)",
         "was killed", "FAIL  notices that a job's agent was killed: success in the report of its end"),
        ("Processes._clean_up = lambda self, own=Processes._clean_up: ([self.stop(record.handle, record.job(), True) for record in self._all()], {'left': []})[1]",
         "nothing behind", "FAIL  leaves nothing behind after clean_up: jobs in the list: "),
        (concat!(slow_start!(), "Processes.stop = lambda self, handle, job, force: os.kill(int(handle), signal.SIGKILL if force else signal.SIGTERM) if agent_lives(job.folder) else None"),
         "right after", "FAIL  stops a job right after its submit: SIGTERM received by the trial: false instead of true"),
        ("Processes.start = lambda self, job: (_ for _ in ()).throw(Refused('no'))",
         "three times", "FAIL  starts a job only once if it is submitted three times: submit: no"),
    ];
    for (changes, only, expected) in table {
        let bed = TestBed::new();
        let (code, stdout) = run_conformance(&bed, changes, only);
        assert!(stdout.contains(expected), "{changes}: {stdout}");
        assert!(only != "reports the e" || stdout.contains(good), "{stdout}");
        assert_eq!(code, Some(1), "{changes}: {stdout}");
    }
}
