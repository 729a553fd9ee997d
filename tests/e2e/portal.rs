//! The web pages in a real browser.

mod accessible;
mod buttons;
mod charts;
mod comparison;
mod ending;
mod home;
mod hostile;
mod increments;
mod list;
mod long_line;
mod looks;
mod machine;
mod plots;
mod search;
mod times;
mod trial;
mod unaided;
