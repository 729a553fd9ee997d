use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::{AssessorSpec, build};
use super::*;

fn cases() -> Vec<Value> {
    serde_json::from_str(include_str!("../../../../fixtures/tuner/nni_curvefitting.json")).unwrap()
}

fn history(case: &Value) -> Vec<f64> {
    case["history"].as_array().unwrap().iter().map(|n| n.as_f64().unwrap()).collect()
}

fn assessor(class_args: &Value) -> Result<Box<dyn Assessor>, Error> {
    let class_args = class_args.as_object().unwrap().clone();
    AssessorSpec::new("CurveFitting", class_args).and_then(|spec| build(&spec))
}

#[test]
fn forecasts_equal_nnis_within_three_hundredths() {
    for case in cases() {
        let label = case["says"].as_str().unwrap();
        let target = u32::try_from(case["target"].as_u64().unwrap()).unwrap();
        let forecast = forecast_result(&history(&case), target);
        match (forecast.map(|forecast| forecast.value), case["predicted"].as_f64()) {
            (Some(actual), Some(expected)) => {
                assert!((actual - expected).abs() < 0.03, "{label}: {actual}");
            }
            // Here `SciPy` finds no fit for two families that this code can fit.
            (actual, None) => {
                assert!(actual.is_none() || label == "percentages", "{label}: {actual:?}");
            }
            (None, expected) => panic!("{label}: nothing, but {expected:?}"),
        }
    }
}

#[test]
fn most_agreeing_curves_are_the_same_as_in_nni() {
    let (mut shared, mut all) = (0, 0);
    for case in cases() {
        let target = u32::try_from(case["target"].as_u64().unwrap()).unwrap();
        let actual = agreeing_curves(&history(&case), target);
        let expected = case["curves"].as_array().unwrap();
        shared +=
            actual.iter().filter(|curve| expected.iter().any(|c| c == curve.family.name)).count();
        all += actual.len().max(expected.len());
    }
    assert!(shared * 10 >= all * 8, "{shared} of {all}");
}

#[test]
fn a_trial_that_cannot_reach_the_best_is_stopped() {
    let promising = [0.5, 0.65, 0.73, 0.78, 0.81, 0.83];
    let hopeless = [0.1, 0.172, 0.203, 0.21, 0.222, 0.224, 0.229, 0.23];
    let mut assessor = assessor(&json!({"epoch_num": 20, "start_step": 4, "gap": 2})).unwrap();
    // Without a successful trial, no trial is stopped.
    assert_eq!(assessor.assess("t", &hopeless), Assessment::Good);
    assessor.record_end("t", &[0.99], false);
    assert_eq!(assessor.assess("t", &hopeless), Assessment::Good);
    assessor.record_end("t", &[0.5, 0.8], true);
    assessor.record_end("t", &[0.5], true);
    assert_eq!(assessor.assess("t", &promising), Assessment::Good);
    assert_eq!(assessor.assess("t", &hopeless[..3]), Assessment::Good);
    // With a gap of 2, a trial is not judged after seven results.
    assert_eq!(assessor.assess("t", &hopeless[..7]), Assessment::Good);
    let Assessment::Bad { reason } = assessor.assess("t", &hopeless) else { panic!("hopeless") };
    assert!(reason.starts_with("its forecast for step 20 is 0.2"), "{reason}");
    assert!(reason.ends_with("not above 0.760000, 0.95 of the best result 0.8"), "{reason}");
}

#[test]
fn results_that_are_not_finite_are_not_judged() {
    let mut assessor = assessor(&json!({"start_step": 0})).unwrap();
    assessor.record_end("t", &[f64::NAN], true);
    assessor.record_end("t", &[0.9], true);
    for history in [&[][..], &[f64::NAN, 0.1, 0.1, 0.1, 0.1, 0.1], &[0.0; 8], &[f64::INFINITY; 8]] {
        assert_eq!(assessor.assess("t", history), Assessment::Good, "{history:?}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let refused = |args| assessor(&args).unwrap_err().to_string();
    assert_eq!(
        refused(json!({"epochs": 1})),
        "assessor.classArgs.epochs: is not an argument of Curvefitting; \
         allowed: epoch_num, gap, start_step, threshold"
    );
    assert_eq!(
        refused(json!({"gap": 0})),
        "assessor.classArgs.gap: expected an integer of at least 1 and at most 9999, found 0"
    );
}

proptest! {
    #[test]
    fn random_histories_are_judged_without_panic(history: Vec<f64>, best: f64) {
        let mut assessor = assessor(&json!({"start_step": 0})).unwrap();
        assessor.record_end("t", &[best], true);
        drop(assessor.assess("t", &history));
    }
}
