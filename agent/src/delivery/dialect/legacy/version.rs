//! PURE: compares the versions of keeper and manager as NNI's keeper does.

use std::fmt;

/// The major versions of NNI whose keepers use this protocol.
const KNOWN_VERSIONS: [&str; 2] = ["2", "3"];

/// The outcome of the comparison. A mismatch is displayed in the words of NNI's keeper.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum VersionComparison {
    /// The versions match.
    Match,
    /// The versions do not match, for which a manager ends the whole experiment.
    Mismatch {
        /// The compared part of the manager's version.
        manager: String,
        /// The compared part of the keeper's version.
        keeper: String,
    },
}

impl fmt::Display for VersionComparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Match => f.write_str("Version match!"),
            Self::Mismatch { manager, keeper } => write!(
                f,
                "NNIManager version is {manager}, TrialKeeper version is {keeper}, \
                 NNI version does not match!"
            ),
        }
    }
}

/// Compares the manager's version with `keeper`, the version of NNI whose keeper this program replaces. `None` stands
/// for all versions with this protocol.
pub fn compare_versions(manager: &str, keeper: Option<&str>) -> VersionComparison {
    let manager_part = compared_part(manager);
    let keeper_part = match keeper {
        Some(keeper) => compared_part(keeper),
        None if KNOWN_VERSIONS.contains(&manager_part.split('.').next().unwrap_or_default()) => {
            manager_part
        }
        None => "3.0",
    };
    if manager_part == keeper_part {
        return VersionComparison::Match;
    }
    VersionComparison::Mismatch { manager: manager_part.to_owned(), keeper: keeper_part.to_owned() }
}

/// Returns the part that NNI's keeper compares: one digit, and a point with a second digit if they follow. A version
/// without digits is compared completely.
fn compared_part(version: &str) -> &str {
    let from = version.find(|c: char| c.is_ascii_digit()).unwrap_or(0);
    let rest = &version[from..];
    let length = match rest.as_bytes() {
        [first, b'.', second, ..] if first.is_ascii_digit() && second.is_ascii_digit() => 3,
        [first, ..] if first.is_ascii_digit() => 1,
        _ => rest.len(),
    };
    &rest[..length]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_as_in_nnis_keeper() {
        let mismatch = |manager: &str, keeper: &str| VersionComparison::Mismatch {
            manager: manager.to_owned(),
            keeper: keeper.to_owned(),
        };
        #[rustfmt::skip]
        let table = [
            // manager    keeper         they
            ("3.0",       Some("3.0"),   VersionComparison::Match),
            ("3.0.1",     Some("3.0"),   VersionComparison::Match),
            ("v3.0",      Some("3.0.0"), VersionComparison::Match),
            ("2.9",       Some("3.0"),   mismatch("2.9", "3.0")),
            ("10.2",      Some("1.9"),   mismatch("1", "1.9")),
            ("3",         Some("3.0"),   mismatch("3", "3.0")),
            ("dev",       Some("3.0"),   mismatch("dev", "3.0")),
            ("3.0.0",     None,          VersionComparison::Match),
            ("v2.10",     None,          VersionComparison::Match),
            ("4.0",       None,          mismatch("4.0", "3.0")),
            ("é",         None,          mismatch("é", "3.0")),
        ];
        for (manager, keeper, expected) in table {
            assert_eq!(compare_versions(manager, keeper), expected, "{manager} {keeper:?}");
        }
    }
}
