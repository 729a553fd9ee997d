//! Finds as many problems of an experiment file as possible in one pass. The check stops at the first problem. This
//! module then repairs the problem in a copy with a valid value, and checks the copy again.
//!
//! A repair can cause new problems, which must not be reported. Therefore a repair changes as little as possible, and
//! problems that depend on a repaired part are left out.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::check::FIELDS;
use super::document::find_member;
use super::path_base::PathBase;
use super::section::{MAX_PROBLEMS, Problem, resolve_path};
use super::{check_new_experiment, document};
use crate::util::nearest::normalize_name;

/// Pairs of lists of fields. Problems with the second list may follow from a repair in the parts of the first one, and
/// are then left out.
const DEPENDENT_FIELDS: [(&[&str], &[&str]); 5] = [
    (&SPACE_FIELDS, &["searchSpace", "initialTrials"]),
    (&TUNER_FIELDS, &["trialRepeats", "initialTrials", "assessor.name", "assessor.className"]),
    (
        &["objective", "objectives"],
        &["assessor.name", "assessor.className", "constraints", "targetMetric"],
    ),
    (&["assessor"], &["assessor.name", "assessor.className"]),
    (
        &["trainingService"],
        &[
            "trialCommand",
            "trialCodeDirectory",
            "codeSnapshot",
            "recordPackages",
            "trialGpuNumber",
            "nniManagerIp",
            "sharedStorage",
        ],
    ),
];

/// The parts that define the names for placeholders in commands.
const SPACE_FIELDS: [&str; 2] = ["searchSpace", "searchSpaceFile"];
const TUNER_FIELDS: [&str; 2] = ["tuner", "advisor"];
/// The fields whose value decides which other fields are valid. A guess of their value would cause false problems.
const KIND_FIELDS: [&str; 3] = ["tuner.name", "advisor.name", "assessor.name"];
/// The fields that an object must have. A user may have written one under an unknown name.
const REQUIRED_FIELDS: [&str; 5] = ["name", "metric", "host", "dockerImage", "image"];
/// The greatest number of checks of one document.
const MAX_CHECKS: usize = 3 * MAX_PROBLEMS;

/// Returns the problems of a document, starting with the known first one, in the order of their discovery. If there are
/// more than [`MAX_PROBLEMS`], returns one more than these.
pub(super) fn find_all_problems(
    mut document: Value,
    base: PathBase<'_>,
    first: Problem,
) -> Vec<Problem> {
    let (original, known) = (document.clone(), first.clone());
    let (mut reported, mut repaired) = (Vec::new(), Vec::new());
    let space_file = inline_space_file(&mut document, base);
    let mut next = match &space_file {
        Some(_) => check_new_experiment(document.clone(), base).err(),
        None => Some(first),
    };
    for _ in 0..MAX_CHECKS {
        let Some(problem) = next else { break };
        let is_certain = !may_follow_from_repair(&problem, &document, &repaired);
        let problems = problem.split_problems();
        let mut can_continue = problems.len() <= MAX_PROBLEMS;
        for problem in problems.into_iter().take(MAX_PROBLEMS + 1 - reported.len()) {
            can_continue = repair(&mut document, &problem, &mut repaired) && can_continue;
            if is_certain && !is_repeated(&problem, &reported, &original) {
                reported.push(problem);
            }
        }
        if !can_continue || reported.len() > MAX_PROBLEMS {
            break;
        }
        next = check_new_experiment(document.clone(), base).err();
    }
    if reported.is_empty() {
        return vec![known];
    }
    let in_space_file = |problem: Problem| match &space_file {
        Some(file) if top_level_field(&problem.path) == "searchSpace" => {
            let path = problem.path.strip_prefix(PARAMETER_PREFIX).unwrap_or(&problem.path);
            Problem { path: path.to_owned(), ..problem }.in_other_file(file)
        }
        Some(_) | None => problem,
    };
    reported.into_iter().map(in_space_file).collect()
}

/// Replaces `searchSpaceFile` by the content of the file, so that its parameters can be repaired. Returns the file.
/// `None`: no file contains the search space, or the file cannot be inlined.
fn inline_space_file(document: &mut Value, base: PathBase<'_>) -> Option<PathBuf> {
    let members = document.as_object_mut()?;
    let file = resolve_path(find_member(members, "searchSpaceFile")?.as_str()?, base);
    let is_ambiguous = |name| members.keys().filter(|key| is_same_field(key, name)).count() > 1;
    if SPACE_FIELDS.into_iter().any(is_ambiguous) {
        return None;
    }
    let space = document::parse(&std::fs::read(&file).ok()?).ok().filter(Value::is_object)?;
    replace_members(members, &SPACE_FIELDS, Some(("searchSpace", space)));
    Some(file)
}

/// Returns whether the problem is a consequence of a reported one, which is an unknown field: a field that the file
/// does not contain has this misspelt name, or the object lacks the field that was meant.
pub(super) fn is_repeated(problem: &Problem, reported: &[Problem], original: &Value) -> bool {
    let (object, name) = split_path(&problem.path);
    let is_given = get_value(original, &problem.path).is_some_and(|value| !value.is_null());
    let is_meant = |known: &Problem| {
        let names = |name: &str| known.message.contains(&format!("`{name}`"));
        names(&problem.path) || (split_path(&known.path).0 == object && names(name))
    };
    let follows_from = |known: &Problem| {
        split_path(&known.path).0 == problem.path || (!is_given && is_meant(known))
    };
    !is_unknown(problem) && reported.iter().any(|known| is_unknown(known) && follows_from(known))
}

/// Splits the path of a field into the path of its object, which is empty at the top, and its name.
fn split_path(path: &str) -> (&str, &str) {
    path.rsplit_once('.').unwrap_or(("", path))
}

/// Returns whether a problem may only be a consequence of an earlier repair.
fn may_follow_from_repair(problem: &Problem, document: &Value, repaired: &[String]) -> bool {
    let is_repaired = |field: &str| repaired.iter().any(|known| known == field);
    let Problem { path, message, .. } = problem;
    let place = find_place(problem, document);
    if is_repaired(path) || is_repaired(&place) || is_in_repaired_space(&place, repaired) {
        return true;
    }
    // The problem of a value that has the wrong type, or of an unknown name, depends on nothing else.
    if is_unknown(problem) || (message.starts_with("expected ") && !path.contains('[')) {
        return false;
    }
    let is_part_repaired = |part: &str| repaired.iter().any(|known| top_level_field(known) == part);
    let depends = |field: &&str| {
        path.strip_prefix(*field).is_some_and(|rest| rest.is_empty() || rest.starts_with('['))
    };
    let is_dependent = DEPENDENT_FIELDS.iter().any(|(sources, dependent)| {
        let is_source_repaired = sources.iter().any(|source| is_part_repaired(source));
        (is_source_repaired || has_unknown_part(repaired)) && dependent.iter().any(depends)
    });
    let is_placeholder =
        ["names no parameter", "is not closed"].iter().any(|part| message.contains(part));
    let mut definitions = SPACE_FIELDS.iter().chain(&TUNER_FIELDS);
    is_dependent
        || (is_placeholder && definitions.any(|field| is_repaired(field)))
        || (message.starts_with("differs from that of") && is_command_repaired(repaired))
        || repaired.iter().any(|known| {
            may_be_missing_field(problem, known) || contradicts_argument(problem, known)
        })
}

/// Returns whether a place is a part of the search space that is a substitute.
fn is_in_repaired_space(place: &str, repaired: &[String]) -> bool {
    let is_substitute = |known: &String| known == place || known == "searchSpace";
    top_level_field(place) == "searchSpace" && repaired.iter().any(is_substitute)
}

/// Returns whether an unknown field of the document was repaired. It may have stood for any field.
fn has_unknown_part(repaired: &[String]) -> bool {
    let is_known = |part: &str| FIELDS.iter().any(|field| is_same_field(field, part));
    repaired.iter().any(|known| !is_known(top_level_field(known)))
}

/// Returns whether one of several services may have another command or code because of a repair.
fn is_command_repaired(repaired: &[String]) -> bool {
    let fields = ["trainingService", "trialCommand", "trialCodeDirectory"];
    repaired.iter().any(|known| fields.contains(&top_level_field(known)))
}

/// Returns whether the problem is a missing field that the removed one of the same object may have stood for.
fn may_be_missing_field(problem: &Problem, removed: &str) -> bool {
    let (object, _) = split_path(removed);
    let (_, name) = split_path(&problem.path);
    problem.message.starts_with("is missing")
        && REQUIRED_FIELDS.contains(&name)
        && !object.is_empty()
        && problem.path.starts_with(object)
}

/// Returns whether an argument contradicts a removed argument, which the message names.
fn contradicts_argument(problem: &Problem, removed: &str) -> bool {
    let (object, name) = split_path(removed);
    object.ends_with(".classArgs")
        && problem.path.starts_with(object)
        && !is_unknown(problem)
        && problem.message.contains(&format!("`{name}`"))
}

/// The beginning of the place of a parameter in the search space.
const PARAMETER_PREFIX: &str = "searchSpace.";

/// Returns the part of the document that a repair replaces if it cannot change the field alone: a parameter of the
/// search space, or a top-level field.
fn find_place(problem: &Problem, document: &Value) -> String {
    let path = problem.path.as_str();
    if path.starts_with("the template") {
        return "trainingService".to_owned();
    }
    if problem.file.is_some() {
        // The search space in the other file is no object.
        return "searchSpace".to_owned();
    }
    let within = path.strip_prefix(PARAMETER_PREFIX);
    let parameter = within.and_then(|path| {
        let is_parameter = |name: &&String| {
            path.strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        // A name may contain a dot, and be longer than another name.
        let space = find_member(document.as_object()?, "searchSpace")?.as_object()?;
        space.keys().filter(is_parameter).max_by_key(|name| name.len())
    });
    match parameter {
        Some(name) => format!("{PARAMETER_PREFIX}{name}"),
        None => top_level_field(path).to_owned(),
    }
}

fn top_level_field(path: &str) -> &str {
    path.split(['.', '[']).next().unwrap_or(path)
}

/// Repairs a problem, and adds the repaired place: the field alone if possible, or the part that contains it. Returns
/// `false` if the part was repaired before.
fn repair(document: &mut Value, problem: &Problem, repaired: &mut Vec<String>) -> bool {
    let mut part = find_place(problem, document);
    if is_in_repaired_space(&part, repaired) {
        // The tuner does not support the substitute.
        "tuner".clone_into(&mut part);
    }
    if repaired.contains(&part) {
        return false;
    }
    if !repaired.contains(&problem.path)
        && !is_only_field(document, problem)
        && repair_field(document, problem).is_some()
    {
        repaired.push(problem.path.clone());
        return true;
    }
    let is_repaired = repair_part(document, &part);
    repaired.push(part);
    is_repaired
}

/// Returns whether the problem is the only field of an object, and unknown. Without it, the object would lack the field
/// that was meant.
fn is_only_field(document: &Value, problem: &Problem) -> bool {
    let (object, _) = split_path(&problem.path);
    let members = get_value(document, object).and_then(Value::as_object);
    is_unknown(problem)
        && suggested_name(problem).is_none()
        && !object.is_empty()
        && document.get(&problem.path).is_none()
        && members.is_some_and(|members| members.len() == 1)
}

/// Returns the name or word that a message suggests.
fn suggested_name(problem: &Problem) -> Option<&str> {
    let (_, quoted) = problem.message.split_once("did you mean `")?;
    quoted.split('`').next()
}

/// Renames a misspelt field, removes an unknown one or an argument of an algorithm, or replaces a misspelt word by the
/// suggested one. `None`: the field alone cannot be repaired.
fn repair_field(document: &mut Value, problem: &Problem) -> Option<()> {
    let path = problem.path.as_str();
    let (mut object, mut name) = split_path(path);
    if top_level_field(path) == "searchSpace" {
        return None;
    }
    if is_unknown(problem) {
        if document.get(path).is_some() {
            // The name of a field at the top may contain a dot.
            (object, name) = ("", path);
        }
        let members = follow_path(document, object)?.as_object_mut()?;
        let value = members.shift_remove(name)?;
        let is_free = |field: &&str| !members.keys().any(|key| is_same_field(key, field));
        if let Some(suggested) = suggested_name(problem).filter(is_free) {
            members.insert(suggested.to_owned(), value);
        }
        return Some(());
    }
    let is_kind = KIND_FIELDS.contains(&path) || name == "platform";
    // A suggestion for a command names a placeholder in it.
    if is_kind || ["command", "commands", "trialCommand"].contains(&name) {
        return None;
    }
    if let (Some(word), Some(value)) = (suggested_name(problem), follow_path(document, path))
        && value.is_string()
    {
        *value = json!(word);
        return Some(());
    }
    if !object.ends_with(".classArgs") {
        return None;
    }
    follow_path(document, object)?.as_object_mut()?.shift_remove(name).map(drop)
}

/// Returns whether the problem is that no field or argument has this name.
fn is_unknown(problem: &Problem) -> bool {
    ["unknown field", "is not an argument of "]
        .iter()
        .any(|start| problem.message.starts_with(start))
}

/// Removes or renames unknown fields. Returns `false` if one of the problems is another one.
pub(super) fn remove_unknown_fields(document: &mut Value, problems: &[Problem]) -> bool {
    problems.iter().all(|problem| is_unknown(problem) && repair_field(document, problem).is_some())
}

/// Returns the value at a path, such as `machineList[0].host`. The empty path is the document itself.
fn follow_path<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path_steps(path).try_fold(document, |value, step| match value {
        Value::Array(items) => items.get_mut(list_index(step)?),
        Value::Object(members) => {
            let mut members = members.iter_mut();
            members.find(|(key, _)| is_same_field(key, step)).map(|(_, value)| value)
        }
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
    })
}

/// Returns the value at a path, as [`follow_path`] does.
fn get_value<'a>(document: &'a Value, path: &str) -> Option<&'a Value> {
    path_steps(path).try_fold(document, |value, step| match list_index(step) {
        Some(index) => value.get(index),
        None => find_member(value.as_object()?, step),
    })
}

fn path_steps(path: &str) -> impl Iterator<Item = &str> {
    path.split(['.', '[']).filter(|step| !step.is_empty())
}

fn list_index(step: &str) -> Option<usize> {
    step.strip_suffix(']')?.parse().ok()
}

/// Returns whether two names are spellings of the same field.
fn is_same_field(one: &str, other: &str) -> bool {
    normalize_name(one) == normalize_name(other)
}

/// Replaces a parameter or a section by a valid one, or removes a section that is not required.
fn repair_part(document: &mut Value, section: &str) -> bool {
    if let Some(name) = section.strip_prefix(PARAMETER_PREFIX) {
        let space = follow_path(document, "searchSpace").and_then(Value::as_object_mut);
        let Some(space) = space else { return false };
        space.insert(name.to_owned(), json!({"_type": "uniform", "_value": [0, 1]}));
        return true;
    }
    let Some(members) = document.as_object_mut() else { return false };
    let (removed, substitute): (&[&str], _) = match section {
        "searchSpace" | "searchSpaceFile" => {
            let space = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
            (&SPACE_FIELDS, Some(("searchSpace", space)))
        }
        // A program accepts any search space, so the repair causes no problem of the space. It supports only one
        // objective without constraints.
        "tuner" | "advisor" => (
            &["tuner", "advisor", "objectives", "constraints"],
            Some(("tuner", json!({"command": ["true"]}))),
        ),
        // Removed together, because `trialGpuNumber` would require further fields of the service.
        "trainingService" => {
            (&["trainingService", "trialGpuNumber"], Some((section, json!({"platform": "local"}))))
        }
        "trialCommand" => (&["trialCommand"], Some((section, json!("true")))),
        "trialConcurrency" => (&["trialConcurrency"], Some((section, json!(1)))),
        _ => (std::slice::from_ref(&section), None),
    };
    replace_members(members, removed, substitute);
    true
}

/// Removes fields, and inserts another one.
fn replace_members(
    members: &mut Map<String, Value>,
    removed: &[&str],
    substitute: Option<(&str, Value)>,
) {
    members.retain(|key, _| !removed.iter().any(|name| is_same_field(name, key)));
    members.extend(substitute.map(|(name, value)| (name.to_owned(), value)));
}
