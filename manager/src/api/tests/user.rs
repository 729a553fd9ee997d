//! Tests of the users' routes, called without a socket.

mod document;
mod plots;

use std::sync::Arc;

use axum::http::Method;
use trial_protocol::{
    Cause, Class, Confidence, Evidence, Lane, LogChunk, LogText, Metric, MetricKind, Offer, Report,
    ReportBatch, ReportBody, Started, Stream, TrialExit, Verdict,
};

use super::*;
use crate::experiment::command::{Command, CommandError};
use crate::job_state::JobState;
use crate::store::{ExperimentRow, TrialChange, TrialTimes};

fn metric(kind: MetricKind, sequence: u64, value: f64) -> ReportBody {
    let name = "default".to_owned();
    ReportBody::Metric(Metric { name, kind, sequence, value: value.into(), derived: false })
}

pub(super) fn log(offset_bytes: u64, text: &str) -> ReportBody {
    let text = LogText::Text(text.to_owned());
    ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes, text })
}

/// Returns a checked experiment file.
fn canonical() -> Value {
    json!({
        "experimentName": "<b>demo</b>",
        "searchSpace": {"lr": {"_type": "uniform", "_value": [0, 1]}, "mode": "fast"},
        "trialCommand": "true", "trialCodeDirectory": "/tmp", "trialConcurrency": 1,
        "maxTrialNumber": 7, "tuner": {"className": "mine.Tuner"},
        "trainingService": {"platform": "local"},
    })
}

impl Bed {
    /// Creates an experiment with the two trials. Trial `t` has ended after three steps.
    pub(super) async fn searched() -> Self {
        let bed = Self::new().await;
        let row = ExperimentRow {
            id: ExperimentId::new("e").unwrap(),
            canonical: canonical(),
            seed: 1,
            state: "RUNNING".to_owned(),
            created_at_ms: 0,
            ended_at_ms: None,
            elapsed_ms: 0,
            trouble: None,
        };
        bed.state.store.experiment().create(row).await.unwrap();
        let started = Started {
            command: vec!["sh".to_owned(), "-c".to_owned(), "true".to_owned()],
            pid: Some(1),
            host: Some("h".to_owned()),
            agent_version: "1".to_owned(),
            role: None,
            role_index: None,
        };
        let verdict = Verdict {
            cause: Cause::Succeeded,
            class: Class::None,
            confidence: Confidence::Certain,
            exit: Some(TrialExit::Code(0)),
            message: "it exited with 0".to_owned(),
            stop: None,
            duration_ms: Some(5),
            evidence: Evidence::default(),
        };
        let facts = vec![
            ReportBody::Started(started),
            metric(MetricKind::Intermediate, 0, 0.1),
            metric(MetricKind::Intermediate, 1, 0.2),
            metric(MetricKind::Final, 0, 0.5),
            ReportBody::Ended(Box::new(verdict)),
        ];
        bed.report(Lane::Facts, 0, facts).await;
        let bulk = vec![log(0, "<script>\u{202e}\n"), ReportBody::Sample(Box::default())];
        bed.report(Lane::Bulk, 0, bulk).await;
        bed.change("t", JobState::Succeeded).await;
        bed
    }

    pub(super) async fn report(&self, lane: Lane, from: u64, bodies: Vec<ReportBody>) {
        let reports = (from..).zip(bodies);
        let batch = ReportBatch {
            offer: Offer::new([]),
            experiment: ExperimentId::new("e").unwrap(),
            trial: TrialJobId::new("t").unwrap(),
            attempt: AttemptId::new("a").unwrap(),
            lane,
            reports: reports.map(|(seq, body)| Report { seq, observed_at_ms: 5, body }).collect(),
            obeyed: Vec::new(),
            acknowledged: None,
            forgotten: None,
        };
        self.state.store.reports().ingest(Arc::new(batch.into()), 6).await.unwrap();
    }

    pub(super) async fn change(&self, trial: &str, state: JobState) {
        let id = TrialJobId::new(trial).unwrap();
        let change = TrialChange {
            state,
            at_ms: 7,
            message: None,
            exit_code: None,
            attempt: None,
            reported: TrialTimes::default(),
        };
        self.state.store.trials().change(vec![(id.clone(), change)]).await.unwrap();
    }

    pub(super) async fn get_json(&self, path: &str) -> (StatusCode, Value) {
        let request = Request::get(path).header(header::HOST, "localhost");
        read(self.send(request.body(Body::empty()).unwrap()).await).await
    }

    pub(super) fn user(&self) -> String {
        let token = UserToken::load_or_create(&self.folder.path().join("user.token")).unwrap();
        format!("Bearer {}", token.reveal().unwrap())
    }

    async fn ask(
        &self,
        method: Method,
        path: &str,
        key: Option<&str>,
        body: &str,
    ) -> (StatusCode, Value) {
        let mut request = Request::builder().method(method).uri(path);
        request = request.header(header::AUTHORIZATION, self.user());
        if let Some(key) = key {
            request = request.header("idempotency-key", key);
        }
        read(self.send(request.body(Body::from(body.to_owned())).unwrap()).await).await
    }
}

#[tokio::test]
async fn the_experiment_is_described_in_numbers() {
    let bed = Bed::searched().await;
    let (status, shown) = bed.get_json("/api/v1/experiment").await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(shown["counts"], json!({"SUCCEEDED": 1, "WAITING": 1}));
    assert_eq!(shown["best"]["id"], "t");
    assert_eq!(shown["best"]["final"], 0.5);
    assert_eq!(
        (&shown["max_trial_number"], &shown["optimize_mode"]),
        (&json!(7), &json!("maximize"))
    );
    let (_, points) = bed.get_json("/api/v1/experiment/points").await;
    assert_eq!(points["final"], json!([0.5, null]));
    assert_eq!(points["improvements"], json!([{"sequence": 0, "value": 0.5}]));
    assert_eq!(bed.get_json("/api/v1/experiment/importance").await.1, json!([]));
    let (_, configuration) = bed.get_json("/api/v1/experiment/configuration").await;
    assert_eq!(configuration["maxTrialNumber"], 7);
}

#[tokio::test]
async fn a_trial_is_described_in_detail() {
    let bed = Bed::searched().await;
    let (_, trial) = bed.get_json("/api/v1/trials/t").await;
    assert_eq!(trial["command"], json!(["sh", "-c", "true"]));
    assert_eq!(trial["verdict"]["cause"], "succeeded");
    assert_eq!((&trial["latest"], &trial["latest_step"]), (&json!(0.2), &json!(1)));
    let whats = trial["timeline"].as_array().unwrap().iter().map(|entry| &entry["what"]);
    assert_eq!(whats.collect::<Vec<_>>(), ["WAITING", "started", "ended", "SUCCEEDED"]);
    let (_, metrics) = bed.get_json("/api/v1/trials/t/metrics?limit=2").await;
    assert_eq!(metrics["next"], 2);
    let (_, rest) = bed.get_json("/api/v1/trials/t/metrics?after=2&type=final").await;
    assert_eq!(
        (rest["metrics"][0]["value"].clone(), rest["next"].clone()),
        (json!(0.5), Value::Null)
    );
    let (_, log) = bed.get_json("/api/v1/trials/t/log?from=1&limit=6").await;
    let times = json!([{"line": 0, "observed_at_ms": log["times"][0]["observed_at_ms"].as_i64()}]);
    assert_eq!(
        log,
        json!({"attempt": "a", "from": 1, "next": 7, "end": 12, "text": "script", "times": times})
    );
    // The output ends with a character of three bytes and a newline.
    let (_, tail) = bed.get_json("/api/v1/trials/t/log?tail=3").await;
    assert_eq!(
        (&tail["from"], &tail["next"], &tail["text"]),
        (&json!(11), &json!(12), &json!("\n"))
    );
    let (_, samples) = bed.get_json("/api/v1/trials/t/samples?points=10").await;
    assert_eq!(samples["samples"], json!([{"seq": 1, "observed_at_ms": 5, "sample": {}}]));
    let silent = json!({"attempt": null, "metrics": [], "next": null});
    assert_eq!(bed.get_json("/api/v1/trials/u/metrics").await, (StatusCode::OK, silent));
    let request = Request::get("/api/v1/trials/t/log/stdout").header(header::HOST, "localhost");
    let response = bed.send(request.body(Body::empty()).unwrap()).await;
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert_eq!(bytes, "<script>\u{202e}\n");
}

#[tokio::test]
async fn a_result_after_the_end_appears_in_the_list() {
    let bed = Bed::new().await;
    let listed =
        async || bed.get_json("/api/v1/trials?state=SUCCEEDED").await.1["trials"][0].clone();
    let own = bed.token("e", "t");
    bed.end("t", 1).await;
    let before = listed().await;
    assert_eq!(before["final"], Value::Null);
    bed.post(Some(&own), batch("e", "t").to_string()).await;
    let after = listed().await;
    assert_eq!(after["final"], json!({"default": "NaN", "who": "it's"}));
    assert!(
        after["change"].as_i64() > before["change"].as_i64(),
        "a resumed stream sends the change"
    );
    // The late result is not an event of the trial, and its second delivery changes nothing.
    bed.post(Some(&own), batch("e", "t").to_string()).await;
    assert_eq!(listed().await, after);
    let (_, trial) = bed.get_json("/api/v1/trials/t").await;
    let whats = trial["timeline"].as_array().unwrap().iter().map(|entry| &entry["what"]);
    assert_eq!(whats.collect::<Vec<_>>(), ["WAITING", "SUCCEEDED"]);
}

#[tokio::test]
async fn a_rarely_reported_metric_stays_the_latest() {
    let bed = Bed::of(Some("val")).await;
    bed.change("t", JobState::Running).await;
    let step = |name: &str, sequence, value: f64| {
        let (name, kind) = (name.to_owned(), MetricKind::Intermediate);
        ReportBody::Metric(Metric { name, kind, sequence, value: value.into(), derived: false })
    };
    let latest = async || {
        let (_, trial) = bed.get_json("/api/v1/trials/t").await;
        (trial["latest"].clone(), trial["latest_step"].clone())
    };
    bed.report(Lane::Facts, 0, vec![step("val", 0, 0.5)]).await;
    let batches = |from: u64, to: u64| (from..to).map(|at| step("loss", at, 1.0)).collect();
    bed.report(Lane::Facts, 1, batches(0, 100)).await;
    assert_eq!(latest().await, (json!(0.5), json!(0)), "after 100 other reports");
    bed.report(Lane::Facts, 101, batches(100, 1000)).await;
    assert_eq!(latest().await, (json!(0.5), json!(0)), "after 1000 other reports");
    bed.report(Lane::Facts, 1001, vec![step("val", 1, 0.75)]).await;
    assert_eq!(latest().await, (json!(0.75), json!(1)));
}

#[tokio::test]
async fn trials_are_listed_one_page_at_a_time() {
    let bed = Bed::searched().await;
    let (_, first) = bed.get_json("/api/v1/trials?sort=final&order=desc&limit=1").await;
    assert_eq!((&first["total"], &first["trials"][0]["id"]), (&json!(2), &json!("t")));
    let next = first["next"].as_str().unwrap();
    let path = format!("/api/v1/trials?sort=final&order=desc&limit=1&cursor={next}");
    let (_, second) = bed.get_json(&path).await;
    assert_eq!((&second["trials"][0]["id"], second.get("next")), (&json!("u"), None));
    let (_, waiting) = bed.get_json("/api/v1/trials?state=WAITING,RUNNING&order=").await;
    assert_eq!(waiting["trials"][0]["id"], "u");
}

#[tokio::test]
async fn invalid_queries_are_refused_with_their_problem() {
    let bed = Bed::searched().await;
    #[rustfmt::skip]
    let table = [
        ("/api/v1/trials/nobody",             404, "there is no trial nobody"),
        ("/api/v1/trials/99",                 404, "there is no trial 99"),
        ("/api/v1/trials/t/diff",             404, "no changes to git's commit were recorded for this trial's code"),
        ("/api/v1/trials/nobody/metrics",     404, "there is no trial nobody"),
        ("/api/v1/trials/nobody/events",      404, "there is no trial nobody"),
        ("/api/v1/trials/no.id",              400, "\"no.id\" is not a valid trial id: 1 to 32 of A-Z a-z 0-9 _ -, not beginning with -"),
        ("/api/v1/trials?state=BUSY",         400, "state: \"BUSY\" is not a trial job state; expected WAITING, RUNNING, SUCCEEDED, FAILED, USER_CANCELED, SYS_CANCELED, EARLY_STOPPED, LOST, UNKNOWN"),
        ("/api/v1/trials?sort=luck",          400, "sort is \"luck\"; expected sequence, id, state, final, latest, started, ended, duration, parameters.NAME or metrics.NAME"),
        ("/api/v1/trials?order=up",           400, "the query cannot be read: order: unknown variant `up`, expected `asc` or `desc`"),
        ("/api/v1/trials?limit=0",            400, "limit must be from 1 to 1000, not 0"),
        ("/api/v1/trials?cursor=!",           400, "the cursor does not belong to this list"),
        ("/api/v1/trials?colour=red",         400, "the query cannot be read: colour: unknown field `colour`, expected one of `state`, `cause`, `q`, `filter`, `sort`, `order`, `limit`, `cursor`"),
        ("/api/v1/trials/t/metrics?type=max", 400, "type must be intermediate or final, not \"max\""),
        ("/api/v1/trials/t/metrics?attempt=b", 400, "trial t has no attempt \"b\" with reports"),
        ("/api/v1/trials/t/log?stream=stdin", 400, "stream must be stdout or stderr, not \"stdin\""),
        ("/api/v1/trials/t/events?after=x",   400, "\"x\" is not the id of an event of this stream"),
        ("/api/v1/events?after=x",            400, "\"x\" is not the id of an event of this stream"),
    ];
    for (path, status, detail) in table {
        let (found, problem) = bed.get_json(path).await;
        assert_eq!((found.as_u16(), problem["detail"].as_str()), (status, Some(detail)), "{path}");
    }
}

#[tokio::test]
async fn a_trial_is_named_by_its_id_or_its_number() {
    let bed = Bed::searched().await;
    for (name, id) in [("t", "t"), ("u", "u"), ("0", "t"), ("1", "u")] {
        let (status, trial) = bed.get_json(&format!("/api/v1/trials/{name}")).await;
        assert_eq!((status, &trial["id"]), (StatusCode::OK, &json!(id)), "{name}");
    }
}

#[tokio::test]
async fn changes_need_the_users_token_and_are_made_once() {
    let mut bed = Bed::searched().await;
    let anonymous = Request::post("/api/v1/trials/u/stop").header(header::HOST, "localhost");
    let refused = bed.send(anonymous.body(Body::empty()).unwrap()).await;
    assert_eq!(refused.status(), StatusCode::UNAUTHORIZED);

    // A stand-in for the experiment, which accepts each command and records it.
    let (noted, mut asked) = mpsc::unbounded_channel();
    let mut events = std::mem::replace(&mut bed.events, mpsc::channel(1).1);
    let task = tokio::spawn(async move {
        while let Some(event) = events.recv().await {
            let TaskEvent::Command { command, reply } = event else { continue };
            noted.send(command.clone()).unwrap();
            let trial = TrialJobId::new("t").unwrap();
            let ended = command == Command::StopTrial(trial.clone());
            let state = JobState::Succeeded;
            let answer = if ended { Err(CommandError::Ended { trial, state }) } else { Ok(()) };
            reply.send(answer).unwrap();
        }
    });
    let post = Method::POST;
    #[rustfmt::skip]
    let table = [
        (post.clone(),  "/api/v1/trials/u/stop",  Some("k1"), "", 202, None), (post.clone(),  "/api/v1/trials/u/kill",  Some("k1"), "", 202, None),
        (post.clone(),  "/api/v1/trials/u/rerun", Some("k1"), "", 409, Some("this Idempotency-Key was used for another change")),
        (post.clone(),  "/api/v1/trials/u/stop",  Some(""),   "", 400, Some("an Idempotency-Key must have 1 to 255 ASCII characters")),
        (post.clone(),  "/api/v1/trials/t/stop",  None,       "", 409, Some("trial t has ended already: it is SUCCEEDED")),
        (post.clone(),  "/api/v1/trials/u/flush", None,       "", 202, None),
        (post.clone(),  "/api/v1/trials/u/log-level", None, r#"{"level": "debug"}"#, 202, None),
        (post.clone(),  "/api/v1/trials/u/log-level", None, r#"{"level": "loud"}"#, 400, Some("the body cannot be read: level: unknown variant `loud`, expected one of `error`, `warn`, `info`, `debug` at line 1 column 16")),
        (post,          "/api/v1/trials/u/log-level", None, "", 400, Some("the body cannot be read: missing field `level` at line 1 column 2")),
        (Method::PATCH, "/api/v1/experiment", None, r#"{"max_trial_number": 9, "max_experiment_duration": "1h"}"#, 202, None),
        (Method::PATCH, "/api/v1/experiment", None, r#"{"max_experiment_duration": "soon"}"#, 400, Some("max_experiment_duration: expected a duration such as 90, 90s, 10m, 1.5h or 2d, found the string \"soon\"")),
        (Method::PATCH, "/api/v1/experiment", None, r#"{"trial_concurrency": 0}"#, 400, Some("trial_concurrency must be at least 1")),
        (Method::PATCH, "/api/v1/experiment", None, r#"{"max_trial_number": "x"}"#, 400, Some("the body cannot be read: max_trial_number: invalid type: string \"x\", expected u64 at line 1 column 24")),
        (Method::PATCH, "/api/v1/experiment", None, r#"{"max_trial_number": 9} x"#, 400, Some("the body cannot be read: trailing characters at line 1 column 25")),
        (Method::PATCH, "/api/v1/experiment", None, r#"{"budget": 9}"#, 400, Some("the body cannot be read: budget: unknown field `budget`, expected one of `trial_concurrency`, `max_trial_number`, `max_experiment_duration` at line 1 column 9")),
    ];
    for (method, path, key, body, status, detail) in table {
        let (found, answer) = bed.ask(method, path, key, body).await;
        assert_eq!((found.as_u16(), answer["detail"].as_str()), (status, detail), "{path} {body}");
    }
    // A stop is accepted before the experiment's task has started, too.
    assert_eq!(bed.handle.elapsed(), None);
    for (path, key, status) in [
        ("/api/v1/experiment/stop", Some("k2"), 202),
        ("/api/v1/experiment/stop", Some("k2"), 202),
        ("/api/v1/trials/u/stop", Some("k2"), 409),
        ("/api/v1/experiment/stop", Some(""), 400),
    ] {
        let (found, answer) = bed.ask(Method::POST, path, key, "").await;
        assert_eq!(found.as_u16(), status, "{path} {key:?}: {answer}");
    }
    drop(bed);
    task.await.unwrap();
    let mut made = Vec::new();
    while let Some(command) = asked.recv().await {
        made.push(command);
    }
    assert_eq!(made.len(), 5, "the same key makes one change: {made:?}");
}

#[tokio::test]
async fn a_change_of_a_disconnected_client_is_not_repeated_with_its_key() {
    let mut bed = Bed::searched().await;
    let mut events = std::mem::replace(&mut bed.events, mpsc::channel(1).1);
    let asked = |bed: &Bed| {
        let request = Request::post("/api/v1/trials/t/rerun");
        let request = request.header(header::AUTHORIZATION, bed.user());
        let request = request.header("idempotency-key", "k").body(Body::empty()).unwrap();
        tokio::spawn(bed.router.clone().oneshot(request))
    };
    let first = asked(&bed);
    let Some(TaskEvent::Command { reply, .. }) = events.recv().await else { panic!("no command") };
    first.abort();
    first.await.unwrap_err();
    reply.send(Ok(())).unwrap();
    let again = asked(&bed).await.unwrap().unwrap();
    assert_eq!(again.status(), StatusCode::ACCEPTED);
    assert!(events.try_recv().is_err(), "the change was made twice");
}
