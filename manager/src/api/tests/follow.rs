//! Tests of event streams, called without a socket.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use http_body_util::BodyExt as _;
use trial_protocol::{Lane, LogChunk, LogText, ReportBody, Stream};

use super::user::log;
use super::*;

/// Returns the next event of a stream: its kind, its id and its data. Keep-alive messages are skipped.
pub(super) async fn next_event(body: &mut Body) -> Option<(String, String, Value)> {
    loop {
        let frame = body.frame().await?.unwrap().into_data().unwrap();
        let text = String::from_utf8(frame.to_vec()).unwrap();
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name));
            line.map(str::to_owned)
        };
        if let (Some(id), Some(event), Some(data)) =
            (field("id: "), field("event: "), field("data: "))
        {
            return Some((event, id, serde_json::from_str(&data).unwrap()));
        }
    }
}

pub(super) async fn open_stream(bed: &Bed, path: &str, after: Option<&str>) -> Body {
    let mut request = Request::get(path).header(header::HOST, "localhost");
    if let Some(after) = after {
        request = request.header("last-event-id", after);
    }
    let response = bed.send(request.body(Body::empty()).unwrap()).await;
    assert_eq!(response.headers()[header::CONTENT_TYPE], "text/event-stream");
    response.into_body()
}

#[tokio::test]
async fn a_stream_sends_changes_and_resumes_without_a_gap() {
    let bed = Bed::searched().await;
    let mut stream = open_stream(&bed, "/api/v1/events", None).await;
    let (event, id, _) = next_event(&mut stream).await.unwrap();
    assert_eq!((event.as_str(), id.as_str()), ("experiment", "3"));
    bed.change("u", JobState::Running).await;
    let (event, _, trial) = next_event(&mut stream).await.unwrap();
    assert_eq!(
        (event.as_str(), &trial["id"], &trial["state"]),
        ("trial", &json!("u"), &json!("RUNNING"))
    );
    drop(stream);
    bed.change("u", JobState::Failed).await;
    let mut resumed = open_stream(&bed, "/api/v1/events", Some("4")).await;
    let (event, id, trial) = next_event(&mut resumed).await.unwrap();
    assert_eq!((event.as_str(), id.as_str(), &trial["state"]), ("trial", "5", &json!("FAILED")));
    let (event, _, sent) = next_event(&mut resumed).await.unwrap();
    assert_eq!((event.as_str(), &sent["counts"]["FAILED"]), ("experiment", &json!(1)));
    // When the manager stops, the stream sends the last change, and then its end.
    bed.state.store.experiment().set_state("DONE", 9, 9, None).await.unwrap();
    bed.state.closing.cancel();
    let (event, _, sent) = next_event(&mut resumed).await.unwrap();
    assert_eq!((event.as_str(), &sent["state"]), ("experiment", &json!("DONE")));
    let (event, ..) = next_event(&mut resumed).await.unwrap();
    assert_eq!(event, "end");
    assert_eq!(next_event(&mut resumed).await, None);
}

#[tokio::test]
async fn a_trials_stream_sends_its_events_and_resumes_without_a_gap() {
    let bed = Bed::searched().await;
    bed.change("t", JobState::Running).await;
    let path = "/api/v1/trials/t/events";
    let mut stream = open_stream(&bed, path, None).await;
    let mut events = Vec::new();
    for _ in 0..5 {
        let (event, id, data) = next_event(&mut stream).await.unwrap();
        events.push((event, data));
        if events.len() == 5 {
            assert_eq!(id, "1.3.1.12.0");
        }
    }
    let kinds: Vec<_> = events.iter().map(|(event, _)| event.as_str()).collect();
    assert_eq!(kinds, ["attempt", "metrics", "samples", "log", "trial"]);
    assert_eq!(events[1].1.as_array().unwrap().len(), 3);
    drop(stream);
    bed.report(Lane::Bulk, 2, vec![log(12, "more\n")]).await;
    let mut resumed = open_stream(&bed, path, Some("1.3.1.12.0")).await;
    let (event, id, data) = next_event(&mut resumed).await.unwrap();
    assert_eq!((event.as_str(), id.as_str()), ("log", "1.3.1.17.0"));
    let times = json!([{"line": 0, "observed_at_ms": 5}]);
    assert_eq!(data, json!({"stream": "stdout", "from": 12, "text": "more\n", "times": times}));
    bed.change("t", JobState::Succeeded).await;
    let mut rest = Vec::new();
    while let Some((event, _, _)) = next_event(&mut resumed).await {
        rest.push(event);
    }
    assert_eq!(rest.last().map(String::as_str), Some("end"), "{rest:?}");
}

#[tokio::test]
async fn a_character_split_between_two_pieces_of_output_is_sent_whole() {
    let bed = Bed::searched().await;
    bed.change("t", JobState::Running).await;
    let piece = |offset_bytes: u64, bytes: &[u8]| {
        let text = LogText::Base64(BASE64_STANDARD.encode(bytes));
        ReportBody::Log(LogChunk { stream: Stream::Stdout, offset_bytes, text })
    };
    let (euro, place) = ("€".as_bytes(), "/api/v1/trials/t/events");
    bed.report(Lane::Bulk, 2, vec![piece(12, &[b"a", &euro[..1]].concat())]).await;
    let mut stream = open_stream(&bed, place, Some("1.3.1.12.0")).await;
    let (_, id, data) = next_event(&mut stream).await.unwrap();
    assert_eq!((id.as_str(), &data["text"]), ("1.3.1.13.0", &json!("a")));
    let (event, ..) = next_event(&mut stream).await.unwrap();
    assert_eq!(event, "trial");
    bed.report(Lane::Bulk, 3, vec![piece(14, &[&euro[1..], b"b", &euro[..2]].concat())]).await;
    let (_, id, data) = next_event(&mut stream).await.unwrap();
    assert_eq!((id.as_str(), &data["text"]), ("1.3.1.17.0", &json!("€b")));
    // An incomplete character is sent once nothing more can follow.
    bed.change("t", JobState::Succeeded).await;
    let (_, _, data) = next_event(&mut stream).await.unwrap();
    assert_eq!(data["text"], "\u{fffd}");
}

#[tokio::test]
async fn a_stream_interrupted_between_two_trials_continues_with_the_second() {
    let bed = Bed::searched().await;
    for (trial, state) in [("u", JobState::Failed), ("t", JobState::Failed)] {
        bed.change(trial, state).await;
    }
    // Both changes happened together. The last event before them is change 3.
    for (after, sent) in
        [("3", vec![("u", "4"), ("t", "5")]), ("4", vec![("t", "5")]), ("5", vec![])]
    {
        let mut stream = open_stream(&bed, "/api/v1/events", Some(after)).await;
        let mut trials = Vec::new();
        loop {
            let (event, id, data) = next_event(&mut stream).await.unwrap();
            if event == "experiment" {
                assert_eq!(id, "5");
                break;
            }
            trials.push((data["id"].as_str().unwrap().to_owned(), id));
        }
        let sent: Vec<_> = sent.iter().map(|(t, id)| ((*t).to_owned(), (*id).to_owned())).collect();
        assert_eq!(trials, sent, "after {after}");
    }
}
