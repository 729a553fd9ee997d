//! The orders that wait for agents, until they are obeyed. It does not decide what is ordered.
//!
//! An order is on every ack to the attempt that it is for, until the agent says that it was obeyed. An agent that is
//! silent just now is woken: a waiter in [`DirectiveQueue::wake`] is told once that there is something new.

use std::collections::HashMap;
use std::mem::discriminant;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;
use trial_protocol::{AttemptId, Directive, DirectiveBody, TrialJobId};

/// Room for the orders of one manager's life between the ids of two that follow each other.
const IDS_PER_MS: u64 = 1 << 10;

/// The orders of an experiment; cheap to clone.
#[derive(Debug, Clone)]
pub struct DirectiveQueue(Arc<Mutex<Inner>>);

#[derive(Debug)]
struct Inner {
    next_id: u64,
    boxes: HashMap<Address, AttemptDirectives>,
}

/// Whose orders: a trial may have agents of several attempts, and of several pods.
type Address = (TrialJobId, AttemptId);

#[derive(Debug, Default)]
struct AttemptDirectives {
    waiting: Vec<Directive>,
    /// There is an order that no ack has carried yet.
    news: bool,
    wake: Arc<Notify>,
    /// Those who wait for news.
    waiters: usize,
}

impl AttemptDirectives {
    fn is_idle(&self) -> bool {
        self.waiters == 0 && self.waiting.is_empty()
    }
}

/// Counts one who waits, for as long as it does.
struct Waiter<'a>(&'a DirectiveQueue, &'a Address);

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        let mut inner = self.0.lock();
        if let Some(letters) = inner.boxes.get_mut(self.1) {
            letters.waiters = letters.waiters.saturating_sub(1);
            if letters.is_idle() {
                inner.boxes.remove(self.1);
            }
        }
    }
}

impl DirectiveQueue {
    /// No orders. An agent obeys an id once, and may outlive us: so that another manager's first order is not
    /// taken for one of ours, ids begin with the time, in milliseconds since the Unix epoch.
    pub fn new(now_ms: i64) -> Self {
        let next_id = u64::try_from(now_ms).unwrap_or(0).saturating_mul(IDS_PER_MS);
        Self(Arc::new(Mutex::new(Inner { next_id, boxes: HashMap::new() })))
    }

    /// Orders an attempt's agent to do something.
    pub fn order(&self, trial: &TrialJobId, attempt: &AttemptId, body: DirectiveBody) {
        let mut inner = self.lock();
        let id = inner.next_id;
        inner.next_id += 1;
        let letters = inner.boxes.entry((trial.clone(), attempt.clone())).or_default();
        // The newest of a kind says all that is wanted; so the box of a silent agent cannot be filled.
        letters.waiting.retain(|order| discriminant(&order.body) != discriminant(&body));
        letters.waiting.push(Directive { id, body });
        letters.news = true;
        letters.wake.notify_waiters();
    }

    /// Returns the directives for an attempt's agent, for an ack.
    pub fn of(&self, trial: &TrialJobId, attempt: &AttemptId) -> Vec<Directive> {
        let mut inner = self.lock();
        let Some(letters) = inner.boxes.get_mut(&(trial.clone(), attempt.clone())) else {
            return Vec::new();
        };
        letters.news = false;
        letters.waiting.clone()
    }

    /// An attempt's agent has obeyed these orders.
    pub fn obeyed(&self, trial: &TrialJobId, attempt: &AttemptId, ids: &[u64]) {
        self.retain(trial, attempt, |order| !ids.contains(&order.id));
    }

    /// An attempt has ended: no agent is left to obey.
    pub fn forget(&self, trial: &TrialJobId, attempt: &AttemptId) {
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
        let Some(letters) = inner.boxes.get_mut(&address) else { return };
        letters.waiting.retain(keep);
        letters.news &= !letters.waiting.is_empty();
        if letters.is_idle() {
            inner.boxes.remove(&address);
        }
    }

    /// Waits until there is an order for the attempt that no ack has carried yet, and that no other waiter was woken
    /// for.
    pub async fn wake(&self, trial: &TrialJobId, attempt: &AttemptId) {
        let address = (trial.clone(), attempt.clone());
        let wake = {
            let mut inner = self.lock();
            let letters = inner.boxes.entry(address.clone()).or_default();
            letters.waiters += 1;
            Arc::clone(&letters.wake)
        };
        let _waiter = Waiter(self, &address);
        loop {
            let notified = wake.notified();
            tokio::pin!(notified);
            // From here on no order is missed.
            notified.as_mut().enable();
            if let Some(letters) = self.lock().boxes.get_mut(&address)
                && std::mem::take(&mut letters.news)
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
    fn an_order_is_repeated_to_its_attempt_until_it_is_obeyed() {
        let orders = DirectiveQueue::new(7);
        let (t, first, second) = ids();
        orders.order(&t, &second, DirectiveBody::Flush);
        assert_eq!(orders.of(&t, &first), [], "an older attempt's agent is not meant");
        let given = orders.of(&t, &second);
        assert_eq!(given, [Directive { id: 7 << 10, body: DirectiveBody::Flush }]);
        orders.obeyed(&t, &first, &[given[0].id]);
        assert_eq!(orders.of(&t, &second), given, "nor can it obey for another");
        orders.obeyed(&t, &second, &[given[0].id]);
        assert_eq!(orders.of(&t, &second), []);
    }

    #[test]
    fn the_newest_of_a_kind_waits() {
        use trial_protocol::LogLevel::{Debug, Warn};
        let orders = DirectiveQueue::new(0);
        let (t, first, _) = ids();
        let bodies = [Debug, Warn].map(|level| DirectiveBody::LogLevel { level });
        orders.order(&t, &first, bodies[0].clone());
        let before = orders.of(&t, &first);
        orders.order(&t, &first, DirectiveBody::Flush);
        orders.order(&t, &first, bodies[1].clone());
        let waiting = orders.of(&t, &first);
        let waits: Vec<_> = waiting.iter().map(|order| order.body.clone()).collect();
        assert_eq!(waits, [DirectiveBody::Flush, bodies[1].clone()]);
        // The one that was replaced may be obeyed all the same.
        orders.obeyed(&t, &first, &[before[0].id]);
        assert_eq!(orders.of(&t, &first), waiting);
    }

    #[test]
    fn another_manager_s_orders_have_other_ids() {
        let (t, first, _) = ids();
        let mut seen = std::collections::BTreeSet::new();
        for now_ms in [1_000, 1_001] {
            let orders = DirectiveQueue::new(now_ms);
            for _ in 0..3 {
                orders.order(&t, &first, DirectiveBody::Flush);
                seen.extend(orders.of(&t, &first).iter().map(|order| order.id));
            }
        }
        assert_eq!(seen.len(), 6);
    }

    #[tokio::test(start_paused = true)]
    async fn who_waits_is_woken_once_for_an_order() {
        let orders = DirectiveQueue::new(0);
        let (t, first, _) = ids();
        let bound = Duration::from_secs(1);
        assert!(timeout(bound, orders.wake(&t, &first)).await.is_err(), "nothing is ordered");
        assert!(orders.lock().boxes.is_empty(), "and nothing is kept of it");
        let waiting = {
            let (orders, t, first) = (orders.clone(), t.clone(), first.clone());
            tokio::spawn(async move { orders.wake(&t, &first).await })
        };
        tokio::task::yield_now().await;
        orders.order(&t, &first, DirectiveBody::Flush);
        timeout(bound, waiting).await.unwrap().unwrap();
        assert!(timeout(bound, orders.wake(&t, &first)).await.is_err(), "once");
        orders.order(&t, &first, DirectiveBody::Flush);
        timeout(bound, orders.wake(&t, &first)).await.unwrap();
        orders.order(&t, &first, DirectiveBody::Flush);
        assert_eq!(orders.of(&t, &first).len(), 1, "one of a kind");
        assert!(timeout(bound, orders.wake(&t, &first)).await.is_err(), "an ack carried it");
        orders.forget(&t, &first);
        assert!(orders.lock().boxes.is_empty());
    }
}
