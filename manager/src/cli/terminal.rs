//! The terminal: its screen and its signals, and the texts, tables and progress on it.

pub(super) mod cells;
pub(super) mod description;
pub(super) mod output;
pub(super) mod parameter_cells;
pub(super) mod plain_text;
pub(super) mod progress;
pub(super) mod screen;
pub(super) mod signals;
pub(super) mod sparkline;
pub(super) mod table;
pub(super) mod text_style;
pub(super) mod trial_cells;
