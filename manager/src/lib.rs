//! The manager: scheduler, store, server and command line.
//!
//! Bottom up: `class_args, clock, code_archive, errors, ids, job_state, layout,
//! local_socket, nearest, rendezvous, search_space, trial_files` -> `assessor, tuner` -> `dispatcher` -> `config, token` -> `store, training_service`
//! (neither knows the other) -> `notify` -> `experiment` -> `intake, view` -> `api` -> `app` -> `cli`. A module
//! imports only from its left.

pub mod api;
pub mod app;
pub mod assessor;
pub mod class_args;
pub mod cli;
pub mod clock;
pub mod code_archive;
pub mod config;
pub mod dispatcher;
pub mod errors;
pub mod experiment;
pub mod ids;
pub mod intake;
pub mod job_state;
pub mod layout;
pub mod local_socket;
pub mod nearest;
pub mod notify;
pub mod rendezvous;
pub mod search_space;
pub mod store;
pub mod token;
pub mod training_service;
pub mod trial_files;
pub mod tuner;
pub mod view;
