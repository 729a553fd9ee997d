//! The directives that wait until agents have obeyed them. The experiment decides which ones to send.
//!
//! A directive is part of every ack to its attempt until the agent confirms it. The open requests of a silent agent
//! wait in [`DirectiveQueue::wait_for_directive`]. New directives end the wait of one request.

use std::collections::HashMap;
use std::mem::discriminant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use trial_protocol::{AttemptId, Directive, DirectiveBody, TrialJobId};

/// The number of ids that are reserved for each millisecond between the starts of two successive managers.
const IDS_PER_MS: u64 = 1 << 10;

/// The directives of an experiment. Cloning is cheap.
#[derive(Debug, Clone)]
pub struct DirectiveQueue(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    next_id: u64,
    by_attempt: HashMap<Address, AttemptDirectives>,
}

/// The attempt that receives directives. A trial may have agents of several attempts, and of several pods.
type Address = (TrialJobId, AttemptId);

#[derive(Debug, Default)]
struct AttemptDirectives {
    waiting: Vec<Directive>,
    /// Set if there is a directive that no ack has carried yet.
    has_unsent: bool,
    wake: Arc<Notify>,
    /// The number of requests that wait for new directives.
    waiters: usize,
}

impl AttemptDirectives {
    fn is_idle(&self) -> bool {
        self.waiters == 0 && self.waiting.is_empty()
    }
}

/// Counts a waiting request while it waits.
struct Waiter<'a>(&'a DirectiveQueue, &'a Address);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        if let Some(pending) = inner.by_attempt.get_mut(self.1) {
            pending.waiters = pending.waiters.saturating_sub(1);
            if pending.is_idle() {
                inner.by_attempt.remove(self.1);
            }
        }
    }
}

impl DirectiveQueue {
    /// Returns an empty queue. An agent obeys each id once, and may outlive the manager. The first id is therefore
    /// derived from the milliseconds since the Unix epoch: no agent mistakes this manager's directive for an earlier
    /// manager's.
    pub fn new(now_ms: i64) -> Self {
        let next_id = u64::try_from(now_ms).unwrap_or(0).saturating_mul(IDS_PER_MS);
        Self(Arc::new(Mutex::new(Inner { next_id, by_attempt: HashMap::new() })))
    }

    /// Adds a directive for an attempt's agent.
    pub fn push(&self, trial: &TrialJobId, attempt: &AttemptId, body: DirectiveBody) {
        let mut inner = self.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        let pending = inner.by_attempt.entry((trial.clone(), attempt.clone())).or_default();
        // The newest directive of a kind replaces older ones, so the queue of a silent agent cannot fill.
        pending.waiting.retain(|directive| discriminant(&directive.body) != discriminant(&body));
        pending.waiting.push(Directive { id, body });
        pending.has_unsent = true;
        pending.wake.notify_waiters();
    }

    /// Returns the directives for an attempt's agent, for an ack.
    pub fn pending_for(&self, trial: &TrialJobId, attempt: &AttemptId) -> Vec<Directive> {
        let mut inner = self.lock();
        let Some(pending) = inner.by_attempt.get_mut(&(trial.clone(), attempt.clone())) else {
            return Vec::new();
        };
        pending.has_unsent = false;
        pending.waiting.clone()
    }

    /// Removes the directives that an attempt's agent has obeyed.
    pub fn remove_obeyed(&self, trial: &TrialJobId, attempt: &AttemptId, ids: &[u64]) {
        self.retain(trial, attempt, |directive| !ids.contains(&directive.id));
    }

    /// Removes the directives of an ended attempt, which has no agent to obey them.
    pub fn remove_all(&self, trial: &TrialJobId, attempt: &AttemptId) {
        self.retain(trial, attempt, |_| false);
    }

    fn retain(
        &self,
        trial: &TrialJobId,
        attempt: &AttemptId,
        keep: impl FnMut(&Directive) -> bool,
    ) {
        let mut inner = self.lock();
        let address = (trial.clone(), attempt.clone());
        let Some(pending) = inner.by_attempt.get_mut(&address) else { return };
        pending.waiting.retain(keep);
        pending.has_unsent &= !pending.waiting.is_empty();
        if pending.is_idle() {
            inner.by_attempt.remove(&address);
        }
    }

    /// Waits until the attempt has a directive that no ack has carried yet, and for which no other waiter was woken.
    pub async fn wait_for_directive(&self, trial: &TrialJobId, attempt: &AttemptId) {
        let address = (trial.clone(), attempt.clone());
        let wake = {
            let mut inner = self.lock();
            let pending = inner.by_attempt.entry(address.clone()).or_default();
            pending.waiters += 1;
            Arc::clone(&pending.wake)
        };
        let _waiter = Waiter(self, &address);
        loop {
            let notified = wake.notified();
            tokio::pin!(notified);
            // From now on, no directive is missed.
            notified.as_mut().enable();
            if let Some(pending) = self.lock().by_attempt.get_mut(&address)
                && std::mem::take(&mut pending.has_unsent)
            {
                return;
            }
            notified.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    fn ids() -> (TrialJobId, AttemptId, AttemptId) {
        (
            TrialJobId::new("t").unwrap(),
            AttemptId::new("t-1").unwrap(),
            AttemptId::new("t-2").unwrap(),
        )
    }

    #[test]
    fn a_directive_is_repeated_to_its_attempt_until_it_is_obeyed() {
        let directives = DirectiveQueue::new(7);
        let (t, first, second) = ids();
        directives.push(&t, &second, DirectiveBody::Flush);
        assert_eq!(
            directives.pending_for(&t, &first),
            [],
            "the directive is not for an older attempt's agent"
        );
        let given = directives.pending_for(&t, &second);
        assert_eq!(given, [Directive { id: 7 << 10, body: DirectiveBody::Flush }]);
        directives.remove_obeyed(&t, &first, &[given[0].id]);
        assert_eq!(
            directives.pending_for(&t, &second),
            given,
            "another attempt's agent cannot confirm the directive"
        );
        directives.remove_obeyed(&t, &second, &[given[0].id]);
        assert_eq!(directives.pending_for(&t, &second), []);
    }

    #[test]
    fn a_directive_replaces_the_waiting_one_of_its_kind() {
        use trial_protocol::LogLevel::{Debug, Warn};
        let directives = DirectiveQueue::new(0);
        let (t, first, _) = ids();
        let bodies = [Debug, Warn].map(|level| DirectiveBody::LogLevel { level });
        directives.push(&t, &first, bodies[0].clone());
        let before = directives.pending_for(&t, &first);
        directives.push(&t, &first, DirectiveBody::Flush);
        directives.push(&t, &first, bodies[1].clone());
        let waiting = directives.pending_for(&t, &first);
        let waits: Vec<_> = waiting.iter().map(|directive| directive.body.clone()).collect();
        assert_eq!(waits, [DirectiveBody::Flush, bodies[1].clone()]);
        // The agent may still obey the directive that was replaced.
        directives.remove_obeyed(&t, &first, &[before[0].id]);
        assert_eq!(directives.pending_for(&t, &first), waiting);
    }

    #[test]
    fn the_directives_of_another_manager_have_other_ids() {
        let (t, first, _) = ids();
        let mut ids = std::collections::BTreeSet::new();
        for now_ms in [1_000, 1_001] {
            let directives = DirectiveQueue::new(now_ms);
            for _ in 0..3 {
                directives.push(&t, &first, DirectiveBody::Flush);
                ids.extend(directives.pending_for(&t, &first).iter().map(|directive| directive.id));
            }
        }
        assert_eq!(ids.len(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiting_agent_is_woken_once_for_a_directive() {
        let directives = DirectiveQueue::new(0);
        let (t, first, _) = ids();
        let bound = Duration::from_secs(1);
        assert!(
            timeout(bound, directives.wait_for_directive(&t, &first)).await.is_err(),
            "no directive waits"
        );
        assert!(directives.lock().by_attempt.is_empty(), "no entry is kept for the attempt");
        let waiting = {
            let (directives, t, first) = (directives.clone(), t.clone(), first.clone());
            tokio::spawn(async move { directives.wait_for_directive(&t, &first).await })
        };
        tokio::task::yield_now().await;
        directives.push(&t, &first, DirectiveBody::Flush);
        timeout(bound, waiting).await.unwrap().unwrap();
        assert!(timeout(bound, directives.wait_for_directive(&t, &first)).await.is_err(), "once");
        directives.push(&t, &first, DirectiveBody::Flush);
        timeout(bound, directives.wait_for_directive(&t, &first)).await.unwrap();
        directives.push(&t, &first, DirectiveBody::Flush);
        assert_eq!(directives.pending_for(&t, &first).len(), 1, "one of a kind");
        assert!(
            timeout(bound, directives.wait_for_directive(&t, &first)).await.is_err(),
            "an ack carried it"
        );
        directives.remove_all(&t, &first);
        assert!(directives.lock().by_attempt.is_empty());
    }
}
