//! A test bed for the real programs.
