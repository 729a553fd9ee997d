//! Faults: a killed manager, a removed folder, a restored backup, an interrupted search. No report is lost or
//! duplicated.

mod faults;
mod interrupt;
mod killed_manager;
mod log_following;
mod removed_folder;
mod reproducibility;
mod restored_backup;
