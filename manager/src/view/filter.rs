//! PURE: an expression that selects trials, such as `lr < 0.01 and activation == "relu"`.
//!
//! Names are those of parameters, the metric's own name for the final result, other metrics, and [`TRIAL_FIELDS`]. A
//! name with other characters is in backquotes. A comparison with a missing value is false; `name == null` selects
//! trials without the value.

use std::iter::Peekable;
use std::str::CharIndices;

use serde_json::Value;
use trial_protocol::MetricValue;

use super::TrialSummary;
use super::UNKNOWN_CAUSE;

/// The names that every trial has, whatever the names of its parameters. `parameters.NAME` is always a parameter,
/// and `metrics.NAME` a metric, unless a parameter has that name.
pub const TRIAL_FIELDS: [&str; 8] =
    ["number", "id", "state", "cause", "duration", "final", "latest", "step"];

/// The maximum length of an expression, in bytes.
const MAX_EXPRESSION_BYTES: usize = 2000;
/// The maximum depth of nesting.
const MAX_DEPTH: usize = 50;
/// The units of time that a number may have, in seconds.
const TIME_UNITS: [(&str, f64); 5] =
    [("ms", 0.001), ("s", 1.0), ("m", 60.0), ("h", 3600.0), ("d", 86_400.0)];

/// A fault of an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("at character {position}: {problem}")]
pub struct FilterError {
    /// The position of the fault, in characters from 1.
    pub position: usize,
    /// The fault, and the possible values.
    pub problem: String,
}

/// A checked expression.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    root: Expression,
}

#[derive(Debug, Clone, PartialEq)]
enum Expression {
    All(Vec<Self>),
    Any(Vec<Self>),
    Not(Box<Self>),
    Comparison(Operand, Operator, Operand),
}

#[derive(Debug, Clone, PartialEq)]
enum Operand {
    /// A name and its position.
    Name(String, usize),
    Literal(Scalar),
}

/// A value to compare.
#[derive(Debug, Clone, PartialEq)]
enum Scalar {
    Number(f64),
    Text(String),
    Flag(bool),
    Missing,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    Different,
    Less,
    AtMost,
    More,
    AtLeast,
    Contains,
}

#[derive(Debug, Clone, PartialEq)]
enum Token {
    Name(String),
    Literal(Scalar),
    Operator(Operator),
    And,
    Or,
    Not,
    Open,
    Close,
}

fn fault<T>(position: usize, problem: impl Into<String>) -> Result<T, FilterError> {
    Err(FilterError { position, problem: problem.into() })
}

impl Filter {
    /// Reads an expression.
    pub fn parse(text: &str) -> Result<Self, FilterError> {
        if text.len() > MAX_EXPRESSION_BYTES {
            return fault(
                1,
                format!(
                    "it has {} bytes, but at most {MAX_EXPRESSION_BYTES} are allowed",
                    text.len()
                ),
            );
        }
        let tokens = tokenize(text)?;
        let end = text.chars().count() + 1;
        let mut parser = Parser { tokens: &tokens, at: 0, end };
        let root = parser.parse_any(0)?;
        match parser.tokens.get(parser.at) {
            None => Ok(Self { root }),
            Some((_, position)) => fault(*position, "expected `and`, `or` or the end"),
        }
    }

    /// Returns whether the expression selects a trial, as of `now_ms`.
    pub fn matches(&self, trial: &TrialSummary, now_ms: i64) -> bool {
        self.root.matches(trial, now_ms)
    }

    /// Returns the names that are not fields of every trial, each with its position: parameters or metrics.
    pub fn names(&self) -> Vec<(&str, usize)> {
        let mut names = Vec::new();
        self.root.names(&mut names);
        names.retain(|(name, _)| !TRIAL_FIELDS.contains(name));
        names
    }
}

impl Expression {
    fn matches(&self, trial: &TrialSummary, now_ms: i64) -> bool {
        match self {
            Self::All(parts) => parts.iter().all(|part| part.matches(trial, now_ms)),
            Self::Any(parts) => parts.iter().any(|part| part.matches(trial, now_ms)),
            Self::Not(part) => !part.matches(trial, now_ms),
            Self::Comparison(one, operator, other) => {
                let words = one.is_word() || other.is_word();
                operator.is_satisfied_by(
                    &one.value(trial, now_ms),
                    &other.value(trial, now_ms),
                    words,
                )
            }
        }
    }

    fn names<'a>(&'a self, names: &mut Vec<(&'a str, usize)>) {
        match self {
            Self::All(parts) | Self::Any(parts) => parts.iter().for_each(|part| part.names(names)),
            Self::Not(part) => part.names(names),
            Self::Comparison(one, _, other) => {
                for operand in [one, other] {
                    if let Operand::Name(name, position) = operand {
                        names.push((name, *position));
                    }
                }
            }
        }
    }
}

impl Operand {
    /// Returns whether the operand has known words as its values. They may be written without quotes and in any case.
    fn is_word(&self) -> bool {
        matches!(self, Self::Name(name, _) if name == "state" || name == "cause")
    }

    fn value(&self, trial: &TrialSummary, now_ms: i64) -> Scalar {
        let name = match self {
            Self::Literal(scalar) => return scalar.clone(),
            Self::Name(name, _) => name.as_str(),
        };
        let number = |value: Option<i64>| {
            value.map_or(Scalar::Missing, |value| Scalar::Number(to_f64(value)))
        };
        match name {
            "number" => number(i64::try_from(trial.sequence).ok()),
            "step" => number(trial.latest_step.and_then(|step| i64::try_from(step).ok())),
            "id" => Scalar::Text(trial.id.clone()),
            "state" => Scalar::Text(trial.state.as_str().to_owned()),
            "cause" => {
                Scalar::Text(trial.cause.clone().unwrap_or_else(|| UNKNOWN_CAUSE.to_owned()))
            }
            "duration" => trial
                .duration_ms(now_ms)
                .map_or(Scalar::Missing, |ms| Scalar::Number(to_f64(ms) / 1000.0)),
            "final" => metric_scalar(trial.final_value.as_ref()),
            "latest" => metric_scalar(trial.latest.as_ref()),
            name => {
                let own = name.strip_prefix("parameters.").unwrap_or(name);
                let flat = super::flatten_parameters(&trial.parameters);
                match flat.into_iter().find(|(known, _)| known == own) {
                    Some((_, value)) => scalar(value),
                    None if trial.metric.as_deref() == Some(name) => {
                        metric_scalar(trial.final_value.as_ref())
                    }
                    None => metric_scalar(metric(trial, name)),
                }
            }
        }
    }
}

/// Returns the value of a metric that an expression or an order names, with or without `metrics.`.
pub(super) fn metric<'a>(trial: &'a TrialSummary, name: &str) -> Option<&'a Value> {
    let own = name.strip_prefix("metrics.").and_then(|own| trial.metrics.get(own));
    own.or_else(|| trial.metrics.get(name))
}

/// Converts a whole number to a float. A trial's numbers are far below 2^53.
fn to_f64(value: i64) -> f64 {
    value.to_string().parse().unwrap_or(f64::NAN)
}

fn metric_scalar(value: Option<&Value>) -> Scalar {
    let number = value.and_then(|value| MetricValue::from(value.clone()).number());
    number.map_or(Scalar::Missing, Scalar::Number)
}

fn scalar(value: &Value) -> Scalar {
    match value {
        Value::Null => Scalar::Missing,
        Value::Bool(flag) => Scalar::Flag(*flag),
        Value::Number(number) => number.as_f64().map_or(Scalar::Missing, Scalar::Number),
        Value::String(text) => Scalar::Text(text.clone()),
        Value::Array(_) | Value::Object(_) => Scalar::Text(value.to_string()),
    }
}

impl Operator {
    /// Returns whether the comparison of two values is true. With `words`, the case is ignored.
    fn is_satisfied_by(self, one: &Scalar, other: &Scalar, words: bool) -> bool {
        let equal = match (one, other) {
            (Scalar::Text(a), Scalar::Text(b)) if words => a.eq_ignore_ascii_case(b),
            (a, b) => a == b,
        };
        let order = match (one, other) {
            (Scalar::Number(a), Scalar::Number(b)) => a.partial_cmp(b),
            (Scalar::Text(a), Scalar::Text(b)) => Some(a.cmp(b)),
            _ => None,
        };
        match self {
            Self::Equal => equal,
            // `name != null` selects the trials with the value.
            Self::Different => !equal && *one != Scalar::Missing,
            Self::Less => order.is_some_and(std::cmp::Ordering::is_lt),
            Self::AtMost => order.is_some_and(std::cmp::Ordering::is_le),
            Self::More => order.is_some_and(std::cmp::Ordering::is_gt),
            Self::AtLeast => order.is_some_and(std::cmp::Ordering::is_ge),
            Self::Contains => match (one, other) {
                (Scalar::Text(text), Scalar::Text(part)) => {
                    text.to_lowercase().contains(&part.to_lowercase())
                }
                _ => false,
            },
        }
    }
}

struct Parser<'a> {
    tokens: &'a [(Token, usize)],
    at: usize,
    /// The position after the last character.
    end: usize,
}

impl Parser<'_> {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn position(&self) -> usize {
        self.tokens.get(self.at).map_or(self.end, |(_, position)| *position)
    }

    fn skip_if(&mut self, wanted: &Token) -> bool {
        let found = self.peek() == Some(wanted);
        self.at += usize::from(found);
        found
    }

    fn parse_any(&mut self, depth: usize) -> Result<Expression, FilterError> {
        let mut parts = vec![self.parse_all(depth)?];
        while self.skip_if(&Token::Or) {
            parts.push(self.parse_all(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::Any(parts) })
    }

    fn parse_all(&mut self, depth: usize) -> Result<Expression, FilterError> {
        let mut parts = vec![self.parse_one(depth)?];
        while self.skip_if(&Token::And) {
            parts.push(self.parse_one(depth)?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { Expression::All(parts) })
    }

    fn parse_one(&mut self, depth: usize) -> Result<Expression, FilterError> {
        if depth > MAX_DEPTH {
            return fault(
                self.position(),
                format!("it has more than {MAX_DEPTH} levels of nesting"),
            );
        }
        if self.skip_if(&Token::Not) {
            return Ok(Expression::Not(Box::new(self.parse_one(depth + 1)?)));
        }
        let opened = self.position();
        if self.skip_if(&Token::Open) {
            let inner = self.parse_any(depth + 1)?;
            if !self.skip_if(&Token::Close) {
                return fault(
                    self.position(),
                    format!("expected `)` for the `(` at character {opened}"),
                );
            }
            return Ok(inner);
        }
        let one = self.parse_operand()?;
        let Some(Token::Operator(operator)) = self.peek().cloned() else {
            return fault(
                self.position(),
                "expected a comparison: ==, !=, <, <=, >, >= or ~ (contains)",
            );
        };
        self.at += 1;
        let other = self.parse_operand()?;
        Ok(match (&one, &other) {
            (Operand::Name(..), Operand::Name(word, _)) if one.is_word() => {
                let text = Operand::Literal(Scalar::Text(word.clone()));
                Expression::Comparison(one, operator, text)
            }
            (Operand::Name(word, _), Operand::Name(..)) if other.is_word() => {
                let text = Operand::Literal(Scalar::Text(word.clone()));
                Expression::Comparison(text, operator, other)
            }
            _ => Expression::Comparison(one, operator, other),
        })
    }

    fn parse_operand(&mut self) -> Result<Operand, FilterError> {
        let position = self.position();
        let operand = match self.peek() {
            Some(Token::Name(name)) => Operand::Name(name.clone(), position),
            Some(Token::Literal(scalar)) => Operand::Literal(scalar.clone()),
            _ => return fault(position, "expected a name, a number or a text in quotes"),
        };
        self.at += 1;
        Ok(operand)
    }
}

type Characters<'a> = Peekable<std::iter::Enumerate<CharIndices<'a>>>;

/// Splits an expression into tokens, each with its position.
fn tokenize(text: &str) -> Result<Vec<(Token, usize)>, FilterError> {
    let mut letters = text.char_indices().enumerate().peekable();
    let mut tokens = Vec::new();
    while let Some((place, (at, letter))) = letters.next() {
        let position = place + 1;
        let rest = &text[at..];
        let mut symbol = |token: Token, length: usize| {
            for _ in 1..length {
                letters.next();
            }
            tokens.push((token, position));
        };
        match letter {
            _ if letter.is_whitespace() => {}
            '(' => symbol(Token::Open, 1),
            ')' => symbol(Token::Close, 1),
            '~' => symbol(Token::Operator(Operator::Contains), 1),
            '&' if rest.starts_with("&&") => symbol(Token::And, 2),
            '|' if rest.starts_with("||") => symbol(Token::Or, 2),
            '=' if rest.starts_with("==") => symbol(Token::Operator(Operator::Equal), 2),
            '=' => symbol(Token::Operator(Operator::Equal), 1),
            '!' if rest.starts_with("!=") => symbol(Token::Operator(Operator::Different), 2),
            '!' => symbol(Token::Not, 1),
            '<' if rest.starts_with("<=") => symbol(Token::Operator(Operator::AtMost), 2),
            '<' => symbol(Token::Operator(Operator::Less), 1),
            '>' if rest.starts_with(">=") => symbol(Token::Operator(Operator::AtLeast), 2),
            '>' => symbol(Token::Operator(Operator::More), 1),
            '"' | '\'' => {
                let inner = read_quoted(&mut letters, letter, position)?;
                tokens.push((Token::Literal(Scalar::Text(inner)), position));
            }
            '`' => {
                tokens.push((Token::Name(read_quoted(&mut letters, letter, position)?), position));
            }
            _ if letter.is_ascii_digit() || "+-.".contains(letter) => {
                let number = read_number(rest, position)?;
                for _ in 1..number.1 {
                    letters.next();
                }
                tokens.push((Token::Literal(Scalar::Number(number.0)), position));
            }
            _ if is_name(letter) => {
                let mut name = String::from(letter);
                while let Some((_, (_, next))) = letters.next_if(|(_, (_, next))| is_name(*next)) {
                    name.push(next);
                }
                tokens.push((word_token(name), position));
            }
            other => return fault(position, format!("unexpected {other:?}")),
        }
    }
    Ok(tokens)
}

fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || "_.-/".contains(letter)
}

fn word_token(name: String) -> Token {
    match name.to_ascii_lowercase().as_str() {
        "and" => Token::And,
        "or" => Token::Or,
        "not" => Token::Not,
        "true" => Token::Literal(Scalar::Flag(true)),
        "false" => Token::Literal(Scalar::Flag(false)),
        "null" => Token::Literal(Scalar::Missing),
        _ => Token::Name(name),
    }
}

/// Reads the text up to the closing quote. A backslash escapes the next character.
fn read_quoted(
    letters: &mut Characters<'_>,
    quote: char,
    position: usize,
) -> Result<String, FilterError> {
    let mut inner = String::new();
    while let Some((_, (_, letter))) = letters.next() {
        match letter {
            _ if letter == quote => return Ok(inner),
            '\\' => inner.extend(letters.next().map(|(_, (_, next))| next)),
            _ => inner.push(letter),
        }
    }
    fault(position, format!("the text that begins here has no closing {quote}"))
}

/// Reads a number with its unit of time, if it has one, and returns its length in characters.
fn read_number(text: &str, position: usize) -> Result<(f64, usize), FilterError> {
    let mut length = 0;
    let mut before = ' ';
    for letter in text.chars() {
        let sign = "+-".contains(letter) && (length == 0 || "eE".contains(before));
        if !(letter.is_ascii_digit() || sign || ".eE_".contains(letter)) {
            break;
        }
        length += 1;
        before = letter;
    }
    let written = text[..length].replace('_', "");
    let unit: String = text[length..].chars().take_while(char::is_ascii_alphabetic).collect();
    let Some(value) = written.parse::<f64>().ok().filter(|value| value.is_finite()) else {
        return fault(position, format!("{written:?} is not a number"));
    };
    if unit.is_empty() {
        return Ok((value, length));
    }
    match TIME_UNITS.iter().find(|(name, _)| *name == unit) {
        Some((_, seconds)) => Ok((value * seconds, length + unit.len())),
        None => fault(
            position + length,
            format!("{unit:?} is not a unit of time; expected ms, s, m, h or d"),
        ),
    }
}

#[cfg(test)]
mod tests;
