"""Recognises handwritten digits. Uses NNI's own SDK, as any NNI trial does."""

import nni
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

EPOCHS = 8


def main():
    params = nni.get_next_parameter()
    images, digits = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        images / 16.0, digits, test_size=0.3, random_state=0, stratify=digits
    )
    model = MLPClassifier(
        hidden_layer_sizes=(int(params["hidden_units"]),),
        learning_rate_init=params["learning_rate"],
        alpha=params["alpha"],
        batch_size=32,
        random_state=0,
    )
    accuracy = 0.0
    for _ in range(EPOCHS):
        model.partial_fit(train_x, train_y, classes=range(10))
        accuracy = model.score(test_x, test_y)
        nni.report_intermediate_result(accuracy)
    nni.report_final_result(accuracy)


if __name__ == "__main__":
    main()
