//! Faults on purpose, for the tests of what a fault of the agent's does to a trial. In a shipped program this
//! does nothing at all.

/// Fails here if the variable `TRIALKEEPER_FAULT` of a program with debug assertions names this `place`: with a
/// panic or, after `abort:`, with an abort.
pub fn inject_at(place: &str) {
    #[cfg(debug_assertions)]
    if let Ok(wanted) = std::env::var("TRIALKEEPER_FAULT") {
        assert!(wanted != place, "a fault on purpose");
        if wanted.strip_prefix("abort:") == Some(place) {
            std::process::abort();
        }
    }
    #[cfg(not(debug_assertions))]
    let _: &str = place;
}
