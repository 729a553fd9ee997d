//! The sections `tuner`, `assessor` and `advisor`, and the programs that run algorithms that are not built in.

mod advisor_class;
mod nni_class;
pub(super) mod registered;

use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};
use trial_protocol::Direction;

use self::advisor_class::is_advisor;
use self::nni_class::{DirectionUse, direction_use};
use super::direction::{self, AgreedDirection, DirectionStatement, find_agreed_direction};
use super::document::describe_kind;
use super::path_base::PathBase;
use super::section::{Problem, Section, resolve_path};
use crate::advisers::{Algorithm, ClassSource};
use crate::search::assessor::{self, AssessorSpec};
use crate::search::class_args::Arguments;
use crate::search::goals::Goals;
use crate::search::search_space::SearchSpace;
use crate::search::tuner::{self, TunerSpec};
use crate::util::nearest::normalize_name;

/// The tuner.
#[derive(Debug, Clone, PartialEq)]
pub enum TunerChoice {
    /// A built-in tuner.
    BuiltIn(TunerSpec),
    /// A tuner that NNI's dispatcher runs.
    Nni {
        /// The algorithm.
        algorithm: Algorithm,
        /// `true` if the algorithm also stops trials.
        advisor: bool,
    },
    /// A program that uses the ask-and-tell protocol.
    Command {
        /// The program and its arguments.
        command: Vec<String>,
        /// `classArgs`, which the greeting of the program contains.
        class_args: Map<String, Value>,
    },
}

/// The assessor that stops unpromising trials.
#[derive(Debug, Clone, PartialEq)]
pub enum AssessorChoice {
    /// A built-in assessor.
    BuiltIn(AssessorSpec),
    /// An assessor that NNI's dispatcher runs.
    Nni(Algorithm),
}

impl TunerChoice {
    /// Returns the tuner's name for the user.
    pub fn name(&self) -> &str {
        match self {
            Self::BuiltIn(spec) => &spec.name,
            Self::Nni { algorithm, .. } => algorithm.name(),
            Self::Command { command, .. } => command.first().map_or("", String::as_str),
        }
    }

    fn class_args(&self) -> &Map<String, Value> {
        match self {
            Self::BuiltIn(spec) => &spec.class_args,
            Self::Nni { algorithm, .. } => &algorithm.class_args,
            Self::Command { class_args, .. } => class_args,
        }
    }

    /// Returns the direction that NNI assumes if the tuner's arguments name none.
    fn default_direction(&self) -> Result<Direction, tuner::Error> {
        match self {
            Self::BuiltIn(spec) => spec.default_direction(),
            Self::Nni { algorithm, .. } => Ok(match algorithm.direction_use() {
                Some(DirectionUse::Argument(default)) => default,
                Some(DirectionUse::Ignores | DirectionUse::OnlyMaximizes) | None => {
                    Direction::Maximize
                }
            }),
            Self::Command { .. } => Ok(Direction::Maximize),
        }
    }

    /// Passes the experiment's direction to an algorithm that is known to have an `optimize_mode`. The user's own class
    /// receives only the arguments that the user wrote. A program learns the direction from its greeting.
    fn set_direction(&mut self, direction: Direction) {
        match self {
            Self::BuiltIn(spec) => set_optimize_mode(&mut spec.class_args, direction),
            Self::Nni { algorithm, .. } => {
                if let Some(DirectionUse::Argument(_)) = algorithm.direction_use() {
                    set_optimize_mode(&mut algorithm.class_args, direction);
                }
            }
            Self::Command { .. } => {}
        }
    }

    /// Returns the section of the experiment file that names the tuner.
    pub(super) fn section_name(&self) -> &'static str {
        if matches!(self, Self::Nni { advisor: true, .. }) { "advisor" } else { "tuner" }
    }

    /// Returns the user's own class if it does not receive the direction.
    pub(super) fn class_without_mode(&self) -> Option<&str> {
        match self {
            Self::Nni { algorithm, .. } => algorithm.class_without_mode(),
            Self::BuiltIn(_) | Self::Command { .. } => None,
        }
    }

    /// Returns the parameter names that a placeholder `{{name}}` may use. `None`: only the tuner knows them.
    pub(super) fn placeholder_names(&self, space: &SearchSpace) -> Option<Vec<String>> {
        let (batch, own): (_, &[&str]) = match self {
            Self::BuiltIn(spec) => (tuner::batch_names(spec, space), spec.own_parameters()),
            Self::Nni { .. } | Self::Command { .. } => (None, &[]),
        };
        let of_space = || space.names().chain(own.iter().copied()).map(str::to_owned).collect();
        batch.or_else(|| space.is_known().then(of_space))
    }
}

impl AssessorChoice {
    /// Returns the assessor's name for the user.
    pub fn name(&self) -> &str {
        match self {
            Self::BuiltIn(spec) => &spec.name,
            Self::Nni(algorithm) => algorithm.name(),
        }
    }
}

impl AssessorChoice {
    fn class_args(&self) -> &Map<String, Value> {
        match self {
            Self::BuiltIn(spec) => &spec.class_args,
            Self::Nni(algorithm) => &algorithm.class_args,
        }
    }

    /// Returns the user's own class if it does not receive the direction.
    pub(super) fn class_without_mode(&self) -> Option<&str> {
        match self {
            Self::Nni(algorithm) => algorithm.class_without_mode(),
            Self::BuiltIn(_) => None,
        }
    }

    /// Passes the experiment's direction to an assessor that is known to use it. The user's own class receives only the
    /// arguments that the user wrote.
    fn set_direction(&mut self, agreed: AgreedDirection, tuner: &str) -> Result<(), Problem> {
        let AgreedDirection { direction, assumed } = agreed;
        let (class_args, takes, field) = match self {
            Self::BuiltIn(spec) => {
                let takes = spec.has_optimize_mode();
                (&mut spec.class_args, takes, "name")
            }
            Self::Nni(algorithm) => match algorithm.direction_use() {
                Some(DirectionUse::Argument(_)) => (&mut algorithm.class_args, true, "className"),
                Some(DirectionUse::OnlyMaximizes) => {
                    (&mut algorithm.class_args, false, "className")
                }
                Some(DirectionUse::Ignores) | None => return Ok(()),
            },
        };
        if takes {
            set_optimize_mode(class_args, direction);
            return Ok(());
        }
        if direction == Direction::Maximize {
            return Ok(());
        }
        let (name, verb) = (self.name(), direction::verb(direction));
        let problem = if assumed {
            format!(
                "{name} expects results that grow, as NNI's does, and {tuner} {verb} by default; state `objective: {{direction: maximize}}` if greater results are better, otherwise use Medianstop or ASHA"
            )
        } else {
            format!(
                "{name} expects results that grow, as NNI's does, and would stop the best trials of an experiment that {verb}; use Medianstop or ASHA"
            )
        };
        Err(Problem::new(format!("assessor.{field}"), problem))
    }
}

impl Algorithm {
    /// Returns the algorithm's use of the direction. `None`: it is the user's own class.
    fn direction_use(&self) -> Option<DirectionUse> {
        match &self.source {
            // Batch is never run by NNI's dispatcher, and each of NNI's other algorithms has an `optimize_mode`.
            ClassSource::NniName(_) => Some(DirectionUse::Argument(Direction::Maximize)),
            ClassSource::Class { class, .. } => direction_use(class),
        }
    }

    /// Returns whether the algorithm is a class that also stops trials.
    fn is_users_advisor(&self) -> bool {
        match &self.source {
            ClassSource::NniName(_) => false,
            ClassSource::Class { class, code } => is_advisor(class, code),
        }
    }

    /// Returns the class if it is the user's own and does not receive the direction.
    fn class_without_mode(&self) -> Option<&str> {
        let receives_direction = self.direction_use().is_some()
            || self.class_args.get("optimize_mode").is_some_and(|word| !word.is_null());
        (!receives_direction).then(|| self.name())
    }
}

/// Passes several objectives and constraints to the tuner, or returns the reason why the tuner does not support them.
pub(super) fn set_goals(
    goals: &Goals,
    space: &SearchSpace,
    tuner: &mut TunerChoice,
) -> Result<(), Problem> {
    if goals.is_default() {
        return Ok(());
    }
    let TunerChoice::BuiltIn(spec) = tuner else {
        let problem = format!(
            "{} supports only one objective without constraints; with `objectives` or `constraints`, use TPE or NSGA-II, or a tuner that does not learn: Random, QMC, GridSearch, Batch",
            tuner.name()
        );
        return Err(Problem::new("tuner", problem));
    };
    spec.goals = goals.clone();
    // The tuner is built only to check the arguments.
    tuner::build(spec, space, 0).map_err(|error| Problem::new(error.path, error.problem))?;
    Ok(())
}

/// Makes the tuner repeat each of its points this number of times.
pub(super) fn set_repeats(repeats: u64, tuner: &mut TunerChoice) -> Result<(), Problem> {
    if repeats <= 1 {
        return Ok(());
    }
    let problem = match tuner {
        TunerChoice::BuiltIn(spec) if spec.is_population_based() => {
            "cannot be used with PBT, which trains each step of a model once"
        }
        TunerChoice::BuiltIn(spec) => {
            spec.repeats = repeats;
            return Ok(());
        }
        TunerChoice::Nni { .. } | TunerChoice::Command { .. } => {
            "needs a built-in tuner, which learns the mean; your own tuner can propose a point several times itself"
        }
    };
    Err(Problem::new("trialRepeats", problem))
}

fn set_optimize_mode(class_args: &mut Map<String, Value>, direction: Direction) {
    class_args.insert("optimize_mode".to_owned(), json!(direction.as_str()));
}

/// Determines the experiment's direction, and passes it to tuner and assessor.
///
/// `objective` is the value of `objective.direction`, if there is one.
pub(super) fn set_direction(
    objective: Option<DirectionStatement>,
    tuner: &mut TunerChoice,
    mut assessor: Option<&mut AssessorChoice>,
) -> Result<AgreedDirection, Problem> {
    let in_file = |error: tuner::Error| Problem::new(error.path, error.problem);
    let mut statements: Vec<DirectionStatement> = objective.into_iter().collect();
    let sections = [
        ("tuner", Some(tuner.class_args())),
        ("assessor", assessor.as_deref().map(AssessorChoice::class_args)),
    ];
    for (section, class_args) in sections {
        let Some(class_args) = class_args else { continue };
        if let Some(direction) =
            Arguments::new(section, class_args).optimize_mode().map_err(in_file)?
        {
            statements.push(DirectionStatement {
                path: format!("{section}.classArgs.optimize_mode"),
                direction,
            });
        }
    }
    let agreed = find_agreed_direction(&statements, tuner.default_direction().map_err(in_file)?)?;
    tuner.set_direction(agreed.direction);
    if let Some(assessor) = assessor.as_mut() {
        assessor.set_direction(agreed, tuner.name())?;
    }
    Ok(agreed)
}

/// Tuners of NNI whose search spaces may have entries that no other tuner supports.
const TUNERS_WITH_ANY_SPACE: [&str; 3] = ["PPO", "RegularizedEvolutionTuner", "NetworkMorphism"];

/// Returns whether the tuner interprets the search space itself, as the user's own class or program and those of
/// [`TUNERS_WITH_ANY_SPACE`] do. The space is checked before the tuner, so this function reads the tuner's section in
/// advance. If the section names no algorithm, returns `true`, so that its check reports that rather than a problem of
/// the space.
pub(super) fn can_have_any_space(top: &Section) -> bool {
    let section = top.peek("tuner").or_else(|| top.peek("advisor"));
    let Some(members) = section.and_then(Value::as_object) else { return false };
    let name =
        members.iter().find(|(key, value)| normalize_name(key) == "name" && !value.is_null());
    match name {
        None => !members.is_empty(),
        Some((_, name)) => name
            .as_str()
            .and_then(tuner::nni_name)
            .is_some_and(|name| TUNERS_WITH_ANY_SPACE.contains(&name)),
    }
}

/// Reads the section `tuner`, or `advisor`, which is NNI's older name for a tuner that also stops trials.
pub(super) fn read_tuner(
    top: &mut Section,
    space: &SearchSpace,
    base: PathBase<'_>,
) -> Result<TunerChoice, Problem> {
    let (tuner, advisor) = (top.take("tuner"), top.take("advisor"));
    let (section, value) = match (tuner, advisor) {
        (Some(_), Some(_)) => {
            return Err(top.problem("advisor", "is given besides `tuner`; keep one of them"));
        }
        (Some(value), None) => ("tuner", value),
        (None, Some(value)) => ("advisor", value),
        (None, None) => {
            return Err(top.problem("tuner", "is missing; for example {name: Random}"));
        }
    };
    let NamedAlgorithm { source, class_args, mut fields } =
        NamedAlgorithm::read(section, value, base)?;
    let choice = match source {
        AlgorithmSource::Command(command) => TunerChoice::Command { command, class_args },
        AlgorithmSource::Class(source) => {
            let algorithm = Algorithm { source, class_args };
            let advisor = section == "advisor" || algorithm.is_users_advisor();
            TunerChoice::Nni { algorithm, advisor }
        }
        AlgorithmSource::Name(name) => {
            let choice = match tuner::nni_name(&name) {
                Some(name) => {
                    let source = ClassSource::NniName(name.to_owned());
                    let algorithm = Algorithm { source, class_args };
                    TunerChoice::Nni { algorithm, advisor: false }
                }
                None => {
                    TunerChoice::BuiltIn(check_native_tuner(section, &name, class_args, space)?)
                }
            };
            fields.record("name", choice.name());
            choice
        }
    };
    top.record(choice.section_name(), fields.into_canonical());
    if matches!(choice, TunerChoice::Nni { .. }) && space.has_log_integers() {
        let problem = "has a `lograndint`, which NNI's tuners do not support; use `qloguniform` with q 1, or a built-in tuner";
        return Err(Problem::new("searchSpace", problem));
    }
    Ok(choice)
}

/// Returns a built-in tuner after a check of its arguments.
fn check_native_tuner(
    section: &str,
    name: &str,
    class_args: Map<String, Value>,
    space: &SearchSpace,
) -> Result<TunerSpec, Problem> {
    let in_section = |error: tuner::Error| {
        let path = match error.path.strip_prefix("tuner") {
            Some(rest) => format!("{section}{rest}"),
            None => error.path,
        };
        Problem::new(path, error.problem)
    };
    let spec = TunerSpec::new(name, class_args).map_err(in_section)?;
    // The tuner is built only to check the arguments.
    tuner::build(&spec, space, 0).map_err(in_section)?;
    Ok(spec)
}

/// Reads the section `assessor`.
pub(super) fn read_assessor(
    top: &mut Section,
    tuner: &TunerChoice,
    base: PathBase<'_>,
) -> Result<Option<AssessorChoice>, Problem> {
    let Some(value) = top.take("assessor") else { return Ok(None) };
    if let TunerChoice::Nni { advisor: true, .. } = tuner {
        let problem = "is given besides an advisor, which stops trials itself; keep one of them";
        return Err(top.problem("assessor", problem));
    }
    if let TunerChoice::BuiltIn(spec) = tuner
        && spec.is_population_based()
    {
        let problem =
            "is given besides PBT, whose trials must end to leave a checkpoint; leave it out";
        return Err(top.problem("assessor", problem));
    }
    let NamedAlgorithm { source, class_args, mut fields } =
        NamedAlgorithm::read("assessor", value, base)?;
    let choice = match source {
        AlgorithmSource::Command(_) => {
            let problem = "belongs to `tuner`: such a program can also stop trials";
            return Err(Problem::new("assessor.command", problem));
        }
        AlgorithmSource::Class(source) => AssessorChoice::Nni(Algorithm { source, class_args }),
        AlgorithmSource::Name(name) => {
            let in_section = |error: assessor::Error| Problem::new(error.path, error.problem);
            let spec = AssessorSpec::new(&name, class_args).map_err(in_section)?;
            // The assessor is built only to check the arguments.
            assessor::build(&spec).map_err(in_section)?;
            fields.record("name", &spec.name);
            AssessorChoice::BuiltIn(spec)
        }
    };
    if let (AssessorChoice::Nni(_), TunerChoice::Command { .. }) = (&choice, tuner) {
        let problem = "your own class cannot be used beside `tuner.command`; that program can stop trials itself";
        return Err(Problem::new("assessor.className", problem));
    }
    top.record("assessor", fields.into_canonical());
    Ok(Some(choice))
}

/// The variable with the interpreter of files that name none. `nnictl` sets it to its own, as NNI does.
const PYTHON_VARIABLE: &str = "TRIAL_MANAGER_PYTHON";

/// Returns the interpreter that the environment names for files that name none.
pub(super) fn default_interpreter() -> Option<String> {
    std::env::var(PYTHON_VARIABLE).ok().filter(|python| !python.is_empty())
}

/// Reads `pythonInterpreter`: a name to find in `PATH`, or a path relative to the file's folder. Symbolic links are not
/// resolved, because the interpreter of a virtual environment is a link whose name matters. `has_classes`: the file
/// names a class that runs in the interpreter.
pub(super) fn read_interpreter(
    top: &mut Section,
    base: PathBase<'_>,
    has_classes: bool,
) -> Result<Option<String>, Problem> {
    let given = match top.string("pythonInterpreter")? {
        Some(given) => given,
        None => match default_interpreter().filter(|_| has_classes) {
            Some(default) => {
                // A later manager of the experiment may have another environment.
                top.record("pythonInterpreter", &default);
                default
            }
            None => return Ok(None),
        },
    };
    if !given.contains('/') {
        return Ok(Some(given));
    }
    let path = interpreter_path(&given, base);
    if base.is_file_missing(&path) {
        let problem = format!("program {} does not exist", path.display());
        return Err(top.problem("pythonInterpreter", problem));
    }
    let path = path.to_string_lossy().into_owned();
    top.record("pythonInterpreter", &path);
    Ok(Some(path))
}

/// Returns the interpreter as it is started: an absolute path, or a name to find in `PATH`.
pub(super) fn interpreter_path(given: &str, base: PathBase<'_>) -> PathBuf {
    if !given.contains('/') {
        return PathBuf::from(given);
    }
    match std::env::var_os("HOME").filter(|_| given.starts_with("~/")) {
        Some(home) => Path::new(&home).join(given.trim_start_matches("~/")),
        None => base.folder.join(given),
    }
}

/// The fields of an algorithm, in the order of the canonical form.
pub(super) const FIELDS: [&str; 5] = ["name", "className", "codeDirectory", "command", "classArgs"];

/// An algorithm as a section names it.
struct NamedAlgorithm {
    source: AlgorithmSource,
    class_args: Map<String, Value>,
    /// The fields of the section, for its canonical form.
    fields: Section,
}

enum AlgorithmSource {
    Name(String),
    Class(ClassSource),
    Command(Vec<String>),
}

impl NamedAlgorithm {
    fn read(section: &str, value: Value, base: PathBase<'_>) -> Result<Self, Problem> {
        let mut fields = Section::open(section, value, &FIELDS)?;
        let name = fields.string("name")?;
        let class = fields.string("className")?;
        let code = fields.unrecorded_string("codeDirectory")?;
        let command = fields.take("command");
        let class_args = match fields.take("classArgs") {
            None => Map::new(),
            Some(Value::Object(class_args)) => class_args,
            Some(other) => {
                let problem =
                    format!("expected arguments by name, found {}", describe_kind(&other));
                return Err(fields.problem("classArgs", problem));
            }
        };
        fields.record("classArgs", Some(&class_args).filter(|args| !args.is_empty()));
        if code.is_some() && class.is_none() {
            return Err(
                fields.problem("codeDirectory", "belongs to `className`, which is not given")
            );
        }
        let source = match (name, class, command) {
            (Some(_), Some(_), _) => {
                return Err(
                    fields.problem("className", "is given besides `name`; keep one of them")
                );
            }
            (_, Some(_), Some(_)) | (Some(_), _, Some(_)) => {
                let problem = "is given besides the name of an algorithm; keep one of them";
                return Err(fields.problem("command", problem));
            }
            (Some(name), None, None) => AlgorithmSource::Name(name),
            (None, Some(class), None) => {
                if !class.contains('.') {
                    let problem = format!(
                        "expected `module.Class`, found `{class}`: the file's name without `.py`, a dot, the class"
                    );
                    return Err(fields.problem("className", problem));
                }
                let code = resolve_path(code.as_deref().unwrap_or("."), base);
                if base.is_folder_missing(&code) {
                    let problem = format!("{} is not a directory", code.display());
                    return Err(fields.problem("codeDirectory", problem));
                }
                fields.record("codeDirectory", code.to_string_lossy());
                AlgorithmSource::Class(ClassSource::Class { class, code })
            }
            (None, None, Some(command)) => {
                AlgorithmSource::Command(read_command_words(&mut fields, &command)?)
            }
            (None, None, None) => return Err(fields.problem("name", "is missing")),
        };
        Ok(Self { source, class_args, fields })
    }
}

/// Reads a program and its arguments.
fn read_command_words(fields: &mut Section, command: &Value) -> Result<Vec<String>, Problem> {
    let words: Option<Vec<String>> = match command {
        Value::Array(words) => words.iter().map(|word| word.as_str().map(str::to_owned)).collect(),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) | Value::Object(_) => {
            None
        }
    };
    match words.filter(|words| words.first().is_some_and(|program| !program.is_empty())) {
        Some(words) => {
            fields.record("command", &words);
            Ok(words)
        }
        None => {
            let problem = format!(
                "expected a program and its arguments as a list, such as [python3, search.py], found {}",
                describe_kind(command)
            );
            Err(fields.problem("command", problem))
        }
    }
}
