//! Trials with several roles as `JobSet`s, with one `Job` for each role.

use serde_json::{Value, json};
use trialkeeper_tests::TestBed;

use super::scenarios::{JOB_SET, test_scenarios};
use super::{run, sorted_lines, start_cluster};

test_scenarios!(
    JOB_SET:
    a_search_runs_to_its_end_and_leaves_a_clean_cluster,
    a_failing_trial_has_its_exit_code_and_output,
    the_image_of_a_trial_is_shown,
    an_interrupted_search_ends_its_trial_and_all_pods,
    an_evicted_trial_is_tried_again,
    a_resumed_manager_adopts_the_trial_of_a_killed_one,
    a_queue_admits_preempts_and_readmits_a_trial,
    the_deployed_role_suffices,
);

#[test]
fn several_roles_run_as_a_job_set_that_ends_with_its_workers() {
    let bed = TestBed::new();
    let kube = start_cluster(&bed);
    let line = "echo $TRIALKEEPER_ROLE/$TRIALKEEPER_RANK/$TRIALKEEPER_WORLD_SIZE >>\"$TEST_BED/ranks\"; \
                echo score=$TRIALKEEPER_RANK";
    let outcome = run(&bed, &JOB_SET.search(&bed, &kube, line, 2, &json!({})));
    outcome.expect_done(2, 0);
    let results: Vec<&Value> = outcome.trials.iter().map(|trial| &trial.final_result).collect();
    assert_eq!(results, [&json!(1), &json!(1)], "the first worker's rank must follow the server's");
    assert_eq!(
        sorted_lines(&bed, "ranks"),
        ["worker/1/3", "worker/1/3", "worker/2/3", "worker/2/3"]
    );
    assert_eq!(bed.read("served").lines().count(), 2);
    kube.wait_until_empty();
}

#[test]
fn a_cluster_without_job_sets_is_reported_before_anything_is_submitted() {
    JOB_SET.expect_refusals(&[(
        "no such kind",
        |kube| kube.remove_kind("jobsets"),
        &[
            "does not serve JobSets: a trial of several `taskRoles` needs JobSet",
            "kubectl apply --server-side -f",
        ],
    )]);
}
