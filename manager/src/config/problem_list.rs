//! Finds as many problems of an experiment file as possible in one pass. The check stops at the first problem. This
//! module then repairs the problem in a copy with a valid value, and checks the copy again.
//!
//! A repair can cause new problems, which must not be reported. Therefore a repair changes as little as possible, and
//! problems that depend on a repaired part are left out.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::document::find_member;
use super::path_base::PathBase;
use super::section::{MAX_PROBLEMS, Problem, resolve_path};
use super::{check_new_experiment, document};
use crate::util::nearest::normalize_name;

/// Pairs of lists of fields. The check of the second list depends on the first one. After a repair of a field in the
/// first list, problems of the second list are left out.
const DEPENDENT_FIELDS: [(&[&str], &[&str]); 5] = [
    (&SPACE_FIELDS, &["searchSpace", "initialTrials"]),
    (&TUNER_FIELDS, &["trialRepeats", "assessor.className", "assessor.name", "initialTrials"]),
    (&DIRECTION_FIELDS, &["assessor.className", "assessor.name"]),
    (&["objective", "objectives"], &["constraints", "targetMetric"]),
    (
        &["trainingService"],
        &[
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
/// The fields that state the direction of the objective.
const DIRECTION_FIELDS: [&str; 5] = [
    "objective",
    "objective.direction",
    "tuner.classArgs.optimize_mode",
    "advisor.classArgs.optimize_mode",
    "assessor.classArgs.optimize_mode",
];
/// The fields whose value decides which other fields are valid. A guess of their value would cause false problems.
const KIND_FIELDS: [&str; 3] = ["tuner.name", "advisor.name", "assessor.name"];

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
    while let Some(problem) = next {
        let is_certain = !may_follow_from_repair(&problem, &document, &repaired);
        let mut problems = problem.split_problems();
        problems.truncate(MAX_PROBLEMS + 1 - reported.len());
        let mut can_continue = true;
        for problem in problems {
            can_continue &= repair(&mut document, &problem, &mut repaired);
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
    let section = top_level_field(path);
    let of_section = DEPENDENT_FIELDS.iter().any(|(sections, dependent)| {
        let depends = dependent.contains(&section) || dependent.contains(&path.as_str());
        depends && sections.iter().any(|section| is_repaired(section))
    });
    let of_parameter = section == "initialTrials"
        && repaired.iter().any(|known| known.starts_with(PARAMETER_PREFIX));
    is_repaired(path)
        || is_repaired(&find_place(problem, document))
        || of_section
        || of_parameter
        || is_command_of_repaired_part(path, message, is_repaired)
        || repaired.iter().any(|known| contradicts_argument(problem, known))
}

/// Returns whether the problem is a command's placeholder, whose name a repaired part may define, or a missing command
/// that a repaired training service may contain.
fn is_command_of_repaired_part(
    path: &str,
    message: &str,
    is_repaired: impl Fn(&str) -> bool,
) -> bool {
    if message.starts_with("is missing") {
        return path == "trialCommand" && is_repaired("trainingService");
    }
    let is_trial_command = path == "trialCommand"
        || (top_level_field(path) == "trainingService"
            && ["command", "commands", "trialCommand"].iter().any(|end| path.ends_with(end)));
    is_trial_command && SPACE_FIELDS.iter().chain(&TUNER_FIELDS).any(|field| is_repaired(field))
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
    let part = find_place(problem, document);
    if repaired.contains(&part) {
        return false;
    }
    if !repaired.contains(&problem.path) && repair_field(document, problem).is_some() {
        repaired.push(problem.path.clone());
        return true;
    }
    let is_repaired = repair_part(document, &part);
    repaired.push(part);
    is_repaired
}

/// Renames a misspelt field, removes an unknown one or an argument of an algorithm, or replaces a misspelt word by the
/// suggested one. `None`: the field alone cannot be repaired.
fn repair_field(document: &mut Value, problem: &Problem) -> Option<()> {
    let path = problem.path.as_str();
    let (object, name) = split_path(path);
    let section = top_level_field(path);
    let is_kind = KIND_FIELDS.contains(&path)
        || (section == "trainingService" && path.ends_with(".platform"));
    // The name of a field at the top may contain a dot.
    let is_ambiguous = !object.is_empty() && document.get(path).is_some();
    if section == "searchSpace" || is_kind || is_ambiguous {
        return None;
    }
    let quoted = problem.message.split_once("did you mean `");
    let suggested = quoted.and_then(|(_, rest)| rest.split('`').next());
    if is_unknown(problem) {
        let members = follow_path(document, object)?.as_object_mut()?;
        // Without its only field, the object would lack what this field was meant to be.
        if suggested.is_none() && members.len() == 1 {
            return None;
        }
        let value = members.shift_remove(name)?;
        let is_free = |field: &&str| !members.keys().any(|key| is_same_field(key, field));
        if let Some(suggested) = suggested.filter(is_free) {
            members.insert(suggested.to_owned(), value);
        }
        return Some(());
    }
    if let (Some(word), Some(value)) = (suggested, follow_path(document, path))
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
        // A program accepts any search space, so the repair causes no problem of the space.
        "tuner" | "advisor" => (&TUNER_FIELDS, Some(("tuner", json!({"command": ["true"]})))),
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
