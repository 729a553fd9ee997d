//! What the manager orders, and the rules that it left for when it cannot.

use std::time::Duration;

use tokio::time::Instant;
use tracing::info;
use trial_protocol::{Directive, DirectiveBody, StopReason};

use super::{LoopState, Supervisor};
use crate::supervise::phase::Event;
use crate::supervise::rules::RuleViolation;
use crate::util::log;
use crate::verdict::StopBy;

impl Supervisor {
    pub(super) fn ordered(
        &mut self,
        directive: Directive,
        memory: &mut LoopState,
    ) -> Option<Event> {
        match directive.body {
            DirectiveBody::Stop { reason, grace_ms } => {
                let grace = grace_ms.map_or(self.grace, Duration::from_millis);
                return Some(stopped(memory, reason, grace));
            }
            // What is in the spool is delivered at once anyway.
            DirectiveBody::Flush => {
                self.shippers.iter().for_each(|shipper| shipper.flush(false));
                info!("what was gathered is sent, as the manager orders");
            }
            DirectiveBody::LogLevel { level } => {
                if log::set_level(level) {
                    info!("this log begins at the level {level:?}, as the manager orders");
                } else {
                    self.refuse(directive.id);
                }
            }
            DirectiveBody::StopRules { rules, lease_ms } => {
                let now = Instant::now().into_std();
                self.recorder.rules().replace(rules, Duration::from_millis(lease_ms), now);
                return self.overdue(memory);
            }
            DirectiveBody::Unknown => self.refuse(directive.id),
        }
        None
    }

    fn refuse(&self, id: u64) {
        let message = format!("this agent does not know the order {id}");
        self.recorder.note("directive-refused", message);
    }

    /// When a rule on the running time fits next.
    pub(super) fn next_due(&mut self, memory: &LoopState) -> Option<Instant> {
        if memory.ending.stop.is_some() {
            return None;
        }
        let (started, now) = (memory.started.into_std(), Instant::now().into_std());
        self.recorder.rules().next_due(started, now).map(Instant::from_std)
    }

    /// Ends a trial that has run for too long.
    pub(super) fn overdue(&mut self, memory: &mut LoopState) -> Option<Event> {
        let (started, now) = (memory.started.into_std(), Instant::now().into_std());
        let reason = self.recorder.rules().overdue(started, now)?;
        Some(stopped(memory, reason, self.grace))
    }

    /// Ends a trial whose metrics have broken a rule.
    pub(super) fn broken(&mut self, memory: &mut LoopState) -> Option<Event> {
        let RuleViolation { reason, why } = self.recorder.broken()?;
        if reason == StopReason::EarlyStop && memory.ending.stop.is_none() {
            // The manager stores it as the reason of the stop.
            self.recorder.note("early-stop", why);
        }
        Some(stopped(memory, reason, self.grace))
    }
}

fn stopped(memory: &mut LoopState, reason: StopReason, grace: Duration) -> Event {
    memory.asked(StopBy::Manager(reason));
    Event::StopRequested { grace }
}
