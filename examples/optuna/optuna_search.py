"""An ask-and-tell program for `tuner.command` that uses Optuna as the tuner (see docs/ask-and-tell.md).

Requires only `pip install optuna`. `classArgs`: `sampler` (TPE, Random, GP, CmaEs; default TPE) and `pruner`
(none, Median, Hyperband; default none).
"""

import json
import math
import sys

import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import TrialState, create_trial


def send(**message):
    print(json.dumps(message), flush=True)


def distribution(place, entry):
    """Returns Optuna's distribution of a parameter. A choice is represented by its index, because options can be any value."""
    kind, value = entry["_type"], entry["_value"]
    if kind == "choice":
        return CategoricalDistribution(range(len(value)))
    if kind == "randint":
        return IntDistribution(value[0], value[1] - 1)
    if kind == "lograndint":
        return IntDistribution(value[0], value[1] - 1, log=True)
    if kind in ("uniform", "quniform"):
        return FloatDistribution(value[0], value[1])
    if kind in ("loguniform", "qloguniform"):
        return FloatDistribution(value[0], value[1], log=True)
    sys.exit(f"optuna_search.py: {place}: Optuna has no `{kind}`; use uniform or loguniform")


def suggest(trial, place, entry):
    found = distribution(place, entry)
    if isinstance(found, CategoricalDistribution):
        return trial.suggest_categorical(place, found.choices)
    if isinstance(found, IntDistribution):
        return trial.suggest_int(place, found.low, found.high, log=found.log)
    number = trial.suggest_float(place, found.low, found.high, log=found.log)
    value = entry["_value"]
    if len(value) == 3:
        number = min(max(round(number / value[2]) * value[2], value[0]), value[1])
    return number


def nested(option):
    """Returns the search space of an option that has parameters, else None."""
    if not (isinstance(option, dict) and "_name" in option):
        return None
    return {name: entry for name, entry in option.items() if name != "_name"}


def propose(trial, space, path=""):
    """Returns parameters that Optuna suggests."""
    parameters = {}
    for name, entry in space.items():
        place = path + name
        parameters[name] = suggest(trial, place, entry)
        if entry["_type"] == "choice":
            option = parameters[name] = entry["_value"][parameters[name]]
            below = nested(option)
            if below is not None:
                inner = propose(trial, below, f"{place}/{option['_name']}/")
                parameters[name] = {"_name": option["_name"], **inner}
    return parameters


def to_optuna(parameters, space, path=""):
    """Returns Optuna's values and distributions for parameters that another process proposed."""
    params, distributions = {}, {}
    for name, entry in space.items():
        place, value = path + name, parameters[name]
        params[place], distributions[place] = value, distribution(place, entry)
        if entry["_type"] == "choice":
            options = entry["_value"]
            for at, option in enumerate(options):
                below = nested(option)
                if below is None and option == value:
                    params[place] = at
                elif below is not None and isinstance(value, dict) and value["_name"] == option["_name"]:
                    params[place] = at
                    more = to_optuna(value, below, f"{place}/{option['_name']}/")
                    params.update(more[0])
                    distributions.update(more[1])
    return params, distributions


def number(value):
    """Parses a number of the protocol: a JSON number, or one of three words."""
    return float(value) if value is not None else None


class Search:
    def __init__(self, hello):
        args = hello["class_args"]
        seed = hello["seed"] % 2**32
        self.space = hello["search_space"]
        samplers = {
            "TPE": lambda: optuna.samplers.TPESampler(seed=seed, constant_liar=hello["concurrency"] > 1),
            "Random": lambda: optuna.samplers.RandomSampler(seed=seed),
            "GP": lambda: optuna.samplers.GPSampler(seed=seed),
            "CmaEs": lambda: optuna.samplers.CmaEsSampler(seed=seed),
        }
        pruners = {
            "none": optuna.pruners.NopPruner,
            "Median": optuna.pruners.MedianPruner,
            "Hyperband": optuna.pruners.HyperbandPruner,
        }
        self.study = optuna.create_study(
            direction=hello["optimize_mode"],
            sampler=samplers[args.get("sampler", "TPE")](),
            pruner=pruners[args.get("pruner", "none")](),
        )
        self.open_trials = {}

    def handle(self, message):
        kind = message["type"]
        trial = self.open_trials.get(message.get("id"))
        if kind == "propose":
            trial = self.study.ask()
            self.open_trials[message["id"]] = trial
            send(type="proposal", id=message["id"], parameters=propose(trial, self.space))
        elif kind == "intermediate" and trial is not None:
            value = number(message["value"])
            if value is not None and math.isfinite(value):
                trial.report(value, message["sequence"])
                if trial.should_prune():
                    send(type="stop", trial=message["trial"], reason="pruned by Optuna")
        elif kind == "ended":
            self.ended(trial, message)
        elif kind == "import":
            for known in message["samples"]:
                self.add(known["parameters"], number(known["value"]))
        elif kind == "search_space":
            self.space = message["search_space"]

    def ended(self, trial, message):
        value = number(message["value"])
        if value is not None and not math.isfinite(value):
            value = None
        if trial is None:  # Another process proposed this trial.
            self.add(message["parameters"], value)
        elif value is None:
            self.study.tell(trial, state=TrialState.FAIL)
        else:
            self.study.tell(trial, value)

    def add(self, parameters, value):
        if value is None or not math.isfinite(value):
            return
        params, distributions = to_optuna(parameters, self.space)
        self.study.add_trial(create_trial(params=params, distributions=distributions, value=value))


def main():
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    search = None
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "hello":
            search = Search(message)
            send(type="ready")
        elif message["type"] == "end":
            break
        else:
            search.handle(message)


if __name__ == "__main__":
    main()
