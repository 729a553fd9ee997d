"""Makes the table of `docs/benchmarks.md`, tuners: the best loss after 100 trials, median over the seeds, of this build's
tuners, NNI's own and Optuna's TPE.

    python tuners_table.py [--seeds 30] [--digits] [--nni PYTHON] [--optuna PYTHON]

PYTHON is an interpreter with NNI, and one with Optuna (heads of `tuners_nni.py` and `tuners_optuna.py` say what to
install; both with scikit-learn for --digits); without one its rows are left out. With one busy core, the functions take about
a quarter of an hour, most of it Optuna's; digits about 10 s for each seed and tuner.
NNI's GP and Metis take hours and are named one by one: `tuners_nni.py --seeds 2 GP Metis`.
"""

import argparse
import json
import subprocess
from pathlib import Path

HERE = Path(__file__).parent
FUNCTIONS = ['Branin', 'Hartmann-6', 'Rosenbrock-5', 'mixed, nested']


def figures(command):
    """What a program says, a line of JSON each."""
    said = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True, check=True, cwd=HERE)
    return [json.loads(line) for line in said.stdout.splitlines() if line.startswith('{')]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--seeds', type=int, default=30)
    parser.add_argument('--digits', action='store_true', help='also the real search; needs an interpreter of the two')
    parser.add_argument('--nni')
    parser.add_argument('--optuna')
    given = parser.parse_args()
    problems = FUNCTIONS + (['digits'] if given.digits else [])
    own = ['cargo', 'bench', '-q', '-p', 'trial-manager', '--bench', 'tuners', '--', '--json', '--seeds', given.seeds]
    if given.digits:
        own += ['--digits', given.nni or given.optuna]
    sources = [('TrialKeeper', own)]
    common = ['--fast', '--seeds', given.seeds, '--problems', ';'.join(problems)]
    if given.nni:
        sources.append(('NNI 3.0', [given.nni, 'tuners_nni.py', *common]))
    if given.optuna:
        sources.append(('Optuna', [given.optuna, 'tuners_optuna.py', *common]))
    losses = {}
    for source, command in sources:
        for figure in figures(command):
            if 'problem' in figure:
                says = f"{figure['loss']:.4f}" if 'loss' in figure else 'fails'
                losses[figure['problem'], source, figure['tuner']] = says
    tuners = list(dict.fromkeys(tuner for _, _, tuner in losses))
    print(f'| {given.seeds} seeds | | ' + ' | '.join(tuners) + ' |')
    print('| --- | --- |' + ' --- |' * len(tuners))
    for problem in problems:
        for source, _ in sources:
            row = [losses.get((problem, source, tuner), '') for tuner in tuners]
            print(f'| {problem} | {source} | ' + ' | '.join(row) + ' |')


if __name__ == '__main__':
    main()
