"""NNI 3.0's figures for the table that `tuners_table.py` makes.

Run it with an interpreter that has `pip install nni==3.0 'numpy<2' 'pandas<3' 'setuptools<81' scikit-learn` (Python 3.11):

    python tuners_nni.py [--seeds N] [--problems 'NAME;...'] [Random Evolution TPE GP Metis]

NNI's GP and Metis hand SciPy a start of two dimensions, which SciPy 1.11 and later refuse, and GP expects a list of one
number in the answer, which SciPy 1.9, the oldest for this Python, does not give either; both are made here as SciPy itself did
before, and nothing else is changed. What they were written for is Python 3.8 with `numpy==1.19.5 scipy==1.4.1
scikit-learn==0.24.2 'pandas<1.3'`. Anneal needs `hyperopt==0.1.2` besides.
"""

import argparse
import json
import logging
import math
import random
import statistics
import sys
import time
import warnings

import numpy
import scipy.optimize

from tuners_digits import PROBLEM as DIGITS

minimize = scipy.optimize.minimize


def flattened(fun, x0, *args, **more):
    found = minimize(fun, numpy.ravel(x0), *args, **more)
    found.fun = numpy.atleast_1d(found.fun)
    return found


scipy.optimize.minimize = flattened
logging.disable(logging.CRITICAL)
warnings.simplefilter('ignore')


def uniform(count, low, high):
    return {f'x{i}': {'_type': 'uniform', '_value': [low, high]} for i in range(count)}


def branin(p):
    x, y = p['x'], p['y']
    return ((y - 5.1 / (4 * math.pi ** 2) * x * x + 5 / math.pi * x - 6) ** 2
            + 10 * (1 - 1 / (8 * math.pi)) * math.cos(x) + 10)


def hartmann6(p):
    a = [[10, 3, 17, 3.5, 1.7, 8], [0.05, 10, 17, 0.1, 8, 14], [3, 3.5, 1.7, 10, 17, 8], [17, 8, 0.05, 10, 0.1, 14]]
    c = [[0.1312, 0.1696, 0.5569, 0.0124, 0.8283, 0.5886], [0.2329, 0.4135, 0.8307, 0.3736, 0.1004, 0.9991],
         [0.2348, 0.1451, 0.3522, 0.2883, 0.3047, 0.6650], [0.4047, 0.8828, 0.8732, 0.5743, 0.1091, 0.0381]]
    return -sum(s * math.exp(-sum(a[i][j] * (p[f'x{j}'] - c[i][j]) ** 2 for j in range(6)))
                for i, s in enumerate([1.0, 1.2, 3.0, 3.2]))


def rosenbrock5(p):
    x = [p[f'x{i}'] for i in range(5)]
    return sum(100 * (b - a * a) ** 2 + (1 - a) ** 2 for a, b in zip(x, x[1:]))


def mixed(p):
    net = p['net']
    if net['_name'] == 'conv':
        cost = (net['drop'] - 0.3) ** 2 * 4 + (0 if net['kernel'] == 3 else 0.3)
    else:
        cost = 0.5 + abs(net['width'] - 64) / 100
    return (math.log10(p['lr']) + 2.5) ** 2 + (p['layers'] - 3) ** 2 * 0.1 + cost


MIXED = {
    'lr': {'_type': 'loguniform', '_value': [0.00001, 1]}, 'layers': {'_type': 'randint', '_value': [1, 9]},
    'net': {'_type': 'choice', '_value': [
        {'_name': 'conv', 'kernel': {'_type': 'choice', '_value': [1, 3, 5, 7]},
         'drop': {'_type': 'uniform', '_value': [0, 0.9]}},
        {'_name': 'dense', 'width': {'_type': 'quniform', '_value': [8, 256, 8]}}]}}
PROBLEMS = [
    ('Branin', {'x': {'_type': 'uniform', '_value': [-5, 10]}, 'y': {'_type': 'uniform', '_value': [0, 15]}}, branin),
    ('Hartmann-6', uniform(6, 0, 1), hartmann6),
    ('Rosenbrock-5', uniform(5, -2, 2), rosenbrock5),
    ('mixed, nested', MIXED, mixed),
    DIGITS,
]


def make(name, seed):
    numpy.random.seed(seed)
    random.seed(seed)
    if name == 'Random':
        from nni.algorithms.hpo.random_tuner import RandomTuner
        return RandomTuner(seed=seed)
    if name == 'Evolution':
        from nni.algorithms.hpo.evolution_tuner import EvolutionTuner
        return EvolutionTuner('minimize')
    if name == 'Anneal':
        from nni.algorithms.hpo.hyperopt_tuner import HyperoptTuner
        return HyperoptTuner('anneal', 'minimize')
    if name == 'GP':
        from nni.algorithms.hpo.gp_tuner import GPTuner
        return GPTuner('minimize')
    if name == 'GP, in rows':
        import tuners_nni_gp
        tuners_nni_gp.gp_tuner.acq_max = tuners_nni_gp.acq_max
        return make('GP', seed)
    if name == 'Metis':
        from nni.algorithms.hpo.metis_tuner import MetisTuner
        return MetisTuner('minimize')
    from nni.algorithms.hpo.tpe_tuner import TpeTuner
    return TpeTuner('minimize', seed=seed)


def turn(tuner, number, function):
    parameters = tuner.generate_multiple_parameters([number], st_callback=lambda *_: None)[0]
    loss = function(parameters)
    tuner.receive_trial_result(number, parameters, loss)
    tuner.trial_end(number, True)
    return loss


def best(name, space, function, seed):
    tuner = make(name, seed)
    tuner.update_search_space(space)
    return min(turn(tuner, number, function) for number in range(100))


def milliseconds(name):
    tuner = make(name, 1)
    tuner.update_search_space(uniform(20, 0, 1))
    sphere = lambda p: sum((x - 0.3) ** 2 for x in p.values())
    dice = random.Random(1)
    slow = name.startswith('GP')  # It has points drawn at random for its history, and proposes once.
    for number in range(1000):
        if slow:
            point = {name: dice.random() for name in uniform(20, 0, 1)}
            tuner.receive_trial_result(number, point, sphere(point))
        else:
            turn(tuner, number, sphere)
    times = []
    for number in range(1000, 1001 if slow else 1021):
        before = time.perf_counter()
        turn(tuner, number, sphere)
        times.append((time.perf_counter() - before) * 1000)
    return statistics.median(times)


def arguments(tuners):
    parser = argparse.ArgumentParser()
    parser.add_argument('--seeds', type=int, default=30)
    parser.add_argument('--problems', default=';'.join(says for says, _, _ in PROBLEMS if says != 'digits'))
    parser.add_argument('--fast', action='store_true', help='leave the time of a proposal out')
    parser.add_argument('tuners', nargs='*', default=tuners)
    given = parser.parse_args()
    given.problems = [problem for problem in PROBLEMS if problem[0] in given.problems.split(';')]
    return given


def report(given, best, milliseconds):
    """A line of JSON for each figure."""
    for name in given.tuners:
        if not given.fast:
            print(json.dumps({'tuner': name, 'ms': milliseconds(name)}), flush=True)
        for says, space, function in given.problems:
            figure = {'tuner': name, 'problem': says, 'seeds': given.seeds}
            try:
                losses = [best(name, space, function, seed) for seed in range(given.seeds)]
                figure['loss'] = statistics.median(losses)
            except Exception as error:  # What NNI's cannot do is a result, too.
                figure['fails'] = f'{type(error).__name__}: {error}'[:200]
            print(json.dumps(figure), flush=True)


if __name__ == '__main__':
    report(arguments(['Random', 'Evolution', 'TPE']), best, milliseconds)
