//! Tests of the assessor's rules: the rule that an agent receives, and the fate of a trial that the agent stops by it.

use serde_json::Map;
use trial_protocol::{Direction, StopRule, StopWhen};

use super::*;
use crate::search::assessor::{self, AssessorSpec};

fn step_body(sequence: u64, value: f64) -> ReportBody {
    ReportBody::Metric(Metric {
        name: "default".to_owned(),
        kind: MetricKind::Intermediate,
        sequence,
        value: value.into(),
        derived: false,
    })
}

async fn start_assessed_search() -> TestBed {
    let spec = AssessorSpec::new("Medianstop", Map::new()).unwrap();
    TestBed::with_trials(2, Some(assessor::build(&spec).unwrap())).await
}

/// Runs the first trial to its end within this number of seconds, and returns the second one after its first step.
async fn start_second_trial(bed: &TestBed, seconds: u64) -> TrialRow {
    let first = bed.begin_trial().await;
    bed.send(&first, 1, vec![step_body(0, 0.5), step_body(1, 0.7)]).await;
    for _ in 0..seconds / 25 {
        bed.pass_time(25).await;
        bed.send(&first, 3, Vec::new()).await;
    }
    bed.send(&first, 3, vec![result_body(0.7), ended_body(Cause::Succeeded)]).await;
    bed.end_job(&first);
    let second = bed.begin_trial().await;
    bed.send(&second, 1, vec![step_body(0, 0.55)]).await;
    second
}

/// Returns the assessor's rule among the directives for a trial's agent.
async fn find_assessor_rule(bed: &TestBed, trial: &TrialRow) -> Option<(u64, StopRule)> {
    let ack = bed.send(trial, 2, Vec::new()).await;
    ack.directives.into_iter().find_map(|order| {
        let DirectiveBody::StopRules { rules, .. } = order.body else { return None };
        assert_eq!(rules[0].reason, StopReason::Deadline, "the time limit stays");
        Some((order.id, rules.into_iter().find(|rule| rule.reason == StopReason::EarlyStop)?))
    })
}

#[tokio::test(start_paused = true)]
async fn the_assessors_rules_are_sent_to_the_agent_and_renewed() {
    let bed = start_assessed_search().await;
    let trial = start_second_trial(&bed, 400).await;
    let mut left: Vec<(u64, StopRule)> = Vec::new();
    for _ in 0..400 {
        bed.pass_time(1).await;
        let found = find_assessor_rule(&bed, &trial).await;
        left.extend(found.filter(|(id, _)| left.iter().all(|(known, _)| known != id)));
        if left.len() == 2 {
            break;
        }
    }
    assert_eq!(left.len(), 2, "the rule is sent, and renewed before it expires");
    for (_, StopRule { lease_ms, when, .. }) in left {
        let lease_ms = lease_ms.unwrap();
        assert!(
            (180_000..=220_000).contains(&lease_ms),
            "half the duration of the first trial: {lease_ms}"
        );
        let name = "default".to_owned();
        let (direction, bounds) = (Some(Direction::Maximize), vec![0.6]);
        assert_eq!(when, StopWhen::Best { name, direction, from_results: 2, bounds });
    }
}

#[tokio::test(start_paused = true)]
async fn no_rules_are_sent_if_trials_are_short() {
    let bed = start_assessed_search().await;
    let trial = start_second_trial(&bed, 25).await;
    for _ in 0..40 {
        bed.pass_time(1).await;
        assert_eq!(find_assessor_rule(&bed, &trial).await, None);
    }
}

#[tokio::test(start_paused = true)]
async fn a_trial_that_its_agent_stopped_is_stopped_early_with_the_agents_reason() {
    let stop = || {
        let ReportBody::Ended(verdict) = ended_body(Cause::EarlyStopped) else { unreachable!() };
        ReportBody::Ended(Box::new(Verdict { stop: Some(StopReason::EarlyStop), ..*verdict }))
    };
    let note = ReportBody::Note { code: "early-stop".to_owned(), message: "too bad".to_owned() };
    #[rustfmt::skip]
    let table = [
        ("the note arrives",                vec![note, stop()], "too bad"),
        ("another manager got the note",    vec![stop()],       "over"),
    ];
    for (case, bodies, why) in table {
        let bed = start_assessed_search().await;
        let trial = start_second_trial(&bed, 25).await;
        bed.send(&trial, 2, bodies).await;
        bed.end_job(&trial);
        let row = bed.wait_for_trial(JobState::EarlyStopped).await;
        assert_eq!((row.message.as_deref(), row.intent), (Some(why), Some(StopReason::EarlyStop)));
        assert_eq!(bed.task.await.unwrap().unwrap(), ExperimentState::Done, "{case}");
        // The last step becomes the result, as for any trial that was stopped early.
        let learnt = [Outcome::Result(0.7.into()), Outcome::Result(0.55.into())];
        assert_eq!(*bed.observed.0.lock().unwrap(), learnt, "{case}");
    }
}

#[tokio::test(start_paused = true)]
async fn the_agent_of_an_adopted_trial_receives_its_time_limit_again() {
    let bed = TestBed::new().await;
    bed.begin_trial().await;
    // No ack has carried the first manager's directive.
    let bed = bed.restart_manager().await;
    let trial = bed.wait_for_trial(JobState::Running).await;
    bed.wait_until_idle().await;
    let ack = bed.send(&trial, 1, Vec::new()).await;
    let limits: Vec<_> = ack.directives.iter().map(|order| &order.body).collect();
    let DirectiveBody::StopRules { rules, .. } = limits[0] else { panic!("{limits:?}") };
    assert_eq!(rules[0].reason, StopReason::Deadline);
    assert_eq!(rules[0].when, StopWhen::RunningFor { ms: 900_000 });
}
