//! Hyperband (Li and others, 2018), after NNI 3.0's `nni/algorithms/hpo/hyperband_advisor.py`. A bracket begins with
//! random points and a small budget. In each round, the better 1/`eta` of the points continue with `eta` times the
//! budget. A trial receives its budget as the parameter `TRIAL_BUDGET`. A point that continues is a new trial.
//!
//! The point of a failed trial never continues. (NNI's Hyperband ends if too many trials fail.) The place of a proposal
//! depends only on the parameters and budgets of this and all earlier proposals, see [`Hyperband::place`]. So a rebuilt
//! tuner assigns the same places, even if equal points allow several.

mod model;

use serde_json::Value;
use trial_protocol::Direction;

use self::model::Model;
use super::random::generator;
use super::trial_progress::TrialProgress;
use super::{Error, Outcome, Proposal, Sample, TRIAL_BUDGET, Tuner, TunerSettings};
use crate::search::class_args::Arguments;
use crate::search::search_space::{Parameters, SearchSpace};

/// The maximum of the largest budget.
const MAX_BUDGET: u64 = 1_000_000_000;

/// NNI's `Hyperband`.
#[derive(Debug)]
pub(super) struct Hyperband {
    space: SearchSpace,
    seed: u64,
    direction: Direction,
    /// `R`: the largest budget of a trial.
    largest: u64,
    /// The smallest budget of a trial.
    least: u64,
    eta: u64,
    /// `exec_mode`: `true` if a bracket waits for the end of the previous bracket.
    serial: bool,
    brackets: Vec<Bracket>,
    /// The model that suggests new points. `None` if they are random.
    model: Option<Model>,
    /// The results from elsewhere, for the model. A bracket contains only its own trials.
    imported: Vec<ImportedResult>,
}

/// A result from elsewhere.
#[derive(Debug)]
struct ImportedResult {
    /// The parameters without the budget.
    parameters: Parameters,
    budget: u64,
    end: TrialProgress,
}

/// A bracket: rounds with a rising budget.
#[derive(Debug)]
struct Bracket {
    /// The number of points and the budget of each round.
    plan: Vec<(usize, u64)>,
    rounds: Vec<Vec<RoundTrial>>,
}

/// A trial of a round.
#[derive(Debug)]
struct RoundTrial {
    id: u64,
    /// The parameters without the budget.
    parameters: Parameters,
    /// `true` if the space contains the parameters. After a change of the space, other trials do not continue.
    fits: bool,
    end: TrialProgress,
}

impl Bracket {
    /// Returns the parameters of a round that continue, the best first. Empty while trials of the round run or are
    /// missing.
    fn promoted(&self, round: usize) -> Vec<&Parameters> {
        let members = &self.rounds[round];
        let due = self.planned_count(round);
        if members.len() < due || members.iter().any(|member| member.end == TrialProgress::Running)
        {
            return Vec::new();
        }
        let mut ranked: Vec<_> =
            members.iter().filter(|m| m.fits).filter_map(|m| Some((m.end.loss()?, m))).collect();
        // Of equal losses, the earlier trial is first.
        ranked.sort_by(|(a, one), (b, other)| a.total_cmp(b).then(one.id.cmp(&other.id)));
        let places = self.plan.get(round + 1).map_or(0, |(count, _)| *count);
        ranked.into_iter().take(places).map(|(_, member)| &member.parameters).collect()
    }

    /// Returns the number of points that a round will have, which is lower after failures in earlier rounds.
    fn planned_count(&self, round: usize) -> usize {
        if round == 0 {
            return self.plan[0].0;
        }
        self.promoted(round - 1).len().max(self.rounds[round].len())
    }

    /// Returns the first parameters that continue into a round and are not in it yet.
    fn next_into(&self, round: usize) -> Option<&Parameters> {
        let mut there: Vec<_> = self.rounds[round].iter().map(|m| &m.parameters).collect();
        self.promoted(round - 1).into_iter().find(|parameters| {
            let known = there.iter().position(|known| known == parameters);
            known.map(|at| there.swap_remove(at)).is_none()
        })
    }

    /// Returns the number of trials in a round with these parameters.
    fn count(&self, round: usize, parameters: &Parameters) -> usize {
        self.rounds[round].iter().filter(|member| member.parameters == *parameters).count()
    }

    /// Returns whether the bracket needs more new points.
    fn has_room(&self) -> bool {
        self.rounds[0].len() < self.plan[0].0
    }

    /// Returns whether all trials of the bracket have ended and no point continues.
    fn is_over(&self) -> bool {
        let last = (0..self.plan.len()).rev().find(|round| !self.rounds[*round].is_empty());
        last.is_some_and(|round| {
            let members = &self.rounds[round];
            members.len() == self.planned_count(round)
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
        setting: TunerSettings<'_>,
    ) -> Result<Self, Error> {
        let largest = arguments.integer("R", 1..=MAX_BUDGET)?.unwrap_or(60);
        Self::with_budgets((1, largest), arguments, space, setting)
    }

    /// Reads BOHB's `classArgs`.
    pub(super) fn with_model(
        arguments: &mut Arguments<'_>,
        space: &SearchSpace,
        setting: TunerSettings<'_>,
    ) -> Result<Self, Error> {
        let model = Model::from_arguments(arguments, space)?;
        let least = arguments.integer("min_budget", 1..=MAX_BUDGET)?.unwrap_or(1);
        let largest = arguments.integer("max_budget", 1..=MAX_BUDGET)?.unwrap_or(3);
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
        TunerSettings { seed, direction, .. }: TunerSettings<'_>,
    ) -> Result<Self, Error> {
        let eta = arguments.integer("eta", 2..=1_000_000)?.unwrap_or(3);
        let serial = arguments.one_of("exec_mode", &["parallelism", "serial"])? == Some("serial");
        if space.names().any(|name| name == TRIAL_BUDGET) {
            let path = format!("searchSpace.{TRIAL_BUDGET}");
            let problem =
                "the tuner sets this parameter; remove it from the search space".to_owned();
            return Err(Error { path, problem });
        }
        Ok(Self {
            space: space.clone(),
            seed,
            direction,
            largest,
            least,
            eta,
            serial,
            brackets: Vec::new(),
            model: None,
            imported: Vec::new(),
        })
    }

    /// Returns the plan of the next bracket. The first bracket has the most rounds, each further bracket one less,
    /// and after a bracket with one round the sequence repeats.
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

    /// Returns the first point that may continue, and the budget of its next round.
    fn next_promoted(&self) -> Option<(Parameters, u64)> {
        self.brackets.iter().find_map(|bracket| {
            (1..bracket.plan.len())
                .find_map(|round| Some((bracket.next_into(round)?.clone(), bracket.plan[round].1)))
        })
    }

    /// Returns a new point.
    fn new_point(&self, id: u64) -> Parameters {
        match &self.model {
            Some(model) => model.new_point(self, id),
            None => self.space.sample(&mut generator(self.seed, id)),
        }
    }

    /// Returns whether parameters were proposed or imported, with any budget.
    fn has_tried(&self, parameters: &Parameters) -> bool {
        let mut rounds = self.brackets.iter().flat_map(|bracket| &bracket.rounds);
        rounds.any(|members| members.iter().any(|member| member.parameters == *parameters))
            || self.imported.iter().any(|result| result.parameters == *parameters)
    }

    /// Returns the place of a proposal: its bracket and its round.
    ///
    /// If the proposal equals the new point for its number and has the budget of new points, its place is in a first
    /// round. Otherwise, it continues from the first round that contains its parameters more often than the next
    /// round does.
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
        // A model's suggestion also depends on results, which a rebuilt tuner receives later. But a suggestion is
        // always new, so it cannot be a point that continues.
        if self.model.is_none() && budget == Some(first) && *parameters == self.new_point(id) {
            return Some((self.find_or_open_bracket(true)?, 0));
        }
        let promoted = self.brackets.iter().enumerate().find_map(|(at, bracket)| {
            (1..bracket.plan.len()).find_map(|round| {
                let fits = Some(bracket.plan[round].1) == budget;
                let left =
                    || bracket.count(round - 1, parameters) > bracket.count(round, parameters);
                (fits && left()).then_some((at, round))
            })
        });
        promoted.or_else(|| Some((self.find_or_open_bracket(true)?, 0)))
    }

    /// Returns a bracket that needs new points. Opens a bracket if there is none and `may_open` is set.
    fn find_or_open_bracket(&mut self, may_open: bool) -> Option<usize> {
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

    /// Adds a proposal to its round.
    fn add_member(&mut self, id: u64, parameters: Parameters, budget: Option<u64>) {
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
                let Some(at) = self.find_or_open_bracket(may_open) else { return Proposal::Wait };
                (self.new_point(id), self.brackets[at].plan[0].1)
            }
        };
        self.add_member(id, parameters.clone(), Some(budget));
        parameters.insert(TRIAL_BUDGET.to_owned(), Value::from(budget));
        Proposal::Parameters(parameters)
    }

    fn adopt(&mut self, id: u64, parameters: &Parameters) {
        let mut parameters = parameters.clone();
        let budget = parameters.shift_remove(TRIAL_BUDGET).and_then(|budget| budget.as_u64());
        self.add_member(id, parameters, budget);
    }

    fn observe(&mut self, id: u64, outcome: &Outcome) {
        let end = TrialProgress::new(outcome, self.direction);
        let rounds = self.brackets.iter_mut().flat_map(|bracket| &mut bracket.rounds);
        if let Some(member) = rounds.flatten().find(|member| member.id == id) {
            member.end = end;
        }
    }

    /// Adds results for the model. Without a budget, a result has the largest one, as in NNI. Without a model, results
    /// have no use, because a bracket contains only its own trials.
    fn import(&mut self, samples: &[Sample]) {
        if self.model.is_none() {
            return;
        }
        for Sample { parameters, value } in samples {
            let mut parameters = parameters.clone();
            let budget = parameters.shift_remove(TRIAL_BUDGET).and_then(|budget| budget.as_u64());
            let budget = budget.unwrap_or(self.largest);
            let end = TrialProgress::new(&Outcome::Result(value.clone()), self.direction);
            self.imported.push(ImportedResult { parameters, budget, end });
        }
    }
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

    /// Returns the next proposal: x and the budget.
    fn propose_point(tuner: &mut dyn Tuner, id: u64) -> Option<(f64, u64)> {
        match tuner.propose(id) {
            Proposal::Parameters(p) => Some((p["x"].as_f64()?, p[TRIAL_BUDGET].as_u64()?)),
            Proposal::Wait => None,
            Proposal::Exhausted => panic!("never"),
        }
    }

    fn observe_result(tuner: &mut dyn Tuner, id: u64, x: f64) {
        tuner.observe(id, &Outcome::Result(MetricValue::from(x)));
    }

    #[test]
    fn brackets_are_planned_as_in_the_paper() {
        // NNI's table for R = 81, eta = 3: the number of points and the budget of each round.
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
        let setting =
            TunerSettings { seed: 0, direction: Direction::Maximize, goals: &Goals::default() };
        let mut tuner =
            Hyperband::from_arguments(&mut arguments, &space.unwrap(), setting).unwrap();
        for plan in expected {
            assert_eq!(tuner.next_plan(), plan);
            tuner.brackets.push(Bracket { plan: Vec::new(), rounds: Vec::new() });
        }
    }

    #[test]
    fn better_points_continue_with_a_larger_budget() {
        let mut tuner = hyperband(&json!({"R": 4, "eta": 2, "exec_mode": "serial"}));
        let tuner = tuner.as_mut();
        // n = ceil(3 * 4 / 3) = 4 points with 1; the better 2 with 2; the best with 4.
        let first: Vec<_> = (0..4).map(|id| propose_point(tuner, id).unwrap()).collect();
        assert!(first.iter().all(|(_, budget)| *budget == 1));
        assert_eq!(propose_point(tuner, 4), None, "the round is not over");
        for (id, (x, _)) in (0..3).zip(&first) {
            observe_result(tuner, id, *x);
        }
        tuner.observe(3, &Outcome::Failed);
        let mut ranked: Vec<f64> = first[..3].iter().map(|(x, _)| *x).collect();
        ranked.sort_by(|a, b| b.total_cmp(a));
        assert_eq!(propose_point(tuner, 4), Some((ranked[0], 2)));
        assert_eq!(propose_point(tuner, 5), Some((ranked[1], 2)));
        assert_eq!(propose_point(tuner, 6), None);
        observe_result(tuner, 4, 0.1);
        observe_result(tuner, 5, 0.2);
        assert_eq!(
            propose_point(tuner, 6),
            Some((ranked[1], 4)),
            "results with the larger budget count"
        );
        assert_eq!(propose_point(tuner, 7), None, "the next bracket waits");
        tuner.observe(6, &Outcome::Failed);
        let (_, budget) = propose_point(tuner, 7).unwrap();
        assert_eq!(budget, 2, "the next bracket begins with a larger budget");
    }

    #[test]
    fn a_round_of_failures_ends_its_bracket() {
        let mut tuner = hyperband(&json!({"R": 2, "eta": 2, "exec_mode": "serial"}));
        let tuner = tuner.as_mut();
        for id in 0..2 {
            assert_eq!(propose_point(tuner, id).unwrap().1, 1);
        }
        for id in 0..2 {
            tuner.observe(id, &Outcome::Failed);
        }
        assert_eq!(propose_point(tuner, 2).unwrap().1, 2, "the next bracket begins");
    }

    #[test]
    fn a_rebuilt_tuner_continues_like_the_lost_tuner() {
        for mode in ["parallelism", "serial"] {
            let args = json!({"R": 9, "eta": 3, "exec_mode": mode});
            let mut lost = hyperband(&args);
            let mut story: Vec<(u64, Parameters)> = Vec::new();
            for id in 0..40 {
                let Proposal::Parameters(parameters) = lost.propose(id) else { panic!("{mode}") };
                let x = parameters["x"].as_f64().unwrap();
                observe_result(lost.as_mut(), id, x);
                story.push((id, parameters));
                let mut rebuilt = hyperband(&args);
                for (id, parameters) in &story {
                    rebuilt.adopt(*id, parameters);
                    observe_result(rebuilt.as_mut(), *id, parameters["x"].as_f64().unwrap());
                }
                let again = rebuilt.propose(id + 1);
                let mut copy = hyperband(&args);
                for (id, _) in &story {
                    drop(copy.propose(*id));
                    observe_result(
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
