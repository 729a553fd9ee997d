"""NNI's GP with the default number of candidates, in a time one can wait for.

`acq_max` here is that of nni 3.0 (`nni/algorithms/hpo/gp_tuner/util.py`) for spaces of `uniform` alone: the same dice thrown in
the same order, the same 100,000 candidates, the same 250 climbs of L-BFGS-B with the same differences for a gradient.
Only the arithmetic is done in rows instead of number by number: half an hour a seed becomes two minutes.
Run as a program, it compares: both propose from the same histories with the same dice, and differ in the seventh digit.

    python tuners_nni_gp.py
"""

import math
import random

import numpy
import scipy.linalg.lapack
import scipy.optimize
import scipy.spatial.distance
import scipy.special
from nni.algorithms.hpo.gp_tuner import gp_tuner
from nni.algorithms.hpo.gp_tuner.util import UtilityFunction, acq_max as by_nni

# What L-BFGS-B steps for a difference where it is given no gradient (scipy 1.4, `_minimize_lbfgsb`).
STEP = 1e-8
ROWS = 5000


def expected_improvement(gp, rows, best):
    """`UtilityFunction._ei` and the `predict` of scikit-learn 0.24 it calls, for a Matern kernel of nu 2.5."""
    scale = gp.kernel_.length_scale
    k = scipy.spatial.distance.cdist(rows / scale, gp.X_train_ / scale) * math.sqrt(5)
    k = (1. + k + k ** 2 / 3.0) * numpy.exp(-k)
    mean = gp._y_train_std * k.dot(gp.alpha_) + gp._y_train_mean
    v, _ = scipy.linalg.lapack.dpotrs(gp.L_, k.T, lower=1)
    variance = 1 - numpy.einsum('ij,ji->i', k, v)
    std = numpy.sqrt(numpy.maximum(variance, 0) * gp._y_train_std ** 2)
    gain = mean - best
    z = gain / std
    return gain * scipy.special.ndtr(z) + std * numpy.exp(-z ** 2 / 2.0) / math.sqrt(2 * math.pi)


def acq_max(f_acq, gp, y_max, bounds, space, num_warmup, num_starting_points):
    kind = f_acq.__self__
    if any(bound['_type'] != 'uniform' for bound in bounds) or (kind._kind, kind._xi, gp.kernel.nu) != ('ei', 0, 2.5):
        raise ValueError('it knows expected improvement over uniform parameters alone')
    low, high = numpy.array([bound['_value'] for bound in bounds], dtype=float).T
    sample = lambda count: space._random_state.uniform(low, high, (int(count), len(low)))

    tries = sample(num_warmup)
    gains = numpy.concatenate([expected_improvement(gp, tries[at:at + ROWS], y_max) for at in range(0, len(tries), ROWS)])
    found, most = tries[gains.argmax()], gains.max()

    steps = numpy.vstack([numpy.zeros(len(low)), numpy.eye(len(low)) * STEP])

    def climb(x):
        gains = expected_improvement(gp, x + steps, y_max)
        return -gains[0], -(gains[1:] - gains[0]) / STEP

    for start in sample(num_starting_points):
        ended = scipy.optimize.minimize(climb, start, jac=True, bounds=numpy.array([low, high]).T, method='L-BFGS-B')
        if ended.success and -ended.fun >= most:
            found, most = ended.x, -ended.fun
    return numpy.clip(found, low, high)


def compare():
    from tuners_nni import PROBLEMS, make, turn
    for says, space, function in PROBLEMS[:3]:
        tuner = make('GP', 1)
        tuner._random_state.seed(1)
        tuner.update_search_space(space)
        gp_tuner.acq_max = acq_max
        for number in range(60):
            if number in (10, 20, 40, 59):
                dice, proposals = tuner._random_state.get_state(), []
                for one in (acq_max, by_nni):
                    gp_tuner.acq_max = one
                    tuner._random_state.set_state(dice)
                    proposals.append(tuner.generate_parameters(number))
                    print(says, number, proposals[-1], flush=True)
                gp_tuner.acq_max = acq_max
                tuner._random_state.set_state(dice)
            turn(tuner, number, function)


if __name__ == '__main__':
    compare()
