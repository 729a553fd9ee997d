//! PURE: the detection of reports that the store once confirmed to an agent and lacks now. A store that was replaced by an older copy
//! does; else what was acknowledged is stored.

use serde_json::{Value, json};

/// The code of the note that stands where reports are missing for good.
pub(super) const LOST: &str = "reports-lost";

/// The reports of one lane that are missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    /// None are.
    None,
    /// The agent can still send some of them.
    Recoverable,
    /// The reports up to `through` are gone for good.
    Lost {
        /// Highest number that is gone.
        through: u64,
    },
}

impl Gap {
    /// Compares how far a lane is stored with how far its agent was told so, and with what the agent cannot send again.
    pub(super) fn between(
        stored: Option<u64>,
        acknowledged: Option<u64>,
        forgotten: Option<u64>,
    ) -> Self {
        match forgotten {
            _ if acknowledged <= stored => Self::None,
            Some(through) if forgotten >= acknowledged => Self::Lost { through },
            Some(_) | None => Self::Recoverable,
        }
    }
}

/// Returns the body of the note on reports that are gone for good: those after `stored` up to `through`.
pub(super) fn note(stored: Option<u64>, through: u64) -> Value {
    let which = match stored.and_then(|stored| stored.checked_add(1)) {
        Some(first) if first == through => format!("Report {through}"),
        Some(first) => format!("Reports {first} to {through}"),
        None => format!("All reports up to {through}"),
    };
    json!({
        "kind": "note",
        "code": LOST,
        "message": format!(
            "{which} of this attempt may be lost: the database was replaced by an older copy after it had confirmed them, \
             or it refused them, and the agent has them no more. Results may be missing; the trial's files stdout and \
             stderr have its whole output."
        ),
    })
}

/// Returns the message of a note's `body`, if it is one on reports that are gone for good.
pub(super) fn lost_in(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    (body["code"] == LOST).then(|| body["message"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_that_lacks_what_it_confirmed_has_a_gap() {
        let lost = |through| Gap::Lost { through };
        #[rustfmt::skip]
        let table = [
            ("a first batch",                          None,     None,     None,     Gap::None),
            ("an agent that does not tell",            Some(4),  None,     None,     Gap::None),
            ("what was confirmed is there",            Some(4),  Some(4),  None,     Gap::None),
            ("an ack was lost on its way",             Some(9),  Some(4),  None,     Gap::None),
            ("it is there, and the agent forgot it",   Some(4),  Some(4),  Some(4),  Gap::None),
            ("an older copy, the agent has the rest",  Some(4),  Some(9),  None,     Gap::Recoverable),
            ("likewise, as far as is missing",         Some(4),  Some(9),  Some(3),  Gap::Recoverable),
            ("a copy from before the attempt",         None,     Some(9),  None,     Gap::Recoverable),
            ("the agent has a part",                   Some(4),  Some(9),  Some(6),  Gap::Recoverable),
            ("it has gone back to that part",          Some(4),  Some(6),  Some(6),  lost(6)),
            ("the agent has nothing",                  Some(4),  Some(9),  Some(9),  lost(9)),
            ("nor has the store",                      None,     Some(9),  Some(9),  lost(9)),
        ];
        for (says, stored, acknowledged, forgotten, expected) in table {
            assert_eq!(Gap::between(stored, acknowledged, forgotten), expected, "{says}");
        }
    }
}
