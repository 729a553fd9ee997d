//! Tests of trials whose agents are silent: the training service provides the output.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use futures_util::{StreamExt as _, stream};
use trial_protocol::{Lane, TrialJobId};

use super::follow::{next_event, open_stream};
use super::user::log;
use super::*;
use crate::job_state::JobState;
use crate::training_service::{AdoptionResult, Output, SubmitError, TrainingService, TrialJobSpec};

/// A service whose jobs print `prints` at every request. `asked` contains the time range of each request.
struct Service {
    prints: Result<Vec<&'static [u8]>, String>,
    asked: Mutex<Vec<Option<Duration>>>,
}

#[async_trait]
impl TrainingService for Service {
    async fn submit(&self, _: &TrialJobSpec) -> Result<(), SubmitError> {
        Ok(())
    }

    async fn adopt(&self, _: &TrialJobId, _: &AttemptId) -> AdoptionResult {
        AdoptionResult::Unknown
    }

    async fn recover_reports(&self, _: &TrialJobId) {}

    async fn stop(&self, _: &TrialJobId) {}

    async fn output(
        &self,
        _: &TrialJobId,
        ago: Option<Duration>,
    ) -> Option<Result<Output, String>> {
        self.asked.lock().unwrap().push(ago);
        let pieces = self.prints.clone().map(|pieces| pieces.into_iter().map(<[u8]>::to_vec));
        // The stream never ends.
        Some(pieces.map(|pieces| {
            stream::iter(pieces.collect::<Vec<_>>()).chain(stream::pending()).boxed()
        }))
    }

    async fn close(&self) {}
}

impl Bed {
    fn runs(&self, prints: Result<Vec<&'static [u8]>, String>) -> Arc<Service> {
        let service = Arc::new(Service { prints, asked: Mutex::default() });
        let runs: Arc<dyn TrainingService> = service.clone();
        assert!(self.state.service.set(runs).is_ok(), "the service was already set");
        service
    }
}

const EVENTS_PATH: &str = "/api/v1/trials/t/events";

#[tokio::test]
async fn the_pods_output_is_sent_until_its_agent_reports() {
    let bed = Bed::new().await;
    let service = bed.runs(Ok(vec![b"a\xe2", b"\x82", b"\xacb\xe2"]));
    let mut stream = open_stream(&bed, EVENTS_PATH, None).await;
    let (event, _, _) = next_event(&mut stream).await.unwrap();
    assert_eq!(event, "trial");
    let (event, id, data) = next_event(&mut stream).await.unwrap();
    assert_eq!((event.as_str(), id.as_str()), ("unheard", "-1.-1.-1.0.0"));
    assert_eq!(data, json!({"text": "a€b"}), "an incomplete character waits for its rest");
    assert_eq!(*service.asked.lock().unwrap(), [None]);
    bed.change("t", JobState::Running).await;
    bed.report(Lane::Bulk, 0, vec![log(0, "a€b")]).await;
    let mut events = Vec::new();
    while events.last().is_none_or(|event| event != "log") {
        events.push(next_event(&mut stream).await.unwrap().0);
    }
    assert_eq!(events.iter().filter(|event| *event == "attempt").count(), 1, "{events:?}");
    // For an agent that reported before, the service returns only the output since then.
    bed.change("t", JobState::Lost).await;
    loop {
        let (event, _, data) = next_event(&mut stream).await.unwrap();
        if event == "unheard" {
            assert_eq!(data, json!({"text": "a€b"}));
            break;
        }
    }
    assert!(service.asked.lock().unwrap()[1].is_some());
    bed.change("t", JobState::Running).await;
    bed.report(Lane::Bulk, 1, vec![log(5, "c")]).await;
    loop {
        let (event, _, data) = next_event(&mut stream).await.unwrap();
        assert_ne!(event, "attempt", "earlier output is not sent again");
        if event == "log" {
            assert_eq!(data["text"], "c");
            break;
        }
    }
}

#[tokio::test]
async fn the_reason_for_absent_output_is_sent_once() {
    let bed = Bed::new().await;
    let service = bed.runs(Err("it may not be read".to_owned()));
    let mut stream = open_stream(&bed, EVENTS_PATH, None).await;
    next_event(&mut stream).await.unwrap();
    let (event, _, data) = next_event(&mut stream).await.unwrap();
    assert_eq!((event.as_str(), data), ("unheard", json!({"why": "it may not be read"})));
    bed.change("t", JobState::Failed).await;
    let (event, _, _) = next_event(&mut stream).await.unwrap();
    assert_eq!(event, "trial");
    assert_eq!(service.asked.lock().unwrap().len(), 1);
}
