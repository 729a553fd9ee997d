//! PURE: results from elsewhere, in NNI's format (`nnictl experiment import`) or as written by
//! `trial-manager experiment export --format json`. An invalid entry is an error that names its place in the list.

use serde_json::{Map, Value};
use trial_protocol::{Direction, MetricValue};

use super::{Error, Sample, TunerSpec, batch};
use crate::search::goals::Goals;
use crate::search::search_space::{Parameters, SearchSpace};

/// The tuner that receives the results.
#[derive(Debug, Clone, Copy)]
pub struct SampleReceiver<'a> {
    /// The search space.
    pub space: &'a SearchSpace,
    /// The specification of a built-in tuner. `None` for a tuner of the user.
    pub native: Option<&'a TunerSpec>,
    /// The parameters that the tuner adds to those of the space.
    pub own_parameters: &'a [&'a str],
}

/// Reads a list of results. Skips entries without a result, which an export contains for failed trials.
pub fn read_samples(list: &Value, receiver: SampleReceiver<'_>) -> Result<Vec<Sample>, Error> {
    let Value::Array(entries) = list else {
        return fault(String::new(), format!("expected a list of results, found {}", kind(list)));
    };
    let mut found = Vec::new();
    for (place, entry) in entries.iter().enumerate() {
        found.extend(read_sample(entry, &format!("[{place}]"), receiver)?);
    }
    Ok(found)
}

fn read_sample(
    entry: &Value,
    path: &str,
    receiver: SampleReceiver<'_>,
) -> Result<Option<Sample>, Error> {
    let Value::Object(members) = entry else {
        let expected = r#"{"parameter": {...}, "value": ...}"#;
        return fault(path.to_owned(), format!("expected {expected}, found {}", kind(entry)));
    };
    let (name, given) = first_member(members, path, ["parameter", "parameters"])?;
    let path_of = |name: &str| format!("{path}.{name}");
    let Value::Object(parameters) = given else {
        let problem = format!("expected an object of parameters, found {}", kind(given));
        return fault(path_of(name), problem);
    };
    let (result_name, result) = first_member(members, path, ["value", "final"])?;
    if result.is_null() {
        return Ok(None);
    }
    check_parameters(parameters, receiver).map_err(|Error { path: inner, problem }| {
        let dot = if inner.is_empty() { "" } else { "." };
        Error { path: format!("{}{dot}{inner}", path_of(name)), problem }
    })?;
    let goals = receiver.native.map(|spec| &spec.goals).filter(|goals| !goals.is_default());
    match usable_result(result, goals) {
        Some(value) => Ok(Some(Sample { parameters: parameters.clone(), value })),
        None => {
            let expected = match goals {
                Some(goals) => format!("an object with the numbers {}", goals.metrics().join(", ")),
                None => "a number, or an object with the number `default`".to_owned(),
            };
            let problem = format!("expected {expected}, found {result}");
            fault(path_of(result_name), problem)
        }
    }
}

/// Returns the first of two members that exists.
fn first_member<'a>(
    members: &'a Map<String, Value>,
    path: &str,
    names: [&'static str; 2],
) -> Result<(&'static str, &'a Value), Error> {
    let found = names.into_iter().find_map(|name| Some((name, members.get(name)?)));
    found.ok_or_else(|| Error {
        path: path.to_owned(),
        problem: format!("`{}` is missing", names[0]),
    })
}

/// Checks that the space contains the parameters.
fn check_parameters(parameters: &Parameters, receiver: SampleReceiver<'_>) -> Result<(), Error> {
    if receiver.native.is_some_and(|spec| spec.name == "Batch") {
        let sets = batch::parameter_sets(receiver.space)?;
        let known = sets.iter().any(|set| set == parameters);
        return if known { Ok(()) } else { fault(String::new(), "is not a set of the batch") };
    }
    let mut parameters = parameters.clone();
    for name in receiver.own_parameters {
        parameters.shift_remove(*name);
    }
    receiver
        .space
        .validate(&parameters)
        .map_err(|error| Error { path: error.path, problem: error.problem })
}

/// Returns the result if it contains a number for each objective. NNI's exports may contain a result as JSON in a
/// string.
fn usable_result(value: &Value, goals: Option<&Goals>) -> Option<MetricValue> {
    let within = value.as_str().and_then(|text| serde_json::from_str::<Value>(text).ok());
    let value = MetricValue::from(within.unwrap_or_else(|| value.clone()));
    let counts = match goals {
        // Each objective has a direction of its own.
        Some(goals) => goals.merit(&value, Direction::Maximize).is_some(),
        None => value.number().is_some_and(f64::is_finite),
    };
    counts.then_some(value)
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "nothing",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

fn fault<T>(path: String, problem: impl Into<String>) -> Result<T, Error> {
    Err(Error { path, problem: problem.into() })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;
    use crate::search::goals::Objective;

    fn space() -> SearchSpace {
        let space = json!({
            "lr": {"_type": "loguniform", "_value": [0.001, 1]},
            "net": {"_type": "choice", "_value": [
                {"_name": "flat"}, {"_name": "deep", "layers": {"_type": "randint", "_value": [1, 5]}}]}
        });
        SearchSpace::parse(&space).unwrap()
    }

    fn read(list: &Value) -> Result<Vec<Sample>, Error> {
        read_samples(list, SampleReceiver { space: &space(), native: None, own_parameters: &[] })
    }

    #[test]
    fn nnis_format_and_an_export_are_read() {
        let flat = json!({"lr": 0.1, "net": {"_name": "flat"}});
        let list = json!([
            {"parameter": flat, "value": 0.5},
            {"parameter": flat, "value": {"default": 0.25, "loss": 1}, "trialJobId": "abcde"},
            {"parameter": flat, "value": "{\"default\": 0.125}"},
            {"id": "abcde", "state": "SUCCEEDED", "parameters": flat, "final": 2},
            {"id": "fghij", "state": "FAILED", "parameters": flat, "final": null},
        ]);
        let numbers: Vec<_> =
            read(&list).unwrap().iter().map(|sample| sample.value.number()).collect();
        assert_eq!(numbers, [0.5, 0.25, 0.125, 2.0].map(Some));
    }

    #[test]
    fn an_invalid_entry_is_refused_with_its_place() {
        let good = json!({"lr": 0.1, "net": {"_name": "deep", "layers": 2}});
        let with = |lr: Value, layers: Value| json!({"lr": lr, "net": {"_name": "deep", "layers": layers}});
        #[rustfmt::skip]
        let table = [
            (json!({"a": 1}),                                             "", "expected a list of results, found an object"),
            (json!([1]),                                                  "[0]", "expected {\"parameter\": {...}, \"value\": ...}, found a number"),
            (json!([{"value": 1}]),                                       "[0]", "`parameter` is missing"),
            (json!([{"parameter": good}]),                                "[0]", "`value` is missing"),
            (json!([{"parameter": 3, "value": 1}]),                       "[0].parameter", "expected an object of parameters, found a number"),
            (json!([{"parameter": good, "value": "good"}]),               "[0].value", "expected a number, or an object with the number `default`, found \"good\""),
            (json!([{"parameters": good, "final": "NaN"}]),               "[0].final", "expected a number, or an object with the number `default`, found \"NaN\""),
            (json!([{"parameter": good, "value": 1}, {"parameter": with(json!(0.1), json!(9)), "value": 1}]), "[1].parameter.net.layers", "9 is not an integer from 1 to 4"),
            (json!([{"parameter": {"lr": 0.1}, "value": 1}]),             "[0].parameter.net", "is missing"),
        ];
        for (list, path, problem) in table {
            let error = read(&list).unwrap_err();
            assert_eq!((error.path.as_str(), error.problem.as_str()), (path, problem), "{list}");
        }
    }

    #[test]
    fn a_batch_accepts_its_sets_and_a_tuner_its_own_parameters() {
        let sets = json!({"sets": {"_type": "choice", "_value": [{"x": 1}, {"x": 2}]}});
        let batch = SearchSpace::parse(&sets).unwrap();
        let spec = TunerSpec::new("Batch", Map::new()).unwrap();
        let receiver = SampleReceiver { space: &batch, native: Some(&spec), own_parameters: &[] };
        assert_eq!(
            read_samples(&json!([{"parameter": {"x": 2}, "value": 1}]), receiver).unwrap().len(),
            1
        );
        let error =
            read_samples(&json!([{"parameter": {"x": 3}, "value": 1}]), receiver).unwrap_err();
        assert_eq!(error.to_string(), "[0].parameter: is not a set of the batch");
        let given = json!([{"parameter": {"lr": 0.1, "net": {"_name": "flat"}, "TRIAL_BUDGET": 3}, "value": 1}]);
        let space = space();
        let receiver =
            |own_parameters| SampleReceiver { space: &space, native: None, own_parameters };
        assert_eq!(read_samples(&given, receiver(&["TRIAL_BUDGET"])).unwrap().len(), 1);
        assert_eq!(
            read_samples(&given, receiver(&[])).unwrap_err().path,
            "[0].parameter.TRIAL_BUDGET"
        );
    }

    #[test]
    fn results_with_several_objectives_are_read() {
        let objective =
            |metric: &str| Objective { metric: metric.to_owned(), direction: Direction::Minimize };
        let goals =
            Goals { objectives: vec![objective("loss"), objective("size")], ..Goals::default() };
        let spec = TunerSpec { goals, ..TunerSpec::new("TPE", Map::new()).unwrap() };
        let space = space();
        let receiver = SampleReceiver { space: &space, native: Some(&spec), own_parameters: &[] };
        let with = |value: Value| {
            let parameters = json!({"lr": 0.1, "net": {"_name": "flat"}});
            read_samples(&json!([{"parameters": parameters, "final": value}]), receiver)
        };
        let kept = json!({"loss": 1, "size": 2, "default": "Infinity"});
        assert_eq!(with(kept).unwrap().len(), 1);
        let refused = with(json!(1)).unwrap_err().to_string();
        assert_eq!(refused, "[0].final: expected an object with the numbers loss, size, found 1");
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z{}\":0-9]{0,8}".prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 24, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(
                    prop_oneof![
                        Just("parameter".to_owned()),
                        Just("value".to_owned()),
                        Just("lr".to_owned()),
                        Just("net".to_owned()),
                        "[a-z]{1,3}"
                    ],
                    inner,
                    0..4
                )
                .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn any_json_is_read_or_refused(list in any_json()) {
            for sample in read(&list).unwrap_or_default() {
                prop_assert_eq!(space().validate(&sample.parameters), Ok(()));
                prop_assert!(sample.value.number().is_some_and(f64::is_finite));
            }
        }
    }
}
