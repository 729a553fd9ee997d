//! Tests of the local service with real processes. A shell script replaces the agent. The script records its arguments,
//! holds the lock like the agent, and ends as the test determines.

use std::time::Duration;

use serde_json::json;
use tokio::sync::mpsc;
use trial_protocol::Direction;

use super::super::Token;
use super::*;

/// A script that replaces the agent. `run` holds the lock, records the arguments, runs the last argument as a shell
/// line, and ends with its exit code. `replay` only records the call.
const AGENT_SCRIPT: &str = r#"#!/bin/sh
mode="$1"; shift
if [ "$mode" = replay ]; then echo "$@" >> "$1/replayed"; exit 0; fi
for argument; do
    [ "$previous" = --output-dir ] && dir="$argument"
    [ "$previous" = --attempt ] && attempt="$argument"
    previous="$argument"; line="$argument"
done
mkdir -p "$dir/spool"
exec 9<>"$dir/spool/lock"
flock -n 9 || exit 125
printf '%s\n' $$ "$attempt" > "$dir/spool/lock"
printf '%s\n' "$@" > "$dir/arguments"
eval "$line"
"#;

struct TestBed {
    root: Arc<tempfile::TempDir>,
    service: Local,
    events: mpsc::UnboundedReceiver<JobNews>,
}

fn test_bed_in(root: Arc<tempfile::TempDir>) -> TestBed {
    let agent = root.path().join("agent");
    write_file(&agent, 0o755, AGENT_SCRIPT).unwrap();
    let experiment = ExperimentId::new("exp").unwrap();
    let (events, receiver) = mpsc::unbounded_channel();
    let settings = Settings {
        agent,
        experiment: experiment.clone(),
        dir: ExperimentDir::new(root.path(), &experiment),
        code_directory: root.path().to_owned(),
        code_archive: None,
        agents: AgentSettings {
            objective: Some("loss".to_owned()),
            direction: Some(Direction::Minimize),
        },
        ca_file: None,
        secret_variables: Vec::new(),
        secret: Arc::new(Secret::load_or_create(&root.path().join("secret")).unwrap()),
        events,
    };
    let wanted = gpus::GpuRequest {
        per_trial: Some(0),
        trials_per_gpu: 1,
        indices: None,
        includes_active: true,
    };
    let service = Local::new(settings, Gpus::new(&wanted, &[]).unwrap());
    TestBed { root, service, events: receiver }
}

fn test_bed() -> TestBed {
    test_bed_in(Arc::new(tempfile::tempdir().unwrap()))
}

fn job(line: &str) -> TrialJobSpec {
    TrialJobSpec {
        experiment: ExperimentId::new("exp").unwrap(),
        trial: trial(),
        attempt: attempt(),
        sequence: 7,
        command: line.to_owned(),
        parameter_record: json!({ "parameters": { "x": 1 } }),
        token: Token("hush".to_owned()),
    }
}

fn trial() -> TrialJobId {
    TrialJobId::new("abcde").unwrap()
}

fn attempt() -> AttemptId {
    AttemptId::new("abcde-1").unwrap()
}

impl TestBed {
    /// Waits until this service knows the agent that another manager's service started.
    async fn wait_until_known(&self, other: &Self) {
        let known = async {
            let theirs = other.service.state.agents().get(&trial()).copied();
            while self.service.state.agents().get(&trial()).copied() != theirs {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        assert!(
            tokio::time::timeout(Duration::from_secs(30), known).await.is_ok(),
            "the service finds the agent within the time limit"
        );
    }

    fn trial_dir(&self) -> PathBuf {
        self.root.path().join("exp").join("abcde")
    }

    /// Returns the trial for which the token in the trial's file is valid.
    fn trial_of_token(&self) -> TrialJobId {
        let token = std::fs::read_to_string(self.trial_dir().join("token")).unwrap();
        let secret = Secret::load_or_create(&self.root.path().join("secret")).unwrap();
        secret.identify(&token, secret.now_ms()).unwrap().trial
    }

    async fn next_end(&mut self) -> JobEndEvent {
        let news = tokio::time::timeout(Duration::from_secs(30), self.events.recv()).await;
        match news.expect("the news arrives within the time limit").expect("the service runs") {
            JobNews::Gone(event) => event,
            other @ (JobNews::Waits(_)
            | JobNews::Requeued(_)
            | JobNews::PodLeft(_)
            | JobNews::Image(_)
            | JobNews::Placed(_)) => {
                panic!("the end of a process is its only news: {other:?}")
            }
        }
    }

    async fn wait_for_file(&self, name: &str) -> String {
        let path = self.trial_dir().join(name);
        for _ in 0..3000 {
            match std::fs::read_to_string(&path) {
                Ok(text) if !text.is_empty() => return text,
                Ok(_) | Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            }
        }
        panic!("{} does not appear within the time limit", path.display());
    }
}

fn end_with_code(exit_code: Option<i32>) -> JobEndEvent {
    let end = JobEnd { exit_code, ..JobEnd::default() };
    JobEndEvent { trial: trial(), attempt: attempt(), end }
}

#[tokio::test]
async fn the_end_of_a_job_has_its_exit_code() {
    for (line, code) in [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137)] {
        let mut bed = test_bed();
        bed.service.submit(&job(line)).await.unwrap();
        assert_eq!(bed.next_end().await, end_with_code(Some(code)), "{line}");
    }
}

#[tokio::test]
async fn a_job_gets_its_files_and_its_arguments_contain_no_secret() {
    let mut bed = test_bed();
    bed.service.submit(&job("true")).await.unwrap();
    bed.next_end().await;
    let arguments = bed.wait_for_file("arguments").await;
    for pair in [
        ["--experiment", "exp"],
        ["--trial", "abcde"],
        ["--attempt", "abcde-1"],
        ["--sequence", "7"],
        ["--objective", "loss"],
        ["--direction", "minimize"],
        ["--shell", "true"],
    ] {
        assert!(arguments.contains(&pair.join("\n")), "{pair:?} in {arguments}");
    }
    assert!(!arguments.contains("hush"));
    assert_eq!(bed.wait_for_file("token").await, "hush");
    let mode = std::os::unix::fs::MetadataExt::mode(
        &std::fs::metadata(bed.trial_dir().join("token")).unwrap(),
    );
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(bed.wait_for_file("parameter.cfg").await, r#"{"parameters":{"x":1}}"#);
}

#[tokio::test]
async fn a_job_sees_only_its_gpus() {
    let mut bed = test_bed();
    bed.service
        .submit(&job(r#"echo "<${CUDA_VISIBLE_DEVICES-unset}> $CUDA_DEVICE_ORDER" > "$dir/gpus""#))
        .await
        .unwrap();
    bed.next_end().await;
    assert_eq!(bed.wait_for_file("gpus").await.trim(), "<> PCI_BUS_ID", "all GPUs are hidden");
}

#[tokio::test]
async fn a_stop_sends_sigterm() {
    let mut bed = test_bed();
    let line = r#"trap 'exit 3' TERM; echo y > "$dir/ready"; while :; do sleep 0.1; done"#;
    bed.service.submit(&job(line)).await.unwrap();
    bed.wait_for_file("ready").await;
    bed.service.stop(&trial()).await;
    assert_eq!(bed.next_end().await, end_with_code(Some(3)));
    bed.service.stop(&trial()).await; // The job is already gone: no process is signalled.
    bed.service.close().await;
}

#[tokio::test]
async fn a_job_of_an_earlier_manager_is_watched_until_its_lock_is_free() {
    let first = test_bed();
    first.service.submit(&job("trap 'exit 0' TERM; while :; do sleep 0.1; done")).await.unwrap();
    first.wait_for_file("arguments").await;
    let mut second = test_bed_in(Arc::clone(&first.root));
    assert_eq!(second.service.adopt(&trial(), &attempt()).await, AdoptionResult::Alive);
    assert_eq!(second.trial_of_token(), trial(), "the old token may have expired");
    second.service.stop(&trial()).await;
    assert_eq!(second.next_end().await, end_with_code(None));
}

#[tokio::test]
async fn clean_ends_the_agents_of_an_earlier_manager() {
    let bed = test_bed();
    let line = r#"trap 'echo y > "$dir/stopped"; exit 3' TERM; while :; do sleep 0.1; done"#;
    bed.service.submit(&job(line)).await.unwrap();
    bed.wait_for_file("arguments").await;
    let dir = &bed.service.state.settings.dir;
    clean::clean(dir).await.unwrap();
    assert_eq!(bed.wait_for_file("stopped").await, "y\n", "the agent receives SIGTERM");
    assert!(matches!(try_lock(&dir.trial(&trial()).agent_lock()), Ok(LockOutcome::Acquired(_))));
}

#[tokio::test]
async fn clean_signals_no_process_that_is_not_the_trial_s_agent() {
    let bed = test_bed();
    let dir = &bed.service.state.settings.dir;
    let lock = dir.trial(&trial()).agent_lock();
    create_private_folder(lock.parent().unwrap()).unwrap();
    // The test itself holds the lock, like a process on another machine, and the number is that of a bystander.
    let mut bystander = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    std::fs::write(&lock, format!("{}\nabcde-1\n", bystander.id())).unwrap();
    let held = try_lock(&lock).unwrap();
    assert!(matches!(held, LockOutcome::Acquired(_)));
    let left = clean::clean(dir).await.unwrap_err().to_string();
    assert!(left.contains("abcde"), "{left}");
    assert!(bystander.try_wait().unwrap().is_none(), "the bystander must stay");
    bystander.kill().unwrap();
    bystander.wait().unwrap();
    drop(held);
}

#[tokio::test]
async fn a_second_start_does_not_end_the_running_job() {
    let first = test_bed();
    first.service.submit(&job("trap 'exit 0' TERM; while :; do sleep 0.1; done")).await.unwrap();
    first.wait_for_file("arguments").await;
    let mut second = test_bed_in(Arc::clone(&first.root));
    second.service.submit(&job("true")).await.unwrap();
    // Only a service that knows the first agent can end it.
    second.wait_until_known(&first).await;
    second.service.stop(&trial()).await;
    assert_eq!(
        second.next_end().await,
        end_with_code(None),
        "the second agent's exit code 125 is not the end"
    );
}

#[tokio::test]
async fn a_job_with_an_unreadable_lock_counts_as_running() {
    let mut bed = test_bed();
    let lock = bed.service.state.settings.dir.trial(&trial()).agent_lock();
    // A folder in place of the file, because permissions do not stop a superuser.
    std::fs::create_dir_all(&lock).unwrap();
    assert_eq!(bed.service.adopt(&trial(), &attempt()).await, AdoptionResult::Alive);
    std::fs::remove_dir(&lock).unwrap();
    assert_eq!(bed.next_end().await, end_with_code(None));
}

/// A command that leaves a file in the spool, like an agent that could not deliver its reports.
const LEAVE_REPORT_COMMAND: &str =
    r#"mkdir -p "$dir/spool/abcde-1"; echo x > "$dir/spool/abcde-1/bulk-0.seg""#;

#[tokio::test]
async fn remaining_reports_are_delivered_before_the_end_is_reported() {
    for (line, replays) in [("true", 0), (LEAVE_REPORT_COMMAND, 1)] {
        let mut bed = test_bed();
        bed.service.submit(&job(line)).await.unwrap();
        bed.next_end().await;
        let replayed =
            std::fs::read_to_string(bed.trial_dir().join("replayed")).unwrap_or_default();
        assert_eq!(replayed.lines().count(), replays, "{line}");
    }
}

#[tokio::test]
async fn the_reports_of_a_gone_job_are_delivered() {
    let mut first = test_bed();
    first.service.submit(&job(LEAVE_REPORT_COMMAND)).await.unwrap();
    first.next_end().await;
    let before = first.wait_for_file("replayed").await.lines().count();
    assert_eq!(
        first.service.adopt(&trial(), &attempt()).await,
        AdoptionResult::Gone(end_with_code(None))
    );
    let calls = first.wait_for_file("replayed").await;
    assert_eq!(calls.lines().count(), before + 1, "{calls}");
    assert_eq!(first.trial_of_token(), trial(), "the old token may have expired");
    assert!(calls.contains("--manager-file") && calls.contains("--token-file"), "{calls}");
}

#[tokio::test]
async fn a_job_that_never_started_is_unknown() {
    let bed = test_bed();
    assert_eq!(bed.service.adopt(&trial(), &attempt()).await, AdoptionResult::Unknown);
}

#[tokio::test]
async fn the_error_for_a_missing_agent_names_it() {
    let bed = test_bed();
    std::fs::remove_file(bed.root.path().join("agent")).unwrap();
    let error = bed.service.submit(&job("true")).await.unwrap_err();
    assert!(error.to_string().contains("agent"), "{error}");
}
