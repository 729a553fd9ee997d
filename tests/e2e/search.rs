//! Searches: tuners, assessors, budgets, objectives, and changes that a user makes to a running search.

mod ask_and_tell;
mod assessors;
mod budget;
mod edited_code;
mod examples;
mod hanging;
mod notifications;
mod objective;
mod objectives;
mod population;
mod repeats;
mod steering;
