//! Faults: a killed manager, a removed folder, a restored backup, an interrupted search. Nothing is lost or doubled.

mod crash;
mod faults;
mod following;
mod interrupt;
mod restored;
mod same_again;
mod vanished;
