//! The web pages in a real browser.

mod accessibility;
mod buttons;
mod charts;
mod comparison;
mod home;
mod hostile_input;
mod incremental_updates;
mod layout;
mod long_line;
mod machine_charts;
mod plots;
mod running_search;
mod search_end;
mod time_zones;
mod trial_list;
mod trial_page;
mod without_scripts_or_mouse;
