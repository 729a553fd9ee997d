//! PURE: `objectives` and `constraints`.

use serde_json::Value;
use trial_protocol::Direction;

use super::direction::DirectionStatement;
use super::document::describe_kind;
use super::section::{Problem, Section};
use crate::search::class_args::parse_direction;
use crate::search::goals::{Constraint, Goals, Objective};
use crate::util::nearest::suggest_names;

/// The fields of an objective, in the order of the canonical form.
pub(super) const OBJECTIVE_FIELDS: [&str; 2] = ["metric", "direction"];
/// The fields of a constraint, in the order of the canonical form.
pub(super) const CONSTRAINT_FIELDS: [&str; 3] = ["metric", "min", "max"];

/// Reads `objectives` and `constraints`. `objective` is the metric that the field `objective` names, and `target` is
/// the result that ends the search.
pub(super) fn read_goals(
    top: &mut Section,
    objective: Option<&str>,
    has_objective: bool,
    target: Option<f64>,
) -> Result<Goals, Problem> {
    let objectives = read_list(top, "objectives", &OBJECTIVE_FIELDS, read_objective)?;
    let constraints = read_list(top, "constraints", &CONSTRAINT_FIELDS, read_constraint)?;
    if !objectives.is_empty() && has_objective {
        let problem = "is given besides `objective`; keep one of them";
        return Err(top.problem("objectives", problem));
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
        return Err(top.problem("targetMetric", problem));
    }
    if objectives.is_empty() && objective.is_none() && !constraints.is_empty() {
        let problem = "need the objective's name, to distinguish the metrics: add `objective`";
        return Err(top.problem("constraints", problem));
    }
    Ok(Goals { objectives, constraints })
}

/// Reads `direction`, and records the word for it.
pub(super) fn read_direction(fields: &mut Section) -> Result<Option<Direction>, Problem> {
    let Some(word) = fields.string("direction")? else { return Ok(None) };
    let Some(direction) = parse_direction(&word) else {
        let advice = suggest_names(&word, ["maximize", "minimize"]);
        return Err(fields.problem("direction", format!("`{word}` is not known; {advice}")));
    };
    fields.record("direction", direction.as_str());
    Ok(Some(direction))
}

/// Returns the direction of the first objective.
pub(super) fn first_direction(goals: &Goals) -> Option<DirectionStatement> {
    let first = goals.objectives.first()?;
    Some(DirectionStatement {
        path: "objectives[0].direction".to_owned(),
        direction: first.direction,
    })
}

/// Adds the objective of an experiment with constraints to its list of objectives, if the list is empty. Returns empty
/// goals for a single objective without constraints.
pub(super) fn with_direction(goals: Goals, objective: Option<&str>, direction: Direction) -> Goals {
    match objective {
        _ if goals.constraints.is_empty() && !goals.has_several_objectives() => Goals::default(),
        Some(metric) if goals.objectives.is_empty() => {
            let metric = metric.to_owned();
            Goals { objectives: vec![Objective { metric, direction }], ..goals }
        }
        Some(_) | None => goals,
    }
}

/// Reads a list of sections, which is empty if the field is absent.
fn read_list<T>(
    top: &mut Section,
    name: &str,
    known: &[&'static str],
    read_item: fn(&mut Section) -> Result<T, Problem>,
) -> Result<Vec<T>, Problem> {
    let Some(value) = top.take(name) else { return Ok(Vec::new()) };
    let Value::Array(items) = value else {
        return Err(top.problem(name, format!("expected a list, found {}", describe_kind(&value))));
    };
    if items.is_empty() {
        return Err(top.problem(name, "is empty; leave it out"));
    }
    let (mut list, mut recorded) = (Vec::new(), Vec::new());
    for (at, item) in items.into_iter().enumerate() {
        let mut section = Section::open(&format!("{name}[{at}]"), item, known)?;
        list.push(read_item(&mut section)?);
        recorded.push(section.into_canonical());
    }
    top.record(name, recorded);
    Ok(list)
}

fn read_metric_name(fields: &mut Section) -> Result<String, Problem> {
    let name = fields.string("metric")?;
    name.ok_or_else(|| fields.problem("metric", "is missing; name a metric of the trials"))
}

fn read_objective(fields: &mut Section) -> Result<Objective, Problem> {
    let metric = read_metric_name(fields)?;
    let Some(direction) = read_direction(fields)? else {
        return Err(fields.problem("direction", "is missing; set it to minimize or maximize"));
    };
    Ok(Objective { metric, direction })
}

fn read_constraint(fields: &mut Section) -> Result<Constraint, Problem> {
    let metric = read_metric_name(fields)?;
    let (min, max) = (fields.number("min")?, fields.number("max")?);
    match (min, max) {
        (None, None) => Err(fields.problem("max", "is missing; give `max`, `min` or both")),
        (Some(min), Some(max)) if min > max => Err(fields.problem(
            "min",
            format!("is {min}, more than `max`, {max}: no value can satisfy both"),
        )),
        (min, max) => Ok(Constraint { metric, min, max }),
    }
}
