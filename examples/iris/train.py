"""Trains a small neural network on Fisher's Iris data, using only the standard library.

The script reads its parameters from the environment and prints its results as `name=value`. It needs no SDK.
"""

import csv
import json
import math
import os
import random
from pathlib import Path

SPECIES = ["setosa", "versicolor", "virginica"]
EPOCHS = 20


def load(path):
    """Returns rows of four measurements in cm, each with the index of its species."""
    with path.open(newline="") as file:
        for row in csv.DictReader(file):
            species = SPECIES.index(row.pop("species"))
            yield [float(value) for value in row.values()], species


def split(rows, rng):
    """Returns 30 rows for training and 120 for validation, balanced by species and scaled with the training rows."""
    train, validation = [], []
    for species in range(len(SPECIES)):
        of_species = [row for row in rows if row[1] == species]
        rng.shuffle(of_species)
        train += of_species[:10]
        validation += of_species[10:]

    columns = list(zip(*(features for features, _ in train)))
    means = [sum(column) / len(column) for column in columns]
    spreads = [
        math.sqrt(sum((value - mean) ** 2 for value in column) / len(column))
        for column, mean in zip(columns, means)
    ]

    def scaled(part):
        return [
            ([(x - mean) / spread for x, mean, spread in zip(features, means, spreads)], species)
            for features, species in part
        ]

    return scaled(train), scaled(validation)


ACTIVATIONS = {
    # Each function with its derivative, as a function of the activation.
    "tanh": (math.tanh, lambda y: 1.0 - y * y),
    "relu": (lambda x: max(0.0, x), lambda y: 1.0 if y > 0.0 else 0.0),
}


class Network:
    """A network with four inputs, one hidden layer and a softmax over three species, trained by SGD with momentum."""

    def __init__(self, params, rng):
        self.rate = params["learning_rate"]
        self.momentum = params["momentum"]
        self.decay = params["weight_decay"]
        self.activate, self.slope = ACTIVATIONS[params["activation"]]

        def layer(outputs, inputs):
            bound = 1.0 / math.sqrt(inputs)
            # The last weight of each row is the bias.
            return [[rng.uniform(-bound, bound) for _ in range(inputs)] + [0.0] for _ in range(outputs)]

        self.layers = [layer(params["hidden_units"], 4), layer(len(SPECIES), params["hidden_units"])]
        self.speeds = [[[0.0] * len(row) for row in layer] for layer in self.layers]

    def forward(self, features):
        hidden = [
            self.activate(row[-1] + sum(w * x for w, x in zip(row, features)))
            for row in self.layers[0]
        ]
        scores = [row[-1] + sum(w * x for w, x in zip(row, hidden)) for row in self.layers[1]]
        top = max(scores)
        powers = [math.exp(score - top) for score in scores]
        total = sum(powers)
        return hidden, [power / total for power in powers]

    def learn(self, batch):
        gradients = [[[0.0] * len(row) for row in layer] for layer in self.layers]
        for features, species in batch:
            hidden, chances = self.forward(features)
            errors = [chance - (index == species) for index, chance in enumerate(chances)]
            back = [
                self.slope(value) * sum(e * row[unit] for e, row in zip(errors, self.layers[1]))
                for unit, value in enumerate(hidden)
            ]
            for gradient, deltas, inputs in zip(gradients, (back, errors), (features, hidden)):
                for row, delta in zip(gradient, deltas):
                    for index, x in enumerate(inputs):
                        row[index] += delta * x
                    row[-1] += delta

        for layer, speed, gradient in zip(self.layers, self.speeds, gradients):
            for weights, speeds, slopes in zip(layer, speed, gradient):
                for index, slope in enumerate(slopes):
                    pull = slope / len(batch) + self.decay * weights[index]
                    speeds[index] = self.momentum * speeds[index] - self.rate * pull
                    weights[index] += speeds[index]

    def judge(self, rows):
        """Returns the mean cross-entropy and the accuracy."""
        loss, right = 0.0, 0
        for features, species in rows:
            _, chances = self.forward(features)
            loss -= math.log(max(chances[species], 1e-12))
            right += chances.index(max(chances)) == species
        return loss / len(rows), right / len(rows)


def main():
    params = json.loads(os.environ["TRIALKEEPER_PARAMETERS"])
    rng = random.Random(1936)
    train, validation = split(list(load(Path(__file__).with_name("iris.csv"))), rng)
    network = Network(params, rng)
    size = params["batch_size"]
    for epoch in range(EPOCHS):
        rng.shuffle(train)
        for start in range(0, len(train), size):
            network.learn(train[start : start + size])
        loss, accuracy = network.judge(validation)
        print(f"epoch={epoch} loss={loss:.4f} accuracy={accuracy:.4f}")


if __name__ == "__main__":
    main()
