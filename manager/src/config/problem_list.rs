//! Finds as many problems of an experiment file as possible in one pass. [`check`] stops at the first problem. This
//! module then repairs the problem in a copy with a valid value, and checks the copy again.
//!
//! A repair can cause new problems, which must not be reported. Problems that depend on a repaired section are
//! therefore left out.

use serde_json::{Value, json};

use super::check::check;
use super::path_base::PathBase;
use super::section::Problem;
use crate::util::nearest::normalize_name;

/// The greatest number of problems that are reported.
const MAX_PROBLEMS: usize = 20;

/// The places of problems of the search space as a whole.
const SEARCH_SPACE_PLACES: [&str; 3] = ["searchSpace", "searchSpaceFile", "the search space"];

/// Pairs of lists of fields. The check of the second list depends on the first one. After a repair of a field in the
/// first list, problems of the second list are left out.
const DEPENDENT_FIELDS: [(&[&str], &[&str]); 3] = [
    (&SEARCH_SPACE_PLACES, &["trialCommand", "tuner", "advisor", "assessor", "trainingService"]),
    (
        &["tuner", "advisor"],
        &[
            "trialCommand",
            "assessor",
            "objective",
            "objectives",
            "constraints",
            "targetMetric",
            "tunerPatience",
            "tunerGpuIndices",
        ],
    ),
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

/// The fields whose checks depend on the types of the parameters. After a repair of a parameter of the search space,
/// their problems are left out.
const PARAMETER_DEPENDENT_FIELDS: [&str; 3] = ["tuner", "advisor", "assessor"];

/// Returns the problems of a document, starting with the known first one, in the order of their discovery.
pub(super) fn find_all_problems(
    mut document: Value,
    base: PathBase<'_>,
    first: Problem,
) -> Vec<Problem> {
    let (mut reported, mut repaired) = (Vec::new(), Vec::new());
    let mut next = Some(first);
    while let Some(mut problem) = next {
        let others = std::mem::take(&mut problem.others);
        let place = find_place(&problem, &document);
        if repaired.contains(&place) {
            break;
        }
        let is_certain = !may_follow_from_repair(&place, &repaired)
            && !is_command_of_repaired_tuner(&problem.path, &repaired);
        // A misspelt field is also reported as missing, which would be the same problem twice.
        let meant = format!("`{}`", problem.path);
        let is_meant = |known: &Problem| known.message.contains(&meant);
        let is_repeated =
            problem.message.starts_with("is missing") && reported.iter().any(is_meant);
        let mut places = vec![place];
        places.extend(others.iter().map(|other| find_place(other, &document)));
        if is_certain {
            reported.extend(Some(problem).filter(|_| !is_repeated));
            reported.extend(others);
        }
        if reported.len() >= MAX_PROBLEMS
            || !places.iter().all(|name| repair_part(&mut document, name))
        {
            break;
        }
        repaired.append(&mut places);
        next = check(document.clone(), base).err();
    }
    reported
}

/// Returns whether a problem may only be a consequence of an earlier repair.
fn may_follow_from_repair(place: &str, repaired: &[String]) -> bool {
    let is_repaired = |field: &str| repaired.iter().any(|known| known == field);
    let of_section = DEPENDENT_FIELDS.iter().any(|(sections, dependent)| {
        dependent.contains(&place) && sections.iter().any(|section| is_repaired(section))
    });
    let of_substitute = place.starts_with(PARAMETER_PREFIX)
        && SEARCH_SPACE_PLACES.iter().any(|place| is_repaired(place));
    let of_parameter = PARAMETER_DEPENDENT_FIELDS.contains(&place)
        && repaired.iter().any(|known| known.starts_with(PARAMETER_PREFIX));
    of_section || of_substitute || of_parameter
}

/// Returns whether a problem is in a command of the training service, whose placeholders may name values of a tuner
/// that was repaired.
fn is_command_of_repaired_tuner(path: &str, repaired: &[String]) -> bool {
    let is_command = path.starts_with("trainingService")
        && ["command", "commands", "trialCommand"].iter().any(|end| path.ends_with(end));
    is_command && repaired.iter().any(|known| known == "tuner" || known == "advisor")
}

/// The beginning of the place of a parameter in the search space.
const PARAMETER_PREFIX: &str = "searchSpace.";

/// Returns the part of the document that a repair replaces: a parameter of the search space, or a top-level field.
fn find_place(problem: &Problem, document: &Value) -> String {
    if problem.file.is_some() {
        return "searchSpace".to_owned();
    }
    let within = problem.path.strip_prefix(PARAMETER_PREFIX);
    let parameter = within.and_then(|path| {
        let is_parameter = |name: &&String| {
            path.strip_prefix(name.as_str())
                .is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
        };
        // A name may contain a dot, and be longer than another name.
        let space = find_inline_space(document)?.as_object()?;
        space.keys().filter(is_parameter).max_by_key(|name| name.len())
    });
    match parameter {
        Some(name) => format!("{PARAMETER_PREFIX}{name}"),
        None => problem.path.split(['.', '[']).next().unwrap_or(&problem.path).to_owned(),
    }
}

fn find_inline_space(document: &Value) -> Option<&Value> {
    let mut members = document.as_object()?.iter();
    members
        .find(|(name, _)| normalize_name(name) == normalize_name("searchSpace"))
        .map(|(_, space)| space)
}

/// Replaces a parameter or a section by a valid one, or removes a section that is not required.
fn repair_part(document: &mut Value, section: &str) -> bool {
    let Some(members) = document.as_object_mut() else { return false };
    if let Some(name) = section.strip_prefix(PARAMETER_PREFIX) {
        let mut spaces = members.iter_mut();
        let space = spaces.find(|(name, _)| normalize_name(name) == normalize_name("searchSpace"));
        let Some(space) = space.and_then(|(_, space)| space.as_object_mut()) else { return false };
        space.insert(name.to_owned(), json!({"_type": "uniform", "_value": [0, 1]}));
        return true;
    }
    let (removed, substitute): (&[&str], _) = match section {
        "searchSpace" | "searchSpaceFile" => {
            let space = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
            (&["searchSpace", "searchSpaceFile"], Some(("searchSpace", space)))
        }
        // A program accepts any search space, so the repair causes no problem of the space.
        "tuner" | "advisor" => {
            (&["tuner", "advisor"], Some(("tuner", json!({"command": ["true"]}))))
        }
        // Removed together, because `trialGpuNumber` would require further fields of the service.
        "trainingService" => {
            (&["trainingService", "trialGpuNumber"], Some((section, json!({"platform": "local"}))))
        }
        "trialCommand" => (&["trialCommand"], Some((section, json!("true")))),
        "trialConcurrency" => (&["trialConcurrency"], Some((section, json!(1)))),
        _ => (&[], None),
    };
    let is_removed = |key: &str| {
        let key = normalize_name(key);
        key == normalize_name(section) || removed.iter().any(|name| normalize_name(name) == key)
    };
    members.retain(|key, _| !is_removed(key));
    if let Some((name, substitute)) = substitute {
        members.insert(name.to_owned(), substitute);
    }
    true
}
