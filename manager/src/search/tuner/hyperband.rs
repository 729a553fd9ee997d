//! Hyperband (Li and others, 2018), after NNI 3.0's `nni/algorithms/hpo/hyperband_advisor.py`: brackets of random
//! points that begin with a small budget; of each round the better 1/`eta` go on with `eta` times as much. The
//! budget reaches the trial as the parameter `TRIAL_BUDGET`; a point that goes on is a new trial.
//!
//! A trial that failed never goes on (NNI's Hyperband ends where too many did). Which place a proposal has follows
//! from the parameters, with their budget, of it and of those before it alone, see [`Hyperband::place`]: a rebuilt tuner
//! knows no more, and where equal points make several places possible, the one that lived chose in the same way.

mod model;

use serde_json::Value;

use self::model::Model;
use super::end::TrialProgress;
use super::random::generator;
use super::{Error, OptimizeMode, Outcome, Proposal, Sample, Setting, TRIAL_BUDGET, Tuner};
use crate::search::class_args::Arguments;
use crate::search::search_space::{Parameters, SearchSpace};

/// The largest budget that can be given.
const LARGEST: u64 = 1_000_000_000;

/// NNI's `Hyperband`.
#[derive(Debug)]
pub(super) struct Hyperband {
    space: SearchSpace,
    seed: u64,
    mode: OptimizeMode,
    /// `R`: the largest budget of one trial.
    largest: u64,
    /// The least budget of one trial.
    least: u64,
    eta: u64,
    /// `exec_mode`: whether a bracket waits for the one before it.
    serial: bool,
    brackets: Vec<Bracket>,
    /// The suggestion of new points. `None`: they are random.
    model: Option<Model>,
}

/// Rounds of rising budget.
#[derive(Debug)]
struct Bracket {
    /// Number of points and budget of each round.
    plan: Vec<(usize, u64)>,
    rounds: Vec<Vec<RoundTrial>>,
}

/// A trial of a round.
#[derive(Debug)]
struct RoundTrial {
    id: u64,
    /// Without the budget.
    parameters: Parameters,
    /// `true` if the space contains them: one that was made for another space goes no further.
    fits: bool,
    end: TrialProgress,
}

impl Bracket {
    /// The trials of a round that go on, the better ones first; none while one of the round runs or is still to begin.
    fn promoted(&self, round: usize) -> Vec<&Parameters> {
        let members = &self.rounds[round];
        let due = self.due(round);
        if members.len() < due || members.iter().any(|member| member.end == TrialProgress::Running)
        {
            return Vec::new();
        }
        let mut ranked: Vec<_> =
            members.iter().filter(|m| m.fits).filter_map(|m| Some((m.end.loss()?, m))).collect();
        // Of equal ones the earlier goes first.
        ranked.sort_by(|(a, one), (b, other)| a.total_cmp(b).then(one.id.cmp(&other.id)));
        let places = self.plan.get(round + 1).map_or(0, |(count, _)| *count);
        ranked.into_iter().take(places).map(|(_, member)| &member.parameters).collect()
    }

    /// Returns the number of points that a round will have, failures before it considered.
    fn due(&self, round: usize) -> usize {
        if round == 0 {
            return self.plan[0].0;
        }
        self.promoted(round - 1).len().max(self.rounds[round].len())
    }

    /// The first of those that go on into a round which is not in it yet.
    fn next_into(&self, round: usize) -> Option<&Parameters> {
        let mut there: Vec<_> = self.rounds[round].iter().map(|m| &m.parameters).collect();
        self.promoted(round - 1).into_iter().find(|parameters| {
            let known = there.iter().position(|known| known == parameters);
            known.map(|at| there.swap_remove(at)).is_none()
        })
    }

    /// Returns the number of members of a round that have these parameters.
    fn count(&self, round: usize, parameters: &Parameters) -> usize {
        self.rounds[round].iter().filter(|member| member.parameters == *parameters).count()
    }

    /// Returns whether new points are still to be drawn for it.
    fn has_room(&self) -> bool {
        self.rounds[0].len() < self.plan[0].0
    }

    /// Returns whether nothing of it is left to be proposed or awaited.
    fn is_over(&self) -> bool {
        let last = (0..self.plan.len()).rev().find(|round| !self.rounds[*round].is_empty());
        last.is_some_and(|round| {
            let members = &self.rounds[round];
            members.len() == self.due(round)
                && members.iter().all(|member| member.end != TrialProgress::Running)
                && self.promoted(round).is_empty()
        })
    }
}

impl Hyperband {
    /// Reads Hyperband's `classArgs`.
    pub(super) fn from_arguments(
        arguments: &mut Arguments<'_>,
        space: &SearchSpace,
        setting: Setting<'_>,
    ) -> Result<Self, Error> {
        let largest = arguments.integer("R", 1..=LARGEST)?.unwrap_or(60);
        Self::with_budgets((1, largest), arguments, space, setting)
    }

    /// Reads BOHB's `classArgs`.
    pub(super) fn with_model(
        arguments: &mut Arguments<'_>,
        space: &SearchSpace,
        setting: Setting<'_>,
    ) -> Result<Self, Error> {
        let model = Model::from_arguments(arguments, space)?;
        let least = arguments.integer("min_budget", 1..=LARGEST)?.unwrap_or(1);
        let largest = arguments.integer("max_budget", 1..=LARGEST)?.unwrap_or(27);
        if least > largest {
            let problem = format!("is {least}, more than `max_budget`, {largest}");
            return arguments.fault("min_budget", problem);
        }
        let hyperband = Self::with_budgets((least, largest), arguments, space, setting)?;
        Ok(Self { model: Some(model), ..hyperband })
    }

    fn with_budgets(
        (least, largest): (u64, u64),
        arguments: &mut Arguments<'_>,
        space: &SearchSpace,
        Setting { seed, mode, .. }: Setting<'_>,
    ) -> Result<Self, Error> {
        let eta = arguments.integer("eta", 2..=1_000_000)?.unwrap_or(3);
        let serial = arguments.word("exec_mode", &["parallelism", "serial"])? == Some("serial");
        if space.names().any(|name| name == TRIAL_BUDGET) {
            let path = format!("searchSpace.{TRIAL_BUDGET}");
            let problem = "the tuner gives this parameter itself; leave it out".to_owned();
            return Err(Error { path, problem });
        }
        let (space, brackets) = (space.clone(), Vec::new());
        Ok(Self { space, seed, mode, largest, least, eta, serial, brackets, model: None })
    }

    /// The plan of the next bracket: the first one has the most rounds, the last one has one, then again.
    fn next_plan(&self) -> Vec<(usize, u64)> {
        let powers = std::iter::successors(Some(1_u64), |power| power.checked_mul(self.eta));
        let powers: Vec<u64> =
            powers.take_while(|power| *power <= self.largest / self.least).collect();
        let kinds = powers.len();
        let s = kinds - 1 - self.brackets.len() % kinds;
        let count = |n: usize| u64::try_from(n).unwrap_or(u64::MAX);
        // n = ceil((s_max + 1) eta^s / (s + 1)) points with the budget R / eta^s.
        let points = count(kinds).saturating_mul(powers[s]).div_ceil(count(s + 1));
        let round = |i: usize| {
            let points = usize::try_from(points / powers[i]).unwrap_or(usize::MAX);
            (points, self.largest.saturating_mul(powers[i]) / powers[s])
        };
        (0..=s).map(round).take_while(|(points, _)| *points > 0).collect()
    }

    /// The first point that may go on, and the budget of its next round.
    fn next_promoted(&self) -> Option<(Parameters, u64)> {
        self.brackets.iter().find_map(|bracket| {
            (1..bracket.plan.len())
                .find_map(|round| Some((bracket.next_into(round)?.clone(), bracket.plan[round].1)))
        })
    }

    /// A new point.
    fn fresh(&self, id: u64) -> Parameters {
        match &self.model {
            Some(model) => model.fresh(self, id),
            None => self.space.sample(&mut generator(self.seed, id)),
        }
    }

    /// Returns whether parameters were proposed, with any budget.
    fn has_tried(&self, parameters: &Parameters) -> bool {
        let mut rounds = self.brackets.iter().flat_map(|bracket| &bracket.rounds);
        rounds.any(|members| members.iter().any(|member| member.parameters == *parameters))
    }

    /// The place of a proposal: its bracket and its round. One that is the new point of its number, with the
    /// budget of new points, is that; another one goes on from the first round that holds it more often than the
    /// next one does.
    fn place(
        &mut self,
        id: u64,
        parameters: &Parameters,
        budget: Option<u64>,
    ) -> Option<(usize, usize)> {
        let first = match self.brackets.iter().find(|bracket| bracket.has_room()) {
            Some(bracket) => bracket.plan[0].1,
            None => self.next_plan()[0].1,
        };
        // What a model suggested follows from results, too, which a rebuilt tuner learns later; but it was never tried.
        if self.model.is_none() && budget == Some(first) && *parameters == self.fresh(id) {
            return Some((self.open(true)?, 0));
        }
        let promoted = self.brackets.iter().enumerate().find_map(|(at, bracket)| {
            (1..bracket.plan.len()).find_map(|round| {
                let fits = Some(bracket.plan[round].1) == budget;
                let left =
                    || bracket.count(round - 1, parameters) > bracket.count(round, parameters);
                (fits && left()).then_some((at, round))
            })
        });
        promoted.or_else(|| Some((self.open(true)?, 0)))
    }

    /// A bracket with room for new points; opens one if `may_open`.
    fn open(&mut self, may_open: bool) -> Option<usize> {
        if let Some(at) = self.brackets.iter().position(Bracket::has_room) {
            return Some(at);
        }
        if !may_open {
            return None;
        }
        let plan = self.next_plan();
        let rounds = plan.iter().map(|_| Vec::new()).collect();
        self.brackets.push(Bracket { plan, rounds });
        Some(self.brackets.len() - 1)
    }

    /// Takes a proposal in.
    fn enter(&mut self, id: u64, parameters: Parameters, budget: Option<u64>) {
        let fits = self.space.validate(&parameters).is_ok();
        if let Some((at, round)) = self.place(id, &parameters, budget) {
            let member = RoundTrial { id, parameters, fits, end: TrialProgress::Running };
            self.brackets[at].rounds[round].push(member);
        }
    }
}

impl Tuner for Hyperband {
    fn propose(&mut self, id: u64) -> Proposal {
        let (mut parameters, budget) = match self.next_promoted() {
            Some(found) => found,
            None => {
                let may_open = !self.serial || self.brackets.iter().all(Bracket::is_over);
                let Some(at) = self.open(may_open) else { return Proposal::Wait };
                (self.fresh(id), self.brackets[at].plan[0].1)
            }
        };
        self.enter(id, parameters.clone(), Some(budget));
        parameters.insert(TRIAL_BUDGET.to_owned(), Value::from(budget));
        Proposal::Parameters(parameters)
    }

    fn adopt(&mut self, id: u64, parameters: &Parameters) {
        let mut parameters = parameters.clone();
        let budget = parameters.shift_remove(TRIAL_BUDGET).and_then(|budget| budget.as_u64());
        self.enter(id, parameters, budget);
    }

    fn observe(&mut self, id: u64, outcome: &Outcome) {
        let end = TrialProgress::new(outcome, self.mode);
        let rounds = self.brackets.iter_mut().flat_map(|bracket| &mut bracket.rounds);
        if let Some(member) = rounds.flatten().find(|member| member.id == id) {
            member.end = end;
        }
    }

    /// A bracket holds its own trials only; NNI's passes over what is imported, too.
    fn import(&mut self, _samples: &[Sample]) {}
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use trial_protocol::MetricValue;

    use super::super::{Goals, TunerSpec, build};
    use super::*;

    fn hyperband(args: &Value) -> Box<dyn Tuner> {
        let space = json!({"x": {"_type": "uniform", "_value": [0, 1]}});
        let spec = TunerSpec::new("hyperband", args.as_object().unwrap().clone()).unwrap();
        build(&spec, &SearchSpace::parse(&space).unwrap(), 7).unwrap()
    }

    /// Returns the proposal: x and the budget.
    fn proposed(tuner: &mut dyn Tuner, id: u64) -> Option<(f64, u64)> {
        match tuner.propose(id) {
            Proposal::Parameters(p) => Some((p["x"].as_f64()?, p[TRIAL_BUDGET].as_u64()?)),
            Proposal::Wait => None,
            Proposal::Exhausted => panic!("never"),
        }
    }

    fn told(tuner: &mut dyn Tuner, id: u64, x: f64) {
        tuner.observe(id, &Outcome::Result(MetricValue::from(x)));
    }

    #[test]
    fn brackets_are_those_of_the_paper() {
        // NNI's table for R = 81, eta = 3: number of points and budget of each round.
        let expected: [&[(usize, u64)]; 6] = [
            &[(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
            &[(34, 3), (11, 9), (3, 27), (1, 81)],
            &[(15, 9), (5, 27), (1, 81)],
            &[(8, 27), (2, 81)],
            &[(5, 81)],
            &[(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        ];
        let args = json!({"R": 81, "eta": 3}).as_object().unwrap().clone();
        let mut arguments = Arguments::new("tuner", &args);
        let space = SearchSpace::parse(&json!({"x": {"_type": "uniform", "_value": [0, 1]}}));
        let setting = Setting { seed: 0, mode: OptimizeMode::Maximize, goals: &Goals::default() };
        let mut tuner =
            Hyperband::from_arguments(&mut arguments, &space.unwrap(), setting).unwrap();
        for plan in expected {
            assert_eq!(tuner.next_plan(), plan);
            tuner.brackets.push(Bracket { plan: Vec::new(), rounds: Vec::new() });
        }
    }

    #[test]
    fn the_better_ones_go_on_with_more() {
        let mut tuner = hyperband(&json!({"R": 4, "eta": 2, "exec_mode": "serial"}));
        let tuner = tuner.as_mut();
        // n = ceil(3 * 4 / 3) = 4 points with 1; the better 2 with 2; the best with 4.
        let first: Vec<_> = (0..4).map(|id| proposed(tuner, id).unwrap()).collect();
        assert!(first.iter().all(|(_, budget)| *budget == 1));
        assert_eq!(proposed(tuner, 4), None, "the round is not over");
        for (id, (x, _)) in (0..3).zip(&first) {
            told(tuner, id, *x);
        }
        tuner.observe(3, &Outcome::Failed);
        let mut ranked: Vec<f64> = first[..3].iter().map(|(x, _)| *x).collect();
        ranked.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(proposed(tuner, 4), Some((ranked[0], 2)));
        assert_eq!(proposed(tuner, 5), Some((ranked[1], 2)));
        assert_eq!(proposed(tuner, 6), None);
        told(tuner, 4, 0.1);
        told(tuner, 5, 0.2);
        assert_eq!(
            proposed(tuner, 6),
            Some((ranked[1], 4)),
            "results with the larger budget count"
        );
        assert_eq!(proposed(tuner, 7), None, "the next bracket waits");
        tuner.observe(6, &Outcome::Failed);
        let (_, budget) = proposed(tuner, 7).unwrap();
        assert_eq!(budget, 2, "the next bracket begins with more");
    }

    #[test]
    fn a_round_of_failures_ends_its_bracket() {
        let mut tuner = hyperband(&json!({"R": 2, "eta": 2, "exec_mode": "serial"}));
        let tuner = tuner.as_mut();
        for id in 0..2 {
            assert_eq!(proposed(tuner, id).unwrap().1, 1);
        }
        for id in 0..2 {
            tuner.observe(id, &Outcome::Failed);
        }
        assert_eq!(proposed(tuner, 2).unwrap().1, 2, "of the next bracket");
    }

    #[test]
    fn a_rebuilt_tuner_goes_on_as_the_lost_one_would_have() {
        for mode in ["parallelism", "serial"] {
            let args = json!({"R": 9, "eta": 3, "exec_mode": mode});
            let mut lost = hyperband(&args);
            let mut story: Vec<(u64, Parameters)> = Vec::new();
            for id in 0..40 {
                let Proposal::Parameters(parameters) = lost.propose(id) else { panic!("{mode}") };
                let x = parameters["x"].as_f64().unwrap();
                told(lost.as_mut(), id, x);
                story.push((id, parameters));
                let mut rebuilt = hyperband(&args);
                for (id, parameters) in &story {
                    rebuilt.adopt(*id, parameters);
                    told(rebuilt.as_mut(), *id, parameters["x"].as_f64().unwrap());
                }
                let again = rebuilt.propose(id + 1);
                let mut copy = hyperband(&args);
                for (id, _) in &story {
                    drop(copy.propose(*id));
                    told(
                        copy.as_mut(),
                        *id,
                        story[usize::try_from(*id).unwrap()].1["x"].as_f64().unwrap(),
                    );
                }
                assert_eq!(again, copy.propose(id + 1), "{mode} {id}");
            }
        }
    }
}
