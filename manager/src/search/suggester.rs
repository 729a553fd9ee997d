//! PURE: a built-in tuner with the messages of `docs/ask-and-tell.md`, as JSON objects. A loop of the user, or another
//! manager, can use it.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Map, Value, json};
use trial_protocol::MetricValue;

use crate::search::search_space::{Parameters, SearchSpace};
use crate::search::tuner::import::{SampleReceiver, read_samples};
use crate::search::tuner::{self, Outcome, Proposal, Tuner, TunerSpec};

/// The reason why a message is refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The first message is not `hello`.
    #[error("the first message must be `hello`, with `search_space`")]
    NoHello,
    /// The message lacks a member.
    #[error("the message `{kind}` needs {needs}")]
    Incomplete {
        /// The type of the message.
        kind: String,
        /// The members that the message needs.
        needs: &'static str,
    },
    /// The tuner cannot be created, or refuses the results.
    #[error(transparent)]
    Tuner(#[from] tuner::Error),
    /// The search space is not valid.
    #[error("search_space{}{}: {problem}", if path.is_empty() { "" } else { "." }, path)]
    Space {
        /// The place in the space.
        path: String,
        /// The problem.
        problem: String,
    },
}

/// A tuner that is controlled by messages.
#[derive(Debug)]
pub struct Suggester {
    name: String,
    search: Option<Search>,
}

/// The state after the `hello` message, which contains the search space.
#[derive(Debug)]
struct Search {
    spec: TunerSpec,
    space: SearchSpace,
    tuner: Box<dyn Tuner>,
    /// The ids of the proposals whose end is not known.
    open_proposals: HashSet<u64>,
    /// The proposals of an earlier process, until the first request. The tuner then adopts them in the order of their
    /// ids.
    earlier_proposals: BTreeMap<u64, (Parameters, Option<Outcome>)>,
}

impl Suggester {
    /// Creates a suggester for the tuner of this name. The first message checks the name.
    pub fn new(name: &str) -> Self {
        Self { name: name.to_owned(), search: None }
    }

    /// Processes a message and returns the answer, if any. Ignores messages of an unknown type.
    pub fn handle_message(&mut self, message: &Value) -> Result<Option<Value>, Error> {
        let kind = message.get("type").and_then(Value::as_str).unwrap_or_default();
        let Some(search) = &mut self.search else {
            if kind != "hello" {
                return Err(Error::NoHello);
            }
            self.search = Some(Search::start(&self.name, message)?);
            return Ok(Some(json!({"type": "ready"})));
        };
        match kind {
            "propose" => search.propose(message).map(Some),
            "launched" => search.adopt(message).map(|()| None),
            "ended" => search.observe(message).map(|()| None),
            "import" => search.import(message),
            _ => Ok(None),
        }
    }
}

impl Search {
    fn start(name: &str, hello: &Value) -> Result<Self, Error> {
        let space = hello.get("search_space").ok_or(Error::NoHello)?;
        let space = SearchSpace::parse(space)
            .map_err(|error| Error::Space { path: error.path, problem: error.problem })?;
        let mut class_args =
            hello.get("class_args").and_then(Value::as_object).cloned().unwrap_or_else(Map::new);
        if let Some(mode) = hello.get("optimize_mode").filter(|mode| mode.is_string()) {
            class_args.entry("optimize_mode").or_insert_with(|| mode.clone());
        }
        let spec = TunerSpec::new(name, class_args)?;
        let seed = hello.get("seed").and_then(Value::as_u64).unwrap_or(0);
        let tuner = tuner::build(&spec, &space, seed)?;
        Ok(Self {
            spec,
            space,
            tuner,
            open_proposals: HashSet::new(),
            earlier_proposals: BTreeMap::new(),
        })
    }

    fn propose(&mut self, message: &Value) -> Result<Value, Error> {
        let id = id_of(message).ok_or_else(|| incomplete(message, "an `id`"))?;
        self.replay();
        Ok(match self.tuner.propose(id) {
            Proposal::Parameters(parameters) => {
                self.open_proposals.insert(id);
                json!({"type": "proposal", "id": id, "parameters": parameters})
            }
            Proposal::Exhausted => json!({"type": "exhausted", "id": id}),
            Proposal::Wait => json!({"type": "wait", "id": id}),
        })
    }

    /// Stores a proposal of an earlier process. Ignores a proposal of this process.
    fn adopt(&mut self, message: &Value) -> Result<(), Error> {
        let needs = "an `id` or `null`, and `parameters`";
        let parameters = message.get("parameters").and_then(Value::as_object);
        let parameters = parameters.ok_or_else(|| incomplete(message, needs))?;
        if let Some(id) = id_of(message).filter(|id| !self.open_proposals.contains(id)) {
            self.earlier_proposals.entry(id).or_insert_with(|| (parameters.clone(), None));
        }
        Ok(())
    }

    fn observe(&mut self, message: &Value) -> Result<(), Error> {
        let state = message.get("state").and_then(Value::as_str);
        let state = state.ok_or_else(|| incomplete(message, "a `state`"))?;
        let value = MetricValue::from(message.get("value").cloned().unwrap_or(Value::Null));
        let is_result =
            state == "SUCCEEDED" && value.number().is_some_and(|number| !number.is_nan());
        let outcome = if is_result { Outcome::Result(value) } else { Outcome::Failed };
        // Ignored: without an id, the trial is not from a proposal. Further ends of a known trial are ignored, too.
        let Some(id) = id_of(message) else { return Ok(()) };
        if self.open_proposals.remove(&id) {
            self.tuner.observe(id, &outcome);
        } else if let Some((_, end @ None)) = self.earlier_proposals.get_mut(&id) {
            *end = Some(outcome);
        }
        Ok(())
    }

    /// Imports results from elsewhere. Only a message with an `id` gets an answer, which confirms or refuses the
    /// results.
    fn import(&mut self, message: &Value) -> Result<Option<Value>, Error> {
        let receiver = SampleReceiver {
            space: &self.space,
            native: Some(&self.spec),
            own_parameters: self.spec.own_parameters(),
        };
        let list = message.get("samples").unwrap_or(&Value::Null);
        match (read_samples(list, receiver), message.get("id")) {
            (Ok(samples), id) => {
                self.tuner.import(&samples);
                Ok(id.map(|id| json!({"type": "imported", "id": id, "count": samples.len()})))
            }
            (Err(error), Some(id)) => {
                Ok(Some(json!({"type": "refused", "id": id, "problem": error.to_string()})))
            }
            (Err(error), None) => Err(error.into()),
        }
    }

    /// Passes the proposals of an earlier process to the tuner: first all parameters, then all outcomes.
    fn replay(&mut self) {
        let earlier = std::mem::take(&mut self.earlier_proposals);
        for (id, (parameters, _)) in &earlier {
            self.tuner.adopt(*id, parameters);
        }
        for (id, (_, end)) in earlier {
            match end {
                Some(outcome) => self.tuner.observe(id, &outcome),
                None => drop(self.open_proposals.insert(id)),
            }
        }
    }
}

fn id_of(message: &Value) -> Option<u64> {
    message.get("id").and_then(Value::as_u64)
}

fn incomplete(message: &Value, needs: &'static str) -> Error {
    let kind = message.get("type").and_then(Value::as_str).unwrap_or_default();
    Error::Incomplete { kind: kind.chars().take(40).collect(), needs }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn greet(tuner: &str) -> (Suggester, Value) {
        let hello = json!({
            "type": "hello", "seed": 3, "optimize_mode": "minimize",
            "search_space": {"x": {"_type": "uniform", "_value": [0, 1]}},
        });
        (Suggester::new(tuner), hello)
    }

    fn start_suggester(tuner: &str) -> Suggester {
        let (mut suggester, hello) = greet(tuner);
        assert_eq!(suggester.handle_message(&hello).unwrap(), Some(json!({"type": "ready"})));
        suggester
    }

    fn propose(suggester: &mut Suggester, id: u64) -> Value {
        let answer =
            suggester.handle_message(&json!({"type": "propose", "id": id})).unwrap().unwrap();
        assert_eq!((&answer["type"], &answer["id"]), (&json!("proposal"), &json!(id)));
        answer["parameters"].clone()
    }

    fn end_message(id: u64, value: &Value) -> Value {
        json!({"type": "ended", "id": id, "state": "SUCCEEDED", "value": value})
    }

    #[test]
    fn a_replayed_search_continues_like_an_uninterrupted_one() {
        let mut lived = start_suggester("TPE");
        let mut told = Vec::new();
        for id in 0..30 {
            let parameters = propose(&mut lived, id);
            let loss = json!((parameters["x"].as_f64().unwrap() - 0.3).powi(2));
            lived.handle_message(&end_message(id, &loss)).unwrap();
            told.push(json!({"type": "launched", "id": id, "parameters": parameters}));
            told.push(end_message(id, &loss));
        }
        let mut resumed = start_suggester("TPE");
        for message in &told {
            assert_eq!(resumed.handle_message(message).unwrap(), None);
        }
        for id in 30..33 {
            assert_eq!(propose(&mut resumed, id), propose(&mut lived, id));
        }
    }

    #[test]
    fn an_exhausted_space_is_reported() {
        let mut grid = Suggester::new("GridSearch");
        let space = json!({"x": {"_type": "choice", "_value": [1]}});
        grid.handle_message(&json!({"type": "hello", "search_space": space})).unwrap();
        assert_eq!(propose(&mut grid, 0), json!({"x": 1}));
        let answer = grid.handle_message(&json!({"type": "propose", "id": 1})).unwrap().unwrap();
        assert_eq!(answer, json!({"type": "exhausted", "id": 1}));
    }

    #[test]
    fn an_import_with_an_id_is_answered() {
        let mut tpe = start_suggester("TPE");
        let import = |x: f64| json!({"type": "import", "id": 0, "samples": [{"parameters": {"x": x}, "value": 1}]});
        let imported = tpe.handle_message(&import(0.5)).unwrap().unwrap();
        assert_eq!(imported, json!({"type": "imported", "id": 0, "count": 1}));
        let refused = tpe.handle_message(&import(7.0)).unwrap().unwrap();
        assert_eq!(refused["type"], "refused");
        assert!(refused["problem"].as_str().unwrap().contains("[0].parameters.x"), "{refused}");
    }

    #[test]
    fn an_invalid_message_is_refused_with_the_reason() {
        let refusal = |tuner: &str, message: Value| {
            Suggester::new(tuner).handle_message(&message).unwrap_err().to_string()
        };
        assert!(refusal("TPE", json!({"type": "propose", "id": 0})).contains("hello"));
        assert!(refusal("TPEE", greet("").1).contains("TPE"));
        let space = json!({"x": {"_type": "unifrom", "_value": [0, 1]}});
        let message = refusal("TPE", json!({"type": "hello", "search_space": space}));
        assert!(message.starts_with("search_space.x"), "{message}");
    }

    fn any_message() -> impl Strategy<Value = Value> {
        let kind = prop_oneof![
            Just("propose"),
            Just("launched"),
            Just("ended"),
            Just("import"),
            Just("hello"),
            Just("end"),
            Just("?")
        ];
        let id = prop_oneof![
            (0..4_u64).prop_map(Value::from),
            Just(Value::Null),
            Just(Value::from(-1)),
            Just(Value::from("1"))
        ];
        let value = prop_oneof![
            Just(Value::Null),
            any::<f64>().prop_map(Value::from),
            Just(Value::from("NaN")),
            Just(json!([1]))
        ];
        let parameters = prop_oneof![
            Just(json!({"x": 0.5})),
            Just(json!({})),
            Just(json!({"x": "a"})),
            Just(Value::Null)
        ];
        (kind, id, value, parameters).prop_map(|(kind, id, value, parameters)| {
            json!({
                "type": kind, "id": id, "value": value, "parameters": parameters, "state": "SUCCEEDED",
                "samples": [{"parameters": parameters, "value": value}],
            })
        })
    }

    proptest! {
        #[test]
        fn random_messages_never_panic(messages in prop::collection::vec(any_message(), 0..12)) {
            let mut suggester = start_suggester("TPE");
            for message in messages {
                drop(suggester.handle_message(&message));
            }
        }
    }
}
