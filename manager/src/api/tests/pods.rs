//! Tests of the routes for pods.

use std::fs;
use std::io::Read as _;
use std::time::Duration;

use super::*;

impl Bed {
    async fn get(&self, path: &str, token: &str) -> Response<Body> {
        let request = Request::get(path).header(header::AUTHORIZATION, token);
        self.send(request.body(Body::empty()).unwrap()).await
    }

    async fn rendezvous(&self, trial: &str, pod: &Value) -> (StatusCode, Value) {
        let request = Request::post("/api/v1/agent/rendezvous")
            .header(header::AUTHORIZATION, self.token("e", trial))
            .body(Body::from(pod.to_string()));
        read(self.send(request.unwrap()).await).await
    }
}

fn pod(role: &str, index: u32, wait_ms: u64) -> Value {
    json!({
        "attempt": "t-1",
        "roles": [{"role": "worker", "number": 2}, {"role": "ps", "number": 1}],
        "role": role,
        "index": index,
        "address": format!("10.0.0.{index}"),
        "port": 4000,
        "wait_ms": wait_ms,
    })
}

#[tokio::test]
async fn the_code_is_sent_completely_with_its_digest() {
    let bed = Bed::new().await;
    let code = bed.folder.path().join("code");
    fs::create_dir(&code).unwrap();
    fs::write(code.join("train.py"), "print(1)\n".repeat(100_000)).unwrap();
    let response = bed.get("/api/v1/agent/code", &bed.token("e", "t")).await;
    assert_eq!(response.status(), StatusCode::OK);
    let headers = response.headers().clone();
    assert_eq!(headers[header::CONTENT_TYPE], "application/gzip");
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    assert_eq!(headers[header::CONTENT_LENGTH], bytes.len().to_string().as_str());
    let made = bed.state.pods.code().get().await.unwrap();
    assert_eq!(headers[header::ETAG], format!("\"{}\"", made.sha256).as_str());
    let mut tar = Vec::new();
    flate2::read::GzDecoder::new(bytes.as_ref()).read_to_end(&mut tar).unwrap();
    assert!(tar.starts_with(b"train.py\0") && tar.len() > 900_000);
}

#[tokio::test]
async fn a_failure_to_pack_the_code_is_reported_with_its_cause() {
    let bed = Bed::new().await;
    let (status, problem) = read(bed.get("/api/v1/agent/code", &bed.token("e", "t")).await).await;
    assert_eq!((status, &problem["code"]), (StatusCode::INTERNAL_SERVER_ERROR, &json!("no-code")));
    let detail = problem["detail"].as_str().unwrap();
    assert!(detail.contains("code; make it readable"), "{detail}");
}

#[tokio::test]
async fn the_token_selects_the_trial_whose_parameters_are_sent() {
    let bed = Bed::new().await;
    let new = NewTrial {
        id: TrialJobId::new("p").unwrap(),
        sequence: 2,
        parameter_id: Some(7),
        parameters: json!({"lr": 0.1}),
        attempt: AttemptId::new("p-1").unwrap(),
        created_at_ms: 0,
    };
    bed.state.store.trials().insert(vec![new]).await.unwrap();
    let answer = read(bed.get("/api/v1/agent/parameters", &bed.token("e", "p")).await).await;
    let record = json!({
        "parameter_id": 7,
        "parameter_source": "algorithm",
        "parameters": {"lr": 0.1},
        "parameter_index": 0,
    });
    assert_eq!(answer, (StatusCode::OK, record));
}

#[tokio::test]
async fn a_client_without_a_trials_token_is_refused() {
    let bed = Bed::new().await;
    #[rustfmt::skip]
    let table = [
        ("an unknown token",     "Bearer x".to_owned(),   "unauthorized"),
        ("another experiment's", bed.token("x", "t"),    "forbidden"),
        ("no such trial's",     bed.token("e", "x"),     "unknown-trial"),
    ];
    for (case, token, code) in table {
        for path in ["/api/v1/agent/code", "/api/v1/agent/parameters"] {
            let (_, problem) = read(bed.get(path, &token).await).await;
            assert_eq!(problem["code"], code, "{case}, {path}");
        }
        let request = Request::post("/api/v1/agent/rendezvous")
            .header(header::AUTHORIZATION, &token)
            .body(Body::from(pod("ps", 0, 0).to_string()));
        let (_, problem) = read(bed.send(request.unwrap()).await).await;
        assert_eq!(problem["code"], code, "{case}, rendezvous");
    }
}

#[tokio::test(start_paused = true)]
async fn pods_wait_for_one_another() {
    let bed = Bed::new().await;
    let waiting = (StatusCode::OK, json!({"missing": ["worker:0", "worker:1"]}));
    assert_eq!(bed.rendezvous("t", &pod("ps", 0, 0)).await, waiting);
    // Another trial has its own pods.
    let others = (StatusCode::OK, json!({"missing": ["worker:1", "ps:0"]}));
    assert_eq!(bed.rendezvous("u", &pod("worker", 0, 0)).await, others);

    let began = tokio::time::Instant::now();
    let (_, late) = bed.rendezvous("t", &pod("worker", 0, 90_000)).await;
    assert_eq!(late, json!({"missing": ["worker:1"]}));
    assert_eq!(began.elapsed().as_secs(), 25, "the wait is bounded");

    let (ps, first) = (pod("ps", 0, 20_000), pod("worker", 0, 20_000));
    let all = json!({"members": [
        {"role": "worker", "index": 0, "address": "10.0.0.0", "port": 4000},
        {"role": "worker", "index": 1, "address": "10.0.0.1", "port": 4000},
        {"role": "ps", "index": 0, "address": "10.0.0.0", "port": 4000},
    ]});
    let last = async {
        tokio::time::sleep(Duration::from_secs(5)).await;
        bed.rendezvous("t", &pod("worker", 1, 0)).await
    };
    let began = tokio::time::Instant::now();
    let (one, two, three) =
        tokio::join!(bed.rendezvous("t", &ps), bed.rendezvous("t", &first), last);
    assert_eq!(began.elapsed().as_secs(), 5, "the last pod completes all");
    for answer in [one, two, three] {
        assert_eq!(answer, (StatusCode::OK, all.clone()));
    }
}

#[tokio::test]
async fn a_pod_of_no_trial_is_refused() {
    let bed = Bed::new().await;
    for (case, pod) in [
        ("an index too high", pod("worker", 2, 0)),
        ("no address", json!({"attempt": "t-1"})),
        ("not an object", json!(7)),
    ] {
        let (status, problem) = bed.rendezvous("t", &pod).await;
        assert_eq!(
            (status, &problem["code"]),
            (StatusCode::BAD_REQUEST, &json!("bad-request")),
            "{case}"
        );
    }
}
