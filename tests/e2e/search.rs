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
