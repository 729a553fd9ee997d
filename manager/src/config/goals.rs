//! PURE: `objectives` and `constraints`.

use serde_json::{Map, Value, json};

use super::direction::Statement;
use super::document::kind;
use super::section::{Canonical, Problem, Section};
use crate::search::class_args::OptimizeMode;
use crate::search::goals::{Constraint, Goals, Objective};
use crate::util::nearest::advice;

/// Reads `objectives` and `constraints`. `objective` is the field of that name, and `target` is the result that ends
/// the search.
pub(super) fn goals(
    top: &mut Section,
    objective: Option<&str>,
    target: Option<f64>,
    canonical: &mut Canonical,
) -> Result<Goals, Problem> {
    let has_objective = canonical.0.contains_key("objective");
    let objectives = list(top, "objectives", one_objective)?;
    let constraints = list(top, "constraints", one_constraint)?;
    if !objectives.is_empty() && has_objective {
        let problem = "is given besides `objective`; keep one of them";
        return Err(top.fault("objectives", problem));
    }
    let mut names: Vec<&str> = Vec::new();
    for (at, objective) in objectives.iter().enumerate() {
        if names.contains(&objective.metric.as_str()) {
            let problem = format!("`{}` is listed as an objective twice", objective.metric);
            return Err(Problem::new(format!("objectives[{at}].metric"), problem));
        }
        names.push(&objective.metric);
    }
    if objectives.len() > 1 && target.is_some() {
        let problem = "is for one objective; with several, no result is the best, so leave it out, or make it a constraint";
        return Err(top.fault("targetMetric", problem));
    }
    if objectives.is_empty() && objective.is_none() && !constraints.is_empty() {
        let problem = "need the objective's name, to distinguish the metrics: add `objective`";
        return Err(top.fault("constraints", problem));
    }
    if !objectives.is_empty() {
        canonical.put("objectives", objectives.iter().map(written_objective).collect::<Vec<_>>());
    }
    if !constraints.is_empty() {
        canonical
            .put("constraints", constraints.iter().map(written_constraint).collect::<Vec<_>>());
    }
    Ok(Goals { objectives, constraints })
}

/// Returns the direction of the first objective.
pub(super) fn first_direction(goals: &Goals) -> Option<Statement> {
    let first = goals.objectives.first()?;
    Some(Statement { path: "objectives[0].direction".to_owned(), mode: first.mode })
}

/// Adds the objective of an experiment with constraints to its list of objectives, if the list is empty. Returns empty
/// goals for a single objective without constraints.
pub(super) fn with_direction(goals: Goals, objective: Option<&str>, mode: OptimizeMode) -> Goals {
    match objective {
        _ if goals.constraints.is_empty() && !goals.has_several_objectives() => Goals::default(),
        Some(metric) if goals.objectives.is_empty() => {
            let metric = metric.to_owned();
            Goals { objectives: vec![Objective { metric, mode }], ..goals }
        }
        Some(_) | None => goals,
    }
}

/// Reads a list of sections, which is empty if the field is absent.
fn list<T>(
    top: &mut Section,
    name: &str,
    read_item: fn(&mut Section) -> Result<T, Problem>,
) -> Result<Vec<T>, Problem> {
    let Some(value) = top.take(name) else { return Ok(Vec::new()) };
    let Value::Array(items) = value else {
        return Err(top.fault(name, format!("expected a list, found {}", kind(&value))));
    };
    if items.is_empty() {
        return Err(top.fault(name, "is empty; leave it out"));
    }
    let section = |(at, item)| {
        let known = ["metric", "direction", "min", "max"];
        let known = if name == "objectives" { &known[..2] } else { &["metric", "min", "max"][..] };
        read_item(&mut Section::open(&format!("{name}[{at}]"), item, known)?)
    };
    items.into_iter().enumerate().map(section).collect()
}

fn metric(fields: &mut Section) -> Result<String, Problem> {
    let name = fields.string("metric")?;
    name.ok_or_else(|| fields.fault("metric", "is missing; name a metric of the trials"))
}

fn one_objective(fields: &mut Section) -> Result<Objective, Problem> {
    let metric = metric(fields)?;
    let Some(word) = fields.string("direction")? else {
        return Err(fields.fault("direction", "is missing; set it to minimize or maximize"));
    };
    let Some(mode) = OptimizeMode::from_word(&word) else {
        let advice = advice(&word, ["maximize", "minimize"]);
        return Err(fields.fault("direction", format!("`{word}` is not known; {advice}")));
    };
    Ok(Objective { metric, mode })
}

fn one_constraint(fields: &mut Section) -> Result<Constraint, Problem> {
    let metric = metric(fields)?;
    let (min, max) = (limit(fields, "min")?, limit(fields, "max")?);
    match (min, max) {
        (None, None) => Err(fields.fault("max", "is missing; give `max`, `min` or both")),
        (Some(min), Some(max)) if min > max => Err(fields
            .fault("min", format!("is {min}, more than `max`, {max}: no value can satisfy both"))),
        (min, max) => Ok(Constraint { metric, min, max }),
    }
}

fn limit(fields: &mut Section, name: &str) -> Result<Option<f64>, Problem> {
    let Some(value) = fields.take(name) else { return Ok(None) };
    match value.as_f64().filter(|number| number.is_finite()) {
        Some(number) => Ok(Some(number)),
        None => Err(fields.fault(name, format!("expected a number, found {}", kind(&value)))),
    }
}

fn written_objective(objective: &Objective) -> Value {
    json!({"metric": objective.metric, "direction": objective.mode.word()})
}

fn written_constraint(constraint: &Constraint) -> Value {
    let mut members = Map::from_iter([("metric".to_owned(), json!(constraint.metric))]);
    for (name, limit) in [("min", constraint.min), ("max", constraint.max)] {
        members.extend(limit.map(|limit| (name.to_owned(), json!(limit))));
    }
    Value::Object(members)
}
