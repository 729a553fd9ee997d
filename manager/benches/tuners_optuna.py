"""Optuna's figures for the table that `tuners_table.py` makes.

Run it with an interpreter that has `pip install optuna cmaes scikit-learn`:

    python tuners_optuna.py [--seeds N] [--problems 'NAME;...']
"""

import statistics
import sys
import time
from pathlib import Path

import optuna

sys.path += [str(Path(__file__).parent), str(Path(__file__).parent / '../../examples/optuna')]
optuna.logging.set_verbosity(optuna.logging.ERROR)

from optuna_search import propose  # noqa: E402
from tuners_nni import arguments, report, uniform  # noqa: E402


SAMPLERS = {'TPE': optuna.samplers.TPESampler, 'CMA-ES': optuna.samplers.CmaEsSampler}


def study(name, seed):
    return optuna.create_study(sampler=SAMPLERS[name](seed=seed))


def turn(study, space, function):
    trial = study.ask()
    loss = function(propose(trial, space))
    study.tell(trial, loss)
    return loss


def best(name, space, function, seed):
    own = study(name, seed)
    return min(turn(own, space, function) for _ in range(100))


def milliseconds(name):
    own, space = study(name, 1), uniform(20, 0, 1)
    sphere = lambda p: sum((x - 0.3) ** 2 for x in p.values())
    distributions = {name: optuna.distributions.FloatDistribution(0, 1) for name in space}
    import random
    dice = random.Random(1)
    for _ in range(1000):
        params = {name: dice.random() for name in space}
        own.add_trial(optuna.create_trial(params=params, distributions=distributions, value=sphere(params)))
    times = []
    for _ in range(21):
        before = time.perf_counter()
        turn(own, space, sphere)
        times.append((time.perf_counter() - before) * 1000)
    return statistics.median(times)


if __name__ == '__main__':
    report(arguments(['TPE', 'CMA-ES']), best, milliseconds)
