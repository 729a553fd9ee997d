//! Searches: tuners, assessors, budgets, objectives, and how a user steers them.

mod ask_and_tell;
mod assessors;
mod budget;
mod edited;
mod examples;
mod hanging;
mod notifications;
mod objective;
mod objectives;
mod population;
mod repeats;
mod steering;
