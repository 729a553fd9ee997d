//! Finds all faults of an experiment file that can be found at once. [`check`] stops at the first fault. So that fault
//! is repaired in a copy, by a value that is certainly good, and the copy is checked again.
//!
//! It must not report a fault that its own repair caused: faults that depend on a repaired section are left out.

use serde_json::{Value, json};

use super::base::Base;
use super::check::check;
use super::section::Problem;
use crate::util::nearest::folded;

/// The most faults that are reported; a user with more begins anew.
const MOST: usize = 20;

/// Pairs of fields that are checked against each other: once one of the first is repaired, faults of the others are
/// left out.
const DEPENDENT: [(&[&str], &[&str]); 3] = [
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

/// The faults of a document whose first is known, in the order in which they are found.
pub(super) fn problems(mut document: Value, base: Base<'_>, first: Problem) -> Vec<Problem> {
    let (mut told, mut repaired) = (Vec::new(), Vec::new());
    let mut next = Some(first);
    while let Some(mut problem) = next {
        let others = std::mem::take(&mut problem.others);
        let section = section_of(&problem).to_owned();
        let doubtful = DEPENDENT.iter().any(|(sections, dependent)| {
            dependent.contains(&section.as_str())
                && repaired.iter().any(|known: &String| sections.contains(&known.as_str()))
        });
        if doubtful || repaired.contains(&section) {
            break;
        }
        // A field that is misspelt is missing, too.
        let meant = format!("`{}`", problem.path);
        let is_meant = |known: &Problem| known.what.contains(&meant);
        if !(problem.what.starts_with("is missing") && told.iter().any(is_meant)) {
            told.push(problem);
        }
        let mut sections = vec![section];
        for other in others {
            sections.push(section_of(&other).to_owned());
            told.push(other);
        }
        if told.len() >= MOST || !sections.iter().all(|name| repair(&mut document, name)) {
            break;
        }
        repaired.append(&mut sections);
        next = check(document.clone(), base).err();
    }
    told
}

/// The field of the document that a problem is about.
fn section_of(problem: &Problem) -> &str {
    match &problem.file {
        Some(_) => "searchSpace",
        None => problem.path.split(['.', '[']).next().unwrap_or(&problem.path),
    }
}

/// Puts something good in the place of a section, or nothing where nothing must be there.
fn repair(document: &mut Value, section: &str) -> bool {
    let Some(members) = document.as_object_mut() else { return false };
    let (gone, good): (&[&str], _) = match section {
        "searchSpace" | "searchSpaceFile" => {
            let space = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
            (&["searchSpace", "searchSpaceFile"], Some(("searchSpace", space)))
        }
        // A program takes any space: one that was right for the tuner must not be wrong for its substitute.
        "tuner" | "advisor" => {
            (&["tuner", "advisor"], Some(("tuner", json!({"command": ["true"]}))))
        }
        // How many GPUs a trial gets is checked before, and asks the service for more.
        "trainingService" => {
            (&["trainingService", "trialGpuNumber"], Some((section, json!({"platform": "local"}))))
        }
        "trialCommand" => (&["trialCommand"], Some((section, json!("true")))),
        "trialConcurrency" => (&["trialConcurrency"], Some((section, json!(1)))),
        _ => (&[], None),
    };
    let is_gone = |key: &str| {
        let key = folded(key);
        key == folded(section) || gone.iter().any(|name| folded(name) == key)
    };
    members.retain(|key, _| !is_gone(key));
    if let Some((name, good)) = good {
        members.insert(name.to_owned(), good);
    }
    true
}
