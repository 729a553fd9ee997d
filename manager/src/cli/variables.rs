//! Wrong values of environment variables. `clap` reports them under the flag's name.

use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::error::{ContextKind, ContextValue};

/// Returns the variable that contains the wrong value of an error, unless the value is in the command line.
pub(super) fn variable_of(error: &clap::Error, cli: &Command) -> Option<String> {
    let context = |kind| match error.get(kind) {
        Some(ContextValue::String(text)) => Some(text.as_str()),
        Some(_) | None => None,
    };
    // The form is `--port <PORT>`.
    let flag = context(ContextKind::InvalidArg)?.split(' ').next()?;
    let value = context(ContextKind::InvalidValue)?;
    let is_given = std::env::args_os().any(|word| is_flag(&word, flag));
    let name = variable(cli, flag.strip_prefix("--")?).filter(|_| !is_given)?;
    (std::env::var_os(name)? == OsStr::new(value)).then(|| name.to_string_lossy().into_owned())
}

fn is_flag(word: &OsString, flag: &str) -> bool {
    let rest = word.as_encoded_bytes().strip_prefix(flag.as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(b"="))
}

/// Returns the variable of a flag, which has the same one in all subcommands.
fn variable<'a>(cli: &'a Command, flag: &str) -> Option<&'a OsStr> {
    let own = cli.get_arguments().find(|argument| argument.get_long() == Some(flag));
    let own = own.and_then(clap::Arg::get_env);
    own.or_else(|| cli.get_subcommands().find_map(|command| variable(command, flag)))
}
