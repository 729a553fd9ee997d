//! The checks and the start of several training services. Each message names the part by its position in the list.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use serde_json::Value;
use tokio::sync::mpsc;
use tracing::warn;

use super::{Hybrid, PartService, Settings};
use crate::config::{ExperimentSpec, HybridPart, HybridSpec};
use crate::training_service::TrainingService;
use crate::training_service::platform::{
    BoxError, CheckContext, CheckedPlatform, CleanContext, Finding, Platform, StartContext,
    UnavailableError, platform,
};
use crate::util::errors::error_chain;

/// The problem of a part, or of several.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct PartError(String);

impl PartError {
    /// Returns the problem of the part at this position in the list. Field names in the message get the part's prefix.
    fn new(number: usize, error: &BoxError) -> Self {
        let field = format!("trainingService[{number}]");
        let message = error_chain(error.as_ref()).replace("trainingService.", &format!("{field}."));
        let message = message.replace("trainingService: ", &format!("{field}: "));
        Self(if message.contains(&field) { message } else { format!("{field}: {message}") })
    }
}

/// Returns the specification of the experiment for a part.
fn spec_of_part(spec: &ExperimentSpec, part: &HybridPart) -> ExperimentSpec {
    ExperimentSpec {
        training_service: part.spec.clone(),
        trial_gpu_number: part.gpus,
        ..spec.clone()
    }
}

/// Returns a part that is out of reach at the start. Its service starts without its platform and reconnects by itself.
async fn check_absent_part(
    part: &HybridPart,
    context: CheckContext<'_>,
) -> Result<Box<dyn CheckedPlatform>, BoxError> {
    let context = CheckContext { is_new: false, ..context };
    platform(&part.spec).check(context).await
}

#[async_trait]
impl Platform for HybridSpec {
    async fn check(&self, context: CheckContext<'_>) -> Result<Box<dyn CheckedPlatform>, BoxError> {
        let (mut parts, mut problems, mut away) = (Vec::new(), Vec::new(), Vec::new());
        for (number, part) in self.parts.iter().enumerate() {
            let spec = spec_of_part(context.spec, part);
            let context = CheckContext { spec: &spec, ..context };
            let error = match platform(&part.spec).check(context).await {
                Ok(checked) => {
                    parts.push((part.clone(), checked));
                    continue;
                }
                Err(error) => error,
            };
            let problem = PartError::new(number, &error).0;
            if !context.tolerates_absence || !error.is::<UnavailableError>() {
                problems.push(problem);
                continue;
            }
            match check_absent_part(part, context).await {
                Ok(checked) => {
                    parts.push((part.clone(), checked));
                    away.push(problem);
                }
                Err(error) => problems.push(PartError::new(number, &error).0),
            }
        }
        let has_parts = away.len() < self.parts.len();
        if !problems.is_empty() || !has_parts {
            problems.extend(away);
            return Err(PartError(problems.join("; ")).into());
        }
        for problem in away {
            let begins = if context.is_new { "begins" } else { "continues" };
            warn!("{problem}; the search {begins} without this training service");
        }
        Ok(Box::new(CheckedHybrid { parts }))
    }

    async fn examine(&self, spec: &ExperimentSpec) -> Vec<Finding> {
        let mut findings = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            for Finding { found } in platform(&part.spec).examine(&spec_of_part(spec, part)).await {
                let with_part = |message| format!("trainingService[{number}]: {message}");
                findings.push(Finding { found: found.map(with_part).map_err(with_part) });
            }
        }
        findings
    }

    fn success_message(&self) -> String {
        let parts = self.parts.iter().enumerate().map(|(number, part)| {
            format!("trainingService[{number}]: {}", platform(&part.spec).success_message())
        });
        parts.collect::<Vec<_>>().join("; ")
    }

    async fn clean(&self, context: CleanContext<'_>) -> Result<(), BoxError> {
        let mut problems = Vec::new();
        for (number, part) in self.parts.iter().enumerate() {
            let (spec, dir) = (spec_of_part(context.spec, part), context.dir.of_part(number));
            let context = CleanContext { spec: &spec, dir: &dir, ..context };
            if let Err(error) = platform(&part.spec).clean(context).await {
                problems.push(PartError::new(number, &error).0);
            }
        }
        if problems.is_empty() { Ok(()) } else { Err(PartError(problems.join("; ")).into()) }
    }
}

/// Training services that can run trials.
struct CheckedHybrid {
    parts: Vec<(HybridPart, Box<dyn CheckedPlatform>)>,
}

#[async_trait]
impl CheckedPlatform for CheckedHybrid {
    fn api_server(&self) -> Option<&str> {
        self.parts.iter().find_map(|(_, checked)| checked.api_server())
    }

    fn agent_for_pods(&self) -> Option<&Path> {
        self.parts.iter().find_map(|(_, checked)| checked.agent_for_pods())
    }

    fn notes(&self) -> Vec<String> {
        let parts = self.parts.iter().enumerate();
        let notes = parts.flat_map(|(number, (_, checked))| {
            checked
                .notes()
                .into_iter()
                .map(move |note| format!("trainingService[{number}]: {note}"))
        });
        notes.collect()
    }

    fn resolved_fields(&self) -> Value {
        self.parts.iter().map(|(_, checked)| checked.resolved_fields()).collect()
    }

    async fn start(
        self: Box<Self>,
        context: StartContext<'_>,
    ) -> Result<Arc<dyn TrainingService>, BoxError> {
        let mut parts = Vec::new();
        for (number, (part, checked)) in self.parts.into_iter().enumerate() {
            let spec = spec_of_part(context.spec, &part);
            // Each event of a job produces one item of news, as in an experiment with one service.
            let (events, news) = mpsc::unbounded_channel();
            let dir = context.dir.of_part(number);
            let own = StartContext { spec: &spec, dir, events, ..context.clone() };
            let service = checked.start(own).await;
            let service = service.map_err(|error| PartError::new(number, &error))?;
            let (platform, limit) = (part.platform, part.limit);
            parts.push(PartService { platform, limit, service, news });
        }
        let StartContext { dir, events, .. } = context;
        Ok(Arc::new(Hybrid::start(Settings { dir, events, parts })))
    }
}
