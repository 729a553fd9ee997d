//! PURE: the direction of the objective. An experiment has one direction, which the file may state in
//! `objective.direction`, in the arguments of the tuner or the assessor, or nowhere.

use trial_protocol::Direction;

use super::section::Problem;

/// A field that states the direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct DirectionStatement {
    /// The path of the field, such as `tuner.classArgs.optimize_mode`.
    pub(super) path: String,
    pub(super) direction: Direction,
}

/// The direction of the experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AgreedDirection {
    pub(super) direction: Direction,
    /// `true` if no field states the direction, which is then the tuner's default.
    pub(super) assumed: bool,
}

/// Returns the direction that all statements agree on, or the tuner's `default` without any statement.
///
/// # Errors
///
/// Two fields contradict each other. The error names both.
pub(super) fn find_agreed_direction(
    statements: &[DirectionStatement],
    default: Direction,
) -> Result<AgreedDirection, Problem> {
    let Some((first, others)) = statements.split_first() else {
        return Ok(AgreedDirection { direction: default, assumed: true });
    };
    match others.iter().find(|other| other.direction != first.direction) {
        None => Ok(AgreedDirection { direction: first.direction, assumed: false }),
        Some(other) => {
            let problem = format!(
                "is `{}`, but `{}` is `{}`; an experiment has one direction: remove one of the two, or make them equal",
                other.direction.as_str(),
                first.path,
                first.direction.as_str(),
            );
            Err(Problem::new(other.path.clone(), problem))
        }
    }
}

/// Words in names of metrics that training minimises.
const MINIMISED_METRIC_WORDS: [&str; 18] = [
    "loss",
    "logloss",
    "error",
    "err",
    "mse",
    "rmse",
    "mae",
    "mape",
    "smape",
    "nll",
    "perplexity",
    "ppl",
    "wer",
    "cer",
    "eer",
    "fid",
    "deviance",
    "bce",
];
/// Words in names of metrics that training maximises.
const MAXIMISED_METRIC_WORDS: [&str; 22] = [
    "acc",
    "accuracy",
    "auc",
    "auroc",
    "auprc",
    "f1",
    "precision",
    "recall",
    "iou",
    "miou",
    "dice",
    "bleu",
    "rouge",
    "r2",
    "reward",
    "psnr",
    "ssim",
    "top1",
    "top5",
    "ndcg",
    "mcc",
    "kappa",
];

/// Returns a warning if a metric's name suggests the other direction, as for a maximised `val_loss`.
pub(super) fn opposite_direction_warning(metric: &str, direction: Direction) -> Option<String> {
    let lower = metric.to_lowercase();
    let words: Vec<_> = lower.split(|c: char| !c.is_ascii_alphanumeric()).collect();
    // scikit-learn's `neg_mean_squared_error` reverses the direction, and other names may, too.
    if words.iter().any(|word| ["neg", "negative", "minus", "inverse", "inv"].contains(word)) {
        return None;
    }
    let names = |known: &[&str]| words.iter().any(|word| known.contains(word));
    let likely = match (names(&MINIMISED_METRIC_WORDS), names(&MAXIMISED_METRIC_WORDS)) {
        (true, false) => Direction::Minimize,
        (false, true) => Direction::Maximize,
        (true, true) | (false, false) => return None,
    };
    (likely != direction).then(|| {
        format!(
            "the search {} `{metric}`, although its name suggests the opposite; if that is not meant, \
             state `objective: {{direction: {}}}`",
            verb(direction),
            likely.as_str(),
        )
    })
}

/// Returns the operation of a search with this direction, for sentences.
pub(super) fn verb(direction: Direction) -> &'static str {
    match direction {
        Direction::Maximize => "maximises",
        Direction::Minimize => "minimises",
    }
}

#[cfg(test)]
mod tests {
    use Direction::{Maximize, Minimize};

    use super::*;

    #[test]
    fn a_metric_that_is_optimised_the_wrong_way_gets_a_warning() {
        #[rustfmt::skip]
        let table = [
            ("val_loss",               Maximize, true),
            ("val_loss",               Minimize, false),
            ("eval/accuracy",          Minimize, true),
            ("Top1",                   Minimize, true),
            ("neg_mean_squared_error", Maximize, false),
            ("loss_accuracy",          Minimize, false),
            ("glossary",               Maximize, false),
            ("score",                  Minimize, false),
            ("",                       Minimize, false),
        ];
        for (metric, direction, warned) in table {
            assert_eq!(
                opposite_direction_warning(metric, direction).is_some(),
                warned,
                "{metric} {direction:?}"
            );
        }
        let warning_text = opposite_direction_warning("val_loss", Maximize).unwrap();
        assert!(
            warning_text.contains("maximises `val_loss`") && warning_text.contains("minimize}"),
            "{warning_text}"
        );
    }

    #[test]
    fn all_statements_must_agree_and_the_default_applies_without_any() {
        let say = |path: &str, direction| DirectionStatement { path: path.to_owned(), direction };
        let (objective, tuner, assessor) = ("objective.direction", "tuner.x", "assessor.x");
        #[rustfmt::skip]
        let table = [
            ("nothing is stated",     vec![],                                             Ok((Minimize, true))),
            ("the tuner states it",   vec![say(tuner, Maximize)],                         Ok((Maximize, false))),
            ("the assessor does",     vec![say(assessor, Maximize)],                      Ok((Maximize, false))),
            ("both, equal",           vec![say(tuner, Maximize), say(assessor, Maximize)], Ok((Maximize, false))),
            ("both, different",       vec![say(tuner, Minimize), say(assessor, Maximize)], Err("assessor.x")),
            ("the objective, too",    vec![say(objective, Maximize), say(tuner, Minimize)], Err("tuner.x")),
        ];
        for (rule, statements, expected) in table {
            let found = find_agreed_direction(&statements, Minimize);
            match expected {
                Ok((direction, assumed)) => {
                    assert_eq!(found.unwrap(), AgreedDirection { direction, assumed }, "{rule}");
                }
                Err(path) => {
                    let problem = found.unwrap_err();
                    assert_eq!(problem.path, path, "{rule}");
                    assert!(
                        problem.message.contains(&statements[0].path),
                        "{rule}: {}",
                        problem.message
                    );
                }
            }
        }
    }
}
