//! Tests of the old routes, without a socket, and with NNI's own keeper over a socket.

use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode, header};
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::sync::{mpsc, oneshot};
use tower::ServiceExt as _;
use trial_protocol::{AttemptId, ExperimentId, Lane, Stream, TrialJobId};

use super::router;
use crate::experiment::{ExperimentHandle, TaskEvent};
use crate::ingest::Intake;
use crate::job_state::JobState;
use crate::store::{NewTrial, Store, TrialChange, TrialTimes, simulated_disk};
use crate::util::clock::SystemClock;

struct Bed {
    store: Store,
    router: Router,
    events: mpsc::Receiver<TaskEvent>,
    folder: TempDir,
}

impl Bed {
    async fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let store = simulated_disk::open(&folder.path().join("db")).unwrap();
        for (sequence, id) in [(0, "abcde"), (1, "fghij")] {
            let new = NewTrial {
                id: TrialJobId::new(id).unwrap(),
                sequence,
                parameter_id: None,
                parameters: json!({}),
                attempt: AttemptId::new("a").unwrap(),
                created_at_ms: 0,
            };
            store.trials().insert(vec![new]).await.unwrap();
        }
        Self::on(folder, store)
    }

    fn on(folder: TempDir, store: Store) -> Self {
        let (handle, events) = ExperimentHandle::new(1024);
        let experiment = ExperimentId::new("exp").unwrap();
        let intake = Intake::new(store.clone(), handle, experiment, Arc::new(SystemClock));
        Self { store, router: router(&intake), events, folder }
    }

    /// Stops the manager and starts it again.
    async fn restarted(self) -> Self {
        let Self { store, router, folder, .. } = self;
        drop(router);
        store.close().await;
        let store = Store::open(&folder.path().join("db")).unwrap();
        Self::on(folder, store)
    }

    async fn post(&self, path: &str, body: impl Into<Body>) -> (StatusCode, String) {
        let request = Request::post(format!("/api/v1/nni-pai/{path}")).body(body.into()).unwrap();
        let response = self.router.clone().oneshot(request).await.unwrap();
        let status = response.status();
        if status == StatusCode::OK {
            assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json");
        }
        let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(bytes.into()).unwrap())
    }

    async fn line(&self, tag: &str, line: &str) {
        let body = json!({"tag": tag, "stdOutputType": "Stdout", "msg": line}).to_string();
        assert_eq!(self.post("stdout/exp/abcde", body).await, (StatusCode::OK, String::new()));
    }

    /// Returns the sequence and the value of each stored metric, in order.
    async fn metrics(&self) -> Vec<(u64, Value)> {
        let rows = self.store.reports().metrics(&trial_id()).await.unwrap();
        rows.into_iter()
            .map(|row| (row.metric.sequence, row.metric.value.as_json().clone()))
            .collect()
    }

    /// Returns all output, and checks that each piece begins at the end of the previous one.
    async fn log(&self) -> String {
        let mut log = Vec::new();
        for chunk in self.store.reports().log(&trial_id(), Stream::Stdout).await.unwrap() {
            assert_eq!(usize::try_from(chunk.offset_bytes).unwrap(), log.len());
            log.extend(chunk.bytes);
        }
        String::from_utf8(log).unwrap()
    }

    /// Returns the number of new facts that reached the experiment.
    fn count_new_facts(&mut self) -> usize {
        let mut count = 0;
        while let Ok(TaskEvent::Reported { fresh, .. }) = self.events.try_recv() {
            count += fresh.len();
        }
        count
    }
}

#[tokio::test]
async fn requests_of_browsers_are_refused_whatever_their_origin() {
    let mut bed = Bed::new().await;
    let forged = r#"{"trial_job_id": "abcde", "type": "FINAL", "sequence": 0, "value": "1"}"#;
    let routes = [
        ("update-metrics", json!({"jobId": "abcde", "metrics": [forged]})),
        ("stdout", json!({"tag": "trial", "stdOutputType": "Stdout", "msg": "forged"})),
        ("version", json!({"tag": "VCFail", "msg": "forged"})),
    ];
    let marks = [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
        ("sec-fetch-mode", "no-cors"),
        ("referer", "http://evil.example/"),
        ("cookie", "theme=dark"),
    ];
    for (route, body) in &routes {
        for (name, value) in marks {
            let path = format!("/api/v1/nni-pai/{route}/exp/abcde");
            let request = Request::post(path).header(header::CONTENT_TYPE, "text/plain");
            let request = request.header(name, value).body(Body::from(body.to_string())).unwrap();
            let response = bed.router.clone().oneshot(request).await.unwrap();
            assert_eq!(response.status(), StatusCode::FORBIDDEN, "{route} with {name}: {value}");
            assert_eq!(response.headers()[header::X_CONTENT_TYPE_OPTIONS], "nosniff");
        }
    }
    assert!(bed.metrics().await.is_empty() && bed.log().await.is_empty());
    assert!(bed.events.try_recv().is_err(), "nothing was reported");
    let path = "update-metrics/exp/abcde";
    assert_eq!(
        bed.post(path, routes[0].1.to_string()).await.0,
        StatusCode::OK,
        "a keeper's request is accepted"
    );
}

fn trial_id() -> TrialJobId {
    TrialJobId::new("abcde").unwrap()
}

fn metric(kind: &str, sequence: u64, value: &str) -> String {
    json!({"parameter_id": 0, "trial_job_id": "abcde", "type": kind, "sequence": sequence, "value": value})
        .to_string()
}

fn marked_metric(metric: &str) -> String {
    format!("NNISDK_MEb'{metric}'")
}

#[tokio::test]
async fn a_trials_reports_are_stored_and_forwarded_once_across_a_restart() {
    let mut bed = Bed::new().await;
    let version = bed.post("version/exp/abcde", r#"{"tag": "VCSuccess"}"#).await;
    assert_eq!(version, (StatusCode::OK, String::new()));
    bed.line("trial_keeper", "[time] INFO spawned").await;
    bed.line("trial", "hello").await;
    bed.line("trial", &marked_metric(&metric("PERIODICAL", 0, "0.5"))).await;
    bed.line("trial", &marked_metric(&metric("PERIODICAL", 0, "0.5"))).await;
    assert_eq!(bed.count_new_facts(), 1);

    let mut bed = bed.restarted().await;
    bed.line("trial", &marked_metric(&metric("PERIODICAL", 0, "0.5"))).await;
    bed.line("trial", &marked_metric(&metric("PERIODICAL", 0, "0.6"))).await;
    let metrics = json!({"jobId": "abcde", "metrics": [
        metric("PERIODICAL", 1, "NaN"),
        metric("FINAL", 0, "{\"default\": 1}"),
        metric("FINAL", 0, "2"),
    ]});
    let posted = bed.post("update-metrics/exp/abcde", metrics.to_string()).await;
    assert_eq!(posted, (StatusCode::OK, String::new()));
    bed.line("trial", "good bye").await;

    assert_eq!(bed.count_new_facts(), 4, "repeated reports are not passed on again");
    let expected = [
        (0, json!(0.5)),
        (0, json!(0.6)),
        (1, json!("NaN")),
        (0, json!({"default": 1})),
        (0, json!(2)),
    ];
    assert_eq!(bed.metrics().await, expected);
    assert_eq!(bed.log().await, "[time] INFO spawned\nhello\ngood bye\n");
}

#[tokio::test]
async fn a_retried_trial_stores_new_reports() {
    let bed = Bed::new().await;
    let again = |value| marked_metric(&metric("PERIODICAL", 0, value));
    bed.line("trial", &again("0.5")).await;
    bed.line("trial", "hello").await;
    let change = TrialChange {
        state: JobState::Waiting,
        at_ms: 1,
        message: None,
        exit_code: None,
        attempt: Some(AttemptId::new("b").unwrap()),
        reported: TrialTimes::default(),
    };
    bed.store.trials().change(vec![(trial_id(), change)]).await.unwrap();
    let both = json!({"metrics": [metric("PERIODICAL", 0, "0.5"), metric("PERIODICAL", 1, "0.6")]});
    bed.post("update-metrics/exp/abcde", both.to_string()).await;
    bed.line("trial", &again("0.5")).await;
    bed.line("trial", "hello").await;
    let rows = bed.store.reports().metrics(&trial_id()).await.unwrap();
    let found: Vec<_> =
        rows.iter().map(|row| (row.attempt.as_str(), row.seq, row.metric.sequence)).collect();
    assert_eq!(found, [("a-legacy", 0, 0), ("b-legacy", 0, 0), ("b-legacy", 1, 1)]);
    let log = bed.store.reports().log(&trial_id(), Stream::Stdout).await.unwrap();
    let log: Vec<_> = log.iter().map(|row| (row.attempt.as_str(), row.offset_bytes)).collect();
    assert_eq!(log, [("a-legacy", 0), ("b-legacy", 0)]);
}

#[tokio::test]
async fn errors_that_end_nnis_experiment_become_notes() {
    let bed = Bed::new().await;
    let fail =
        json!({"tag": "VCFail", "msg": "NNIManager version is 2.9, TrialKeeper version is 3.0"});
    bed.post("version/exp/abcde", fail.to_string()).await;
    bed.line("trial", "NNISDK_MEb'{it's no JSON'").await;
    let facts = bed.store.reports().all(&trial_id(), Lane::Facts).await.unwrap();
    let notes: Vec<_> = facts.iter().map(|row| row.body["code"].as_str().unwrap()).collect();
    assert_eq!(notes, ["version-mismatch", "metric-unreadable"]);
    assert_eq!(bed.log().await, "NNISDK_MEb'{it's no JSON'\n");
}

#[tokio::test]
async fn a_line_with_undecodable_characters_is_stored() {
    let bed = Bed::new().await;
    let body = r#"{"tag": "trial", "stdOutputType": "Stdout", "msg": "50 \udcb0C"}"#;
    assert_eq!(bed.post("stdout/exp/abcde", body).await.0, StatusCode::OK);
    assert_eq!(bed.log().await, "50 \u{fffd}C\n");
}

#[tokio::test]
async fn invalid_posts_are_refused() {
    let bed = Bed::new().await;
    let line = r#"{"tag": "trial", "stdOutputType": "Stdout", "msg": "x"}"#;
    #[rustfmt::skip]
    let table = [
        ("another experiment",  "stdout/other/abcde",              line,               404),
        ("an unknown trial",    "stdout/exp/zzzzz",                line,               404),
        ("a path",              "stdout/exp/..%2f..%2fevil",       line,               404),
        ("a longer path",       "stdout/exp/abcde/more",           line,               404),
        ("a NUL",               "stdout/exp/a%00",                 line,               404),
        ("not UTF-8",           "stdout/exp/a%ff",                 line,               400),
        ("no JSON",             "stdout/exp/abcde",                "{",                400),
        ("no message",          "stdout/exp/abcde",                r#"{"tag": "trial"}"#, 400),
        ("an unknown address",  "parameter-file-meta",             line,               404),
        ("metrics that are none", "update-metrics/exp/abcde",      r#"{"metrics": 7}"#, 400),
        ("a version without a tag", "version/exp/abcde",           "{}",               400),
    ];
    for (case, path, body, status) in table {
        assert_eq!(bed.post(path, body).await.0, status, "{case}");
    }
    let large = format!(r#"{{"msg": "{}"}}"#, "x".repeat(8 << 20));
    assert_eq!(bed.post("stdout/exp/abcde", large).await.0, 413);
    assert_eq!(bed.log().await, "");
    assert!(bed.store.reports().all(&trial_id(), Lane::Facts).await.unwrap().is_empty());
    let mut names: Vec<_> = std::fs::read_dir(bed.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["db", "db-shm", "db-wal", "db.lock"], "no file but the store's");
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_posts_are_each_stored_once() {
    let bed = Arc::new(Bed::new().await);
    let senders: Vec<_> = (0..16_u64)
        .map(|sender| {
            let bed = Arc::clone(&bed);
            tokio::spawn(async move {
                for n in 0..10 {
                    bed.line("trial", &marked_metric(&metric("PERIODICAL", sender * 10 + n, "1")))
                        .await;
                    bed.line("trial", &format!("{sender} {n}")).await;
                }
            })
        })
        .collect();
    for sender in senders {
        sender.await.unwrap();
    }
    let stored: Vec<u64> = bed.metrics().await.into_iter().map(|(sequence, _)| sequence).collect();
    let mut sorted = stored.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..160).collect::<Vec<_>>());
    let log = bed.log().await;
    for sender in 0..16 {
        let own = stored.iter().filter(|sequence| *sequence / 10 == sender);
        assert!(own.is_sorted(), "each sender's order is kept");
        let prefix = format!("{sender} ");
        let own: Vec<_> = log.lines().filter(|line| line.starts_with(&prefix)).collect();
        let expected: Vec<_> = (0..10).map(|n| format!("{sender} {n}")).collect();
        assert_eq!(own, expected);
    }
}

#[tokio::test]
async fn posts_that_share_a_commit_use_one_task() {
    let bed = Bed::new().await;
    bed.line("trial", "the first").await;
    let lines: Vec<String> = (0..64).map(|n| n.to_string()).collect();
    let posts = lines.iter().map(|line| bed.line("trial", line));
    let mut posts = std::pin::pin!(futures_util::future::join_all(posts));
    assert!(futures_util::poll!(posts.as_mut()).is_pending());
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 1);
    posts.await;
    assert_eq!(bed.log().await.lines().count(), 65);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_line_is_stored_when_it_is_sent_again_after_a_failure() {
    let bed = Bed::new().await;
    bed.line("trial", "before").await;
    bed.line("trial", &marked_metric(&metric("PERIODICAL", 0, "1"))).await;
    simulated_disk::fill(&bed.folder.path().join("db"));
    let lines = [marked_metric(&metric("PERIODICAL", 1, "2")), "after".to_owned()];
    let posts = lines.iter().map(|line| {
        let body = json!({"tag": "trial", "stdOutputType": "Stdout", "msg": line}).to_string();
        bed.post("stdout/exp/abcde", body)
    });
    for (status, problem) in futures_util::future::join_all(posts).await {
        assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE, "{problem}");
        assert!(problem.contains("no space is left"), "{problem}");
    }
    simulated_disk::empty(&bed.folder.path().join("db"));
    for line in &lines {
        bed.line("trial", line).await;
    }
    assert_eq!(bed.metrics().await, [(0, json!(1)), (1, json!(2))]);
    assert_eq!(bed.log().await, "before\nafter\n");
    let facts = bed.store.reports().all(&trial_id(), Lane::Facts).await.unwrap();
    assert_eq!(
        facts.iter().map(|row| row.seq).collect::<Vec<_>>(),
        [0, 1],
        "the numbers have no gap"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_post_that_does_not_fit_on_the_disk_affects_no_other() {
    let bed = Bed::new().await;
    bed.line("trial", &marked_metric(&metric("PERIODICAL", 0, "1"))).await;
    simulated_disk::leave_room(bed.store.database(), 3).await;
    let large = json!({"tag": "trial", "msg": "x".repeat(100_000)}).to_string();
    let small =
        json!({"tag": "trial", "msg": marked_metric(&metric("PERIODICAL", 1, "2"))}).to_string();
    for _ in 0..20 {
        let (large, small) = tokio::join!(
            bed.post("stdout/exp/fghij", large.clone()),
            bed.post("stdout/exp/abcde", small.clone()),
        );
        assert_eq!((large.0, small.0), (StatusCode::SERVICE_UNAVAILABLE, StatusCode::OK));
    }
    assert_eq!(bed.metrics().await, [(0, json!(1)), (1, json!(2))]);
}

#[tokio::test]
async fn bodies_that_wait_for_the_disk_count_as_memory() {
    let bed = Bed::new().await;
    bed.line("trial", "the first").await;
    let other_process = rusqlite::Connection::open(bed.folder.path().join("db")).unwrap();
    other_process.execute_batch("BEGIN IMMEDIATE").unwrap();
    let large = json!({"tag": "trial", "msg": "x".repeat((8 << 20) - 100)}).to_string();
    let mut waiting = Vec::new();
    // Until the bodies use all of their memory.
    let (status, problem) = loop {
        let mut post = Box::pin(bed.post("stdout/exp/abcde", large.clone()));
        match futures_util::poll!(post.as_mut()) {
            std::task::Poll::Ready(answer) => break answer,
            std::task::Poll::Pending => waiting.push(post),
        }
        assert!(waiting.len() < 20, "the memory is not bounded");
    };
    assert_eq!((waiting.len(), status), (8, StatusCode::SERVICE_UNAVAILABLE), "{problem}");
    assert!(problem.contains("overloaded"), "{problem}");
    other_process.execute_batch("ROLLBACK").unwrap();
    for (status, problem) in futures_util::future::join_all(waiting).await {
        assert_eq!(status, StatusCode::OK, "{problem}");
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs TRIALKEEPER_TEST_NNI_PYTHON, a Python with NNI 3.0"]
async fn nnis_own_keeper_is_served() {
    let python = std::env::var("TRIALKEEPER_TEST_NNI_PYTHON")
        .expect("the variable contains the path of a Python");
    let bed = Bed::new().await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (stop, stopped) = oneshot::channel::<()>();
    let server = tokio::spawn(crate::api::serve(listener, bed.router.clone(), async {
        stopped.await.ok();
    }));
    let output = bed.folder.path().join("output");
    std::fs::create_dir(&output).unwrap();
    let script = format!(
        "cat <<'END'\nit is a \"line\"\n{}\n{}\nEND\nexit 3\n",
        marked_metric(&metric("PERIODICAL", 0, "0.25")),
        marked_metric(&metric("FINAL", 0, "\"it's\"")),
    );
    std::fs::write(bed.folder.path().join("trial.sh"), script).unwrap();
    let mut keeper = tokio::process::Command::new(python);
    keeper
        .args(["-m", "nni.tools.trial_tool.trial_keeper", "--trial_command", "sh trial.sh"])
        .args(["--nnimanager_ip", "127.0.0.1", "--nnimanager_port", &port.to_string()])
        .args(["--nni_manager_version", "3.0", "--log_collection", "http"])
        .envs(keeper_environment(&output))
        .current_dir(bed.folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true);
    let status = tokio::time::timeout(Duration::from_mins(2), keeper.status()).await;
    assert_eq!(status.expect("within two minutes").unwrap().code(), Some(3));
    stop.send(()).unwrap();
    server.await.unwrap().unwrap();

    assert_eq!(bed.metrics().await, [(0, json!(0.25)), (0, json!("it's"))]);
    let log = bed.log().await;
    assert!(log.lines().any(|line| line == "it is a \"line\""), "{log}");
    assert!(log.contains("subprocess terminated. Exit code is 3"), "{log}");
    assert!(!log.contains("NNISDK_ME"), "{log}");
}

fn keeper_environment(output: &Path) -> [(&'static str, String); 7] {
    let output = output.to_str().unwrap().to_owned();
    [
        ("NNI_PLATFORM", "frameworkcontroller".to_owned()),
        ("NNI_EXP_ID", "exp".to_owned()),
        ("NNI_TRIAL_JOB_ID", "abcde".to_owned()),
        ("NNI_TRIAL_SEQ_ID", "0".to_owned()),
        ("NNI_SYS_DIR", output.clone()),
        ("NNI_OUTPUT_DIR", output),
        ("MULTI_PHASE", "false".to_owned()),
    ]
}

#[tokio::test]
async fn large_posts_wait_for_one_another_and_are_all_stored() {
    let bed = Bed::new().await;
    let posts = (0..6).map(|sequence| {
        // The parsed JSON takes sixteen times the memory of its text.
        let value = format!("[{}[]]", "[],".repeat(200_000));
        let metric = json!({"parameter_id": 0, "trial_job_id": "abcde", "type": "PERIODICAL", "sequence": sequence, "value": value});
        let line = format!("NNISDK_MEb'{metric}'");
        let body = json!({"tag": "trial", "stdOutputType": "Stdout", "msg": line}).to_string();
        bed.post("stdout/exp/abcde", body)
    });
    for answer in futures_util::future::join_all(posts).await {
        assert_eq!(answer, (StatusCode::OK, String::new()));
    }
    let rows = bed.store.reports().metrics(&TrialJobId::new("abcde").unwrap()).await.unwrap();
    let mut stored: Vec<_> = rows.iter().map(|row| row.metric.sequence).collect();
    stored.sort_unstable();
    assert_eq!(stored, [0, 1, 2, 3, 4, 5]);
}
