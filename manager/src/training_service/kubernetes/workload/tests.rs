//! Tests of all kinds.

pub(super) mod recorded;
