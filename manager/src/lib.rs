//! The manager: scheduler, store, server and command line.
//!
//! Bottom up: `util, job_state, trial_files, code_archive` -> `search` -> `advisers` -> `config, token` -> `store,
//! training_service` -> `notifications` -> `experiment` -> `ingest, view` -> `api` -> `app` -> `cli`. A module
//! imports only from modules to its left. `store` and `training_service` do not import each other.

pub mod advisers;
pub mod api;
pub mod app;
pub mod cli;
pub mod code_archive;
pub mod config;
pub mod experiment;
pub mod ingest;
pub mod job_state;
pub mod notifications;
pub mod search;
pub mod store;
pub mod token;
pub mod training_service;
pub mod trial_files;
pub mod util;
pub mod view;
