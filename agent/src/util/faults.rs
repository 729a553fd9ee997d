//! Injected faults, for tests of the effects that a fault of the agent has on a trial. In a shipped program, this
//! module does nothing.

/// Fails if the program has debug assertions and the variable `TRIALKEEPER_FAULT` names this `place`. It panics, or
/// aborts if the value starts with `abort:`.
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
