//! PURE: finds variables with the agent's prefix that set nothing. Most of them are misspelt.

use std::ffi::{OsStr, OsString};

use clap::Command;
use clap::error::{ContextKind, ContextValue};

use super::flags::VARIABLE_PREFIX;
use super::plain::has_agent_prefix;

/// Variables that set no flag but are legitimate. These are a keeper's version for old managers, and the variables of a
/// trial, which may itself run a keeper. They also include those that a plugin passes to its jobs, and those of this
/// project's tests. A name that ends with `_` is a prefix.
#[rustfmt::skip]
const KNOWN_VARIABLES: [&str; 10] =
    ["NNI_VERSION", "PARAMETERS_FILE", "PARAM_", "RANK", "REPORTS_FILE", "RUN", "WORLD_SIZE", "PLUGIN", "FAULT", "TEST_"];

/// Returns a warning for each of the variables `names` that has the agent's prefix but sets nothing.
pub(super) fn warnings(
    command: &mut Command,
    names: impl IntoIterator<Item = OsString>,
) -> Vec<String> {
    let mut names: Vec<_> = names.into_iter().filter(|name| has_agent_prefix(name)).collect();
    names.sort();
    let services: Vec<_> = names.iter().filter_map(service).collect();
    let unknown = names.iter().filter(|name| !is_known(command, name) && !is_link(name, &services));
    let unknown: Vec<_> = unknown.map(|name| name.to_string_lossy()).collect();
    unknown.iter().map(|name| warning(command, name)).collect()
}

fn warning(command: &mut Command, name: &str) -> String {
    let meant = name.strip_prefix(VARIABLE_PREFIX).and_then(|rest| nearest(command, rest));
    let meant = meant.map(|meant| format!("; did you mean {meant}?")).unwrap_or_default();
    format!("the variable {name} is unknown{meant}")
}

fn is_known(command: &Command, name: &OsStr) -> bool {
    let mut flags = command.get_subcommands().flat_map(Command::get_arguments);
    let rest = &name.as_encoded_bytes()[VARIABLE_PREFIX.len()..];
    let is = |known: &str| {
        rest == known.as_bytes() || known.ends_with('_') && rest.starts_with(known.as_bytes())
    };
    flags.any(|flag| flag.get_env() == Some(name)) || KNOWN_VARIABLES.into_iter().any(is)
}

/// Returns the prefix of a Service's variables, if `name` is its `_SERVICE_HOST`, which every Service has. Kubernetes
/// sets these variables in every pod; a Service may be called `trialkeeper`.
fn service(name: &OsString) -> Option<&[u8]> {
    name.as_encoded_bytes().strip_suffix(b"_SERVICE_HOST")
}

/// Returns whether the variable describes one of `services`: `_SERVICE_PORT_HTTP`, `_PORT`, `_PORT_80_TCP_ADDR`, ...
fn is_link(name: &OsStr, services: &[&[u8]]) -> bool {
    let forms: [&[u8]; 2] = [b"_SERVICE_", b"_PORT"];
    let rests =
        services.iter().filter_map(|service| name.as_encoded_bytes().strip_prefix(*service));
    rests.into_iter().any(|rest| forms.iter().any(|form| rest.starts_with(form)))
}

/// Returns the variable of the flag `rest`, or of the flag that clap suggests for it.
fn nearest(command: &mut Command, rest: &str) -> Option<String> {
    let flag = format!("--{}", rest.to_lowercase().replace('_', "-"));
    let refusal = command.try_get_matches_from_mut(["trialkeeper", "run", &flag]).err()?;
    let flag = match refusal.get(ContextKind::SuggestedArg) {
        Some(ContextValue::String(meant)) => meant,
        _ => &flag,
    };
    let mut flags = command.find_subcommand("run")?.get_arguments();
    let meant = flags.find(|arg| arg.get_long() == flag.strip_prefix("--"))?;
    Some(meant.get_env()?.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::super::Cli;
    use super::*;

    #[test]
    fn misspelt_variables_are_reported_with_a_suggestion() {
        #[rustfmt::skip]
        let table = [
            ("TRIALKEEPER_MANGER",      Some("; did you mean TRIALKEEPER_MANAGER?")),
            ("TRIALKEEPER_OUTPUTDIR",   Some("; did you mean TRIALKEEPER_OUTPUT_DIR?")),
            ("TRIALKEEPER_TOKEN",       Some("; did you mean TRIALKEEPER_TOKEN_FILE?")),
            ("TRIALKEEPER_manager",     Some("; did you mean TRIALKEEPER_MANAGER?")),
            ("TRIALKEEPER_ZZ",          Some("")),
            ("TRIALKEEPER_",            Some("")),
            ("TRIALKEEPER_MANAGER",     None),
            ("TRIALKEEPER_GPU_PROGRAM", None),
            ("TRIALKEEPER_NNI_VERSION", None),
            ("TRIALKEEPER_RUN",         None),
            ("TRIALKEEPER_PARAM_x",     None),
            ("TRIALKEEPER_TEST_IMAGE",  None),
            ("TRIALKEEPERS",            None),
            ("PATH",                    None),
        ];
        for (name, expected) in table {
            let warnings = warnings(&mut Cli::command(), [name.into()]);
            let expected = expected.map(|meant| format!("the variable {name} is unknown{meant}"));
            assert_eq!(warnings, Vec::from_iter(expected), "{name}");
        }
    }

    #[test]
    fn the_variables_of_a_service_called_trialkeeper_are_not_settings() {
        // The variables that Kubernetes sets for Services called `trialkeeper` and `trialkeeper-pod`, with a port
        // `http` and a port without a name.
        let forms = [
            "SERVICE_HOST",
            "SERVICE_PORT",
            "SERVICE_PORT_HTTP",
            "PORT",
            "PORT_80_TCP",
            "PORT_80_TCP_PROTO",
            "PORT_80_TCP_PORT",
            "PORT_80_TCP_ADDR",
            "PORT_53_UDP",
        ];
        let names = ["TRIALKEEPER", "TRIALKEEPER_POD", "TRIALKEEPER_MANAGER"]
            .map(|service| forms.map(|form| OsString::from(format!("{service}_{form}"))));
        let mut command = Cli::command();
        let flags = command.get_subcommands().flat_map(Command::get_arguments);
        let flags: Vec<_> = flags.filter_map(|flag| Some(flag.get_env()?.to_owned())).collect();
        let names = names.concat();
        assert!(names.iter().all(|name| !flags.contains(name)), "a link is taken for a setting");
        assert_eq!(warnings(&mut command, names), Vec::<String>::new());
        // Without the variables of a Service, the name is a mistake.
        assert_eq!(warnings(&mut command, ["TRIALKEEPER_PORT".into()]).len(), 1);
    }
}
