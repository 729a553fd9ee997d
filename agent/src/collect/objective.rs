//! PURE: chooses the printed metric that is the result of a trial whose objective has no name. It distinguishes names
//! of results from names that are never results.

use trial_protocol::{Direction, MetricValue, OBJECTIVE};

/// Names that denote a result, the likeliest first.
const RESULT_NAMES: [&str; 5] = [OBJECTIVE, "objective", "metric", "score", "reward"];

/// Names of measures of quality: higher values are better.
const QUALITY_NAMES: [&str; 20] = [
    "accuracy",
    "acc",
    "auc",
    "auroc",
    "f1",
    "iou",
    "miou",
    "map",
    "dice",
    "bleu",
    "rouge",
    "ndcg",
    "r2",
    "precision",
    "recall",
    "top1",
    "top5",
    "mcc",
    "psnr",
    "ssim",
];

/// Names of measures of loss: lower values are better.
const LOSS_NAMES: [&str; 14] = [
    "loss",
    "error",
    "err",
    "logloss",
    "rmse",
    "mse",
    "mae",
    "mape",
    "nll",
    "perplexity",
    "ppl",
    "bce",
    "wer",
    "cer",
];

/// Parts of names that denote data on which the trial was not trained.
const HELD_OUT_PARTS: [&str; 8] =
    ["val", "valid", "validation", "eval", "evaluation", "test", "dev", "heldout"];

/// Last parts of names that denote a setting, a counter, a clock or a machine.
const SETTING_PARTS: [&str; 52] = [
    "lr",
    "batch",
    "bs",
    "size",
    "seed",
    "epoch",
    "epochs",
    "step",
    "steps",
    "iteration",
    "iterations",
    "iter",
    "iters",
    "it",
    "time",
    "timestamp",
    "ts",
    "eta",
    "elapsed",
    "runtime",
    "duration",
    "seconds",
    "secs",
    "sec",
    "ms",
    "minutes",
    "device",
    "gpu",
    "gpus",
    "cpu",
    "rank",
    "worker",
    "workers",
    "threads",
    "node",
    "nodes",
    "port",
    "pid",
    "id",
    "index",
    "version",
    "count",
    "total",
    "momentum",
    "decay",
    "dropout",
    "norm",
    "memory",
    "mem",
    "fps",
    "throughput",
    "speed",
];

/// Complete names of settings, whose last part may also end a metric's name.
const SETTING_NAMES: [&str; 4] =
    ["learning_rate", "world_size", "samples_per_second", "steps_per_second"];

/// First parts of names that denote a count.
const COUNT_PREFIXES: [&str; 4] = ["num", "n", "nb", "max"];

/// Returns the parts of a name: `val/binary_logloss` has `val`, `binary`, `logloss`.
fn name_parts(name: &str) -> impl DoubleEndedIterator<Item = &str> {
    name.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty())
}

fn is_one_of(part: &str, words: &[&str]) -> bool {
    words.iter().any(|word| word.eq_ignore_ascii_case(part))
}

/// Returns whether a name looks like a setting, a counter or a clock, which is never chosen as the result.
pub(super) fn is_setting(name: &str) -> bool {
    let last = name_parts(name).next_back();
    let first = name_parts(name).next();
    is_one_of(name, &SETTING_NAMES)
        || last.is_some_and(|last| is_one_of(last, &SETTING_PARTS))
        || first.is_some_and(|first| first.len() < name.len() && is_one_of(first, &COUNT_PREFIXES))
}

/// Returns whether a name denotes a metric in any text.
pub(super) fn is_metric_name(name: &str) -> bool {
    likelihood(name, None).is_some() && !is_setting(name)
}

/// Returns the likelihood that a name denotes the result. The lowest value is the likeliest. Names of results come
/// first, then measures of quality, then losses. If the search minimises, losses come before quality. Within each kind,
/// a measure of data on which the trial was not trained comes first. `None`: the name is in no list.
fn likelihood(name: &str, direction: Option<Direction>) -> Option<(usize, bool, usize)> {
    let last = name_parts(name).next_back()?;
    let trained_on = !name_parts(name).any(|part| is_one_of(part, &HELD_OUT_PARTS));
    let kinds: [&[&str]; 3] = match direction {
        Some(Direction::Minimize) => [&RESULT_NAMES, &LOSS_NAMES, &QUALITY_NAMES],
        Some(Direction::Maximize) | None => [&RESULT_NAMES, &QUALITY_NAMES, &LOSS_NAMES],
    };
    let mut kinds = kinds.into_iter().enumerate();
    kinds.find_map(|(kind, words)| {
        let place = words.iter().position(|word| word.eq_ignore_ascii_case(last))?;
        Some((kind, trained_on, place))
    })
}

/// Returns the result among `names`, which are in the order of their last appearance. This is the objective, if it has
/// a name. Otherwise it is the likeliest name that is not a setting, or the last one if no name is in a list.
pub(super) fn main_metric<'n>(
    names: &[&'n str],
    objective: Option<&str>,
    direction: Option<Direction>,
) -> Option<&'n str> {
    if let Some(objective) = objective {
        return names.iter().copied().find(|name| *name == objective);
    }
    let candidates = || names.iter().copied().filter(|name| !is_setting(name));
    // Among several of one kind, the last counts. `XGBoost` uses the last data set, and others print the best one last.
    let known = candidates().rev().filter_map(|name| Some((likelihood(name, direction)?, name)));
    known
        .min_by_key(|(likelihood, _)| *likelihood)
        .map(|(_, name)| name)
        .or_else(|| candidates().next_back())
}

/// Returns the last part of a qualified name: `lr` for `optimizer.lr` and `optimizer/lr`.
fn last_part(name: &str) -> &str {
    name.rsplit(['.', '/']).next().unwrap_or(name)
}

/// Returns whether two names denote the same parameter. Case and characters such as `-` and `_` do not matter, and one
/// of the two may be qualified.
fn is_same_parameter(own: &str, printed: &str) -> bool {
    fn folded(name: &str) -> impl Iterator<Item = char> {
        name.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase)
    }
    let is = |own: &str, printed: &str| folded(own).eq(folded(printed));
    is(own, printed) || is(last_part(own), printed) || is(own, last_part(printed))
}

/// Returns whether a printed value only repeats a parameter of the trial.
pub(super) fn is_repeated_parameter(
    parameters: &[(String, MetricValue)],
    name: &str,
    value: &MetricValue,
) -> bool {
    parameters
        .iter()
        .any(|(own, set)| set.number() == value.number() && is_same_parameter(own, name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_likeliest_name_is_the_result() {
        #[rustfmt::skip]
        let table: [(&[&str], Option<&str>); 18] = [
            (&["lr", "batch_size", "device", "loss", "acc", "val_acc"], Some("val_acc")),
            (&["acc", "loss"],                            Some("acc")),
            (&["val_loss", "acc"],                        Some("acc")),
            (&["loss", "val_loss"],                       Some("val_loss")),
            (&["accuracy", "score"],                      Some("score")),
            (&["train/accuracy", "eval/accuracy"],        Some("eval/accuracy")),
            (&["validation_0-logloss", "train-logloss"],  Some("validation_0-logloss")),
            (&["eval_loss", "eval_accuracy", "eval_runtime", "epoch"], Some("eval_accuracy")),
            (&["Epoch", "LR", "Test Accuracy"],           Some("Test Accuracy")),
            (&["hit_rate", "lr"],                         Some("hit_rate")),
            (&["throughput", "energy"],                   Some("energy")),
            (&["mine", "other"],                          Some("other")),
            (&["only"],                                   Some("only")),
            (&["epoch"],                                  None),
            (&["device", "rank", "eta", "num_classes"],   None),
            (&["total_time", "train_samples", "lr"],      Some("train_samples")),
            (&["n"],                                      Some("n")),
            (&[],                                         None),
        ];
        for (names, expected) in table {
            assert_eq!(main_metric(names, None, None), expected, "{names:?}");
        }
        let named = |names: &[&'static str], name| main_metric(names, Some(name), None);
        assert_eq!(named(&["acc", "lr"], "lr"), Some("lr"), "a name that was given counts");
        assert_eq!(named(&["acc"], "auc"), None);
    }

    #[test]
    fn a_value_that_repeats_a_parameter_is_found_under_any_spelling() {
        let number = |value: f64| MetricValue::from(value);
        let parameters =
            [("learning_rate".to_owned(), number(0.1)), ("layer.hidden".to_owned(), number(64.0))];
        #[rustfmt::skip]
        let table = [
            ("learning_rate",     0.1,  true),
            ("Learning-Rate",     0.1,  true),
            ("learningRate",      0.1,  true),
            ("opt/learning_rate", 0.1,  true),
            ("layer.hidden",      64.0, true),
            ("layer_hidden",      64.0, true),
            ("hidden",            64.0, true),
            ("learning_rate",     0.2,  false),
            ("rate",              0.1,  false),
            ("score",             0.1,  false),
            ("layer",             64.0, false),
        ];
        for (name, value, expected) in table {
            assert_eq!(
                is_repeated_parameter(&parameters, name, &number(value)),
                expected,
                "{name}"
            );
        }
    }
}
