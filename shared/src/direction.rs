//! The direction of a search.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The direction in which a search optimises a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Larger values are better.
    Maximize,
    /// Smaller values are better.
    Minimize,
}

impl Direction {
    /// Returns the word for the direction: `maximize` or `minimize`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Maximize => "maximize",
            Self::Minimize => "minimize",
        }
    }
}

impl FromStr for Direction {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let all = [Self::Maximize, Self::Minimize];
        all.into_iter().find(|it| it.as_str() == text).ok_or("allowed: maximize, minimize")
    }
}

/// The JSON of a direction: the values that are better.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Better {
    Larger,
    Smaller,
    /// A direction that this build does not know.
    #[serde(other)]
    Other,
}

/// The JSON of a field with a direction. `None`: this build does not know it.
pub(crate) mod better {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use super::{Better, Direction};

    #[expect(
        clippy::trivially_copy_pass_by_ref,
        clippy::ref_option,
        reason = "serde passes a reference"
    )]
    pub(crate) fn serialize<S>(direction: &Option<Direction>, to: S) -> Result<S::Ok, S::Error>
    where
        S: Serializer,
    {
        let better = match direction {
            Some(Direction::Maximize) => Better::Larger,
            Some(Direction::Minimize) => Better::Smaller,
            None => Better::Other,
        };
        better.serialize(to)
    }

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<Direction>, D::Error>
    where
        D: Deserializer<'de>,
    {
        Ok(match Better::deserialize(from)? {
            Better::Larger => Some(Direction::Maximize),
            Better::Smaller => Some(Direction::Minimize),
            Better::Other => None,
        })
    }
}
