//! Training services: the scenario that each must pass, plugins, and machines behind SSH.

mod conformance;
mod gated_trial;
mod hybrid;
mod plugin;
mod remote;
mod remote_gpus;
mod remote_login;
mod remote_network;
