"""``flowrt.keras.wrappers.scikit_learn``: models as scikit-learn's estimators, for its grid searches and
cross-validation.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from flowrt.errors import nearest
from flowrt.graph.source import misuse
from flowrt.keras.engine.model import Model
from flowrt.keras.engine.sequential import Sequential
from flowrt.keras.labels import to_categorical

Array = np.ndarray[Any, Any]


class _Wrapper:
    """Base of both: ``build_fn`` makes a compiled model, or a subclass does so by ``__call__``.

    ``sk_params`` are arguments of ``build_fn``, and of `Sequential`'s ``fit``, ``predict`` and ``evaluate``.
    Raises `InvalidArgumentError` for others.
    """

    model: Model

    def __init__(self, build_fn: Any = None, **sk_params: Any) -> None:
        self.build_fn = build_fn
        self.sk_params = sk_params
        self.check_params(sk_params)

    def _builder(self) -> Callable[..., Any]:
        return self if self.build_fn is None else self.build_fn  # type: ignore[return-value]

    def check_params(self, params: Mapping[str, Any]) -> None:
        """Raise `InvalidArgumentError` for parameters that no function takes."""
        takers = (self._builder(), Sequential.fit, Sequential.predict, Sequential.evaluate)
        known = [name for taker in takers for name in inspect.signature(taker).parameters]
        for name in params:
            if name not in [*known, "nb_epoch"]:
                raise misuse(
                    f"{type(self).__name__}: expected arguments of the model's function, of fit, predict or "
                    f"evaluate; got {name!r}.{nearest(name, known)}"
                )

    def get_params(self, **_: Any) -> dict[str, Any]:
        return {**self.sk_params, "build_fn": self.build_fn}

    def set_params(self, **params: Any) -> _Wrapper:
        self.check_params(params)
        self.sk_params.update(params)
        return self

    def filter_sk_params(self, fn: Callable[..., Any], override: Any = None) -> dict[str, Any]:
        """The parameters that ``fn`` takes, and those of ``override``."""
        names = inspect.signature(fn).parameters
        return {**{k: v for k, v in self.sk_params.items() if k in names}, **(override or {})}

    def fit(self, x: Any, y: Any, **options: Any) -> Any:
        """Make a model and train it; returns the history. Labels become one-hot rows for the loss
        ``categorical_crossentropy``.
        """
        builder = self._builder()
        self.model = builder(**self.filter_sk_params(builder))
        return self.model.fit(x, self._targets(y), **self.filter_sk_params(Sequential.fit, options))

    def _targets(self, y: Any) -> Array:
        loss = getattr(self.model.loss, "__name__", self.model.loss)
        return to_categorical(y) if loss == "categorical_crossentropy" and np.ndim(y) != 2 else np.asarray(y)

    def __sklearn_tags__(self) -> Any:
        """Scikit-learn 1.6's facts of an estimator: targets are needed. A classifier is none by type, as with
        TensorFlow: folds are not stratified.
        """
        utils: Any = importlib.import_module("sklearn.utils")
        return utils.Tags(estimator_type=None, target_tags=utils.TargetTags(required=True))


class KerasClassifier(_Wrapper):
    """A classifier of labels of any kind, ``classes_``, or of one-hot rows.

    Example:
        >>> def build(units=4):
        ...     model = tf.keras.Sequential([
        ...         tf.keras.layers.Dense(units, input_dim=2), tf.keras.layers.Dense(1, activation="sigmoid")
        ...     ])
        ...     model.compile("adam", "binary_crossentropy", metrics=["accuracy"])
        ...     return model
        >>> classifier = tf.keras.wrappers.scikit_learn.KerasClassifier(build, epochs=2, verbose=0)
        >>> _ = classifier.fit(np.eye(2), np.array(["no", "yes"]))
        >>> classifier.predict_proba(np.eye(2)).shape
        (2, 2)
    """

    classes_: Array
    n_classes_: int

    def fit(self, x: Any, y: Any, **options: Any) -> Any:
        """See `_Wrapper.fit`. Raises `InvalidArgumentError` for labels of a rank above 2."""
        y = np.array(y)
        if y.ndim == 2 and y.shape[1] > 1:
            self.classes_ = np.arange(y.shape[1])
        elif y.ndim in (1, 2):
            self.classes_ = np.unique(y)
            y = np.searchsorted(self.classes_, y)
        else:
            raise misuse(f"KerasClassifier: fit: expected labels of rank 1 or 2; got the shape {y.shape}")
        self.n_classes_ = len(self.classes_)
        return super().fit(x, y, **options)

    def predict(self, x: Any, **options: Any) -> Array:
        """The labels of ``x``."""
        given = self.filter_sk_params(Sequential.predict_classes, options)
        return np.asarray(self.classes_[self.model.predict_classes(x, **given)])

    def predict_proba(self, x: Any, **options: Any) -> Array:
        """``[n, classes]``: how likely each class is."""
        given = self.filter_sk_params(Sequential.predict_proba, options)
        found = np.asarray(self.model.predict_proba(x, **given))
        return np.hstack([1 - found, found]) if found.shape[1] == 1 else found

    def score(self, x: Any, y: Any, **options: Any) -> float:
        """The accuracy. Raises `InvalidArgumentError` for a model without that metric."""
        targets = self._targets(np.searchsorted(self.classes_, y))
        found = self.model.evaluate(x, targets, **self.filter_sk_params(Sequential.evaluate, options))
        results = dict(zip(self.model.metrics_names, np.ravel(found), strict=False))
        accuracies = [results[name] for name in ("acc", "accuracy") if name in results]
        if not accuracies:
            raise misuse("KerasClassifier: score: expected a model compiled with metrics=['accuracy']")
        return float(accuracies[0])


class KerasRegressor(_Wrapper):
    """A regressor; its score is the negative loss."""

    def predict(self, x: Any, **options: Any) -> Array:
        given = self.filter_sk_params(Sequential.predict, options)
        return np.squeeze(self.model.predict(x, **given))

    def score(self, x: Any, y: Any, **options: Any) -> float:
        given = self.filter_sk_params(Sequential.evaluate, options)
        return -float(np.ravel(self.model.evaluate(x, y, **given))[0])
