//! PURE: search spaces, tuners, which propose the next parameters, and assessors, which stop unpromising trials.

pub mod assessor;
pub mod class_args;
pub mod goals;
pub mod pareto;
pub mod repeats;
pub mod search_space;
pub mod suggester;
pub mod tuner;
pub mod user_point;
