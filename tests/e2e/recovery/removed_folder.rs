//! A cleaner of temporary folders removes files of a running experiment.

use std::fs;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use trialkeeper_tests::{Gate, Outcome, Search, TestBed, WAIT_TIMEOUT, http_get, wait_for};

/// Creates a search whose trials wait at a gate. They record their starts outside of the experiment's folder.
fn waiting_search(bed: &TestBed, gate: &Gate, trials: u32) -> Search {
    let (starts, gate) = (bed.path("starts"), gate.path().display().to_string());
    let line = format!("echo start >>{}; read _ <{gate}; echo score=1", starts.display());
    Search::new(&line, trials).with("trialConcurrency", 1)
}

/// Returns the experiment's folder after the first trial has started.
fn folder_of_running(bed: &TestBed) -> PathBuf {
    wait_for("the first trial to run", WAIT_TIMEOUT, || {
        fs::read(bed.path("starts")).ok().filter(|text| !text.is_empty())?;
        bed.find_experiment_folder()
    })
}

#[test]
fn a_removed_address_and_socket_are_created_again() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let manager = waiting_search(&bed, &gate, 3).start(&bed);
    let folder = folder_of_running(&bed);
    let (url, socket) = (folder.join("manager.url"), folder.join("manager.sock"));
    let before = fs::read_to_string(&url).unwrap();
    fs::remove_file(&url).unwrap();
    fs::remove_file(&socket).unwrap();
    wait_for("both files", WAIT_TIMEOUT, || (url.exists() && socket.exists()).then_some(()));
    assert_eq!(fs::read_to_string(&url).unwrap(), before);
    let id = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let mut list = bed.manager_command();
    list.args(["trial", "ls", "--experiment", &id]).arg("--data-dir").arg(bed.data_folder());
    let listed = bed.start(&mut list).finish(WAIT_TIMEOUT);
    assert_eq!(listed.code, Some(0), "the new socket does not answer: {}", listed.stderr);
    gate.release(3);
    Outcome::parse(manager.finish(WAIT_TIMEOUT)).expect_done(3, 0);
    bed.wait_until_empty();
}

#[test]
fn an_experiment_whose_trials_run_without_a_manager_is_not_removed() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let running = waiting_search(&bed, &gate, 1).start(&bed);
    let folder = folder_of_running(&bed);
    running.signal(Signal::SIGKILL);
    drop(running.finish(WAIT_TIMEOUT));
    let id = folder.file_name().unwrap().to_str().unwrap().to_owned();
    let remove = || {
        let mut command = bed.manager_command();
        command.args(["experiment", "rm", &id, "--data-dir"]).arg(bed.data_folder());
        bed.start(&mut command).finish(WAIT_TIMEOUT)
    };
    let refused = remove();
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("still run"), "{}", refused.stderr);
    assert!(folder.exists());
    let mut clean = bed.manager_command();
    clean.args(["clean", &id, "--data-dir"]).arg(bed.data_folder());
    let cleaned = bed.start(&mut clean).finish(WAIT_TIMEOUT);
    assert_eq!(cleaned.code, Some(0), "{}", cleaned.stderr);
    let note = format!("1 trial of experiment {id} has no recorded end");
    assert!(cleaned.stderr.contains(&note), "{}", cleaned.stderr);
    assert!(cleaned.stderr.contains("trial-manager resume"), "{}", cleaned.stderr);
    bed.wait_until_empty();
    drop(gate);
    assert_eq!(remove().code, Some(0));
    assert!(!folder.exists());
}

#[test]
fn a_search_without_its_folder_reports_it_and_starts_no_more_trials() {
    let bed = TestBed::new();
    let gate = Gate::new(&bed.path("gate"));
    let manager = waiting_search(&bed, &gate, 3).start(&bed);
    let folder = folder_of_running(&bed);
    let url = bed.manager_url();
    wait_for("the removal of the folder", WAIT_TIMEOUT, || {
        drop(fs::remove_dir_all(&folder));
        (!folder.exists()).then_some(())
    });
    // A write during the removal may fail with another error first.
    wait_for("the manager to notice", WAIT_TIMEOUT, || {
        let (status, body) = http_get(url.trim(), "/healthz")?;
        (status == 503 && body.contains("removed or replaced")).then_some(())
    });
    let (_, shown) = http_get(url.trim(), "/api/v1/experiment").unwrap();
    assert!(shown.contains("removed or replaced"), "{shown}");
    let (_, page) = http_get(url.trim(), "/").unwrap();
    assert!(page.contains("removed or replaced"), "{page}");
    gate.release(1);
    // The agent may still run: the manager asks it to wait, and its reports have no folder.
    let is_trial = |line: &str| line.contains("read _") && !line.contains("--manager-file");
    wait_for("the trial's end", WAIT_TIMEOUT, || {
        bed.processes().iter().all(|(_, line)| !is_trial(line)).then_some(())
    });
    wait_for("a message in the log", WAIT_TIMEOUT, || {
        manager.stderr().contains("removed or replaced").then_some(())
    });
    assert_eq!(http_get(url.trim(), "/healthz").unwrap().0, 503, "the manager must stay degraded");
    manager.signal(Signal::SIGTERM);
    let finished = manager.finish(WAIT_TIMEOUT);
    assert_eq!(finished.code, Some(3), "{}", finished.stderr);
    assert!(finished.stderr.contains("removed or replaced"), "{}", finished.stderr);
    assert_eq!(bed.read("starts"), "start\n", "another trial was started");
}

#[test]
fn an_experiment_without_its_code_is_readable_but_not_resumed() {
    let bed = TestBed::new();
    let done = Search::new("echo score=1", 1).run(&bed);
    done.expect_done(1, 0);
    fs::remove_dir_all(bed.path("code")).unwrap();
    let run = |words: &[&str]| {
        let mut command = bed.manager_command();
        command.args(words).arg("--data-dir").arg(bed.data_folder());
        bed.start(&mut command).finish(WAIT_TIMEOUT)
    };
    let trial = done.trial(0).id.clone();
    for words in [
        &["trial", "ls", "-e", &done.id][..],
        &["trial", "show", &trial, "-e", &done.id],
        &["experiment", "show", &done.id],
        &["experiment", "export", &done.id, "--format", "csv"],
        &["ls"],
    ] {
        let read = run(words);
        let text = String::from_utf8(read.stdout).unwrap();
        assert!(read.code == Some(0) && !text.is_empty(), "{words:?}: {text}{}", read.stderr);
    }
    assert_eq!(run(&["trial", "rerun", &trial, "-e", &done.id]).code, Some(0));
    let refused = run(&["resume", &done.id]);
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    let gone = format!("trialCodeDirectory: {} does not exist", bed.path("code").display());
    assert!(refused.stderr.contains(&gone), "{}", refused.stderr);
    assert_eq!(
        run(&["trial", "ls", "-e", &done.id]).code,
        Some(0),
        "the experiment must stay readable"
    );
}
