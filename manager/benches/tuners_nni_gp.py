"""NNI's GP with the default number of candidates, in a time one can wait for.

`acq_max` here is that of nni 3.0 (`nni/algorithms/hpo/gp_tuner/util.py`) for spaces of `uniform` alone: the same dice thrown in
the same order, the same 100,000 candidates, the same 250 climbs of L-BFGS-B with the same differences for a gradient.
Only the arithmetic is done for many points at a time: half an hour a seed becomes less than a minute. It wants SciPy 1.4.
Run as a program, it compares: both propose from the same histories with the same dice, and differ in the seventh digit.

    python tuners_nni_gp.py
"""

import math

import numpy
import scipy.linalg.lapack
import scipy.optimize._lbfgsb
import scipy.spatial.distance
import scipy.special
from nni.algorithms.hpo.gp_tuner import gp_tuner
from nni.algorithms.hpo.gp_tuner.util import acq_max as by_nni

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

    for x, gain in climbed(lambda rows: expected_improvement(gp, rows, y_max), sample(num_starting_points), low, high):
        if gain >= most:
            found, most = x, gain
    return numpy.clip(found, low, high)


def climbed(gains, starts, low, high):
    """The minima that `scipy.optimize.minimize` finds by L-BFGS-B from each of `starts` where it succeeds, all of them step by step
    together; `setulb` is called as scipy 1.4 calls it (`_minimize_lbfgsb`)."""
    n, m = len(low), 10
    steps = numpy.vstack([numpy.zeros(n), numpy.eye(n) * STEP])
    climbs = []
    for x in starts:
        work = numpy.zeros(2 * m * n + 5 * n + 11 * m * m + 8 * m)
        kept = [numpy.zeros(3 * n, 'int32'), numpy.zeros(1, 'S60'), -1, numpy.zeros(1, 'S60'),
                numpy.zeros(4, 'int32'), numpy.zeros(44, 'int32'), numpy.zeros(29), 20]
        kept[1][:] = 'START'
        climbs.append([x.copy(), 0., numpy.zeros(n), work, kept])
    both = numpy.full(n, 2, 'int32')
    going = climbs
    while going:
        asking = []
        for climb in going:
            x, f, g, work, kept = climb
            while True:
                scipy.optimize._lbfgsb.setulb(m, x, low, high, both, f, g, 1e7, 1e-5, work, *kept)
                task = kept[1].tobytes()
                if not task.startswith(b'NEW_X'):
                    break
            if task.startswith(b'FG'):
                asking.append(climb)
        rows = numpy.concatenate([climb[0] + steps for climb in asking] or [steps[:0]])
        for climb, said in zip(asking, gains(rows).reshape(-1, n + 1)):
            climb[1], climb[2] = numpy.array(-said[0]), -(said[1:] - said[0]) / STEP
        going = asking
    return [(x, -f) for x, f, _, _, kept in climbs if kept[1].tobytes().startswith(b'CONVERGENCE')]


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
