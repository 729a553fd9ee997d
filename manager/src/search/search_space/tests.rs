use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use serde_json::{Value, json};

use super::normal::{standard_cdf, standard_quantile};
use super::*;

fn nni_vectors(part: &str) -> Vec<Value> {
    let all: Value =
        serde_json::from_str(include_str!("../../../fixtures/config/nni_vectors.json")).unwrap();
    all[part].as_array().unwrap().clone()
}

fn space(json: &Value) -> SearchSpace {
    SearchSpace::parse(json).unwrap()
}

fn object(json: &Value) -> Parameters {
    json.as_object().unwrap().clone()
}

fn draw_parameters(space: &SearchSpace, seed: u64, count: usize) -> Vec<Parameters> {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    (0..count).map(|_| space.sample(&mut rng)).collect()
}

#[test]
fn a_bound_that_is_a_text_is_its_number() {
    let lr = |low: Value, high: Value| json!({"_type": "loguniform", "_value": [low, high]});
    let given = json!({
        "lr": lr(json!("1e-4"), json!(" .1")),
        "n": {"_type": "randint", "_value": ["0", 5]},
        "word": {"_type": "choice", "_value": ["1e-4", "5"]},
        "net": {"_type": "choice", "_value": [{"_name": "1", "lr": lr(json!("1E-4"), json!(0.1))}]},
    });
    let expected = json!({
        "lr": lr(json!(0.0001), json!(0.1)),
        "n": {"_type": "randint", "_value": [0, 5]},
        "word": {"_type": "choice", "_value": ["1e-4", "5"]},
        "net": {"_type": "choice", "_value": [{"_name": "1", "lr": lr(json!(0.0001), json!(0.1))}]},
    });
    assert_eq!(space(&given).as_json(), &expected);
}

#[test]
fn coordinates_have_the_same_values_as_in_nni() {
    for case in nni_vectors("convert") {
        let space = space(&json!({"x": case["space"]}));
        let internal = &case["internal"];
        let at = match space.dimensions()[0].domain.options() {
            None => Coordinate::Real(internal.as_f64().unwrap()),
            Some(_) => Coordinate::Index(internal.as_u64().unwrap()),
        };
        let value = &space.parameters(&[Some(at)])["x"];
        // Compared as text, because an integer must stay an integer and a value rounded by `q` must be a float.
        assert_eq!(value.to_string(), case["value"].to_string(), "{case}");
    }
}

#[test]
fn draws_have_the_same_distributions_as_in_nni() {
    for case in nni_vectors("quantiles") {
        let space = space(&json!({"x": case["space"]}));
        let mut values: Vec<f64> =
            draw_parameters(&space, 3, 20_000).iter().map(|p| p["x"].as_f64().unwrap()).collect();
        values.sort_by(f64::total_cmp);
        for pair in case["at"].as_array().unwrap() {
            let (p, expected) = (pair[0].as_f64().unwrap(), pair[1].as_f64().unwrap());
            // The rank of NNI's value among the draws. For a discrete distribution, it is an interval.
            let share = |count: usize| f64::from(u32::try_from(count).unwrap()) / 20_000.0;
            let below = share(values.partition_point(|v| *v < expected));
            let through = share(values.partition_point(|v| *v <= expected));
            assert!(below - 0.015 <= p && p <= through + 0.015, "{case}: {below} {p} {through}");
        }
    }
}

#[test]
fn exactly_the_search_spaces_that_are_invalid_in_nni_are_refused() {
    for case in nni_vectors("valid") {
        let parsed = SearchSpace::parse(&case["space"]);
        assert_eq!(parsed.is_ok(), case["valid"], "{case}: {parsed:?}");
    }
}

#[test]
fn an_error_names_the_entry_and_the_allowed_content() {
    #[rustfmt::skip]
    let table = [
        (json!({}),                                                        "searchSpace: is empty; name at least one parameter"),
        (json!([1]),                                                       "searchSpace: expected an object of parameters, found a list"),
        (json!({"lr": 0.1}),                                               "lr: expected {\"_type\": ..., \"_value\": [...]}, found 0.1; for a constant use {\"_type\": \"choice\", \"_value\": [0.1]}"),
        (json!({"lr": [1, 2]}),                                            "lr: expected {\"_type\": ..., \"_value\": [...]}, found a list; for a choice between these values use {\"_type\": \"choice\", \"_value\": [1,2]}"),
        (json!({"lr": {"_type": "uniform"}}),                              "lr: `_value` is missing"),
        (json!({"lr": {"type": "uniform", "value": [0, 1]}}),              "lr.type: unknown; did you mean `_type`? Only `_type` and `_value` belong here"),
        (json!({"opt": {"lr": {"_type": "uniform", "_value": [0, 1]}}}),   "opt.lr: is a parameter inside a parameter; only the options of a `choice` may have their own"),
        (json!({"c": {"_type": "choice", "_value": [{"_name": "a"}, {"lr": {"_type": "uniform", "_value": [0, 1]}}]}}), "c._value[1]: has no `_name`; in a nested choice every option is an object with `_name`"),
        (json!({"lr": {"_type": "float", "_value": [0, 1]}}),              "lr._type: `float` is not a type; here it is `uniform`"),
        (json!({"lr": {"_type": "int", "_value": [0, 1]}}),                "lr._type: `int` is not a type; here it is `randint`, whose high end is not included"),
        (json!({"lr": {"_type": "categorical", "_value": [0, 1]}}),        "lr._type: `categorical` is not a type; here it is `choice`"),
        (json!({"lr": {"_type": "unifrom", "_value": [0, 1]}}),            "lr._type: `unifrom` is not a type; did you mean `uniform`? Allowed: choice, randint, lograndint, uniform, quniform, loguniform, qloguniform, normal, qnormal, lognormal, qlognormal"),
        (json!({"lr": {"_type": "uniform", "_value": [0, "b"]}}),          "lr._value[1]: expected a number, [low, high]; found the string \"b\""),
        (json!({"lr": {"_type": "uniform", "_value": [0, true]}}),         "lr._value[1]: expected a number, [low, high]; found true"),
        (json!({"lr": {"_type": "quniform", "_value": [0, 1]}}),           "lr._value: expected 3 numbers, [low, high, q]; found 2"),
        (json!({"lr": {"_type": "quniform", "_value": [0, 1, 0]}}),        "lr._value[2]: q must be greater than 0"),
        (json!({"lr": {"_type": "uniform", "_value": [1, 0]}}),            "lr._value: the low end 1 must be less than the high end 0"),
        (json!({"lr": {"_type": "uniform", "_value": [1, 1]}}),            "lr._value: the low end 1 must be less than the high end 1; for a constant, use a `choice` with one option"),
        (json!({"lr": {"_type": "loguniform", "_value": [0, 1]}}),         "lr._value[0]: the low end of a loguniform must be greater than 0"),
        (json!({"n": {"_type": "randint", "_value": [2, 2]}}),             "n._value: contains no integer: 2 <= x < 2; high is not included"),
        (json!({"n": {"_type": "lograndint", "_value": [0, 9]}}),          "n._value[0]: the low end of a lograndint must be at least 1"),
        (json!({"n": {"_type": "lograndint", "_value": [3, 3]}}),          "n._value: contains no integer: 3 <= x < 3; high is not included"),
        (json!({"n": {"_type": "normal", "_value": [2, 0]}}),              "n._value[1]: sigma must be greater than 0"),
        (json!({"n": {"_type": "lognormal", "_value": [1000, 1]}}),        "n._value[0]: mu is the mean of the logarithm; above 709 the values overflow"),
        (json!({"c": {"_type": "choice", "_value": []}}),                  "c._value: is empty; a choice needs at least one option"),
        (json!({"c": {"_type": "choice", "_value": [{"_name": "a"}, 2]}}), "c._value[1]: has no `_name`; in a nested choice every option is an object with `_name`"),
        (json!({"c": {"_type": "choice", "_value": [{"_name": "a"}, {"_name": "a"}]}}), "c._value[1]._name: two options have the name `a`"),
        (json!({"c": {"_type": "choice", "_value": [{"_name": "a", "k": {"_type": "choice", "_value": [{"_name": "b", "z": 3}]}}]}}),
            "c._value[0].k._value[0].z: expected {\"_type\": ..., \"_value\": [...]}, found 3; for a constant use {\"_type\": \"choice\", \"_value\": [3]}"),
        (json!({"c": {"_type": "choice", "_value": [1], "_values": 2}}),   "c._values: unknown; did you mean `_value`? Only `_type` and `_value` belong here"),
    ];
    for (json, message) in table {
        assert_eq!(SearchSpace::parse(&json).unwrap_err().to_string(), message, "{json}");
    }
}

fn two_levels() -> SearchSpace {
    space(&json!({
        "net": {"_type": "choice", "_value": [
            {"_name": "none"},
            {"_name": "deep", "act": {"_type": "choice", "_value": [
                {"_name": "relu"},
                {"_name": "leaky", "slope": {"_type": "uniform", "_value": [0.01, 0.3]}}]}}]},
        "lr": {"_type": "loguniform", "_value": [0.001, 0.1]}
    }))
}

#[test]
fn nested_choices_of_two_levels_are_drawn_unlike_in_nni_which_crashes() {
    let space = two_levels();
    let seen: std::collections::BTreeSet<String> =
        draw_parameters(&space, 5, 60).iter().map(|p| shape(&p["net"])).collect();
    assert_eq!(seen.into_iter().collect::<Vec<_>>(), ["deep leaky slope", "deep relu", "none"]);
}

fn shape(net: &Value) -> String {
    let mut words = vec![net["_name"].as_str().unwrap()];
    if let Some(act) = net.get("act") {
        words.push(act["_name"].as_str().unwrap());
        words.extend(act.get("slope").map(|_| "slope"));
    }
    words.join(" ")
}

#[test]
fn sizes_count_the_different_parameter_sets() {
    #[rustfmt::skip]
    let table = [
        (json!({"a": {"_type": "choice", "_value": [1, 2, 2]}, "b": {"_type": "randint", "_value": [0, 5]}}), Some(10)),
        (json!({"a": {"_type": "quniform", "_value": [0, 10, 2.5]}}),    Some(5)),
        (json!({"a": {"_type": "quniform", "_value": [2, 10, 5]}}),      Some(3)),
        (json!({"a": {"_type": "quniform", "_value": [1, 2, 10]}}),      Some(1)),
        (json!({"a": {"_type": "qloguniform", "_value": [1, 100, 10]}}), Some(11)),
        (json!({"a": {"_type": "lograndint", "_value": [1, 1025]}}),     Some(1024)),
        (json!({"a": {"_type": "lograndint", "_value": [7, 8]}}),        Some(1)),
        (json!({"a": {"_type": "qnormal", "_value": [0, 1, 1]}}),        None),
        (json!({"a": {"_type": "uniform", "_value": [0, 1]}}),           None),
        (json!({"a": {"_type": "choice", "_value": [{"_name": "x"}, {"_name": "y", "k": {"_type": "choice", "_value": [1, 2, 3]}}]}}), Some(4)),
    ];
    for (json, size) in table {
        assert_eq!(space(&json).size(), size, "{json}");
    }
}

#[test]
fn foreign_parameters_are_refused_with_their_path() {
    let space = two_levels();
    #[rustfmt::skip]
    let table = [
        (json!({"net": {"_name": "none"}, "lr": 0.01}),                          None),
        (json!({"net": {"_name": "deep", "act": {"_name": "relu"}}, "lr": 0.1}), None),
        (json!({"net": {"_name": "none"}}),                                      Some("lr: is missing")),
        (json!({"net": {"_name": "none"}, "lr": 0.2}),                           Some("lr: 0.2 is not from 0.001 to 0.1")),
        (json!({"net": {"_name": "none"}, "lr": "high"}),                        Some("lr: \"high\" is not a number, from 0.001 to 0.1")),
        (json!({"net": {"_name": "none"}, "lr": 0.01, "l": 1}),                  Some("l: is not a parameter; did you mean `lr`? Allowed: net, lr")),
        (json!({"net": "deep", "lr": 0.01}),                                     Some("net: expected an object whose `_name` is one of none, deep")),
        (json!({"net": {"_name": "deep", "act": {"_name": "leaky", "slope": 7}}, "lr": 0.01}), Some("net.act.slope: 7 is not from 0.01 to 0.3")),
        (json!({"net": {"_name": "none", "act": {}}, "lr": 0.01}),               Some("net.act: is not a parameter; allowed: ")),
    ];
    for (parameters, message) in table {
        let refused = space.validate(&object(&parameters)).err().map(|e| e.to_string());
        assert_eq!(refused.as_deref(), message, "{parameters}");
    }
}

#[test]
fn options_without_a_name_are_constants() {
    let given = json!({"opt": {"_type": "choice", "_value": [
        {"lr": {"_type": "uniform", "_value": ["1e-4", 1]}}, {"lr": 0.1}, {}, [1], null,
    ]}});
    let space = space(&given);
    assert_eq!(space.as_json(), &given);
    let options = given["opt"]["_value"].as_array().unwrap();
    assert!(draw_parameters(&space, 1, 50).iter().all(|drawn| options.contains(&drawn["opt"])));
    assert!(space.choices_of_unnamed_spaces().eq(["opt"]));
}

#[test]
fn log_integers_are_integers_with_a_uniform_logarithm() {
    let space = space(&json!({"n": {"_type": "lograndint", "_value": [1, 1025]}}));
    let drawn = draw_parameters(&space, 4, 4000);
    let drawn: Vec<i64> = drawn.iter().map(|p| p["n"].as_i64().unwrap()).collect();
    assert!(drawn.iter().all(|n| (1..=1024).contains(n)));
    // Half of the doublings from 1 to 1024 lie below 32. Both ends are drawn.
    let below = drawn.iter().filter(|n| **n < 32).count();
    assert!((1900..2400).contains(&below), "{below} of 4000");
    assert!(drawn.iter().filter(|n| **n == 1).count() > 200 && drawn.iter().any(|n| *n > 1000));
    for (value, problem) in [
        (json!(1.5), Some("n: 1.5 is not an integer from 1 to 1024")),
        (json!(2000), Some("n: 2000 is not an integer from 1 to 1024")),
        (json!("8"), Some("n: \"8\" is not an integer from 1 to 1024")),
        (json!(8.0), None),
    ] {
        let refused = space.validate(&object(&json!({"n": value}))).err();
        assert_eq!(refused.map(|error| error.to_string()).as_deref(), problem);
    }
}

#[test]
fn the_normal_quantile_inverts_the_distribution_function() {
    for p in [1e-300, 1e-20, 1e-6, 0.02, 0.25, 0.4999, 0.5] {
        let x = standard_quantile(p);
        assert!((standard_cdf(x) / p - 1.0).abs() < 1e-12, "{p}: {x}");
        assert!(p < 1e-15 || (standard_quantile(1.0 - p) + x).abs() < 1e-9, "{p}");
    }
    // SciPy 1.17: sqrt(2) * erfinv(-0.5).
    assert!((standard_quantile(0.25) + 0.674_489_750_196_081_7).abs() < 1e-15);
    assert!(standard_quantile(0.5).abs() < f64::EPSILON);
}

/// Generates any valid entry that is not nested.
fn any_entry() -> impl Strategy<Value = Value> {
    let bounds =
        (-1e6..1e6, 1e-3..1e6, 1e-3..1e3).prop_map(|(low, width, q)| (low, low + width, q));
    let positive =
        (1e-6..1e3, 1e-3..1e3, 1e-3..1e3).prop_map(|(low, width, q)| (low, low + width, q));
    let entry = |kind: &str, value: Value| json!({"_type": kind, "_value": value});
    prop_oneof![
        prop::collection::vec(any::<i32>(), 1..5).prop_map(move |v| entry("choice", json!(v))),
        (-1000_i32..1000, 1_i32..100).prop_map(move |(a, n)| entry("randint", json!([a, a + n]))),
        (1_i32..1000, 1_i32..10_000).prop_map(move |(a, n)| entry("lograndint", json!([a, a + n]))),
        bounds.clone().prop_map(move |(a, b, _)| entry("uniform", json!([a, b]))),
        bounds.prop_map(move |(a, b, q)| entry("quniform", json!([a, b, q]))),
        positive.clone().prop_map(move |(a, b, _)| entry("loguniform", json!([a, b]))),
        positive.prop_map(move |(a, b, q)| entry("qloguniform", json!([a, b, q]))),
        (-1e3..1e3, 1e-3..1e3).prop_map(move |(m, s)| entry("normal", json!([m, s]))),
        (-1e3..1e3, 1e-3..1e3, 1e-2..1e2)
            .prop_map(move |(m, s, q)| entry("qnormal", json!([m, s, q]))),
        (-9.0..9.0, 1e-3..5.0).prop_map(move |(m, s)| entry("lognormal", json!([m, s]))),
        (-9.0..9.0, 1e-3..5.0, 1e-2..1e2)
            .prop_map(move |(m, s, q)| entry("qlognormal", json!([m, s, q]))),
    ]
}

fn any_space() -> impl Strategy<Value = Value> {
    let nested = (any_entry(), any_entry()).prop_map(|(a, b)| {
        json!({"_type": "choice", "_value": [{"_name": "p"}, {"_name": "q", "a": a, "b": b}]})
    });
    prop::collection::btree_map("[a-z]{1,4}", prop_oneof![4 => any_entry(), 1 => nested], 1..5)
        .prop_map(|entries| json!(entries))
}

/// Generates any JSON.
fn any_json() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        prop::sample::select(vec!["choice", "randint", "quniform", "lognormal", "x"])
            .prop_map(Value::from),
    ];
    let key = prop::sample::select(vec!["_type", "_value", "_name", "x", ""]);
    leaf.prop_recursive(6, 40, 4, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(key.clone(), inner, 0..4).prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    #[test]
    fn a_search_space_that_is_accepted_is_never_empty(json in any_json()) {
        if let Ok(space) = SearchSpace::parse(&json) {
            prop_assert!(space.size() != Some(0));
            drop(space.validate(&draw_parameters(&space, 1, 1)[0]));
        }
    }

    #[test]
    fn every_draw_is_valid_and_survives_a_round_trip(json in any_space(), seed: u64) {
        let space = space(&json);
        for parameters in draw_parameters(&space, seed, 4) {
            let text = serde_json::to_string(&parameters).unwrap();
            let back: Parameters = serde_json::from_str(&text).unwrap();
            let point = space.locate(&back).unwrap();
            for ((name, value), (_, again)) in parameters.iter().zip(&space.parameters(&point)) {
                prop_assert!(is_close(value, again), "{}: {} {}", name, value, again);
            }
        }
    }

    #[test]
    fn the_same_seed_draws_the_same(json in any_space(), seed: u64) {
        let space = space(&json);
        prop_assert_eq!(draw_parameters(&space, seed, 3), draw_parameters(&space, seed, 3));
    }

    #[test]
    fn draws_respect_the_bounds(low in -1e9..1e9, width in 1e-9..1e9, q in 1e-9..1e9, seed: u64) {
        let space = space(&json!({
            "u": {"_type": "uniform", "_value": [low, low + width]},
            "q": {"_type": "quniform", "_value": [low, low + width, q]},
            "l": {"_type": "loguniform", "_value": [width, width * 2.0]},
        }));
        let drawn = &draw_parameters(&space, seed, 1)[0];
        let number = |name: &str| drawn[name].as_f64().unwrap();
        prop_assert!((low..=low + width).contains(&number("u")));
        prop_assert!((low..=low + width).contains(&number("q")));
        prop_assert!((width..=width * 2.0).contains(&number("l")));
    }
}

/// Returns whether two values are equal except for the last digits of a logarithm.
fn is_close(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|((k, a), (l, b))| k == l && is_close(a, b))
        }
        _ => match (a.as_f64(), b.as_f64()) {
            (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * a.abs().max(1.0),
            _ => a == b,
        },
    }
}
