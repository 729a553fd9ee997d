//! The sections of training services.

pub(super) mod hybrid;
pub(super) mod inherited;
pub(super) mod labels;
pub(super) mod local;
pub(super) mod openpai;
pub(super) mod plugin;
pub(super) mod remote;
