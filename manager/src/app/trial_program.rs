//! Checks whether the program of a trial's command exists on this machine, without running it. If the shell
//! determines the program, it reports nothing: a false alarm is worse than a missed error.

use crate::advisers;
use crate::config::ExperimentSpec;

/// Words that a shell executes itself, or that precede the actual program.
const SHELL_WORDS: &[&str] = &[
    ".", ":", "alias", "bg", "bind", "break", "builtin", "caller", "case", "cd", "command",
    "compgen", "complete", "continue", "coproc", "declare", "dirs", "disown", "do", "done", "echo",
    "elif", "else", "enable", "esac", "eval", "exec", "exit", "export", "false", "fg", "fi", "for",
    "function", "getopts", "hash", "help", "history", "if", "jobs", "kill", "let", "local", "popd",
    "printf", "pushd", "pwd", "read", "readonly", "return", "select", "set", "shift", "shopt",
    "source", "test", "then", "time", "times", "trap", "true", "type", "typeset", "ulimit",
    "umask", "unalias", "unset", "until", "wait", "while", "in",
];

/// Looks up the program of the trials' command, and returns its name and the problem, if any. `None` if the program
/// cannot be determined.
pub fn find_trial_program(spec: &ExperimentSpec) -> Option<(String, Result<(), String>)> {
    if !spec.training_service.section().is_local() {
        return None;
    }
    let program = required_program(&spec.trial_command)?;
    let found = advisers::find_program(program, &spec.trial_code_directory);
    let found = found.map_err(|problem| {
        format!("{problem}; correct `trialCommand` (`trial.command` in a version 1 file)")
    });
    Some((program.to_owned(), found))
}

/// Returns a warning if the script that the trials' command names is not in the code directory. `None` also if the
/// script cannot be determined.
pub fn missing_script_warning(spec: &ExperimentSpec) -> Option<String> {
    if !spec.training_service.section().is_local() {
        return None;
    }
    let script = required_script(&spec.trial_command)?;
    let folder = &spec.trial_code_directory;
    let is_missing = folder.is_dir() && !folder.join(script).exists();
    is_missing.then(|| {
        format!(
            "`trialCommand` runs {script}, which does not exist in {}; correct the name or `trialCodeDirectory`",
            folder.display()
        )
    })
}

/// Returns the Python script without which a shell command certainly fails.
fn required_script(line: &str) -> Option<&str> {
    let program = required_program(line)?.rsplit('/').next()?;
    let version = program.strip_prefix("python")?;
    if !version.chars().all(|c| c.is_ascii_digit() || c == '.') {
        return None;
    }
    // `-u` and `-B` take no value. Another option may name a module in place of a script.
    let script = line.split_whitespace().skip(1).find(|word| !matches!(*word, "-u" | "-B"))?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./+-".contains(c);
    let stem = script.strip_suffix(".py")?;
    (!stem.is_empty() && !stem.starts_with('-') && stem.chars().all(plain)).then_some(script)
}

/// Returns the program without which a shell command certainly fails. `None` if the command is too complex to tell.
fn required_program(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let end = line.find(|c: char| c.is_whitespace() || "|;&<>()".contains(c));
    let (word, rest) = line.split_at(end.unwrap_or(line.len()));
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./+-".contains(c);
    if word.is_empty() || word.starts_with('-') || !word.chars().all(plain) {
        return None;
    }
    // Another command in the line may succeed although the first one fails. `2>&1` and `&&` do not have this effect.
    let rest = rest.replace("&&", "").replace(">&", "");
    let fails_with_it = !rest.contains(['|', ';', '&', '(', '\n']);
    (fails_with_it && !SHELL_WORDS.contains(&word)).then_some(word)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_script_is_returned_only_if_the_command_certainly_fails_without_it() {
        #[rustfmt::skip]
        let table = [
            ("python3 train.py --lr {{lr}}",     Some("train.py")),
            ("python3 -u sub/train.py 2>&1",     Some("sub/train.py")),
            ("/usr/bin/python3.12 /opt/t.py",    Some("/opt/t.py")),
            ("python a.py && python b.py",       Some("a.py")),
            ("python3 -m package.train",         None),
            ("python3 -c pass x.py",             None),
            ("python3 {{script}}.py",            None),
            ("python3 $SCRIPT.py",               None),
            ("python3 train.py || true",         None),
            ("curl -O host/a.py && python3 a.py", None),
            ("python3 'my train.py'",            None),
            ("bash train.sh",                    None),
            ("python-config x.py",               None),
        ];
        for (line, script) in table {
            assert_eq!(required_script(line), script, "{line}");
        }
    }

    #[test]
    fn a_program_is_returned_only_if_the_command_certainly_fails_without_it() {
        #[rustfmt::skip]
        let table = [
            ("pyhton3 train.py --lr {{lr}}",    Some("pyhton3")),
            ("  ./train.sh",                    Some("./train.sh")),
            ("/opt/bin/train-it 2>&1",          Some("/opt/bin/train-it")),
            ("python3 a.py && python3 b.py",    Some("python3")),
            ("env X=1 python3 a.py",            Some("env")),
            ("",                                None),
            ("cd x && ./train",                 None),
            ("X=1 python3 a.py",                None),
            ("$PYTHON a.py",                    None),
            ("'my program' a",                  None),
            ("{{program}} a.py",                None),
            ("~/bin/train",                     None),
            ("nvidia-smi || true",              None),
            ("module load cuda; python3 a.py",  None),
            ("setup\npython3 a.py",             None),
            ("train() { python3 a.py; }; train", None),
            ("exec python3 a.py",               None),
            ("while true; do python3 a; done",  None),
            ("echo score=1",                    None),
            ("# a comment",                     None),
        ];
        for (line, program) in table {
            assert_eq!(required_program(line), program, "{line}");
        }
    }
}
