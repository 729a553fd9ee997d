//! Tests of NNI's API, called without a socket: the forms that `samples/nni/manager/rest` recorded of NNI 3.0, field
//! by field.

use axum::http::Method;
use trial_protocol::{Lane, Metric, MetricKind, ReportBody};

use super::*;

/// Returns the fields of an object in their order, with the type of each.
fn field_types(value: &Value) -> Vec<(String, &'static str)> {
    let kind = |value: &Value| match value {
        Value::Null => "null",
        Value::Bool(_) => "bool",
        Value::Number(_) => "number",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    };
    value.as_object().unwrap().iter().map(|(name, value)| (name.clone(), kind(value))).collect()
}

impl Bed {
    async fn nni(&self, method: Method, path: &str, token: bool) -> (StatusCode, String) {
        let mut request = Request::builder().method(method).uri(format!("/api/v1/nni{path}"));
        request = request.header(header::HOST, "localhost");
        if token {
            request = request.header(header::AUTHORIZATION, self.user());
        }
        let response = self.send(request.body(Body::empty()).unwrap()).await;
        let status = response.status();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8(body.to_vec()).unwrap())
    }

    async fn nni_json(&self, path: &str) -> Value {
        let (status, body) = self.nni(Method::GET, path, false).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        serde_json::from_str(&body).unwrap()
    }
}

#[tokio::test]
#[expect(clippy::too_many_lines, reason = "one story")]
async fn responses_have_the_fields_of_nnis_own() {
    let bed = Bed::searched().await;
    let profile = bed.nni_json("/experiment").await;
    let members = |pairs: &[(&str, &'static str)]| {
        pairs.iter().map(|(name, kind)| ((*name).to_owned(), *kind)).collect::<Vec<_>>()
    };
    let expected = [
        ("params", "object"),
        ("id", "string"),
        ("execDuration", "number"),
        ("logDir", "string"),
        ("startTime", "number"),
        ("nextSequenceId", "number"),
        ("revision", "number"),
    ];
    assert_eq!(field_types(&profile), members(&expected));
    let data_dir = profile["params"]["experimentWorkingDirectory"].as_str().unwrap();
    assert_eq!(profile["logDir"], format!("{data_dir}/e"));
    let metadata = bed.nni_json("/experiment-metadata").await;
    let expected = [
        ("id", "string"),
        ("port", "number"),
        ("startTime", "number"),
        ("endTime", "string"),
        ("status", "string"),
        ("platform", "string"),
        ("experimentName", "string"),
        ("tag", "array"),
        ("pid", "number"),
        ("webuiUrl", "array"),
        ("logDir", "string"),
        ("prefixUrl", "null"),
    ];
    assert_eq!(field_types(&metadata), members(&expected));
    assert_eq!((&metadata["port"], &metadata["endTime"]), (&json!(8080), &json!("N/A")));
    assert_eq!(bed.nni_json("/experiments-info").await, json!([metadata]));
    let status = bed.nni_json("/check-status").await;
    assert_eq!(status, json!({"status": "RUNNING", "errors": []}));
    let statistics = bed.nni_json("/job-statistics").await;
    let expected = json!([
        {"trialJobStatus": "SUCCEEDED", "trialJobNumber": 1}, {"trialJobStatus": "WAITING", "trialJobNumber": 1}
    ]);
    assert_eq!(statistics, expected);
    let jobs = bed.nni_json("/trial-jobs").await;
    let expected = [
        ("trialJobId", "string"),
        ("status", "string"),
        ("hyperParameters", "array"),
        ("startTime", "number"),
        ("logPath", "string"),
        ("sequenceId", "number"),
        ("endTime", "number"),
        ("finalMetricData", "array"),
    ];
    let mut trial = field_types(&jobs[0]);
    // In addition to NNI's fields, a trial has a reason.
    trial.retain(|(name, _)| name != "message");
    assert_eq!(trial, members(&expected));
    assert_eq!(bed.nni_json("/trial-jobs/t").await, jobs[0]);
    assert_eq!(bed.nni_json("/trial-jobs?status=WAITING").await, json!([jobs[1]]));
    let folder = bed.folder.path().join("e");
    assert_eq!(jobs[0]["logPath"], folder.join("t").join("").to_str().unwrap());
    let metrics = bed.nni_json("/metric-data/t").await;
    let record = |at_ms: i64, kind: &str, sequence: u64, data: &str| json!({"timestamp": at_ms, "trialJobId": "t", "parameterId": "0", "type": kind, "sequence": sequence, "data": data});
    let (first, second, last) = (
        record(5, "PERIODICAL", 0, "\"0.1\""),
        record(5, "PERIODICAL", 1, "\"0.2\""),
        record(5, "FINAL", 0, "\"0.5\""),
    );
    assert_eq!(metrics, json!([first, second, last]));
    assert_eq!(bed.nni_json("/metric-data?type=FINAL").await, json!([last]));
    assert_eq!(bed.nni_json("/metric-data-range/0/0").await, metrics);
    assert_eq!(bed.nni_json("/metric-data-range/1/9").await, json!([]));
    assert_eq!(bed.nni_json("/metric-data/UNKNOWN").await, json!([]));
    let ended = |record: &Value| {
        let mut record = record.clone();
        record["timestamp"] = json!(7);
        record
    };
    assert_eq!(bed.nni_json("/metric-data-latest").await, json!([ended(&last), ended(&second)]));
    let exported = json!([{"parameter": {}, "value": "0.5", "trialJobId": "t"}]);
    assert_eq!(bed.nni_json("/export-data").await, exported);
    assert_eq!(bed.nni_json("/experiment/imported-data").await, json!([]));
    let (_, version) = bed.nni(Method::GET, "/version", false).await;
    assert_eq!(version, "3.0.0");
    let (_, empty) = bed.nni(Method::GET, "/trial-file/t/stderr", false).await;
    assert_eq!(empty, "stderr is empty.");
}

#[tokio::test]
async fn the_logs_of_nnis_pages_are_returned() {
    let bed = Bed::new().await;
    let get = async |path: &str| {
        let request = Request::builder().uri(path).header(header::HOST, "localhost");
        let response = bed.send(request.body(Body::empty()).unwrap()).await;
        let status = response.status().as_u16();
        let body = to_bytes(response.into_body(), usize::MAX).await.unwrap();
        (status, String::from_utf8_lossy(&body).into_owned())
    };
    assert_eq!(get("/logs/nnimanager.log").await, (200, "nnimanager.log is empty.".to_owned()));
    assert_eq!(get("/logs/user.token").await.0, 404);
    for (file, text) in
        [("log/nnimanager.log", "one\n"), ("dispatcher/log/dispatcher.log", "two\n")]
    {
        let path = bed.folder.path().join("e").join(file);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        let (_, name) = file.rsplit_once('/').unwrap();
        assert_eq!(get(&format!("/logs/{name}")).await, (200, text.to_owned()), "{file}");
    }
}

#[tokio::test]
async fn objects_are_sent_to_nni_with_the_counting_member_as_default() {
    let bed = Bed::of(Some("acc")).await;
    bed.change("t", JobState::Running).await;
    let report = |kind, sequence, acc: f64| {
        let value = json!({"acc": acc, "loss": 9, "note": "x"}).into();
        let name = "default".to_owned();
        ReportBody::Metric(Metric { name, kind, sequence, value, derived: false })
    };
    let step = |sequence, acc| report(MetricKind::Intermediate, sequence, acc);
    bed.report(Lane::Facts, 0, vec![step(0, 0.25), step(1, 0.5)]).await;
    let (_, trial) = bed.get_json("/api/v1/trials/t").await;
    let seen = ["metric", "latest", "latest_step", "final"].map(|name| &trial[name]);
    assert_eq!(seen, [&json!("acc"), &json!(0.5), &json!(1), &Value::Null]);
    let listed = |records: &Value| {
        let records = records.as_array().unwrap().iter();
        let one = |one: &Value| json!([one["type"], one["sequence"], one["data"]]);
        records.map(one).collect::<Vec<_>>()
    };
    // NNI's clients use the member `default` of an object.
    let data = |acc: f64| {
        let text = format!(r#"{{"acc": {acc}, "loss": 9, "note": "x", "default": {acc}}}"#);
        Value::from(text).to_string()
    };
    let (first, second) =
        (json!(["PERIODICAL", 0, data(0.25)]), json!(["PERIODICAL", 1, data(0.5)]));
    assert_eq!(listed(&bed.nni_json("/metric-data-latest").await), std::slice::from_ref(&second));
    assert_eq!(listed(&bed.nni_json("/metric-data/t").await), [first, second]);
    bed.report(Lane::Facts, 2, vec![report(MetricKind::Final, 0, 0.75)]).await;
    let finals = bed.nni_json("/metric-data?type=FINAL").await;
    assert_eq!(listed(&finals), [json!(["FINAL", 0, data(0.75)])]);
}

#[tokio::test]
async fn objects_are_sent_to_nni_with_every_member() {
    let bed = Bed::of(None).await;
    bed.change("t", JobState::Running).await;
    let report = |kind, sequence, value: Value| {
        let (name, value) = ("default".to_owned(), value.into());
        ReportBody::Metric(Metric { name, kind, sequence, value, derived: false })
    };
    let step = json!({"default": 0.5, "loss": "Infinity", "per_class": [1, {"a": 2}]});
    let last = json!({"default": 0.6, "loss": 0.66, "other": 0.666});
    let facts = vec![
        report(MetricKind::Intermediate, 0, step),
        report(MetricKind::Intermediate, 1, json!(0.55)),
        report(MetricKind::Intermediate, 2, last.clone()),
        report(MetricKind::Final, 0, last),
    ];
    bed.report(Lane::Facts, 0, facts).await;
    bed.change("t", JobState::Succeeded).await;
    let step = r#"{"default": 0.5, "loss": Infinity, "per_class": [1, {"a": 2}]}"#;
    let last = r#"{"default": 0.6, "loss": 0.66, "other": 0.666}"#;
    let decoded = |records: &Value| {
        let one = |one: &Value| {
            let text: String = serde_json::from_str(one["data"].as_str().unwrap()).unwrap();
            (one["type"].as_str().unwrap().to_owned(), text)
        };
        records.as_array().unwrap().iter().map(one).collect::<Vec<_>>()
    };
    let steps = [("PERIODICAL", step), ("PERIODICAL", "0.55"), ("PERIODICAL", last)];
    let listed = |records: &[(&str, &str)]| {
        let owned = |(kind, text): &(&str, &str)| ((*kind).to_owned(), (*text).to_owned());
        records.iter().map(owned).collect::<Vec<_>>()
    };
    let all = [&steps[..], &[("FINAL", last)]].concat();
    assert_eq!(decoded(&bed.nni_json("/metric-data").await), listed(&all));
    assert_eq!(decoded(&bed.nni_json("/metric-data/t?type=PERIODICAL").await), listed(&steps));
    let latest = [("FINAL", last), ("PERIODICAL", last)];
    assert_eq!(decoded(&bed.nni_json("/metric-data-latest").await), listed(&latest));
    assert_eq!(bed.nni_json("/export-data").await[0]["value"], last);
}

#[tokio::test]
async fn refusals_have_nnis_form_without_its_bugs() {
    let bed = Bed::searched().await;
    let (get, put, delete) = (Method::GET, Method::PUT, Method::DELETE);
    #[rustfmt::skip]
    let table = [
        (&get,    "/trial-jobs/nobody",                    false, 404, "there is no trial nobody"),
        (&get,    "/metric-data-range/a/9",                false, 400, "\"a\" is not the position of a trial; positions begin at 0"),
        (&get,    "/metric-data?type=BEST",                false, 400, "the query cannot be read: type: unknown variant `BEST`, expected `PERIODICAL` or `FINAL`"),
        (&get,    "/trial-file/t/..%2f..%2fdb",            false, 400, "only stdout, stderr and trial.log can be shown"),
        (&put,    "/experiment?update_type=MAX_TRIAL_NUM", false, 401, "send the user's token as a bearer token; it is in the file user.token in the experiment's folder (if a program cannot, such as NNI's client, start it with NETRC set to the path of the file netrc in the same folder)"),
        (&put,    "/experiment?update_type=TRIAL_NUMBER",  true,  400, "update_type must be SEARCH_SPACE, TRIAL_CONCURRENCY, MAX_TRIAL_NUM or MAX_EXEC_DURATION, not \"TRIAL_NUMBER\""),
        (&put,    "/experiment?update_type=MAX_TRIAL_NUM", true,  400, "params.maxTrialNumber is missing"),
        (&delete, "/trial-jobs/no.id",                     true,  400, "\"no.id\" is not a valid trial id: 1 to 32 of A-Z a-z 0-9 _ -, not beginning with -"),
        (&get,    "/tensorboard/x",                        false, 501, "this manager does not support this route of NNI's API; see docs/rest-api.md"),
    ];
    for (method, path, token, status, error) in table {
        let (found, body) = bed.nni(method.clone(), path, token).await;
        let body: Value = serde_json::from_str(&body).unwrap();
        assert_eq!((found.as_u16(), &body), (status, &json!({"error": error})), "{method} {path}");
    }
}
