//! PURE: `classArgs` of tuners and assessors. Arguments have NNI's names. An argument that the tuner or assessor does
//! not read is unknown.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;
use std::sync::LazyLock;

use serde_json::{Map, Value};
use trial_protocol::Direction;

use super::search_space::parse::parse_number;
use crate::util::nearest::suggest_names;

/// Parses NNI's word for a direction, or its short form `max` or `min`, ignoring case.
pub fn parse_direction(word: &str) -> Option<Direction> {
    let is = |known: &str| known.eq_ignore_ascii_case(word);
    match word {
        _ if is("maximize") || is("max") => Some(Direction::Maximize),
        _ if is("minimize") || is("min") => Some(Direction::Minimize),
        _ => None,
    }
}

/// The reason why a tuner or an assessor cannot be created.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {problem}")]
pub struct Error {
    /// The path of the field, such as `tuner.classArgs.optimize_mode`.
    pub path: String,
    /// The problem and the allowed values.
    pub problem: String,
}

/// The arguments of a tuner or an assessor, and the names that were read.
#[derive(Debug)]
pub(crate) struct Arguments<'a> {
    values: &'a Map<String, Value>,
    path: String,
    read_names: BTreeSet<&'static str>,
}

impl<'a> Arguments<'a> {
    /// Creates the arguments for the section `owner` of the experiment file: `tuner` or `assessor`.
    pub(crate) fn new(owner: &str, given: &'a Map<String, Value>) -> Self {
        Self { values: given, path: format!("{owner}.classArgs"), read_names: BTreeSet::new() }
    }

    /// Returns the value of an argument. `null` counts as absent.
    pub(crate) fn raw(&mut self, name: &'static str) -> Option<&'a Value> {
        self.read_names.insert(name);
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// Returns an argument that is itself an object of arguments.
    pub(crate) fn section(&mut self, name: &'static str) -> Result<Self, Error> {
        static NONE: LazyLock<Map<String, Value>> = LazyLock::new(Map::new);
        let path = format!("{}.{name}", self.path);
        match self.raw(name) {
            None => Ok(Self { values: &NONE, path, read_names: BTreeSet::new() }),
            Some(Value::Object(given)) => {
                Ok(Self { values: given, path, read_names: BTreeSet::new() })
            }
            Some(other) => self.fault(name, format!("expected arguments by name, found {other}")),
        }
    }

    /// Returns `optimize_mode`, an argument of every tuner and most assessors.
    pub(crate) fn optimize_mode(&mut self) -> Result<Option<Direction>, Error> {
        let given = self.raw("optimize_mode").and_then(Value::as_str);
        if let Some(direction) = given.and_then(parse_direction) {
            return Ok(Some(direction));
        }
        let word = self.one_of("optimize_mode", &["maximize", "minimize"])?;
        Ok(word.and_then(parse_direction))
    }

    /// Returns an argument that must be one of the `allowed` words.
    pub(crate) fn one_of(
        &mut self,
        name: &'static str,
        allowed: &[&'static str],
    ) -> Result<Option<&'static str>, Error> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        let word = value.as_str().unwrap_or_default();
        match allowed.iter().find(|allowed| allowed.eq_ignore_ascii_case(word)) {
            Some(found) => Ok(Some(found)),
            None => {
                let advice = suggest_names(word, allowed.iter().copied());
                self.fault(name, format!("{value} is not known; {advice}"))
            }
        }
    }

    /// Returns an argument that must be one of the `allowed` words. `null` counts as `none`.
    pub(crate) fn one_of_or_null(
        &mut self,
        name: &'static str,
        allowed: &[&'static str],
    ) -> Result<Option<&'static str>, Error> {
        let given = self.one_of(name, allowed)?;
        let null = self.values.get(name).is_some_and(Value::is_null);
        Ok(if null { Some("none") } else { given })
    }

    /// Returns an argument that must be a finite number of at least `least`.
    pub(crate) fn number(&mut self, name: &'static str, least: f64) -> Result<Option<f64>, Error> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        // PyYAML, and so NNI's client, reads `1e-6` as a text.
        let text = || parse_number(value.as_str()?)?.as_f64();
        let number = value.as_f64().or_else(text);
        match number.filter(|number| number.is_finite() && *number >= least) {
            Some(number) => Ok(Some(number)),
            None => {
                self.fault(name, format!("expected a number of at least {least}, found {value}"))
            }
        }
    }

    /// Returns an argument that must be `true` or `false`.
    pub(crate) fn boolean(&mut self, name: &'static str) -> Result<Option<bool>, Error> {
        match self.raw(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(*value)),
            Some(other) => self.fault(name, format!("expected true or false, found {other}")),
        }
    }

    /// Returns an argument that must be an integer within a range.
    pub(crate) fn integer(
        &mut self,
        name: &'static str,
        range: RangeInclusive<u64>,
    ) -> Result<Option<u64>, Error> {
        let Some(value) = self.raw(name) else { return Ok(None) };
        match value.as_u64().filter(|number| range.contains(number)) {
            Some(number) => Ok(Some(number)),
            None => {
                let limit = match *range.end() {
                    u64::MAX => String::new(),
                    end => format!(" and at most {end}"),
                };
                let start = range.start();
                self.fault(
                    name,
                    format!("expected an integer of at least {start}{limit}, found {value}"),
                )
            }
        }
    }

    /// Returns an error if an argument was never read.
    pub(crate) fn refuse_unread(&self, owner: &str) -> Result<(), Error> {
        let Some(name) = self.values.keys().find(|name| !self.read_names.contains(name.as_str()))
        else {
            return Ok(());
        };
        let advice = suggest_names(name, self.read_names.iter().copied());
        self.fault(name, format!("is not an argument of {owner}; {advice}"))
    }

    /// Returns an error for an argument.
    pub(crate) fn fault<T>(&self, name: &str, problem: String) -> Result<T, Error> {
        Err(Error { path: format!("{}.{name}", self.path), problem })
    }
}
