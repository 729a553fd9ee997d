"""Optuna's figures beside those of `pareto.rs`: the hypervolume of what 200 trials find, in percent.

Run it with an interpreter that has `pip install optuna`:

    python pareto_optuna.py [--seeds 15] [--trials 200] [NSGA-II] [TPE]
"""

import argparse
import math
import statistics

import numpy
import optuna
from optuna._hypervolume import compute_hypervolume

optuna.logging.set_verbosity(optuna.logging.ERROR)


def zdt(last):
    def losses(x):
        g = 1 + 9 * sum(x[1:]) / (len(x) - 1)
        return [x[0], g * last(x[0], g)]

    return losses


def dtlz2(x):
    g = 1 + sum((number - 0.5) ** 2 for number in x[2:])
    a, b = x[0] * math.pi / 2, x[1] * math.pi / 2
    return [g * math.cos(a) * math.cos(b), g * math.cos(a) * math.sin(b), g * math.sin(a)]


PROBLEMS = {
    'ZDT1': (6, zdt(lambda x, g: 1 - math.sqrt(x / g)), [1.1, 6]),
    'ZDT2': (6, zdt(lambda x, g: 1 - (x / g) ** 2), [1.1, 6]),
    'ZDT3': (6, zdt(lambda x, g: 1 - math.sqrt(x / g) - x / g * math.sin(10 * math.pi * x)), [1.1, 6]),
    'DTLZ2, three objectives': (7, dtlz2, [1.1, 1.1, 1.1]),
}
SAMPLERS = {
    'NSGA-II': lambda seed: optuna.samplers.NSGAIISampler(seed=seed),
    'TPE': lambda seed: optuna.samplers.TPESampler(seed=seed),
}


def volume(values, reference):
    inside = [value for value in values if all(x < limit for x, limit in zip(value, reference))]
    return compute_hypervolume(numpy.array(inside), numpy.array(reference, dtype=float)) if inside else 0.0


def reachable(name, size, losses, reference):
    if name.startswith('DTLZ2'):
        return 1.1**3 - math.pi / 6
    return volume([losses([i / 20_000] + [0] * (size - 1)) for i in range(20_001)], reference)


def found(sampler, size, losses, reference, trials):
    study = optuna.create_study(directions=['minimize'] * len(reference), sampler=sampler)
    study.optimize(
        lambda trial: tuple(losses([trial.suggest_float(f'x{i}', 0, 1) for i in range(size)])), n_trials=trials
    )
    return volume([trial.values for trial in study.trials], reference)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument('--seeds', type=int, default=15)
    parser.add_argument('--trials', type=int, default=200)
    parser.add_argument('samplers', nargs='*', default=list(SAMPLERS))
    given = parser.parse_args()
    for name, (size, losses, reference) in PROBLEMS.items():
        most = reachable(name, size, losses, reference)
        for sampler in given.samplers:
            make = SAMPLERS[sampler]
            volumes = [found(make(seed), size, losses, reference, given.trials) for seed in range(given.seeds)]
            print(f'  {name:<24} {sampler:<8} {statistics.median(volumes) / most * 100:6.2f}', flush=True)


if __name__ == '__main__':
    main()
