//! Faults: a killed manager, a removed folder, a restored backup, an interrupted search. No report is lost or
//! duplicated.

mod crash;
mod faults;
mod following;
mod interrupt;
mod removed_folder;
mod reproducibility;
mod restored;
