//! PURE: recognises the files and the terms of other tools, and names their counterparts in TrialKeeper.

use serde_json::{Map, Value};

use crate::util::nearest::normalize_name;

/// A kind of file of another tool.
struct ForeignFormat {
    /// The name for the user.
    name: &'static str,
    /// Returns the keys by which a document is recognised, or an empty list.
    recognise: fn(&Map<String, Value>) -> Vec<&'static str>,
    /// The tool's terms, and their counterparts in TrialKeeper.
    counterparts: &'static [(&'static str, &'static str)],
}

/// Fields that only TrialKeeper's files have. A document with such a field is an experiment file, even if it has
/// problems.
const EXPERIMENT_FIELDS: [&str; 8] = [
    "searchSpace",
    "searchSpaceFile",
    "searchSpacePath",
    "trialCommand",
    "trialConcurrency",
    "tuner",
    "trainingService",
    "trainingServicePlatform",
];

const FOREIGN_FORMATS: [ForeignFormat; 4] = [
    ForeignFormat {
        name: "a Katib experiment",
        recognise: find_katib_keys,
        counterparts: &[
            ("spec.parameters", "searchSpace"),
            ("spec.algorithm.algorithmName", "tuner.name"),
            ("spec.objective.objectiveMetricName", "objective"),
            ("spec.objective.type", "tuner.classArgs.optimize_mode"),
            ("spec.objective.goal", "targetMetric"),
            ("spec.parallelTrialCount", "trialConcurrency"),
            ("spec.maxTrialCount", "maxTrialNumber"),
            ("spec.maxFailedTrialCount", "maxConsecutiveFailures"),
            ("spec.earlyStopping", "assessor"),
            ("spec.trialTemplate", "trialCommand, and trainingService.taskRoles"),
        ],
    },
    ForeignFormat {
        name: "a W&B sweep",
        recognise: find_wandb_keys,
        counterparts: &[
            ("program, command", "trialCommand"),
            ("method", "tuner.name: Random, GridSearch, or TPE for bayes"),
            ("metric.name", "objective"),
            ("metric.goal", "tuner.classArgs.optimize_mode"),
            ("parameters", "searchSpace"),
            ("values: [a, b]", "{_type: choice, _value: [a, b]}"),
            ("min: 0, max: 1", "{_type: uniform, _value: [0, 1]}"),
            ("log_uniform_values", "{_type: loguniform, _value: [0.001, 1]}"),
            ("early_terminate", "assessor"),
            ("run_cap", "maxTrialNumber"),
        ],
    },
    ForeignFormat {
        name: "a Ray Tune file",
        recognise: find_ray_keys,
        counterparts: &[
            ("run, trainable", "trialCommand"),
            ("config, param_space", "searchSpace"),
            ("grid_search, choice", "{_type: choice, _value: [a, b]}"),
            ("uniform", "{_type: uniform, _value: [0, 1]}"),
            ("num_samples", "maxTrialNumber"),
            ("max_concurrent_trials", "trialConcurrency"),
            ("search_alg", "tuner"),
            ("scheduler", "assessor"),
            ("metric", "objective"),
            ("mode", "tuner.classArgs.optimize_mode"),
            ("time_budget_s", "maxExperimentDuration"),
        ],
    },
    ForeignFormat {
        name: "an Optuna space or study",
        recognise: find_optuna_keys,
        counterparts: &[
            ("FloatDistribution", "{_type: uniform, _value: [0, 1]}, loguniform if log"),
            ("IntDistribution", "{_type: randint, _value: [0, 10]}, without the 10"),
            ("CategoricalDistribution", "{_type: choice, _value: [a, b]}"),
            ("direction", "tuner.classArgs.optimize_mode"),
            ("directions", "objectives"),
            ("sampler", "tuner"),
            ("pruner", "assessor"),
            ("n_trials", "maxTrialNumber"),
            ("n_jobs", "trialConcurrency"),
            ("timeout", "maxExperimentDuration"),
            ("study_name", "experimentName"),
        ],
    },
];

/// Returns the tool whose file a document is, and the counterparts of its fields. `None`: it is an experiment file.
pub(super) fn recognise_tool(document: &Value) -> Option<String> {
    let members = document.as_object()?;
    if members
        .keys()
        .any(|key| EXPERIMENT_FIELDS.iter().any(|ours| normalize_name(ours) == normalize_name(key)))
    {
        return None;
    }
    let (format, keys) = FOREIGN_FORMATS.iter().find_map(|format| {
        let keys = (format.recognise)(members);
        (!keys.is_empty()).then_some((format, keys))
    })?;
    let width = format.counterparts.iter().map(|(term, _)| term.len()).max().unwrap_or(0);
    let lines = format.counterparts.iter();
    let lines: Vec<_> = lines.map(|(term, here)| format!("\n  {term:width$}  {here}")).collect();
    Some(format!(
        "looks like {} (by its `{}`), not like an experiment file. Its fields are called here:{}\n\
         The whole table is in docs/configuration.md, section \"From another tool\".",
        format.name,
        keys.join("`, `"),
        lines.concat(),
    ))
}

/// Returns the top-level field that another tool calls `word`, such as `maxTrialNumber` for `n_trials`. Case and
/// underscores do not matter. `None`: no tool has the word, or it has no counterpart.
pub(super) fn counterpart(word: &str) -> Option<&'static str> {
    let plain = normalize_name(word);
    let rows = FOREIGN_FORMATS.iter().flat_map(|format| format.counterparts);
    rows.filter(|(term, _)| {
        let mut words = term.split(", ").map(|word| word.strip_prefix("spec.").unwrap_or(word));
        words.any(|word| normalize_name(word) == plain)
    })
    .map(|(_, here)| *here)
    .find(|here| here.starts_with(char::is_alphabetic) && !here.contains(' '))
}

/// Returns the keys of `wanted` that a document has.
fn present_keys(members: &Map<String, Value>, wanted: &[&'static str]) -> Vec<&'static str> {
    wanted.iter().copied().filter(|key| members.contains_key(*key)).collect()
}

fn find_katib_keys(members: &Map<String, Value>) -> Vec<&'static str> {
    let version = members.get("apiVersion").and_then(Value::as_str);
    if version.is_some_and(|version| version.starts_with("kubeflow.org/"))
        && members.contains_key("kind")
    {
        return vec!["apiVersion", "kind"];
    }
    Vec::new()
}

fn find_wandb_keys(members: &Map<String, Value>) -> Vec<&'static str> {
    let found =
        present_keys(members, &["program", "method", "metric", "parameters", "early_terminate"]);
    if members.get("parameters").is_some_and(Value::is_object) && found.len() > 1 {
        return found;
    }
    Vec::new()
}

fn find_ray_keys(members: &Map<String, Value>) -> Vec<&'static str> {
    const KEYS: [&str; 8] = [
        "run",
        "config",
        "param_space",
        "tune_config",
        "num_samples",
        "search_alg",
        "scheduler",
        "resources_per_trial",
    ];
    let found = present_keys(members, &KEYS);
    if found.len() > 1 {
        return found;
    }
    // `tune run -f` maps names to experiments.
    let inner = members.values().next().and_then(Value::as_object);
    let inner = inner.map(|inner| present_keys(inner, &KEYS)).unwrap_or_default();
    if members.len() == 1 && inner.len() > 1 { inner } else { Vec::new() }
}

fn find_optuna_keys(members: &Map<String, Value>) -> Vec<&'static str> {
    const DISTRIBUTIONS: [&str; 3] =
        ["FloatDistribution", "IntDistribution", "CategoricalDistribution"];
    let study = present_keys(
        members,
        &["study_name", "direction", "directions", "sampler", "pruner", "n_trials", "search_space"],
    );
    if study.len() > 1 {
        return study;
    }
    // The form that `distribution_to_json` writes.
    let named = |name: &str| {
        let is_named = |value: &Value| value.get("name").and_then(Value::as_str) == Some(name);
        members.values().any(is_named)
    };
    DISTRIBUTIONS.into_iter().filter(|name| named(name)).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn files_of_other_tools_are_recognised_and_trialkeepers_are_not() {
        #[rustfmt::skip]
        let table = [
            ("a W&B sweep (by its `program`, `method`, `metric`, `parameters`)", json!({"program": "t.py", "method": "bayes", "metric": {"name": "loss", "goal": "minimize"}, "parameters": {"lr": {"min": 0, "max": 1}}})),
            ("a W&B sweep (by its `method`, `parameters`)",   json!({"method": "grid", "parameters": {"lr": {"values": [1]}}})),
            ("a Katib experiment (by its `apiVersion`, `kind`)", json!({"apiVersion": "kubeflow.org/v1beta1", "kind": "Experiment", "metadata": {"name": "x"}, "spec": {}})),
            ("a Ray Tune file (by its `config`, `num_samples`)", json!({"config": {"lr": {"grid_search": [1]}}, "num_samples": 3})),
            ("a Ray Tune file (by its `run`, `config`)",      json!({"cartpole-ppo": {"run": "PPO", "env": "CartPole-v1", "config": {}}})),
            ("an Optuna space or study (by its `direction`, `n_trials`)", json!({"direction": "minimize", "n_trials": 3})),
            ("an Optuna space or study (by its `FloatDistribution`)", json!({"lr": {"name": "FloatDistribution", "attributes": {"low": 0, "high": 1}}})),
        ];
        for (format_name, document) in table {
            let found = recognise_tool(&document).unwrap_or_else(|| panic!("{format_name}"));
            assert!(found.starts_with(&format!("looks like {format_name}, not like")), "{found}");
        }
        let sweep = json!({"program": "t.py", "method": "bayes", "parameters": {}});
        #[rustfmt::skip]
        let ours = [
            json!({}),
            json!([1]),
            json!({"trialComand": "x"}),
            json!({"parameters": {}}),
            json!({"method": "x", "parameters": [1]}),
            json!({"kind": "Experiment", "apiVersion": "batch/v1"}),
            json!({"lr": {"name": "FloatDistributions"}}),
        ];
        for document in ours {
            assert_eq!(recognise_tool(&document), None, "{document}");
        }
        for field in EXPERIMENT_FIELDS {
            let mut document = sweep.clone();
            document[field] = json!(1);
            assert_eq!(recognise_tool(&document), None, "{field}");
        }
    }

    #[test]
    fn the_words_of_other_tools_have_counterparts() {
        #[rustfmt::skip]
        let table = [
            ("n_trials",              Some("maxTrialNumber")),
            ("nTrials",               Some("maxTrialNumber")),
            ("num_samples",           Some("maxTrialNumber")),
            ("maxTrialCount",         Some("maxTrialNumber")),
            ("run_cap",               Some("maxTrialNumber")),
            ("n_jobs",                Some("trialConcurrency")),
            ("max_concurrent_trials", Some("trialConcurrency")),
            ("parallelTrialCount",    Some("trialConcurrency")),
            ("maxFailedTrialCount",   Some("maxConsecutiveFailures")),
            ("direction",             Some("tuner.classArgs.optimize_mode")),
            ("directions",            Some("objectives")),
            ("timeout",               Some("maxExperimentDuration")),
            ("param_space",           Some("searchSpace")),
            ("program",               Some("trialCommand")),
            ("sampler",               Some("tuner")),
            ("earlyStopping",         Some("assessor")),
            ("uniform",               None),
            ("spec.maxTrialCount",    None),
            ("trialConcurrency",      None),
            ("portal",                None),
        ];
        for (word, here) in table {
            assert_eq!(counterpart(word), here, "{word}");
        }
    }

    #[test]
    fn the_documentation_has_every_counterpart() {
        let text = include_str!("../../../docs/configuration.md");
        let (_, section) = text.split_once("\n## From another tool\n").unwrap();
        for ForeignFormat { name, counterparts, .. } in FOREIGN_FORMATS {
            for (term, here) in counterparts {
                let row = format!("| `{term}` | `{here}` |");
                assert!(section.contains(&row), "{name}: {row}");
            }
        }
    }
}
