//! PURE: the classes of NNI's own algorithms, and their use of the direction.

use trial_protocol::Direction;

/// The way in which a class of NNI uses the direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::config) enum DirectionUse {
    /// The class has an `optimize_mode`, with this default.
    Argument(Direction),
    /// The class has no `optimize_mode` and needs none.
    Ignores,
    /// The class has no `optimize_mode` and expects growing results.
    OnlyMaximizes,
}

/// The classes of NNI 3.0 (`nni/runtime/default_config/builtin_algorithms.yml`) with their constructors' defaults.
const NNI_CLASSES: [(&str, DirectionUse); 18] = {
    use Direction::{Maximize, Minimize};
    use DirectionUse::{Argument, Ignores, OnlyMaximizes};
    [
        ("TpeTuner", Argument(Minimize)),
        ("HyperoptTuner", Argument(Minimize)),
        ("RandomTuner", Argument(Maximize)),
        ("GridSearchTuner", Argument(Maximize)),
        ("EvolutionTuner", Argument(Maximize)),
        ("MetisTuner", Argument(Maximize)),
        ("GPTuner", Argument(Maximize)),
        ("PBTTuner", Argument(Maximize)),
        ("PPOTuner", Argument(Maximize)),
        ("SMACTuner", Argument(Maximize)),
        ("DNGOTuner", Argument(Maximize)),
        ("NetworkMorphismTuner", Argument(Maximize)),
        ("RegularizedEvolutionTuner", Argument(Maximize)),
        ("Hyperband", Argument(Maximize)),
        ("BOHB", Argument(Maximize)),
        ("MedianstopAssessor", Argument(Maximize)),
        ("BatchTuner", Ignores),
        ("CurvefittingAssessor", OnlyMaximizes),
    ]
};

/// Returns the way in which a class uses the direction. `None`: the class is not NNI's.
pub(in crate::config) fn direction_use(class: &str) -> Option<DirectionUse> {
    let inner = class.strip_prefix("nni.")?;
    let (_, name) = inner.rsplit_once('.')?;
    NNI_CLASSES.iter().find(|(known, _)| *known == name).map(|(_, makes)| *makes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nni_classes_are_distinguished_from_the_users() {
        use DirectionUse::{Argument, Ignores, OnlyMaximizes};
        #[rustfmt::skip]
        let table = [
            ("nni.algorithms.hpo.medianstop_assessor.MedianstopAssessor",     Some(Argument(Direction::Maximize))),
            ("nni.algorithms.hpo.tpe_tuner.TpeTuner",                         Some(Argument(Direction::Minimize))),
            ("nni.algorithms.hpo.curvefitting_assessor.CurvefittingAssessor", Some(OnlyMaximizes)),
            ("nni.algorithms.hpo.batch_tuner.BatchTuner",                     Some(Ignores)),
            ("nni.medianstop_assessor.medianstop_assessor.MedianstopAssessor", Some(Argument(Direction::Maximize))),
            ("mine.MedianstopAssessor",                                       None),
            ("nni.experimental.Other",                                        None),
            ("nni.TpeTuner",                                                  None),
            ("nni",                                                           None),
        ];
        for (class, expected) in table {
            assert_eq!(direction_use(class), expected, "{class}");
        }
    }
}
