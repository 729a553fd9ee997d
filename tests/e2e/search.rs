//! Searches: tuners, assessors, budgets, objectives, and changes that a user makes to a running search.

mod ask_and_tell;
mod assessors;
mod edited_code;
mod end_conditions;
mod examples;
mod hanging_tuners;
mod metric_choice;
mod notifications;
mod objectives;
mod population;
mod repeated_points;
mod steering;

use serde_json::Value;
use trialkeeper_tests::TestBed;

/// Returns the messages of a kind that a program has received and recorded, each as a line of the file `record`. The
/// last line can be incomplete.
fn recorded_messages(bed: &TestBed, kind: &str) -> Vec<Value> {
    let record = bed.read("record");
    let messages = record.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
    messages.filter(|message| message["type"] == kind).collect()
}
