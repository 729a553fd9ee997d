//! The manager: scheduler, store, server and command line.
//!
//! Bottom up: `class_args, clock, errors, ids, job_state, layout, nearest, search_space` -> `assessor,
//! tuner` -> `config, token` -> `store, training_service` (neither knows the other) -> `experiment` ->
//! `intake` -> `api` -> `app` -> `cli`. A module imports only from its left.

pub mod api;
pub mod app;
pub mod assessor;
pub mod class_args;
pub mod cli;
pub mod clock;
pub mod config;
pub mod errors;
pub mod experiment;
pub mod ids;
pub mod intake;
pub mod job_state;
pub mod layout;
pub mod nearest;
pub mod search_space;
pub mod store;
pub mod token;
pub mod training_service;
pub mod tuner;
