//! Finds algorithms that `nnictl algo register` has registered with NNI, by their names.
//!
//! NNI keeps them in `registered_algorithms.yml` in its configuration folder, which depends on the interpreter. A name
//! that is neither built in nor NNI's own is replaced by its registered class. That happens once, when the file is
//! loaded. The stored form contains the class, and needs no registry.

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::super::path_base::PathBase;
use super::super::{algorithms, document};
use crate::advisers::{DEFAULT_PYTHON, find_nni_config};
use crate::search::assessor;
use crate::search::tuner;
use crate::util::nearest::{nearest, normalize_name};

/// The name of the file in NNI 3.0 (`nni/tools/package_utils/config_manager.py`).
const REGISTRY_FILE_NAME: &str = "registered_algorithms.yml";

/// An algorithm name that was not found in NNI's registry.
#[derive(Debug, PartialEq, Eq)]
pub(in crate::config) struct NotRegistered {
    /// The path of the field, such as `tuner.name`.
    pub(in crate::config) path: String,
    /// The searched file and the result, as an addition to the error about the name.
    pub(in crate::config) note: String,
}

/// Replaces the names of registered algorithms in a document of the v2 form by their classes.
pub(in crate::config) fn resolve_registered_names(
    document: &mut Value,
    base: PathBase<'_>,
) -> Vec<NotRegistered> {
    let Some(members) = document.as_object_mut() else { return Vec::new() };
    let given = document::find_member(members, "pythonInterpreter").and_then(Value::as_str);
    let given = given.map(str::to_owned).or_else(algorithms::default_interpreter);
    let python = given.map_or_else(
        || PathBuf::from(DEFAULT_PYTHON),
        |given| algorithms::interpreter_path(&given, base),
    );
    let mut missing = Vec::new();
    for section in ["tuner", "advisor", "assessor"] {
        let wanted = document::find_member(members, section)
            .and_then(|value| document::find_member(value.as_object()?, "name"));
        let Some(name) = wanted.and_then(Value::as_str).map(str::to_owned) else { continue };
        let known = match section {
            "assessor" => assessor::is_known(&name),
            _ => tuner::is_known(&name),
        };
        if known || name.trim().is_empty() {
            continue;
        }
        match read_registry(&python).and_then(|(file, registry)| {
            find_algorithm(&registry, section, &name)
                .ok_or_else(|| format!("{} has no {section} of that name", file.display()))
        }) {
            Ok(found) => replace_name_by_class(members, section, found),
            // The error about the name suggests the right one.
            Err(_) if is_misspelt(section, &name) => {}
            Err(why) => {
                let note =
                    format!("; it is not registered with `nnictl algo register` either: {why}");
                missing.push(NotRegistered { path: format!("{section}.name"), note });
            }
        }
    }
    missing
}

/// Returns whether a name is probably a misspelt built-in one.
fn is_misspelt(section: &str, name: &str) -> bool {
    let near = match section {
        "assessor" => nearest(name, assessor::names()),
        _ => nearest(name, tuner::names()),
    };
    near.is_some()
}

/// Returns the path and the content of the registry that NNI reads under the interpreter `python`. An error names the
/// file that cannot be read, and the reason.
fn read_registry(python: &Path) -> Result<(PathBuf, Value), String> {
    let file = find_nni_config(python)?.join(REGISTRY_FILE_NAME);
    let bytes = std::fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    let registry =
        document::parse(&bytes).map_err(|problem| format!("{}: {problem}", file.display()))?;
    Ok((file, registry))
}

/// An algorithm in the registry.
#[derive(Debug, PartialEq)]
struct RegisteredAlgorithm {
    class: String,
    /// The arguments of the registration. Arguments of the experiment override them.
    class_args: Map<String, Value>,
    is_advisor: bool,
}

/// Finds an algorithm by its name or alias as NNI does (`AlgoMeta.load`): regardless of case, and never one of NNI's
/// own.
fn find_algorithm(registry: &Value, section: &str, name: &str) -> Option<RegisteredAlgorithm> {
    let kinds: &[&str] =
        if section == "assessor" { &["assessors"] } else { &["tuners", "advisors"] };
    let entries = kinds.iter().flat_map(|kind| {
        let list = registry.get(*kind).and_then(Value::as_array);
        list.into_iter().flatten().map(move |entry| (*kind, entry))
    });
    let wanted = normalize_name(name);
    let named = |entry: &Value, key: &str| {
        entry.get(key).and_then(Value::as_str).is_some_and(|found| normalize_name(found) == wanted)
    };
    let is_users_own = |entry: &Value| entry.get("source").and_then(Value::as_str) != Some("nni");
    let (kind, entry) = entries.into_iter().find(|(_, entry)| {
        is_users_own(entry) && (named(entry, "builtinName") || named(entry, "alias"))
    })?;
    let is_advisor = entry.get("isAdvisor").and_then(Value::as_bool);
    Some(RegisteredAlgorithm {
        class: entry.get("className")?.as_str()?.to_owned(),
        class_args: entry.get("classArgs").and_then(Value::as_object).cloned().unwrap_or_default(),
        is_advisor: is_advisor.unwrap_or(kind == "advisors"),
    })
}

/// Replaces the name by the registered class. A tuner that is registered as an advisor moves to the section `advisor`.
fn replace_name_by_class(
    members: &mut Map<String, Value>,
    section: &str,
    found: RegisteredAlgorithm,
) {
    let wanted = normalize_name(section);
    let Some(key) = members.keys().find(|key| normalize_name(key) == wanted).cloned() else {
        return;
    };
    let Some(Value::Object(mut algorithm)) = members.get(&key).cloned() else { return };
    algorithm.retain(|key, _| normalize_name(key) != "name");
    algorithm.insert("className".to_owned(), json!(found.class));
    let given = algorithm.keys().find(|key| normalize_name(key) == "classargs").cloned();
    let given = given.and_then(|key| algorithm.shift_remove(&key)).unwrap_or(Value::Null);
    let class_args = match given {
        Value::Object(given) => {
            let mut merged = found.class_args;
            merged.extend(given);
            Value::Object(merged)
        }
        Value::Null => Value::Object(found.class_args),
        // The check of the section refuses a value that is not an object.
        Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Array(_) => given,
    };
    algorithm.insert("classArgs".to_owned(), class_args);
    if section == "tuner" && found.is_advisor && document::find_member(members, "advisor").is_none()
    {
        members.shift_remove(&key);
        members.insert("advisor".to_owned(), Value::Object(algorithm));
    } else {
        members.insert(key, Value::Object(algorithm));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A registry of NNI 3.0, with entries of NNI 2.5.
    const REGISTRY_TEXT: &str = "
tuners:
- {builtinName: demotuner, className: demo_tuner.DemoTuner, source: user, nniVersion: '3.0'}
- {builtinName: fixed, alias: other_name, className: m.Fixed, classArgs: {a: 1, b: 2}, source: user}
- {builtinName: judge, className: m.Judge, isAdvisor: true, source: user}
- {builtinName: Old, className: nni.old.Old, source: nni}
- {builtinName: no_class, source: user}
advisors:
- {builtinName: older_judge, className: m.OlderJudge, source: user}
assessors:
- {builtinName: demoassessor, className: demo_assessor.DemoAssessor}
";

    #[test]
    fn a_registered_algorithm_is_found_by_its_name() {
        let registry = document::parse(REGISTRY_TEXT.as_bytes()).unwrap();
        #[rustfmt::skip]
        let table = [
            ("tuner",    "demotuner",    Some(("demo_tuner.DemoTuner", false))),
            ("tuner",    "DemoTuner",    Some(("demo_tuner.DemoTuner", false))),
            ("tuner",    "other_name",   Some(("m.Fixed", false))),
            ("tuner",    "judge",        Some(("m.Judge", true))),
            ("advisor",  "older_judge",  Some(("m.OlderJudge", true))),
            ("assessor", "demoassessor", Some(("demo_assessor.DemoAssessor", false))),
            ("assessor", "demotuner",    None),
            ("tuner",    "demoassessor", None),
            ("tuner",    "Old",          None),
            ("tuner",    "no_class",     None),
            ("tuner",    "missing",      None),
        ];
        for (section, name, expected) in table {
            let found = find_algorithm(&registry, section, name);
            let found = found.as_ref().map(|found| (found.class.as_str(), found.is_advisor));
            assert_eq!(found, expected, "{section} {name}");
        }
        for foreign in [json!(null), json!([1]), json!({"tuners": {"a": 1}})] {
            assert_eq!(find_algorithm(&foreign, "tuner", "demotuner"), None);
        }
    }

    #[test]
    fn the_registry_is_not_named_for_a_misspelt_built_in_name() {
        #[rustfmt::skip]
        let table = [
            (json!({"tuner": {"name": "TEP"}}),            vec![]),
            (json!({"assessor": {"name": "Medianstopp"}}), vec![]),
            (json!({"tuner": {"name": "my_own_search"}}),  vec!["tuner.name"]),
            (json!({"assessor": {"name": "my_own_judge"}}), vec!["assessor.name"]),
        ];
        for (mut document, expected) in table {
            document["pythonInterpreter"] = json!("/nowhere/python3");
            let missing =
                resolve_registered_names(&mut document, PathBase::for_stored_experiment());
            let paths: Vec<_> = missing.iter().map(|missing| missing.path.as_str()).collect();
            assert_eq!(paths, expected, "{document}");
        }
    }

    #[test]
    fn a_registered_class_replaces_its_name() {
        let found = |is_advisor| RegisteredAlgorithm {
            class: "m.C".to_owned(),
            class_args: json!({"a": 1, "b": 2}).as_object().cloned().unwrap(),
            is_advisor,
        };
        let class = |args: Value| json!({"className": "m.C", "classArgs": args});
        #[rustfmt::skip]
        let table = [
            (json!({"tuner": {"name": "x"}}),                       false, json!({"tuner": class(json!({"a": 1, "b": 2}))})),
            (json!({"tuner": {"Name": "x", "class_args": {"b": 3}}}), false, json!({"tuner": class(json!({"a": 1, "b": 3}))})),
            (json!({"tuner": {"name": "x"}}),                       true,  json!({"advisor": class(json!({"a": 1, "b": 2}))})),
            (json!({"tuner": {"name": "x", "classArgs": 7}}),       false, json!({"tuner": class(json!(7))})),
        ];
        for (document, is_advisor, expected) in table {
            let mut members = document.as_object().cloned().unwrap();
            replace_name_by_class(&mut members, "tuner", found(is_advisor));
            assert_eq!(Value::Object(members), expected, "{document}");
        }
    }
}
