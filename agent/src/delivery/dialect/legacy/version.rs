//! PURE: does this keeper fit that manager? Compared as NNI's keeper does.

use std::fmt;

/// Versions of NNI whose keepers spoke these words.
const KNOWN_VERSIONS: [&str; 2] = ["2", "3"];

/// The outcome of the comparison; displayed as the message of a mismatch, in the old keeper's words.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Comparison {
    /// The versions fit.
    Match,
    /// The versions do not fit; a manager ends the whole experiment over this.
    Mismatch {
        /// The manager's, as far as it is compared.
        manager: String,
        /// The keeper's.
        keeper: String,
    },
}

impl fmt::Display for Comparison {
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

/// Compares the manager's version with `keeper`, the version of NNI that this keeper stands in for. `None`: with
/// all that spoke these words, since these are what has to fit.
pub fn compare(manager: &str, keeper: Option<&str>) -> Comparison {
    let theirs = compared(manager);
    let ours = match keeper {
        Some(keeper) => compared(keeper),
        None if KNOWN_VERSIONS.contains(&theirs.split('.').next().unwrap_or_default()) => theirs,
        None => "3.0",
    };
    if theirs == ours {
        return Comparison::Match;
    }
    Comparison::Mismatch { manager: theirs.to_owned(), keeper: ours.to_owned() }
}

/// The part that the old keeper compares: one digit, and a point with another if they follow. Of a version without
/// a digit, all.
fn compared(version: &str) -> &str {
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
    fn versions_are_compared_as_the_old_keeper_compares_them() {
        let mismatch = |manager: &str, keeper: &str| Comparison::Mismatch {
            manager: manager.to_owned(),
            keeper: keeper.to_owned(),
        };
        #[rustfmt::skip]
        let table = [
            // manager    keeper         they
            ("3.0",       Some("3.0"),   Comparison::Match),
            ("3.0.1",     Some("3.0"),   Comparison::Match),
            ("v3.0",      Some("3.0.0"), Comparison::Match),
            ("2.9",       Some("3.0"),   mismatch("2.9", "3.0")),
            ("10.2",      Some("1.9"),   mismatch("1", "1.9")),
            ("3",         Some("3.0"),   mismatch("3", "3.0")),
            ("dev",       Some("3.0"),   mismatch("dev", "3.0")),
            ("3.0.0",     None,          Comparison::Match),
            ("v2.10",     None,          Comparison::Match),
            ("4.0",       None,          mismatch("4.0", "3.0")),
            ("é",         None,          mismatch("é", "3.0")),
        ];
        for (manager, keeper, expected) in table {
            assert_eq!(compare(manager, keeper), expected, "{manager} {keeper:?}");
        }
    }
}
