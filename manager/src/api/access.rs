//! Access to the manager: tokens, sessions, the log-in, and the origin of requests.

pub mod auth;
pub(super) mod local_user;
pub(super) mod log_in;
pub(super) mod request_origin;
pub mod session;
pub(super) mod throttle;
pub(super) mod ticket;
