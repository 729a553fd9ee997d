//! PURE: `{{name}}` in a trial command. The parameter's value replaces the placeholder. The value is quoted for `bash`
//! and for a plain `sh`, so that the shell passes on exactly that value. The placeholder may be unquoted, within
//! quotes, or within `$(...)` or backquotes. Here-documents are not recognised: a value in one is quoted like any
//! unquoted one.
//!
//! `{{FC_...}}` is left for `FrameworkController`. Text in braces that is not a name, as in `{{ $1 }}`, is not changed.

use serde_json::Value;

use crate::search::search_space::Parameters;
use crate::util::nearest::suggest_names;
use crate::util::shell;

/// Replaces every `{{name}}` that names one of the parameters. A string is inserted as its text, any other value as
/// JSON.
pub fn render_command(command: &str, parameters: &Parameters) -> String {
    let mut shell = ShellPosition::default();
    let mut rendered = String::with_capacity(command.len() + 32);
    for piece in split_at_placeholders(command) {
        match piece {
            CommandPart::Text(text) => {
                text.chars().for_each(|c| shell.read(c));
                rendered.push_str(text);
            }
            CommandPart::Name { name, whole, next } => match parameters.get(name) {
                Some(value) => {
                    rendered.push_str(&shell.quote(&value_text(value), next));
                    shell.continue_word();
                }
                None => {
                    whole.chars().for_each(|c| shell.read(c));
                    rendered.push_str(whole);
                }
            },
        }
    }
    rendered
}

/// Refuses a command with a placeholder that names no parameter, or that has no end.
pub(super) fn check_placeholders(command: &str, names: &[&str]) -> Result<(), String> {
    for piece in split_at_placeholders(command) {
        if let CommandPart::Text(text) = piece
            && let Some((_, opened)) = text.rsplit_once("{{")
        {
            let opened = opened.trim_start();
            let end = opened.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
            let name = &opened[..end.unwrap_or(opened.len())];
            // Any other name may belong to another template language.
            if names.contains(&name) {
                return Err(format!("{{{{{name} is not closed; write {{{{{name}}}}}"));
            }
        }
        if let CommandPart::Name { name, whole, .. } = piece
            && !names.contains(&name)
            && is_identifier(name)
            && !name.starts_with("FC_")
        {
            let advice = suggest_names(name, names.iter().copied());
            return Err(format!("{whole} names no parameter of the search space; {advice}"));
        }
    }
    Ok(())
}

enum CommandPart<'a> {
    Text(&'a str),
    /// A `{{name}}`, and the character after it.
    Name {
        name: &'a str,
        whole: &'a str,
        next: Option<char>,
    },
}

/// Splits a command at its placeholders.
fn split_at_placeholders(command: &str) -> impl Iterator<Item = CommandPart<'_>> {
    let mut rest = command;
    std::iter::from_fn(move || {
        if rest.is_empty() {
            return None;
        }
        let (start, end, name) = find_placeholder(rest).unwrap_or((rest.len(), rest.len(), ""));
        if start > 0 {
            let (text, after) = rest.split_at(start);
            rest = after;
            return Some(CommandPart::Text(text));
        }
        let (whole, after) = rest.split_at(end);
        rest = after;
        Some(CommandPart::Name { name, whole, next: after.chars().next() })
    })
}

/// Returns the start and end of the first placeholder, and its name.
fn find_placeholder(text: &str) -> Option<(usize, usize, &str)> {
    let close = text.find("}}")?;
    let Some(open) = text[..close].rfind("{{") else {
        let (start, end, name) = find_placeholder(&text[close + 2..])?;
        return Some((close + 2 + start, close + 2 + end, name));
    };
    Some((open, close + 2, text[open + 2..close].trim()))
}

fn is_identifier(name: &str) -> bool {
    let mut characters = name.chars();
    characters.next().is_some_and(|c| c.is_ascii_alphabetic() || c == '_')
        && characters.all(|c| c.is_ascii_alphanumeric() || c == '_')
}

/// Returns the text of a value in a command.
fn value_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::Array(_) | Value::Object(_) => {
            value.to_string()
        }
    }
}

/// The position of a reader in a shell command.
#[derive(Debug, Default)]
struct ShellPosition {
    /// The quotes around this position, outermost first. The list is empty at the top level.
    quotes: Vec<QuoteKind>,
    /// Set if the last character was a backslash that escapes the next.
    escaped: bool,
    /// Set if the last character was a `$` that a `(` or a quote may follow.
    after_dollar: bool,
    word: WordPosition,
}

/// The position of a reader in a word.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum WordPosition {
    /// Before a word, where `#` starts a comment.
    #[default]
    Before,
    /// Inside a word.
    Inside,
    /// Inside a word, after an open brace, where commas and `..` are special to `bash`.
    Braces,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum QuoteKind {
    Single,
    /// `$'...'`, in which `bash` interprets backslashes.
    Escapes,
    Double,
    Comment,
    Backquotes,
    /// `(...)` or `$(...)`.
    Parentheses,
}

impl ShellPosition {
    fn read(&mut self, c: char) {
        let dollar = std::mem::take(&mut self.after_dollar);
        if std::mem::take(&mut self.escaped) {
            self.continue_word();
            return;
        }
        let place = self.quotes.last().copied();
        match (place, c) {
            (Some(QuoteKind::Single | QuoteKind::Escapes), '\'')
            | (Some(QuoteKind::Double), '"')
            | (Some(QuoteKind::Backquotes), '`')
            | (Some(QuoteKind::Parentheses), ')') => {
                self.quotes.pop();
            }
            (Some(QuoteKind::Comment), '\n') => {
                self.quotes.pop();
            }
            (Some(QuoteKind::Single | QuoteKind::Comment), _) => return,
            (_, '\\') => self.escaped = true,
            (Some(QuoteKind::Escapes), _) => return,
            (_, '`') => self.enter_quotes(QuoteKind::Backquotes),
            (_, '"') => self.enter_quotes(QuoteKind::Double),
            (_, '(') if dollar || place != Some(QuoteKind::Double) => {
                self.enter_quotes(QuoteKind::Parentheses);
            }
            // `$$` is the shell's process id, and starts no expansion.
            (_, '$') => self.after_dollar = !dollar,
            (Some(QuoteKind::Double), _) => return,
            (_, '\'') if dollar => self.enter_quotes(QuoteKind::Escapes),
            (_, '\'') => self.enter_quotes(QuoteKind::Single),
            (_, '#') if self.word == WordPosition::Before => self.enter_quotes(QuoteKind::Comment),
            _ => {}
        }
        self.word = match c {
            ' ' | '\t' | '\n' | ';' | '&' | '|' | '<' | '>' | '(' => WordPosition::Before,
            // After an opening backquote, a new word starts. A closing one is part of a word.
            '`' if self.quotes.last() == Some(&QuoteKind::Backquotes) => WordPosition::Before,
            '{' => WordPosition::Braces,
            _ if self.word == WordPosition::Before => WordPosition::Inside,
            _ => self.word,
        };
    }

    fn enter_quotes(&mut self, place: QuoteKind) {
        self.quotes.push(place);
    }

    fn continue_word(&mut self) {
        self.escaped = false;
        self.after_dollar = false;
        if self.word == WordPosition::Before {
            self.word = WordPosition::Inside;
        }
    }

    /// Returns the text that the shell reads as `value` at this position.
    fn quote(&self, value: &str, next: Option<char>) -> String {
        let mut text = match self.quotes.last() {
            Some(QuoteKind::Single) => shell::escape_single_quotes(value),
            // The value gets its own pair of quotes, because a plain `sh` does not support `$'...'` and would keep a
            // backslash.
            Some(QuoteKind::Escapes) => format!("''{}'$'", shell::escape_single_quotes(value)),
            Some(QuoteKind::Double) => escape(value, &['\\', '"', '$', '`']),
            Some(QuoteKind::Comment) => value.replace('\n', " "),
            None | Some(QuoteKind::Backquotes | QuoteKind::Parentheses) => {
                if is_bare(value, self.word, next) { value.to_owned() } else { shell::quote(value) }
            }
        };
        // Backquotes remove one layer of backslashes from their content.
        for _ in self.quotes.iter().filter(|place| **place == QuoteKind::Backquotes) {
            text = escape(&text, &['\\', '`', '$']);
        }
        text
    }
}

/// Returns whether every shell leaves an unquoted value unchanged.
fn is_bare(value: &str, word: WordPosition, next: Option<char>) -> bool {
    const KEYWORDS: [&str; 17] = [
        "if", "then", "else", "elif", "fi", "do", "done", "case", "esac", "while", "until", "for",
        "in", "time", "function", "select", "coproc",
    ];
    let is_harmless = |c: char| c.is_ascii_alphanumeric() || "_-+.,:/@%".contains(c);
    let redirection = matches!(next, Some('<' | '>')) && value.bytes().all(|b| b.is_ascii_digit());
    !value.is_empty()
        && value.chars().all(is_harmless)
        && !redirection
        && match word {
            WordPosition::Before => !KEYWORDS.contains(&value),
            WordPosition::Inside => true,
            WordPosition::Braces => !value.contains(',') && !value.contains(".."),
        }
}

/// Inserts a backslash before some characters.
fn escape(text: &str, special: &[char]) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        if special.contains(&c) {
            escaped.push('\\');
        }
        escaped.push(c);
    }
    escaped
}

#[cfg(test)]
mod tests;
