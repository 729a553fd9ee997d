//! PURE: the arguments with which NNI's client starts its manager.
//!
//! Source: nni 3.0, `nni/experiment/launcher.py` (`_start_rest_server_process`).

use std::path::PathBuf;

use trial_protocol::{ExperimentId, IdError};

/// An action on the experiment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Action {
    /// Run a new experiment, which the client posts.
    Create,
    /// Continue an interrupted experiment.
    Resume,
    /// Only show the experiment.
    View,
}

/// The arguments of NNI's client.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Arguments {
    pub(super) port: u16,
    pub(super) id: ExperimentId,
    pub(super) action: Action,
    /// `true` if the client says that all trials run on this machine.
    pub(super) local: bool,
    /// Folder of all experiments.
    pub(super) data_dir: PathBuf,
    /// `true` if the manager prints on the terminal.
    pub(super) foreground: bool,
    pub(super) url_prefix: Option<String>,
    /// The Python interpreter of the client.
    pub(super) python_interpreter: Option<String>,
}

/// A problem with the arguments.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Error {
    /// A required argument is missing.
    #[error(
        "{0} is missing; only NNI's client starts this command, see `python -m trialkeeper.nni`"
    )]
    Missing(&'static str),
    /// The value of an argument is not valid.
    #[error("{argument} {value}: expected {expected}")]
    Value {
        /// The name of the argument.
        argument: &'static str,
        /// The value.
        value: String,
        /// The allowed values.
        expected: &'static str,
    },
    /// The id of the experiment is not valid.
    #[error("--experiment-id")]
    Id(#[from] IdError),
}

impl Arguments {
    /// Parses the arguments. Ignores Node's own arguments, which come first, and pairs that this manager does not need.
    pub(super) fn parse(words: &[String]) -> Result<Self, Error> {
        let find = |name: &str| {
            let at = words.iter().position(|word| word == name)?;
            words.get(at + 1).map(String::as_str)
        };
        let need = |name: &'static str| find(name).ok_or(Error::Missing(name));
        let bad = |argument: &'static str, value: &str, expected: &'static str| Error::Value {
            argument,
            value: value.to_owned(),
            expected,
        };
        let port = need("--port")?;
        let action = match need("--action")? {
            "create" => Action::Create,
            "resume" => Action::Resume,
            "view" => Action::View,
            other => return Err(bad("--action", other, "create, resume or view")),
        };
        Ok(Self {
            port: port
                .parse()
                .ok()
                .filter(|port| *port > 0)
                .ok_or_else(|| bad("--port", port, "a number from 1 to 65535"))?,
            id: ExperimentId::new(need("--experiment-id")?)?,
            action,
            local: find("--mode") == Some("local"),
            data_dir: PathBuf::from(need("--experiments-directory")?),
            foreground: find("--foreground") == Some("true"),
            url_prefix: find("--url-prefix").map(str::to_owned),
            python_interpreter: find("--python-interpreter").map(str::to_owned),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<Arguments, Error> {
        Arguments::parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn the_arguments_of_nnis_client_are_read() {
        let line = "--max-old-space-size=4096 --trace-uncaught /p/main.js --port 8080 --experiment-id a1b2c3d4 \
                    --action create --mode local --experiments-directory /home/u/nni-experiments --log-level info \
                    --foreground false --url-prefix pre/fix --python-interpreter /usr/bin/python3";
        let expected = Arguments {
            port: 8080,
            id: ExperimentId::new("a1b2c3d4").unwrap(),
            action: Action::Create,
            local: true,
            data_dir: "/home/u/nni-experiments".into(),
            foreground: false,
            url_prefix: Some("pre/fix".to_owned()),
            python_interpreter: Some("/usr/bin/python3".to_owned()),
        };
        assert_eq!(parse(line), Ok(expected));
    }

    #[test]
    fn bad_arguments_are_named() {
        let good = "--port 1 --experiment-id a --action view --experiments-directory /d";
        assert!(parse(good).is_ok());
        #[rustfmt::skip]
        let table = [
            ("",                                       "--port is missing"),
            ("--port",                                 "--port is missing"),
            ("--port 1 --action create",               "--experiment-id is missing"),
            ("--port 1 --action destroy",              "--action destroy: expected create, resume or view"),
            ("--port 70000 --action view",             "--port 70000: expected a number"),
            ("--port 0 --action view",                 "--port 0: expected a number"),
            ("--port 1 --action view --experiment-id ../x", "--experiment-id"),
        ];
        for (line, message) in table {
            let error = parse(line).unwrap_err().to_string();
            assert!(error.contains(message), "{line}: {error}");
        }
    }
}
