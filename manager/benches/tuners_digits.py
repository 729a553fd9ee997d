"""A real search for `tuners_table.py`: scikit-learn's digits with a small neural net, the loss being the part of the
test images that it gets wrong. As a program it answers each line of JSON, the parameters, with a line, the loss.
"""

import functools
import json
import sys
import warnings

SPACE = {
    'hidden': {'_type': 'randint', '_value': [4, 65]},
    'alpha': {'_type': 'loguniform', '_value': [1e-6, 1]},
    'learning_rate_init': {'_type': 'loguniform', '_value': [1e-4, 0.3]},
    'batch_size': {'_type': 'choice', '_value': [32, 64, 128, 256]},
    'activation': {'_type': 'choice', '_value': ['relu', 'tanh', 'logistic']},
}


@functools.lru_cache(None)
def data():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split
    images, digits = load_digits(return_X_y=True)
    return train_test_split(images / 16, digits, test_size=0.5, random_state=0)


def digits(parameters):
    from sklearn.neural_network import MLPClassifier
    warnings.simplefilter('ignore')
    train, test, train_digits, test_digits = data()
    rest = {name: value for name, value in parameters.items() if name != 'hidden'}
    rest['batch_size'] = int(rest['batch_size'])
    net = MLPClassifier((int(parameters['hidden']),), max_iter=10, random_state=0, **rest)
    return 1 - net.fit(train, train_digits).score(test, test_digits)


PROBLEM = ('digits', SPACE, digits)

if __name__ == '__main__':
    print(json.dumps(SPACE), flush=True)
    for line in sys.stdin:
        print(digits(json.loads(line)), flush=True)
