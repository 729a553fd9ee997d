"""Makes the table of `docs/benchmarks.md`, tuners: the best loss after 100 trials, median over the seeds, of this build's
tuners, NNI's own and Optuna's TPE.

    python tuners_table.py [--seeds 30] [--digits] [--nni PYTHON] [--old-nni PYTHON] [--optuna PYTHON] [--keep FILE]

Each PYTHON is an interpreter that has what the heads of `tuners_nni.py` and `tuners_optuna.py` say; without one its rows are
left out. `--old-nni` is one in which NNI's GP and Anneal run: Python 3.8 with SciPy 1.4 and hyperopt 0.1.2; GP as `tuners_nni_gp.py`
computes it, as NNI itself takes half an hour for a seed. `--digits` needs one of the other two, with scikit-learn. FILE takes each figure as it comes, with the processor seconds it took, and a figure that is in
it is not taken again: a run that was interrupted goes on. Standard error says what is being done.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
FUNCTIONS = ['Branin', 'Hartmann-6', 'Rosenbrock-5', 'mixed, nested']
OWN = ['Random', 'QMC', 'Evolution', 'Anneal', 'TPE', 'CMA-ES', 'GP']


def cells(given):
    """Source, problem, tuner and the command that takes the figure."""
    problems = FUNCTIONS + (['digits'] if given.digits else [])
    bench = ['cargo', 'bench', '-q', '-p', 'trial-manager', '--bench', 'tuners', '--', '--json']
    for problem in problems:
        for tuner in OWN:
            own = bench + ['--tuners', tuner, '--problems', problem]
            if problem == 'digits':
                own += ['--digits', given.nni or given.optuna]
            yield 'TrialKeeper', problem, tuner, own
        for source, python, script, tuners in [
            ('NNI 3.0', given.nni, 'tuners_nni.py', ['Random', 'Evolution', 'TPE']),
            ('NNI 3.0', given.old_nni, 'tuners_nni.py', ['Anneal', 'GP, in rows']),
            ('Optuna', given.optuna, 'tuners_optuna.py', ['TPE', 'CMA-ES']),
        ]:
            if python:
                for tuner in tuners:
                    yield source, problem, tuner, [python, script, tuner, '--fast', '--problems', problem]


def figure(command):
    """Returns the line of JSON that a program prints."""
    # One thread each: a small net gains nothing from more, and the machine may have better things to do.
    calm = dict(os.environ, OMP_NUM_THREADS='1', OPENBLAS_NUM_THREADS='1')
    said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=HERE, env=calm)
    return next(json.loads(line) for line in said.stdout.splitlines() if line.startswith('{'))


def used():
    """Processor seconds of all programs that have ended."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, default=30)
    parser.add_argument('--digits', action='store_true', help='also the real search')
    parser.add_argument('--nni')
    parser.add_argument('--old-nni')
    parser.add_argument('--optuna')
    parser.add_argument('--keep', type=Path, default=Path(os.devnull))
    given = parser.parse_args()
    for name in ['nni', 'old_nni', 'optuna']:
        python = getattr(given, name)
        if python and os.sep in python:
            setattr(given, name, os.path.abspath(python))
    if given.digits and not (given.nni or given.optuna):
        parser.error('--digits needs --nni or --optuna, with scikit-learn')
    known = {}
    if given.keep.is_file():
        for line in given.keep.read_text().splitlines():
            kept = json.loads(line)
            known[kept['source'], kept['problem'], kept['tuner'], kept['seeds']] = kept
    table = {}
    for source, problem, tuner, command in cells(given):
        key = source, problem, tuner, given.seeds
        if key not in known:
            print(f'{source}: {tuner} on {problem}', end=' ', file=sys.stderr, flush=True)
            before = used()
            known[key] = {'source': source, **figure([*command, '--seeds', str(given.seeds)])}
            known[key]['seconds'] = round(used() - before, 1)
            print(f"took {known[key]['seconds']} s of processor time", file=sys.stderr)
            with given.keep.open('a') as file:
                file.write(json.dumps(known[key]) + '\n')
        table.setdefault((problem, source), {})[tuner.split(',')[0]] = known[key]
    print(f'| {given.seeds} seeds | | ' + ' | '.join(OWN) + ' |')
    print('| --- | --- |' + ' --- |' * len(OWN))
    for (problem, source), row in table.items():
        says = [f"{row[tuner]['loss']:.4f}" if 'loss' in row.get(tuner, {}) else 'fails' if tuner in row else ''
                for tuner in OWN]
        print(f'| {problem} | {source} | ' + ' | '.join(says) + ' |')


if __name__ == '__main__':
    main()
