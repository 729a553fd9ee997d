//! The fields that describe a search (its owner and its tags), and its initial points.

use serde_json::Value;

use super::super::document::describe_kind;
use super::super::section::{Problem, Section};
use super::super::{ExperimentSpec, TunerChoice};
use crate::search::search_space::Parameters;
use crate::search::tuner;
use crate::search::user_point;

/// The longest owner or tag, in characters.
const MAX_LABEL_CHARACTERS: usize = 60;
/// The greatest number of tags.
pub const MAX_TAGS: usize = 20;

/// Returns the problem of a text that lists show on one line. `None`: the text is valid.
pub fn label_problem(text: &str) -> Option<String> {
    let length = text.chars().count();
    if text.trim().is_empty() {
        return Some("must not be empty".to_owned());
    }
    if length > MAX_LABEL_CHARACTERS {
        return Some(format!("has {length} characters; the maximum is {MAX_LABEL_CHARACTERS}"));
    }
    text.chars().any(char::is_control).then(|| "must be one line of text".to_owned())
}

/// Reads `owner`, a text on one line.
pub(in crate::config) fn read_owner(top: &mut Section) -> Result<Option<String>, Problem> {
    let owner = top.string("owner")?;
    match owner.as_deref().and_then(label_problem) {
        Some(problem) => Err(top.problem("owner", problem)),
        None => Ok(owner),
    }
}

/// Reads `tags`, a list of distinct texts.
pub(in crate::config) fn read_tags(top: &mut Section) -> Result<Vec<String>, Problem> {
    let Some(value) = top.take("tags") else { return Ok(Vec::new()) };
    let Value::Array(entries) = value else {
        let what = format!(
            "expected a list of texts, such as [vision, baseline], found {}",
            describe_kind(&value)
        );
        return Err(top.problem("tags", what));
    };
    let mut tags: Vec<String> = Vec::new();
    for (place, entry) in entries.into_iter().enumerate() {
        let fault = |what: String| Problem::new(format!("tags[{place}]"), what);
        let Value::String(tag) = entry else {
            return Err(fault(format!("expected a text, found {}", describe_kind(&entry))));
        };
        match label_problem(&tag) {
            Some(what) => return Err(fault(what)),
            None if tag.contains(',') => return Err(fault("must not have a comma".to_owned())),
            None if tags.contains(&tag) => {}
            None => tags.push(tag),
        }
    }
    if tags.len() > MAX_TAGS {
        let what = format!("has {} entries; the maximum is {MAX_TAGS}", tags.len());
        return Err(top.problem("tags", what));
    }
    top.record("tags", Some(&tags).filter(|tags| !tags.is_empty()));
    Ok(tags)
}

/// Reads `initialTrials`, a list of parameter maps.
pub(in crate::config) fn read_initial_trials(
    top: &mut Section,
) -> Result<Vec<Parameters>, Problem> {
    let Some(value) = top.take("initialTrials") else { return Ok(Vec::new()) };
    let Value::Array(entries) = value else {
        let what = format!(
            "expected a list of parameters, such as [{{lr: 0.01}}], found {}",
            describe_kind(&value)
        );
        return Err(top.problem("initialTrials", what));
    };
    let points = entries.into_iter().enumerate().map(|(place, entry)| match entry {
        Value::Object(point) => Ok(point),
        other @ (Value::Null
        | Value::Bool(_)
        | Value::Number(_)
        | Value::String(_)
        | Value::Array(_)) => {
            let what = format!("expected parameters, found {}", describe_kind(&other));
            Err(Problem::new(format!("initialTrials[{place}]"), what))
        }
    });
    let points: Vec<Parameters> = points.collect::<Result<_, _>>()?;
    top.record("initialTrials", Some(&points).filter(|points| !points.is_empty()));
    Ok(points)
}

/// Checks the initial points of a new experiment against its space and its limit. A stored experiment is not checked,
/// because its space and limit may have changed after the points were tried.
pub(in crate::config) fn check_initial_trials(spec: &ExperimentSpec) -> Result<(), Problem> {
    let native = if let TunerChoice::BuiltIn(native) = &spec.tuner { Some(native) } else { None };
    let sets = native.and_then(|native| tuner::batch_sets(native, &spec.search_space));
    for (number, point) in (0_u64..).zip(&spec.initial_trials) {
        user_point::complete_point(point, &spec.search_space, sets.as_deref(), 0, number).map_err(
            |error| Problem::new(format!("initialTrials[{number}].{}", error.path), error.problem),
        )?;
    }
    let points = u64::try_from(spec.initial_trials.len()).unwrap_or(u64::MAX);
    let count = points.saturating_mul(spec.trial_repeats);
    match spec.max_trial_number.filter(|most| count > *most) {
        Some(most) => {
            let what = format!(
                "asks for {count} trials, but maxTrialNumber is {most}; raise it, or remove points"
            );
            Err(Problem::new("initialTrials", what))
        }
        None => Ok(()),
    }
}
