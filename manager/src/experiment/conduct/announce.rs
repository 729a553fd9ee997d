//! What others are told of the experiment itself, recorded together with what it tells of.

use std::collections::BTreeMap;

use serde_json::Value;
use trial_protocol::{MetricValue, TrialJobId};

use super::ExperimentTask;
use crate::experiment::result::is_better;
use crate::experiment::state::ExperimentState;
use crate::notifications::event::{self, About, Best, Event};
use crate::store;

impl ExperimentTask {
    /// Records where the experiment stands; an end with what others are told of it.
    pub(super) async fn record_state(
        &mut self,
        stands: ExperimentState,
    ) -> Result<(), store::Error> {
        let elapsed = u64::try_from(self.elapsed().as_millis()).unwrap_or(u64::MAX);
        let now = self.deps.clock.now_ms();
        let news = match stands {
            ExperimentState::Done | ExperimentState::Stopped => {
                self.ended_news(stands, now).await?
            }
            ExperimentState::Running
            | ExperimentState::NoMoreTrial
            | ExperimentState::TunerNoMoreTrial
            | ExperimentState::Stopping => None,
        };
        let (store, inbox, word) = (&self.deps.store, &mut self.deps.inbox, stands.as_str());
        match news {
            None => inbox.patiently(|| store.set_experiment_state(word, elapsed, now)).await,
            Some(news) => {
                let record =
                    || store.set_experiment_state_and_notify(word, elapsed, now, news.clone());
                inbox.patiently(record).await?;
                self.deps.waker.ring();
                Ok(())
            }
        }
    }

    async fn ended_news(
        &mut self,
        stands: ExperimentState,
        now: i64,
    ) -> Result<Option<store::NewNotification>, store::Error> {
        let Some(spec) = &self.deps.spec.notifications else { return Ok(None) };
        let mut trials = BTreeMap::new();
        for row in self.deps.inbox.patiently(|| self.deps.store.trials()).await? {
            *trials.entry(row.state.as_str()).or_default() += 1;
        }
        let best = self.best.as_ref();
        let event = event::ended(&self.about(), stands.as_str(), &trials, best, now);
        Ok(event.kept(spec))
    }

    /// Records that too many failures hold the search, for the API and the portal, and notifies of it.
    pub(super) async fn announce_hold(&mut self, why: &str) -> Result<(), store::Error> {
        let event: Event = event::held(&self.about(), why, self.deps.clock.now_ms());
        let news = self.deps.spec.notifications.as_ref().and_then(|spec| event.kept(spec));
        self.record_trouble(Some(why.to_owned()), news).await
    }

    /// Records what is wrong with a tuner or an assessor outside, or that nothing is any more.
    pub(super) async fn troubled(&mut self, trouble: Option<String>) -> Result<(), store::Error> {
        let name = self.deps.advice.outside_name();
        let now = self.deps.clock.now_ms();
        let event = event::trouble(&self.about(), name, trouble.as_deref(), now);
        let news = self.deps.spec.notifications.as_ref().and_then(|spec| event.kept(spec));
        self.record_trouble(trouble, news).await
    }

    async fn record_trouble(
        &mut self,
        trouble: Option<String>,
        news: Option<store::NewNotification>,
    ) -> Result<(), store::Error> {
        let (store, inbox) = (&self.deps.store, &mut self.deps.inbox);
        inbox.patiently(|| store.set_trouble(trouble.clone(), news.clone())).await?;
        self.deps.waker.ring();
        self.trouble = trouble;
        Ok(())
    }

    fn about(&self) -> About {
        About { id: self.deps.id.clone(), name: self.deps.spec.name.clone() }
    }

    /// Remembers a succeeded trial's result if it is the best.
    pub(super) fn compare(
        &mut self,
        trial: &TrialJobId,
        sequence: u64,
        parameters: &Value,
        result: Option<&MetricValue>,
    ) {
        if self.deps.spec.goals.has_several_objectives() {
            return; // None of them is the best.
        }
        let known = self.best.as_ref().map(|best| best.number);
        let number = result.and_then(MetricValue::number);
        if let Some(number) =
            number.filter(|_| is_better(self.deps.spec.optimize_mode, number, known))
        {
            let (trial, parameters) = (trial.clone(), parameters.clone());
            self.best = Some(Best { trial, sequence, number, parameters });
        }
    }
}
