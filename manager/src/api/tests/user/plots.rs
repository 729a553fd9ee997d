//! Tests of the plots' data: columns of trials, curves of many trials, the timeline.

use super::*;

#[tokio::test]
async fn additional_columns_are_sent_on_request() {
    let bed = Bed::searched().await;
    bed.change("u", JobState::Running).await;
    let (_, few) = bed.get_json("/api/v1/experiment/points").await;
    assert!(few.get("created").is_none() && few.get("space").is_none(), "{few}");
    let all = "created,started,ended,cause,latest,host,attempts,space,objectives";
    let (status, points) = bed.get_json(&format!("/api/v1/experiment/points?columns={all}")).await;
    assert_eq!(status, StatusCode::OK, "{points}");
    assert_eq!(points["started"], json!([null, 7]));
    assert_eq!(points["ended"], json!([7, null]));
    assert_eq!(points["cause"], json!(["succeeded", null]));
    assert_eq!(points["latest"], json!([null, null]));
    assert_eq!(points["host"], json!(["h", null]));
    assert_eq!(points["attempts"], json!([1, 1]));
    assert_eq!(points["created"].as_array().unwrap().len(), 2);
    // The search space has a form of the tuner's own.
    assert_eq!(points["space"], json!([]));
    assert_eq!(points["objectives"], json!([]), "there is only one objective");
    let (status, problem) = bed.get_json("/api/v1/experiment/points?columns=colour").await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    assert_eq!(
        problem["detail"],
        "columns: unknown column \"colour\"; the columns are created, started, ended, cause, latest, host, attempts, space, objectives"
    );
}

#[tokio::test]
async fn a_trial_that_has_not_succeeded_has_its_latest_result() {
    let bed = Bed::searched().await;
    bed.change("t", JobState::EarlyStopped).await;
    let (_, points) = bed.get_json("/api/v1/experiment/points?columns=latest").await;
    assert_eq!((&points["final"], &points["latest"]), (&json!([null, null]), &json!([0.5, null])));
}

#[tokio::test]
async fn one_response_has_the_curves_of_many_trials() {
    let bed = Bed::searched().await;
    let (status, curves) = bed.get_json("/api/v1/experiment/curves").await;
    assert_eq!(status, StatusCode::OK, "{curves}");
    let own = json!({"sequence": 0, "steps": [0, 1], "values": [0.1, 0.2]});
    let expected = json!({"metrics": [{"name": "default", "counts": true, "curves": [own]}], "names": ["default"], "shown": 1, "of": 2});
    assert_eq!(curves, expected);
    // One point is accepted, and a curve keeps at least four.
    let (status, few) = bed.get_json("/api/v1/experiment/curves?points=1").await;
    assert_eq!((status, few), (StatusCode::OK, expected));
    let (status, few) = bed.get_json("/api/v1/trials/t/metrics?points=1").await;
    assert_eq!((status, few["metrics"].as_array().map(Vec::len)), (StatusCode::OK, Some(3)));
    for points in [0, 100_000] {
        let (status, _) = bed.get_json(&format!("/api/v1/experiment/curves?points={points}")).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{points}");
    }
}

#[tokio::test]
async fn the_timeline_has_the_machine_and_the_times_of_each_attempt() {
    let bed = Bed::searched().await;
    let (status, timeline) = bed.get_json("/api/v1/experiment/timeline").await;
    assert_eq!(status, StatusCode::OK, "{timeline}");
    assert_eq!(timeline["sequence"], json!([0, 1]));
    assert_eq!(timeline["attempt"], json!([1, 1]));
    assert_eq!(timeline["ended"], json!([7, null]));
    assert_eq!((&timeline["hosts"], &timeline["host"]), (&json!(["h"]), &json!([0, null])));
    assert_eq!(timeline["state"], json!(["SUCCEEDED", "WAITING"]));
    assert_eq!((&timeline["left_out"], &timeline["retried"]), (&json!(0), &json!([false, false])));
}

#[tokio::test]
async fn the_page_of_plots_is_readable_without_a_script() {
    let bed = Bed::searched().await;
    let request = Request::get("/plots").header(header::HOST, "localhost");
    let response = bed.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.status(), StatusCode::OK);
    let bytes = to_bytes(response.into_body(), usize::MAX).await.unwrap();
    let text = String::from_utf8_lossy(&bytes);
    for part in ["Optimisation history", "1 improvement", "No trial has failed.", "TrialKeeper"] {
        assert!(text.contains(part), "{part} is missing");
    }
}
