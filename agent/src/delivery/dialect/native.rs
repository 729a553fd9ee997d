//! The protocol of `trial-protocol`: one POST per batch, answered by an ack.

mod deferred_body;

use std::time::Duration;

use reqwest::header::{AUTHORIZATION, CONTENT_ENCODING, CONTENT_TYPE, HeaderMap, RETRY_AFTER};
use reqwest::{Body, Client, RequestBuilder, Response, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use trial_protocol::{AttemptId, Lane, Offer, ReportAck, ReportBatch, capability};

use super::Error;
use crate::http::client::{self, ANSWER_TIMEOUT};
use crate::spool::{Cursor, Record, Sender};

pub use deferred_body::{BodySender, deferred_body};

/// The header that names the attempt of an open request.
const ATTEMPT_HEADER: &str = "trialkeeper-attempt";
/// The path of reports, below the manager's base URL.
pub const REPORTS_PATH: &str = "/api/v1/agent/reports";
/// The maximum length of an answer, in bytes. A longer one does not come from a manager, and would use the trial's
/// memory.
const MAX_ANSWER_BYTES: usize = 1 << 20;
/// The slowest supported connection, in bytes per second.
const SLOWEST_BYTES_PER_SECOND: usize = 16 << 10;
/// The maximum length of a refusal's explanation, in characters.
const MAX_DETAIL_CHARS: usize = 300;

/// The explanation of a refusal (RFC 9457), without unused members.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    detail: String,
    title: String,
}

/// Returns all capabilities of this agent.
pub fn offer() -> Offer {
    Offer::new([capability::STOP, capability::BULK])
}

/// Returns the body of a batch. The reports are JSON already, and are not parsed again.
pub fn batch_body(
    sender: &Sender,
    attempt: &AttemptId,
    lane: Lane,
    records: &[Record],
    obeyed: &[u64],
    cursor: Cursor,
) -> Vec<u8> {
    let envelope = ReportBatch {
        offer: offer(),
        experiment: sender.experiment.clone(),
        trial: sender.trial.clone(),
        attempt: attempt.clone(),
        lane,
        reports: Vec::new(),
        obeyed: obeyed.to_vec(),
        acknowledged: cursor.acknowledged,
        forgotten: cursor.forgotten,
    };
    let mut body = serde_json::to_vec(&envelope).expect("a batch has string keys only");
    let empty = b"\"reports\":[]";
    let place = memchr::memmem::find(&body, empty).expect("an empty list of reports is written");
    let tail = body.split_off(place + empty.len() - 1);
    body.reserve(records.iter().map(|record| record.json.len() + 1).sum::<usize>() + tail.len());
    for (index, record) in records.iter().enumerate() {
        if index > 0 {
            body.push(b',');
        }
        body.extend_from_slice(record.json.as_bytes());
    }
    body.extend_from_slice(&tail);
    body
}

/// Posts a batch, which may be compressed, and returns the ack.
pub async fn post(
    client: &Client,
    base: &str,
    token: Option<&str>,
    body: Vec<u8>,
    gzip: bool,
) -> Result<ReportAck, Error> {
    let mut request = client.post(reports_url(base));
    if gzip {
        request = request.header(CONTENT_ENCODING, "gzip");
    }
    // A slow connection must not cause a repetition. The manager waits for as long.
    let seconds = u32::try_from(body.len() / SLOWEST_BYTES_PER_SECOND).unwrap_or(u32::MAX);
    let within = ANSWER_TIMEOUT.saturating_add(Duration::from_secs(1).saturating_mul(seconds));
    send(request, base, token, Body::from(body), within).await
}

/// Sends a request like [`post`], with a body that follows within `open`. The manager may answer earlier with an ack
/// that changes nothing, to make this attempt's agent send a report.
pub async fn post_deferred(
    client: &Client,
    base: &str,
    token: Option<&str>,
    attempt: &AttemptId,
    body: Body,
    open: Duration,
) -> Result<ReportAck, Error> {
    let request = client.post(reports_url(base)).header(ATTEMPT_HEADER, attempt.as_str());
    send(request, base, token, body, open + ANSWER_TIMEOUT).await
}

fn reports_url(base: &str) -> String {
    format!("{}{REPORTS_PATH}", base.trim_end_matches('/'))
}

async fn send(
    request: RequestBuilder,
    base: &str,
    token: Option<&str>,
    body: Body,
    within: Duration,
) -> Result<ReportAck, Error> {
    let url = reports_url(base);
    let mut request = request.header(CONTENT_TYPE, "application/json").timeout(within).body(body);
    if let Some(token) = token {
        request = request.header(AUTHORIZATION, format!("Bearer {token}"));
    }
    let unreachable = |source: reqwest::Error| Error::Unreachable { url: url.clone(), source };
    let response = request.send().await.map_err(unreachable)?;
    if response.status() == StatusCode::OK {
        return read_json(&url, response).await;
    }
    Err(read_refusal(url, response).await)
}

/// Parses an answer of the manager.
pub(super) async fn read_json<T: DeserializeOwned>(
    url: &str,
    response: Response,
) -> Result<T, Error> {
    let foreign = |source| Error::NotAManager { url: url.to_owned(), source };
    let whole = client::read_whole(response, MAX_ANSWER_BYTES).await;
    let bytes = whole.map_err(|source| Error::Unreachable { url: url.to_owned(), source })?;
    let long = || foreign(serde::de::Error::custom("its answer is too long"));
    serde_json::from_slice(&bytes.ok_or_else(long)?).map_err(foreign)
}

/// Returns the manager's refusal as an error.
pub(super) async fn read_refusal(url: String, response: Response) -> Error {
    let status = response.status();
    let after = retry_after(response.headers());
    let own = response
        .headers()
        .get(CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(b"application/problem+json"));
    // A body that cannot be read explains nothing, but the status remains valid.
    let bytes =
        client::read_whole(response, MAX_ANSWER_BYTES).await.ok().flatten().unwrap_or_default();
    let problem: Problem = serde_json::from_slice(&bytes).unwrap_or_default();
    let detail = if problem.detail.is_empty() { problem.title } else { problem.detail };
    let detail: String =
        detail.chars().filter(|c| !c.is_control()).take(MAX_DETAIL_CHARS).collect();
    match status {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Error::Unauthorized { url, detail },
        StatusCode::NOT_FOUND => Error::Unknown { url, detail },
        StatusCode::CONFLICT if own => Error::WireVersion { url, detail },
        StatusCode::PAYLOAD_TOO_LARGE => Error::TooLarge { url, own },
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
            Error::Busy { url, after, detail }
        }
        // Only the manager itself can permanently refuse a body. A proxy's refusal may be temporary.
        StatusCode::BAD_REQUEST if own => Error::Refused { url, status, detail },
        status => Error::Failed { url, status, detail },
    }
}

/// Returns `Retry-After` in seconds (RFC 9110, 10.2.3). Its other form, a date, would require synchronised clocks.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let seconds = headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()?;
    Some(Duration::from_secs(seconds))
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;
    use trial_protocol::{ExperimentId, Report, ReportBody, TrialJobId};

    use super::*;
    use crate::http::client;
    use crate::spool::Dialect;

    #[tokio::test(start_paused = true)]
    async fn a_busy_manager_has_the_full_time_after_an_open_request() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let base = format!("http://{}", listener.local_addr().unwrap());
        let open = Duration::from_secs(20);
        let answer = async {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            assert!(connection.read(&mut request).await.unwrap() > 0);
            tokio::time::sleep(open + ANSWER_TIMEOUT / 2).await;
            let ack = serde_json::json!({"offer": offer()}).to_string();
            let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", ack.len());
            connection.write_all(format!("{head}{ack}").as_bytes()).await.unwrap();
        };
        let client = client::build(None).unwrap();
        let attempt = AttemptId::new("trial-1").unwrap();
        let request = post_deferred(&client, &base, None, &attempt, Body::from("{}"), open);
        let (ack, ()) = tokio::join!(request, answer);
        assert_eq!(ack.unwrap().through, None);
    }

    #[test]
    fn a_body_is_the_batch_that_the_protocol_describes() {
        let sender = Sender {
            experiment: ExperimentId::new("exp").unwrap(),
            trial: TrialJobId::new("trial").unwrap(),
            dialect: Dialect::Native,
        };
        let attempt = AttemptId::new("trial-1").unwrap();
        let note = |message: &str| ReportBody::Note {
            code: "n".to_owned(),
            message: format!("{message} \"reports\":[]"),
        };
        let report = |seq| Report { seq, observed_at_ms: 5, body: note("a") };
        for count in [0, 1, 3] {
            let reports: Vec<_> = (0..count).map(report).collect();
            let records: Vec<_> = reports
                .iter()
                .map(|r| Record { seq: r.seq, json: serde_json::to_string(r).unwrap().into() })
                .collect();
            let bytes =
                batch_body(&sender, &attempt, Lane::Facts, &records, &[4], Cursor::default());
            let batch: ReportBatch = serde_json::from_slice(&bytes).unwrap();
            assert_eq!((batch.reports, batch.obeyed), (reports, vec![4]), "{count} reports");
        }
    }
}
