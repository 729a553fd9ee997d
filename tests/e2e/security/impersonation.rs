//! Another user of the machine takes the port of a dead manager.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::path::Path;
use std::sync::{Arc, Mutex};

use nix::sys::signal::Signal;
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, wait_for};

/// A false manager. It acknowledges every report, sends a new token, and records the received bytes.
pub(crate) struct FakeManager {
    received: Arc<Mutex<Vec<u8>>>,
}

impl FakeManager {
    pub(crate) fn listen(address: &str) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let received = Arc::new(Mutex::new(Vec::new()));
        let all = Arc::clone(&received);
        std::thread::spawn(move || {
            for mut stream in listener.incoming().flatten() {
                let mut part = vec![0; 1 << 20];
                let read = stream.read(&mut part).unwrap_or(0);
                all.lock().unwrap().extend_from_slice(&part[..read]);
                let ack = r#"{"offer":["report.v1"],"through":9000000000000000000,"token":"tk2.hostile"}"#;
                let headers =
                    "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\nconnection: close";
                let answer = format!("{headers}\r\ncontent-length: {}\r\n\r\n{ack}", ack.len());
                drop(stream.write_all(answer.as_bytes()));
            }
        });
        Self { received }
    }

    pub(crate) fn received(&self) -> String {
        String::from_utf8_lossy(&self.received.lock().unwrap()).into_owned()
    }
}

/// Returns the trials' folders of an experiment.
fn trial_folders(folder: &Path) -> Vec<std::path::PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    entries.filter(|path| path.join("token").exists()).collect()
}

#[test]
fn a_process_on_a_dead_manager_s_port_gets_no_token_and_no_result() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let line = format!(
        "echo step=1; read _ <{}; for i in 2 3 4 5; do echo step=$i; done",
        gate.path().display()
    );
    let search = Search::new(&line, 2).with("trialConcurrency", 2).with("objective", "step");
    let manager = search.start(&bed);
    let folder = wait_for("two trials to run", WAIT_TIMEOUT, || {
        let folder = bed.find_experiment_folder()?;
        let started = |trial: &std::path::PathBuf| {
            fs::read_to_string(trial.join("stdout")).is_ok_and(|text| text.contains("step=1"))
        };
        (trial_folders(&folder).iter().filter(|trial| started(trial)).count() == 2)
            .then_some(folder)
    });
    let id = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let url = bed.manager_url();
    let tokens =
        || trial_folders(&folder).into_iter().map(|trial| fs::read_to_string(trial.join("token")));
    let before: Vec<_> = tokens().map(Result::unwrap).collect();
    manager.signal(Signal::SIGKILL);
    manager.finish(WAIT_TIMEOUT);
    let imposter = FakeManager::listen(url.strip_prefix("http://").unwrap());

    for words in [
        &["trial", "ls"][..],
        &["trial", "stop", "0"],
        &["experiment", "stop"],
        &["trial", "logs", "0"],
        &["open", "--print"],
    ] {
        let mut command = bed.manager_command();
        command.args(words).args(["--experiment", &id]).arg("--data-dir").arg(bed.data_folder());
        bed.start(&mut command).finish(WAIT_TIMEOUT);
    }
    gate.release(2);
    wait_for("both verdicts", WAIT_TIMEOUT, || {
        let ended = trial_folders(&folder).iter().all(|trial| trial.join("verdict.json").exists());
        ended.then_some(())
    });

    let search = Outcome::run_resume(&bed, &id);
    assert_eq!(imposter.received(), "", "an agent or a command sent data to the false manager");
    let after: Vec<_> = tokens().map(Result::unwrap).collect();
    assert!(after.iter().all(|token| token.starts_with("tk2.") && !token.contains("hostile")));
    assert_eq!(before.len(), after.len());
    search.expect_done(2, 0);
    for trial in &search.trials {
        assert_eq!(trial.intermediate, [1, 2, 3, 4, 5].map(serde_json::Value::from), "{trial:?}");
    }
    bed.wait_until_empty();
}

#[test]
fn a_verdict_in_the_trial_s_folder_replaces_a_lost_report() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let line = format!("echo start >>../starts; echo step=1; read _ <{}", gate.path().display());
    let search = Search::new(&line, 1);
    let manager = search.start(&bed);
    let trial = wait_for("the trial to run", WAIT_TIMEOUT, || {
        let folder = bed.find_experiment_folder()?;
        let trial = trial_folders(&folder).pop()?;
        fs::read_to_string(trial.join("stdout")).ok()?.contains("step=1").then_some(trial)
    });
    manager.signal(Signal::SIGKILL);
    manager.finish(WAIT_TIMEOUT);
    gate.release(1);
    wait_for("the verdict", WAIT_TIMEOUT, || trial.join("verdict.json").exists().then_some(()));
    let agent = fs::read_to_string(trial.join("spool/lock")).unwrap();
    let agent = agent.lines().next().unwrap().parse().unwrap();
    // This empties the spool, as after a false ack to an agent of an earlier version.
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(agent), Signal::SIGKILL).ok();
    wait_for("the agent's end", WAIT_TIMEOUT, || {
        let lock = fs::File::open(trial.join("spool/lock")).unwrap();
        lock.try_lock().ok()
    });
    for attempt in fs::read_dir(trial.join("spool")).unwrap().flatten() {
        if attempt.path().is_dir() {
            fs::remove_dir_all(attempt.path()).unwrap();
        }
    }
    let id = trial.parent().unwrap().file_name().unwrap().to_str().unwrap().to_owned();
    let search = Outcome::run_resume(&bed, &id);
    search.expect_done(1, 0);
    assert_eq!(bed.read("starts"), "start\n", "the trial must not run again");
    bed.wait_until_empty();
}
