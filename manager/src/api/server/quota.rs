//! The request quota of each trial. TrialKeeper's agent stays far below it. A client that does not must not use up
//! the capacity for all others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Semaphore;
use trial_protocol::TrialJobId;

use super::super::Error;

/// The maximum number of concurrent requests for each pod of a trial, including those that only wait. A trial with few
/// pods has [`MIN_TRIAL_REQUESTS`].
const REQUESTS_PER_POD: usize = 2;
const MIN_TRIAL_REQUESTS: usize = 256;

/// The maximum number of bytes of one trial's bodies in memory: two bodies of the largest size.
const TRIAL_BODY_BYTES: usize = 2 * super::body::BODY_LIMIT_BYTES;

/// The trials with open requests; cheap to clone.
#[derive(Debug, Clone)]
pub(in crate::api) struct Quota {
    /// The maximum number of concurrent requests of one trial.
    requests: usize,
    trials: Arc<Mutex<HashMap<TrialJobId, TrialUsage>>>,
}

#[derive(Debug)]
struct TrialUsage {
    requests: usize,
    bytes: Arc<Semaphore>,
}

/// An open request of a trial. Dropping it ends its use of the quota.
#[derive(Debug)]
pub(in crate::api) struct RequestPermit {
    quota: Quota,
    trial: TrialJobId,
    /// The trial's share of the memory.
    pub(in crate::api) bytes: Arc<Semaphore>,
}

impl Quota {
    /// Returns the quota of trials with at most `pods` concurrent pods.
    pub(in crate::api) fn new(pods: u64) -> Self {
        let pods = usize::try_from(pods).unwrap_or(usize::MAX);
        let requests = pods.saturating_mul(REQUESTS_PER_POD).max(MIN_TRIAL_REQUESTS);
        Self { requests, trials: Arc::default() }
    }

    /// Admits another request of the trial. If the quota is used up, returns an error that asks the client to retry.
    pub(in crate::api) fn admit(&self, trial: &TrialJobId) -> Result<RequestPermit, Error> {
        let mut trials = self.lock();
        let new = || TrialUsage { requests: 0, bytes: Arc::new(Semaphore::new(TRIAL_BODY_BYTES)) };
        let used = trials.entry(trial.clone()).or_insert_with(new);
        if used.requests >= self.requests {
            return Err(Error::TooMany);
        }
        used.requests += 1;
        let bytes = Arc::clone(&used.bytes);
        Ok(RequestPermit { quota: self.clone(), trial: trial.clone(), bytes })
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<TrialJobId, TrialUsage>> {
        self.trials.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestPermit {
    fn drop(&mut self) {
        let mut trials = self.quota.lock();
        let Some(used) = trials.get_mut(&self.trial) else { return };
        used.requests -= 1;
        if used.requests == 0 {
            trials.remove(&self.trial);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_requests_of_each_trial_are_bounded() {
        let (t, u) = (TrialJobId::new("t").unwrap(), TrialJobId::new("u").unwrap());
        for (pods, requests) in [(1, 256), (128, 256), (129, 258), (10_000, 20_000)] {
            expect_bound(&Quota::new(pods), requests, &t, &u);
        }
    }

    fn expect_bound(quota: &Quota, requests: usize, t: &TrialJobId, u: &TrialJobId) {
        let mut permits: Vec<_> = (0..requests).map(|_| quota.admit(t).unwrap()).collect();
        assert_eq!(quota.admit(t).unwrap_err().parts().1, "too-many-requests");
        assert!(quota.admit(u).is_ok());
        permits.pop();
        permits.push(quota.admit(t).unwrap());
        assert!(Arc::ptr_eq(&permits[0].bytes, &permits[1].bytes), "the memory is shared");
        drop(permits);
        assert!(quota.lock().is_empty(), "trials without requests are removed");
    }
}
