//! PURE: states each flag of a run once. From a group of flags, [`flags!`] makes the struct of their values, their
//! defaults, their arguments for clap, and their setters for [`plain`](super::plain).

use std::error::Error;
use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{
    BoolishValueParser, EnumValueParser, OsStringValueParser, PathBufValueParser,
    StringValueParser, TypedValueParser, ValueParser,
};
use clap::{Arg, ArgAction, ArgMatches, Command, ValueEnum};

use super::config_file::excluded_setting;

/// The prefix of the agent's variables.
pub(super) const VARIABLE_PREFIX: &str = "TRIALKEEPER_";

/// A flag, apart from its name, its help and its type.
pub(super) struct Flag<P> {
    parser: P,
    pub(super) metadata: FlagMetadata,
}

/// The value name, the default and the separator of a flag.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlagMetadata {
    /// The placeholder for the value in the help. A switch has none.
    value_name: &'static str,
    default: Option<&'static str>,
    /// The character between the values of a list.
    separator: Option<char>,
}

/// Returns a flag whose values `parser` checks and parses.
pub(super) fn value<P: TypedValueParser>(value_name: &'static str, parser: P) -> Flag<P> {
    Flag { parser, metadata: FlagMetadata { value_name, default: None, separator: None } }
}

/// Returns a flag whose values are parsed by their type.
pub(super) fn parsed<T>(value_name: &'static str) -> Flag<impl TypedValueParser<Value = T>>
where
    T: FromStr<Err: Into<Box<dyn Error + Send + Sync>>> + Clone + Send + Sync + 'static,
{
    value(value_name, |text: &str| text.parse::<T>())
}

/// Returns a flag whose values are variants of an enum.
pub(super) fn choice<T>(value_name: &'static str) -> Flag<EnumValueParser<T>>
where
    T: ValueEnum + Clone + Send + Sync + 'static,
{
    value(value_name, EnumValueParser::new())
}

/// Returns a flag whose values are paths.
pub(super) fn path(value_name: &'static str) -> Flag<PathBufValueParser> {
    value(value_name, PathBufValueParser::new())
}

/// Returns a flag whose values are texts.
pub(super) fn text(value_name: &'static str) -> Flag<StringValueParser> {
    value(value_name, StringValueParser::new())
}

/// Returns a flag whose values are texts of any encoding.
pub(super) fn os_text(value_name: &'static str) -> Flag<OsStringValueParser> {
    value(value_name, OsStringValueParser::new())
}

/// Returns a flag without a value. Its variable has one, such as `true`, `on` or `1`.
pub(super) fn switch() -> Flag<BoolishValueParser> {
    value("", BoolishValueParser::new())
}

impl<P: TypedValueParser> Flag<P> {
    /// Sets the text of the default.
    pub(super) fn default(self, text: &'static str) -> Self {
        Self { metadata: FlagMetadata { default: Some(text), ..self.metadata }, ..self }
    }

    /// Sets the character between the values of a list.
    pub(super) fn separated_by(self, separator: char) -> Self {
        Self { metadata: FlagMetadata { separator: Some(separator), ..self.metadata }, ..self }
    }

    /// Parses the values of a field. Returns `None` if one of them is invalid.
    pub(super) fn parse<F: Field<Value = P::Value>>(
        &self,
        command: &Command,
        values: &[&OsStr],
    ) -> Option<F> {
        F::collect(values.iter().map(|value| self.parser.parse_ref(command, None, value).ok()))
    }

    /// Returns clap's argument for the flag `id`. `help` has the lines of a doc comment.
    pub(super) fn argument<F: Field<Value = P::Value>>(self, id: &'static str, help: &str) -> Arg {
        argument(id, help, self.metadata, F::ACTION, ValueParser::new(self.parser))
    }
}

/// Returns the metadata of a field's flag.
pub(super) fn metadata<F, P>(flag: &Flag<P>) -> FlagMetadata
where
    F: Field,
    P: TypedValueParser<Value = F::Value>,
{
    flag.metadata
}

// Generic code is kept short, because each type of value has a copy of it.
fn argument(
    id: &'static str,
    help: &str,
    metadata: FlagMetadata,
    action: ArgAction,
    parser: ValueParser,
) -> Arg {
    let help = help.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    let argument = Arg::new(id)
        .long(id.replace('_', "-"))
        .env(format!("{VARIABLE_PREFIX}{}", id.to_uppercase()))
        .help(help.trim_end_matches('.').to_owned())
        .action(action)
        .value_parser(parser)
        .default_value(metadata.default)
        .value_delimiter(metadata.separator);
    let argument = match metadata.value_name {
        "" => argument,
        name => argument.value_name(name),
    };
    match excluded_setting(id) {
        Some(other) => argument.conflicts_with(other),
        None => argument,
    }
}

/// A type of a field with the values of a flag.
pub(super) trait Field: Sized {
    /// The type of one value.
    type Value: Clone + Send + Sync + 'static;
    /// The effect of an occurrence on earlier ones.
    const ACTION: ArgAction = ArgAction::Set;

    /// Collects the values, each of which is `None` if it is invalid.
    fn collect(values: impl Iterator<Item = Option<Self::Value>>) -> Option<Self>;
}

impl<T: Clone + Send + Sync + 'static> Field for Option<T> {
    type Value = T;

    fn collect(mut values: impl Iterator<Item = Self>) -> Option<Self> {
        values.next()?.map(Some)
    }
}

impl<T: Clone + Send + Sync + 'static> Field for Vec<T> {
    type Value = T;
    const ACTION: ArgAction = ArgAction::Append;

    fn collect(values: impl Iterator<Item = Option<T>>) -> Option<Self> {
        Iterator::collect(values)
    }
}

/// Makes types the types of fields with one value.
macro_rules! single_value {
    ($($type:ty: $action:ident),+) => {$(
        impl $crate::cli::flags::Field for $type {
            type Value = Self;
            const ACTION: clap::ArgAction = clap::ArgAction::$action;

            fn collect(mut values: impl Iterator<Item = Option<Self>>) -> Option<Self> {
                values.next()?
            }
        }
    )+};
}
single_value!(Duration: Set, PathBuf: Set, bool: SetTrue, u64: Set, usize: Set);
pub(super) use single_value;

/// A group of flags.
pub(super) trait FlagGroup {
    /// Returns the flags' ids: their names with underscores.
    fn ids(&self) -> &'static [&'static str];

    /// Returns the metadata of the flag `id`, if the group has it.
    fn metadata(&self, id: &str) -> Option<FlagMetadata>;

    /// Sets the flag `id`. Returns `None` if a value is invalid. `command` is any command: parsers take one for their
    /// errors.
    fn set(&mut self, command: &Command, id: &str, values: &[&OsStr]) -> Option<()>;
}

impl dyn FlagGroup + '_ {
    /// Sets the flag `id` to the value, or to the separated values, of `text`. Returns `None` if clap must judge the
    /// text. This includes switches, which have no value on a command line.
    pub(super) fn set_text(&mut self, command: &Command, id: &str, text: &str) -> Option<()> {
        let metadata = self.metadata(id).filter(|metadata| !metadata.value_name.is_empty())?;
        let values: Vec<&OsStr> = match metadata.separator {
            Some(separator) => text.split(separator).map(OsStr::new).collect(),
            None => vec![OsStr::new(text)],
        };
        self.set(command, id, &values)
    }

    /// Sets all flags that have a default.
    pub(super) fn set_defaults(&mut self) {
        let command = Command::default();
        for id in self.ids() {
            if let Some(default) = self.metadata(id).and_then(|metadata| metadata.default) {
                self.set_text(&command, id, default);
            }
        }
    }

    /// Sets all flags that have a value in `matches`. Clap has already checked the values.
    pub(super) fn set_matches(&mut self, matches: &ArgMatches) {
        let command = Command::default();
        for id in self.ids() {
            if let Some(values) = matches.get_raw(id) {
                self.set(&command, id, &values.collect::<Vec<_>>());
            }
        }
    }
}

/// Declares a group of flags. Each has the form `/// HELP`, `name: Type = FLAG`.
macro_rules! flags {
    ($(#[doc = $about:literal])+ pub struct $group:ident {
        $($(#[doc = $help:literal])+ $id:ident: $type:ty = $flag:expr,)+
    }) => {
        $(#[doc = $about])+
        #[derive(Debug)]
        pub struct $group {
            $($(#[doc = $help])+ pub $id: $type,)+
        }

        impl Default for $group {
            fn default() -> Self {
                let mut group = Self { $($id: Default::default(),)+ };
                let flags: &mut dyn $crate::cli::flags::FlagGroup = &mut group;
                flags.set_defaults();
                group
            }
        }

        impl $crate::cli::flags::FlagGroup for $group {
            fn ids(&self) -> &'static [&'static str] {
                &[$(stringify!($id)),+]
            }

            fn metadata(&self, id: &str) -> Option<$crate::cli::flags::FlagMetadata> {
                match id {
                    $(stringify!($id) => Some($crate::cli::flags::metadata::<$type, _>(&$flag)),)+
                    _ => None,
                }
            }

            fn set(
                &mut self,
                command: &clap::Command,
                id: &str,
                values: &[&std::ffi::OsStr],
            ) -> Option<()> {
                match id {
                    $(stringify!($id) => self.$id = $flag.parse(command, values)?,)+
                    _ => return None,
                }
                Some(())
            }
        }

        impl clap::Args for $group {
            fn augment_args(command: clap::Command) -> clap::Command {
                command$(.arg($flag.argument::<$type>(stringify!($id), concat!($($help, "\n"),+))))+
            }

            fn augment_args_for_update(command: clap::Command) -> clap::Command {
                Self::augment_args(command)
            }
        }

        impl clap::FromArgMatches for $group {
            fn from_arg_matches(matches: &clap::ArgMatches) -> Result<Self, clap::Error> {
                let mut group = Self::default();
                let flags: &mut dyn $crate::cli::flags::FlagGroup = &mut group;
                flags.set_matches(matches);
                Ok(group)
            }

            fn update_from_arg_matches(&mut self, matches: &clap::ArgMatches) -> Result<(), clap::Error> {
                *self = Self::from_arg_matches(matches)?;
                Ok(())
            }
        }
    };
}
pub(super) use flags;
