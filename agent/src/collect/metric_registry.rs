//! PURE: names, numbers and limits the metrics that all collectors of one attempt found, and determines the result.
//!
//! Reports of NNI's SDK are the trial's own statements. They are forwarded with their numbers, and none is dropped.
//! Metrics read from text are limited, because the text was not written for TrialKeeper. There are at most
//! [`MAX_PRINTED_NAMES`] names. After [`MAX_DENSE_VALUES`] values of one name, only every second value is kept, later
//! every fourth, and so on. Dropped values are counted, and the last value of each name is always known.

use std::collections::HashMap;

use trial_protocol::{Direction, Metric, MetricKind, MetricValue, OBJECTIVE};

use super::objective::{is_repeated_parameter, main_metric};
use super::{CollectSpec, CollectedMetric, Source};

/// The maximum number of names from text and JSON lines. The objective and a final result are always admitted.
const MAX_PRINTED_NAMES: usize = 64;

/// The number of intermediate values of one name that are all kept.
const MAX_DENSE_VALUES: u64 = 10_000;

/// The metrics that all collectors of one attempt found.
#[derive(Debug)]
pub struct MetricRegistry {
    objective: Option<String>,
    direction: Option<Direction>,
    /// The trial's parameters that are numbers.
    parameters: Vec<(String, MetricValue)>,
    sdk: Series,
    printed: HashMap<String, Series>,
    /// The number of metrics so far, which serves as the time of each series' last value.
    registered: u64,
    final_seen: bool,
    /// The name that was chosen as the result, if there were several and the user had named none.
    chosen: Option<String>,
    thinned_values: u64,
    values_over_name_limit: u64,
}

/// The metrics of one name.
#[derive(Debug, Default)]
struct Series {
    intermediates: u64,
    finals: u64,
    next_sequence: u64,
    last: Option<MetricValue>,
    last_at: u64,
    /// `true` if a value did more than repeat a parameter of the same name.
    is_measured: bool,
}

impl MetricRegistry {
    /// Creates an empty registry.
    pub fn new(spec: &CollectSpec) -> Self {
        Self {
            objective: spec.objective.clone(),
            direction: spec.direction,
            parameters: spec.parameters.clone(),
            sdk: Series::default(),
            printed: HashMap::new(),
            registered: 0,
            final_seen: false,
            chosen: None,
            thinned_values: 0,
            values_over_name_limit: 0,
        }
    }

    /// Turns a finding into the metric to report, or returns `None` to drop it.
    pub fn register(&mut self, found: CollectedMetric) -> Option<Metric> {
        self.registered += 1;
        match found.source {
            Source::Sdk => Some(self.register_reported(found)),
            Source::Text | Source::Json | Source::Events | Source::Pattern => {
                self.register_printed(found)
            }
        }
    }

    /// Returns the final metric after the trial's end, if the trial reported none itself and it can be determined.
    ///
    /// If a trial used the SDK and reported only intermediate results, the last one becomes the final result, marked as
    /// derived. If a trial only prints, the last printed value *is* the result.
    pub fn conclude(&mut self, succeeded: bool) -> Option<Metric> {
        if !succeeded || self.final_seen {
            return None;
        }
        self.final_seen = true;
        if self.sdk.last.is_some() {
            return Some(final_metric(OBJECTIVE, &self.sdk, true));
        }
        // A value that only repeats a parameter is not a result, unless it is the objective.
        let is_objective = |name: &str| self.objective.as_deref() == Some(name);
        let printed = self.printed.iter();
        let mut seen: Vec<_> =
            printed.filter(|(name, series)| series.is_measured || is_objective(name)).collect();
        seen.sort_by_key(|(_, series)| series.last_at);
        let names: Vec<_> = seen.iter().map(|(name, _)| name.as_str()).collect();
        let name = main_metric(&names, self.objective.as_deref(), self.direction)?;
        if names.len() > 1 && self.objective.is_none() {
            self.chosen = Some(name.to_owned());
        }
        Some(final_metric(name, &self.printed[name], false))
    }

    /// Returns notes for the user, each with a code and a sentence. It must be called after [`Self::conclude`].
    pub fn notes(&self) -> Vec<(&'static str, String)> {
        let mut notes = Vec::new();
        if let Some(chosen) = &self.chosen {
            let text = format!(
                "of {} printed metrics, {chosen:?} was chosen as the result; name another with --objective, or in \
                 an experiment's file with `objective: {{metric: NAME}}`",
                self.printed.len()
            );
            notes.push(("objective-chosen", text));
        }
        if self.thinned_values > 0 {
            let text = format!(
                "{} printed metric values were dropped: only the first {MAX_DENSE_VALUES} of one name are all kept",
                self.thinned_values
            );
            notes.push(("metrics-thinned", text));
        }
        if self.values_over_name_limit > 0 {
            let text = format!(
                "{} printed values were not recorded because the trial prints more than {MAX_PRINTED_NAMES} names; \
                 name the one that counts with --objective",
                self.values_over_name_limit
            );
            notes.push(("metric-names-exceeded", text));
        }
        if let Some(objective) = &self.objective
            && self.sdk.last_at == 0
            && !self.printed.is_empty()
            && !self.printed.contains_key(objective)
        {
            let text = format!("the trial printed metrics, but none named {objective:?}");
            notes.push(("objective-not-seen", text));
        }
        notes
    }

    /// Returns the last value of each name. For the SDK, this is the last intermediate value.
    pub fn last_values(&self) -> impl Iterator<Item = (&str, &MetricValue)> {
        let printed = self.printed.iter().map(|(name, series)| (name.as_str(), series));
        let all = std::iter::once((OBJECTIVE, &self.sdk)).chain(printed);
        all.filter_map(|(name, series)| Some((name, series.last.as_ref()?)))
    }

    /// Records a metric of the SDK, which numbers its metrics itself.
    fn register_reported(&mut self, found: CollectedMetric) -> Metric {
        let kind = found.kind.unwrap_or(MetricKind::Intermediate);
        let series = &mut self.sdk;
        let sequence = match kind {
            MetricKind::Intermediate => {
                series.intermediates += 1;
                let sequence = found.sequence.unwrap_or(series.next_sequence);
                series.next_sequence = sequence.saturating_add(1);
                series.last = Some(found.value.clone());
                sequence
            }
            MetricKind::Final => {
                self.final_seen = true;
                series.finals += 1;
                found.sequence.unwrap_or(series.finals - 1)
            }
        };
        series.last_at = self.registered;
        Metric { name: found.name, kind, sequence, value: found.value, derived: false }
    }

    fn register_printed(&mut self, found: CollectedMetric) -> Option<Metric> {
        // If the trial uses the SDK, printed values never determine the result.
        let sdk_seen = self.sdk.intermediates + self.sdk.finals > 0;
        let kind = found.kind.filter(|_| !sdk_seen).unwrap_or(MetricKind::Intermediate);

        let may_be_result =
            self.objective.as_deref().is_some_and(|objective| objective == found.name)
                || (kind == MetricKind::Final && !self.final_seen);
        if !may_be_result
            && !self.printed.contains_key(&found.name)
            && self.printed.len() >= MAX_PRINTED_NAMES
        {
            self.values_over_name_limit += 1;
            return None;
        }

        let repeats = is_repeated_parameter(&self.parameters, &found.name, &found.value);
        let series = self.printed.entry(found.name.clone()).or_default();
        series.is_measured |= !repeats;
        series.last = Some(found.value.clone());
        series.last_at = self.registered;
        let sequence = match kind {
            MetricKind::Final => {
                self.final_seen = true;
                series.finals += 1;
                series.finals - 1
            }
            MetricKind::Intermediate => {
                // Steps that decrease (a step that restarts in each epoch) are numbered onwards.
                let sequence =
                    found.sequence.map_or(series.next_sequence, |n| n.max(series.next_sequence));
                series.next_sequence = sequence.saturating_add(1);
                let position = series.intermediates;
                series.intermediates += 1;
                if !is_kept(position) {
                    self.thinned_values += 1;
                    return None;
                }
                sequence
            }
        };
        Some(Metric { name: found.name, kind, sequence, value: found.value, derived: false })
    }
}

/// Returns whether the value at `position` of its name is kept. All of the first [`MAX_DENSE_VALUES`] values are kept,
/// then every second until there are twice as many, then every fourth, and so on.
fn is_kept(position: u64) -> bool {
    let stride = match position / MAX_DENSE_VALUES {
        0 => 1,
        times => 2_u64 << times.ilog2(),
    };
    position.is_multiple_of(stride)
}

fn final_metric(name: &str, series: &Series, derived: bool) -> Metric {
    Metric {
        name: name.to_owned(),
        kind: MetricKind::Final,
        sequence: 0,
        value: series.last.clone().unwrap_or_else(|| serde_json::Value::Null.into()),
        derived,
    }
}

#[cfg(test)]
mod tests;
