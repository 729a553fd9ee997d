//! The commands other than `run`, one file each.

pub mod doctor;
pub mod gpus;
pub mod inspect;
pub mod machine;
pub mod replay;
pub mod tools;
