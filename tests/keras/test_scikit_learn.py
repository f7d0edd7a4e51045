"""Models as scikit-learn's estimators."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from sklearn.model_selection import GridSearchCV, KFold, cross_val_score

import flowrt as tf
from flowrt import keras
from flowrt.errors import InvalidArgumentError
from flowrt.keras.wrappers.scikit_learn import KerasClassifier, KerasRegressor

X = np.random.RandomState(0).normal(size=(30, 2))


@pytest.fixture(autouse=True)
def own_graph() -> Iterator[None]:
    """With the same weights in every run: some are right before they are trained."""
    np.random.seed(0)
    with tf.Graph().as_default():
        tf.set_random_seed(0)
        yield


def classifier(outputs: int = 1, rate: float = 1.0) -> keras.Model:
    model = keras.Sequential([keras.layers.Dense(outputs, input_dim=2, activation="sigmoid")])
    loss = "binary_crossentropy" if outputs == 1 else "categorical_crossentropy"
    model.compile(keras.optimizers.SGD(rate), loss, metrics=["accuracy"])
    return model


def regressor() -> keras.Model:
    model = keras.Sequential([keras.layers.Dense(1, input_dim=2)])
    model.compile(keras.optimizers.SGD(0.1), "mse")
    return model


@pytest.mark.parametrize("outputs", [1, 2])
def test_a_classifier_knows_its_labels(outputs: int) -> None:
    labels = np.array(["below", "above"])[(X[:, 0] > 0).astype(int)]
    found = KerasClassifier(classifier, outputs=outputs, epochs=20, verbose=0)
    assert found.fit(X, labels).epoch == list(range(20))
    assert (list(found.classes_), found.n_classes_) == (["above", "below"], 2)
    share = found.score(X, labels)
    assert share == pytest.approx(np.mean(found.predict(X).ravel() == labels))
    assert share > 0.9
    assert found.predict_proba(X).shape == (30, 2)


def test_a_grid_search_tries_models_and_options_of_training() -> None:
    labels = (X[:, 0] > 0).astype(int)
    search = GridSearchCV(
        KerasClassifier(classifier, epochs=3, verbose=0), {"rate": [1e-6, 1.0], "batch_size": [5]}, cv=2
    )
    search.fit(X, labels)
    assert search.best_params_ == {"rate": 1.0, "batch_size": 5}
    scores = cross_val_score(
        KerasRegressor(regressor, epochs=20, verbose=0), X, X[:, 0] - X[:, 1], cv=KFold(3)
    )
    assert scores.shape == (3,)
    assert scores.min() > -0.1


def test_mistakes() -> None:
    with pytest.raises(InvalidArgumentError, match=r"got 'epoch'. Nearest: epochs"):
        KerasClassifier(classifier, epoch=3)
    made = KerasClassifier(regressor, verbose=0)
    made.fit(X, X[:, 0] > 0)
    with pytest.raises(InvalidArgumentError, match=r"compiled with metrics=\['accuracy'\]"):
        made.score(X, X[:, 0] > 0)
