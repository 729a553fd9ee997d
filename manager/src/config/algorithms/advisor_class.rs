//! Recognises an advisor among the user's own classes: a tuner of NNI that also stops trials. NNI 3.0 has one section
//! for both, and decides by the class.

use std::path::Path;

/// The base classes of advisors in NNI 3.0.
const ADVISOR_BASES: [&str; 3] = ["MsgDispatcherBase", "Hyperband", "BOHB"];

/// Returns whether the class `module.Class` in the folder `code` is an advisor, according to the text of its module.
pub(in crate::config) fn is_advisor(class: &str, code: &Path) -> bool {
    let Some((module, name)) = class.rsplit_once('.') else { return false };
    if module.starts_with("nni.") {
        return module.ends_with("_advisor");
    }
    let module = code.join(module.replace('.', "/"));
    let files = [module.with_extension("py"), module.join("__init__.py")];
    let text = files.iter().find_map(|file| std::fs::read_to_string(file).ok());
    text.is_some_and(|text| has_advisor_base(&text, name))
}

/// PURE: returns whether a module's text defines the class with a base that makes it an advisor.
fn has_advisor_base(text: &str, class: &str) -> bool {
    let bases_of = |head: &str| {
        let (bases, _) =
            head.strip_prefix(class)?.trim_start().strip_prefix('(')?.split_once(')')?;
        let mut bases = bases.split(',').map(|base| base.rsplit('.').next().unwrap_or(base).trim());
        Some(bases.any(|base| ADVISOR_BASES.contains(&base) || base.ends_with("Advisor")))
    };
    text.split("class ").skip(1).filter_map(bases_of).any(|is_advisor| is_advisor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_advisor_is_recognised_by_its_base() {
        #[rustfmt::skip]
        let table = [
            ("class My(MsgDispatcherBase):\n",                         true),
            ("import nni\n\nclass My( base.MsgDispatcherBase, Log ):", true),
            ("class My(\n    Log,\n    BOHB,\n):",                     true),
            ("class My(OtherAdvisor):",                                true),
            ("class My(Tuner):",                                       false),
            ("class My:",                                              false),
            ("class My2(MsgDispatcherBase):\nclass My(Tuner):",        false),
            ("",                                                       false),
        ];
        let folder = tempfile::tempdir().unwrap();
        for (text, expected) in table {
            std::fs::write(folder.path().join("mine.py"), text).unwrap();
            assert_eq!(is_advisor("mine.My", folder.path()), expected, "{text}");
        }
        std::fs::create_dir(folder.path().join("package")).unwrap();
        let text = "class My(MsgDispatcherBase): pass";
        std::fs::write(folder.path().join("package/__init__.py"), text).unwrap();
        for (class, expected) in [
            ("package.My", true),
            ("nowhere.My", false),
            ("My", false),
            ("nni.algorithms.hpo.hyperband_advisor.Hyperband", true),
            ("nni.algorithms.hpo.tpe_tuner.TpeTuner", false),
        ] {
            assert_eq!(is_advisor(class, folder.path()), expected, "{class}");
        }
    }
}
