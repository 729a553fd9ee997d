//! End-to-end tests of the real programs, one module per story of a user or misfortune.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod accessible;
mod ask_and_tell;
mod assessors;
mod bad_input;
mod budget;
mod buttons;
mod charts;
mod cluster;
mod conformance;
mod crash;
mod deploy;
mod dispatcher;
mod doctor;
mod ending;
mod examples;
mod failing;
mod faults;
mod following;
mod hanging;
mod hostile;
mod increments;
mod interrupt;
mod kube;
mod long_line;
mod machine;
mod nni_client;
mod nni_pages;
mod notifications;
mod old_keeper;
mod open;
mod orders;
mod output;
mod parameters;
mod places;
mod pods;
mod portal;
mod registered;
mod restored;
mod same_again;
mod sdk;
mod secure;
mod snapshots;
mod steering;
mod top;
