//! PURE: points that the user adds. Parameters without a value are drawn from the search space. The draw depends only
//! on the seed and the number of the point.

use rand::SeedableRng as _;
use rand_chacha::ChaCha8Rng;

use super::search_space::{Error, Parameters, SearchSpace};

/// Completes `given` to a point of the space. With `sets`, the parameter sets of a batch, returns the first set that
/// contains `given`.
pub fn complete_point(
    given: &Parameters,
    space: &SearchSpace,
    sets: Option<&[Parameters]>,
    seed: u64,
    number: u64,
) -> Result<Parameters, Error> {
    if let Some(sets) = sets {
        let matches =
            |set: &&Parameters| given.iter().all(|(name, value)| set.get(name) == Some(value));
        return sets.iter().find(matches).cloned().ok_or_else(|| Error {
            path: "searchSpace".to_owned(),
            problem: "no set of the batch has these values".to_owned(),
        });
    }
    if !space.is_known() {
        return Ok(given.clone());
    }
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    // A stream that no tuner uses: the streams of tuners begin at 0.
    rng.set_stream(u64::MAX - number);
    let mut point = space.sample(&mut rng);
    if let Some(error) = given.keys().find_map(|name| dotted_name_error(name, &point)) {
        return Err(error);
    }
    for (name, value) in given {
        point.insert(name.clone(), value.clone());
    }
    space.validate(&point)?;
    Ok(point)
}

/// Returns an error if `name` is a member of a nested choice, as tables show it. `drawn` is an example of a point.
fn dotted_name_error(name: &str, drawn: &Parameters) -> Option<Error> {
    let (choice, _) = name.split_once('.').filter(|_| !drawn.contains_key(name))?;
    let example = drawn.get(choice).filter(|value| value.is_object())?;
    let problem = format!(
        "is a member of the nested choice `{choice}`; set all its members together, such as {choice}={example}"
    );
    Some(Error { path: name.to_owned(), problem })
}

/// Parses a value from a form or the command line: as JSON if possible, otherwise as the text itself.
pub fn parse_written_value(text: &str) -> serde_json::Value {
    let text = text.trim();
    serde_json::from_str(text).unwrap_or_else(|_| serde_json::Value::from(text))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn space() -> SearchSpace {
        let space = json!({
            "lr": {"_type": "loguniform", "_value": [0.001, 0.1]},
            "activation": {"_type": "choice", "_value": ["relu", "tanh"]},
        });
        SearchSpace::parse(&space).unwrap()
    }

    fn object(value: &Value) -> Parameters {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn missing_parameters_are_drawn_the_same_for_the_same_seed() {
        let given = object(&json!({"lr": 0.01}));
        let one = complete_point(&given, &space(), None, 7, 3).unwrap();
        assert_eq!(one["lr"], json!(0.01));
        assert!(["relu", "tanh"].contains(&one["activation"].as_str().unwrap()));
        assert_eq!(complete_point(&given, &space(), None, 7, 3).unwrap(), one);
    }

    #[test]
    fn a_point_outside_the_space_is_refused_with_its_parameter() {
        for (given, path) in [
            (json!({"lr": 7.0}), "lr"),
            (json!({"rate": 0.01}), "rate"),
            (json!({"activation": "gelu"}), "activation"),
        ] {
            let error = complete_point(&object(&given), &space(), None, 0, 0).unwrap_err();
            assert_eq!(error.path, path, "{error}");
        }
    }

    #[test]
    fn a_member_of_a_nested_choice_is_refused_with_an_example() {
        let sgd = json!({"_name": "sgd", "momentum": {"_type": "choice", "_value": [0.9]}});
        let space = json!({"optimizer": {"_type": "choice", "_value": [sgd]}, "a.b": {"_type": "choice", "_value": [1]}});
        let space = SearchSpace::parse(&space).unwrap();
        let refused =
            complete_point(&object(&json!({"optimizer._name": "sgd"})), &space, None, 0, 0);
        let expected = "optimizer._name: is a member of the nested choice `optimizer`; set all its members together, such as \
                        optimizer={\"_name\":\"sgd\",\"momentum\":0.9}";
        assert_eq!(refused.unwrap_err().to_string(), expected);
        assert!(complete_point(&object(&json!({"a.b": 1})), &space, None, 0, 0).is_ok());
    }

    #[test]
    fn a_point_of_a_batch_is_the_first_set_that_matches() {
        let sets = [object(&json!({"a": 1, "b": 2})), object(&json!({"a": 3, "b": 4}))];
        let given = object(&json!({"b": 4}));
        assert_eq!(complete_point(&given, &space(), Some(&sets), 0, 0).unwrap(), sets[1]);
        assert!(complete_point(&object(&json!({"b": 5})), &space(), Some(&sets), 0, 0).is_err());
    }

    #[test]
    fn a_value_is_parsed_as_json_if_possible() {
        let table = [
            ("0.01", json!(0.01)),
            ("relu", json!("relu")),
            ("\"3\"", json!("3")),
            ("[1, 2]", json!([1, 2])),
        ];
        for (text, value) in table {
            assert_eq!(parse_written_value(text), value);
        }
    }
}
