//! Finds as many problems of an experiment file as possible in one pass. The check stops at the first problem. This
//! module then repairs the problem in a copy with a valid value, and checks the copy again.
//!
//! A repair can cause new problems, which must not be reported. Therefore a repair changes as little as possible, and
//! problems that depend on a repaired part are left out.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::document::find_member;
use super::path_base::PathBase;
use super::section::{Problem, resolve_path};
use super::{check_new_experiment, document};
use crate::util::nearest::normalize_name;

/// The greatest number of problems that are reported.
const MAX_PROBLEMS: usize = 20;

/// Pairs of lists of fields. The check of the second list depends on the first one. After a repair of a field in the
/// first list, problems of the second list are left out.
const DEPENDENT_FIELDS: [(&[&str], &[&str]); 3] = [
    (&SPACE_FIELDS, &["searchSpace", "initialTrials"]),
    (&TUNER_FIELDS, &["trialRepeats", "assessor.className", "initialTrials"]),
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

/// Returns the problems of a document, starting with the known first one, in the order of their discovery.
pub(super) fn find_all_problems(
    mut document: Value,
    base: PathBase<'_>,
    first: Problem,
) -> Vec<Problem> {
    let (mut reported, mut repaired) = (Vec::new(), Vec::new());
    let space_file = inline_space_file(&mut document, base);
    let mut next = match &space_file {
        Some(_) => check_new_experiment(document.clone(), base).err(),
        None => Some(first),
    };
    while let Some(mut problem) = next {
        let others = std::mem::take(&mut problem.others);
        let is_certain = !may_follow_from_repair(&problem, &document, &repaired);
        let problems = std::iter::once(problem).chain(others);
        let places: Option<Vec<String>> = problems
            .map(|problem| {
                let place = repair(&mut document, &problem, &repaired);
                if is_certain && !is_repeated(&problem, &reported) {
                    reported.push(problem);
                }
                place
            })
            .collect();
        let Some(places) = places.filter(|_| reported.len() < MAX_PROBLEMS) else { break };
        repaired.extend(places);
        next = check_new_experiment(document.clone(), base).err();
    }
    let in_space_file = |problem: Problem| match &space_file {
        Some(file) if problem.path.starts_with("searchSpace") => {
            let path = problem.path.strip_prefix(PARAMETER_PREFIX).unwrap_or(&problem.path);
            Problem { path: path.to_owned(), ..problem }.in_other_file(file)
        }
        Some(_) | None => problem,
    };
    reported.into_iter().map(in_space_file).collect()
}

/// Replaces `searchSpaceFile` by the content of the file, so that its parameters can be repaired. Returns the file.
/// `None`: no file contains the search space, or its content is no object.
fn inline_space_file(document: &mut Value, base: PathBase<'_>) -> Option<PathBuf> {
    if find_member(document, "searchSpace").is_some_and(|space| !space.is_null()) {
        return None;
    }
    let file = resolve_path(find_member(document, "searchSpaceFile")?.as_str()?, base);
    let space = document::parse(&std::fs::read(&file).ok()?).ok().filter(Value::is_object)?;
    replace_members(document.as_object_mut()?, &SPACE_FIELDS, Some(("searchSpace", space)));
    Some(file)
}

/// Returns whether the problem is that a field is missing whose misspelt name was reported.
pub(super) fn is_repeated(problem: &Problem, reported: &[Problem]) -> bool {
    let (object, name) = split_path(&problem.path);
    let is_meant = |known: &Problem| {
        let names = |name: &str| known.message.contains(&format!("`{name}`"));
        names(&problem.path) || (split_path(&known.path).0 == object && names(name))
    };
    reported.iter().any(|known| is_unknown(known) && is_meant(known))
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
    ["command", "commands", "trialCommand"].iter().any(|end| path.ends_with(end))
        && SPACE_FIELDS.iter().chain(&TUNER_FIELDS).any(|field| is_repaired(field))
}

/// Returns whether a problem of an argument is a contradiction to a removed one, which its message names then.
fn contradicts_argument(problem: &Problem, removed: &str) -> bool {
    let (object, name) = split_path(removed);
    object.ends_with(".classArgs")
        && problem.path.starts_with(object)
        && !is_unknown(problem)
        && problem.message.contains(name)
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
        let space = find_member(document, "searchSpace")?.as_object()?;
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

/// Repairs a problem, and returns the repaired place: the field alone if possible, or the part that contains it.
/// `None`: the part was repaired before.
fn repair(document: &mut Value, problem: &Problem, repaired: &[String]) -> Option<String> {
    let part = find_place(problem, document);
    if repaired.contains(&part) {
        return None;
    }
    if !repaired.contains(&problem.path) && repair_field(document, problem).is_some() {
        return Some(problem.path.clone());
    }
    repair_part(document, &part).then_some(part)
}

/// Renames a misspelt field, removes an unknown one or an argument of an algorithm, or replaces a misspelt word by the
/// suggested one.
fn repair_field(document: &mut Value, problem: &Problem) -> Option<()> {
    let Problem { path, message, .. } = problem;
    let (object, name) = split_path(path);
    // Another platform has other fields.
    if top_level_field(path) == "searchSpace" || path == "trainingService.platform" {
        return None;
    }
    let suggested =
        message.split_once("did you mean `").and_then(|(_, rest)| rest.split('`').next());
    if is_unknown(problem) || object.ends_with(".classArgs") {
        let members = follow_path(document, object)?.as_object_mut()?;
        let value = members.shift_remove(name)?;
        if let Some(suggested) = suggested.filter(|_| is_unknown(problem)) {
            members.entry(suggested).or_insert(value);
        }
        return Some(());
    }
    let value = follow_path(document, path).filter(|value| value.is_string())?;
    *value = json!(suggested?);
    Some(())
}

/// Returns whether the problem is that no field or argument has this name.
fn is_unknown(problem: &Problem) -> bool {
    ["unknown field", "is not an argument of "]
        .iter()
        .any(|start| problem.message.starts_with(start))
}

/// Removes the unknown fields that a problem names. Returns `false` if it is another problem.
pub(super) fn remove_unknown_fields(document: &mut Value, problem: &Problem) -> bool {
    let mut all = std::iter::once(problem).chain(&problem.others);
    all.all(|problem| is_unknown(problem) && repair_field(document, problem).is_some())
}

/// Returns the value at a path, such as `machineList[0].host`. The empty path is the document itself.
fn follow_path<'a>(document: &'a mut Value, path: &str) -> Option<&'a mut Value> {
    path.split(['.', '[']).filter(|step| !step.is_empty()).try_fold(document, |value, step| {
        match value {
            Value::Array(items) => items.get_mut(step.strip_suffix(']')?.parse::<usize>().ok()?),
            Value::Object(members) => {
                let mut members = members.iter_mut();
                members
                    .find(|(key, _)| normalize_name(key) == normalize_name(step))
                    .map(|(_, value)| value)
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => None,
        }
    })
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
    members
        .retain(|key, _| !removed.iter().any(|name| normalize_name(name) == normalize_name(key)));
    members.extend(substitute.map(|(name, value)| (name.to_owned(), value)));
}
