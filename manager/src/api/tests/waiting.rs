//! Tests of requests that agents keep open until they have reports.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::Bytes;
use http_body::Frame;
use tokio::sync::oneshot;
use tokio::time::timeout;
use trial_protocol::DirectiveBody;

use super::*;

/// A body that arrives when the test sends it.
struct DelayedBody(oneshot::Receiver<String>);

impl http_body::Body for DelayedBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if self.0.is_terminated() {
            return Poll::Ready(None);
        }
        let text = std::task::ready!(Pin::new(&mut self.0).poll(context));
        Poll::Ready(text.ok().map(|text| Ok(Frame::data(Bytes::from(text)))))
    }
}

pub(super) fn open_report_request(
    bed: &Bed,
    trial: &str,
) -> (oneshot::Sender<String>, Request<Body>) {
    let (send, body) = oneshot::channel();
    let request = Request::post("/api/v1/agent/reports")
        .header(header::AUTHORIZATION, bed.token("e", trial))
        .header("trialkeeper-attempt", "a")
        .body(Body::new(DelayedBody(body)))
        .unwrap();
    (send, request)
}

#[tokio::test]
async fn a_directive_wakes_only_its_agent_and_is_on_the_next_ack() {
    let bed = Bed::new().await;
    let id = |id: &str| TrialJobId::new(id).unwrap();
    let (to_t, t) = open_report_request(&bed, "t");
    let (to_u, u) = open_report_request(&bed, "u");
    let (t, u) = (bed.send(t), bed.send(u));
    tokio::pin!(t, u);
    // A timeout of zero polls a request once.
    let patience = Duration::ZERO;
    assert!(timeout(patience, &mut t).await.is_err() && timeout(patience, &mut u).await.is_err());

    // A directive for another attempt does not wake this agent.
    bed.handle.push_directive(&id("t"), &AttemptId::new("b").unwrap(), DirectiveBody::Flush);
    assert!(timeout(patience, &mut t).await.is_err());
    bed.handle.push_directive(&id("t"), &AttemptId::new("a").unwrap(), DirectiveBody::Flush);
    let (status, called) = read(timeout(Duration::from_mins(1), t).await.unwrap()).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        called,
        json!({"offer": {"oldest": 1, "newest": 1, "capabilities": ["bulk", "gzip", "open"]}})
    );
    assert!(to_t.is_closed(), "the response does not wait for the body");
    assert!(timeout(patience, &mut u).await.is_err(), "the other agent is not woken");

    to_u.send(batch("e", "u").to_string()).unwrap();
    let (status, ack) = read(u.await).await;
    assert_eq!((status, &ack["through"], ack.get("directives")), (StatusCode::OK, &json!(4), None));
    // The directive was already announced, so it does not wake the next open request.
    let (to_t, t) = open_report_request(&bed, "t");
    let t = bed.send(t);
    tokio::pin!(t);
    assert!(timeout(patience, &mut t).await.is_err());
    to_t.send(batch("e", "t").to_string()).unwrap();
    let (_, ack) = read(t.await).await;
    assert_eq!(ack["directives"][0]["body"], json!({"kind": "flush"}));
}

#[tokio::test]
async fn a_stopping_manager_answers_requests_that_only_wait() {
    let bed = Bed::new().await;
    let (_keep, waiting) = open_report_request(&bed, "t");
    let waiting = bed.send(waiting);
    tokio::pin!(waiting);
    assert!(timeout(Duration::ZERO, &mut waiting).await.is_err());
    bed.state.closing.cancel();
    let (status, answer) = read(timeout(Duration::from_mins(1), waiting).await.unwrap()).await;
    assert_eq!((status, &answer["code"]), (StatusCode::SERVICE_UNAVAILABLE, &json!("stopping")));
}
