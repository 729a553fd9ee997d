//! Ids for use in paths, queries and Kubernetes objects. Each is checked once, when it is created.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize};

/// The error of an invalid id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a valid {what}: {rule}")]
pub struct IdError {
    what: &'static str,
    rule: &'static str,
    text: String,
}

macro_rules! define_id {
    ($(#[$doc:meta])* $name:ident, $what:literal, $max:literal, $rule:literal, $allowed:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Checks `text` against the rule in the type's documentation.
            pub fn new(text: impl Into<String>) -> Result<Self, IdError> {
                let text = text.into();
                let allowed: fn(u8) -> bool = $allowed;
                let is_long = text.is_empty() || text.len() > $max;
                // A leading hyphen would make the id an option on a command line.
                if is_long || text.starts_with('-') || !text.bytes().all(allowed) {
                    // Truncated: a hostile id may be megabytes long.
                    let text = text.chars().take(80).collect();
                    return Err(IdError { what: $what, rule: $rule, text });
                }
                Ok(Self(text))
            }

            /// The id as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                Self::new(text)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                Self::new(String::deserialize(deserializer)?).map_err(serde::de::Error::custom)
            }
        }
    };
}

define_id! {
    /// The id of an experiment, which is one search over one search space: 1 to 32 of `A-Z a-z 0-9 _ -`, not beginning
    /// with `-`.
    ///
    /// TrialKeeper's own ids are 8 lower-case characters. The wider rule is NNI's, for ids that a user chooses.
    ExperimentId, "experiment id", 32, "1 to 32 of A-Z a-z 0-9 _ -, not beginning with -",
    |byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

define_id! {
    /// The id of a trial in an experiment: 1 to 32 of `A-Z a-z 0-9 _ -`, not beginning with `-`. TrialKeeper's own ids
    /// are 5 lower-case characters. Kubernetes names are lower-case, so two ids that differ only in case would collide
    /// there.
    TrialJobId, "trial id", 32, "1 to 32 of A-Z a-z 0-9 _ -, not beginning with -",
    |byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

define_id! {
    /// The id of an attempt, which is one incarnation of a trial job's process or pod: 1 to 128 of `A-Z a-z 0-9 _ -`.
    ///
    /// Source: `FC_TASK_ATTEMPT_INSTANCE_UID` under FrameworkController, else the pod's UID, else a random text of the
    /// manager or the agent. (`FC_TASK_ATTEMPT_ID` is unsuitable: it is unique only within its task.)
    AttemptId, "attempt id", 128, "1 to 128 of A-Z a-z 0-9 _ -",
    |byte| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-'
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_follow_their_rule() {
        let long = "a".repeat(33);
        #[rustfmt::skip]
        let table = [
            ("made here",          "a1b2c3d4",     true),
            ("a user's own",       "My_search-2",  true),
            ("empty",              "",             false),
            ("a path",             "../evil",      false),
            ("a dot",              "a.b",          false),
            ("an option",          "-dash",        false),
            ("a NUL",              "a\0b",         false),
            ("not ASCII",          "é",            false),
            ("too long",           long.as_str(),  false),
        ];
        for (case, text, good) in table {
            assert_eq!(ExperimentId::new(text).is_ok(), good, "{case}");
            assert_eq!(TrialJobId::new(text).is_ok(), good, "{case}");
            let json = serde_json::Value::from(text);
            assert_eq!(serde_json::from_value::<TrialJobId>(json).is_ok(), good, "{case}, as JSON");
        }
    }
}
