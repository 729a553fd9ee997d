//! PURE: detects reports that the store once acknowledged to an agent and no longer contains. This happens only if an
//! older copy has replaced the database: acknowledged reports are always stored.

use serde_json::{Value, json};

/// The code of the note that replaces reports that are permanently lost.
pub(super) const REPORTS_LOST_CODE: &str = "reports-lost";

/// The reports that are missing in one lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Gap {
    /// No reports are missing.
    None,
    /// The agent can still send some of the missing reports.
    Recoverable,
    /// The reports up to `through` are permanently lost.
    Lost {
        /// The highest number of a lost report.
        through: u64,
    },
}

impl Gap {
    /// Compares three numbers of a lane: the last stored report, the last report that was acknowledged to the agent,
    /// and the last report that the agent has deleted.
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

/// Returns the body of the note about lost reports: those after `stored` up to `through`.
pub(super) fn lost_reports_note(stored: Option<u64>, through: u64) -> Value {
    let which = match stored.and_then(|stored| stored.checked_add(1)) {
        Some(first) if first == through => format!("Report {through}"),
        Some(first) => format!("Reports {first} to {through}"),
        None => format!("All reports up to {through}"),
    };
    json!({
        "kind": "note",
        "code": REPORTS_LOST_CODE,
        "message": format!(
            "{which} of this attempt may be lost: the database was replaced by an older copy after it had acknowledged them, \
             or it refused them, and the agent no longer has them. Results may be missing; the trial's files stdout and \
             stderr contain its complete output."
        ),
    })
}

/// Returns the message of a note's `body`, if the note is about lost reports.
pub(super) fn lost_reports_message(body: &str) -> Option<String> {
    let body: Value = serde_json::from_str(body).ok()?;
    (body["code"] == REPORTS_LOST_CODE)
        .then(|| body["message"].as_str().unwrap_or_default().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_without_reports_that_it_acknowledged_has_a_gap() {
        let lost = |through| Gap::Lost { through };
        #[rustfmt::skip]
        let table = [
            ("the first batch",                        None,     None,     None,     Gap::None),
            ("an agent that reports no ack",           Some(4),  None,     None,     Gap::None),
            ("all acknowledged reports are stored",    Some(4),  Some(4),  None,     Gap::None),
            ("an ack did not reach the agent",         Some(9),  Some(4),  None,     Gap::None),
            ("stored, and deleted by the agent",       Some(4),  Some(4),  Some(4),  Gap::None),
            ("an older copy, the agent has the rest",  Some(4),  Some(9),  None,     Gap::Recoverable),
            ("an older copy, all can be sent again",   Some(4),  Some(9),  Some(3),  Gap::Recoverable),
            ("a copy from before the attempt",         None,     Some(9),  None,     Gap::Recoverable),
            ("the agent has a part",                   Some(4),  Some(9),  Some(6),  Gap::Recoverable),
            ("the agent has sent that part",           Some(4),  Some(6),  Some(6),  lost(6)),
            ("the agent has nothing",                  Some(4),  Some(9),  Some(9),  lost(9)),
            ("neither has the store",                  None,     Some(9),  Some(9),  lost(9)),
        ];
        for (case, stored, acknowledged, forgotten, expected) in table {
            assert_eq!(Gap::between(stored, acknowledged, forgotten), expected, "{case}");
        }
    }
}
