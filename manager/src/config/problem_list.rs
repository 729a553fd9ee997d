//! Finds as many problems of an experiment file as possible in one pass. [`check`] stops at the first problem. This
//! module then repairs the problem in a copy with a valid value, and checks the copy again.
//!
//! A repair can cause new problems, which must not be reported. Problems that depend on a repaired section are
//! therefore left out.

use serde_json::{Value, json};

use super::check::check;
use super::path_base::PathBase;
use super::section::Problem;
use crate::util::nearest::folded;

/// The greatest number of problems that are reported.
const MAX_PROBLEMS: usize = 20;

/// Pairs of lists of fields. The check of the second list depends on the first one. After a repair of a field in the
/// first list, problems of the second list are left out.
const DEPENDENT_FIELDS: [(&[&str], &[&str]); 3] = [
    (
        &["searchSpace", "searchSpaceFile", "the search space"],
        &["trialCommand", "tuner", "advisor", "assessor", "trainingService"],
    ),
    (
        &["tuner", "advisor"],
        &[
            "trialCommand",
            "assessor",
            "trainingService",
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
        let section = section_of(&problem).to_owned();
        let doubtful = DEPENDENT_FIELDS.iter().any(|(sections, dependent)| {
            dependent.contains(&section.as_str())
                && repaired.iter().any(|known: &String| sections.contains(&known.as_str()))
        });
        if doubtful || repaired.contains(&section) {
            break;
        }
        // A misspelt field is also reported as missing, which would be the same problem twice.
        let meant = format!("`{}`", problem.path);
        let is_meant = |known: &Problem| known.message.contains(&meant);
        if !(problem.message.starts_with("is missing") && reported.iter().any(is_meant)) {
            reported.push(problem);
        }
        let mut sections = vec![section];
        for other in others {
            sections.push(section_of(&other).to_owned());
            reported.push(other);
        }
        if reported.len() >= MAX_PROBLEMS
            || !sections.iter().all(|name| repair_section(&mut document, name))
        {
            break;
        }
        repaired.append(&mut sections);
        next = check(document.clone(), base).err();
    }
    reported
}

/// Returns the top-level field that a problem is about.
fn section_of(problem: &Problem) -> &str {
    match &problem.file {
        Some(_) => "searchSpace",
        None => problem.path.split(['.', '[']).next().unwrap_or(&problem.path),
    }
}

/// Replaces a section by a valid one, or removes it if it is not required.
fn repair_section(document: &mut Value, section: &str) -> bool {
    let Some(members) = document.as_object_mut() else { return false };
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
        let key = folded(key);
        key == folded(section) || removed.iter().any(|name| folded(name) == key)
    };
    members.retain(|key, _| !is_removed(key));
    if let Some((name, substitute)) = substitute {
        members.insert(name.to_owned(), substitute);
    }
    true
}
